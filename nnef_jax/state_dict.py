"""`Model.with_state_dict`: arrays by PyTorch's names, as the parameters of an exported network."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from lowering.graph import Graph
from nnef_jax.errors import InputError
from nnef_jax.module_names import ModuleNames
from nnef_jax.options import require, require_flags
from nnef_jax.similar import listed

# A gate of torch_to_nnef, which cuts the weights of a recurrent layer: W_ii, W_hf, b_o.
_GATE = re.compile(r"(.*)\.l(\d+)_(b|back_)?(w|b)_([ih]?)([ifgorzn])")
_INITIAL = re.compile(r".*\.l\d+_(backward_)?[hc]_0_init")
_GATES = {4: "ifgo", 3: "rzn"}  # of LSTM and GRU, in PyTorch's order


def stored_params(graph: Graph, state_dict: Any, *, strict: bool) -> dict[str, Any]:
    """Return the arrays of a state dict by label, in the forms that the network stores.

    Raises InputError for all at once: names that are missing or left over (if `strict`), that fit
    several parameters or none of them by shape.
    """
    require_flags(strict=strict)
    require("state_dict", state_dict, Mapping, "a dict of arrays by PyTorch's names")
    given = {
        str(name): value
        for name, value in state_dict.items()
        if not str(name).endswith("num_batches_tracked")
    }
    return _Matching(graph, given).stored(strict)


class _Matching:
    def __init__(self, graph: Graph, given: Mapping[str, Any]) -> None:
        self.names = ModuleNames(graph)
        self.graph = graph
        self.arrays = {name: _array(name, value) for name, value in given.items()}
        self.exact = {p.label for p in graph.parameters} & self.arrays.keys()
        # What names may end with, to find those whose start an exporter left out.
        self.by_leaf: dict[str, list[str]] = {}
        for name in self.arrays.keys() - self.exact:
            self.by_leaf.setdefault(name.rpartition(".")[2], []).append(name)

    def stored(self, strict: bool) -> dict[str, Any]:
        found: dict[str, Any] = {}
        missing: list[str] = []
        shapes: list[str] = []
        unclear: set[str] = set()
        owners: dict[str, dict[str, str]] = {}  # of each name the labels, gates of a layer as one
        for parameter in self.graph.parameters:
            label, wanted = parameter.label, tuple(parameter.value.type.shape)
            forms = [*self._forms(label, wanted)]
            unclear |= {label} if len(forms) > 1 else set()
            for names, array in forms:
                for name in names:
                    owners.setdefault(name, {})[_layer(label) or label] = label
                if array is not None:
                    found[label] = array
                else:
                    given = ", ".join(f"'{x}' {list(self.arrays[x].shape)}" for x in names)
                    shapes.append(f"{given} for {list(wanted)}")
            if not forms and not self._is_constant(label, wanted):
                missing.append(".".join(self.names.of_label(label)) or label)
        unclear |= {label for x in owners.values() if len(x) > 1 for label in x.values()}
        left = [x for x in self.arrays if x not in owners and not self._is_neutral(x, owners)]
        parts = [f"does not tell which arrays are {_shown(sorted(unclear))}"] if unclear else []
        parts += [f"lacks {_shown(missing)}"] if strict and missing else []
        parts += [f"has unknown {_shown(left)}"] if strict and left else []
        parts += [f"has other shapes: {listed(shapes)}"] if shapes else []
        if parts:
            message = f"the state dict for '{self.graph.name:.60}' {', '.join(parts)}"
            raise InputError(message, hint=_hint(unclear, missing, left))
        return found

    def _forms(
        self, label: str, wanted: tuple[Any, ...]
    ) -> Iterator[tuple[Sequence[str], Any | None]]:
        """Yield names that a parameter may be made of, and it as stored, None if it is not so."""
        if label in self.exact:
            yield [label], _shaped(self.arrays[label], wanted, exactly=True)
            return
        gate = _GATE.fullmatch(label)
        if gate and gate[1] + f".weight_ih_l{gate[2]}" in self.arrays:
            yield self._gate(gate, wanted)
            return
        path = ".".join(self.names.of_label(label))
        if self.names.is_transposed(label) and path in self.arrays:
            array = self.arrays[path]
            yield [path], _shaped(array.T, wanted, exactly=True) if array.ndim == 2 else None
        elif path in self.arrays or "__" in label:
            names = [path] if path in self.arrays else self._ending(path)
            forms = [([x], self._restored(label, self.arrays[x], wanted)) for x in names]
            fitting = [form for form in forms if form[1] is not None]
            yield from fitting or forms

    def _ending(self, path: str) -> list[str]:
        """Return the names that end so, of those which no label is equal to."""
        names = self.by_leaf.get(path.rpartition(".")[2], ())
        return [name for name in names if name.endswith(f".{path}")]

    def _restored(self, label: str, array: Any, wanted: tuple[Any, ...]) -> Any | None:
        """Return an array as torch_to_nnef stores it under another name, None if it cannot be."""
        groups = self.names.groups_of(label)
        if groups and array.ndim > 2 and not array.shape[0] % groups:
            inputs, outputs, *window = array.shape
            array = array.reshape(groups, inputs // groups, outputs, *window)
            array = array.swapaxes(1, 2).reshape(groups * outputs, inputs // groups, *window)
            return _shaped(array, wanted, exactly=True)
        return _shaped(array, wanted)

    def _gate(self, gate: re.Match[str], wanted: tuple[Any, ...]) -> tuple[list[str], Any | None]:
        module, layer, back, what, side, letter = gate.groups()
        layer += "_reverse" if back else ""
        kind = "weight" if what == "w" else "bias"
        names = [f"{module}.{kind}_{x}h_l{layer}" for x in side or "ih"]
        names = [name for name in names if name in self.arrays]
        whole = [self.arrays[name] for name in names]
        rows = [x.shape[0] for x in whole if x.ndim]
        hidden = wanted[-2] if kind == "weight" else wanted[-1]
        order = _GATES.get(rows[0] // hidden, "") if rows and hidden else ""
        if letter not in order or {*rows} != {len(order) * hidden}:
            return names, None
        at = order.index(letter) * hidden
        first, *rest = [x[at : at + hidden] for x in whole]
        return names, _shaped(first + rest[0] if rest else first, wanted)

    def _is_constant(self, label: str, wanted: tuple[Any, ...]) -> bool:
        """Tell whether a parameter is a number or an initial state that an exporter wrote."""
        is_number = not wanted and len(self.names.of_label(label)) == 1
        return is_number or _INITIAL.fullmatch(label) is not None

    def _is_neutral(self, name: str, used: Iterable[str]) -> bool:
        """Tell whether a name may be left over: tied to a used one, or a norm that does nothing."""
        array = self.arrays[name]
        if isinstance(array, Tracer):
            return False
        leaf = name.rpartition(".")[2]
        neutral = {"weight": 1, "bias": 0}.get(leaf) if array.ndim == 1 else None
        if neutral is not None and bool((array == neutral).all()):
            return True
        others = (self.arrays[x] for x in used if self.arrays[x].shape == array.shape)
        return any(
            x is array or np.array_equal(x, array) for x in others if not isinstance(x, Tracer)
        )


def _shaped(array: Any, wanted: tuple[Any, ...], *, exactly: bool = False) -> Any | None:
    """Return an array of the wanted shape, with axes of length 1 added or not; None otherwise."""
    if array.shape == wanted:
        return array
    if exactly or [n for n in array.shape if n != 1] != [n for n in wanted if n != 1]:
        return None
    return array.reshape(wanted)


def _layer(label: str) -> str:
    """Return the recurrent layer that a label is a gate of, '' for others."""
    found = _GATE.fullmatch(label)
    return f"{found[1]}.{found[2]}{found[3]}" if found else ""


def _array(name: str, value: Any) -> Any:
    """Return a tensor of torch, or an array, as an array that nobody else writes to."""
    try:
        if isinstance(value, jax.Array):
            return value
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            value = value.float() if str(value.dtype) == "torch.bfloat16" else value
            return np.array(value.numpy())
        return np.asarray(value)
    except Exception as reason:  # whatever the object's own conversion raises
        raise InputError(f"state_dict: '{name:.200}' is no array: {reason}") from None


def _shown(names: Sequence[str]) -> str:
    return listed([f"'{name}'" for name in names])


def _hint(unclear: Collection[str], missing: Sequence[str], left: Sequence[str]) -> str:
    if unclear:
        return "name these arrays as model.params does: a label is taken as it is"
    if any(name.startswith("onnx::") for name in missing):
        return (
            "torch.onnx folded batch norms into convolutions: "
            "export with training=torch.onnx.TrainingMode.PRESERVE"
        )
    if any(name.endswith(("weight", "bias")) for name in left):
        return (
            "exporters leave out norms whose weights are all 1 and biases 0, and what outputs do "
            "not need; strict=False leaves out all that is unknown, and keeps what is missing"
        )
    return "strict=False leaves out all that is unknown, and keeps what is missing"
