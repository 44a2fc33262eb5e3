"""Results with as many items as values say: padded, and followed through what reads them."""

from __future__ import annotations

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
    "pair_of": X[0], "sizes": np.array([3, 2]),
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


@pytest.mark.parametrize(
    "step",
    [
        node("CumSum", "it zero"),
        node("Concat", "it x", axis=0),
        node("Add", "it x"),
        node("Reshape", "it flat"),
        node("Gemm", "it it", transA=1),
        node("Gather", "it one", axis=0),
        node("Unique", "it", axis=0),
        node("Slice", "it zero last zero"),
        node("EyeLike", "it"),
        node("Hardmax", "it", axis=0),
        node("Resize", "it _ _ sizes"),
    ],
    ids=lambda step: step.op_type,
)
def test_padding_is_never_taken_for_items(step: Any) -> None:
    with pytest.raises(NnefError, match="number of items depends on values") as caught:
        chosen([step])
    assert step.op_type in str(caught.value) and "cut the network" in str(caught.value)


def test_a_result_without_items_is_refused() -> None:
    """Nothing of it is computed from the items, so that their axis cannot be followed."""
    nodes = [node("Cast", "it", "i", to=7), node("OneHot", "i none pair_of")]
    with pytest.raises(NnefError, match="would take padding for items"):
        chosen(nodes)


def test_a_body_knows_no_number_of_items() -> None:
    """The extent within it would be that of the padding."""
    inner = [node("Size", "state", "size"), node("Identity", "state", "after")]
    ends = [[tensor(n, None) for n in names] for names in (("state", "item"), ("after", "size"))]
    body = helper.make_graph(inner, "body", *ends)
    with pytest.raises(NnefError, match="'scan' would take padding for items"):
        chosen([node("Scan", "it x", "after y", body=body, num_scan_inputs=1)])


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


def test_graphs_of_nodes_take_no_padded_tensors() -> None:
    inner = [
        helper.make_graph([node(kind, "it", name)], name, [], [tensor(name, None)])
        for kind, name in (("Neg", "a"), ("Abs", "b"))
    ]
    given = [node("ReduceMax", "x", "most", keepdims=0), node("Cast", "most", "holds", to=BOOL)]
    with pytest.raises(NnefError, match=r"number of items of .* depends on values"):
        chosen([*given, node("If", "holds", then_branch=inner[0], else_branch=inner[1])])


def test_under_jit_vmap_and_grad() -> None:
    square = [node("Mul", "it it", "q"), node("ReduceSum", "q", keepdims=0)]
    found = chosen(square)
    masks = jnp.stack([MASK, MASK & False, MASK | True])
    several = jax.jit(jax.vmap(lambda m: found.apply(found.params, X, m)))(masks)
    np.testing.assert_allclose(several, [79, 0, 104])
    slope = jax.grad(lambda x: found.apply(found.params, x, MASK))(X)
    np.testing.assert_allclose(slope, 2 * X * MASK[:, None])
