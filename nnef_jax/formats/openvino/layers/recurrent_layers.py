"""Functions for recurrent cells, and for sequences, which are scans of a cell over time steps."""

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

# Maps a direction to a list with an item for each run of the cell: whether the run is backward.
_REVERSALS = {
    "forward": [False], "reverse": [True], "backward": [True], "bidirectional": [False, True],
}  # fmt: skip


def _cell_of(site: LayerSite) -> Cell:
    """Make the cell of a layer from the layer's type and attributes."""
    kind = site.operator.removesuffix("cell").removesuffix("sequence")
    names: list[str] = []
    for part in site.text("activations", "").split(","):
        if part.strip():
            names.append(part.strip())
    if not names:
        names = [*DEFAULTS[kind]]
    # The attributes have two spellings.
    alphas = site.numbers("activations_alpha", site.numbers("activation_alpha", []))
    betas = site.numbers("activations_beta", site.numbers("activation_beta", []))
    activations: list[Activation] = []
    for i, name in enumerate(names):
        alpha = alphas[i] if i < len(alphas) else None
        beta = betas[i] if i < len(betas) else None
        activations.append(activation(name, alpha, beta))
    resets_after = kind == "gru" and site.flag("linear_before_reset")
    gate_order = "fico"  # the gates of an LSTM: forget, input, cell and output
    return Cell(kind, gate_order, activations, site.number("clip", 0), resets_after)


def _product(
    site: LayerSite, cell: Cell, state: Value, first_gate: int, end_gate: int, filters: Value,
    reset_bias: Value | float,
) -> Value:  # fmt: skip
    """Multiply a state by the filters of the gates `first_gate` to `end_gate - 1`.

    The state has shape (batch, hidden). `filters` has shape (gates * hidden, hidden) and contains
    the filters of all gates. If a GRU applies its reset gate to the product of its last gate,
    `reset_bias` is added to this product. For all other cells, `reset_bias` is 0.
    """
    hidden = state.type.shape[-1]
    if end_gate - first_gate < cell.gates:
        filters = site.part(filters, axis=0, first=first_gate * hidden, last=end_gate * hidden)
    # `first_gate` is 0, except for the separate product of a GRU's last gate.
    bias = 0.0 if first_gate == 0 else reset_bias
    return site.step.linear(state, filters, bias)


def _biases(
    site: LayerSite, cell: Cell, bias: Tensor | None, hidden: int
) -> tuple[Tensor | float, Value | float]:
    """Split the bias of a cell into the bias of the input's product and the reset bias.

    The bias of the input's product has shape (1, gates * hidden). The reset bias has shape
    (1, hidden) for a GRU that applies its reset gate after the product with the state. For all
    other cells, the reset bias is 0, and `bias` belongs to the input's product.
    """
    no_bias = 0.0
    if bias is None:
        return no_bias, no_bias
    if not cell.resets_after:
        return bias, no_bias
    both_biases = site.tensor(bias)
    input_bias = site.part(both_biases, axis=1, first=0, last=3 * hidden)
    reset_bias = site.part(both_biases, axis=1, first=3 * hidden, last=4 * hidden)
    return input_bias, reset_bias


def _bias_row(site: LayerSite, i: int) -> Tensor | None:
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
    """Compute the next states of a cell. The layer stores the cell's weights.

    The inputs are x and the states.
    """
    states = [site.tensor(1 + i) for i in range(cell.states)]
    items = x.type.shape[-1]
    hidden = states[0].type.shape[-1]
    weights = _split_weights(site, cell, items, hidden)
    return _next(site, cell, x, states, *weights)


