"""Recurrent layers, RNN, LSTM and GRU, as scans over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import show
from lowering.graph import Value
from nnef_jax.flattening.repetition import RepeatedBody
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators import operator
from nnef_jax.formats.onnx.operators.integer_products import dynamic_product
from nnef_jax.formats.onnx.operators.quantizers import is_zero

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
# What an activation has for alpha and beta by default; None where it has none, NaN where it must.
PARAMETERS: dict[str, tuple[float | None, float | None]] = {
    "relu": (None, None), "tanh": (None, None), "sigmoid": (None, None), "softsign": (None, None),
    "softplus": (None, None), "affine": (1.0, 0.0), "leakyrelu": (0.01, None),
    "thresholdedrelu": (1.0, None), "scaledtanh": (math.nan, math.nan), "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, None),
}  # fmt: skip
Activation = Callable[[NodeSite, Any], Any]


@dataclass(slots=True)
class NodeCell:
    """What the cells of a layer have in common; activations are those of one direction."""

    kind: str
    hidden: int
    clip: float
    activations: Sequence[Activation]
    resets_after: bool
    couples: bool  # input and forget gates


def _activations(site: NodeSite, kind: str, ways: int) -> list[Activation]:
    """Return the activations of all directions; alphas and betas go to those that have them."""
    names = site.attribute("activations", tuple, _DEFAULTS[kind] * ways)
    if len(names) != ways * len(_DEFAULTS[kind]):
        raise InvalidOperation(f"it has {len(names)} activations for {ways} directions")
    given = [iter(site.numbers(f"activation_{x}", ())) for x in ("alpha", "beta")]
    found: list[Activation] = []
    for name in names:
        if name.lower() not in PARAMETERS:
            raise InvalidOperation(f"there is no activation {name[:40]!r} of cells")
        defaults = PARAMETERS[name.lower()]
        a, b = (
            None if default is None else next(values, default)
            for values, default in zip(given, defaults, strict=True)
        )
        found.append(activation(name.lower(), a or 0.0, b or 0.0))
    return found


def activation(name: str, a: float, b: float) -> Activation:
    """Return an activation by its name in small letters, with its alpha and beta."""
    if math.isnan(a) or math.isnan(b):
        raise InvalidOperation(f"the activation '{name}' needs an alpha and a beta")

    def apply(at: NodeSite, x: Any) -> Any:
        match name:
            case "affine":
                return at.term("add", at.term("mul", x, a), b)
            case "hardsigmoid":
                scaled = at.term("add", at.term("mul", x, a), b)
                return at.term("min", at.term("max", scaled, 0), 1)
            case "scaledtanh":
                return at.term("mul", at.insert("tanh", {"x": at.term("mul", x, b)}), a)
            case "thresholdedrelu":
                return at.chosen(at.term("gt", x, a), x, 0)
            case "softsign":
                return at.term("div", x, at.term("add", at.insert("abs", {"x": x}), 1))
            case "leakyrelu":
                return at.insert("leaky_relu", {"x": x}, alpha=a)
            case "elu":
                return at.insert("elu", {"x": x}, alpha=a)
            case _:
                return at.insert(name, {"x": x})

    return apply


def _clipped(at: NodeSite, cell: NodeCell, x: Any) -> Any:
    return at.term("min", at.term("max", x, -cell.clip), cell.clip) if cell.clip else x


def _gates(at: NodeSite, x: Any, count: int) -> list[Any]:
    return list(at.insert("split", {"value": x}, axis=1, ratios=(1,) * count))


def _product(at: NodeSite, x: Any, filter: Any, bias: Any = None) -> Any:
    """Multiply by a filter [gates,items], or by levels [items,gates] with scale and zero point."""
    if isinstance(filter, tuple):
        result = dynamic_product(at, x, *cast("tuple[Any, ...]", filter))
    else:
        a, b = at.aligned(at.tensor(x), at.tensor(filter))
        result = at.insert("matmul", {"A": a, "B": b}, transposeA=False, transposeB=True)
    return result if bias is None else at.term("add", result, bias)


def _next(
    at: NodeSite, cell: NodeCell, x: Any, states: Sequence[Any], r: Any, bias: Any, peepholes: Any
) -> list[Any]:
    """Return the next states, given the input's product [batch,gates], biases of these added.

    `bias` is what a GRU adds to the state's product before that is reset.
    """

    def activated(i: int, gate: Any) -> Any:
        return cell.activations[i](at, _clipped(at, cell, gate))

    state = states[0]
    if cell.kind == "GRU":
        return [_gru(at, cell, activated, x, state, r, bias)]
    gates = at.term("add", x, _product(at, state, r))
    if cell.kind == "RNN":
        return [activated(0, gates)]
    i, o, f, c = _gates(at, gates, 4)
    before = states[1]
    of_i, of_o, of_f = _gates(at, peepholes, 3) if peepholes is not None else (None,) * 3

    def seen(gate: Any, weight: Any, memory: Any) -> Any:
        if weight is None:
            return gate
        return at.term("add", gate, at.term("mul", memory, weight))

    i = activated(0, seen(i, of_i, before))
    f = at.term("sub", 1, i) if cell.couples else activated(0, seen(f, of_f, before))
    memory = at.term("add", at.term("mul", f, before), at.term("mul", i, activated(1, c)))
    o = activated(0, seen(o, of_o, memory))
    return [at.term("mul", o, cell.activations[2](at, memory)), memory]


def _gru(
    at: NodeSite, cell: NodeCell, activated: Callable[[int, Any], Any], x: Any, state: Any, r: Any,
    bias: Any,
) -> Any:  # fmt: skip
    hidden = cell.hidden
    xz, xr, xh = _gates(at, x, 3)
    first, last = at.part(r, 0, 0, 2 * hidden), at.part(r, 0, 2 * hidden, 3 * hidden)
    rz, rr = _gates(at, _product(at, state, first), 2)
    update, reset = activated(0, at.term("add", xz, rz)), activated(0, at.term("add", xr, rr))
    if cell.resets_after:
        rh = at.term("mul", reset, _product(at, state, last, bias))
    else:
        rh = _product(at, at.term("mul", reset, state), last)
    new = activated(1, at.term("add", xh, rh))
    return at.term("add", new, at.term("mul", update, at.term("sub", state, new)))


def _layer(kind: str) -> Callable[[NodeSite], tuple[Any, ...]]:
    def meaning(site: NodeSite) -> tuple[Any, ...]:
        """Run forward, backward or both; return all outputs, and the last states."""
        directions = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
        ways = directions[site.choice("direction", *directions, default="forward")]
        batch_first = site.flag("layout")
        x = site.transposed(site.tensor(0), (1, 0, 2)) if batch_first else site.tensor(0)
        hidden = site.shape(2)[1 if _is_quantized(site) else 2]
        if site.int("hidden_size", hidden) != hidden:
            raise InvalidOperation(f"'hidden_size' is not {hidden}, as input 2 has it")
        if site.shape(1)[0] != len(ways):
            raise InvalidShape(f"it has {len(ways)} directions, input 1 is {show(site.shape(1))}")
        activations = _activations(site, kind, len(ways))
        names = ("h", "c") if kind == "LSTM" else ("h",)
        resets_after, couples = (site.flag(x) for x in ("linear_before_reset", "input_forget"))
        found: list[list[Any]] = []
        for i, reverse in enumerate(ways):
            count = len(_DEFAULTS[kind])
            own = activations[i * count : (i + 1) * count]
            cell = NodeCell(kind, hidden, site.number("clip", 0), own, resets_after, couples)
            states = [_start(site, x, cell, 5 + k, i, batch_first) for k in range(len(names))]
            found.append(_run(site, cell, x, states, i, reverse=reverse))
        axes = (1, *(0 for _ in names))
        results = [
            site.insert("stack", {"values": list(parts)}, axis=axis)
            for parts, axis in zip(zip(*found, strict=True), axes, strict=True)
        ]
        if batch_first:  # [batch,time,directions,hidden], [batch,directions,hidden]
            results = [
                site.transposed(y, (2, 0, 1, 3) if i == 0 else (1, 0, 2))
                for i, y in enumerate(results)
            ]
        return tuple(results)

    return meaning


for _kind in _GATES:
    operator(_kind)(_layer(_kind))
operator("DynamicQuantizeLSTM", domain="com.microsoft")(_layer("LSTM"))


def _is_quantized(site: NodeSite) -> bool:
    return site.node.operator == "DynamicQuantizeLSTM"


def _start(site: NodeSite, x: Value, cell: NodeCell, i: int, way: int, batch_first: bool) -> Any:
    """Return a state [batch,hidden] before the first step, zeros by default."""
    if not site.has(i):
        batch = site.extent(x, 1)
        return site.insert(
            "broadcast", {"input": site.constant([[0]], x.type.dtype)}, shape=(batch, cell.hidden)
        )
    return _of(site, i, way, 1 if batch_first else 0)


def _of(site: NodeSite, i: int, way: int, axis: int = 0) -> Any:
    """Return the part of an input for one direction."""
    part = site.part(site.tensor(i), axis, way, way + 1)
    return site.insert("squeeze", {"input": part}, axes=(axis,))


def _filter(site: NodeSite, i: int, way: int) -> Any:
    """Return the filter of a direction that input 1 or 2 is, as products take it."""
    if not _is_quantized(site):
        return _of(site, i, way)
    scale, zero = 2 * i + 6, 2 * i + 7
    no_zero = is_zero(site.optional(zero))
    return _of(site, i, way), _of(site, scale, way), None if no_zero else _of(site, zero, way)


def _run(
    site: NodeSite, cell: NodeCell, x: Value, states: Sequence[Any], way: int, *, reverse: bool
) -> list[Any]:
    """Run a cell over [time,batch,items]; return outputs [time,batch,hidden] and last states.

    After the end of a sequence states stay and outputs are 0.
    """
    w, r = (_filter(site, i, way) for i in (1, 2))
    bias, rest = None, None
    if site.has(3):
        items = _GATES[cell.kind] * cell.hidden
        both = _of(site, 3, way)
        bias, rest = site.part(both, 0, 0, items), site.part(both, 0, items, 2 * items)
        if cell.kind == "GRU" and cell.resets_after:
            kept = site.part(rest, 0, 2 * cell.hidden, items)
            around = ((0, cell.hidden),)
            first = site.part(rest, 0, 0, 2 * cell.hidden)
            rest = site.insert(
                "pad", {"input": first}, padding=around, border="constant", value=0.0
            )
            bias, rest = site.term("add", bias, rest), kept
        else:
            bias, rest = site.term("add", bias, rest), None
    peepholes = _of(site, 7, way) if cell.kind == "LSTM" and site.has(7) else None
    if peepholes is not None:
        peepholes = site.unsqueezed(peepholes, (0,))
    products = _product(site, x, w, bias)
    body = RepeatedBody(site)
    at = body.at
    now = body.item(products, 0, reverse=reverse)
    before = [body.state(s) for s in states]
    r = tuple(map(body.seen, r)) if isinstance(r, tuple) else body.seen(r)
    rest, peepholes = map(body.seen, (rest, peepholes))
    after = _next(at, cell, now, before, r, rest, peepholes)
    shown = after[0]
    mask = _mask(site, x)
    if mask is not None:
        runs = body.item(mask, 0, reverse=reverse)
        shown = at.chosen(runs, shown, 0)
        after = [at.chosen(runs, a, b) for a, b in zip(after, before, strict=True)]
    how = [("full", 0, -1 if reverse else 1)]
    *last, y = body.scan(after, [at.unsqueezed(shown, (0,))], how)
    return [y, *last]


def _mask(site: NodeSite, x: Value) -> Any:
    """Return which steps [time,batch,1] count, None where all do."""
    time = site.extent(x, 0)
    lengths = site.operand(4) if site.has(4) else None
    if lengths is None or (isinstance(lengths, Constant) and np.all(lengths.array >= time)):
        return None
    ends = site.cast(site.tensor(lengths), site.graph.builder.integer)
    runs = site.term("lt", site.places(time, 0, 2), site.unsqueezed(ends, (0,)))
    return site.unsqueezed(runs, (2,))
