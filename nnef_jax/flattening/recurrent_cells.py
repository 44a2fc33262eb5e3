"""Recurrent cells, RNN, LSTM and GRU: how the next state follows, which formats say alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.flattening.repetition import LAST, RepeatedBody
from nnef_jax.flattening.site import Site
from nnef_jax.flattening.tensor_graph import Constant

Activation = Callable[[Any, Any], Any]  # of a site and a tensor
DEFAULTS = {"lstm": ("sigmoid", "tanh", "tanh"), "gru": ("sigmoid", "tanh"), "rnn": ("tanh",)}
_GATES = {"lstm": 4, "gru": 3, "rnn": 1}
# What an activation has for alpha and beta by default; None where it has none, NaN where it must.
PARAMETERS: Mapping[str, tuple[float | None, float | None]] = {
    "relu": (None, None), "tanh": (None, None), "sigmoid": (None, None), "softsign": (None, None),
    "softplus": (None, None), "affine": (1.0, 0.0), "leakyrelu": (0.01, None),
    "thresholdedrelu": (1.0, None), "scaledtanh": (math.nan, math.nan), "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, None),
}  # fmt: skip


def activation(name: str, alpha: float | None = None, beta: float | None = None) -> Activation:
    """Return an activation by its name in small letters; None is the default of a parameter."""
    if name not in PARAMETERS:
        raise InvalidOperation(f"the activation {name[:40]!r} is not supported")
    pairs = zip((alpha, beta), PARAMETERS[name], strict=True)
    a, b = (default if given is None else given for given, default in pairs)
    if math.nan in (a, b):
        raise InvalidOperation(f"the activation '{name}' needs an alpha and a beta")

    def apply(at: Any, x: Any) -> Any:
        step = at.step
        match name:
            case "affine":
                return step.add(step.mul(x, a), b)
            case "hardsigmoid":
                return step.clamp(step.add(step.mul(x, a), b), 0.0, 1.0)
            case "scaledtanh":
                return step.mul(step.tanh(step.mul(x, b)), a)
            case "thresholdedrelu":
                return step.select(step.gt(x, a), x, 0.0)
            case "softsign":
                return step.div(x, step.add(step.abs(x), 1.0))
            case "leakyrelu":
                return step.leaky_relu(x, alpha=a)
            case "elu":
                return step.elu(x, alpha=a)
            case _:
                return getattr(step, name)(x)

    return apply


@dataclass(frozen=True, slots=True)
class Cell:
    """A kind of cell: how gates become the next state."""

    kind: str  # lstm, gru or rnn
    order: str  # of the gates of an LSTM, by letter: input, output, forget, cell
    activations: Sequence[Activation]
    clip: float = 0.0  # no bound
    resets_after: bool = False  # a GRU: the product of the state
    couples: bool = False  # an LSTM: the forget gate to the input gate

    @property
    def gates(self) -> int:
        """Return how many gates it has."""
        return _GATES[self.kind]

    @property
    def states(self) -> int:
        """Return how many states it has."""
        return 2 if self.kind == "lstm" else 1

    def next(
        self, at: Any, x: Any, states: Sequence[Any], product: Callable[[Any, int, int], Any],
        peepholes: Mapping[str, Any] | None = None,
    ) -> list[Any]:  # fmt: skip
        """Return the next states, given the products of the input [batch,gates], with biases.

        `product` is that of a state with the filters from one gate to before another; `peepholes`
        are factors of the memory that gates see.
        """
        step, state = at.step, states[0]
        add, mul = step.add, step.mul

        def split(gates: Any, count: int) -> list[Any]:
            return list(step.split(gates, axis=at.rank(gates) - 1, ratios=(1,) * count))

        def activated(i: int, gate: Any) -> Any:
            gate = step.clamp(gate, -self.clip, self.clip) if self.clip else gate
            return self.activations[i](at, gate)

        if self.kind == "gru":
            xz, xr, xh = split(x, 3)
            rz, rr = split(product(state, 0, 2), 2)
            update, reset = activated(0, add(xz, rz)), activated(0, add(xr, rr))
            if self.resets_after:
                rh = mul(reset, product(state, 2, 3))
            else:
                rh = product(mul(reset, state), 2, 3)
            new = activated(1, add(xh, rh))
            return [add(new, mul(update, step.sub(state, new)))]
        gates = add(x, product(state, 0, self.gates))
        if self.kind == "rnn":
            return [activated(0, gates)]
        by_letter = dict(zip(self.order, split(gates, 4), strict=True))

        def seen(letter: str, memory: Any) -> Any:
            gate, weight = by_letter[letter], (peepholes or {}).get(letter)
            return activated(0, gate if weight is None else add(gate, mul(memory, weight)))

        before = states[1]
        i = seen("i", before)
        f = step.sub(1.0, i) if self.couples else seen("f", before)
        memory = add(mul(f, before), mul(i, activated(1, by_letter["c"])))
        return [mul(seen("o", memory), self.activations[2](at, memory)), memory]

    def run(
        self, site: Site[Any], x: Value, states: Sequence[Any], product: Callable[..., Any],
        mask: Any = None, peepholes: Mapping[str, Any] | None = None, *, axis: int, reverse: bool,
    ) -> list[Value]:  # fmt: skip
        """Run over the axis of time of products of the input; return outputs and last states.

        `product` is given the body first. Where a mask does not hold, states stay and outputs are
        0.
        """
        body = RepeatedBody(site)
        step, now = body.at.step, body.item(x, axis, reverse=reverse)
        before = [body.state(s) for s in states]
        factors = {name: body.seen(part) for name, part in (peepholes or {}).items()}
        after = self.next(body.at, now, before, partial(product, body), factors)
        shown = after[0]
        if mask is not None:
            runs = body.item(mask, axis, reverse=reverse)
            shown = step.select(runs, shown, 0.0)
            after = [step.select(runs, a, b) for a, b in zip(after, before, strict=True)]
        how = [("full", axis, -1 if reverse else 1), *[LAST] * len(after)]
        shown = step.unsqueeze(shown, axes=(axis,))
        return body.add(site.insert, [], after, [shown, *after], how)


def steps_within(site: Site[Any], time: int, lengths: Any, axis: int) -> Any:
    """Return a mask of the steps within each sequence, or None where all steps are.

    Time is an axis of it, 0 or 1, the batch is the other one; the last one has one item.
    """
    if lengths is None or (isinstance(lengths, Constant) and np.all(lengths.array >= time)):
        return None
    ends = site.cast(site.tensor(lengths), site.graph.builder.integer)
    ends = site.step.unsqueeze(ends, axes=(axis,))
    runs = site.step.lt(site.places(time, axis, 2), ends)
    return site.step.unsqueeze(runs, axes=(2,))