@opsets(*_CELLS, cell=_cell_of)
def _cell(site: LayerSite, x: Value, *, cell: Cell) -> list[Value]:
    """Compute the next states of a cell.

    The inputs are x, the states, the filter of the input, the filter of the state, and the bias.
    """
    filter_input = 1 + cell.states
    states = [site.tensor(i) for i in range(1, filter_input)]
    filters = site.tensor(filter_input), site.tensor(filter_input + 1)
    return _next(site, cell, x, states, *filters, _bias_row(site, filter_input + 2))


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

    `x` is the input at the time step, and `states` are the states before the time step. `w` is the
    filter of the input, and `r` is the filter of the state.
    """
    hidden = states[0].type.shape[-1]
    input_bias, reset_bias = _biases(site, cell, bias, hidden)

    def state_product(state: Value, first_gate: int, end_gate: int) -> Value:
        return _product(site, cell, state, first_gate, end_gate, r, reset_bias)

    input_product = site.step.linear(x, w, input_bias)
    return cell.next(site, input_product, states, state_product)


def _split_weights(
    site: LayerSite, cell: Cell, items: int, hidden: int
) -> tuple[Value, Value, Constant | None]:
    """Split the stored weights of a layer. Return w, r and the bias.

    w is the filter of the input, of shape (gates * hidden, items), and r is the filter of the
    state, of shape (gates * hidden, hidden). `items` is the number of items of the input at a time
    step. The bias is None if the layer stores no bias.
    """
    stored = site.required_weights("weights", (cell.gates * hidden, items + hidden))
    bias_count = cell.gates
    if cell.resets_after:
        bias_count += 1  # the reset bias
    bias = site.blob("biases", (1, bias_count * hidden))
    both_filters = site.tensor(stored)
    w = site.part(both_filters, axis=1, first=0, last=items)
    r = site.part(both_filters, axis=1, first=items, last=items + hidden)
    return w, r, bias


def _run(
    site: LayerSite, cell: Cell, x: Value, states: Sequence[Value], w: Value, r: Value,
    bias: Tensor | None, mask: Value | None, *, reverse: bool,
) -> list[Value]:  # fmt: skip
    """Run a cell over a sequence. Return the outputs of all time steps and the last states.

    The sequence `x` has shape (batch, time, items). The outputs have shape (batch, time, hidden).
    `w` is the filter of the input, and `r` is the filter of the state. `mask` is true for the time
    steps within each sequence. At all other time steps the states stay as they are. If `reverse`,
    the sequence is read from the end.
    """
    if len(w.type.shape) == 2:
        w = site.unsqueezed(w, (0,))  # shape (1, gates * hidden, items)
    hidden = states[0].type.shape[-1]
    input_bias, reset_bias = _biases(site, cell, bias, hidden)
    # The products of the input for all time steps have shape (batch, time, gates * hidden).
    products = site.step.matmul(x, w, transposeA=False, transposeB=True)
    has_bias = not isinstance(input_bias, int | float)
    if has_bias:
        products = site.step.add(products, site.unsqueezed(input_bias, (0,)))

    def state_product(body: RepeatedBody, state: Value, first_gate: int, end_gate: int) -> Value:
        filters = body.outer_input(r)
        bias_in_body = body.outer_input(reset_bias)
        return _product(body.at, cell, state, first_gate, end_gate, filters, bias_in_body)

    return cell.run(site, products, states, state_product, mask, axis=1, reverse=reverse)


@opsets(*_SEQUENCES, cell=_cell_of)
def _sequence(
    site: LayerSite, x: Value, *, cell: Cell, direction: str = text("direction", "forward")
) -> list[Value]:
    """Run a cell over a sequence forward, backward or in both directions.

    The sequence `x` has shape (batch, time, items). The states have shape
    (batch, directions, hidden).
    """
    # The inputs are x, the states, the lengths, w, r and the biases.
    initial_states = [site.tensor(1 + i) for i in range(cell.states)]
    lengths_input = 1 + cell.states
    lengths = site.operand(lengths_input) if site.has(lengths_input) else None
    # w is the filter of the input, and r is the filter of the state.
    w, r, biases = [site.tensor(lengths_input + i) for i in (1, 2, 3)]
    reversals = _REVERSALS.get(direction)
    if reversals is None:
        raise InvalidOperation(f"there is no direction '{direction}'")
    mask = steps_within(site, x.type.shape[1], lengths, axis=1)
    results_by_direction: list[list[Value]] = []
    for i, reverse in enumerate(reversals):
        # All inputs except x and the lengths have an axis of directions.
        states = [_direction(site, state, i, axis=1) for state in initial_states]
        bias = site.unsqueezed(_direction(site, biases, i, axis=0), (0,))
        weights = _direction(site, w, i, axis=0), _direction(site, r, i, axis=0)
        results = _run(site, cell, x, states, *weights, bias, mask, reverse=reverse)
        results_by_direction.append([site.unsqueezed(result, (1,)) for result in results])
    if len(results_by_direction) == 1:
        return results_by_direction[0]
    joined_results: list[Value] = []
    for directions in zip(*results_by_direction, strict=True):
        joined_results.append(site.step.concat([*directions], axis=1))
    return joined_results


def _direction(site: LayerSite, value: Value, i: int, axis: int) -> Value:
    """Return the item for direction `i` along an axis of directions, without this axis.

    If the axis has a single item, the item serves all directions.
    """
    if value.type.shape[axis] != 1:
        value = site.part(value, axis=axis, first=i, last=i + 1)
    return site.step.squeeze(value, axes=(axis,))


@legacy(*_SEQUENCES, cell=_cell_of)
def _legacy_sequence(
    site: LayerSite,
    x: Value,
    *,
    cell: Cell,
    axis: int = integer("axis", 1),
    direction: str = word("direction", "forward", "backward", "reverse"),
) -> list[Value]:
    """Run a cell over the sequence `x` in one direction.

    `axis` is the time axis, 1 or 0. The direction "reverse" is another name for "backward".
    """
    states = [site.tensor(1 + i) for i in range(cell.states) if site.has(1 + i)]
    if axis == 0:
        x = site.transposed(x, (1, 0, 2))  # shape (batch, time, items)
    items = x.type.shape[-1]
    if states:
        hidden = states[0].type.shape[-1]
    else:
        hidden = site.int("hidden_size", 0)
        batch = x.type.shape[0]
        zeros = derived(np.zeros((batch, hidden), np.float32))
        states = [site.tensor(zeros)] * cell.states
    w, r, bias = _split_weights(site, cell, items, hidden)
    reverse = direction != "forward"
    no_mask = None  # all sequences have the full length
    outputs, *last_states = _run(site, cell, x, states, w, r, bias, no_mask, reverse=reverse)
    if axis == 0:
        outputs = site.transposed(outputs, (1, 0, 2))
    return [outputs, *last_states]
