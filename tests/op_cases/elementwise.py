"""Element-wise operations (spec 4.2, 4.8.6)."""

from __future__ import annotations

from .case import Given, Integers, Logical, Real, row

_LOGICAL = "its results are logical values"
_TYPES = "it holds no reals"
_JUMP = "it jumps at these values"
_KINK = "it has a kink at these values"

# Where each function is defined and its float32 value is well conditioned.
_RANGES = {
    "copy": Real((2, 3, 4)),
    "neg": Real((2, 3, 4)),
    "rcp": Real((2, 3, 4), -2.0, -0.3),
    "exp": Real((2, 3, 4), -3.0, 3.0),
    "log": Real((2, 3, 4), 0.1, 5.0),
    "sin": Real((2, 3, 4), -4.0, 4.0),
    "cos": Real((2, 3, 4), -4.0, 4.0),
    "tan": Real((2, 3, 4), -1.2, 1.2),
    "sinh": Real((2, 3, 4), -3.0, 3.0),
    "cosh": Real((2, 3, 4), -3.0, 3.0),
    "tanh": Real((2, 3, 4), -3.0, 3.0),
    "asin": Real((2, 3, 4), -0.9, 0.9),
    "acos": Real((2, 3, 4), -0.9, 0.9),
    "atan": Real((2, 3, 4), -4.0, 4.0),
    "asinh": Real((2, 3, 4), -4.0, 4.0),
    "acosh": Real((2, 3, 4), 1.2, 5.0),
    "atanh": Real((2, 3, 4), -0.9, 0.9),
    "abs": Real((2, 3, 4), avoid=(0.0,)),
    "sign": Real((2, 3, 4), avoid=(0.0,)),
    "floor": Real((2, 3, 4), -3.0, 3.0, avoid=(-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0)),
    "ceil": Real((2, 3, 4), -3.0, 3.0, avoid=(-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0)),
    "round": Real((2, 3, 4), -3.0, 3.0, avoid=(-2.5, -1.5, -0.5, 0.5, 1.5, 2.5)),
    "sqr": Real((2, 3, 4), -2.0, 2.0),
    "sqrt": Real((2, 3, 4), 0.1, 5.0),
    "rsqr": Real((2, 3, 4), 0.5, 3.0),
    "rsqrt": Real((2, 3, 4), 0.1, 5.0),
    "log2": Real((2, 3, 4), 0.1, 5.0),
}

_ARITHMETIC = {
    "add": (Real((2, 3, 4)), Real((2, 3, 4))),
    "sub": (Real((2, 3, 4)), Real((2, 3, 4))),
    "mul": (Real((2, 3, 4)), Real((2, 3, 4))),
    "div": (Real((2, 3, 4)), Real((2, 3, 4), 0.5, 2.0)),
    "pow": (Real((2, 3, 4), 0.3, 2.0), Real((2, 3, 4), -2.0, 2.0)),
    "min": (Real((2, 3, 4), distinct=True), Real((2, 3, 4))),
    "max": (Real((2, 3, 4), distinct=True), Real((2, 3, 4))),
}

_LEFT = Given(((-1.0, 0.0, 2.5, 3.0), (1.0, 1.0, -2.0, 0.5)))
_RIGHT = Given(((-1.0, 1.0, 2.0, 3.0), (0.0, 1.0, -2.0, 4.0)))
_TRUTH = Given(((True, True, False, False), (False, True, True, False)))
_OTHER = Given(((True, False, True, False), (False, False, True, True)))

