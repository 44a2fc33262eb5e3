"""Recurrent cells, and sequences of them as a scan over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import TensorType, Value
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.layers import legacy, opsets
from nnef_jax.formats.openvino.site import Site

_GATES = {"lstm": 4, "gru": 3, "rnn": 1}
_DEFAULTS = {"lstm": ["sigmoid", "tanh", "tanh"], "gru": ["sigmoid", "tanh"], "rnn": ["tanh"]}


class Cell:
    """A kind of cell with its attributes: how gates become the next state."""

    def __init__(self, site: Site, kind: str) -> None:
        self.kind = kind
        names = [x for x in site.text("activations", "").split(",") if x.strip()]
        self.activations = [x.strip() for x in names] or _DEFAULTS[kind]
        if kind == "rnn":
            self.activations = self.activations[:1] if names else ["tanh"]
        self.alphas = site.numbers("activations_alpha", site.numbers("activation_alpha", []))
        self.betas = site.numbers("activations_beta", site.numbers("activation_beta", []))
        self.clip = site.number("clip", 0)
        self.resets_after = site.flag("linear_before_reset")
        self.hidden = site.int("hidden_size", 0)

    def _activated(
        self, site: Site, x: Value, i: int, add: Callable[..., Any] | None = None
    ) -> Value:
        add = add or site.insert
        name = self.activations[i]
        if name in ("sigmoid", "tanh", "relu"):
            return add(name, {"x": x})
        if name == "hardsigmoid":
            alpha = self.alphas[i] if i < len(self.alphas) else 0.2
            beta = self.betas[i] if i < len(self.betas) else 0.5
            scaled = site.insert("add", {"x": site.insert("mul", {"x": x, "y": alpha}), "y": beta})
            return add("clamp", {"x": scaled, "a": 0.0, "b": 1.0})
        raise InvalidOperation(f"the activation '{name}' of cells is not supported")

    def _clipped(self, site: Site, x: Value) -> Value:
        return site.insert("clamp", {"x": x, "a": -self.clip, "b": self.clip}) if self.clip else x

    def _gates(self, site: Site, x: Value, count: int) -> list[Value]:
        if count == 1:
            return [x]
        return list(
            site.insert("split", {"value": x}, axis=len(x.type.shape) - 1, ratios=(1,) * count)
        )

    def next(self, site: Site, x: Value, states: Sequence[Value], r: Any, b: Any) -> list[Value]:
        """Return the next states, given the products of the input, biases of these added.

        `r` [gates*hidden,hidden] is for the state; `b` is the bias of the new gate of a GRU's
        state where that is multiplied before it is reset, else None.
        """
        state = states[0]
        if self.kind == "gru":
            return [self._gru(site, x, state, r, b)]
        product = site.insert("linear", {"input": state, "filter": r, "bias": 0.0})
        gates = self._clipped(site, site.insert("add", {"x": x, "y": product}))
        if self.kind == "rnn":
            return [self._activated(site, gates, 0)]
        f, i, c, o = self._gates(site, gates, 4)
        f, i, o = (self._activated(site, gate, 0) for gate in (f, i, o))
        kept = site.insert("mul", {"x": f, "y": states[1]})
        new = site.insert("mul", {"x": i, "y": self._activated(site, c, 1)})
        cell = site.insert("add", {"x": kept, "y": new})
        shown = self._activated(site, cell, 2)
        return [site.insert("mul", {"x": o, "y": shown}), cell]

    def _gru(self, site: Site, x: Value, state: Value, r: Any, b: Any) -> Value:
        hidden = state.type.shape[-1]
        xz, xr, xh = self._gates(site, x, 3)

        def product(state: Value, first: int, last: int, bias: Any = 0.0) -> Value:
            rows = site.insert(
                "slice",
                {"input": r},
                axes=(0,),
                begin=(first * hidden,),
                end=(last * hidden,),
                stride=(1,),
            )
            return site.insert("linear", {"input": state, "filter": rows, "bias": bias})

        rz, rr = self._gates(site, product(state, 0, 2), 2)
        z, reset = (
            self._activated(site, self._clipped(site, site.insert("add", {"x": a, "y": c})), 0)
            for a, c in ((xz, rz), (xr, rr))
        )
        if self.resets_after:
            rh = site.insert("mul", {"x": reset, "y": product(state, 2, 3, b)})
        else:
            rh = product(site.insert("mul", {"x": reset, "y": state}), 2, 3)
        new = self._activated(site, self._clipped(site, site.insert("add", {"x": xh, "y": rh})), 1)
        change = site.insert("mul", {"x": z, "y": site.insert("sub", {"x": state, "y": new})})
        return site.insert("add", {"x": new, "y": change})


def _biases(site: Site, cell: Cell, bias: Any, hidden: int) -> tuple[Any, Any]:
    """Return the bias [1,items] of the input's products, and that of a GRU's reset state."""
    if bias is None:
        return 0.0, 0.0
    if cell.kind != "gru" or not cell.resets_after:
        return bias, 0.0
    whole = site.tensor(bias)

    def part(first: int, last: int) -> Value:
        window = {"begin": (first * hidden,), "end": (last * hidden,)}
        return site.insert("slice", {"input": whole}, axes=(1,), stride=(1,), **window)

    return part(0, 3), part(3, 4)


def _stepped(
    site: Site, cell: Cell, x: Value, states: Sequence[Value], w: Any, r: Any, bias: Any
) -> list[Value]:
    """Return the states after one step on the input."""
    own, rest = _biases(site, cell, bias, states[0].type.shape[-1])
    product = site.insert("linear", {"input": x, "filter": w, "bias": own})
    return cell.next(site, product, states, r, rest)


def _row(site: Site, bias: Any) -> Any:
    """Return a bias [items] as [1,items]."""
    if bias is None:
        return None
    if isinstance(bias, Constant):
        return Constant(bias.array.reshape(1, -1), bias.type, bias.label)
    return site.reshaped(bias, (1, bias.type.shape[-1]))


def _cell(kind: str) -> Callable[[Site], list[Value]]:
    count = 2 if kind == "lstm" else 1

    def meaning(site: Site) -> list[Value]:
        cell = Cell(site, kind)
        x, *states = (site.tensor(i) for i in range(1 + count))
        w, r = site.tensor(1 + count), site.tensor(2 + count)
        bias = _row(site, site.operand(3 + count)) if site.has(3 + count) else None
        return _stepped(site, cell, x, states, w, r, bias)

    return meaning


for _kind in _GATES:
    opsets(f"{_kind.upper()}Cell")(_cell(_kind))


def _joined_weights(site: Site, cell: Cell, items: int, hidden: int) -> tuple[Value, Value, Any]:
    """Return the halves of old weights [gates*hidden,items+hidden], and the bias."""
    gates = _GATES[cell.kind]
    weights = site.blob("weights", (gates * hidden, items + hidden))
    if weights is None:
        raise InvalidOperation("it has no weights")
    biases = gates + (cell.kind == "gru" and cell.resets_after)
    bias = site.blob("biases", (1, biases * hidden))
    whole = site.tensor(weights)
    window: dict[str, Any] = {"axes": (1,), "stride": (1,)}
    w = site.insert("slice", {"input": whole}, begin=(0,), end=(items,), **window)
    r = site.insert("slice", {"input": whole}, begin=(items,), end=(items + hidden,), **window)
    return w, r, bias


def _legacy_cell(kind: str) -> Callable[[Site], list[Value]]:
    count = 2 if kind == "lstm" else 1

    def meaning(site: Site) -> list[Value]:
        cell = Cell(site, kind)
        x, *states = (site.tensor(i) for i in range(1 + count))
        w, r, bias = _joined_weights(site, cell, x.type.shape[-1], states[0].type.shape[-1])
        return _stepped(site, cell, x, states, w, r, bias)

    return meaning


for _kind in _GATES:
    legacy(f"{_kind.upper()}Cell")(_legacy_cell(_kind))


def _run(
    site: Site, cell: Cell, x: Value, states: Sequence[Value], w: Any, r: Any, bias: Any,
    mask: Value | None, *, reverse: bool,
) -> list[Value]:  # fmt: skip
    """Run a cell over [batch,time,items]; return all outputs [batch,time,hidden] and last states.

    Where a mask [batch,time,1] is 0 states stay and outputs are 0.
    """
    if len(site.shape(w)) == 2:
        w = site.insert("unsqueeze", {"input": site.tensor(w)}, axes=(0,))
    own, rest = _biases(site, cell, bias, states[0].type.shape[-1])
    flags = {"transposeA": False, "transposeB": True}
    products = site.insert("matmul", {"A": x, "B": site.tensor(w)}, **flags)
    if bias is not None:
        own = site.insert("unsqueeze", {"input": site.tensor(own)}, axes=(0,))
        products = site.insert("add", {"x": products, "y": own})
    scanned = [products] if mask is None else [products, mask]
    body = site.graph.body()
    inner = replace(site, graph=body)

    def enter(value: Value, name: str, shape: tuple[int, ...]) -> Value:
        return body.builder.input(name, TensorType(shape, value.type.dtype))

    step = -1 if reverse else 1
    chunks = [
        enter(v, f"step_{i}", (v.type.shape[0], 1, v.type.shape[2])) for i, v in enumerate(scanned)
    ]
    full: list[Value] = [site.tensor(r)]
    if isinstance(rest, Value):
        full.append(rest)
    whole = [enter(v, f"full_{i}", v.type.shape) for i, v in enumerate(full)]
    before = [enter(v, f"state_{i}", v.type.shape) for i, v in enumerate(states)]
    now = inner.insert("squeeze", {"input": chunks[0]}, axes=(1,))
    after = cell.next(inner, now, before, whole[0], whole[1] if len(whole) > 1 else rest)
    shown = after[0]
    if mask is not None:
        keep = inner.insert("squeeze", {"input": chunks[1]}, axes=(1,))
        runs = inner.insert("gt", {"x": keep, "y": 0.0})
        after = [
            inner.insert("select", {"condition": runs, "true_value": a, "false_value": b})
            for a, b in zip(after, before, strict=True)
        ]
        shown = inner.insert("mul", {"x": shown, "y": keep})
    shown = inner.insert("unsqueeze", {"input": shown}, axes=(1,))
    results = [*after, shown]
    order = [v.name for v in (*chunks, *whole, *before)]
    graph = body.builder.graph("step", results, [v.name for v in results], order)
    operands = {"scanned": scanned, "full": full, "initial": list(states)}
    body_outputs = (("full", 1, step), *(("last", 0, 1),) * len(after))
    graph = replace(
        graph,
        outputs=(*after, shown, *after),
        output_names=tuple(v.name for v in (*after, shown, *after)),
    )
    attributes: dict[str, Any] = {
        "body": graph, "axes": (1,) * len(scanned), "chunks": (step,) * len(scanned),
        "outputs": body_outputs, "skip": 0,
    }  # fmt: skip
    return site.insert("scan", operands, **attributes)


def _mask_of(site: Site, x: Value, lengths: Any) -> Value | None:
    """Return which steps count, None where all do."""
    time = x.type.shape[1]
    if lengths is None or (isinstance(lengths, Constant) and np.all(lengths.array >= time)):
        return None
    site.spend(time)
    turns = Constant(np.arange(time, dtype=np.int64).reshape(1, time), "i64", derived=True)
    ends = site.insert("unsqueeze", {"input": site.tensor(lengths)}, axes=(1,))
    ends = site.cast(ends, site.graph.builder.integer)
    counts = site.insert("lt", {"x": turns, "y": ends})
    mask = site.insert("cast", {"input": counts}, dtype=x.type.dtype)
    return site.insert("unsqueeze", {"input": mask}, axes=(2,))


def _sequence(kind: str) -> Callable[[Site], list[Value]]:
    count = 2 if kind == "lstm" else 1

    def meaning(site: Site) -> list[Value]:
        """Run forward, backward or both: states are [batch,directions,hidden]."""
        cell = Cell(site, kind)
        x = site.tensor(0)
        starts = [site.tensor(1 + i) for i in range(count)]
        lengths = site.operand(1 + count) if site.has(1 + count) else None
        w, r, b = (site.tensor(i + 2 + count) for i in range(3))
        directions = {
            "forward": [False],
            "reverse": [True],
            "backward": [True],
            "bidirectional": [False, True],
        }
        ways = directions.get(site.text("direction", "forward"))
        if ways is None:
            raise InvalidOperation(f"there is no direction '{site.text('direction')}'")
        mask = _mask_of(site, x, lengths)

        def part(value: Value, i: int, axis: int) -> Value:
            if value.type.shape[axis] != 1:
                value = site.insert(
                    "slice", {"input": value}, axes=(axis,), begin=(i,), end=(i + 1,), stride=(1,)
                )
            return site.insert("squeeze", {"input": value}, axes=(axis,))

        found: list[list[Value]] = []
        for i, reverse in enumerate(ways):
            states = [part(s, i, 1) for s in starts]
            bias = site.insert("unsqueeze", {"input": part(b, i, 0)}, axes=(0,))
            run = _run(
                site, cell, x, states, part(w, i, 0), part(r, i, 0), bias, mask, reverse=reverse
            )
            found.append([site.insert("unsqueeze", {"input": v}, axes=(1,)) for v in run])
        if len(found) == 1:
            return found[0]
        return [
            site.insert("concat", {"values": list(parts)}, axis=1)
            for parts in zip(*found, strict=True)
        ]

    return meaning


for _kind in _GATES:
    opsets(f"{_kind.upper()}Sequence")(_sequence(_kind))


def _legacy_sequence(kind: str) -> Callable[[Site], list[Value]]:
    count = 2 if kind == "lstm" else 1

    def meaning(site: Site) -> list[Value]:
        """Run one way over the axis of time, 1 by default, or 0."""
        cell = Cell(site, kind)
        x, axis = site.tensor(0), site.int("axis", 1)
        states = [site.tensor(1 + i) for i in range(count) if site.has(1 + i)]
        if axis == 0:
            x = site.transposed(x, (1, 0, 2))
        hidden = states[0].type.shape[-1] if states else cell.hidden
        if not states:
            zeros = Constant(np.zeros((x.type.shape[0], hidden), np.float32), "f32", derived=True)
            states = [site.tensor(zeros)] * count
        w, r, bias = _joined_weights(site, cell, x.type.shape[-1], hidden)
        reverse = (
            site.choice("direction", "forward", "backward", "reverse", default="forward")
            != "forward"
        )
        y, *last = _run(site, cell, x, states, w, r, bias, None, reverse=reverse)
        return [site.transposed(y, (1, 0, 2)) if axis == 0 else y, *last]

    return meaning


for _kind in _GATES:
    legacy(f"{_kind.upper()}Sequence")(_legacy_sequence(_kind))
