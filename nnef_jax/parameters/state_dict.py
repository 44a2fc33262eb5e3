"""Implements `Model.with_state_dict`: finds the array of a state dict for each parameter."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from lowering.extents import Shape
from lowering.graph import Graph
from nnef_jax.errors import InputError
from nnef_jax.options import require, require_flags
from nnef_jax.parameters.module_names import ModuleNames
from nnef_jax.wording.similar import listed

# The label of a parameter for one gate. torch_to_nnef cuts the weights of a recurrent layer into
# gates, such as W_ii, W_hf and b_o.
_GATE = re.compile(r"(.*)\.l(\d+)_(b|back_)?(w|b)_([ih]?)([ifgorzn])")
_INITIAL = re.compile(r".*\.l\d+_(backward_)?[hc]_0_init")
# letters of the gates of LSTM and GRU in PyTorch's order, by the number of gates
_GATES = {4: "ifgo", 3: "rzn"}

_Array = Any  # an array of numpy or jax


class _Candidate(NamedTuple):
    """Names of arrays that may be a parameter, and the parameter that is stored from them.

    `stored` is None if the arrays do not fit the parameter's shape.
    """

    names: Sequence[str]
    stored: _Array | None


def stored_params(
    graph: Graph, state_dict: Mapping[str, object], *, strict: bool
) -> dict[str, Any]:
    """Return the arrays of a state dict by label, in the forms in which the network stores them.

    Raises one InputError for all names if a name fits several parameters, if an array has the shape
    of no parameter that its name fits, and, if `strict`, for missing and unknown names.
    """
    require_flags(strict=strict)
    require("state_dict", state_dict, Mapping, "a dict of arrays by PyTorch's names")
    values = {
        str(name): value
        for name, value in state_dict.items()
        if not str(name).endswith("num_batches_tracked")
    }
    return _Matching(graph, values).stored(strict)


class _Matching:
    """The matching of the arrays of a state dict with the parameters of a graph."""

    def __init__(self, graph: Graph, values: Mapping[str, object]) -> None:
        self.names = ModuleNames(graph)
        self.graph = graph
        self.arrays = {name: _array(name, value) for name, value in values.items()}
        self.exact_names = {parameter.label for parameter in graph.parameters} & self.arrays.keys()
        # Names by their last part, because some exporters leave out the start of a name.
        self.by_leaf: dict[str, list[str]] = {}
        for name in self.arrays.keys() - self.exact_names:
            self.by_leaf.setdefault(name.rpartition(".")[2], []).append(name)

    def stored(self, strict: bool) -> dict[str, Any]:
        params: dict[str, Any] = {}
        missing: list[str] = []
        other_shapes: list[str] = []
        unclear: set[str] = set()
        # by name: the labels that use it; all gates of a layer count as one label
        owners: dict[str, dict[str, str]] = {}
        for parameter in self.graph.parameters:
            label = parameter.label
            shape = tuple(parameter.value.type.shape)
            candidates = list(self._candidates(label, shape))
            if len(candidates) > 1:
                unclear.add(label)
            for candidate in candidates:
                for name in candidate.names:
                    owners.setdefault(name, {})[_layer(label) or label] = label
                if candidate.stored is not None:
                    params[label] = candidate.stored
                else:
                    arrays = [f"'{x}' {list(self.arrays[x].shape)}" for x in candidate.names]
                    other_shapes.append(f"{', '.join(arrays)} for {list(shape)}")
            if not candidates and not self._is_constant(label, shape):
                missing.append(".".join(self.names.of_label(label)) or label)
        for labels in owners.values():
            if len(labels) > 1:
                unclear.update(labels.values())
        unused = [name for name in self.arrays if name not in owners]
        unknown = [name for name in unused if not self._is_neutral(name, owners)]
        parts: list[str] = []
        if unclear:
            parts.append(f"does not tell which arrays are {_shown(sorted(unclear))}")
        if strict and missing:
            parts.append(f"lacks {_shown(missing)}")
        if strict and unknown:
            parts.append(f"has unknown {_shown(unknown)}")
        if other_shapes:
            parts.append(f"has other shapes: {listed(other_shapes)}")
        if parts:
            message = f"the state dict for '{self.graph.name:.60}' {', '.join(parts)}"
            raise InputError(message, hint=_hint(unclear, missing, unknown))
        return params

    def _candidates(self, label: str, shape: Shape) -> Iterator[_Candidate]:
        """Yield each choice of arrays that may be the parameter with the given label and shape."""
        if label in self.exact_names:
            yield _Candidate([label], _shaped(self.arrays[label], shape, exactly=True))
            return
        gate = _GATE.fullmatch(label)
        if gate and gate[1] + f".weight_ih_l{gate[2]}" in self.arrays:
            yield self._gate(gate, shape)
            return
        path = ".".join(self.names.of_label(label))
        if self.names.is_transposed(label) and path in self.arrays:
            array = self.arrays[path]
            is_matrix = array.ndim == 2
            stored = _shaped(array.T, shape, exactly=True) if is_matrix else None
            yield _Candidate([path], stored)
        elif path in self.arrays or "__" in label:
            names = [path] if path in self.arrays else self._names_ending_in(path)
            candidates: list[_Candidate] = []
            for name in names:
                stored = self._as_stored(label, self.arrays[name], shape)
                candidates.append(_Candidate([name], stored))
            matches = [candidate for candidate in candidates if candidate.stored is not None]
            yield from matches or candidates

    def _names_ending_in(self, path: str) -> list[str]:
        """Return the names that end in a path in PyTorch, and that are not labels of parameters."""
        names = self.by_leaf.get(path.rpartition(".")[2], ())
        return [name for name in names if name.endswith(f".{path}")]

    def _as_stored(self, label: str, array: _Array, shape: Shape) -> _Array | None:
        """Convert an array to the form that torch_to_nnef stores.

        `label` and `shape` are those of the parameter. Return None if the array does not fit the
        shape.
        """
        groups = self.names.groups_of(label)
        is_divisible = groups and array.ndim > 2 and array.shape[0] % groups == 0
        if is_divisible:
            inputs, outputs, *window = array.shape
            array = array.reshape(groups, inputs // groups, outputs, *window)
            array = array.swapaxes(1, 2).reshape(groups * outputs, inputs // groups, *window)
            return _shaped(array, shape, exactly=True)
        return _shaped(array, shape)

    def _gate(self, gate: re.Match[str], shape: Shape) -> _Candidate:
        """Return a candidate for the parameter of one gate of a recurrent layer.

        PyTorch stores all gates of a layer in one array, of which the parameter has some rows. If
        the label stands for a sum of biases, the rows of two arrays are added.
        """
        module, layer, back, kind_letter, side, letter = gate.groups()
        if back:
            layer += "_reverse"
        kind = "weight" if kind_letter == "w" else "bias"
        # A label that names neither input nor state stands for the sum of the two biases.
        sides = side or "ih"
        all_names = [f"{module}.{kind}_{side}h_l{layer}" for side in sides]
        names = [name for name in all_names if name in self.arrays]
        arrays = [self.arrays[name] for name in names]
        rows = [x.shape[0] for x in arrays if x.ndim]
        hidden = shape[-2] if kind == "weight" else shape[-1]
        gates = ""
        if rows and hidden:
            gates = _GATES.get(rows[0] // hidden, "")
        has_all_gates = {*rows} == {len(gates) * hidden}
        if letter not in gates or not has_all_gates:
            return _Candidate(names, None)
        start = gates.index(letter) * hidden
        total, *addends = (x[start : start + hidden] for x in arrays)
        for addend in addends:
            total = total + addend
        return _Candidate(names, _shaped(total, shape))

    def _is_constant(self, label: str, shape: Shape) -> bool:
        """Tell whether a parameter is a scalar or an initial state that an exporter added."""
        is_number = not shape and len(self.names.of_label(label)) == 1
        return is_number or _INITIAL.fullmatch(label) is not None

    def _is_neutral(self, name: str, used: Iterable[str]) -> bool:
        """Tell whether an array that no parameter uses has no effect on the results.

        An array has no effect if it equals an array that is used, or if it is the weight of a norm
        and contains only ones, or the bias of a norm and contains only zeros.
        """
        array = self.arrays[name]
        if isinstance(array, Tracer):
            return False
        leaf = name.rpartition(".")[2]
        neutral_number = {"weight": 1, "bias": 0}.get(leaf)
        may_be_of_norm = array.ndim == 1 and neutral_number is not None
        if may_be_of_norm and bool((array == neutral_number).all()):
            return True
        for used_name in used:
            used_array = self.arrays[used_name]
            if isinstance(used_array, Tracer) or used_array.shape != array.shape:
                continue
            if used_array is array or np.array_equal(used_array, array):
                return True
        return False


def _shaped(array: _Array, shape: Shape, *, exactly: bool = False) -> _Array | None:
    """Return an array in a shape, or None if the array does not fit it.

    If `exactly`, the array must have this shape. Otherwise axes of extent 1 may be added or
    removed.
    """
    if array.shape == shape:
        return array
    array_extents = [extent for extent in array.shape if extent != 1]
    extents = [extent for extent in shape if extent != 1]
    if exactly or array_extents != extents:
        return None
    return array.reshape(shape)


def _layer(label: str) -> str:
    """Return the name of the recurrent layer in the label of a gate, or '' for other labels."""
    gate = _GATE.fullmatch(label)
    return f"{gate[1]}.{gate[2]}{gate[3]}" if gate else ""


def _array(name: str, value: object) -> _Array:
    """Convert a value to an array; a torch tensor is copied.

    Raises InputError if the value cannot be converted. `name` is its name in the state dict.
    """
    try:
        if isinstance(value, jax.Array):
            return value
        if hasattr(value, "detach"):
            tensor: Any = value
            tensor = tensor.detach().cpu()
            if str(tensor.dtype) == "torch.bfloat16":  # numpy has no bfloat16.
                tensor = tensor.float()
            return np.array(tensor.numpy())
        return np.asarray(value)
    except Exception as reason:  # an object's own conversion may raise any exception
        raise InputError(f"state_dict: '{name:.200}' is no array: {reason}") from None


_NOT_STRICT = "strict=False ignores unknown names, and keeps the parameters that are missing"


def _shown(names: Sequence[str]) -> str:
    return listed([f"'{name}'" for name in names])


def _hint(unclear: Collection[str], missing: Sequence[str], unknown: Sequence[str]) -> str:
    if unclear:
        return "name these arrays as model.params does: a label stands for one parameter"
    if any(name.startswith("onnx::") for name in missing):
        return (
            "torch.onnx folded batch norms into convolutions: "
            "export with training=torch.onnx.TrainingMode.PRESERVE"
        )
    if any(name.endswith(("weight", "bias")) for name in unknown):
        return (
            "exporters leave out norms whose weights are all 1 and biases 0, and parameters that "
            f"outputs do not need; {_NOT_STRICT}"
        )
    return _NOT_STRICT
