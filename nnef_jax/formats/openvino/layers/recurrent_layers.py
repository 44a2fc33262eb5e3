"""Meanings of recurrent cells, and of sequences, which are scans of a cell over time steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.flattening.operators.attributes import integer, text, word
from nnef_jax.flattening.recurrent_cells import (
    DEFAULTS,
    Activation,
    Cell,
    activation,
    steps_within,
)
from nnef_jax.flattening.repetition import RepeatedBody
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.layer_site import LayerSite, derived
from nnef_jax.formats.openvino.layers.registry import legacy, opsets

_REVERSALS = {  # for each direction, the runs of the cell, and whether each run is backward
    "forward": [False], "reverse": [True], "backward": [True], "bidirectional": [False, True],
}  # fmt: skip


def _cell_of(site: LayerSite) -> Cell:
    """Make the cell of a layer from the layer's type and attributes."""
    kind = site.operator.removesuffix("cell").removesuffix("sequence")
    names = [x.strip() for x in site.text("activations", "").split(",") if x.strip()]
    alphas = site.numbers("activations_alpha", site.numbers("activation_alpha", []))
    betas = site.numbers("activations_beta", site.numbers("activation_beta", []))
    activations: list[Activation] = []
    for i, name in enumerate(names or DEFAULTS[kind]):
        alpha = alphas[i] if i < len(alphas) else None
        beta = betas[i] if i < len(betas) else None
        activations.append(activation(name, alpha, beta))
    resets_after = kind == "gru" and site.flag("linear_before_reset")
    return Cell(kind, "fico", activations, site.number("clip", 0), resets_after)


def _product(
    site: LayerSite, cell: Cell, state: Value, first: int, last: int, filters: Value,
    bias: Value | float,
) -> Value:  # fmt: skip
    """Multiply a state of shape (batch, hidden) by the filters of the gates `first` to `last - 1`.

    `filters` has shape (gates * hidden, hidden) and contains the filters of all gates. `bias` is
    added to the product of the last gate of a GRU that applies its reset gate to this product. For
    all other cells, `bias` is 0.
    """
    hidden = state.type.shape[-1]
    if last - first < cell.gates:
        filters = site.part(filters, 0, first * hidden, last * hidden)
    used_bias = bias if first else 0.0
    return site.step.linear(state, filters, used_bias)


def _biases(
    site: LayerSite, cell: Cell, bias: Tensor | None, hidden: int
) -> tuple[Tensor | float, Value | float]:
    """Split the bias of a cell: return the bias of the input's product, and a GRU's reset bias.

    The first has shape (1, gates * hidden). The second has shape (1, hidden) for a GRU that applies
    its reset gate after the product with the state. For all other cells, the second is 0 and the
    first is the whole `bias`.
    """
    if bias is None:
        return 0.0, 0.0
    if not cell.resets_after:
        return bias, 0.0
    joined = site.tensor(bias)
    return site.part(joined, 1, 0, 3 * hidden), site.part(joined, 1, 3 * hidden, 4 * hidden)


def _row(site: LayerSite, i: int) -> Tensor | None:
    """Return input `i`, a bias of shape (items,), in the shape (1, items).

    If the input is not connected, return None.
    """
    if not site.has(i):
        return None
    bias = site.operand(i)
    if isinstance(bias, Constant):
        return Constant(bias.array.reshape(1, -1), bias.type, bias.label)
    return site.reshaped(bias, (1, bias.type.shape[-1]))


_CELLS = ("LSTMCell", "GRUCell", "RNNCell")
_SEQUENCES = ("LSTMSequence", "GRUSequence", "RNNSequence")


@legacy(*_CELLS, cell=_cell_of)
def _legacy_cell(site: LayerSite, x: Value, *, cell: Cell) -> list[Value]:
    states = [site.tensor(1 + i) for i in range(cell.states)]
    weights = _joined_weights(site, cell, x.type.shape[-1], states[0].type.shape[-1])
    return _next(site, cell, x, states, *weights)


@opsets(*_CELLS, cell=_cell_of)
def _cell(site: LayerSite, x: Value, *, cell: Cell) -> list[Value]:
    count = 1 + cell.states
    states = [site.tensor(i) for i in range(1, count)]
    weights = site.tensor(count), site.tensor(count + 1)
    return _next(site, cell, x, states, *weights, _row(site, count + 2))


def _next(
    site: LayerSite,
    cell: Cell,
    x: Value,
    states: Sequence[Value],
    w: Value,
    r: Value,
    bias: Tensor | None,
) -> list[Value]:
    """Return the states of a cell after one time step. The first state is the output.

    `x` is the input of the step, `states` are the states before it, and `w` and `r` are the filters
    of the input and of the state.
    """
    input_bias, state_bias = _biases(site, cell, bias, states[0].type.shape[-1])

    def product(state: Value, first: int, last: int) -> Value:
        return _product(site, cell, state, first, last, r, state_bias)

    return cell.next(site, site.step.linear(x, w, input_bias), states, product)


