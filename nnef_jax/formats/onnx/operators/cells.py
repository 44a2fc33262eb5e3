"""Functions for the recurrent layers RNN, LSTM and GRU, which become scans over time steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import show
from lowering.graph import Value
from nnef_jax.flattening.operators.attributes import flag, number, numbers, word
from nnef_jax.flattening.recurrent_cells import (
    DEFAULTS,
    PARAMETERS,
    Activation,
    Cell,
    activation,
    steps_within,
)
from nnef_jax.flattening.repetition import RepeatedBody
from nnef_jax.flattening.site import Tensor
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.products import dynamic_product
from nnef_jax.formats.onnx.operators.quantizers import is_zero
from nnef_jax.formats.onnx.operators.registry import operator

# The weights of a layer: a tensor of shape (gates * hidden, items). Quantised weights are a tuple:
# the levels of shape (items, gates * hidden), the scale and the zero point.
_Weights = Tensor | tuple[Tensor, Tensor, Tensor | None]
_FIRST_STATE = 5  # the index of the input with the first state of a layer
# Maps each value of the attribute `direction` to a list with an item for each direction of the
# layer. The item is True if the direction reads the sequence backward.
_DIRECTIONS = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
_ATTRIBUTES: dict[str, Any] = {
    "direction": word("direction", *_DIRECTIONS),
    "alphas": numbers("activation_alpha", ()),
    "betas": numbers("activation_beta", ()),
    "clip": number("clip", 0),
}


def _activations(
    site: NodeSite, kind: str, direction_count: int, alphas: Sequence[float], betas: Sequence[float]
) -> list[Activation]:
    """Return the activations of all directions, one direction after the other.

    `kind` is "rnn", "lstm" or "gru". `alphas` has a number for each activation with a parameter
    alpha, and `betas` for each activation with a parameter beta. The last numbers of both may be
    missing. The last activations then get default parameters.
    """
    default_names = DEFAULTS[kind] * direction_count
    names = site.attribute("activations", tuple, default_names)
    if len(names) != len(default_names):
        raise InvalidOperation(f"it has {len(names)} activations for {direction_count} directions")
    next_alphas = iter(alphas)
    next_betas = iter(betas)
    activations: list[Activation] = []
    for name in map(str.lower, names):
        default_alpha, default_beta = PARAMETERS.get(name, (None, None))
        has_alpha = default_alpha is not None
        has_beta = default_beta is not None
        alpha = next(next_alphas, None) if has_alpha else None
        beta = next(next_betas, None) if has_beta else None
        activations.append(activation(name, alpha, beta))
    return activations


def _product(site: NodeSite, x: Tensor, weights: _Weights, bias: Tensor | None = None) -> Any:
    """Multiply x of shape (..., items) by weights, and add the bias if there is one.

    `weights` is a tensor of shape (outputs, items). Quantised weights are a tuple: the levels, the
    scale and the zero point.
    """
    if isinstance(weights, tuple):
        levels, scale, zero_point = weights
        result = dynamic_product(site, x, levels, scale, zero_point)
    else:
        # The matrices of a product must have the same rank.
        matrix, weight_matrix = site.aligned(site.tensor(x), site.tensor(weights))
        result = site.product(matrix, weight_matrix, flips=True)
    return result if bias is None else site.step.add(result, bias)


def _layer(
    site: NodeSite, kind: str, *, direction: str, alphas: Sequence[float], betas: Sequence[float],
    batch_first: bool = False, is_quantized: bool = False, **fields: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Run a recurrent layer forward, backward or in both directions.

    Return the outputs of all time steps, then the last states.

    Args:
        site: the node of the layer.
        kind: "rnn", "lstm" or "gru".
        direction: "forward", "reverse" or "bidirectional".
        alphas: the parameters alpha of activations.
        betas: the parameters beta of activations.
        batch_first: whether the first axis of the input is the batch, not time.
        is_quantized: whether the weights are quantised.
        fields: the remaining fields of the `Cell`, by name.
    """
    reversals = _DIRECTIONS[direction]
    x = site.tensor(0)
    if batch_first:  # to (time, batch, items)
        x = site.transposed(x, (1, 0, 2))
    hidden = _hidden_size(site, is_quantized=is_quantized)
    if site.shape(1)[0] != len(reversals):
        raise InvalidShape(f"it has {len(reversals)} directions, input 1 is {show(site.shape(1))}")
    activations = _activations(site, kind, len(reversals), alphas, betas)
    activation_count = len(DEFAULTS[kind])
    weights_of_direction = _levels if is_quantized else _of_direction
    outputs: list[Any] = []  # for each direction, the outputs of all time steps
    states_by_direction: list[list[Any]] = []
    for index, reverse in enumerate(reversals):
        first = index * activation_count
        cell_activations = activations[first : first + activation_count]
        # "iofc" is the order in which ONNX stores the gates of an LSTM.
        cell = Cell(kind, "iofc", cell_activations, **fields)
        states = _first_states(site, cell, x, hidden, index, batch_first=batch_first)
        input_weights = weights_of_direction(site, 1, index)
        state_weights = weights_of_direction(site, 2, index)
        weights = (input_weights, state_weights)
        output, *last_states = _run_cell(site, cell, x, states, weights, index, reverse=reverse)
        outputs.append(output)
        states_by_direction.append(last_states)
    # An output has shape (time, batch, hidden), and a state has shape (batch, hidden).
    stacked_output = site.step.stack(outputs, axis=1)
    stacked_states: list[Any] = []
    for state_of_directions in zip(*states_by_direction, strict=True):
        stacked_states.append(site.step.stack([*state_of_directions], axis=0))
    if batch_first:  # to (batch, time, directions, hidden) and (batch, directions, hidden)
        stacked_output = site.transposed(stacked_output, (2, 0, 1, 3))
        stacked_states = [site.transposed(state, (1, 0, 2)) for state in stacked_states]
    return (stacked_output, *stacked_states)


