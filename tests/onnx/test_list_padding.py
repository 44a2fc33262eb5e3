"""Pads, resizes and expansions of lists, and lists that never have items.

The results are compared with onnx.reference.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax

pytest.importorskip("onnx")

from onnx.reference import ReferenceEvaluator

from tests.onnx.models import model, node, tensor

BOOL = 9
X = np.float32([[1, 2], [3, 4], [5, 7], [6, -1]])
MASKS = [
    np.array([True, False, True, True]),
    np.array([False, True, True, False]),
    np.ones(4, bool),
]
WEIGHTS: dict[str, Any] = {
    "axis": np.array([0]), "two": np.array([2]), "both": np.array([0, 1]), "four": np.array([4]),
    "rows": np.array([2, 0, 5, 0]), "columns": np.array([0, 1, 0, 2]),
    "all": np.array([1, 1, 1, 0]), "crop": np.array([-1, 1, 2, 0]),
    "one_row": np.array([1, 0, 1, 0]), "value": np.float32(0.1), "zero": np.array([0]),
    "none": np.zeros((0, 2), np.float32), "first": np.array(0), "thirds": np.array([-1, 3]),
    "scales": np.float32([1, 1, 1, 2]), "row_scales": np.float32([1, 1, 2, 1]),
}  # fmt: skip
CASES: dict[str, list[Any]] = {
    f"{mode}, {pads}": [node("Pad", f"it {pads} value", "y", mode=mode)]
    for mode in ("constant", "edge", "reflect", "wrap")
    for pads in ("one_row", "rows", "columns", "all")
}
for mode in ("constant", "edge", "wrap"):
    # The numbers of rows before and after are lengths.
    CASES[f"{mode}, computed numbers"] = [
        node("Shape", "it", "n", start=0, end=1), node("Sub", "four n", "less"),
        node("Concat", "n zero less zero", "pads", axis=0),
        node("Pad", "x pads value", "y", mode=mode),
    ]  # fmt: skip
for mode in ("nearest", "linear", "cubic"):
    CASES[f"resize, {mode}"] = [
        node("Unsqueeze", "it both", "image"),
        node("Resize", "image _ scales", "y", mode=mode),
    ]


def load(nodes: list[Any]) -> tuple[Any, Any]:
    """Load a network of the rows of x that a mask chooses, `it`."""
    inputs = [tensor("x", X.shape), tensor("mask", (4,), BOOL)]
    choose = node("Compress", "x mask", "it", axis=0)
    file = model([choose, *nodes], inputs, [tensor("y", None)], WEIGHTS, 18)
    return nnef_jax.load(file.SerializeToString()), ReferenceEvaluator(file)


@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_the_reference(case: str) -> None:
    net, reference = load(CASES[case])

    def run(x: Any, mask: Any) -> Any:
        return net.apply(net.params, x, mask, capture=net.lengths)

    def total(x: Any, mask: Any) -> Any:
        return jnp.nansum(run(x, mask)[0] ** 2)

    results = jax.jit(jax.vmap(run, (None, 0)))(X, np.stack(MASKS))
    gradients = jax.jit(jax.vmap(jax.grad(total), (None, 0)))(X, np.stack(MASKS))
    for mask, y, gradient in zip(MASKS, nnef_jax.trim(*results), gradients, strict=True):
        (array,) = reference.run(None, {"x": X, "mask": mask})
        np.testing.assert_allclose(y, array, rtol=1e-5, atol=1e-5)
        step = np.zeros_like(X)
        step[2, 1] = 2**-5
        difference = (total(X + step, mask) - total(X - step, mask)) / 2**-4
        np.testing.assert_allclose(gradient[2, 1], difference, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_negative_padding_removes_rows_first(mode: str) -> None:
    net, _ = load([node("Pad", "it crop", "y", mode=mode)])
    for mask in MASKS:
        y, lengths = net(X, mask, capture=net.lengths)
        expected = np.pad(X[mask][1:], [(0, 2), (1, 0)], mode=mode)
        np.testing.assert_array_equal(nnef_jax.trim(y, lengths), expected)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("NonZero", "mask", "places"), node("Squeeze", "places axis", "indices"),
         node("Gather", "none indices", "y", axis=0)],
        [node("Slice", "it zero zero axis", "empty"), node("NonZero", "mask", "places"),
         node("Squeeze", "places axis", "indices"), node("Gather", "empty indices", "y", axis=0)],
    ],
)  # fmt: skip
def test_nothing_is_gathered_from_no_items(nodes: list[Any]) -> None:
    net, reference = load(nodes)
    mask = np.zeros(4, bool)
    (array,) = reference.run(None, {"x": X, "mask": mask})
    y, lengths = net(X, mask, capture=net.lengths)
    np.testing.assert_array_equal(nnef_jax.trim(y, lengths), array)


def test_an_item_of_no_items_is_refused() -> None:
    places = [node("Cast", "mask", "numbers", to=7), node("ArgMax", "numbers", "i", axis=0)]
    with pytest.raises(nnef_jax.ShapeError, match=r"axis 0 of 'input' .* has no items"):
        load([*places, node("Gather", "none i", "y", axis=0)])


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([node("Unsqueeze", "it both", "image"), node("Transpose", "image", "turned"),
          node("Resize", "turned _ scales", "t", mode="linear"),
          node("Resize", "image _ row_scales", "y", mode="linear")],
         ["Resize", "axis 2", "'image'"]),
        ([node("Shape", "it", "n", start=0, end=1), node("Concat", "n two", "sizes", axis=0),
          node("Resize", "x _ _ sizes", "y")], ["Resize", "attribute"]),
        ([node("SplitToSequence", "it", "parts", axis=0), node("SequenceAt", "parts first", "y")],
         ["SplitToSequence", "axis 0", "'it'"]),
        ([node("Reshape", "it thirds", "y")], ["Reshape", "axis 0", "'it'"]),
        ([node("Unsqueeze", "it both", "image"),
          node("MaxPool", "image", "y", kernel_shape=[2, 2])], ["MaxPool", "axis 2", "'image'"]),
    ],
)  # fmt: skip
def test_refusals_name_the_operator_the_axis_and_the_count(
    nodes: list[Any], words: list[str]
) -> None:
    with pytest.raises(nnef_jax.UnsupportedError) as error:
        load(nodes)
    text = str(error.value)
    assert all(word in text for word in [*words, "'it.sum_reduce'"]), text
    assert not any(word in text for word in ("ymbolic", "racer", "_DimExpr", "n0"))


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Shape", "b", "s"), node("Expand", "a s", "y")],
        [node("Shape", "b", "s"), node("Expand", "a s", "e"), node("Shape", "e", "t"),
         node("Expand", "value t", "f"), node("Mul", "f e", "y")],
        [node("Shape", "b", "s"), node("Expand", "x s", "y")],
        [node("Shape", "x", "s"), node("Expand", "a s", "y")],
        [node("Expand", "a one_and_two", "y")],
        [node("Shape", "b", "s"), node("Concat", "two s", "t", axis=0), node("Expand", "a t", "y")],
        [node("Shape", "b", "s"), node("Unsqueeze", "a axis", "u"), node("Expand", "u s", "y")],
    ],
)  # fmt: skip
def test_expansions_broadcast_both_ways(nodes: list[Any]) -> None:
    """The input or the shape may be a list. Either may have one row."""
    lists = [node("Compress", "x mask", "a", axis=0), node("Compress", "z z_mask", "b", axis=0)]
    inputs = [tensor("x", (4, 2)), tensor("z", (4, 2)), tensor("mask", (4,), BOOL),
              tensor("z_mask", (4,), BOOL)]  # fmt: skip
    weights = {
        "value": np.float32([[3, 5]]), "one_and_two": np.array([1, 2]), "two": np.array([2]),
        "axis": np.array([0]),
    }  # fmt: skip
    file = model([*lists, *nodes], inputs, [tensor("y", None)], weights, 18)
    net = nnef_jax.load(file.SerializeToString())
    run = jax.jit(lambda *x: net.apply(net.params, *x, capture=net.lengths))
    results = 0
    for counts in np.ndindex(5, 5):
        x_mask, z_mask = (np.arange(4) < n for n in counts)
        feeds = {"x": X, "z": X, "mask": x_mask, "z_mask": z_mask}
        try:
            (expected,) = ReferenceEvaluator(file).run(None, feeds)
        except ValueError:  # the numbers of rows do not broadcast
            continue
        y, lengths = run(*feeds.values())
        y = nnef_jax.trim(y, lengths) if lengths else y
        np.testing.assert_array_equal(y, expected, err_msg=str(counts))
        results += 1
    assert results >= 10


def test_suppression_of_a_list_of_boxes() -> None:
    """The boxes are chosen by a mask before those that overlap a better box are dropped."""
    nodes = [
        node("Compress", "boxes mask", "chosen", axis=1),
        node("Compress", "scores mask", "scores_of_chosen", axis=2),
        node("NonMaxSuppression", "chosen scores_of_chosen most overlap least", "y"),
    ]
    draw = np.random.default_rng(0)
    corners = draw.random((1, 6, 2)).astype(np.float32)
    boxes = np.concatenate([corners, corners + 0.5], -1)
    scores = draw.normal(size=(1, 2, 6)).astype(np.float32)
    inputs = [
        tensor("boxes", boxes.shape),
        tensor("scores", scores.shape),
        tensor("mask", (6,), BOOL),
    ]
    weights = {"most": np.array([3]), "overlap": np.float32([0.3]), "least": np.float32([-1])}
    file = model(nodes, inputs, [tensor("y", None)], weights, 18)
    net = nnef_jax.load(file.SerializeToString())
    for seed in range(4):
        mask = np.random.default_rng(seed).random(6) < 0.7
        feeds = {"boxes": boxes, "scores": scores, "mask": mask}
        (expected,) = ReferenceEvaluator(file).run(None, feeds)
        y, lengths = jax.jit(lambda *x: net.apply(net.params, *x, capture=net.lengths))(
            *feeds.values()
        )
        np.testing.assert_array_equal(nnef_jax.trim(y, lengths), expected)