def _joined_weights(
    site: LayerSite, cell: Cell, items: int, hidden: int
) -> tuple[Value, Value, Constant | None]:
    """Split the stored weights of a layer; return w, r and the bias.

    w is the filter of the input, of shape (gates * hidden, items), and r is the filter of the
    state, of shape (gates * hidden, hidden). `items` is the number of items of the input at a time
    step. The bias is None if the layer stores none.
    """
    stored = site.required_weights("weights", (cell.gates * hidden, items + hidden))
    bias = site.blob("biases", (1, (cell.gates + cell.resets_after) * hidden))
    joined = site.tensor(stored)
    return site.part(joined, 1, 0, items), site.part(joined, 1, items, items + hidden), bias


def _run(
    site: LayerSite, cell: Cell, x: Value, states: Sequence[Value], w: Value, r: Value,
    bias: Tensor | None, mask: Value | None, *, reverse: bool,
) -> list[Value]:  # fmt: skip
    """Run a cell over a sequence; return the outputs of all time steps and the last states.

    The sequence `x` has shape (batch, time, items), and the outputs have shape (batch, time,
    hidden). `w` and `r` are the filters of the input and of the state. `mask` is true for the time
    steps within each sequence; at all other time steps the states stay as they are. If `reverse`,
    the sequence is read from the end.
    """
    if len(w.type.shape) == 2:
        w = site.unsqueezed(w, (0,))
    input_bias, state_bias = _biases(site, cell, bias, states[0].type.shape[-1])
    products = site.step.matmul(x, w, transposeA=False, transposeB=True)
    if bias is not None and not isinstance(input_bias, int | float):
        products = site.step.add(products, site.unsqueezed(input_bias, (0,)))

    def product(body: RepeatedBody, state: Value, first: int, last: int) -> Value:
        return _product(
            body.at, cell, state, first, last, body.outer_input(r), body.outer_input(state_bias)
        )

    return cell.run(site, products, states, product, mask, axis=1, reverse=reverse)


@opsets(*_SEQUENCES, cell=_cell_of)
def _sequence(
    site: LayerSite, x: Value, *, cell: Cell, direction: str = text("direction", "forward")
) -> list[Value]:
    """Run a cell over a sequence forward, backward or in both directions.

    The sequence `x` has shape (batch, time, items), and the states have shape (batch, directions,
    hidden).
    """
    count = cell.states
    initial_states = [site.tensor(1 + i) for i in range(count)]
    lengths = site.operand(1 + count) if site.has(1 + count) else None
    w, r, biases = [site.tensor(2 + count + i) for i in range(3)]
    reversals = _REVERSALS.get(direction)
    if reversals is None:
        raise InvalidOperation(f"there is no direction '{direction}'")
    mask = steps_within(site, x.type.shape[1], lengths, 1)

    def of_direction(value: Value, i: int, axis: int) -> Value:
        if value.type.shape[axis] != 1:
            value = site.part(value, axis, i, i + 1)
        return site.step.squeeze(value, axes=(axis,))

    runs: list[list[Value]] = []
    for i, reverse in enumerate(reversals):
        states = [of_direction(state, i, 1) for state in initial_states]
        bias = site.unsqueezed(of_direction(biases, i, 0), (0,))
        weights = of_direction(w, i, 0), of_direction(r, i, 0)
        results = _run(site, cell, x, states, *weights, bias, mask, reverse=reverse)
        runs.append([site.unsqueezed(result, (1,)) for result in results])
    if len(runs) == 1:
        return runs[0]
    return [site.step.concat([*parts], axis=1) for parts in zip(*runs, strict=True)]


@legacy(*_SEQUENCES, cell=_cell_of)
def _legacy_sequence(
    site: LayerSite,
    x: Value,
    *,
    cell: Cell,
    axis: int = integer("axis", 1),
    way: str = word("direction", "forward", "backward", "reverse"),
) -> list[Value]:
    """Run a cell over the sequence `x` in one direction.

    `axis` is the time axis, 1 or 0. The direction `way` is "forward", "backward" or "reverse",
    where "reverse" means "backward".
    """
    states = [site.tensor(1 + i) for i in range(cell.states) if site.has(1 + i)]
    if axis == 0:
        x = site.transposed(x, (1, 0, 2))
    hidden = states[0].type.shape[-1] if states else site.int("hidden_size", 0)
    if not states:
        zeros = derived(np.zeros((x.type.shape[0], hidden), np.float32))
        states = [site.tensor(zeros)] * cell.states
    w, r, bias = _joined_weights(site, cell, x.type.shape[-1], hidden)
    y, *last = _run(site, cell, x, states, w, r, bias, None, reverse=way != "forward")
    if axis == 0:
        y = site.transposed(y, (1, 0, 2))
    return [y, *last]