def _hidden_size(site: NodeSite, *, is_quantized: bool) -> int:
    """Return the number of items of a state.

    Raises InvalidOperation if the attribute `hidden_size` differs from this number.
    """
    # The weights of the state have shape (directions, gates * hidden, hidden), and quantised
    # weights have shape (directions, hidden, gates * hidden).
    hidden_axis = 1 if is_quantized else 2
    hidden = site.shape(2)[hidden_axis]
    if site.int("hidden_size", hidden) != hidden:
        raise InvalidOperation(f"'hidden_size' must be {hidden}, as in the shape of input 2")
    return hidden


def _first_states(
    site: NodeSite, cell: Cell, x: Value, hidden: int, direction: int, *, batch_first: bool
) -> list[Tensor]:
    """Return the states of a direction before the first time step.

    Each state has shape (batch, hidden). x has shape (time, batch, items), and `direction` is the
    index of the direction. The node's input for a state has shape (directions, batch, hidden), or
    (batch, directions, hidden) if `batch_first`. If the input is left out, the state is 0.
    """
    axis_of_directions = 1 if batch_first else 0
    states: list[Tensor] = []
    for i in range(_FIRST_STATE, _FIRST_STATE + cell.states):
        if site.has(i):
            states.append(_of_direction(site, i, direction, axis_of_directions))
        else:
            shape = (site.extent(x, 1), hidden)
            states.append(site.filled(0, x.type.dtype, shape))
    return states


def _of_direction(site: NodeSite, i: int, direction: int, axis: int = 0) -> Any:
    """Return the part of input `i` for the direction with the index `direction`.

    `axis` is the axis of directions in the input. The result does not have this axis.
    """
    part = site.part(site.tensor(i), axis, first=direction, last=direction + 1)
    return site.squeezed(part, axis)


def _levels(site: NodeSite, i: int, direction: int) -> tuple[Any, Any, Any]:
    """Return the quantised weights of a direction: their levels, scale and zero point.

    The weights are in input `i`, which is 1 or 2. `direction` is the index of the direction. The
    zero point is None if it is 0.
    """
    # Inputs 8 and 9 are the scale and the zero point of input 1. Inputs 10 and 11 are the scale and
    # the zero point of input 2.
    scale_input = 2 * i + 6
    zero_input = scale_input + 1
    zero_point = None
    if not is_zero(site.optional(zero_input)):
        zero_point = _of_direction(site, zero_input, direction)
    levels = _of_direction(site, i, direction)
    scale = _of_direction(site, scale_input, direction)
    return levels, scale, zero_point


