"""Operations of tract on bits, tests for special numbers, casts."""

from __future__ import annotations

from tests.op_cases.case import Given, Integers, Logical, OpCase, Real

from .rows import FEWER_BITS, INTEGERS, LOGICAL, TYPES, case, short

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
    case("xor", "tract_core_xor", {"x": Logical((2, 3, 2)), "y": Logical((2,))}, LOGICAL),
    case("xor_numbers", "tract_core_xor", {"x": _I, "y": Given((0.0, 0.5))}, LOGICAL),
    case("bitand_literal", "tract_core_bitand", {"x": _I, "y": 6}, TYPES),
    case("bitnot_integers", "tract_core_bitnot", {"x": _I}, TYPES),
    case("bitnot_logical", "tract_core_bitnot", {"x": Logical((2, 3))}, TYPES),
    case("shl_literal", "tract_shl", {"x": _I, "y": 3}, TYPES),
    case(
        "shl_trailing",
        "tract_shl",
        {"x": Integers((2,), -9, 9), "y": Given(((0, 1, 5),) * 2)},
        TYPES,
    ),
    case("shl_outside", "tract_shl", {"x": Given((3, -3, 3)), "y": Given((32, -1, 99))}, TYPES),
    case("shr_literal", "tract_shr", {"x": Integers((2, 6), -99, 99), "y": 2}, TYPES),
    case(
        "shr_outside",
        "tract_shr",
        {"x": Given((3, -3, 3, -3, -3)), "y": Given((32, 32, -1, -1, 31))},
        TYPES,
    ),
)

_INF = float("inf")
_ODD = Given(((float("nan"), 0.0, _INF), (-_INF, 1.5, -2.0)))
_DETECTIONS = (
    case("is_nan", "tract_core_is_nan", {"x": _ODD}, LOGICAL),
    case("is_inf", "tract_core_is_inf", {"input": _ODD}, LOGICAL),
    case("is_inf_above", "tract_core_is_inf", {"input": _ODD}, LOGICAL, detect_negative=False),
    case("is_inf_below", "tract_core_is_inf", {"input": _ODD}, LOGICAL, detect_positive=False),
    case(
        "is_inf_neither",
        "tract_core_is_inf",
        {"input": _ODD},
        LOGICAL,
        detect_positive=False,
        detect_negative=False,
    ),
)

_REALS = Given((-2.7, -1.0, -0.2, 0.0, 0.9, 1.0, 2.7))
_CASTS = (
    case("cast_f32_to_bool", "tract_core_cast", {"input": _REALS}, LOGICAL, to="bool"),
    *(
        case(f"cast_f32_to_{to}", "tract_core_cast", {"input": _REALS}, INTEGERS, to=to)
        for to in ("i8", "i32", "i64", "u8")
    ),
    *(
        case(f"cast_i32_to_{to}", "tract_core_cast", {"input": _I}, TYPES, to=to)
        for to in ("bool", "f16", "f32", "f64", "i64", "i16", "i32")
    ),
    *(
        case(f"cast_bool_to_{to}", "tract_core_cast", {"input": Logical((2, 3))}, TYPES, to=to)
        for to in ("bool", "f32", "i64", "u8")
    ),
    *(
        case(f"cast_f32_to_{to}", "tract_core_cast", {"input": Real((2, 3, 4))}, to=to)
        for to in ("f32", "f64")
    ),
    OpCase(
        "cast_f32_to_f16",
        "tract_core_cast",
        {"input": Real((2, 3, 4))},
        {"to": "f16"},
        not_differentiable=FEWER_BITS,
        tolerance=1e-3,
    ),
    case(
        "cast_beyond_f16",
        "tract_core_cast",
        {"input": Given((70000.0, -7e9, 64.0))},
        "it is constant there",
        to="f16",
    ),
    case(
        "cast_beyond_i32",
        "tract_core_cast",
        {"input": Given((3e9, -3e9, float("nan"), _INF, -_INF))},
        INTEGERS,
        to="i32",
    ),
    case(
        "cast_beyond_u8",
        "tract_core_cast",
        {"input": Given((300.0, -4.0, float("nan"), 254.9))},
        INTEGERS,
        to="u8",
    ),
    case("cast_wraps_to_u8", "tract_core_cast", {"input": Given((300, -4, 77))}, TYPES, to="u8"),
    case("cast_wraps_to_i8", "tract_core_cast", {"input": Given((300, -4, 200))}, TYPES, to="i8"),
    case("cast_rank0", "tract_core_cast", {"input": Given(3)}, TYPES, to="f32"),
)

CASES = (*_BITS, *_DETECTIONS, *_CASTS)
