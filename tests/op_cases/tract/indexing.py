"""Items by their indices: gather, scatter, top-k, one-hot."""

from __future__ import annotations

from tests.op_cases.case import Given, Integers, Logical, Real

from .rows import row, tract_case

_JUMPS = "an index without an item has NaN"
_REDUCTIONS = ("add", "mul", "min", "max")


def _gather(name, input, indices, axis, **attributes):
    return tract_case(
        f"gather_{name}",
        "tract_core_gather",
        {"input": input, "indices": indices},
        {"axis": axis, **attributes},
    )


_GATHER = (
    _gather("rows", Real((5, 3)), Integers((4,), 0, 5), 0),
    _gather("indices_of_rank_2", Real((5, 3)), Integers((2, 4), 0, 5), 0),
    _gather("middle", Real((2, 4, 3)), Integers((2, 2), 0, 4), 1),
    _gather("last_negative_axis", Real((2, 3, 4)), Integers((3,), 0, 4), -1),
    _gather("first_negative_axis", Real((3, 2)), Integers((2,), 0, 3), -2),
    _gather("one_index", Real((4, 3)), Given(2), 0),
    _gather("vector", Real((4,)), Integers((2, 3), 0, 4), 0),
    _gather("negative_indices", Real((4, 2)), Given((-1, 0, -4, 3)), 0),
    _gather("integers", Integers((4, 3), -5, 6), Integers((2,), 0, 4), 0),
    _gather("logical", Logical((4, 3)), Integers((5,), 0, 3), 1),
    _gather("same_datum_type", Real((4, 3)), Integers((2,), 0, 4), 0, datum_type="f32"),
    _gather("other_datum_type", Integers((4, 3), -5, 6), Given((1, 1)), 0, datum_type="f32"),
    _gather("one_item", Real((1, 3)), Given((0, -1, 0)), 0),
    row(
        "gather_beyond",
        "tract_core_gather",
        Real((3, 2)),
        Given((0, 3, -4, 2, 100)),
        axis=0,
        not_differentiable=_JUMPS,
    ),
)


def _elements(name, input, indices, axis, **options):
    return tract_case(
        f"gather_elements_{name}",
        "gather_elements",
        {"input": input, "indices": indices},
        {"axis": axis},
        **options,
    )


_GATHER_ELEMENTS = (
    _elements("rows", Real((3, 4)), Integers((2, 4), 0, 3), 0),
    _elements("columns", Real((3, 4)), Integers((3, 6), 0, 4), 1),
    _elements("negative_axis", Real((2, 3, 4)), Integers((2, 3, 2), 0, 4), -1),
    _elements("smaller", Real((3, 4, 2)), Integers((2, 5, 1), 0, 4), 1),
    _elements("one_of_many", Real((3, 4)), Integers((1, 2), 0, 4), 1),
    _elements("negative_indices", Real((2, 3)), Given(((-1, 0), (-3, 2))), 1),
    _elements("vector", Real((5,)), Integers((3,), 0, 5), 0),
    _elements("integers", Integers((2, 3), -9, 9), Integers((2, 2), 0, 3), 1),
    _elements("beyond", Real((2, 3)), Given(((0, 3), (-4, 1))), 1, not_differentiable=_JUMPS),
)


def _nd(name, input, indices, batch_dims=None, **options):
    return tract_case(
        f"gather_nd_{name}",
        "gather_nd",
        {"input": input, "indices": indices},
        {} if batch_dims is None else {"batch_dims": batch_dims},
        **options,
    )


