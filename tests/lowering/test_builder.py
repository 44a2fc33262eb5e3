"""Graphs that are built one operation at a time."""

from __future__ import annotations

import numpy as np
import pytest

from lowering.builder import GraphBuilder
from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN
from lowering.graph import ABSENT, PRESENT, TensorType
from lowering.registry import Registry

REAL = TensorType((2, 3), "float32")


def test_a_graph() -> None:
    builder = GraphBuilder()
    x, w = builder.input("x", REAL), builder.variable("w", "weights", REAL, None)
    (y,) = builder.operation("add", {"x": x, "y": 1.0}, {}, ["y"])
    parts = builder.operation("split", {"value": y}, {"axis": 0, "ratios": (1, 1)}, ["part"])
    graph = builder.graph("g", [y], ["out"])
    assert graph.inputs == (x,) and [p.value for p in graph.parameters] == [w]
    assert y.type == REAL
    assert [(p.name, p.type.shape) for p in parts[0]] == [("part_0", (1, 3)), ("part_1", (1, 3))]


def test_names_are_made_unique() -> None:
    builder = GraphBuilder()
    builder.reserve(["y", "y_"])
    x = builder.input("x", REAL)
    names = [builder.operation("neg", {"x": x}, {}, [name])[0].name for name in ("x", "x", "y")]
    assert names == ["x_1", "x_2", "y"]
    assert builder.unreserved("y") == "y__" and builder.is_taken("y")


def test_literals() -> None:
    builder = GraphBuilder(real="bfloat16")
    types = [builder.literal_type(x) for x in (1.5, 3, True, np.float16(1))]
    assert [t.dtype for t in types] == ["bfloat16", "int32", "bool", "float16"]
    with pytest.raises(InvalidOperation, match="2147483648"):
        builder.literal_type(1 << 31)


def test_unknown_extents_pass() -> None:
    builder = GraphBuilder()
    x = builder.input("x", TensorType((UNKNOWN, 3), "float32"))
    (y,) = builder.operation("add", {"x": x, "y": 1.0}, {}, ["y"])
    assert y.type.shape == (UNKNOWN, 3)


@pytest.mark.parametrize(
    ("operands", "attributes", "what"),
    [
        ({"x": 1.0}, {}, "the rule needs 'y'"),
        ({"x": 1.0, "y": 1.0}, {"z": 2}, "the rule takes no 'z'"),
        ({"x": 1.0, "y": True}, {}, "dtype"),
    ],
)
def test_wrong_operations(operands, attributes, what: str) -> None:
    with pytest.raises(InvalidOperation, match=what):
        GraphBuilder().operation("add", operands, attributes, ["y"])


def test_axes_that_no_index_reaches() -> None:
    builder = GraphBuilder()
    x = builder.input("x", TensorType((1 << 31,), "float32"))
    with pytest.raises(InvalidShape, match="at most 2147483647 items"):
        builder.operation("neg", {"x": x}, {}, ["y"])


def test_variables() -> None:
    builder = GraphBuilder()
    x, s = builder.input("x", REAL), builder.variable("s", "state", REAL, None)
    assert builder.variable("t", "state", REAL, None) is s is builder.variable_of("state")
    with pytest.raises(InvalidShape, match="declared as"):
        builder.variable("t", "state", TensorType((2,), "float32"), None)
    with pytest.raises(InvalidOperation, match="must be a variable"):
        builder.update(x, x)
    with pytest.raises(InvalidShape, match="its new value has"):
        builder.update(s, builder.input("short", TensorType((2,), "float32")))
    builder.starting("state", s, x, None)
    assert builder.update(s, x) is x
    with pytest.raises(InvalidOperation, match="twice"):
        builder.update(s, x)
    (state,) = builder.graph("g", [x], ["x"]).states
    assert (state.value, state.update, state.initial) == (s, x, x)


def test_a_scalar_of_logical_values_is_there() -> None:
    """Rules see another type than that of an operand that is absent, and may return it."""
    rules, seen, builder = Registry(), list[TensorType](), GraphBuilder()
    rules.rule("own", lambda x: seen.append(x) or x)(lambda x: x)
    for x in (builder.input("x", ABSENT), False):
        (y,) = builder.operation("own", {"x": x}, {}, ["y"], rule=rules["own"])
        assert y.type == ABSENT
    assert seen == [PRESENT, ABSENT]
