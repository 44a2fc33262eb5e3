"""Reductions (spec 4.4)."""

from __future__ import annotations

from .case import Given, Logical, Real, row

_LOGICAL = "its results are logical values"
_INDEX = "its results are integers"
_X = Real((2, 3, 2, 4))
_DISTINCT = Real((2, 3, 2, 4), distinct=True)
_AXES = {
    "batch": [0],
    "channel": [1],
    "last": [3],
    "spatial": [2, 3],
    "unsorted": [3, 0],
    "all": [0, 1, 2, 3],
    "none": [],
}

CASES = (
    *(
        row(f"{kind}_{name}", kind, _X, axes=axes)
        for kind in ("sum_reduce", "mean_reduce", "moments")
        for name, axes in _AXES.items()
    ),
    *(
        row(f"{kind}_{name}", kind, _DISTINCT, axes=axes)
        for kind in ("max_reduce", "min_reduce")
        for name, axes in _AXES.items()
    ),
    *(
        row(f"{kind}_{name}", kind, _DISTINCT, axes=axes, not_differentiable=_INDEX)
        for kind in ("argmax_reduce", "argmin_reduce")
        for name, axes in _AXES.items()
        if name in ("batch", "channel", "last", "spatial", "all")
    ),
    *(
        row(f"{kind}_{name}", kind, Logical((2, 3, 2, 4)), axes=axes, not_differentiable=_LOGICAL)
        for kind in ("any_reduce", "all_reduce")
        for name, axes in _AXES.items()
    ),
    row("sum_reduce_normalize", "sum_reduce", _X, axes=[1, 3], normalize=True),
    row("sum_reduce_normalize_unsorted", "sum_reduce", _X, axes=[2, 0], normalize=True),
    row("sum_reduce_rank1", "sum_reduce", Real((5,)), axes=[0]),
    row("mean_reduce_rank6", "mean_reduce", Real((1, 2, 1, 3, 1, 2)), axes=[1, 3]),
    row("max_reduce_of_one", "max_reduce", Real((2, 1, 3)), axes=[1]),
    row("max_reduce_negative", "max_reduce", Real((2, 5), -3.0, -1.0, distinct=True), axes=[1]),
    row("min_reduce_positive", "min_reduce", Real((2, 5), 1.0, 3.0, distinct=True), axes=[1]),
    row(
        "argmax_reduce_ties",
        "argmax_reduce",
        Given(((1.0, 3.0, 3.0, 2.0), (2.0, 2.0, 2.0, 2.0))),
        axes=[1],
        not_differentiable=_INDEX,
    ),
    row(
        "argmin_reduce_ties",
        "argmin_reduce",
        Given(((1.0, 0.0, 0.0, 2.0), (2.0, 2.0, 2.0, 2.0))),
        axes=[1],
        not_differentiable=_INDEX,
    ),
    row(
        "argmax_reduce_apart",
        "argmax_reduce",
        Real((2, 3, 2, 4), distinct=True),
        axes=[1, 3],
        not_differentiable=_INDEX,
    ),
    row(
        "any_reduce_nothing",
        "any_reduce",
        Given(((False, False), (False, True))),
        axes=[1],
        not_differentiable=_LOGICAL,
    ),
    row(
        "all_reduce_everything",
        "all_reduce",
        Given(((True, True), (False, True))),
        axes=[1],
        not_differentiable=_LOGICAL,
    ),
)
