"""Activation functions of registry tract_core."""

from __future__ import annotations

from tests.op_cases.case import Given, Real

from .rows import row

_KINK = "it has a kink at these values"
_WIDE = Real((2, 3, 4), -5.0, 5.0, avoid=(-3.0, 3.0))

CASES = (
    row("silu_far", "tract_core_silu", Given((-80.0, 80.0))),
    row("hard_swish_real", "tract_core_hard_swish", _WIDE),
    row(
        "hard_swish_at_kinks",
        "tract_core_hard_swish",
        Given((-3.0, 0.0, 3.0)),
        not_differentiable=_KINK,
    ),
    row("erf_real", "tract_core_erf", Real((2, 3, 4), -3.0, 3.0)),
    row("gelu_approx_real", "tract_core_gelu_approx", _WIDE),
    row("gelu_approx_far", "tract_core_gelu_approx", Given((-60.0, 60.0))),
    row("gelu_approx_fast", "tract_core_gelu_approx", _WIDE, fast_impl=True),
    row(
        "clamped_swiglu_real",
        "tract_core_clamped_swiglu",
        Real((2, 3), -4.0, 4.0, avoid=(2.0,)),
        Real((2, 3), -4.0, 4.0, avoid=(-2.0, 2.0)),
        alpha=1.702,
        limit=2.0,
    ),
    row(
        "clamped_swiglu_wide",
        "tract_core_clamped_swiglu",
        Real((2, 1, 3)),
        Real((2, 1, 3)),
        alpha=1.702,
        limit=7.0,
    ),
)
