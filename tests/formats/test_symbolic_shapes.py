"""Shapes with symbolic extents, inferred while a graph is built."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from lowering import GraphBuilder
from lowering.graph import TensorType, Value
from nnef_jax.flattening import symbolic
from nnef_jax.flattening.symbolic import SymbolicShapes, open_type


def test_equal_layers_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three layers join a cache and x; the third has a cache of another length."""
    traced: list[Any] = []

    def counted(function: Any, *arguments: Any) -> Any:
        traced.append(arguments)
        return eval_shape(function, *arguments)

    eval_shape = jax.eval_shape
    monkeypatch.setattr(symbolic.jax, "eval_shape", counted)
    past, other = jax.export.symbolic_shape("P, Q")
    builder = GraphBuilder()
    shapes = SymbolicShapes(builder)

    def input(name: str, *shape: Any) -> Value:
        value = builder.input(name, open_type(shape, "float32"))
        shapes.declare(value, shape)
        return value

    def concatenated(name: str, *values: Value) -> Value:
        results: Any = builder.operation("concat", {"values": values}, {"axis": 0}, [name])
        return results[0]

    x = input("x", 1, 4)
    assert x.type == TensorType((1, 4), "float32")
    joined: list[Value] = []
    for name, length in (("a", past), ("b", past), ("c", other)):
        cache = input(name, length, 4)
        joined.append(concatenated(f"{name}2", cache, x))
    assert [str(shapes.shape_of(value)[0]) for value in joined] == ["P + 1", "P + 1", "Q + 1"]
    assert len(traced) == 2
    swapped = concatenated("swapped", x, joined[0])
    assert str(shapes.shape_of(swapped)[0]) == "P + 2"
