"""Other operations of ONNX: normalisation, lookups, ensembles of trees."""

from __future__ import annotations

import numpy as np

from tests.op_cases.case import Given, Integers, Real

from .rows import row, tract_case


def _lrn(name, input, **attributes):
    return row(f"lrn_{name}", "tract_onnx_lrn", input, **attributes)


_LRN = (
    _lrn("default", Real((2, 7, 2, 3), -3.0, 3.0)),
    _lrn("odd", Real((1, 5, 2), -2.0, 2.0), size=3, alpha=0.5, beta=0.6, bias=2.0),
    _lrn("even", Real((2, 5, 2, 2), -2.0, 2.0), size=4, alpha=0.9),
    _lrn("two", Real((1, 4), -2.0, 2.0), size=2, alpha=2.0, beta=1.0),
    _lrn("one", Real((1, 3, 2), -2.0, 2.0), size=1, alpha=1.0),
    _lrn("larger_than_the_channels", Real((1, 3, 2), -2.0, 2.0), size=8, alpha=1.0, beta=0.5),
)


def _direct(name, input, values, fallback):
    operands = {"input": input, "values": values, "fallback": fallback}
    return tract_case(f"direct_lookup_{name}", "direct_lookup", operands)


_DIRECT = (
    _direct("reals", Given(((0, 2), (1, 1))), Real((3,)), Real(())),
    _direct("beyond", Given((-1, 3, 100, -3, 0)), Real((3,)), Real((1,))),
    _direct("integers", Integers((4,), -1, 4), Integers((3,), 0, 9), Given(-7)),
    _direct("one_value", Integers((2, 2, 2), 0, 2), Real((1,)), Real(())),
)


def _reverse(name, input, keys, fallback, **options):
    return row(
        f"reverse_lookup_{name}",
        "reverse_lookup",
        input,
        keys,
        fallback=fallback,
        not_differentiable="the results are indices",
    )


_REVERSE = (
    _reverse("integers", Given(((5, -3), (8, 4))), Given((8, -3, 5)), -1),
    _reverse("reals", Given((0.5, 2.25, -0.5)), Given((2.25, 0.5)), 7),
    _reverse("one_key", Given((1, 2)), Given((2,)), 9),
    _reverse("equal_keys", Given((3, 1)), Given((1, 3, 1, 3)), -1),
    _reverse("many", Integers((3, 5), 0, 12), Given((7, 1, 11, 0, 4, 9)), -1),
)


def _bits(value):
    return int(np.float32(value).view(np.int32))


def _branch(feature, comparison, value, if_true, if_false, nan=False):
    return feature, if_true, if_false, _bits(value), comparison + 256 * nan


def _leaf(first, end):
    return first, end, 0, 0, 0


# Three trees, with every comparison: 1 to 6 are == != < > <= >=.
_TREES = Given((0, 5, 9))
_NODES = Given(
    (
        _branch(0, 5, 0.25, 1, 2),
        _branch(2, 3, -0.5, 3, 4, nan=True),
        _leaf(0, 2),
        _leaf(2, 3),
        _leaf(3, 3),
        _branch(1, 4, 0.0, 6, 7),
        _branch(1, 1, 0.5, 7, 8),
        _leaf(3, 6),
        _leaf(1, 4),
        _branch(2, 6, 0.75, 10, 11, nan=True),
        _leaf(5, 6),
        _branch(0, 2, -1.0, 12, 10),
        _leaf(6, 8),
    )
)
_LEAVES = Given(
    tuple(
        (of_class, _bits(weight))
        for of_class, weight in (
            (0, 0.5),
            (1, -0.25),
            (0, -1.5),
            (2, 2.0),
            (0, 0.125),
            (1, 0.75),
            (1, -3.0),
            (0, 1.0),
        )
    )
)
_FEATURES = Given(
    (
        (0.25, 0.5, -0.5),
        (-1.0, 0.1, 0.75),
        (-1.0, -0.1, -0.75),
        (0.3, 0.5, 0.0),
        (float("nan"), 0.5, float("nan")),
        (0.0, float("nan"), -9.0),
        (float("inf"), float("-inf"), float("inf")),
    )
)


def _ensemble(name, input, aggregate, classes=3):
    return row(
        f"tree_ensemble_{name}",
        "tree_ensemble",
        input,
        _TREES,
        _NODES,
        _LEAVES,
        classes=classes,
        aggregate=aggregate,
        not_differentiable="the result changes in steps",
    )


_ENSEMBLE = (
    *(_ensemble(name.lower(), _FEATURES, name) for name in ("SUM", "AVERAGE", "MIN", "MAX")),
    _ensemble("random", Real((20, 4)), "SUM"),
    _ensemble("one_row", Real((3,)), "SUM"),
    _ensemble("class_without_leaves", _FEATURES, "MAX", classes=4),
)

CASES = (*_LRN, *_DIRECT, *_REVERSE, *_ENSEMBLE)
