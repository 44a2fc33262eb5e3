"""Cells and sequences with a state."""

from __future__ import annotations

from tests.op_cases.case import OpCase, Operand, Real

from .rows import case, row

_GRU = "gru_sequence"
_CONV = "causal_conv1d_update"
_DELTA = "gated_delta_rule"


def _gru(batch: int, length: int, items: int, hidden: int, bias: tuple[int, ...] = ()):
    operands: dict[str, Operand] = {
        "input": Real((batch, length, items)),
        "weight": Real((3 * hidden, items)),
        "recurrent_weight": Real((3 * hidden, hidden)),
    }
    if bias:
        operands["bias"] = Real(bias)
    return operands | {"initial_state": Real((batch, 1, hidden))}


def _conv(input: tuple[int, ...], weight: tuple[int, ...], state: tuple[int, ...]):
    return {"input": Real(input), "weight": Real(weight), "initial_state": Real(state)}


def _delta(batch: int, length: int, heads: int, groups: int, width: int):
    return {
        "query": Real((batch, length, heads, width)),
        "key": Real((batch, length, heads, width)),
        "value": Real((batch, length, groups, width)),
        "log_decay": Real((batch, length, groups), -2.0, 0.0),
        "beta": Real((batch, length, groups), 0.0, 1.0),
        "initial_state": Real((batch, groups, width, width)),
    }


CASES: tuple[OpCase, ...] = (
    row("lstm_epilogue", "lstm_pointwise", Real((2, 12), -3.0, 3.0), Real((2, 3))),
    row("lstm_epilogue_rank_3", "lstm_pointwise", Real((2, 1, 8), -3.0, 3.0), Real((2, 1, 2))),
    row("lstm_epilogue_saturated", "lstm_pointwise", Real((1, 4), 200.0, 300.0), Real((1, 1))),
    row(
        "gru_epilogue",
        "gru_pointwise",
        Real((2, 9), -3.0, 3.0),
        Real((2, 9), -3.0, 3.0),
        Real((2, 3)),
    ),
    row("gru_epilogue_rank_3", "gru_pointwise", Real((1, 2, 6)), Real((1, 2, 6)), Real((1, 2, 2))),
    case("gru_seq", _GRU, _gru(2, 4, 3, 2)),
    case("gru_seq_bias", _GRU, _gru(2, 3, 3, 2, (1, 12))),
    case("gru_seq_bias_rank_1", _GRU, _gru(1, 3, 2, 2, (12,))),
    case("gru_seq_backward", _GRU, _gru(2, 4, 3, 2, (1, 12)), reverse=True),
    row(
        "gru_seq_projected",
        "tract_core_gru_seq",
        Real((2, 3, 6)),
        Real((6, 6)),
        Real((6, 2)),
        Real((1, 12)),
        Real((2, 1, 2)),
        hidden=2,
        chunk=1,
        has_bias=1,
        projected=True,
        reset_every_turn=True,
    ),
    case("gru_seq_last_only", _GRU, _gru(2, 3, 3, 2), emit_states=False),
    case("gru_seq_one_step", _GRU, _gru(1, 1, 1, 1)),
    case("causal_conv1d", _CONV, _conv((1, 1, 5), (5, 4), (5, 4))),
    case("causal_conv1d_rank_1", _CONV, _conv((3,), (3, 4), (3, 4))),
    case("causal_conv1d_batch", _CONV, _conv((2, 3, 1), (2, 3, 4), (2, 3, 4))),
    case("causal_conv1d_one_channel", _CONV, _conv((1,), (4,), (4,))),
    case("causal_conv1d_scalar", _CONV, _conv((), (1, 1, 4), (2, 2))),
    case("causal_conv1d_flat_state", _CONV, _conv((2, 2), (4, 1, 4), (16,))),
    case("gated_delta", _DELTA, _delta(2, 3, 2, 2, 4)),
    case("gated_delta_one_step", _DELTA, _delta(1, 1, 1, 1, 3)),
    case("gated_delta_groups", _DELTA, _delta(1, 2, 2, 4, 2)),
)
