"""The rule `scan` against a loop in Python: chunks, directions, states, derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lowering.builder import GraphBuilder
from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import UNKNOWN
from lowering.graph import Graph, TensorType, Value
from lowering.ops import rules
from lowering.tracing import Context
from tests.operation_checks import Together

CONTEXT = Context()
RULE = rules["scan"]


@dataclass(frozen=True)
class Case:
    """One use: the operands' shapes, the attributes, and the body as a graph and in numpy."""

    scanned: tuple[tuple[int, ...], ...]
    axes: tuple[int, ...]
    chunks: tuple[int, ...]
    outputs: tuple[tuple[str, int, int], ...]
    full: tuple[tuple[int, ...], ...] = ()
    initial: tuple[tuple[int, ...], ...] = ()
    body: Callable[..., list[Any]] = lambda op, x: [x]
    skip: int = 0

    def operands(self) -> dict[str, list[np.ndarray]]:
        random = np.random.default_rng(7)
        groups = {"scanned": self.scanned, "full": self.full, "initial": self.initial}
        return {
            name: [random.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]
            for name, shapes in groups.items()
        }

    def attributes(self, operands: dict[str, list[Any]]) -> dict[str, Any]:
        shapes = {name: [np.shape(x) for x in items] for name, items in operands.items()}
        return {
            "body": graph_of(self, shapes),
            "axes": self.axes,
            "chunks": self.chunks,
            "outputs": self.outputs,
            "skip": self.skip,
        }


def graph_of(case: Case, shapes: dict[str, list[tuple[int, ...]]]) -> Graph:
    """The body as a graph: `case.body` given a function that adds operations to it."""
    builder = GraphBuilder()

    def op(kind: str, **arguments: Any) -> Any:
        rule = rules[kind]
        operands = {n: x for n, x in arguments.items() if isinstance(x, Value | float)}
        attributes = {n: x for n, x in arguments.items() if n not in operands}
        assert set(arguments) == set(rule.parameters)
        return builder.operation(kind, operands, attributes, [kind])[0]

    sliced = [
        (*s[: a % len(s)], abs(c), *s[a % len(s) + 1 :])
        for s, a, c in zip(shapes["scanned"], case.axes, case.chunks, strict=True)
    ]
    inputs = [
        builder.input(f"input{i}", TensorType(tuple(shape), "float32"))
        for i, shape in enumerate([*sliced, *shapes["full"], *shapes["initial"]])
    ]
    outputs = case.body(op, *inputs)
    return builder.graph("body", outputs, [f"output{i}" for i in range(len(outputs))])


def in_numpy(kind: str, **arguments: Any) -> Any:
    """What `op` is for the loop: the few operations that bodies here are made of."""
    match kind, *arguments.values():
        case "add", x, y:
            return x + y
        case "mul", x, y:
            return x * y
        case "tanh", x:
            return np.tanh(x)
        case "matmul", x, y, _, _:
            return x @ y
        case "sum_reduce", x, axes, _:
            return x.sum(tuple(axes), keepdims=True)
        case "transpose", x, axes:
            return x.transpose(axes)
    raise AssertionError(kind)


