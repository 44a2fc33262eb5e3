"""The flat graph: what is read, written, needed."""

from __future__ import annotations

from lowering.graph import (
    ABSENT,
    PRESENT,
    Graph,
    Operation,
    Parameter,
    StateVariable,
    TensorType,
    Value,
    is_complex,
    is_float,
    is_integer,
    mapped,
    substituted,
)

REAL = TensorType((2,), "float32")
X, Y, Z, W, S = (Value(name, REAL) for name in "xyzws")
PUT = Value("put", REAL, inserted=True)
FIRST = Operation("concat", (("values", (X, (W, 1.0))),), (), ((Y, PUT),))
SECOND = Operation("neg", (("x", Y),), (), (Z,))
GRAPH = Graph(
    "g", (X,), (Y,), ("y",), (FIRST, SECOND), (Parameter("w", W),), (StateVariable("s", S, Z),),
    {"again": Y},
)  # fmt: skip


def test_operands() -> None:
    assert list(FIRST.reads()) == [X, W] and list(FIRST.writes()) == [Y, PUT]
    assert FIRST.name == "y"
    assert substituted((X, (W, 1.0)), {X: Z}) == (Z, (W, 1.0))
    assert mapped((X, (W, 1.0)), lambda x: getattr(x, "name", x)) == ["x", ["w", 1.0]]


def test_values() -> None:
    assert GRAPH.values == {"x": X, "w": W, "s": S, "y": Y, "z": Z, "again": Y}


def test_dependencies() -> None:
    assert GRAPH.dependencies([X]) == {X}
    assert GRAPH.dependencies([Y]) == {X, W, Y}
    assert GRAPH.needed == {X, W, Y, Z}


def test_states() -> None:
    state = StateVariable("s", S, Z, initial=X)
    assert state.reads() == (Z, X) and not state.is_started
    other = state.substituted({S: X, Z: Y})
    assert (other.value, other.update, other.initial) == (X, Y, X) and other.is_started


def test_types() -> None:
    assert str(REAL) == "float32[2]" and PRESENT != ABSENT
    assert is_float("bfloat16") and is_integer("uint4") and is_complex("complex64")
    assert not (is_float("int8") or is_integer("bool") or is_complex("float32"))
