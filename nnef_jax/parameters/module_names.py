"""Finds the names of PyTorch's modules in exporters' labels of parameters and names of tensors.

torch_to_nnef writes `layer1.0.bn1.weight` as `layer1___0__bn1__weight_0_weight`. It also leaves out
names of module lists: it writes `_0__bn1`, or `_0_3__bn1` for a second such list. torch.onnx writes
the path of a module in the names of tensors, where each part of the path repeats its parents:
`/layer1/layer1.0/bn1/Add_output_0`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lowering.graph import Graph, Operation, Value

Path = tuple[str, ...]

_NUMBER = re.compile(r"_(\d+)(_\d+)?")  # the name that torch_to_nnef gives to an item of a list
# The name that torch_to_nnef gives to a parameter that it stores in another form than PyTorch.
_LEAF = re.compile(r"(weight|bias|running_mean|running_var)(_\d+)?(_[a-z_]+)?")
# the name that torch.onnx gives to the transposed weight of a linear layer
_FOLDED = "onnx::MatMul_"


def components(name: str) -> Path:
    """Split a name into the names of its modules in PyTorch, and the name in the last module."""
    if "/" in name:
        parts: list[str] = []
        for part in filter(None, name.split("/")):
            if parts and part.startswith(f"{parts[-1]}."):
                parts.pop()
            parts.append(part)
        return tuple(filter(None, ".".join(parts).split(".")))
    path: list[str] = []
    for part in filter(None, re.split(r"\.|__", name)):
        number = _NUMBER.fullmatch(part)
        path.append(number[1] if number else part)
    leaf = _LEAF.fullmatch(path[-1]) if path else None
    if "__" in name and leaf:
        path[-1] = leaf[1]
    return tuple(path)


def shared_start(paths: Sequence[Path]) -> Path | None:
    """Return the longest common start of some paths, or None if there are no paths."""
    if not paths:
        return None
    # In sorted order, all paths between these two share their common start.
    first = min(paths)
    last = max(paths)
    length = 0
    while first[: length + 1] == last[: length + 1] and length < len(first):
        length += 1
    return first[:length]


class ModuleNames:
    """The modules in the labels of a graph's parameters and the names of its tensors."""

    def __init__(self, graph: Graph) -> None:
        # Users choose the names of outputs, and the names of other tensors may extend them.
        self._outputs = tuple(graph.output_names)
        self._labels = {parameter.value: parameter.label for parameter in graph.parameters}
        self._folded: dict[str, Path] = {}
        self._groups: dict[str, int] = {}
        origins: dict[Value, str] = dict(self._labels)  # also of tensors made of a parameter alone
        starts: dict[str, set[Path | None]] = {}
        for operation in graph.operations:
            operands = list(operation.reads())
            labels = [origins[value] for value in operands if value in origins]
            if labels and len(operands) == 1:
                origins |= dict.fromkeys(operation.writes(), labels[0])
            for label in labels:
                is_weight = "__" in label and components(label)[-1] == "weight"
                if operation.kind == "deconv" and is_weight:
                    groups = dict(operation.attributes)["groups"]
                    self._groups[label] = groups if isinstance(groups, int) else 1
                if label.startswith(_FOLDED) and operation.kind == "matmul":
                    self._folded[label] = (*components(operation.name)[:-1], "weight")
                elif "." in label and "__" in operation.name:
                    root, _, _ = operation.name.partition("__")
                    starts.setdefault(root, set()).add(_abbreviated(operation.name, label))
        # A root is resolved only if all pairs of a label and an operation's name agree about it.
        self._starts: dict[str, Path] = {}
        for root, paths in starts.items():
            path = next(iter(paths))
            if path is not None and len(paths) == 1:
                self._starts[root] = path
        self._modules: set[Path] = set()
        for label in self._labels.values():
            path = self.of_label(label)[:-1]
            self._modules.update(path[:end] for end in range(1, len(path) + 1))

    def of_label(self, label: str) -> Path:
        """Return a parameter's name in PyTorch as a tuple.

        It has the names of the modules, followed by the name in the innermost module.
        """
        return self._folded.get(label) or self._full_path(label)

    def is_transposed(self, label: str) -> bool:
        """Tell whether an exporter stores the matrix with this label transposed.

        The shape does not tell it if the matrix is square.
        """
        return label in self._folded

    def groups_of(self, label: str) -> int:
        """Return the number of groups of the deconvolution that has a filter from torch_to_nnef.

        Return 0 if the label is not that of such a filter.
        """
        return self._groups.get(label, 0)

    def of_operation(self, operation: Operation) -> Path:
        """Return the path of an operation's module, from its parameters or else from its name."""
        return self.by_labels([operation]) or self.by_name(operation) or ()

    def by_labels(self, operations: Sequence[Operation]) -> Path | None:
        """Return the path of the innermost module that contains all parameters of operations.

        Return None if the operations read no parameters.
        """
        paths: list[Path] = []
        for operation in operations:
            for value in operation.reads():
                if value in self._labels:
                    paths.append(self.of_label(self._labels[value])[:-1])
        return shared_start([path for path in paths if path])

    def by_name(self, operation: Operation) -> Path | None:
        """Return the modules in an operation's name, up to the last one that has parameters.

        The path is () for an operation that torch_to_nnef puts into no module, and None if it is
        unknown.
        """
        if self._starts and "__" not in operation.name:
            return None if operation.name.startswith(self._outputs) else ()
        path = self._full_path(operation.name)[:-1]
        while path and path not in self._modules:
            path = path[:-1]
        return path or None

    def _full_path(self, name: str) -> Path:
        root, separator, _ = name.partition("__")
        path = components(name)
        if separator and root in self._starts:
            return (*self._starts[root], *path[1:])
        return path


def _abbreviated(name: str, label: str) -> Path | None:
    """Return the modules for which the root of an operation's name is an abbreviation, or None.

    The result is a start of the path in the parameter's label `label`: it ends in the root of
    `name`, and the parts of `name` after the root continue the path.
    """
    root, *inner = components(name)
    path = components(label)[:-1]
    for end in range(1, len(path) + 1):
        start = path[:end]
        remaining = list(path[end:])
        if start[-1] == root and inner[: len(remaining)] == remaining:
            return start
    return None
