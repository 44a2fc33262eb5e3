"""Operations on values known before a run give what the rules of their kinds give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowering.builder import GraphBuilder
from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN
from lowering.graph import TensorType, Value, mapped, values_of
from lowering.ops import rules
from lowering.tracing import Context, trace
from nnef_jax.flattening.host_operations import KINDS, evaluate
from nnef_jax.flattening.hostvalues import NotFolded, host

WHOLE = np.array([[3, -7, 5], [0, 2, -4]])
OTHER = np.array([[2, 2, -2], [1, -3, 4]])
REAL = np.array([[0.5, -1.5, 2.5], [-0.5, 3.25, 1.0]])
TRUE = np.array([[True, False, True], [False, False, True]])
ARITHMETIC = [((WHOLE, OTHER), {}), ((REAL, REAL + 2), {}), ((WHOLE, OTHER[:, 0]), {})]
ITEMS = [((WHOLE,), {}), ((REAL,), {})]
POSITIVE = [((np.abs(REAL),), {})]
LOGICAL = [((TRUE, ~TRUE), {}), ((TRUE, TRUE[:, :1]), {})]
AXES = [((x,), {"axes": (0,)}) for x in (WHOLE, REAL)] + [((OTHER,), {"axes": (0, 1)})]
ROUNDED = [((REAL,), {"ties": ties}) for ties in ("up", "away", "even")]
CASES: dict[str, list[Any]] = {
    **dict.fromkeys(("add", "sub", "mul", "div", "rem", "min", "max"), ARITHMETIC),
    **dict.fromkeys(("lt", "gt", "le", "ge", "eq", "ne"), ARITHMETIC),
    **dict.fromkeys(("neg", "abs", "sign", "sqr", "copy"), ITEMS),
    **dict.fromkeys(("sqrt", "rsqrt", "rcp", "exp", "log", "sin", "cos"), POSITIVE),
    **dict.fromkeys(("and", "or"), LOGICAL),
    **dict.fromkeys(("floor", "ceil"), ITEMS[1:]),
    **dict.fromkeys(("sum_reduce", "product_reduce", "max_reduce", "min_reduce"), AXES),
    "mean_reduce": AXES[1:2],
    "pow": [((WHOLE, np.array([[2], [3]])), {}), ((np.abs(REAL), REAL), {})],
    "not": [((TRUE,), {})],
    "round": ROUNDED,
    "select": [((TRUE, WHOLE, OTHER), {}), ((TRUE, REAL, -REAL), {})],
    "slice": [
        ((WHOLE,), {"axes": (1,), "begin": (-2,), "end": (0,), "stride": (1,)}),
        ((WHOLE,), {"axes": (1,), "begin": (-1,), "end": (0,), "stride": (-1,)}),
        ((REAL,), {"axes": (0, 1), "begin": (1, 2), "end": (-9, -9), "stride": (-1, -2)}),
    ],
    "split": [((np.concatenate([WHOLE, REAL], 1),), {"axis": 1, "ratios": (2, 1)})],
    "scatter_nd": [((WHOLE, np.array([[1, 2], [0, 0]]), np.array([8, 9])), {"reduction": "none"})],
    "gather": [((WHOLE, np.array([[1, 0]])), {"axis": 0}), ((REAL, np.array(2)), {"axis": 1})],
    "concat": [(((WHOLE, OTHER),), {"axis": 1})],
    "stack": [(((REAL, -REAL),), {"axis": 1})],
    "unstack": [((WHOLE,), {"axis": 0})],
    "squeeze": [((WHOLE[None],), {"axes": (0,)})],
    "unsqueeze": [((WHOLE,), {"axes": (0, 3)})],
    "transpose": [((WHOLE,), {"axes": (1, 0)})],
    "reshape": [((WHOLE,), {"shape": (0, 3, 1), "axis_start": 0, "axis_count": -1})],
    "tile": [((WHOLE,), {"repeats": (2, 1)})],
    "broadcast": [((WHOLE[:, :1],), {"shape": (2, 3)})],
}


def test_each_kind_has_a_case() -> None:
    assert CASES.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", CASES)
def test_values_are_those_of_the_rule(kind: str) -> None:
    for operands, attributes in CASES[kind]:
        found = evaluate(kind, [mapped(x, host) for x in operands], attributes)
        wanted = computed(kind, operands, attributes)
        for x, y in zip(found if isinstance(found, list) else [found], wanted, strict=True):
            assert x.shape == y.shape and {"O": "i"}.get(x.dtype.kind, x.dtype.kind) == y.dtype.kind
            np.testing.assert_allclose(x.astype(y.dtype), y, rtol=1e-6, atol=1e-6)


def computed(kind: str, operands: Any, attributes: dict[str, Any]) -> list[np.ndarray]:
    """Return what a graph of one operation gives."""
    builder, arrays = GraphBuilder(), list[np.ndarray]()

    def value(x: np.ndarray) -> Value:
        arrays.append(narrow(x))
        return builder.input(f"x{len(arrays)}", TensorType(x.shape, arrays[-1].dtype.name))

    named = zip(rules[kind].parameters, (mapped(x, value) for x in operands), strict=False)
    defaults = {"normalize": False} if kind == "sum_reduce" else {}
    results = builder.operation(
        kind,
        {n: tuple(x) if isinstance(x, list) else x for n, x in named},
        defaults | attributes,
        ["y"],
    )
    outputs = [y for result in results for y in values_of(result)]
    graph = builder.graph("g", outputs, [y.name for y in outputs])
    found = trace(graph, Context(), {}, {}, arrays)
    return [np.asarray(found[y]) for y in outputs]


def narrow(x: np.ndarray) -> np.ndarray:
    """Return an array in the dtype that rules compute in."""
    return x.astype({"i": np.int32, "f": np.float32, "b": np.bool_}[x.dtype.kind])


def test_open_extents_stay_open() -> None:
    extents = host([UNKNOWN, 3])
    assert list(evaluate("add", [extents, host(1)], {})) == [UNKNOWN, 4]
    assert list(evaluate("product_reduce", [extents], {"axes": [0]})) == [UNKNOWN]
    assert list(evaluate("lt", [extents, host(4)], {})) == [UNKNOWN, 1]
    assert np.isnan(evaluate("sqrt", [extents], {})[0])


@pytest.mark.parametrize(
    ("kind", "operands", "attributes"),
    [
        ("conv", [host(1)], {}),
        ("add", [host([1, 2]), host([1, 2, 3])], {}),
        ("reshape", [host([1, 2])], {"shape": (UNKNOWN,)}),
        ("tile", [host([1, 2])], {"repeats": (1 << 20,)}),
        ("max_reduce", [host([])], {"axes": (0,)}),
        ("unsqueeze", [host(1)], {"axes": (5,)}),
        ("split", [host([1, 2, 3])], {"axis": 0, "ratios": (1, 1)}),
        ("scatter_nd", [host([1, 2]), host([[0]]), host([3])], {"reduction": "add"}),
        ("gather", [host([1, 2]), host([UNKNOWN])], {"axis": 0}),
    ],
)
def test_what_is_left_to_the_network(kind: str, operands: Any, attributes: Any) -> None:
    with pytest.raises(NotFolded):
        evaluate(kind, operands, attributes)


@pytest.mark.parametrize(
    ("kind", "operands"),
    [("div", (1, 0)), ("mul", (1 << 62, 1 << 62)), ("pow", (2, -1)), ("sqr", (1 << 40,))],
)
def test_what_no_network_computes(kind: str, operands: Any) -> None:
    with pytest.raises(InvalidOperation):
        evaluate(kind, [host(x) for x in operands], {})
