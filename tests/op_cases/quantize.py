"""Quantisation (spec 4.8.5, formulas of 1.0 final)."""

from __future__ import annotations

from .case import Given, Real, row

_ROUNDS = "it rounds"
_X = Real((2, 3, 4), -1.5, 1.5)
_LOW = Given(((-1.0, -0.5, 0.0),))
_HIGH = Given(((1.0, 0.75, 1.25),))

CASES = (
    row("linear_quantize", "linear_quantize", _X, -1.0, 1.0, bits=4, not_differentiable=_ROUNDS),
    row("linear_quantize_8", "linear_quantize", _X, -0.5, 1.25, bits=8, not_differentiable=_ROUNDS),
    row("linear_quantize_1", "linear_quantize", _X, 0.0, 1.0, bits=1, not_differentiable=_ROUNDS),
    row(
        "linear_quantize_channel",
        "linear_quantize",
        _X,
        _LOW,
        _HIGH,
        bits=5,
        not_differentiable=_ROUNDS,
    ),
    *(
        row(
            f"min_max_quantize_{name}",
            "min_max_linear_quantize",
            _X,
            -1.0,
            1.0,
            bits=5,
            signed=signed,
            symmetric=symmetric,
            not_differentiable=_ROUNDS,
        )
        for name, signed, symmetric in (
            ("unsigned", False, False),
            ("unsigned_symmetric", False, True),
            ("signed", True, False),
            ("signed_symmetric", True, True),
        )
    ),
    row(
        "min_max_quantize_channel",
        "min_max_linear_quantize",
        _X,
        _LOW,
        _HIGH,
        bits=8,
        signed=True,
        symmetric=False,
        not_differentiable=_ROUNDS,
    ),
    *(
        row(
            f"zero_point_quantize_{name}",
            "zero_point_linear_quantize",
            Real((2, 3, 4), -2.0, 2.0),
            zero_point,
            0.11,
            bits=4,
            signed=signed,
            symmetric=symmetric,
            not_differentiable=_ROUNDS,
        )
        for name, zero_point, signed, symmetric in (
            ("unsigned", 3, False, False),
            ("unsigned_symmetric", 3, False, True),
            ("signed", -2, True, False),
            ("signed_symmetric", -2, True, True),
        )
    ),
    row(
        "zero_point_quantize_8",
        "zero_point_linear_quantize",
        Real((2, 3, 4), -2.0, 2.0),
        128,
        0.013,
        bits=8,
        signed=False,
        symmetric=False,
        not_differentiable=_ROUNDS,
    ),
    row(
        "zero_point_quantize_channel",
        "zero_point_linear_quantize",
        Real((2, 3, 4), -2.0, 2.0),
        Given(((0, 1, -1),)),
        Given(((0.1, 0.2, 0.15),)),
        bits=5,
        signed=True,
        symmetric=False,
        not_differentiable=_ROUNDS,
    ),
    row(
        "logarithmic_quantize", "logarithmic_quantize", _X, 2.0, bits=3, not_differentiable=_ROUNDS
    ),
    row(
        "logarithmic_quantize_clamped",
        "logarithmic_quantize",
        Given((-9.0, -0.9, -0.01, 0.0, 0.01, 0.3, 0.9, 9.0)),
        1.5,
        bits=2,
        not_differentiable=_ROUNDS,
    ),
    row(
        "logarithmic_quantize_channel",
        "logarithmic_quantize",
        _X,
        Given(((0.4, 1.3, 5.0),)),
        bits=2,
        not_differentiable=_ROUNDS,
    ),
)