CASES = (
    *(row(kind, kind, x) for kind, x in _RANGES.items()),
    *(row(kind, kind, x, y) for kind, (x, y) in _ARITHMETIC.items()),
    *(
        row(f"{kind}_same", kind, _LEFT, _RIGHT, not_differentiable=_LOGICAL)
        for kind in ("lt", "gt", "le", "ge", "eq", "ne")
    ),
    *(
        row(f"{kind}_literal", kind, _LEFT, 1.0, not_differentiable=_LOGICAL)
        for kind in ("lt", "gt", "le", "ge", "eq", "ne")
    ),
    *(
        row(f"{kind}_both", kind, _TRUTH, _OTHER, not_differentiable=_LOGICAL)
        for kind in ("and", "or")
    ),
    row("not", "not", Logical((2, 3, 4)), not_differentiable=_LOGICAL),
    row("and_literal", "and", _TRUTH, True, not_differentiable=_LOGICAL),
    row("or_literal_left", "or", False, _TRUTH, not_differentiable=_LOGICAL),
    row("and_broadcast", "and", Logical((2, 3, 4)), Logical((1, 3)), not_differentiable=_LOGICAL),
    row(
        "or_broadcast_both",
        "or",
        Logical((2, 1, 4)),
        Logical((1, 3, 1)),
        not_differentiable=_LOGICAL,
    ),
    row("copy_rank1", "copy", Real((5,))),
    row("copy_rank0", "copy", Real(())),
    row("copy_integer", "copy", Integers((2, 3), -9, 9), not_differentiable=_TYPES),
    row("copy_logical", "copy", Logical((2, 3)), not_differentiable=_TYPES),
    row("neg_rank6", "neg", Real((1, 2, 1, 3, 1, 2))),
    row("rcp_positive", "rcp", Real((3, 2), 0.3, 2.0)),
    row("abs_at_zero", "abs", Given((-1.5, 0.0, 2.0)), not_differentiable=_KINK),
    row("sign_at_zero", "sign", Given((-1.5, 0.0, 2.0)), not_differentiable=_JUMP),
    row(
        "floor_at_integers",
        "floor",
        Given((-2.0, -1.5, -0.1, 0.0, 0.9, 1.0, 2.5)),
        not_differentiable=_JUMP,
    ),
    row(
        "ceil_at_integers",
        "ceil",
        Given((-2.0, -1.5, -0.1, 0.0, 0.9, 1.0, 2.5)),
        not_differentiable=_JUMP,
    ),
    row(
        "round_at_halves",
        "round",
        Given((-2.5, -1.5, -0.5, 0.0, 0.5, 1.5, 2.5, 3.0)),
        not_differentiable=_JUMP,
    ),
    row(
        "round_just_below_half",
        "round",
        Given((0.49999997, -0.50000006, 8388609.0, -8388609.0)),
        not_differentiable=_JUMP,
    ),
    row("sqr_at_zero", "sqr", Given((-2.0, 0.0, 3.0))),
    # Broadcasting: axes are matched from the left.
    row("add_channel", "add", Real((2, 3, 4)), Real((1, 3))),
    row("add_batch", "add", Real((2, 3, 4)), Real((2,))),
    row("add_batch_left", "add", Real((2,)), Real((2, 3, 4))),
    row("add_ones", "add", Real((2, 3, 4)), Real((1, 1, 1))),
    row("add_rank0", "add", Real((2, 3)), Real(())),
    row("add_rank1_of_one", "add", Real((1,)), Real((2, 3))),
    row("add_literal", "add", Real((2, 3)), 0.5),
    row("sub_literal_left", "sub", 1.5, Real((2, 3))),
    row("sub_spatial", "sub", Real((1, 1, 4)), Real((2, 3, 4))),
    row("mul_both_ways", "mul", Real((2, 1, 4, 1)), Real((1, 3, 1, 2))),
    row("mul_outer", "mul", Real((3,)), Real((1, 4))),
    row("mul_literal", "mul", Real((2, 3)), -2.0),
    row("div_literal_left", "div", 2.0, Real((2, 3), 0.5, 2.0)),
    row("div_literal", "div", Real((2, 3)), 4.0),
    row("div_channel", "div", Real((2, 3, 4)), Real((1, 3), 0.5, 2.0)),
    row("pow_square", "pow", Real((2, 3)), 2.0),
    row("pow_cube_of_negative", "pow", Real((2, 3), -2.0, -0.5), 3.0),
    row("pow_inverse_of_negative", "pow", Real((2, 3), -2.0, -0.5), -1.0),
    row("pow_root", "pow", Real((2, 3), 0.2, 3.0), 0.5),
    row("pow_zero", "pow", Real((2, 3), 0.2, 3.0), 0.0),
    row("pow_literal_base", "pow", 2.0, Real((2, 3), -3.0, 3.0)),
    row("pow_channel", "pow", Real((2, 3, 2), 0.3, 2.0), Real((1, 3))),
    row("min_literal", "min", Real((2, 3, 4), avoid=(0.25,)), 0.25),
    row("max_literal_left", "max", -0.25, Real((2, 3, 4), avoid=(-0.25,))),
    row("max_channel", "max", Real((2, 3, 4), distinct=True), Given(((-0.5, 0.0, 0.5),))),
    row("min_ties", "min", _LEFT, _RIGHT, not_differentiable=_KINK),
    row("max_ties", "max", _LEFT, _RIGHT, not_differentiable=_KINK),
    row("lt_channel", "lt", Real((2, 3, 4)), Real((1, 3)), not_differentiable=_LOGICAL),
    row("ge_batch", "ge", Real((2,)), Real((2, 3, 4)), not_differentiable=_LOGICAL),
    row("eq_literal_left", "eq", 1.0, _LEFT, not_differentiable=_LOGICAL),
    row(
        "ne_both_ways",
        "ne",
        Given(((1.0,), (2.0,))),
        Given(((1.0, 2.0, 3.0),)),
        not_differentiable=_LOGICAL,
    ),
    row("clamp_literals", "clamp", Real((2, 3, 4), avoid=(-0.3, 0.6)), -0.3, 0.6),
    row(
        "clamp_channel",
        "clamp",
        Real((2, 3, 4), distinct=True),
        Given(((-0.5, 0.0, -1.5),)),
        Given(((0.5, 1.5, 0.0),)),
    ),
    row(
        "clamp_full",
        "clamp",
        Real((2, 3, 4), -2.0, 2.0, distinct=True),
        Real((2, 3, 4), -1.5, -0.5),
        Real((2, 3, 4), 0.5, 1.5),
    ),
    row("clamp_crossed", "clamp", Real((2, 3), avoid=(-0.5, 0.5)), 0.5, -0.5),
    row(
        "clamp_at_bounds",
        "clamp",
        Given((-2.0, -1.0, 0.0, 1.0, 2.0)),
        -1.0,
        1.0,
        not_differentiable=_KINK,
    ),
    row("select_full", "select", Logical((2, 3, 4)), Real((2, 3, 4)), Real((2, 3, 4))),
    row("select_literal_false", "select", Logical((2, 3)), Real((2, 3)), -1.0),
    row("select_literal_true", "select", Logical((2, 3)), 7.0, Real((2, 3))),
    row(
        "select_two_literals",
        "select",
        Logical((2, 3)),
        1.0,
        0.0,
        not_differentiable="it takes no reals",
    ),
    row("select_literal_condition", "select", True, Real((2, 3)), Real((2, 3))),
    row("select_condition_batch", "select", Logical((2,)), Real((2, 3, 4)), Real((2, 3, 4))),
    row("select_condition_ones", "select", Logical((1, 1)), Real((2, 3)), Real((2, 3))),
    row("select_values_channel", "select", Logical((2, 3, 4)), Real((1, 3)), Real((1, 1, 4))),
    row(
        "select_integer",
        "select",
        Logical((2, 3)),
        Integers((2, 3), -9, 9),
        Integers((2, 3), -9, 9),
        not_differentiable=_TYPES,
    ),
    row(
        "select_logical",
        "select",
        Logical((2, 3)),
        Logical((2, 3)),
        Logical((1, 3)),
        not_differentiable=_TYPES,
    ),
    row("copy_n_1", "copy_n", Real((2, 3)), times=1),
    row("copy_n_3", "copy_n", Real((2, 3)), times=3),
    row("copy_n_integer", "copy_n", Integers((2, 3), -9, 9), times=2, not_differentiable=_TYPES),
    row("add_n_1", "add_n", [Real((2, 3))]),
    row("add_n_2", "add_n", [Real((2, 3)), Real((2, 3))]),
    row("add_n_4", "add_n", [Real((1, 2, 3))] * 4),
)