_GATHER_ND = (
    _nd("items", Real((3, 4)), Given(((0, 1), (2, 3), (2, 0)))),
    _nd("rows", Real((3, 4)), Given(((2,), (0,))), 0),
    _nd("indices_of_rank_3", Real((3, 2, 2)), Integers((2, 3, 2), 0, 2)),
    _nd("one", Real((3, 4)), Given((1, 2))),
    _nd("batch", Real((2, 3, 4)), Integers((2, 5, 1), 0, 3), 1),
    _nd("batch_items", Real((2, 3, 4)), Integers((2, 2, 2), 0, 3), 1),
    _nd("batch_of_rank_2", Real((2, 2, 4, 3)), Integers((2, 2, 3, 1), 0, 4), 2),
    _nd("batch_one_each", Real((3, 4)), Given(((0,), (3,), (1,))), 1),
    _nd("negative_indices", Real((3, 4)), Given(((-1, -1), (0, -4)))),
    _nd("integers", Integers((3, 4), -9, 9), Given(((0, 1), (2, 3)))),
    _nd(
        "beyond", Real((2, 3)), Given(((0, 3), (2, 0), (1, 1), (-3, 0))), not_differentiable=_JUMPS
    ),
)


def _scatter(name, input, indices, updates, axis, reduction=None, **options):
    return tract_case(
        f"scatter_elements_{name}",
        "scatter_elements",
        {"input": input, "indices": indices, "updates": updates},
        {"axis": axis} | ({"reduction": reduction} if reduction else {}),
        **options,
    )


_MEETING = Given(((0, 1, 1), (0, 2, 1)))
_SCATTER_ELEMENTS = (
    _scatter("default", Real((3, 4)), Given(((2, 0, 1, 1),)), Real((1, 4)), 0),
    _scatter("none", Real((2, 5)), Given(((4, 0, 2), (1, 2, 3))), Real((2, 3)), 1, "none"),
    _scatter("negative_axis", Real((2, 5)), Given(((4, 0), (1, 2))), Real((2, 2)), -1, "none"),
    _scatter("negative_indices", Real((4, 2)), Given(((-1, -4), (1, -2))), Real((2, 2)), 0),
    _scatter("beyond", Real((3,)), Given((3, 1, -4)), Real((3,)), 0),
    _scatter("more_updates", Real((4, 4)), Given(((2, 0), (1, 3))), Real((3, 4)), 0, "add"),
    _scatter("rank_3", Real((2, 3, 2)), Integers((2, 4, 1), 0, 3), Real((2, 4, 1)), 1, "add"),
    _scatter("integers", Integers((4,), -9, 9), Given((1, 1, 2)), Integers((3,), -9, 9), 0, "add"),
    _scatter("one_number", Real((2, 5)), Given(((4, 0), (1, 2))), 2.5, 1),
    _scatter("one_item", Real((2, 5)), Given(((4, 0), (1, 1))), Real(()), 1, "add"),
    _scatter("integers_mul", Integers((4,), 1, 9), Given((1, 1)), Integers((2,), -9, 9), 0, "mul"),
    _scatter("integers_min", Integers((4,), -9, 9), Given((1, 0)), Integers((2,), -9, 9), 0, "min"),
    _scatter("logical", Logical((4,)), Given((3, 0)), Logical((2,)), 0),
    *(
        _scatter(reduction, Real((2, 4)), _MEETING, Real((2, 3)), 1, reduction)
        for reduction in ("add", "mul")
    ),
    *(
        _scatter(
            reduction,
            Real((3, 4), distinct=True),
            _MEETING,
            Real((2, 3), low=-0.83, high=0.87, distinct=True),
            0,
            reduction,
        )
        for reduction in ("min", "max")
    ),
    _scatter("mul_zero", Real((4,)), Given((1, 1, 2)), Given((0.0, 3.0, -2.0)), 0, "mul"),
    _scatter("mul_zeros", Real((4,)), Given((1, 1, 2)), Given((0.0, 0.0, 0.0)), 0, "mul"),
    _scatter("mul_beyond", Real((3,)), Given((1, 5, 1)), Real((3,)), 0, "mul"),
)


def _scatter_nd(name, input, indices, updates, reduction=None):
    return tract_case(
        f"scatter_nd_{name}",
        "scatter_nd",
        {"input": input, "indices": indices, "updates": updates},
        {"reduction": reduction} if reduction else {},
    )


