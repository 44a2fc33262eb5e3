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

# The pattern matches the label of a parameter for one gate. torch_to_nnef cuts the weights of a
# recurrent layer into gates, such as W_ii, W_hf and b_o.
_GATE = re.compile(
    r"(?P<module>.*)\.l(?P<layer>\d+)_(?P<back>b|back_)?(?P<kind>w|b)_(?P<source>[ih]?)"
    r"(?P<letter>[ifgorzn])"
)
_INITIAL = re.compile(r".*\.l\d+_(backward_)?[hc]_0_init")
# An LSTM has 4 gates, and a GRU has 3 gates. The letters of the gates are in PyTorch's order.
_GATES = {4: "ifgo", 3: "rzn"}

_Array = Any  # an array of numpy or of jax


class _Candidate(NamedTuple):
    """Arrays of a state dict that may give a parameter: one array, or biases to be added up.

    `names` are the names of the arrays. `stored` is the array that the network stores for the
    parameter, or None if the arrays do not fit the parameter's shape.
    """

    names: Sequence[str]
    stored: _Array | None


class _Matches(NamedTuple):
    """The parameters of a network, matched with the arrays of a state dict.

    Args:
        params: maps labels to the arrays of parameters, as the network stores them.
        used: the names of the arrays that parameters use.
        missing: the names of parameters for which there is no array.
        other_shapes: texts about arrays that do not fit the parameter's shape.
        unclear: the labels of parameters whose array is ambiguous.
    """

    params: dict[str, Any]
    used: Collection[str]
    missing: Sequence[str]
    other_shapes: Sequence[str]
    unclear: Collection[str]


def stored_params(
    graph: Graph, state_dict: Mapping[str, object], *, strict: bool
) -> dict[str, Any]:
    """Return a dict from labels to arrays of a state dict, as the network stores them.

    Raises a single InputError that lists all wrong names. A name is wrong if it fits several
    parameters, or if its array and the parameter have different shapes. If `strict` is true,
    missing and unknown names are wrong too.
    """
    require_flags(strict=strict)
    require("state_dict", state_dict, Mapping, "a dict of arrays by PyTorch's names")
    values: dict[str, object] = {}
    for name, value in state_dict.items():
        is_count_of_batches = str(name).endswith("num_batches_tracked")  # networks have no counts
        if not is_count_of_batches:
            values[str(name)] = value
    return _Matching(graph, values).stored(strict)


