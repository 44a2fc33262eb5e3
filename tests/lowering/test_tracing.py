"""A graph as a function: what is computed when, captured, edited, and refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lowering.builder import GraphBuilder
from lowering.errors import InvalidComputation
from lowering.graph import TensorType
from lowering.registry import Registry
from lowering.tracing import Context, trace
from lowering.work import multiply_adds, total

REAL = TensorType((2,), "float32")
X = np.float32([1, -2])
LONG = np.arange(37, dtype=np.float32).reshape(1, 1, 37)  # no other test has this shape


def small():
    """Return a graph of y = -x, z = y * w + 2 * 3, and another branch that nothing needs."""
    builder = GraphBuilder()
    x, w = builder.input("x", REAL), builder.variable("w", "weights", REAL, None)
    (y,) = builder.operation("neg", {"x": x}, {}, ["y"])
    (six,) = builder.operation("mul", {"x": 2.0, "y": 3.0}, {}, ["six"])
    (p,) = builder.operation("mul", {"x": y, "y": w}, {}, ["p"])
    (z,) = builder.operation("add", {"x": p, "y": six}, {}, ["z"])
    builder.operation("exp", {"x": x}, {}, ["unread"])
    return builder.graph("g", [z], ["z"])


def test_values() -> None:
    graph, told = small(), list[int]()
    context, weights = Context(fold=told.append), {"weights": jnp.float32([4, 5])}
    values = trace(graph, context, weights, {}, [jnp.asarray(X)])
    found = {value.name: x for value, x in values.items()}
    np.testing.assert_array_equal(found["z"], [-4 + 6, 10 + 6])
    assert isinstance(found["six"], np.ndarray) and "unread" not in found
    assert told == [1]  # one item of a result on the host


@pytest.mark.parametrize(
    ("kind", "attributes", "expected"),
    [
        ("reshape", {"shape": (37, -1), "axis_start": 0, "axis_count": -1}, LONG.reshape(37, 1)),
        ("transpose", {"axes": (2, 0, 1)}, LONG.transpose(2, 0, 1)),
        ("squeeze", {"axes": (0, 1)}, LONG[0, 0]),
        ("unsqueeze", {"axes": (0, 3)}, LONG[None, :, :, None]),
    ],
)
def test_known_values_are_moved_without_a_compiler(kind: str, attributes, expected) -> None:
    builder = GraphBuilder()
    constant = {"shape": LONG.shape, "value": tuple(LONG.ravel().tolist()), "dtype": "float32"}
    (x,) = builder.operation("constant", {}, constant, ["x"])
    (y,) = builder.operation(kind, {"input": x}, attributes, ["y"])
    graph, compiled = builder.graph("g", [y], ["y"]), list[str]()

    def listener(event: str, duration_secs: float, **_: object) -> None:
        if "compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        result = trace(graph, Context(), {}, {}, [])[y]
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    assert isinstance(result, np.ndarray) and not compiled
    np.testing.assert_array_equal(result, expected, strict=True)


def test_wanted_and_edits() -> None:
    graph = small()
    y, z = graph.values["y"], graph.values["z"]
    values = trace(graph, Context(), {}, {}, [X], values=[y])
    assert z not in values
    edits = {y: lambda y: y * 0}
    values = trace(graph, Context(), {"weights": X}, {}, [X], edits=edits)
    np.testing.assert_array_equal(values[z], [6, 6])


def test_scopes_are_names() -> None:
    graph = small()

    def run(x):
        return trace(graph, Context(), {"weights": X}, {}, [x])[graph.outputs[0]]

    assert "neg" in str(jax.make_jaxpr(run)(X)) and "y" in jax.jit(run).lower(X).as_text("hlo")


@pytest.mark.parametrize(
    ("result", "what"),
    [
        (lambda x: (x, x), "2 results, it inferred 1"),
        (lambda x: x[:1], r"float32\[1\] for 'y', it inferred float32\[2\]"),
        (lambda x: "x", "no array but str"),
    ],
)
def test_rules_that_return_something_else(result, what: str) -> None:
    rules = Registry()
    rules.rule("own", lambda x: x)(lambda x: result(x))
    builder = GraphBuilder()
    x = builder.input("x", REAL)
    (y,) = builder.operation("own", {"x": x}, {}, ["y"], rule=rules["own"])
    with pytest.raises(InvalidComputation, match=what):
        trace(builder.graph("g", [y], ["y"]), Context(), {}, {}, [jnp.asarray(X)])


def test_errors_have_notes() -> None:
    rules = Registry()
    rules.rule("own", lambda x: x)(lambda x: {}["missing"])
    builder = GraphBuilder()
    x, none = builder.input("x", REAL), builder.input("none", TensorType((0,), "float32"))
    for operand in (x, none):
        builder.operation("own", {"x": operand}, {}, ["y"], rule=rules["own"])
    graph = builder.graph("g", [x], ["x"])
    wanted = [next(o.writes()) for o in graph.operations]
    with pytest.raises(KeyError) as found:
        trace(graph, Context(), {}, {}, [X, X[:0]], values=wanted[:1])
    assert found.value.__notes__ == ["y = own(float32[2])"]
    with pytest.raises(InvalidComputation, match=r"'none' is empty, it is \[0\]"):
        trace(graph, Context(), {}, {}, [X, X[:0]], values=wanted[1:])


def test_work() -> None:
    builder = GraphBuilder()
    a, b = (builder.input(n, TensorType(s, "float32")) for n, s in (("a", (2, 3)), ("b", (3, 4))))
    flags = {"transposeA": False, "transposeB": False}
    (c,) = builder.operation("matmul", {"A": a, "B": b}, flags, ["c"])
    builder.operation("neg", {"x": c}, {}, ["d"])
    graph = builder.graph("g", [c], ["c"])
    assert list(map(multiply_adds, graph.operations)) == [24, 0] and total(graph) == 24
