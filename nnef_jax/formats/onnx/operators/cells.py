"""Recurrent layers, RNN, LSTM and GRU, as scans over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import show
from lowering.graph import Value
from nnef_jax.flattening.recurrent_cells import (
    DEFAULTS,
    PARAMETERS,
    Activation,
    Cell,
    activation,
    steps_within,
)
from nnef_jax.flattening.repetition import RepeatedBody
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.products import dynamic_product
from nnef_jax.formats.onnx.operators.quantizers import is_zero
from nnef_jax.formats.onnx.operators.registry import operator


def _activations(site: NodeSite, kind: str, ways: int) -> list[Activation]:
    """Return the activations of all directions; alphas and betas go to those that have them."""
    names = site.attribute("activations", tuple, DEFAULTS[kind] * ways)
    if len(names) != ways * len(DEFAULTS[kind]):
        raise InvalidOperation(f"it has {len(names)} activations for {ways} directions")
    given = [iter(site.numbers(f"activation_{x}", ())) for x in ("alpha", "beta")]
    found: list[Activation] = []
    for name in map(str.lower, names):
        pairs = zip(given, PARAMETERS.get(name, (None, None)), strict=True)
        taken = (None if default is None else next(values, None) for values, default in pairs)
        found.append(activation(name, *taken))
    return found


def _product(at: NodeSite, x: Any, filter: Any, bias: Any = None) -> Any:
    """Multiply by a filter [gates,items], or by levels [items,gates] with scale and zero point."""
    if isinstance(filter, tuple):
        result = dynamic_product(at, x, *cast("tuple[Any, ...]", filter))
    else:
        a, b = at.aligned(at.tensor(x), at.tensor(filter))
        result = at.product(a, b, flips=True)
    return result if bias is None else at.step.add(result, bias)


@operator("LSTM", "GRU", "RNN")
@operator("DynamicQuantizeLSTM", domain="com.microsoft")
def _layer(site: NodeSite) -> tuple[Any, ...]:
    """Run forward, backward or both; return all outputs, and the last states."""
    kind = "lstm" if _is_quantized(site) else site.operator.lower()
    directions = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    ways = directions[site.choice("direction", *directions, default="forward")]
    batch_first = site.flag("layout")
    x = site.transposed(site.tensor(0), (1, 0, 2)) if batch_first else site.tensor(0)
    hidden = site.shape(2)[1 if _is_quantized(site) else 2]
    if site.int("hidden_size", hidden) != hidden:
        raise InvalidOperation(f"'hidden_size' is not {hidden}, as input 2 has it")
    if site.shape(1)[0] != len(ways):
        raise InvalidShape(f"it has {len(ways)} directions, input 1 is {show(site.shape(1))}")
    activations, count = _activations(site, kind, len(ways)), len(DEFAULTS[kind])
    resets_after, couples = (site.flag(x) for x in ("linear_before_reset", "input_forget"))
    found: list[list[Any]] = []
    for i, reverse in enumerate(ways):
        own = activations[i * count : (i + 1) * count]
        cell = Cell(kind, "iofc", own, site.number("clip", 0), resets_after, couples)
        states = [
            _of(site, k, i, int(batch_first))
            if site.has(k)
            else site.filled(0, x.type.dtype, (site.extent(x, 1), hidden))
            for k in range(5, 5 + cell.states)
        ]
        found.append(_run(site, cell, x, states, i, reverse=reverse))
    outputs, *states = (list(parts) for parts in zip(*found, strict=True))
    results = [site.step.stack(outputs, axis=1), *(site.step.stack(s, axis=0) for s in states)]
    if batch_first:  # [batch,time,directions,hidden], [batch,directions,hidden]
        orders = ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))
        results = [site.transposed(y, order) for y, order in zip(results, orders, strict=False)]
    return tuple(results)


def _is_quantized(site: NodeSite) -> bool:
    return site.operator == "DynamicQuantizeLSTM"


def _of(site: NodeSite, i: int, way: int, axis: int = 0) -> Any:
    """Return the part of an input for one direction."""
    return site.squeezed(site.part(site.tensor(i), axis, way, way + 1), axis)


def _filter(site: NodeSite, i: int, way: int) -> Any:
    """Return the filter of a direction that input 1 or 2 is, as products take it."""
    if not _is_quantized(site):
        return _of(site, i, way)
    scale, zero = 2 * i + 6, 2 * i + 7
    no_zero = is_zero(site.optional(zero))
    return _of(site, i, way), _of(site, scale, way), None if no_zero else _of(site, zero, way)


def _run(
    site: NodeSite, cell: Cell, x: Value, states: Sequence[Any], way: int, *, reverse: bool
) -> list[Any]:
    """Run a cell over [time,batch,items]; return outputs [time,batch,hidden] and last states."""
    hidden, items = (site.shape(states[0])[-1] * n for n in (1, cell.gates))
    w, r = (_filter(site, i, way) for i in (1, 2))
    bias, rest = None, None  # of the input's products, and of a GRU's state before that is reset
    if site.has(3):
        both, kept = _of(site, 3, way), None
        bias, rest = site.part(both, 0, 0, items), site.part(both, 0, items, 2 * items)
        if cell.kind == "gru" and cell.resets_after:
            kept = site.part(rest, 0, 2 * hidden, items)
            rest = site.fitted(site.part(rest, 0, 0, 2 * hidden), 0, items)
        bias, rest = site.step.add(bias, rest), kept
    peepholes: dict[str, Any] = {}
    if cell.kind == "lstm" and site.has(7):
        parts = site.step.split(_of(site, 7, way), axis=0, ratios=(1, 1, 1))
        peepholes = {
            name: site.unsqueezed(part, (0,)) for name, part in zip("iof", parts, strict=True)
        }

    def product(body: RepeatedBody, state: Any, first: int, last: int) -> Any:
        filter = tuple(map(body.seen, r)) if isinstance(r, tuple) else body.seen(r)
        if last - first < cell.gates:
            filter = body.at.part(filter, 0, first * hidden, last * hidden)
        return _product(body.at, state, filter, body.seen(rest) if first else None)

    products, mask = _product(site, x, w, bias), None
    if site.has(4):
        mask = steps_within(site, site.extent(x, 0), site.operand(4), 0)
    return cell.run(site, products, states, product, mask, peepholes, axis=0, reverse=reverse)
