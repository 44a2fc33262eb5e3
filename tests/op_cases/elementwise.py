"""Element-wise operations (spec 4.2, 4.8.6)."""

from __future__ import annotations

from .case import Given, Integers, Logical, OpCase, Real

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
    *(OpCase(kind, kind, {"x": x}) for kind, x in _RANGES.items()),
    *(OpCase(kind, kind, {"x": x, "y": y}) for kind, (x, y) in _ARITHMETIC.items()),
    *(
        OpCase(f"{kind}_same", kind, {"x": _LEFT, "y": _RIGHT}, not_differentiable=_LOGICAL)
        for kind in ("lt", "gt", "le", "ge", "eq", "ne")
    ),
    *(
        OpCase(f"{kind}_literal", kind, {"x": _LEFT, "y": 1.0}, not_differentiable=_LOGICAL)
        for kind in ("lt", "gt", "le", "ge", "eq", "ne")
    ),
    *(
        OpCase(f"{kind}_both", kind, {"x": _TRUTH, "y": _OTHER}, not_differentiable=_LOGICAL)
        for kind in ("and", "or")
    ),
    OpCase("not", "not", {"x": Logical((2, 3, 4))}, not_differentiable=_LOGICAL),
    OpCase("and_literal", "and", {"x": _TRUTH, "y": True}, not_differentiable=_LOGICAL),
    OpCase("or_literal_left", "or", {"x": False, "y": _TRUTH}, not_differentiable=_LOGICAL),
    OpCase(
        "and_broadcast",
        "and",
        {"x": Logical((2, 3, 4)), "y": Logical((1, 3))},
        not_differentiable=_LOGICAL,
    ),
    OpCase(
        "or_broadcast_both",
        "or",
        {"x": Logical((2, 1, 4)), "y": Logical((1, 3, 1))},
        not_differentiable=_LOGICAL,
    ),
    OpCase("copy_rank1", "copy", {"x": Real((5,))}),
    OpCase("copy_rank0", "copy", {"x": Real(())}),
    OpCase("copy_integer", "copy", {"x": Integers((2, 3), -9, 9)}, not_differentiable=_TYPES),
    OpCase("copy_logical", "copy", {"x": Logical((2, 3))}, not_differentiable=_TYPES),
    OpCase("neg_rank6", "neg", {"x": Real((1, 2, 1, 3, 1, 2))}),
    OpCase("rcp_positive", "rcp", {"x": Real((3, 2), 0.3, 2.0)}),
    OpCase("abs_at_zero", "abs", {"x": Given((-1.5, 0.0, 2.0))}, not_differentiable=_KINK),
    OpCase("sign_at_zero", "sign", {"x": Given((-1.5, 0.0, 2.0))}, not_differentiable=_JUMP),
    OpCase(
        "floor_at_integers",
        "floor",
        {"x": Given((-2.0, -1.5, -0.1, 0.0, 0.9, 1.0, 2.5))},
        not_differentiable=_JUMP,
    ),
    OpCase(
        "ceil_at_integers",
        "ceil",
        {"x": Given((-2.0, -1.5, -0.1, 0.0, 0.9, 1.0, 2.5))},
        not_differentiable=_JUMP,
    ),
    OpCase(
        "round_at_halves",
        "round",
        {"x": Given((-2.5, -1.5, -0.5, 0.0, 0.5, 1.5, 2.5, 3.0))},
        not_differentiable=_JUMP,
    ),
    OpCase(
        "round_just_below_half",
        "round",
        {"x": Given((0.49999997, -0.50000006, 8388609.0, -8388609.0))},
        not_differentiable=_JUMP,
    ),
    OpCase("sqr_at_zero", "sqr", {"x": Given((-2.0, 0.0, 3.0))}),
    # Broadcasting: axes are matched from the left.
    OpCase("add_channel", "add", {"x": Real((2, 3, 4)), "y": Real((1, 3))}),
    OpCase("add_batch", "add", {"x": Real((2, 3, 4)), "y": Real((2,))}),
    OpCase("add_batch_left", "add", {"x": Real((2,)), "y": Real((2, 3, 4))}),
    OpCase("add_ones", "add", {"x": Real((2, 3, 4)), "y": Real((1, 1, 1))}),
    OpCase("add_rank0", "add", {"x": Real((2, 3)), "y": Real(())}),
    OpCase("add_rank1_of_one", "add", {"x": Real((1,)), "y": Real((2, 3))}),
    OpCase("add_literal", "add", {"x": Real((2, 3)), "y": 0.5}),
    OpCase("sub_literal_left", "sub", {"x": 1.5, "y": Real((2, 3))}),
    OpCase("sub_spatial", "sub", {"x": Real((1, 1, 4)), "y": Real((2, 3, 4))}),
    OpCase("mul_both_ways", "mul", {"x": Real((2, 1, 4, 1)), "y": Real((1, 3, 1, 2))}),
    OpCase("mul_outer", "mul", {"x": Real((3,)), "y": Real((1, 4))}),
    OpCase("mul_literal", "mul", {"x": Real((2, 3)), "y": -2.0}),
    OpCase("div_literal_left", "div", {"x": 2.0, "y": Real((2, 3), 0.5, 2.0)}),
    OpCase("div_literal", "div", {"x": Real((2, 3)), "y": 4.0}),
    OpCase("div_channel", "div", {"x": Real((2, 3, 4)), "y": Real((1, 3), 0.5, 2.0)}),
    OpCase("pow_square", "pow", {"x": Real((2, 3)), "y": 2.0}),
    OpCase("pow_cube_of_negative", "pow", {"x": Real((2, 3), -2.0, -0.5), "y": 3.0}),
    OpCase("pow_inverse_of_negative", "pow", {"x": Real((2, 3), -2.0, -0.5), "y": -1.0}),
    OpCase("pow_root", "pow", {"x": Real((2, 3), 0.2, 3.0), "y": 0.5}),
    OpCase("pow_zero", "pow", {"x": Real((2, 3), 0.2, 3.0), "y": 0.0}),
    OpCase("pow_literal_base", "pow", {"x": 2.0, "y": Real((2, 3), -3.0, 3.0)}),
    OpCase("pow_channel", "pow", {"x": Real((2, 3, 2), 0.3, 2.0), "y": Real((1, 3))}),
    OpCase("min_literal", "min", {"x": Real((2, 3, 4), avoid=(0.25,)), "y": 0.25}),
    OpCase("max_literal_left", "max", {"x": -0.25, "y": Real((2, 3, 4), avoid=(-0.25,))}),
    OpCase(
        "max_channel",
        "max",
        {"x": Real((2, 3, 4), distinct=True), "y": Given(((-0.5, 0.0, 0.5),))},
    ),
    OpCase("min_ties", "min", {"x": _LEFT, "y": _RIGHT}, not_differentiable=_KINK),
    OpCase("max_ties", "max", {"x": _LEFT, "y": _RIGHT}, not_differentiable=_KINK),
    OpCase(
        "lt_channel", "lt", {"x": Real((2, 3, 4)), "y": Real((1, 3))}, not_differentiable=_LOGICAL
    ),
    OpCase("ge_batch", "ge", {"x": Real((2,)), "y": Real((2, 3, 4))}, not_differentiable=_LOGICAL),
    OpCase("eq_literal_left", "eq", {"x": 1.0, "y": _LEFT}, not_differentiable=_LOGICAL),
    OpCase(
        "ne_both_ways",
        "ne",
        {"x": Given(((1.0,), (2.0,))), "y": Given(((1.0, 2.0, 3.0),))},
        not_differentiable=_LOGICAL,
    ),
    OpCase(
        "clamp_literals", "clamp", {"x": Real((2, 3, 4), avoid=(-0.3, 0.6)), "a": -0.3, "b": 0.6}
    ),
    OpCase(
        "clamp_channel",
        "clamp",
        {
            "x": Real((2, 3, 4), distinct=True),
            "a": Given(((-0.5, 0.0, -1.5),)),
            "b": Given(((0.5, 1.5, 0.0),)),
        },
    ),
    OpCase(
        "clamp_full",
        "clamp",
        {
            "x": Real((2, 3, 4), -2.0, 2.0, distinct=True),
            "a": Real((2, 3, 4), -1.5, -0.5),
            "b": Real((2, 3, 4), 0.5, 1.5),
        },
    ),
    OpCase("clamp_crossed", "clamp", {"x": Real((2, 3), avoid=(-0.5, 0.5)), "a": 0.5, "b": -0.5}),
    OpCase(
        "clamp_at_bounds",
        "clamp",
        {"x": Given((-2.0, -1.0, 0.0, 1.0, 2.0)), "a": -1.0, "b": 1.0},
        not_differentiable=_KINK,
    ),
    OpCase(
        "select_full",
        "select",
        {
            "condition": Logical((2, 3, 4)),
            "true_value": Real((2, 3, 4)),
            "false_value": Real((2, 3, 4)),
        },
    ),
    OpCase(
        "select_literal_false",
        "select",
        {"condition": Logical((2, 3)), "true_value": Real((2, 3)), "false_value": -1.0},
    ),
    OpCase(
        "select_literal_true",
        "select",
        {"condition": Logical((2, 3)), "true_value": 7.0, "false_value": Real((2, 3))},
    ),
    OpCase(
        "select_two_literals",
        "select",
        {"condition": Logical((2, 3)), "true_value": 1.0, "false_value": 0.0},
        not_differentiable="it takes no reals",
    ),
    OpCase(
        "select_literal_condition",
        "select",
        {"condition": True, "true_value": Real((2, 3)), "false_value": Real((2, 3))},
    ),
    OpCase(
        "select_condition_batch",
        "select",
        {
            "condition": Logical((2,)),
            "true_value": Real((2, 3, 4)),
            "false_value": Real((2, 3, 4)),
        },
    ),
    OpCase(
        "select_condition_ones",
        "select",
        {"condition": Logical((1, 1)), "true_value": Real((2, 3)), "false_value": Real((2, 3))},
    ),
    OpCase(
        "select_values_channel",
        "select",
        {
            "condition": Logical((2, 3, 4)),
            "true_value": Real((1, 3)),
            "false_value": Real((1, 1, 4)),
        },
    ),
    OpCase(
        "select_integer",
        "select",
        {
            "condition": Logical((2, 3)),
            "true_value": Integers((2, 3), -9, 9),
            "false_value": Integers((2, 3), -9, 9),
        },
        not_differentiable=_TYPES,
    ),
    OpCase(
        "select_logical",
        "select",
        {
            "condition": Logical((2, 3)),
            "true_value": Logical((2, 3)),
            "false_value": Logical((1, 3)),
        },
        not_differentiable=_TYPES,
    ),
    OpCase("copy_n_1", "copy_n", {"x": Real((2, 3))}, {"times": 1}),
    OpCase("copy_n_3", "copy_n", {"x": Real((2, 3))}, {"times": 3}),
    OpCase(
        "copy_n_integer",
        "copy_n",
        {"x": Integers((2, 3), -9, 9)},
        {"times": 2},
        not_differentiable=_TYPES,
    ),
    OpCase("add_n_1", "add_n", {"x": [Real((2, 3))]}),
    OpCase("add_n_2", "add_n", {"x": [Real((2, 3)), Real((2, 3))]}),
    OpCase("add_n_4", "add_n", {"x": [Real((1, 2, 3))] * 4}),
)
