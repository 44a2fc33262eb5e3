"""Finds the names of PyTorch's modules in parameter labels and tensor names that exporters wrote.

torch_to_nnef writes `layer1.0.bn1.weight` as `layer1___0__bn1__weight_0_weight`. It also leaves out
names of module lists: it writes `_0__bn1`, or `_0_3__bn1` for a second such list. torch.onnx writes
the path of a module in the names of tensors, where each part of the path repeats its parents:
`/layer1/layer1.0/bn1/Add_output_0`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lowering.graph import Graph, Operation

Path = tuple[str, ...]

# Matches the name that torch_to_nnef gives to an item of a list of modules.
_NUMBER = re.compile(r"_(\d+)(_\d+)?")
# Matches the last part of a label from torch_to_nnef. The part has a suffix, as in
# "weight_0_weight", if the parameter is not stored in PyTorch's form.
_LEAF = re.compile(r"(weight|bias|running_mean|running_var)(_\d+)?(_[a-z_]+)?")
# The start of the name that torch.onnx gives to the transposed weight of a linear layer.
_FOLDED = "onnx::MatMul_"


def components(name: str) -> Path:
    """Split a name into the names of its modules in PyTorch, and the name in the last module.

    "/layer1/layer1.0/bn1/Add" becomes ("layer1", "0", "bn1", "Add").
    """
    if "/" in name:  # torch.onnx made the name
        parts: list[str] = []
        for part in _without_empty(name.split("/")):
            repeats_parent = parts and part.startswith(f"{parts[-1]}.")
            if repeats_parent:
                parts.pop()
            parts.append(part)
        return tuple(_without_empty(".".join(parts).split(".")))
    path: list[str] = []
    for part in _without_empty(re.split(r"\.|__", name)):
        list_item = _NUMBER.fullmatch(part)
        path.append(list_item[1] if list_item else part)  # "_0_3" becomes "0"
    if path and "__" in name:  # torch_to_nnef made the name
        parameter = _LEAF.fullmatch(path[-1])
        if parameter:
            path[-1] = parameter[1]  # "weight_0_weight" becomes "weight"
    return tuple(path)


def _without_empty(names: Sequence[str]) -> list[str]:
    """Return the names that are not empty."""
    return [name for name in names if name]


def shared_start(paths: Sequence[Path]) -> Path | None:
    """Return the longest common prefix of some paths, or None if there are no paths."""
    if not paths:
        return None
    # In sorted order, all paths lie between the first and the last one, and therefore begin with
    # the common prefix of these two.
    first = min(paths)
    last = max(paths)
    length = 0
    for name_in_first, name_in_last in zip(first, last, strict=False):
        if name_in_first != name_in_last:
            break
        length += 1
    return first[:length]


def _parameters_read(graph: Graph) -> Iterator[tuple[Operation, str]]:
    """Yield pairs of an operation and the label of a parameter that the operation reads.

    A tensor that is computed from a single parameter counts as this parameter.
    """
    # Maps each parameter, and each tensor that is computed from one parameter alone, to the label
    # of the parameter.
    origins = {parameter.value: parameter.label for parameter in graph.parameters}
    for operation in graph.operations:
        operands = list(operation.reads())
        labels = [origins[value] for value in operands if value in origins]
        if labels and len(operands) == 1:
            origins |= dict.fromkeys(operation.writes(), labels[0])
        for label in labels:
            yield operation, label


class ModuleNames:
    """Names of modules, found in the labels of a graph's parameters and in names of tensors."""

    def __init__(self, graph: Graph) -> None:
        # Users choose the names of outputs, so the names show no modules. An exporter may extend
        # the name of an output to the name of another tensor.
        self._outputs = tuple(graph.output_names)
        self._labels = {parameter.value: parameter.label for parameter in graph.parameters}
        # Maps the label of a linear layer's transposed weight to the path of the weight.
        self._folded: dict[str, Path] = {}
        # Maps the label of a deconvolution's filter to the deconvolution's number of groups.
        self._groups: dict[str, int] = {}
        # Maps the root of an operation's name, such as "_0", to the paths for which it may stand.
        paths_by_root: dict[str, set[Path | None]] = {}
        for operation, label in _parameters_read(graph):
            is_weight = "__" in label and components(label)[-1] == "weight"
            if is_weight and operation.kind == "deconv":
                groups = dict(operation.attributes)["groups"]
                self._groups[label] = groups if isinstance(groups, int) else 1
            if label.startswith(_FOLDED) and operation.kind == "matmul":
                # The label shows no module, but the name of the operation does.
                self._folded[label] = (*_modules_of(components(operation.name)), "weight")
            elif "." in label and "__" in operation.name:
                root, _, _ = operation.name.partition("__")
                path = _abbreviated(operation.name, label)
                paths_by_root.setdefault(root, set()).add(path)
        # The modules that an abbreviated root stands for. Each pair of an operation's name and a
        # label gives one path for the root. The root is resolved only if all pairs give the same
        # path.
        self._starts: dict[str, Path] = {}
        for root, paths in paths_by_root.items():
            path, *other_paths = paths
            if path is not None and not other_paths:
                self._starts[root] = path
        # A module is in this set if it, or a module inside it, has a parameter.
        self._modules: set[Path] = set()
        for label in self._labels.values():
            modules = _modules_of(self.of_label(label))
            for depth in range(1, len(modules) + 1):
                self._modules.add(modules[:depth])

    def of_label(self, label: str) -> Path:
        """Return a parameter's name in PyTorch as a tuple.

        The tuple has the names of the modules, followed by the parameter's name in the innermost
        module.
        """
        return self._folded.get(label) or self._full_path(label)

    def is_transposed(self, label: str) -> bool:
        """Tell whether an exporter transposed the matrix that has this label.

        The shape of a square matrix does not show this.
        """
        return label in self._folded

    def groups_of(self, label: str) -> int:
        """Return the number of groups of the deconvolution whose filter has this label.

        Returns 0 for all other labels, and for filters that torch_to_nnef did not export.
        """
        return self._groups.get(label, 0)

    def of_operation(self, operation: Operation) -> Path:
        """Return the path of an operation's module.

        The path comes from the labels of parameters, or else from the operation's name.
        """
        return self.by_labels([operation]) or self.by_name(operation) or ()

    def by_labels(self, operations: Sequence[Operation]) -> Path | None:
        """Return the path of the innermost module that contains all parameters of operations.

        Returns None if the operations read no parameters that are in a module.
        """
        paths: list[Path] = []
        for operation in operations:
            for value in operation.reads():
                if value in self._labels:
                    modules = _modules_of(self.of_label(self._labels[value]))
                    if modules:
                        paths.append(modules)
        return shared_start(paths)

    def by_name(self, operation: Operation) -> Path | None:
        """Return the modules in an operation's name, up to the last one that has parameters.

        The path is () for an operation that torch_to_nnef puts into no module. Return None if the
        path is unknown.
        """
        is_in_no_module = self._starts and "__" not in operation.name
        if is_in_no_module:
            # An operation that is called like an output, such as "y_2" for y, shows no module.
            may_extend_output = operation.name.startswith(self._outputs)
            return None if may_extend_output else ()
        modules = _modules_of(self._full_path(operation.name))
        while modules and modules not in self._modules:
            modules = modules[:-1]
        return modules or None

    def _full_path(self, name: str) -> Path:
        """Return the path of a name. All modules replace an abbreviated start of the path."""
        root, separator, _ = name.partition("__")
        path = components(name)
        if separator and root in self._starts:
            return self._starts[root] + path[1:]
        return path


def _modules_of(path: Path) -> Path:
    """Return the names of the modules in a path, without the name in the last module."""
    return path[:-1]


def _abbreviated(name: str, label: str) -> Path | None:
    """Return the modules for which the root of an operation's name is an abbreviation, or None.

    The operation reads a parameter with the label `label`. For the name "_0__bn1__x" and the label
    "layer1.0.bn1.weight", the modules are ("layer1", "0").
    """
    root, *inner_names = components(name)  # "0" and ["bn1", "x"]
    modules = _modules_of(components(label))  # ("layer1", "0", "bn1")
    for end, module in enumerate(modules, start=1):
        modules_after = list(modules[end:])
        agree_after = inner_names[: len(modules_after)] == modules_after
        if module == root and agree_after:
            return modules[:end]
    return None
