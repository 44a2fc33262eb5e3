"""Bodies of loops and branches that count items, and networks with lists as users export them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax

pytest.importorskip("onnx")

from onnx import helper

from tests.onnx.models import model, node, tensor

BOOL, INT64 = 9, 7
X = np.float32([[1, 2], [3, 4], [5, 7]])
MASKS = [np.array([True, False, True]), np.array([False, True, False]), np.zeros(3, bool)]
WEIGHTS: dict[str, Any] = {
    "axis": np.array([0]), "one": np.array([1]), "two": np.float32(2), "least": np.float32(0),
    "start": np.float32([1, 3]), "first": np.array(0), "square": np.float32([[1, 2], [3, 4]]),
}  # fmt: skip


def load(nodes: list[Any], *outputs: str) -> nnef_jax.Model:
    """Load a network of x and of a mask of its rows, with the list `it` of the chosen rows."""
    inputs = [tensor("x", X.shape), tensor("mask", (3,), BOOL)]
    choose = node("Compress", "x mask", "it", axis=0)
    ends = [tensor(name, None) for name in outputs or ("y",)]
    return nnef_jax.load(model([choose, *nodes], inputs, ends, WEIGHTS, 18))


def trimmed(net: nnef_jax.Model, *inputs: Any) -> Any:
    """Return the outputs of a call without padding."""
    return nnef_jax.trim(*net(*inputs, capture=net.lengths))


COUNTS = {
    "sum of a mask": [
        node("Cast", "mask", "numbers", to=INT64),
        node("ReduceSum", "numbers axis", "count", keepdims=0),
    ],
    "number of items": [
        node("Shape", "it", "shape", start=0, end=1),
        node("Squeeze", "shape", "count"),
    ],
}


@pytest.mark.parametrize("count", COUNTS)
def test_loops_stack_as_many_results_as_values_say(count: str) -> None:
    """Each iteration doubles the state, which is a result of the loop too."""
    body = helper.make_graph(
        [
            node("Identity", "go", "goes_on"),
            node("Mul", "state two", "after"),
            node("Identity", "after", "item"),
        ],
        "body",
        [tensor("i", (), INT64), tensor("go", (), BOOL), tensor("state", (2,))],
        [tensor("goes_on", None, BOOL), tensor("after", None), tensor("item", None)],
    )
    loop = node("Loop", "count _ start", "last y", body=body)
    net = load([*COUNTS[count], loop], "last", "y")
    for mask in MASKS:
        powers = 2.0 ** np.arange(1, mask.sum() + 1)[:, None] * WEIGHTS["start"]
        last, stacked = trimmed(net, X, mask)
        np.testing.assert_array_equal(stacked, powers)
        np.testing.assert_array_equal(last, WEIGHTS["start"] * 2.0 ** mask.sum())


def test_branches_with_other_numbers_of_items() -> None:
    """If the first row is chosen, the first chosen row; otherwise all of them and x."""
    then = helper.make_graph([node("Slice", "it axis one", "a")], "then", [], [tensor("a", None)])
    otherwise = helper.make_graph(
        [node("Concat", "it x", "b", axis=0)], "else", [], [tensor("b", None)]
    )
    condition = node("Gather", "mask first", "holds")
    net = load([condition, node("If", "holds", then_branch=then, else_branch=otherwise)])
    for mask in MASKS:
        chosen = X[mask]
        expected = chosen[:1] if mask[0] else np.concatenate([chosen, X])
        np.testing.assert_array_equal(trimmed(net, X, mask), expected)
    batch = jax.jit(jax.vmap(lambda m: net.apply(net.params, X, m, capture=net.lengths)))(
        np.stack(MASKS)
    )
    for mask, y in zip(MASKS, nnef_jax.trim(*batch), strict=True):
        np.testing.assert_array_equal(y, trimmed(net, X, mask))


def test_branches_that_count_items_themselves() -> None:
    """A branch chooses rows by a mask of its own, and its gradients are those of the rows."""
    then = helper.make_graph(
        [node("Compress", "x mask", "a", axis=0)], "then", [], [tensor("a", None)]
    )
    otherwise = helper.make_graph([node("Mul", "x two", "b")], "else", [], [tensor("b", None)])
    nodes = [
        node("Gather", "mask first", "holds"),
        node("If", "holds", "rows", then_branch=then, else_branch=otherwise),
        node("Mul", "rows rows", "squares"),
        node("ReduceSum", "squares axis", "y", keepdims=0),
    ]
    net = load(nodes)
    for mask in MASKS:
        slope = jax.grad(lambda x, mask=mask: net.apply(net.params, x, mask).sum())(X)
        expected = 2 * X * mask[:, None] if mask[0] else 8 * X
        np.testing.assert_allclose(slope, expected)


def test_export_with_an_open_batch(tmp_path: Path) -> None:
    """The extents of a list and those that the user leaves open are symbols of one program."""
    nodes = [
        node("ReduceSum", "x one", "total", keepdims=0),
        node("Greater", "total least", "chosen"),
        node("Compress", "x chosen", "it", axis=0),
        node("MatMul", "it square", "y"),
    ]
    network = model(nodes, [tensor("x", ("batch", 2))], [tensor("y", None)], WEIGHTS, 18)
    path = tmp_path / "net.npz"
    nnef_jax.load(network).export(path, batch="b")
    with np.load(path) as file:
        exported = jax.export.deserialize(file["function"])
        params = {"square": jnp.asarray(WEIGHTS["square"])}
    draw = np.random.default_rng(0)
    for batch in (1, 4, 7):
        x = draw.standard_normal((batch, 2)).astype(np.float32)
        expected = x[x.sum(1) > 0] @ WEIGHTS["square"]
        y = np.asarray(exported.call(params, x))
        assert y.shape == (batch, 2)
        np.testing.assert_allclose(y[: len(expected)], expected, rtol=1e-6)
        assert np.isnan(y[len(expected) :]).all()


def test_lists_with_custom_operations_are_saved(tmp_path: Path) -> None:
    """NNEF has no extents that depend on values, so `save` refuses and `convert` keeps them."""
    inputs = [tensor("x", X.shape), tensor("mask", (3,), BOOL)]
    nodes = [node("Compress", "x mask", "it", axis=0), node("Concat", "it x", "y", axis=0)]
    network = model(nodes, inputs, [tensor("y", None)], WEIGHTS, 18)
    with pytest.raises(nnef_jax.errors.UnsupportedError):
        nnef_jax.load(network).save(tmp_path / "net")
    nnef_jax.convert(network, tmp_path / "kept", keep=True)
    y = nnef_jax.load(tmp_path / "kept")(X, MASKS[0])
    np.testing.assert_array_equal(y, [X[0], X[2], *X, [np.nan] * 2])


def test_summaries_show_the_room_of_lists() -> None:
    nodes = [node("Transpose", "it", "columns", perm=[1, 0]), node("MatMul", "it columns", "y")]
    text = str(load(nodes).summary())
    assert "[<=3,2]" in text and "[2,<=3]" in text and "[<=3,<=3]" in text
    assert "the largest of" in text and "'y'" in text


def test_room_beyond_the_limit_is_refused() -> None:
    """The error names the tensor that tells the number of items."""
    nodes = [
        node("Compress", "x mask", "it", axis=0),
        node("Transpose", "it", "columns", perm=[1, 0]),
        node("MatMul", "it columns", "y"),
    ]
    inputs = [tensor("x", (40, 2)), tensor("mask", (40,), BOOL)]
    network = model(nodes, inputs, [tensor("y", None)], WEIGHTS, 18)
    limits = nnef_jax.Limits(tensor_items=1000)
    with pytest.raises(nnef_jax.errors.LimitError, match=r"\[40,40\] has room for") as caught:
        nnef_jax.load(network, limits=limits)
    assert "it.sum_reduce" in str(caught.value)


def branch(inner: list[Any], result: str, name: str) -> Any:
    """Return a graph without inputs, for a branch."""
    return helper.make_graph(inner, name, [], [tensor(result, None)])


@pytest.mark.parametrize("masks", [(MASKS[0], MASKS[1]), (MASKS[1], MASKS[0])])
def test_a_body_and_the_graph_around_it_count_apart(masks: Any) -> None:
    """Both choose rows by a first operation of their own, with counts that differ."""
    joins = [node("Compress", "x other", "b", axis=0), node("Concat", "it b", "t", axis=0)]
    choice = node(
        "If", "c", "y", then_branch=branch(joins, "t", "then"),
        else_branch=branch([node("Identity", "it", "e")], "e", "else"),
    )  # fmt: skip
    inputs = [tensor("x", X.shape), tensor("mask", (3,), BOOL), tensor("other", (3,), BOOL)]
    nodes = [node("Compress", "x mask", "it", axis=0), choice]
    ends = [tensor("y", None)]
    net = nnef_jax.load(model(nodes, [*inputs, tensor("c", (), BOOL)], ends, WEIGHTS, 18))
    mask, other = masks
    y = trimmed(net, X, mask, other, np.array(True))
    np.testing.assert_array_equal(y, np.concatenate([X[mask], X[other]]))


@pytest.mark.parametrize("other", [np.array([True, True, False]), MASKS[1]])
def test_lists_of_two_counts_are_added(other: Any) -> None:
    """The counts are equal in a run, or one of them is 1."""
    inputs = [tensor("x", X.shape), tensor("mask", (3,), BOOL), tensor("other", (3,), BOOL)]
    nodes = [
        node("Compress", "x mask", "a", axis=0),
        node("Compress", "x other", "b", axis=0),
        node("Add", "a b", "y"),
    ]
    net = nnef_jax.load(model(nodes, inputs, [tensor("y", None)], {}, 18))
    expected = X[MASKS[0]] + X[other]
    np.testing.assert_array_equal(trimmed(net, X, MASKS[0], other), expected)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_quotient_by_a_count_is_an_extent(count: int) -> None:
    nodes = [
        node("Shape", "it", "n", end=1),
        node("Div", "six n", "q"),
        node("Expand", "two q", "y"),
    ]
    inputs = [tensor("x", X.shape), tensor("mask", (3,), BOOL)]
    choose = node("Compress", "x mask", "it", axis=0)
    weights = {"six": np.array([6]), "two": WEIGHTS["two"]}
    net = nnef_jax.load(model([choose, *nodes], inputs, [tensor("y", None)], weights, 18))
    y = trimmed(net, X, np.arange(3) < count)
    np.testing.assert_array_equal(y, np.full(6 // count, 2, np.float32))


def test_a_count_below_many_operations() -> None:
    names = ["x", *(f"x{i}" for i in range(400))]
    steps = [node("Neg", before, after) for before, after in pairwise(names)]
    steps.append(node("NonZero", names[-1], "y"))
    net = nnef_jax.load(model(steps, [tensor("x", X.shape)], [tensor("y", None, INT64)], {}, 18))
    np.testing.assert_array_equal(trimmed(net, X), np.nonzero(X))


def test_numbers_that_are_read_twice_are_bounded_once() -> None:
    """The bound of the last of 60 maxima, each of one number with itself, is found at once."""
    names = ["n", *(f"n{i}" for i in range(60))]
    steps = [node("Max", f"{a} {a}", b) for a, b in pairwise(names)]
    nodes = [
        node("Cast", "mask", "numbers", to=INT64),
        node("ReduceSum", "numbers axis", "n"),
        *steps,
        node("Expand", f"two {names[-1]}", "y"),
    ]
    y = trimmed(load(nodes), X, MASKS[0])
    np.testing.assert_array_equal(y, np.float32([2, 2]))


def test_the_names_of_the_user_stay_free() -> None:
    (n0,) = jax.export.symbolic_shape("n0")
    inputs = [tensor("x", X.shape), tensor("mask", (3,), BOOL), tensor("z", ("n0", 2))]
    nodes = [node("Compress", "x mask", "a", axis=0), node("Concat", "a z", "y", axis=0)]
    net = nnef_jax.load(model(nodes, inputs, [tensor("y", None)], {}, 18))
    types = [
        jax.ShapeDtypeStruct((3, 2), jnp.float32),
        jax.ShapeDtypeStruct((3,), jnp.bool_),
        jax.ShapeDtypeStruct((n0, 2), jnp.float32),
    ]
    exported = jax.export.export(jax.jit(lambda *arrays: net(*arrays)))(*types)
    y = exported.call(X, MASKS[0], np.ones((2, 2), np.float32))
    np.testing.assert_array_equal(y[:4], [[1, 2], [5, 7], [1, 1], [1, 1]])


def test_a_list_is_joined_behind_a_tensor_of_a_known_extent() -> None:
    y = trimmed(load([node("Concat", "square it", "y", axis=1)]), X, MASKS[0])
    np.testing.assert_array_equal(y, [[1, 2, 1, 2], [3, 4, 5, 7]])


def test_an_operation_that_needs_the_number_of_items() -> None:
    nodes = [
        node("Unsqueeze", "it first_axes", "image"),
        node("Conv", "image filter", "y", auto_pad="SAME_UPPER", strides=[2, 2]),
    ]
    weights = {
        **WEIGHTS, "first_axes": np.array([0, 1]), "filter": np.ones((1, 1, 2, 2), np.float32),
    }  # fmt: skip
    inputs = [tensor("x", X.shape), tensor("mask", (3,), BOOL)]
    choose = node("Compress", "x mask", "it", axis=0)
    with pytest.raises(nnef_jax.NnefError, match="axis 2 of 'image' is a list, whose number"):
        nnef_jax.load(model([choose, *nodes], inputs, [tensor("y", None)], weights, 18))
