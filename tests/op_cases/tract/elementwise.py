"""Element-wise operations of tract: arithmetic on any numbers, comparison, selection."""

from __future__ import annotations

from tests.op_cases.case import Given, Integers, Logical, Real

from .rows import LOGICAL, TYPES, case, row, short

_JUMP = "it jumps at these values"
_KINK = "it has a kink at these values"

_X = Real((2, 3, 4))
_I = Integers((2, 3, 4), -9, 10)
_HALVES = Given((-2.5, -1.5, -0.5, 0.0, 0.5, 1.5, 2.5, 3.0))
_LARGE = Given((0.49999997, -0.50000006, 8388609.0, -8388609.0))

_ROUNDED = Real((2, 3, 4), -3.0, 3.0, avoid=(-2.5, -1.5, -0.5, 0.5, 1.5, 2.5))
_UNARY = (
    *("neg", "abs", "sign", "floor", "ceil", "round", "square", "sqr", "relu"),
    "tract_core_round_even",
)

_ONE_OPERAND = (
    row("round_real", "round", _ROUNDED),
    row("round_even_real", "tract_core_round_even", _ROUNDED),
    *(case(f"{short(kind)}_integers", kind, {"x": _I}, TYPES) for kind in _UNARY),
    row("recip_real", "recip", Real((2, 3), 0.3, 2.0)),
    row("recip_negative", "recip", Real((2, 3), -2.0, -0.3)),
    row("recip_scalar", "recip", Given(4.0)),
    row("neg_rank0", "neg", Real(())),
    row("sign_of_zero_integer", "sign", Given((-3, 0, 2)), not_differentiable=TYPES),
    row("round_halves", "round", _HALVES, not_differentiable=_JUMP),
    row("round_large", "round", _LARGE, not_differentiable=_JUMP),
    row("round_even_halves", "tract_core_round_even", _HALVES, not_differentiable=_JUMP),
    row("round_even_large", "tract_core_round_even", _LARGE, not_differentiable=_JUMP),
)

_ARITHMETIC = ("add", "sub", "mul", "div", "pow", "min", "max")
_LEFT = Given(((-7, 7, -7, 7), (0, 1, -1, 9)))
_RIGHT = Given(((2, 2, -2, -2), (5, 3, 3, 3)))

_TWO_OPERANDS = (
    *(
        case(f"{kind}_integers", kind, {"x": _LEFT, "y": _RIGHT}, TYPES)
        for kind in ("add", "sub", "mul", "div", "min", "max")
    ),
    *(case(f"{kind}_integer_and_literal", kind, {"x": _I, "y": 2}, TYPES) for kind in _ARITHMETIC),
    *(
        case(f"{kind}_literal_and_integer", kind, {"x": 7, "y": Integers((5,), 1, 9)}, TYPES)
        for kind in ("sub", "div", "min")
    ),
    *(
        case(f"{kind}_trailing", kind, {"x": _X, "y": Real((2, 3), 0.5, 2.0)})
        for kind in ("add", "sub", "mul", "div")
    ),
    *(
        case(f"{kind}_logical", kind, {"x": Logical((2, 3, 2)), "y": Logical((2, 3))}, TYPES)
        for kind in ("min", "max", "add", "mul")
    ),
    row("mul_integers_trailing", "mul", Integers((2,), -9, 9), _I, not_differentiable=TYPES),
    row("add_integers_rank0", "add", _I, Given(3), not_differentiable=TYPES),
    row(
        "div_by_zero_integer", "div", Given((-4, 0, 4)), Given((0, 0, 0)), not_differentiable=TYPES
    ),
    row("pow_square_at_zero", "pow", Given((-2.0, 0.0, 3.0)), 2.0),
    row("pow_cube_of_negative", "pow", Real((2, 3), -2.0, -0.5), 3.0),
    row("pow_inverse_of_negative", "pow", Real((2, 3), -2.0, -0.5), -1.0),
    row("pow_root", "pow", Real((2, 3), 0.2, 3.0), 0.5),
    row("pow_of_literal", "pow", 2.0, Real((2, 3), -2.0, 2.0)),
    row("pow_trailing", "pow", Real((2, 3), 0.3, 2.0), Real((2,), -2.0, 2.0)),
    row(
        "pow_integers",
        "pow",
        Given((3, -3, 0, 0, 2, 7)),
        Given((4, 3, 0, 5, 13, 1)),
        not_differentiable=TYPES,
    ),
    row(
        "pow_integers_below_zero",
        "pow",
        Given((1, -1, -1, 2, -3, 7)),
        Given((-3, -3, -2, -1, -2, -1)),
        not_differentiable=TYPES,
    ),
    row("pow_integers_literal_below_zero", "pow", Given((1, -1, 2)), -1, not_differentiable=TYPES),
    row("pow_const_real", "tract_core_pow_const", Real((2, 3), 0.3, 2.0), exponent=1.7),
    row("pow_const_whole", "tract_core_pow_const", Real((2, 3)), exponent=3.0),
)

_MIXED = Given(((-2.0, -0.5, 0.5), (0.2, 1.5, 3.0)))
_BOUNDS = {
    "clamp_literals": (Real((2, 3, 4), -2.0, 2.0, avoid=(-0.5, 1.0)), -0.5, 1.0),
    "clamp_trailing": (_X, Real((2,), -0.5, -0.4), Real((2, 3), 0.3, 0.5)),
    "clamp_crossed": (_MIXED, 1.0, -1.0),
}
_CLAMPS = (
    *(row(name, "clamp", x, a, b) for name, (x, a, b) in _BOUNDS.items()),
    row("clamp_at_bounds", "clamp", Given((-1.0, 0.0, 1.0)), -1.0, 1.0, not_differentiable=_KINK),
    row("clamp_integers", "clamp", _I, -3, 5, not_differentiable=TYPES),
)

_COMPARED = {
    "integers": (_LEFT, Given(((7,), (1,)))),
    "integer_literal": (Integers((2, 5), -2, 3), 0),
    "logical": (Logical((2, 3)), Logical((2,))),
    "trailing": (Given((0.5, 1.0)), Given(((0.5, 1.0, -1.0), (1.0, 1.0, 2.0)))),
}
_COMPARISONS = tuple(
    case(f"{kind}_{name}", kind, {"x": x, "y": y}, LOGICAL)
    for kind in ("lt", "gt", "le", "ge", "eq", "ne")
    for name, (x, y) in _COMPARED.items()
)

_SELECTIONS = (
    row("select_integers", "select", Logical((2,)), _I, 7, not_differentiable=TYPES),
    row(
        "select_logical",
        "select",
        Logical((2, 3)),
        Logical((2,)),
        Logical((2, 3, 2)),
        not_differentiable=TYPES,
    ),
    row("select_trailing", "select", Logical((2, 3)), Real((2,)), _X),
)

CASES = (*_ONE_OPERAND, *_TWO_OPERANDS, *_CLAMPS, *_COMPARISONS, *_SELECTIONS)
