"""Activation functions of registry tract_core."""

from __future__ import annotations

from tests.op_cases.case import Given, Real

from .rows import case

_KINK = "it has a kink at these values"
_WIDE = Real((2, 3, 4), -5.0, 5.0, avoid=(-3.0, 3.0))

CASES = (
    case("silu_real", "tract_core_silu", {"x": _WIDE}),
    case("silu_far", "tract_core_silu", {"x": Given((-80.0, 80.0))}),
    case("hard_swish_real", "tract_core_hard_swish", {"x": _WIDE}),
    case("hard_swish_at_kinks", "tract_core_hard_swish", {"x": Given((-3.0, 0.0, 3.0))}, _KINK),
    case("erf_real", "tract_core_erf", {"x": Real((2, 3, 4), -3.0, 3.0)}),
    case("gelu_approx_real", "tract_core_gelu_approx", {"input": _WIDE}),
    case("gelu_approx_far", "tract_core_gelu_approx", {"input": Given((-60.0, 60.0))}),
    case("gelu_approx_fast", "tract_core_gelu_approx", {"input": _WIDE}, fast_impl=True),
    case(
        "clamped_swiglu_real",
        "tract_core_clamped_swiglu",
        {
            "gate": Real((2, 3), -4.0, 4.0, avoid=(2.0,)),
            "up": Real((2, 3), -4.0, 4.0, avoid=(-2.0, 2.0)),
        },
        alpha=1.702,
        limit=2.0,
    ),
    case(
        "clamped_swiglu_wide",
        "tract_core_clamped_swiglu",
        {"gate": Real((2, 1, 3)), "up": Real((2, 1, 3))},
        alpha=1.702,
        limit=7.0,
    ),
)
