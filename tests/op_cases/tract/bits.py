"""Operations of tract on bits, tests for special numbers, casts."""

from __future__ import annotations

from tests.op_cases.case import Given, Integers, Logical, Real

from .rows import FEWER_BITS, INTEGERS, LOGICAL, TYPES, case, row, short

_I = Integers((2, 3, 4), -9, 10)
_BINARY = ("tract_core_bitand", "tract_core_bitor", "tract_core_bitxor")

_BITS = (
    *(
        case(f"{short(kind)}_integers", kind, {"x": _I, "y": Integers((2, 3), -9, 9)}, TYPES)
        for kind in _BINARY
    ),
    *(
        case(f"{short(kind)}_logical", kind, {"x": Logical((2, 3, 2)), "y": Logical((2,))}, TYPES)
        for kind in _BINARY
    ),
    row("xor", "tract_core_xor", Logical((2, 3, 2)), Logical((2,)), not_differentiable=LOGICAL),
    row("xor_numbers", "tract_core_xor", _I, Given((0.0, 0.5)), not_differentiable=LOGICAL),
    row("bitand_literal", "tract_core_bitand", _I, 6, not_differentiable=TYPES),
    row("bitnot_integers", "tract_core_bitnot", _I, not_differentiable=TYPES),
    row("bitnot_logical", "tract_core_bitnot", Logical((2, 3)), not_differentiable=TYPES),
    row("shl_literal", "tract_shl", _I, 3, not_differentiable=TYPES),
    row(
        "shl_trailing",
        "tract_shl",
        Integers((2,), -9, 9),
        Given(((0, 1, 5),) * 2),
        not_differentiable=TYPES,
    ),
    row(
        "shl_outside", "tract_shl", Given((3, -3, 3)), Given((32, -1, 99)), not_differentiable=TYPES
    ),
    row("shr_literal", "tract_shr", Integers((2, 6), -99, 99), 2, not_differentiable=TYPES),
    row(
        "shr_outside",
        "tract_shr",
        Given((3, -3, 3, -3, -3)),
        Given((32, 32, -1, -1, 31)),
        not_differentiable=TYPES,
    ),
)

_INF = float("inf")
_ODD = Given(((float("nan"), 0.0, _INF), (-_INF, 1.5, -2.0)))
_DETECTIONS = (
    row("is_nan", "tract_core_is_nan", _ODD, not_differentiable=LOGICAL),
    row("is_inf", "tract_core_is_inf", _ODD, not_differentiable=LOGICAL),
    row(
        "is_inf_above", "tract_core_is_inf", _ODD, not_differentiable=LOGICAL, detect_negative=False
    ),
    row(
        "is_inf_below", "tract_core_is_inf", _ODD, not_differentiable=LOGICAL, detect_positive=False
    ),
    row(
        "is_inf_neither",
        "tract_core_is_inf",
        _ODD,
        not_differentiable=LOGICAL,
        detect_positive=False,
        detect_negative=False,
    ),
)

_REALS = Given((-2.7, -1.0, -0.2, 0.0, 0.9, 1.0, 2.7))
_CASTS = (
    row("cast_f32_to_bool", "tract_core_cast", _REALS, not_differentiable=LOGICAL, to="bool"),
    *(
        row(f"cast_f32_to_{to}", "tract_core_cast", _REALS, not_differentiable=INTEGERS, to=to)
        for to in ("i8", "i32", "i64", "u8")
    ),
    *(
        row(f"cast_i32_to_{to}", "tract_core_cast", _I, not_differentiable=TYPES, to=to)
        for to in ("bool", "f16", "f32", "f64", "i64", "i16", "i32")
    ),
    *(
        row(
            f"cast_bool_to_{to}",
            "tract_core_cast",
            Logical((2, 3)),
            not_differentiable=TYPES,
            to=to,
        )
        for to in ("bool", "f32", "i64", "u8")
    ),
    *(row(f"cast_f32_to_{to}", "tract_core_cast", Real((2, 3, 4)), to=to) for to in ("f32", "f64")),
    row(
        "cast_f32_to_f16",
        "tract_core_cast",
        Real((2, 3, 4)),
        to="f16",
        not_differentiable=FEWER_BITS,
        tolerance=1e-3,
    ),
    row(
        "cast_beyond_f16",
        "tract_core_cast",
        Given((70000.0, -7e9, 64.0)),
        not_differentiable="it is constant there",
        to="f16",
    ),
    row(
        "cast_beyond_i32",
        "tract_core_cast",
        Given((3e9, -3e9, float("nan"), _INF, -_INF)),
        not_differentiable=INTEGERS,
        to="i32",
    ),
    row(
        "cast_beyond_u8",
        "tract_core_cast",
        Given((300.0, -4.0, float("nan"), 254.9)),
        not_differentiable=INTEGERS,
        to="u8",
    ),
    row(
        "cast_wraps_to_u8",
        "tract_core_cast",
        Given((300, -4, 77)),
        not_differentiable=TYPES,
        to="u8",
    ),
    row(
        "cast_wraps_to_i8",
        "tract_core_cast",
        Given((300, -4, 200)),
        not_differentiable=TYPES,
        to="i8",
    ),
    row("cast_rank0", "tract_core_cast", Given(3), not_differentiable=TYPES, to="f32"),
)

CASES = (*_BITS, *_DETECTIONS, *_CASTS)