def _run_cell(
    site: NodeSite, cell: Cell, x: Value, states: Sequence[Tensor],
    weights: tuple[_Weights, _Weights], direction: int, *, reverse: bool,
) -> list[Any]:  # fmt: skip
    """Run a cell over the time steps of a sequence; return the outputs and the last states.

    `x` has shape (time, batch, items), and the outputs have shape (time, batch, hidden). `states`
    are the states before the first time step. `weights` has the weights of the input, then the
    weights of the state. `direction` is the index of the direction. If `reverse`, the sequence is
    read from the end.
    """
    hidden = site.shape(states[0])[-1]
    input_weights, state_weights = weights
    bias, candidate_bias = _biases(site, cell, hidden, direction)
    peepholes = _peepholes(site, direction) if cell.kind == "lstm" else {}

    def product(body: RepeatedBody, state: Tensor, first: int, last: int) -> Any:
        """Multiply the state by the weights of the gates `first` to `last` - 1.

        `body` is the body of the scan over time steps, and `state` is a tensor of this body.
        """
        if isinstance(state_weights, tuple):
            gate_weights = tuple(map(body.outer_input, state_weights))
        else:
            gate_weights = body.outer_input(state_weights)
        takes_all_gates = last - first == cell.gates
        if not takes_all_gates:
            # The weights have `hidden` rows for each gate.
            gate_weights = body.at.part(
                gate_weights, axis=0, first=first * hidden, last=last * hidden
            )
        # A product that does not begin with the first gate is for the candidate of a GRU.
        is_candidate = first > 0
        gate_bias = body.outer_input(candidate_bias) if is_candidate else None
        return _product(body.at, state, gate_weights, gate_bias)

    products = _product(site, x, input_weights, bias)
    mask = None
    if site.has(4):  # the lengths of the sequences
        time = site.extent(x, 0)
        mask = steps_within(site, time, lengths=site.operand(4), axis=0)
    return cell.run(site, products, states, product, mask, peepholes, axis=0, reverse=reverse)


def _biases(site: NodeSite, cell: Cell, hidden: int, direction: int) -> tuple[Any, Any]:
    """Return the bias of the product with the input, and the bias of a GRU's candidate.

    Input 3 has the bias of the input, then the bias of the state. Usually their sum is the first
    result, and the second result is None.

    A GRU is an exception if it applies its reset gate after the product with the state. Then the
    reset gate also multiplies the candidate's part of the state's bias. Therefore this part is not
    in the sum. It is the second result.

    Both results are None if input 3 is left out.
    """
    if not site.has(3):
        return None, None
    items = hidden * cell.gates
    biases = _of_direction(site, 3, direction)  # of shape (2 * items,)
    input_bias = site.part(biases, axis=0, first=0, last=items)
    state_bias = site.part(biases, axis=0, first=items, last=2 * items)
    candidate_bias = None
    if cell.kind == "gru" and cell.resets_after:
        # The bias of the state has `hidden` items for each of the two gates, then `hidden` items
        # for the candidate. Zeros replace the items for the candidate.
        gates_end = 2 * hidden
        candidate_bias = site.part(state_bias, axis=0, first=gates_end, last=items)
        state_bias = site.part(state_bias, axis=0, first=0, last=gates_end)
        state_bias = site.cut_or_padded(state_bias, axis=0, size=items)
    return site.step.add(input_bias, state_bias), candidate_bias


def _peepholes(site: NodeSite, direction: int) -> dict[str, Any]:
    """Return the peephole weights of an LSTM. The keys are the letters of the gates: i, o and f.

    The weights of a gate have shape (1, hidden). The result is empty if input 7 is left out.
    """
    if not site.has(7):
        return {}
    all_peepholes = _of_direction(site, 7, direction)  # of shape (3 * hidden,)
    parts = site.step.split(all_peepholes, axis=0, ratios=(1, 1, 1))
    peepholes: dict[str, Any] = {}
    for letter, part in zip("iof", parts, strict=True):
        peepholes[letter] = site.unsqueezed(part, (0,))
    return peepholes


_LAYOUT = flag("layout")
_RESET = flag("linear_before_reset")
_COUPLED = flag("input_forget")
operator("RNN", batch_first=_LAYOUT, **_ATTRIBUTES)(
    lambda site, **attributes: _layer(site, "rnn", **attributes)
)
operator("GRU", batch_first=_LAYOUT, resets_after=_RESET, **_ATTRIBUTES)(
    lambda site, **attributes: _layer(site, "gru", **attributes)
)
operator("LSTM", batch_first=_LAYOUT, couples=_COUPLED, **_ATTRIBUTES)(
    lambda site, **attributes: _layer(site, "lstm", **attributes)
)
operator("DynamicQuantizeLSTM", domain="com.microsoft", couples=_COUPLED, **_ATTRIBUTES)(
    lambda site, **attributes: _layer(site, "lstm", is_quantized=True, **attributes)
)
