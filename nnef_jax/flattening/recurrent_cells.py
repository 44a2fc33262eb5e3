"""The recurrent cells RNN, LSTM and GRU, and their run over a sequence, for all formats."""

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
from nnef_jax.flattening.site import Site, Tensor
from nnef_jax.flattening.tensor_graph import Constant, TensorGraph

Activation = Callable[[Site[TensorGraph], Tensor], Any]
# A function that multiplies a state with the weights of the gates `first` to `end` - 1. Its
# arguments are the state, `first` and `end`. The result has shape (batch, gates * hidden).
Product = Callable[[Any, int, int], Tensor]
DEFAULTS: Mapping[str, tuple[str, ...]] = {
    "lstm": ("sigmoid", "tanh", "tanh"),
    "gru": ("sigmoid", "tanh"),
    "rnn": ("tanh",),
}
_GATES = {"lstm": 4, "gru": 3, "rnn": 1}
_OF_GATES, _OF_CANDIDATE, _OF_MEMORY = 0, 1, 2  # indices in `activations` of a cell
_REQUIRED = math.nan  # stands for a parameter without a default
# The defaults of alpha and beta for each activation. None says that the activation has no such
# parameter.
PARAMETERS: Mapping[str, tuple[float | None, float | None]] = {
    "relu": (None, None), "tanh": (None, None), "sigmoid": (None, None), "softsign": (None, None),
    "softplus": (None, None), "affine": (1.0, 0.0), "leakyrelu": (0.01, None),
    "thresholdedrelu": (1.0, None), "scaledtanh": (_REQUIRED, _REQUIRED), "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, None),
}  # fmt: skip


def activation(name: str, alpha: float | None = None, beta: float | None = None) -> Activation:
    """Return the activation function with the lower-case name `name`.

    If `alpha` or `beta` is None, the activation's default is used. Raises InvalidOperation if no
    activation has this name, or if a parameter without a default is None.
    """
    if name not in PARAMETERS:
        raise InvalidOperation(f"the activation {name[:40]!r} is not supported")
    default_alpha, default_beta = PARAMETERS[name]
    a = default_alpha if alpha is None else alpha
    b = default_beta if beta is None else beta
    if a is _REQUIRED or b is _REQUIRED:
        raise InvalidOperation(f"the activation '{name}' needs an alpha and a beta")

    def apply(site: Site[TensorGraph], x: Tensor) -> Any:
        step = site.step
        match name:
            case "affine":
                return step.add(step.mul(x, a), b)  # a * x + b
            case "hardsigmoid":
                return step.clamp(step.add(step.mul(x, a), b), 0.0, 1.0)
            case "scaledtanh":
                return step.mul(step.tanh(step.mul(x, b)), a)  # a * tanh(b * x)
            case "thresholdedrelu":
                return step.select(step.gt(x, a), x, 0.0)  # x if x > a else 0
            case "softsign":
                return step.div(x, step.add(step.abs(x), 1.0))  # x / (|x| + 1)
            case "leakyrelu":
                return step.leaky_relu(x, alpha=a)
            case "elu":
                return step.elu(x, alpha=a)
            case _:
                return getattr(step, name)(x)

    return apply


