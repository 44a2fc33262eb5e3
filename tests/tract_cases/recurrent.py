"""Cells and sequences with a state."""

from __future__ import annotations

from tests.op_cases.case import OpCase, Operand, Real

from .rows import case

_GRU = "tract_core_gru_seq"
_CONV = "tract_transformers_causal_conv1d_update"
_DELTA = "tract_transformers_gdn_recurrent"


def _gru(batch: int, length: int, items: int, hidden: int, bias: tuple[int, ...] = ()):
    operands: dict[str, Operand] = {
        "x": Real((batch, length, items)),
        "w": Real((3 * hidden, items)),
        "r": Real((3 * hidden, hidden)),
    }
    if bias:
        operands["b"] = Real(bias)
    return operands | {"initial_h": Real((batch, 1, hidden))}


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
    case(
        "lstm_epilogue",
        "tract_core_lstm_epilogue",
        {"preact": Real((2, 12), -3.0, 3.0), "c_prev": Real((2, 3))},
        hidden=3,
    ),
    case(
        "lstm_epilogue_rank_3",
        "tract_core_lstm_epilogue",
        {"preact": Real((2, 1, 8), -3.0, 3.0), "c_prev": Real((2, 1, 2))},
        hidden=2,
    ),
    case(
        "lstm_epilogue_saturated",
        "tract_core_lstm_epilogue",
        {"preact": Real((1, 4), 200.0, 300.0), "c_prev": Real((1, 1))},
        hidden=1,
    ),
    case(
        "gru_epilogue",
        "tract_core_gru_epilogue",
        {"xh": Real((2, 9), -3.0, 3.0), "rh": Real((2, 9), -3.0, 3.0), "h_prev": Real((2, 3))},
        hidden=3,
    ),
    case(
        "gru_epilogue_rank_3",
        "tract_core_gru_epilogue",
        {"xh": Real((1, 2, 6)), "rh": Real((1, 2, 6)), "h_prev": Real((1, 2, 2))},
        hidden=2,
    ),
    case("gru_seq", _GRU, _gru(2, 4, 3, 2), hidden=2, chunk=1),
    case("gru_seq_bias", _GRU, _gru(2, 3, 3, 2, (1, 12)), hidden=2, chunk=1, has_bias=True),
    case("gru_seq_bias_rank_1", _GRU, _gru(1, 3, 2, 2, (12,)), hidden=2, chunk=1, has_bias=1),
    case("gru_seq_backward", _GRU, _gru(2, 4, 3, 2, (1, 12)), hidden=2, chunk=-1, has_bias=True),
    case(
        "gru_seq_projected",
        _GRU,
        _gru(2, 3, 6, 2, (1, 12)),
        hidden=2,
        chunk=1,
        has_bias=True,
        projected=True,
    ),
    case(
        "gru_seq_last_only",
        _GRU,
        _gru(2, 3, 3, 2),
        hidden=2,
        chunk=1,
        emit_y=False,
        reset_every_turn=True,
    ),
    case("gru_seq_one_step", _GRU, _gru(1, 1, 1, 1), hidden=1, chunk=1),
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
