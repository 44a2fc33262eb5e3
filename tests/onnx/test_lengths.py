"""Results with as many items as values say: padded, and followed through what reads them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from nnef_jax.errors import NnefError

pytest.importorskip("onnx")

from onnx import helper

from tests.onnx.models import model, node, tensor

X = np.float32([[1, 2], [3, 4], [5, 7]])
MASK = np.array([True, False, True])
NAN = np.float32([np.nan, np.nan])
BOOL = 9
WEIGHTS: dict[str, Any] = {
    "zero": np.array([0]), "one": np.array([1]), "pair": np.float32([[2, 3]]),
    "column": np.float32([[1], [1]]), "shape": np.array([1, 2, -1]), "flat": np.array([-1]),
    "rows": X[:, :1], "last": np.array([-1]), "none": np.array(0),
    "pair_of": X[0], "sizes": np.array([3, 2]), "far": np.array([9]), "least": np.array([-9]),
    "twice": np.array([2, 1]), "column_count": np.array(8),
    "pair_mask": np.array([False, True, True]),
}  # fmt: skip


def chosen(nodes: Sequence[Any], outputs: Sequence[str] = ("y",)) -> Any:
    """Load a network of rows of x that a mask chooses, `it`, and what is done to them."""
    inputs = [tensor("x", X.shape), tensor("mask", MASK.shape, BOOL)]
    first = node("Compress", "x mask", "it", axis=0)
    found = model([first, *nodes], inputs, [tensor(n, None) for n in outputs], WEIGHTS, 18)
    return nnef_jax.load(found)


DONE: list[tuple[list[Any], Any]] = [
    ([node("Identity", "it")], [X[0], X[2], NAN]),
    ([node("Mul", "it pair")], [X[0] * [2, 3], X[2] * [2, 3], NAN]),
    ([node("Transpose", "it", "t"), node("Reshape", "t shape")],
     [[[1, 5, np.nan], [2, 7, np.nan]]]),
    ([node("MatMul", "it column")], [[3], [12], [np.nan]]),
    ([node("Gather", "it one", axis=1)], [[2], [7], [np.nan]]),
    ([node("Relu", "it", "s"),
      node("ReduceSum", "s", keepdims=0)], 15),
    ([node("ReduceMean", "it zero", keepdims=0)], [3, 4.5]),
    ([node("Neg", "it", "n"), node("ReduceMax", "n zero", keepdims=0)], [-1, -2]),
    ([node("ReduceLogSumExp", "it zero", keepdims=0)], np.log(np.exp(X[::2]).sum(0))),
    ([node("ArgMax", "it", axis=0, keepdims=0)], [1, 1]),
    ([node("Shape", "it")], [2, 2]),
    ([node("Size", "it")], 4),
    ([node("Slice", "it zero one")], [X[0]]),
    ([node("NonZero", "mask", "n"), node("Transpose", "n", "p"), node("Mul", "it it", "q"),
      node("ScatterND", "x p q")], [X[0] ** 2, X[1], X[2] ** 2]),
    ([node("NonZero", "mask", "n"), node("Transpose", "n", "p"), node("GatherND", "rows p")],
     [[1], [5], [np.nan]]),
    ([node("NonZero", "it")], [[0, 0, 1, 1, -1, -1], [0, 1, 0, 1, -1, -1]]),
    ([node("CumSum", "it zero")], [X[0], X[0] + X[2], NAN]),
    ([node("Concat", "it x", axis=0)], [X[0], X[2], *X, NAN]),
    ([node("Concat", "x it", axis=0)], [*X, X[0], X[2], NAN]),
    ([node("Compress", "x mask", "o", axis=0), node("Add", "it o")], [X[0] * 2, X[2] * 2, NAN]),
    ([node("Compress", "x pair_mask", "o", axis=0), node("Concat", "it o", axis=1)],
     [[*X[0], *X[1]], [*X[2], *X[2]], [np.nan] * 4]),
    ([node("Reshape", "it flat")], [*X[0], *X[2], np.nan, np.nan]),
    ([node("Gemm", "it it", transA=1)], X[::2].T @ X[::2]),
    ([node("Softmax", "it", axis=0)], [*(np.exp(X[::2]) / np.exp(X[::2]).sum(0)), NAN]),
    ([node("Gather", "it one", axis=0)], [X[2]]),
    ([node("Gather", "it last", axis=0)], [X[2]]),
    ([node("Unique", "it", axis=0)], [X[0], X[2], NAN]),
    ([node("Slice", "it zero last zero")], [X[0], NAN, NAN]),
    ([node("Slice", "it last least zero last")], [X[2], X[0], NAN]),
    ([node("Slice", "it one far zero")], [X[2], NAN]),
    ([node("EyeLike", "it")], [[1, 0], [0, 1], NAN]),
    ([node("Hardmax", "it", axis=0)], [[0, 0], [1, 1], NAN]),
    ([node("Resize", "it _ _ sizes")], [X[0], X[0], X[2]]),
    ([node("TopK", "it one", "y indices", axis=0)], [X[2]]),
    ([node("Split", "it", "y z", axis=0, num_outputs=2)], [X[0], NAN]),
    ([node("Tile", "it twice")], [X[0], X[2], X[0], X[2], NAN, NAN]),
    ([node("Cast", "it", "i", to=7), node("OneHot", "i column_count pair_of", axis=-1)],
     [[[1, 2, 1, 1, 1, 1, 1, 1], [1, 1, 2, 1, 1, 1, 1, 1]],
      [[1, 1, 1, 1, 1, 2, 1, 1], [1, 1, 1, 1, 1, 1, 1, 2]], np.full((2, 8), np.nan)]),
]  # fmt: skip


def test_what_is_done_to_items_that_values_choose() -> None:
    """All of it in one network, whose tensors are named after the row."""
    nodes: list[Any] = []
    ends = [f"y of row {i}" for i in range(len(DONE))]
    for i, (row, _) in enumerate(DONE):
        made = {name for node in row for name in node.output}
        for each in row:
            one = deepcopy(each)
            one.input[:] = [f"{x} of row {i}" if x in made else x for x in each.input]
            one.output[:] = [f"{x} of row {i}" for x in each.output]
            nodes.append(one)
    found = chosen(nodes, ends)(X, MASK)
    for (row, wanted), y in zip(DONE, found, strict=True):
        assert y.shape == np.shape(wanted), row
        np.testing.assert_allclose(np.asarray(y), wanted, rtol=1e-6, err_msg=str(row))


def test_lists_without_items() -> None:
    """Each result of a sum is 0, and each list stays empty."""
    steps = ["CumSum", "Concat", "Gemm", "Slice", "Tile", "Unique"]
    for row, _ in DONE:
        if row[-1].op_type not in steps or len(row) > 1:
            continue
        model = chosen(row)
        results = model(X, MASK & False, capture=model.lengths)
        y = nnef_jax.trim(*results) if model.lengths else results[0]
        items = {"Gemm": np.zeros((2, 2)), "Concat": X}.get(row[-1].op_type, np.zeros((0, 2)))
        np.testing.assert_array_equal(y, items, err_msg=str(row))


def test_what_cannot_be_computed_of_a_list_is_refused() -> None:
    """The error names the operator, the axis, and the tensor that tells the number of items."""
    with pytest.raises(NnefError, match="number of items depends on values") as caught:
        chosen([node("Transpose", "it", "t"), node("Unsqueeze", "t zero", "u"),
                node("MaxPool", "u", kernel_shape=[2])])  # fmt: skip
    message = str(caught.value)
    assert "MaxPool" in message and "axis 2" in message and "it.sum_reduce" in message
    assert "cut the network" in message


def test_a_body_takes_items_of_a_list() -> None:
    """A scan has an iteration for each item, and the size of a state that is a list."""
    inner = [node("Size", "state", "size"), node("Add", "state item", "after")]
    ends = [[tensor(n, None) for n in names] for names in (("state", "item"), ("after", "size"))]
    body = helper.make_graph(inner, "body", *ends)
    first = node("ReduceSum", "x zero", "start", keepdims=0)
    last, sizes = chosen(
        [first, node("Scan", "start it", "after y", body=body, num_scan_inputs=1)], ["after", "y"]
    )(X, MASK)
    np.testing.assert_array_equal(last, X.sum(0) + X[0] + X[2])
    np.testing.assert_array_equal(sizes, [2, 2, -1])


def test_distinct_items() -> None:
    """Each that there is, where it is first, how often, then padding; how many is known as well."""
    nodes = [node("Unique", "x", "y first which often", sorted=0), node("Shape", "y", "n")]
    outputs = [tensor(n, None) for n in ("y", "first", "which", "often", "n")]
    found = nnef_jax.load(model(nodes, [tensor("x", (5,))], outputs))
    y, first, which, often, n = found(np.float32([4, 1, 4, 4, 0]))
    np.testing.assert_array_equal(y, np.float32([4, 1, 0, np.nan, np.nan]))
    np.testing.assert_array_equal(first, [0, 1, 4, -1, -1])
    np.testing.assert_array_equal(which, [0, 1, 0, 0, 2])
    np.testing.assert_array_equal(often, [3, 1, 1, -1, -1])
    assert n == 3


def test_boxes_that_suppression_leaves() -> None:
    """Boxes are chosen by the places that remain, and pooled, convolved and joined to a mean."""
    boxes = np.float32([[[0, 0, 2, 2], [0, 0, 2, 1.9], [4, 4, 7, 7], [8, 8, 9, 9]]])
    scores = np.float32([[[0.6, 0.9, 0.1, 0.7]]])
    images = np.arange(81, dtype=np.float32).reshape(1, 1, 9, 9)
    weights = {
        "most": np.array([4]), "iou": np.float32([0.5]), "least": np.float32([0.3]),
        "two": np.array(2), "zero": np.array(0), "first": np.array([0]),
        "filter": np.full((1, 1, 1, 1), 2, np.float32),
    }  # fmt: skip
    nodes = [
        node("NonMaxSuppression", "boxes scores most iou least", "chosen"),
        node("Gather", "chosen two", "places", axis=1),
        node("Gather", "chosen zero", "images_of", axis=1),
        node("Squeeze", "boxes first", "flat"),
        node("Gather", "flat places", "found", axis=0),
        node("ReduceMean", "found first", "mean", keepdims=0),
        node("RoiAlign", "images found images_of", "regions", output_height=1, output_width=1),
        node("Conv", "regions filter", "twice"),
        node("Flatten", "twice", "rows"),
    ]
    inputs = [
        tensor("boxes", (1, 4, 4)),
        tensor("scores", (1, 1, 4)),
        tensor("images", (1, 1, 9, 9)),
    ]
    outputs = [tensor(n, None) for n in ("chosen", "mean", "regions", "rows")]
    found = nnef_jax.load(model(nodes, inputs, outputs, weights, 18))
    chosen, mean, regions, rows = found(boxes, scores, images)
    np.testing.assert_array_equal(chosen, [[0, 0, 1], [0, 0, 3], [-1] * 3, [-1] * 3])
    np.testing.assert_allclose(mean, boxes[0, [1, 3]].mean(0))
    assert np.isfinite(regions[:2]).all() and np.isnan(regions[2:]).all()
    np.testing.assert_allclose(rows[:2], 2 * regions[:2].reshape(2, 1))


def test_branches_read_lists() -> None:
    """A branch computes a list from a list around it."""
    branches = [
        helper.make_graph([node(kind, "it", name)], name, [], [tensor(name, None)])
        for kind, name in (("Neg", "a"), ("Abs", "b"))
    ]
    nodes = [
        node("ReduceMax", "x", "most", keepdims=0),
        node("Cast", "most", "holds", to=BOOL),
        node("If", "holds", then_branch=branches[0], else_branch=branches[1]),
    ]
    np.testing.assert_array_equal(chosen(nodes)(X, MASK), [-X[0], -X[2], NAN])


def test_models_with_lists_pickle_and_equal_files_share_compiled_code() -> None:
    model = chosen([node("Concat", "it x", axis=0)])
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again(X, MASK), model(X, MASK))
    other = chosen([node("Concat", "it x", axis=0)])
    assert model.graph.operations[-1].attributes == other.graph.operations[-1].attributes
    assert jax.tree.structure(model) == jax.tree.structure(other)


def test_under_jit_vmap_and_grad() -> None:
    square = [node("Mul", "it it", "q"), node("ReduceSum", "q", keepdims=0)]
    found = chosen(square)
    masks = jnp.stack([MASK, MASK & False, MASK | True])
    several = jax.jit(jax.vmap(lambda m: found.apply(found.params, X, m)))(masks)
    np.testing.assert_allclose(several, [79, 0, 104])
    slope = jax.grad(lambda x: found.apply(found.params, x, MASK))(X)
    np.testing.assert_allclose(slope, 2 * X * MASK[:, None])