@dataclass(frozen=True, slots=True)
class Cell:
    """A recurrent cell.

    Args:
        kind: "lstm", "gru" or "rnn".
        order: the order of an LSTM's gates as letters: i(nput), o(utput), f(orget), c(ell).
        activations: the activation of the gates, then the activation of the candidate for the
            state, then the activation of an LSTM's memory, in the order of `DEFAULTS`. An RNN has
            only one activation.
        clip: the bound on absolute values of gates before their activation. 0 stands for no bound.
        resets_after: says where a GRU applies its reset gate. If true, the gate multiplies the
            product of the state with the weights. Otherwise the gate multiplies the state, before
            the product is computed.
        couples: whether the forget gate of an LSTM is computed as 1 - input gate.
    """

    kind: str
    order: str
    activations: Sequence[Activation]
    clip: float = 0.0
    resets_after: bool = False
    couples: bool = False

    @property
    def gates(self) -> int:
        """Return the number of gates of the cell, counting an LSTM's candidate as a gate."""
        return _GATES[self.kind]

    @property
    def states(self) -> int:
        """Return the number of states: 2 for an LSTM (output and memory), 1 for all other cells."""
        return 2 if self.kind == "lstm" else 1

    def next(
        self, site: Site[TensorGraph], x: Tensor, states: Sequence[Tensor], product: Product,
        peepholes: Mapping[str, Tensor] | None = None,
    ) -> list[Any]:  # fmt: skip
        """Compute the states after a time step. The first state is the output.

        Each state has shape (batch, hidden).

        Args:
            site: the site that operations are added to.
            x: the product of the input with its weights, plus the biases, of shape (batch, gates *
                hidden).
            states: the states before the time step.
            product: a function that takes a state and two numbers `first` and `end`. It multiplies
                the state with the weights of the gates `first` to `end` - 1.
            peepholes: maps the letter of a gate to the weights with which an LSTM's memory enters
                the gate.
        """
        if self.kind == "gru":
            return [self._next_gru(site, x, states[0], product)]
        gates = site.step.add(x, product(states[0], 0, self.gates))
        if self.kind == "rnn":
            return [self._activated(site, _OF_GATES, gates)]
        return self._next_lstm(site, gates, states[1], peepholes or {})

    def _next_gru(
        self, site: Site[TensorGraph], x: Tensor, state: Tensor, product: Product
    ) -> Any:  # fmt: skip
        """Return the state of a GRU after a time step. The arguments are as for `next`."""
        step = site.step
        # The gates are update, reset and candidate: `product(state, 2, 3)` is for the candidate.
        update_input, reset_input, candidate_input = _split(site, x, 3)
        update_state, reset_state = _split(site, product(state, 0, 2), 2)
        update = self._activated(site, _OF_GATES, step.add(update_input, update_state))
        reset = self._activated(site, _OF_GATES, step.add(reset_input, reset_state))
        if self.resets_after:
            candidate_state = step.mul(reset, product(state, 2, 3))
        else:
            candidate_state = product(step.mul(reset, state), 2, 3)
        candidate_sum = step.add(candidate_input, candidate_state)
        candidate = self._activated(site, _OF_CANDIDATE, candidate_sum)
        # The result is update * state + (1 - update) * candidate.
        difference = step.sub(state, candidate)
        return step.add(candidate, step.mul(update, difference))

    def _next_lstm(
        self, site: Site[TensorGraph], gates: Tensor, old_memory: Tensor,
        peepholes: Mapping[str, Tensor],
    ) -> list[Any]:  # fmt: skip
        """Return the output and the memory of an LSTM after a time step.

        `gates` are the gates before the activations, and `old_memory` is the memory before the time
        step. `peepholes` maps the letter of a gate to the weights with which the memory enters the
        gate.
        """
        step = site.step
        gate_by_letter = dict(zip(self.order, _split(site, gates, 4), strict=True))

        def activated_gate(letter: str, memory: Tensor) -> Any:
            gate = gate_by_letter[letter]
            if letter in peepholes:
                gate = step.add(gate, step.mul(memory, peepholes[letter]))
            return self._activated(site, _OF_GATES, gate)

        input_gate = activated_gate("i", old_memory)
        forget_gate = step.sub(1.0, input_gate) if self.couples else activated_gate("f", old_memory)
        remembered = step.mul(forget_gate, old_memory)
        candidate = self._activated(site, _OF_CANDIDATE, gate_by_letter["c"])
        memory = step.add(remembered, step.mul(input_gate, candidate))
        output_gate = activated_gate("o", memory)
        activated_memory = self.activations[_OF_MEMORY](site, memory)
        return [step.mul(output_gate, activated_memory), memory]

    def _activated(self, site: Site[TensorGraph], i: int, gate: Tensor) -> Any:
        """Clip a gate if the cell has a bound, and apply the activation with index `i`."""
        if self.clip:
            gate = site.step.clamp(gate, -self.clip, self.clip)
        return self.activations[i](site, gate)

    def run(
        self, site: Site[TensorGraph], x: Value, states: Sequence[Tensor],
        product: Callable[..., Tensor], mask: Tensor | None = None,
        peepholes: Mapping[str, Tensor] | None = None, *, axis: int, reverse: bool,
    ) -> list[Value]:  # fmt: skip
        """Run the cell over a sequence by a scan; return the outputs, then the last states.

        Args:
            site: the layer or node.
            x: the products of the inputs with their weights for all time steps. The time axis is
                `axis`.
            states: the states before the first time step.
            product: as for `next`, but with the `RepeatedBody` as an additional first argument.
            mask: true for the time steps within each sequence. In all other time steps the states
                stay as they are, and the output is 0.
            peepholes: as for `next`.
            axis: the time axis of `x`, of the mask and of the outputs.
            reverse: whether the time steps are taken in reverse order.
        """
        body = RepeatedBody(site)
        step = body.at.step
        gates = body.item(x, axis, reverse=reverse)
        old_states = [body.state(state) for state in states]
        inner_peepholes: dict[str, Any] = {}
        if peepholes:
            for letter, weights in peepholes.items():
                inner_peepholes[letter] = body.outer_input(weights)
        inner_product = partial(product, body)
        new_states = self.next(body.at, gates, old_states, inner_product, inner_peepholes)
        output = new_states[0]
        if mask is not None:
            is_within = body.item(mask, axis, reverse=reverse)
            output = step.select(is_within, output, 0.0)
            pairs = zip(new_states, old_states, strict=True)
            new_states = [step.select(is_within, new, old) for new, old in pairs]
        # The output joins the time steps of all iterations. Of each state, only the last value is a
        # result.
        output = step.unsqueeze(output, axes=(axis,))
        chunk = -1 if reverse else 1
        output_modes = [("full", axis, chunk), *[LAST] * len(new_states)]
        return body.add(
            site.insert,
            continue_condition=[],
            after=new_states,
            values=[output, *new_states],
            output_modes=output_modes,
        )


def _split(site: Site[TensorGraph], gates: Tensor, count: int) -> list[Any]:
    """Split gates that lie side by side along the last axis into a list of tensors.

    `gates` has shape (batch, count * hidden). Each of the `count` results has shape (batch,
    hidden).
    """
    last_axis = site.rank(gates) - 1
    return list(site.step.split(gates, axis=last_axis, ratios=[1] * count))


def steps_within(site: Site[TensorGraph], time: int, lengths: Tensor | None, axis: int) -> Any:
    """Return a mask that is true for the time steps within each sequence.

    `lengths` has the length of each sequence, and `time` is the number of time steps. If it is
    known that no sequence is shorter than `time`, return None instead of a mask. The mask has shape
    (time, batch, 1) if `axis` is 0, and (batch, time, 1) if `axis` is 1.
    """
    if lengths is None:
        return None
    if isinstance(lengths, Constant) and np.all(lengths.array >= time):
        return None
    ends = site.cast(site.tensor(lengths), site.graph.builder.integer)
    ends = site.step.unsqueeze(ends, axes=(axis,))  # (1, batch) or (batch, 1)
    times = site.positions(time, axis, rank=2)  # (time, 1) or (1, time)
    is_within = site.step.lt(times, ends)
    return site.step.unsqueeze(is_within, axes=(2,))
