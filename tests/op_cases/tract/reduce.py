"""Reductions and running sums of tract: any numbers, axes from the end, the last extremum."""

from __future__ import annotations

from tests.op_cases.case import Given, Integers, Logical, Real

from .rows import FEWER_BITS, INTEGERS, TYPES, case, row, short, tract_case

_SHAPE = (2, 3, 2, 4)
_X = Real(_SHAPE)
_DISTINCT = Real(_SHAPE, distinct=True)
_I = Integers(_SHAPE, -9, 10)
_AXES = {"batch": [0], "last": [-1], "spatial": [2, -1], "unsorted": [3, 0], "all": [0, 1, 2, 3]}
_TIES = Given(((1, 3, 3, 2), (2, 2, 2, 2), (-5, -1, -1, -1)))
_ARGUMENTS = (
    "argmax_reduce",
    "argmin_reduce",
    "tract_core_argmax_reduce_last",
    "tract_core_argmin_reduce_last",
)

_REDUCTIONS = (
    *(
        row(f"product_reduce_{name}", "tract_core_product_reduce", x, axes=axes)
        for name, x, axes in (
            ("last", Real((2, 3, 4), 0.5, 2.0), [-1]),
            ("two", Real((2, 3, 4)), [0, 2]),
            ("none", _X, []),
            ("zero", Given(((0.0, 2.0, -3.0), (1.0, 0.0, 0.0), (2.0, 3.0, 4.0))), [1]),
        )
    ),
    *(
        case(
            f"{short(kind)}_integers", kind, {"input": Integers((2, 3, 4), -5, 6)}, TYPES, axes=[1]
        )
        for kind in ("sum_reduce", "max_reduce", "min_reduce", "tract_core_product_reduce")
    ),
    *(
        case(f"{kind}_logical", kind, {"input": Logical((3, 4))}, TYPES, axes=[0])
        for kind in ("max_reduce", "min_reduce")
    ),
    row(
        "sum_reduce_mean_integers",
        "sum_reduce",
        _I,
        not_differentiable=TYPES,
        axes=[3],
        normalize=True,
    ),
    row(
        "sum_reduce_mean_cut_off",
        "sum_reduce",
        Given(((-7, 0), (7, 0), (-1, 0))),
        not_differentiable=TYPES,
        axes=[-1],
        normalize=True,
    ),
)

_INDICES = (
    *(
        case(f"{short(kind)}_{name}_axes", kind, {"input": _DISTINCT}, INTEGERS, axes=axes)
        for kind in _ARGUMENTS
        for name, axes in _AXES.items()
        if name == "unsorted" or kind.endswith("_last")
    ),
    *(
        case(f"{short(kind)}_{name}_ties", kind, {"input": _TIES}, INTEGERS, axes=axes)
        for kind in _ARGUMENTS
        for name, axes in (("one", [1]), ("two", [-1, 0]))
    ),
    *(
        case(f"{short(kind)}_integers", kind, {"input": _I}, INTEGERS, axes=[0, 3])
        for kind in _ARGUMENTS
    ),
)

_FLAGS = {
    "plain": {},
    "exclusive": {"exclusive": True},
    "reverse": {"reverse": True},
    "exclusive_reverse": {"exclusive": True, "reverse": True},
}
_SUMS = (
    *(
        row(f"cumsum_{name}", "tract_core_cumsum", Real((2, 5, 3)), axis=1, **flags)
        for name, flags in _FLAGS.items()
    ),
    *(
        row(
            f"cumsum_{name}_integers",
            "tract_core_cumsum",
            _I,
            not_differentiable=TYPES,
            axis=-1,
            **flags,
        )
        for name, flags in _FLAGS.items()
    ),
    row("cumsum_of_one", "tract_core_cumsum", Real((1, 2)), axis=0, exclusive=True),
)

_LOGITS = Real((2, 3, 4), -4.0, 4.0)
_FAR = Given(((-90.0, 0.0, 90.0), (300.0, 299.0, -300.0)))
_SOFTMAX = (
    *(
        case(f"log_softmax_{name}", "tract_core_log_softmax", {"x": x}, axes=axes)
        for name, x, axes in (
            ("last", _LOGITS, [-1]),
            ("first", _LOGITS, [0]),
            ("two", _LOGITS, [1, 2]),
            ("far", _FAR, [1]),
        )
    ),
    row("softmax_first", "tract_core_softmax", _LOGITS, axes=[0]),
    row("softmax_two", "tract_core_softmax", _LOGITS, axes=[1, 2]),
    row("softmax_fast", "tract_core_softmax", _LOGITS, axes=[2], exp="fast_compact"),
)

_SCALED = "tract_core_scaled_rms_norm"
_NORMS = (
    row("rms_norm_default", "tract_core_rms_norm", _X, axis=3),
    case("rms_norm_first", "tract_core_rms_norm", {"input": _X, "eps": 1e-3}, axis=0),
    case("rms_norm_negative_axis", "tract_core_rms_norm", {"input": _X, "eps": 0.1}, axis=-2),
    case("rms_norm_eps_tensor", "tract_core_rms_norm", {"input": _X, "eps": Given(0.25)}, axis=3),
    case(
        "rms_norm_zeros", "tract_core_rms_norm", {"input": Given((0.0, 0.0)), "eps": 0.01}, axis=0
    ),
    case(
        "scaled_rms_norm_last",
        _SCALED,
        {"input": _X, "scale": Real((4,), 0.5, 2.0), "eps": 1e-5},
        axis=3,
    ),
    case(
        "scaled_rms_norm_middle",
        _SCALED,
        {"input": _X, "scale": Real((1, 3, 1, 1), 0.5, 2.0)},
        axis=-3,
    ),
    tract_case(
        "scaled_rms_norm_to_f16",
        _SCALED,
        {"input": _X, "scale": Real((4,), 0.5, 2.0)},
        {"axis": 3, "out_dt": "f16"},
        not_differentiable=FEWER_BITS,
        tolerance=1e-3,
    ),
)

CASES = (*_REDUCTIONS, *_INDICES, *_SUMS, *_SOFTMAX, *_NORMS)
