"""Fourier transforms, complex numbers, exponential averages."""

from __future__ import annotations

from tests.op_cases.case import OpCase, Real

from .rows import case, row

_FFT = "fft"
_STFT = "stft"
_UNIT = "tract.exp_unit_norm"
_MEAN = "tract.exp_mean_norm"

_SIGNAL = {"input": Real((2, 9, 2, 2))}
_X = Real((2, 5, 3), avoid=(0.0,))
_STATE = Real((2, 3), 0.2, 1.0)
_PAIRS = {"input": Real((2, 5, 3, 2)), "state": _STATE}

# `tract_core_complex_to_inner_dim` has no row: no document takes complex numbers from outside.
CASES: tuple[OpCase, ...] = (
    row(
        "inner_dim_to_complex",
        "pairs_to_complex",
        Real((2, 3, 2)),
        not_differentiable="its results are complex",
    ),
    case("fft", _FFT, {"input": Real((2, 5, 3, 2))}, axis=1, inverse=False),
    case("fft_first_axis", _FFT, {"input": Real((4, 2))}, axis=0, inverse=False),
    case("fft_negative_axis", _FFT, {"input": Real((2, 4, 2))}, axis=-2),
    case("fft_inverse", _FFT, {"input": Real((2, 5, 3, 2))}, axis=1, inverse=True),
    case("fft_one", _FFT, {"input": Real((3, 1, 2))}, axis=1, inverse=True),
    case("stft", _STFT, _SIGNAL, axis=1, frame_length=4, frame_step=2),
    case("stft_negative_axis", _STFT, _SIGNAL, axis=-3, frame_length=3, frame_step=3),
    case("stft_first_axis", _STFT, {"input": Real((7, 2))}, axis=0, frame_length=4, frame_step=1),
    case("stft_one_frame", _STFT, {"input": Real((2, 4, 2))}, axis=1, frame_length=4, frame_step=9),
    case(
        "stft_window", _STFT, _SIGNAL | {"window": Real((4,))}, axis=1, frame_length=4, frame_step=3
    ),
    case(
        "stft_short_window",
        _STFT,
        _SIGNAL | {"window": Real((3,))},
        axis=1,
        frame_length=6,
        frame_step=2,
    ),
    case(
        "stft_window_rank_2",
        _STFT,
        _SIGNAL | {"window": Real((1, 2))},
        axis=1,
        frame_length=4,
        frame_step=5,
    ),
    case("exp_unit_norm", _UNIT, {"input": _X, "state": _STATE}, axis=1, alpha=0.9),
    case(
        "exp_unit_norm_skip",
        "tract_extra_exp_unit_norm",
        {"input": _X, "state": _STATE},
        axis=-2,
        alpha=0.6,
        skip=2,
        stateless=True,
    ),
    case(
        "exp_unit_norm_skip_all", _UNIT, {"input": _X, "state": _STATE}, axis=1, alpha=0.6, skip=9
    ),
    case(
        "exp_unit_norm_first_axis",
        _UNIT,
        {"input": Real((4,), avoid=(0.0,)), "state": Real((), 0.2, 1.0)},
        axis=0,
        alpha=0.5,
    ),
    case(
        "exp_unit_norm_epsilon",
        _UNIT,
        {"input": Real((2, 5, 3), avoid=(-0.4, 0.0, 0.4)), "state": _STATE},
        axis=1,
        alpha=0.5,
        epsilon=0.4,
    ),
    case("exp_unit_norm_pairs", _UNIT, _PAIRS, axis=1, alpha=0.9, complex=True),
    case(
        "exp_unit_norm_pairs_epsilon", _UNIT, _PAIRS, axis=1, alpha=0.5, complex=True, epsilon=0.5
    ),
    case(
        "exp_unit_norm_pairs_zero_state",
        _UNIT,
        {"input": Real((3, 4, 2), 0.2, 1.0), "state": Real((3,), 0.0, 0.01)},
        axis=-2,
        alpha=0.9,
        complex=True,
    ),
    case(
        "exp_mean_norm",
        _MEAN,
        {"input": Real((2, 5, 3)), "state": Real((2, 3))},
        axis=1,
        alpha=0.9,
        scaling_factor=40.0,
    ),
    case(
        "exp_mean_norm_skip",
        _MEAN,
        {"input": Real((2, 5, 3)), "state": Real((2, 5))},
        axis=-1,
        alpha=0.7,
        skip=1,
    ),
    case(
        "exp_mean_norm_defaults",
        _MEAN,
        {"input": Real((6, 2)), "state": Real((2,))},
        axis=0,
        alpha=0.99,
    ),
)