def loop(case: Case, scanned: Any, full: Any, initial: Any) -> list[np.ndarray]:
    """The iterations one by one, in 64 bits."""
    scanned, full, states = ([np.float64(x) for x in xs] for xs in (scanned, full, initial))
    first, count = scanned[0], 0
    count = -(-first.shape[case.axes[0]] // abs(case.chunks[0]))
    collected: list[list[Any]] = [[] for _ in case.outputs]
    final: list[Any] = [None] * len(case.outputs)
    for turn in range(count):
        chunks = [
            chunk_of(x, a, c, turn) for x, a, c in zip(scanned, case.axes, case.chunks, strict=True)
        ]
        results = case.body(in_numpy, *chunks, *full, *states)
        if turn < case.skip:
            results = [*states, *(np.zeros_like(r) for r in results[len(states) :])]
        states, values = results[: len(states)], results[len(states) :]
        for i, ((which, _, chunk), value) in enumerate(zip(case.outputs, values, strict=True)):
            final[i] = value
            if which == "full":
                collected[i].insert(len(collected[i]) if chunk > 0 else 0, value)
    return [
        np.concatenate(items, axis) if which == "full" else value
        for (which, axis, _), items, value in zip(case.outputs, collected, final, strict=True)
    ]


def chunk_of(x: np.ndarray, axis: int, chunk: int, turn: int) -> np.ndarray:
    size, extent = abs(chunk), x.shape[axis]
    items = []
    for i in range(turn * size, (turn + 1) * size):
        place = i if chunk > 0 else extent - 1 - i
        inside = 0 <= place < extent
        items.append(np.take(x, [place], axis) if inside else 0 * np.take(x, [0], axis))
    return np.concatenate(items if chunk > 0 else items[::-1], axis)


def summing(op: Any, x: Any, h: Any) -> list[Any]:
    """The state is the sum of all so far; results have the chunk's extent, or that of the state."""
    total = op("add", x=op("sum_reduce", input=x, axes=(0,), normalize=False), y=h)
    product = op("mul", x=x, y=total)
    return [total, product, total, product, total]


def recurrent(op: Any, x: Any, w: Any, h: Any) -> list[Any]:
    product = op("matmul", A=h, B=w, transposeA=False, transposeB=False)
    after = op("tanh", x=op("add", x=x, y=product))
    return [after, after, after]


def two_states(op: Any, x: Any, y: Any, a: Any, b: Any) -> list[Any]:
    """The states change places."""
    c = op("add", x=op("mul", x=a, y=x), y=y)
    return [b, c, c, op("mul", x=b, y=0.5), a]


def turned(op: Any, x: Any) -> list[Any]:
    return [op("transpose", input=x, axes=(1, 0))]


def _summing(extent: int, chunk: int, *signs: int, skip: int = 0) -> Case:
    outputs = (("full", 0, signs[0]), ("full", 0, signs[1]), ("last", 0, 1), ("last", 0, 1))
    return Case(((extent, 2),), (0,), (chunk,), outputs, (), ((1, 2),), summing, skip)


CASES = {
    "each": _summing(7, 1, 1, 1),
    "backward": _summing(7, -1, -1, -1),
    "backward_in_forward_out": _summing(5, -1, 1, 1),
    "forward_in_backward_out": _summing(5, 1, -1, -1),
    "chunks": _summing(6, 2, 1, 2),
    "chunks_backward": _summing(6, -3, -3, -1),
    "chunks_mixed": _summing(6, 2, -2, 1),
    "partial": _summing(7, 3, 3, 3),
    "partial_backward": _summing(7, -3, -3, 1),
    "one_partial": _summing(2, 5, 5, 5),
    "skip": _summing(5, 1, 1, -1, skip=2),
    "skip_chunks_backward": _summing(7, -2, -2, 1, skip=1),
    "recurrent": Case(
        ((6, 2, 3),),
        (0,),
        (1,),
        (("full", 0, 1), ("last", 0, 1)),
        ((1, 3, 3),),
        ((1, 2, 3),),
        recurrent,
    ),
    "recurrent_along_the_middle": Case(
        ((2, 6, 3),),
        (1,),
        (-1,),
        (("full", 1, -1), ("last", 0, 1)),
        ((1, 3, 3),),
        ((2, 1, 3),),
        recurrent,
    ),
    "two_states": Case(
        ((2, 4), (8, 4)),
        (1, 0),
        (2, -4),
        (("full", 1, 1), ("full", 0, 1), ("last", 0, 1)),
        (),
        ((2, 2), (2, 2)),
        lambda op, x, y, a, b: two_states(
            op, x, op("sum_reduce", input=y, axes=(0, 1), normalize=False), a, b
        ),
    ),
    "longer_second": Case(
        ((3, 2), (5, 2)),
        (0, 0),
        (1, 1),
        (("full", 0, 1),),
        body=lambda op, x, y: [op("add", x=x, y=y)],
    ),
    "other_axis": Case(((4, 3),), (0,), (2,), (("full", 1, 1),), body=turned),
    "negative_axes": Case(((4, 3),), (-2,), (2,), (("full", -1, -1),), body=turned),
    "no_state_last": Case(((4, 3),), (1,), (1,), (("last", 0, 1),)),
}


# What other cases show too, in another mixture.
SELDOM = {"backward_in_forward_out", "chunks", "chunks_mixed", "one_partial", "skip", "other_axis"}
ROWS = [pytest.param(n, marks=pytest.mark.slow) if n in SELDOM else n for n in CASES]


def lower(case: Case, operands: dict[str, list[Any]]) -> list[Any]:
    attributes = case.attributes(operands)
    return RULE.lower(ctx=CONTEXT, **operands, **attributes)


def weights(case: Case) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    return [random.uniform(-1, 1, x.shape) for x in loop(case, **case.operands())]


def batch(case: Case) -> list[np.ndarray]:
    """Scanned tensors, three of each."""
    return [np.stack([x, 2 * x, -x]) for x in case.operands()["scanned"]]


def traced(name: str) -> tuple[Any, Any]:
    """Results, gradient and derivative along ones of their weighted sum, results of a batch."""
    case = CASES[name]

    def total(operands: Any) -> Any:
        pairs = zip(lower(case, operands), weights(case), strict=True)
        return sum(jnp.vdot(x, np.float32(w)) for x, w in pairs)

    def function(operands: Any) -> Any:
        ones = jax.tree.map(jnp.ones_like, operands)
        forward = jax.jvp(total, (operands,), (ones,))[1]
        results = lower(case, operands), jax.grad(total)(operands), forward
        if name not in BATCHED:
            return results, None
        return results, jax.vmap(lambda x: lower(case, operands | {"scanned": x}))(batch(case))

    return function, (case.operands(),)


BATCHED = ["recurrent", "two_states", "partial_backward", "no_state_last"]
_DAILY, _WEEKLY = (
    cache(Together([n for n in CASES if (n in SELDOM) == weekly], traced))
    for weekly in (False, True)
)


def compiled(name: str) -> Any:
    return (_WEEKLY if name in SELDOM else _DAILY)(name)


@pytest.mark.parametrize("name", ROWS)
def test_values_are_those_of_a_loop(name: str):
    case = CASES[name]
    operands = case.operands()
    types = {
        key: [TensorType(x.shape, "float32") for x in items] for key, items in operands.items()
    }
    inferred = RULE.infer(**types, **case.attributes(operands))
    got = compiled(name)[0][0]
    assert [TensorType(x.shape, x.dtype.name) for x in got] == inferred
    for x, y in zip(got, loop(case, **operands), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ROWS)
def test_derivatives_are_those_of_a_loop(name: str):
    case = CASES[name]
    operands = case.operands()
    random = np.random.default_rng(4)

    def wanted(operands: Any) -> float:
        pairs = zip(loop(case, **operands), weights(case), strict=True)
        return sum(np.vdot(x, w) for x, w in pairs)

    _, found, forward = compiled(name)[0]
    leaves, tree = jax.tree.flatten({k: [np.float64(x) for x in v] for k, v in operands.items()})
    for k, (leaf, gradient) in enumerate(zip(leaves, jax.tree.leaves(found), strict=True)):
        step = random.uniform(-1, 1, leaf.shape)
        sides = [
            wanted(tree.unflatten([*leaves[:k], leaf + h * step, *leaves[k + 1 :]]))
            for h in (1e-5, -1e-5)
        ]
        slope = (sides[0] - sides[1]) / 2e-5
        np.testing.assert_allclose(np.vdot(gradient, step), slope, rtol=1e-3, atol=1e-4)
    backward = sum(jnp.sum(x) for x in jax.tree.leaves(found))
    np.testing.assert_allclose(forward, backward, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", BATCHED)
def test_batch_of_scans(name: str):
    case = CASES[name]
    for i in range(3):
        scanned = [x[i] for x in batch(case)]
        wanted = loop(case, **(case.operands() | {"scanned": scanned}))
        for x, y in zip(compiled(name)[1], wanted, strict=True):
            np.testing.assert_allclose(x[i], y, rtol=1e-5, atol=1e-6)


def test_an_empty_axis_has_no_iterations():
    results = lower(CASES["each"], CASES["each"].operands() | {"scanned": [np.zeros((0, 2), "f4")]})
    full, after, product, last = results
    assert full.shape == after.shape == (0, 2)
    np.testing.assert_array_equal(product, np.zeros((1, 2)))
    np.testing.assert_array_equal(last, CASES["each"].operands()["initial"][0])


def test_to_skip_all_is_zeros():
    case = _summing(3, 1, 1, 1, skip=5)
    full, after, _, last = lower(case, case.operands())
    assert not full.any()
    assert after.shape == (3, 2)
    np.testing.assert_array_equal(last, case.operands()["initial"][0])


def test_the_body_is_traced_not_unrolled():
    case = CASES["recurrent"]
    lengths = []
    for extent in (6, 60):
        operands = case.operands() | {"scanned": [np.zeros((extent, 2, 3), "f4")]}
        lengths.append(len(str(jax.make_jaxpr(lambda o: lower(case, o))(operands)).splitlines()))
    assert lengths[0] == lengths[1]


def test_integers_and_logical_values():
    builder = GraphBuilder()
    x = builder.input("x", TensorType((2,), "int32"))
    m = builder.input("m", TensorType((2,), "bool"))
    keep = builder.operation(
        "select", {"condition": m, "true_value": x, "false_value": x}, {}, ["keep"]
    )
    body = builder.graph("body", [keep[0], m], ["keep", "m"])
    got = RULE.lower(
        ctx=CONTEXT,
        scanned=[np.arange(5, dtype=np.int32), np.ones(5, bool)],
        full=[],
        initial=[],
        body=body,
        axes=(0, 0),
        chunks=(2, 2),
        outputs=(("full", 0, 1), ("full", 0, 1)),
        skip=0,
    )
    np.testing.assert_array_equal(got[0], [0, 1, 2, 3, 4, 0])
    np.testing.assert_array_equal(got[1], [True] * 5 + [False])


def _infer(case: Case, shapes: dict[str, Sequence[tuple[int, ...]]], **changes: Any) -> Any:
    full = {"scanned": case.scanned, "full": case.full, "initial": case.initial} | shapes
    types = {k: [TensorType(tuple(x), "float32") for x in v] for k, v in full.items()}
    attributes = case.attributes(case.operands()) | changes
    dtype = attributes.pop("initial_dtype", "float32")
    types["initial"] = [TensorType(x.shape, dtype) for x in types["initial"]]
    return RULE.infer(**types, **attributes)


def test_unknown_extents():
    case = CASES["chunks"]
    types = _infer(case, {"scanned": [(UNKNOWN, 2)]})
    assert [x.shape for x in types] == [(UNKNOWN, 2), (UNKNOWN, 2), (2, 2), (1, 2)]
    types = _infer(CASES["longer_second"], {"scanned": [(UNKNOWN, 2), (5, 2)]})
    assert types[0].shape == (UNKNOWN, 2)


@pytest.mark.parametrize(
    ("name", "shapes", "changes", "message"),
    [
        ("each", {"scanned": []}, {"axes": (), "chunks": ()}, "at least one tensor"),
        ("each", {}, {"chunks": (0,)}, "chunks of at least 1"),
        ("each", {}, {"axes": (2,)}, "must lie in"),
        ("each", {}, {"skip": -1}, "must not be negative"),
        ("each", {}, {"initial_dtype": "float16"}, "holds float16 at first and float32"),
        ("each", {"initial": [(3, 2)]}, {}, r"shape \[3,2\] at first and \[1,2\]"),
        ("longer_second", {"scanned": [(5, 2), (3, 2)]}, {}, "have 5, 3 chunks"),
        ("no_state_last", {}, {"outputs": (("first", 0, 1),)}, '"full" or "last"'),
        ("other_axis", {}, {"outputs": (("full", 2, 1),)}, "must lie in"),
    ],
)
def test_what_is_refused(name: str, shapes: Any, changes: Any, message: str):
    with pytest.raises((InvalidOperation, InvalidShape), match=message):
        _infer(CASES[name], shapes, **changes)