class _Matching:
    """The matching of the arrays of a state dict with the parameters of a graph."""

    def __init__(self, graph: Graph, values: Mapping[str, object]) -> None:
        self.names = ModuleNames(graph)
        self.graph = graph
        self.arrays = {name: _array(name, value) for name, value in values.items()}
        labels = {parameter.label for parameter in graph.parameters}
        self.exact_names = labels & self.arrays.keys()
        # Maps the last part of a name to all other names of arrays that end in it. Exporters may
        # leave out the start of a name.
        self.by_last_part: dict[str, list[str]] = {}
        for name in self.arrays.keys() - self.exact_names:
            self.by_last_part.setdefault(_last_part(name), []).append(name)

    def stored(self, strict: bool) -> dict[str, Any]:
        """Return a dict from labels to arrays of the parameters, as the network stores them.

        Raises InputError with all faults of the state dict. If `strict` is false, missing and
        unknown names are no faults.
        """
        matches = self._matches()
        unclear, missing = matches.unclear, matches.missing
        unused = [name for name in self.arrays if name not in matches.used]
        unknown = [name for name in unused if not self._is_neutral(name, matches.used)]
        faults: list[str] = []  # each completes the sentence "the state dict ..."
        if unclear:
            faults.append(f"does not tell which arrays are {_shown(sorted(unclear))}")
        if strict and missing:
            faults.append(f"lacks {_shown(missing)}")
        if strict and unknown:
            faults.append(f"has unknown {_shown(unknown)}")
        if matches.other_shapes:
            faults.append(f"has other shapes: {listed(matches.other_shapes)}")
        if faults:
            message = f"the state dict for '{self.graph.name:.60}' {', '.join(faults)}"
            raise InputError(message, hint=_hint(unclear, missing, unknown))
        return matches.params

    def _matches(self) -> _Matches:
        """Match each parameter with arrays of the state dict."""
        params: dict[str, Any] = {}
        missing: list[str] = []
        other_shapes: list[str] = []
        unclear: set[str] = set()
        # Maps the name of an array to a dict of the parameters that use the array. The values of
        # this dict are labels, and a key is the label itself. For a gate, the key is the name of
        # the recurrent layer, because all gates of a layer may use the same array. Two keys mean
        # that the array fits two parameters.
        users: dict[str, dict[str, str]] = {}
        for parameter in self.graph.parameters:
            label = parameter.label
            shape = tuple(parameter.value.type.shape)
            candidates = list(self._candidates(label, shape))
            if len(candidates) > 1:
                unclear.add(label)
            for candidate in candidates:
                for name in candidate.names:
                    users.setdefault(name, {})[_layer(label) or label] = label
                if candidate.stored is not None:
                    params[label] = candidate.stored
                else:
                    other_shapes.append(f"{self._shown_shapes(candidate)} for {list(shape)}")
            if not candidates and not self._is_constant(label, shape):
                missing.append(".".join(self.names.of_label(label)) or label)
        for labels in users.values():
            if len(labels) > 1:
                unclear.update(labels.values())
        return _Matches(params, users.keys(), missing, other_shapes, unclear)

    def _shown_shapes(self, candidate: _Candidate) -> str:
        """Return the names and shapes of a candidate's arrays, as text."""
        arrays: list[str] = []
        for name in candidate.names:
            arrays.append(f"'{name}' {list(self.arrays[name].shape)}")
        return ", ".join(arrays)

    def _candidates(self, label: str, shape: Shape) -> Iterator[_Candidate]:
        """Yield each choice of arrays that may be the parameter with the given label and shape."""
        if label in self.exact_names:
            yield _Candidate([label], _shaped(self.arrays[label], shape, exactly=True))
            return
        gate = _GATE.fullmatch(label)
        is_of_gate = gate and f"{gate['module']}.weight_ih_l{gate['layer']}" in self.arrays
        if gate and is_of_gate:
            yield self._gate(gate, shape)
            return
        path = ".".join(self.names.of_label(label))  # the name in PyTorch, or its end
        has_path = path in self.arrays
        if has_path and self.names.is_transposed(label):
            array = self.arrays[path]
            is_matrix = array.ndim == 2
            stored = _shaped(array.T, shape, exactly=True) if is_matrix else None
            yield _Candidate([path], stored)
        elif has_path or "__" in label:
            names = [path] if has_path else self._names_ending_in(path)
            candidates: list[_Candidate] = []
            for name in names:
                stored = self._as_stored(label, self.arrays[name], shape)
                candidates.append(_Candidate([name], stored))
            # If no candidate fits the shape, all of them are yielded, for the message of the error.
            fitting = [candidate for candidate in candidates if candidate.stored is not None]
            yield from fitting or candidates

    def _names_ending_in(self, path: str) -> list[str]:
        """Return the names that end in the PyTorch path `path`, except labels of parameters."""
        names = self.by_last_part.get(_last_part(path), ())
        return [name for name in names if name.endswith(f".{path}")]

    def _as_stored(self, label: str, array: _Array, shape: Shape) -> _Array | None:
        """Convert an array to the form that torch_to_nnef stores.

        `label` is the label of the parameter, and `shape` is its shape. Returns None if the array
        does not fit the shape.
        """
        groups = self.names.groups_of(label)
        is_filter = groups > 0 and array.ndim > 2
        if not is_filter or array.shape[0] % groups:
            return _shaped(array, shape)
        # The array is the filter of a deconvolution. PyTorch stores an array (input channels,
        # output channels of a group, *window). torch_to_nnef stores an array (output channels,
        # input channels of a group, *window).
        inputs, outputs, *window = array.shape
        by_group = array.reshape(groups, inputs // groups, outputs, *window)
        swapped = by_group.swapaxes(1, 2)
        joined = swapped.reshape(groups * outputs, inputs // groups, *window)
        return _shaped(joined, shape, exactly=True)

    def _gate(self, gate: re.Match[str], shape: Shape) -> _Candidate:
        """Return a candidate for the parameter of one gate of a recurrent layer.

        PyTorch stores all gates of a layer in one array. The parameter of a gate has some rows of
        this array. If the label stands for a sum of biases, the rows of two arrays are added.

        `gate` is the match of the label with `_GATE`, and `shape` is the shape of the parameter.
        """
        module, layer, back, kind_letter, source, letter = gate.groups()
        direction = "_reverse" if back else ""
        kind = "weight" if kind_letter == "w" else "bias"
        # The source is "i" for weights of the input, or "h" for weights of the state. A label
        # without a source belongs to the sum of both biases.
        source_letters = source or "ih"
        possible_names = [f"{module}.{kind}_{x}h_l{layer}{direction}" for x in source_letters]
        names = [name for name in possible_names if name in self.arrays]
        arrays = [self.arrays[name] for name in names]
        row_counts = [array.shape[0] for array in arrays if array.ndim]
        # A weight of a gate is (..., hidden size, columns), and a bias is (..., hidden size).
        hidden_size = shape[-2] if kind == "weight" else shape[-1]
        gate_letters = ""
        if row_counts and hidden_size:
            gate_letters = _GATES.get(row_counts[0] // hidden_size, "")
        # Both biases, if there are two, must have the rows of all gates.
        has_all_gates = set(row_counts) == {len(gate_letters) * hidden_size}
        if letter not in gate_letters or not has_all_gates:
            return _Candidate(names, stored=None)
        # PyTorch stores the rows of the gates one after the other, in the order of `_GATES`.
        start = gate_letters.index(letter) * hidden_size
        rows_of_gate = [array[start : start + hidden_size] for array in arrays]
        total, *addends = rows_of_gate
        for addend in addends:
            total = total + addend
        return _Candidate(names, _shaped(total, shape))

    def _is_constant(self, label: str, shape: Shape) -> bool:
        """Tell whether a parameter is a scalar or an initial state that an exporter added."""
        is_number = not shape and len(self.names.of_label(label)) == 1
        return is_number or _INITIAL.fullmatch(label) is not None

    def _is_neutral(self, name: str, used: Iterable[str]) -> bool:
        """Tell whether the results of the network are the same without an array.

        `name` is the name of an array that no parameter uses. `used` are the names of the arrays
        that parameters use. The array is neutral if it equals a used array. The weight of a norm is
        also neutral if it contains only ones, and the bias of a norm if it contains only zeros.
        """
        array = self.arrays[name]
        if isinstance(array, Tracer):
            return False  # the numbers are not known
        neutral_number = {"weight": 1, "bias": 0}.get(_last_part(name))
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
    """Return an array with the shape `shape`, or None if the array does not fit the shape.

    If `exactly` is true, only an array that has this shape fits. Otherwise axes of extent 1 may be
    added or removed.
    """
    if array.shape == shape:
        return array
    if exactly:
        return None
    array_extents_without_1 = [extent for extent in array.shape if extent != 1]
    extents_without_1 = [extent for extent in shape if extent != 1]
    if array_extents_without_1 != extents_without_1:
        return None
    return array.reshape(shape)


def _last_part(name: str) -> str:
    """Return the part of a name after the last dot: "weight" for "layer1.0.weight"."""
    _, _, last_part = name.rpartition(".")
    return last_part


def _layer(label: str) -> str:
    """Return the name of a recurrent layer from the label of a gate; '' for other labels."""
    gate = _GATE.fullmatch(label)
    return f"{gate['module']}.{gate['layer']}{gate['back']}" if gate else ""


def _array(name: str, value: object) -> _Array:
    """Convert a value of a state dict to an array. A torch tensor is copied.

    Raises InputError if the value cannot be converted. `name` is the value's name in the state
    dict.
    """
    try:
        if isinstance(value, jax.Array):
            return value
        if hasattr(value, "detach"):
            tensor: Any = value
            tensor = tensor.detach().cpu()
            if str(tensor.dtype) == "torch.bfloat16":
                # PyTorch cannot convert bfloat16 to numpy, which has no such dtype.
                tensor = tensor.float()
            return np.array(tensor.numpy())
        return np.asarray(value)
    except Exception as reason:
        # Code of another package converts the value, and may raise any exception.
        raise InputError(f"state_dict: '{name:.200}' is no array: {reason}") from None


_NOT_STRICT = "strict=False ignores unknown names, and keeps the parameters that are missing"


def _shown(names: Sequence[str]) -> str:
    """Return a list of names in quotation marks, as text."""
    return listed([f"'{name}'" for name in names])


def _hint(unclear: Collection[str], missing: Sequence[str], unknown: Sequence[str]) -> str:
    """Return the hint for a state dict with unclear labels, missing names or unknown names."""
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
