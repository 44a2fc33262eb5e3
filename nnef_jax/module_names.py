"""One spelling of the modules that exporters name in labels of parameters and in tensors' names.

PyTorch's `layer1.0.bn1.weight` is `layer1___0__bn1__weight_0_weight` to torch_to_nnef, which also
leaves out lists of modules (`_0__bn1`, or `_0_3__bn1` for a second such). torch.onnx has modules
in names of tensors, each with those around it: `/layer1/layer1.0/bn1/Add_output_0`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, takewhile

from lowering.graph import Graph, Operation, Value

Path = tuple[str, ...]

_NUMBER = re.compile(r"_(\d+)(_\d+)?")  # an item of a list, to torch_to_nnef
# What it calls a parameter that it stores in another form than PyTorch.
_LEAF = re.compile(r"(weight|bias|running_mean|running_var)(_\d+)?(_[a-z_]+)?")
_FOLDED = "onnx::MatMul_"  # what torch.onnx calls the transposed weight of a linear layer


def components(name: str) -> Path:
    """Return the parts of a name, as PyTorch has them; what is last is no module."""
    if "/" in name:
        parts: list[str] = []
        for part in filter(None, name.split("/")):
            if parts and part.startswith(f"{parts[-1]}."):
                parts.pop()
            parts.append(part)
        return tuple([x for part in parts for x in part.split(".") if x])
    found = [part for part in re.split(r"\.|__", name) if part]
    numbers = map(_NUMBER.fullmatch, found)
    found = [part if n is None else n[1] for part, n in zip(found, numbers, strict=True)]
    if "__" in name and (leaf := _LEAF.fullmatch(found[-1] if found else "")):
        found[-1] = leaf[1]
    return tuple(found)


def shared_start(paths: Sequence[Path]) -> Path | None:
    """Return the start that paths share, None without any."""
    if not paths:
        return None
    first, last = min(paths), max(paths)  # what these share, those in between share too
    return first[: sum(1 for _ in takewhile(bool, map(str.__eq__, first, last)))]


class ModuleNames:
    """The modules that the parameters and tensors of a graph name."""

    def __init__(self, graph: Graph) -> None:
        self._starts: dict[str, Path] = {}
        self._outputs = tuple(graph.output_names)  # a user's names, and those derived from them
        self._labels = {p.value: p.label for p in graph.parameters}
        self._folded: dict[str, Path] = {}
        self._groups: dict[str, int] = {}
        origins: dict[Value, str] = dict(self._labels)
        known: dict[str, set[Path | None]] = {}
        for operation in graph.operations:
            read = [origins[value] for value in operation.reads() if value in origins]
            if read and len([*operation.reads()]) == 1:
                origins |= dict.fromkeys(operation.writes(), read[0])
            for label in read:
                if (
                    operation.kind == "deconv"
                    and "__" in label
                    and components(label)[-1] == "weight"
                ):
                    groups = dict(operation.attributes)["groups"]
                    self._groups[label] = groups if isinstance(groups, int) else 1
                if label.startswith(_FOLDED) and operation.kind == "matmul":
                    self._folded[label] = (*components(operation.name)[:-1], "weight")
                elif "." in label and "__" in operation.name:
                    root, _, _ = operation.name.partition("__")
                    known.setdefault(root, set()).add(_start(operation.name, label))
        # What a root stands for is known where all agree that a weight and its operation name.
        self._starts = {
            root: path for root, (path, *more) in known.items() if path is not None and not more
        }
        paths = {self.of_label(label)[:-1] for label in self._labels.values()}
        self._modules = {start for path in paths for start in accumulate((x,) for x in path)}

    def of_label(self, label: str) -> Path:
        """Return the name of a parameter as PyTorch has it, in parts."""
        return self._folded.get(label) or self._whole(label)

    def is_transposed(self, label: str) -> bool:
        """Tell whether an exporter stores this matrix transposed, however square it is."""
        return label in self._folded

    def groups_of(self, label: str) -> int:
        """Return the groups of a deconvolution whose filter torch_to_nnef rewrote, 0 of others."""
        return self._groups.get(label, 0)

    def of_operation(self, operation: Operation) -> Path:
        """Return the module of an operation, as far as its parameters or its name tell."""
        return self.by_labels([operation]) or self.by_name(operation) or ()

    def by_labels(self, operations: Sequence[Operation]) -> Path | None:
        """Return the module that all parameters are of which operations read, None without any."""
        labels = (self._labels.get(v) for x in operations for v in x.reads())
        paths = [self.of_label(label)[:-1] for label in labels if label is not None]
        return shared_start([path for path in paths if path])

    def by_name(self, operation: Operation) -> Path | None:
        """Return the module that an operation's name has, if parameters are of it or in it.

        It is () for what torch_to_nnef names as of no module, and None where nothing is known.
        """
        if self._starts and "__" not in operation.name:
            return None if operation.name.startswith(self._outputs) else ()
        path = self._whole(operation.name)[:-1]
        while path and path not in self._modules:
            path = path[:-1]
        return path or None

    def _whole(self, name: str) -> Path:
        root, separator, _ = name.partition("__")
        path = components(name)
        return (*self._starts[root], *path[1:]) if separator and root in self._starts else path


def _start(name: str, label: str) -> Path | None:
    """Return the start of a label's path that the first part of an operation's name stands for."""
    root, *rest = components(name)
    path = components(label)[:-1]
    ends = range(1, len(path) + 1)
    fits = (
        end for end in ends if path[end - 1] == root and [*path[end:]] == rest[: len(path) - end]
    )
    return next((path[:end] for end in fits), None)
