"""Loops whose states change their shape in each iteration, compared with onnx.reference."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

import nnef_jax

pytest.importorskip("onnx")

from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.differences import assert_slopes
from tests.onnx.models import model, node, tensor

BOOL, INT64 = 9, 7
X = np.float32([[1, 2], [3, 4], [5, 7], [6, -1]])
MASKS = [np.array([True, False, True, True]), np.array([False, True, False, False]),
         np.zeros(4, bool), np.ones(4, bool)]  # fmt: skip
WEIGHTS: dict[str, Any] = {
    "axis": np.array([0]), "first": np.array(0), "one": np.array([1]), "two": np.float32(2),
    "empty": np.zeros((0, 2), np.float32), "row": np.float32([[1, 1]]), "six": np.array(6),
    "corner": np.array([0, 0, 1, 1]), "least": np.float32(8), "five": np.array(5),
    "square": np.float32([[1]]), "far": np.array([2**62]), "minus_two": np.array([-2]),
    "two_steps": np.array([2]), "million": np.array([2**20]), "two_items": np.array([2]),
    "two_rows_of_x": np.float32([[1, 2], [5, 7]]),
    "columns": np.array([0]),
}  # fmt: skip
COUNT = [node("Cast", "mask", "numbers", to=INT64),
         node("ReduceSum", "numbers axis", "count", keepdims=0)]  # fmt: skip


def body(nodes: list[Any], *outputs: str, states: int = 1) -> Any:
    """Return the body of a loop with states s0, s1, ..., and the outputs `outputs`."""
    inputs = [tensor("i", (), INT64), tensor("go", (), BOOL)]
    inputs += [tensor(f"s{i}", None) for i in range(states)]
    ends = [tensor(name, None) for name in outputs]
    return helper.make_graph(nodes, "body", [inputs[0], inputs[1], *inputs[2:]],
                             [tensor("goes_on", None, BOOL), *ends])  # fmt: skip


def branch(nodes: list[Any], output: str) -> Any:
    """Return a branch of an If."""
    return helper.make_graph(nodes, "branch", [], [tensor(output, None)])


GO = node("Identity", "go", "goes_on")
TAKE = [node("Gather", "x i", "item", axis=0), node("Unsqueeze", "item axis", "taken")]
APPEND = node("Concat", "s0 taken", "after", axis=0)
# The rows whose first number is more than 2.
CHOOSE = [node("Gather", "all first", "column", axis=1), node("Greater", "column two", "stays"),
          node("Compress", "all stays", "after", axis=0)]  # fmt: skip
# While the sum of the rows is at most 8; the rows so far are its state.
UNTIL = [
    node("ReduceSum", "after", "total", keepdims=0),
    node("LessOrEqual", "total least", "goes_on"),
]
ALL = node("Concat", "s0 taken", "all", axis=0)
CHOSEN = node("Compress", "x mask", "chosen", axis=0)
INNER = helper.make_graph(
    [node("Identity", "inner_go", "goes_on"), node("Gather", "x k", "inner_item", axis=0),
     node("Unsqueeze", "inner_item axis", "inner_taken"),
     node("Concat", "t inner_taken", "inner_after", axis=0)],
    "inner", [tensor("k", (), INT64), tensor("inner_go", (), BOOL), tensor("t", None)],
    [tensor("goes_on", None, BOOL), tensor("inner_after", None)],
)  # fmt: skip
Case = tuple[list[Any], list[str]]  # the nodes of a network, and its outputs


def repeated(*nodes: Any) -> Case:
    """Return a network that repeats nodes, as often as the mask has true items.

    The nodes compute the state "after" from the state "s0", which is "row" at first.
    """
    loop = node("Loop", "count yes row", "y", body=body([GO, *TAKE, *nodes], "after"))
    return [*COUNT, CHOSEN, loop], ["y"]


def append_or(rows: str) -> Case:
    """Return a network that appends a row if its first number is large, else takes `rows`."""
    append = branch([node("Concat", "s0 taken", "more", axis=0)], "more")
    other = branch([node("Identity", rows, "same")], "same")
    return repeated(
        node("Gather", "item first", "number", axis=0),
        node("Greater", "number two", "is_large"),
        node("If", "is_large", "after", then_branch=append, else_branch=other),
    )


CASES: dict[str, Case] = {
    "as many rows as a mask has": (
        [*COUNT, node("Loop", "count yes empty", "y", body=body([GO, *TAKE, APPEND], "after"))],
        ["y"],
    ),
    "rows until a sum is reached": (
        [*COUNT, node("Loop", "count yes row", "y", body=body([*TAKE, APPEND, *UNTIL], "after"))],
        ["y"],
    ),
    "rows until a sum is reached, at most 4": (
        [node("Loop", "four yes row", "y", body=body([*TAKE, APPEND, *UNTIL], "after"))],
        ["y"],
    ),
    "a state that follows another one": (
        [*COUNT, node("Loop", "count yes empty row", "y z",
                      body=body([GO, *TAKE, APPEND, node("Identity", "s0", "late")],
                                "after", "late", states=2))],
        ["y", "z"],
    ),
    "sums of the rows so far are stacked": (
        [*COUNT, node("Loop", "count yes empty", "y sums",
                      body=body([GO, *TAKE, APPEND,
                                 node("ReduceSum", "after axis", "sum", keepdims=0)],
                                "after", "sum"))],
        ["y", "sums"],
    ),
    "a square that grows along two axes": (
        [*COUNT, node("Loop", "count yes square", "y",
                      body=body([GO, node("Pad", "s0 corner two", "after")], "after"))],
        ["y"],
    ),
    "rows that are dropped": (
        [*COUNT, node("Loop", "count yes x", "y",
                      body=body([GO, node("Gather", "s0 first", "column", axis=1),
                                 node("Sub", "s0 square", "less"),
                                 node("Greater", "column two", "stays"),
                                 node("Compress", "less stays", "after", axis=0)], "after"))],
        ["y"],
    ),
    "two rows at a time": (
        [*COUNT, node("Loop", "count yes row", "y",
                      body=body([GO, *TAKE, node("Concat", "taken s0 taken", "after", axis=0)],
                                "after"))],
        ["y"],
    ),
    "a row is appended if its first number is large": append_or("s0"),
    "a row is appended, or all are dropped": append_or("empty"),
    "a row is appended, or two rows replace all": append_or("two_rows_of_x"),
    "a row is appended, and small rows are dropped": repeated(ALL, *CHOOSE),
    "the last two rows": repeated(ALL, node("Slice", "all minus_two far axis", "after")),
    "every second row": repeated(
        node("Concat", "s0 taken taken taken", "all", axis=0),
        node("Slice", "all axis far axis two_steps", "after"),
    ),
    "all rows but the first": repeated(
        node("Concat", "s0 taken taken", "all", axis=0),
        node("Slice", "all one far axis", "after"),
    ),
    "all rows but the first, at most a million": repeated(
        node("Concat", "s0 taken taken", "all", axis=0),
        node("Slice", "all one million axis", "after"),
    ),
    "rows without repetition": repeated(ALL, node("Unique", "all", "after", axis=0)),
    "the best two rows": repeated(
        ALL,
        node("Shape", "all", "length", start=0, end=1),
        node("Min", "length two_items", "k"),
        node("TopK", "all k", "after places", axis=0),
    ),
    "a list is appended": repeated(node("Concat", "s0 chosen", "after", axis=0)),
    "a list replaces the rows": repeated(node("Identity", "chosen", "after")),
    "a list that no result needs": repeated(node("Identity", "chosen", "unused"), APPEND),
    "all rows but the last two of the rows so far": repeated(
        node("Sub", "i two_rows", "less"),
        node("Unsqueeze", "less axis", "end"),
        node("Slice", "x axis end axis", "after"),
    ),
    "a loop in a loop": repeated(node("Loop", "count yes s0", "after", body=INNER)),
    "as many rows as the number of the iteration": repeated(
        node("Unsqueeze", "i axis", "end"), node("Slice", "x axis end axis", "after"),
    ),
    "questions about the length of a list": (
        [CHOSEN, node("Shape", "chosen", "length", start=0, end=1),
         node("Equal", "length axis", "is_empty"), node("Less", "length one", "is_less"),
         node("Greater", "length axis", "has_rows"), node("Max", "length one", "at_least_one"),
         node("Sign", "length", "sign"), node("Where", "has_rows one minus_two", "number")],
        ["is_empty", "is_less", "has_rows", "at_least_one", "sign", "number"],
    ),
    "a loop that ends by the length of a list": (
        [CHOSEN, node("Loop", "four yes row", "y",
                      body=body([node("Concat", "s0 chosen row", "after", axis=0),
                                 node("Shape", "after", "length", start=0, end=1),
                                 node("Squeeze", "length", "rows"),
                                 node("Less", "rows five", "goes_on")], "after"))],
        ["y"],
    ),
    "rows before and after a negative place": (
        [*COUNT, node("Add", "count minus_two", "end"), node("Slice", "x axis end axis", "y"),
         node("Slice", "x end far axis", "z")],
        ["y", "z"],
    ),
    "a state that is transposed": repeated(node("Transpose", "s0", "after")),
    "a row is appended to a transposed state": repeated(
        node("Transpose", "s0", "columns_of_state"),
        node("Transpose", "taken", "column"),
        node("Concat", "columns_of_state column", "more_columns", axis=1),
        node("Transpose", "more_columns", "after"),
    ),
    "a square that is transposed and grows": (
        [*COUNT, node("Loop", "count yes square", "y",
                      body=body([GO, node("Pad", "s0 corner two", "more"),
                                 node("Transpose", "more", "after")], "after"))],
        ["y"],
    ),
    "two states exchange their rows": (
        [*COUNT, node("Loop", "count yes row x", "y z",
                      body=body([GO, *TAKE, node("Concat", "s1 taken", "after", axis=0),
                                 node("Identity", "s0", "other")], "after", "other", states=2))],
        ["y", "z"],
    ),
    "the last rows, as many as the number of the iteration": repeated(
        node("Neg", "i", "negative"),
        node("Unsqueeze", "negative axis", "begin"),
        node("Slice", "x begin far axis", "after"),
    ),
    "all rows but the last, as many as the number of the iteration": repeated(
        node("Concat", "s0 taken taken", "all", axis=0),
        node("Mul", "i minus_1", "negative"),
        node("Unsqueeze", "negative axis", "end"),
        node("Slice", "all axis end axis", "after"),
    ),
    "as many rows as are missing": repeated(
        node("Shape", "s0", "length", start=0, end=1),
        node("Squeeze", "length axis", "rows"),
        node("Sub", "four rows", "missing"),
        node("Range", "first missing step", "places"),
        node("Gather", "x places", "more", axis=0),
        node("Concat", "row more", "after", axis=0),
    ),
    "rows from the number of the iteration on": repeated(
        node("Range", "i count step", "places"), node("Gather", "x places", "after", axis=0)
    ),
    "rows back from the number of the iteration": repeated(
        node("Range", "i minus_1 minus_1", "places"), node("Gather", "x places", "after", axis=0)
    ),
    "every second row of the rows so far": repeated(
        node("Concat", "s0 taken taken", "all", axis=0),
        node("Shape", "all", "length", start=0, end=1),
        node("Squeeze", "length axis", "rows"),
        node("Range", "i rows two_rows", "places"),
        node("Gather", "all places", "after", axis=0),
    ),
    "a number of rows that is not negative": repeated(
        node("Sub", "four i", "number"),
        node("Unsqueeze", "number axis", "rows"),
        node("Concat", "rows two_steps", "shape", axis=0),
        node("ConstantOfShape", "shape", "after"),
    ),
    "the last row depends on the state": (
        [*COUNT, node("Loop", "count yes row", "y",
                      body=body([GO, node("ReduceSum", "s0 axis", "taken"), APPEND], "after"))],
        ["y"],
    ),
}  # fmt: skip


def network(nodes: list[Any], names: list[str]) -> Any:
    inputs = [tensor("x", X.shape), tensor("mask", (4,), BOOL)]
    numbers = {
        "four": 4,
        "two_rows": 2,
        "nine": 9,
        "step": 1,
        "minus_1": -1,
        "many": 2000,
        "endless": 2**63 - 1,
    }
    weights = {**WEIGHTS, "yes": np.array(True)}
    weights |= {name: np.array(number) for name, number in numbers.items()}
    return model(nodes, inputs, [tensor(name, None) for name in names], weights, 18)


@pytest.mark.parametrize("case", CASES)
def test_loops_are_those_of_the_reference(case: str) -> None:
    file = network(*CASES[case])
    reference = ReferenceEvaluator(file)
    net = nnef_jax.load(file.SerializeToString())

    def total(x: Any, mask: Any) -> Any:
        outputs = net(x, mask)
        outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
        return sum(jax.numpy.nansum(y.astype(np.float32) ** 2) for y in outputs)

    gradients = jax.jit(jax.vmap(jax.grad(total), (None, 0)))(X, np.stack(MASKS))
    for mask, gradient in zip(MASKS, gradients, strict=True):
        if "sums" in CASES[case][1] and not mask.any():
            continue  # the reference stacks no empty lists
        expected = reference.run(None, {"x": X, "mask": mask})
        outputs, lengths = net(X, mask, capture=net.lengths)
        trimmed = nnef_jax.trim(outputs, lengths)
        trimmed = trimmed if len(expected) > 1 else [trimmed]
        for y, array in zip(trimmed, expected, strict=True):
            np.testing.assert_array_equal(y, array)
        assert_slopes(partial(total, mask=mask), X, gradient)


SIZE_BELOW_5 = [node("Shape", "after", "extents"), node("ReduceMin", "extents", "rows", keepdims=0),
                node("Less", "rows five", "goes_on")]  # fmt: skip


@pytest.mark.parametrize("count", ["nine", "count", "many", "endless", "_"])
def test_a_condition_on_the_shape_of_a_state(count: str) -> None:
    """The square grows by a row and a column until it has 5, or as often as the mask tells."""
    square = body([node("Pad", "s0 corner two", "after"), *SIZE_BELOW_5], "after")
    file = network([*COUNT, node("Loop", f"{count} yes square", "y", body=square)], ["y"])
    net = nnef_jax.load(file.SerializeToString())
    for mask in MASKS:
        (expected,) = ReferenceEvaluator(file).run(None, {"x": X, "mask": mask})
        result, lengths = net(X, mask, capture=net.lengths)
        np.testing.assert_array_equal(nnef_jax.trim(result, lengths), expected)


def test_a_list_from_the_second_iteration_on() -> None:
    """The condition is a constant before the first iteration, and computed afterwards."""
    nodes = [
        node("Compress", "x mask", "after", axis=0),
        node("Identity", "s0", "late"),
        node("Shape", "late", "extents", start=0, end=1),
        node("Squeeze", "extents", "rows"),
        node("Greater", "rows two_rows", "goes_on"),
    ]
    loop = node("Loop", "four yes x x", "y z", body=body(nodes, "after", "late", states=2))
    file = network([loop], ["y", "z"])
    net = nnef_jax.load(file.SerializeToString())
    for mask in MASKS:
        expected = ReferenceEvaluator(file).run(None, {"x": X, "mask": mask})
        outputs, lengths = net(X, mask, capture=net.lengths)
        for y, array in zip(nnef_jax.trim(outputs, lengths), expected, strict=True):
            np.testing.assert_array_equal(y, array)


def test_a_state_that_shrinks_needs_no_limit() -> None:
    """Rows lose 1 until the largest first number is at most 2; rows of at most 2 are dropped."""
    nodes = [
        node("Sub", "s0 square", "less"),
        node("Gather", "less first", "column", axis=1),
        node("Greater", "column two", "stays"),
        node("Compress", "less stays", "after", axis=0),
        node("Cast", "stays", "numbers", to=INT64),
        node("ReduceSum", "numbers axis", "remaining", keepdims=0),
        node("Greater", "remaining first", "goes_on"),
    ]
    file = network([node("Loop", "_ yes x", "y", body=body(nodes, "after"))], ["y"])
    net = nnef_jax.load(file.SerializeToString())
    result, lengths = net(X, MASKS[0], capture=net.lengths)
    assert nnef_jax.trim(result, lengths).shape == (0, 2)


@pytest.mark.parametrize(
    ("count", "nodes", "message"),
    [
        (
            "count",
            [GO, node("Concat", "s0 s0", "after", axis=0)],
            "no bound is known for the number of items",
        ),
        ("_", [*TAKE, APPEND, *UNTIL], "the number of iterations has no upper bound"),
    ],
)
def test_states_without_a_largest_size_are_refused(
    count: str, nodes: list[Any], message: str
) -> None:
    loop = node("Loop", f"{count} yes row", "y", body=body(nodes, "after"))
    file = network([*COUNT, loop], ["y"])
    with pytest.raises(nnef_jax.SemanticError, match=message) as error:
        nnef_jax.load(file.SerializeToString())
    assert "axis 0 of state" in str(error.value)
    assert "Loop" in str(error.value)