_SCATTER_ND = (
    _scatter_nd("default", Real((4,)), Given(((3,), (1,))), Real((2,))),
    _scatter_nd("rows", Real((4, 3)), Given(((2,), (0,))), Real((2, 3)), "none"),
    _scatter_nd("items", Real((2, 3)), Given(((1, 2), (0, 0))), Real((2,)), "none"),
    _scatter_nd("one", Real((2, 3)), Given((1,)), Real((3,)), "add"),
    _scatter_nd("rank_3", Real((3, 2, 2)), Integers((2, 3, 1), 0, 3), Real((2, 3, 2, 2)), "add"),
    _scatter_nd("negative_indices", Real((3, 2)), Given(((-1,), (-3,))), Real((2, 2))),
    _scatter_nd("beyond", Real((3, 2)), Given(((3, 0), (1, 1), (0, -3))), Real((3,))),
    _scatter_nd(
        "integers", Integers((4,), -9, 9), Given(((1,), (1,))), Integers((2,), -9, 9), "max"
    ),
    *(
        _scatter_nd(
            reduction,
            Real((3, 4), distinct=True),
            Given(((1,), (1,), (0,))),
            Real((3, 4), low=-0.83, high=0.87, distinct=True),
            reduction,
        )
        for reduction in _REDUCTIONS
    ),
)


def _topk(name, input, k, axis, largest):
    return row(f"topk_{name}", "topk", input, k=k, axis=axis, largest=largest)


_TIES = Given(((1, 3, 3, 0, 3, 0), (2, 2, 2, 2, 2, 2)))
_TOPK = (
    _topk("largest", Real((3, 5), distinct=True), 2, 1, True),
    _topk("smallest", Real((3, 5), distinct=True), 2, 1, False),
    _topk("first_axis", Real((5, 3), distinct=True), 3, 0, True),
    _topk("middle_axis", Real((2, 4, 3), distinct=True), 2, 1, False),
    _topk("negative_axis", Real((2, 3, 4), distinct=True), 2, -2, True),
    _topk("one", Real((3, 5), distinct=True), 1, -1, True),
    _topk("all", Real((3, 5), distinct=True), 5, 1, False),
    _topk("one_item", Real((3, 1)), 1, 1, True),
    _topk("vector", Real((6,), distinct=True), 4, 0, True),
    _topk("ties_largest", _TIES, 4, 1, True),
    _topk("ties_smallest", _TIES, 4, 1, False),
    _topk("integers", Integers((3, 5), -2147483648, 2147483647), 3, 1, False),
    row(
        "topk_zeros_and_infinities",
        "topk",
        Given((0.0, -0.0, float("inf"), -0.0, float("-inf"), 0.0)),
        k=5,
        axis=0,
        largest=False,
        not_differentiable="infinite items have no differences",
    ),
)


def _one_hot(name, indices, axis, depth, **attributes):
    return tract_case(
        f"one_hot_{name}",
        "one_hot",
        {"indices": indices},
        {"axis": axis, "depth": depth, **attributes},
        not_differentiable="the operand holds indices",
    )


_ONE_HOT = (
    _one_hot("last", Integers((2, 3), 0, 4), 2, 4),
    _one_hot("first", Integers((2, 3), 0, 4), 0, 4),
    _one_hot("middle", Integers((2, 3), 0, 4), 1, 4),
    _one_hot("negative_axis", Integers((2, 3), 0, 4), -1, 4),
    _one_hot("negative_first_axis", Integers((2, 3), 0, 4), -3, 4),
    _one_hot("values", Integers((3,), 0, 4), 1, 4, off_value=-0.5, on_value=2.5),
    _one_hot("one_index", Given(2), 0, 4),
    row(
        "one_hot_real_indices",
        "tract_core_one_hot",
        Given((0.0, 3.0, -1.0, 2.5, 9.0)),
        axis=0,
        dim=4,
        not_differentiable="the operand holds indices",
    ),
    _one_hot("beyond", Given((0, 3, 7, -1, -4, -5)), 1, 3),
)

CASES = (
    *_GATHER,
    *_GATHER_ELEMENTS,
    *_GATHER_ND,
    *_SCATTER_ELEMENTS,
    *_SCATTER_ND,
    *_TOPK,
    *_ONE_HOT,
)
