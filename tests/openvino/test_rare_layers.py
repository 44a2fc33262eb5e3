"""Layers that few networks have: values, and results whose length depends on values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from tests.openvino.documents import Writer
from tests.openvino.rare_layers import OLD, USES, Known, Use


def written(uses: Sequence[Use], version: int) -> tuple[Writer, list[np.ndarray]]:
    """Return a network that has all uses side by side, and what is given to it."""
    net, given, ends = Writer(version), list[np.ndarray](), list[tuple[int, int]]()
    for use in uses:
        inputs: list[int] = []
        for x in use.operands:
            if isinstance(x, Known):
                inputs.append(net.constant(x.array, type=x.type))
            else:
                type = "i64" if x.dtype.kind == "i" else "f32"
                inputs.append(net.input(f"x{len(given)}", x.shape, type))
                given.append(x)
        shapes = [np.shape(x) for x in use.results]
        layer = net.layer(use.type, inputs, shapes, opset=use.opset, attributes=use.attributes)
        ends += [(layer, len(inputs) + i) for i in range(len(shapes))]
    return (net.result(*ends) if version >= 10 else net), given


def _results(uses: Sequence[Use], version: int, folder: Path) -> list[list[np.ndarray]]:
    net, given = written(uses, version)
    found = net.load(folder)(*given)
    found = iter(found if isinstance(found, tuple) else [found])
    return [[np.asarray(next(found)) for _ in use.results] for use in uses]


@pytest.mark.parametrize(("uses", "version"), [(USES, 11), (OLD, 7)], ids=["opsets", "old"])
def test_values(uses: Sequence[Use], version: int, tmp_path: Path) -> None:
    for use, results in zip(uses, _results(uses, version, tmp_path), strict=True):
        for found, wanted in zip(results, use.results, strict=True):
            what = f"{use.type} {dict(use.attributes)}"
            assert found.shape == wanted.shape, what
            np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5, err_msg=what)


Tail = Sequence[tuple[str, Sequence[Any], dict[str, Any]]]


def _chosen(*tails: Tail) -> Writer:
    """Return a network that goes on from the items of x, [3,2], at which a mask holds."""
    net = Writer()
    x, mask = net.input("x", (3, 2)), net.input("mask", (3,), "boolean")
    places = net.layer("NonZero", [mask], [(1, -1)], attributes={"output_type": "i64"})
    rows = net.layer("Squeeze", [places, net.constant(np.array([0]))], [(-1,)])
    ends = {"rows": rows, "x": x, "mask": mask}
    it = net.layer("Gather", [x, rows, net.constant(np.array(0))], [(-1, 2)], opset="opset8")
    for tail in tails:
        ends["it"] = it
        for type, operands, attributes in tail:
            inputs = [
                ends[o] if isinstance(o, str) else net.constant(np.array(o)) for o in operands
            ]
            ends["it"] = net.layer(type, inputs, [()], attributes=attributes)
        net.result(ends["it"])
    return net


X = np.float32([[1, 2], [3, 4], [5, 7]])
MASK = np.array([True, False, True])
NONE = np.zeros(3, bool)
NAN = np.float32([np.nan, np.nan])


DONE: list[tuple[Tail, Any]] = [
    ([], [X[0], X[2], NAN]),
    ([("Multiply", ["it", [[2.0, 3.0]]], {})], [X[0] * [2, 3], X[2] * [2, 3], NAN]),
    ([("Transpose", ["it", [1, 0]], {}), ("Reshape", ["it", [1, 2, -1]], {})],
     [[[1, 5, np.nan], [2, 7, np.nan]]]),
    ([("MatMul", ["it", [[1.0], [1.0]]], {})], [[3], [12], [np.nan]]),
    ([("Gather", ["it", [1], 1], {})], [[2], [7], [np.nan]]),
    ([("SoftMax", ["it"], {"axis": 1}), ("ReduceSum", ["it", [0, 1]], {})], 2),
    ([("ReduceSum", ["it", [0]], {})], [6, 9]),
    ([("ReduceMean", ["it", [0]], {"keep_dims": "true"})], [[3, 4.5]]),
    ([("ReduceMax", ["it", [1]], {})], [2, 7, np.nan]),
    ([("Negative", ["it"], {}), ("ReduceMax", ["it", [0]], {})], [-1, -2]),
    ([("ReduceProd", ["it", [0]], {})], [5, 14]),
    ([("Negative", ["it"], {}), ("TopK", ["it", 3], {"axis": 0, "mode": "max"})],
     [-X[0], -X[2], NAN]),
    ([("Slice", ["it", [0], [1], [1], [0]], {}), ("ShapeOf", ["it"], {})], [1, 2]),
    ([("ShapeOf", ["it"], {"output_type": "i64"})], [2, 2]),
    ([("Multiply", ["it", "it"], {}), ("ScatterUpdate", ["x", "rows", "it", 0], {})],
     [[1, 4], [3, 4], [25, 49]]),
    ([("Unsqueeze", ["rows", [1]], {}), ("ScatterNDUpdate", ["x", "it", [[0.0] * 2] * 3], {})],
     [[0, 0], [3, 4], [0, 0]]),
    ([("Subtract", ["it", [[1.0, 1.0]]], {}), ("NonZero", ["it"], {})],
     [[0, 1, 1, -1, -1, -1], [1, 0, 1, -1, -1, -1]]),
    ([("SoftMax", ["it"], {"axis": 0})], [*(np.exp(X[::2]) / np.exp(X[::2]).sum(0)), NAN]),
    ([("CumSum", ["it", 0], {})], [X[0], X[0] + X[2], NAN]),
    ([("Concat", ["it", "x"], {"axis": 0})], [X[0], X[2], *X, NAN]),
    ([("Gather", ["it", 1, 0], {})], X[2]),
    ([("Reshape", ["it", [-1]], {})], [*X[0], *X[2], np.nan, np.nan]),
    ([("MatMul", ["it", "it"], {"transpose_a": "true"})], X[::2].T @ X[::2]),
    ([("ScatterUpdate", ["it", [0], [[8.0, 9.0]], 0], {})], [[8, 9], X[2], NAN]),
    ([("TopK", ["it", 1], {"axis": 0, "mode": "max", "sort": "index"})], [X[2]]),
    ([("Slice", ["it", [0], [-1], [1], [0]], {})], [X[0], NAN, NAN]),
    ([("Pad", ["it", [2, 0], [3, 1]], {"pad_mode": "symmetric"})],
     [*np.pad(X[::2], [(2, 3), (0, 1)], mode="symmetric"), [np.nan] * 3]),
    ([("ShapeOf", ["it"], {"output_type": "i64"}), ("Gather", ["it", 0, 0], {}),
      ("Range", [1, "it", 1], {"output_type": "i64"})], [1, -1]),
]  # fmt: skip


def test_what_follows_items_that_values_choose(tmp_path: Path) -> None:
    found = _chosen(*(tail for tail, _ in DONE)).load(tmp_path)(X, MASK)
    for (tail, wanted), y in zip(DONE, found, strict=True):
        np.testing.assert_allclose(y, wanted, rtol=1e-6, err_msg=str(tail))


def test_resizing_a_list_is_refused(tmp_path: Path) -> None:
    step = ("Interpolate", ["it", [3, 2]], {"mode": "nearest", "axes": "0,1"})
    with pytest.raises(nnef_jax.NnefError, match="number of items depends on values") as caught:
        _chosen([step]).load(tmp_path)
    message = str(caught.value)
    assert "Interpolate" in message and "axis 0" in message and "sum_reduce" in message


def test_windows_that_divide_an_axis_need_its_items(tmp_path: Path) -> None:
    """Values tell the extents of the windows, which a run cannot."""
    images = [("Transpose", ["it", [1, 0]], {}), ("Unsqueeze", ["it", [0]], {})]
    with pytest.raises(nnef_jax.NnefError, match="number of items depends on values"):
        _chosen([*images, ("AdaptiveAvgPool", ["it", [3]], {})]).load(tmp_path)


def test_items_that_values_choose_under_jit_vmap_and_grad(tmp_path: Path) -> None:
    square = [("Multiply", ["it", "it"], {}), ("ReduceSum", ["it", [0, 1]], {})]
    model = _chosen(square).load(tmp_path)
    masks = jnp.stack([MASK, NONE, ~NONE])
    several = jax.jit(jax.vmap(lambda m: model.apply(model.params, X, m)))(masks)
    np.testing.assert_allclose(several, [79, 0, 104])
    slope = jax.grad(lambda x: model.apply(model.params, x, MASK))(X)
    np.testing.assert_allclose(slope, 2 * X * MASK[:, None])


def test_boxes_behind_those_that_suppression_leaves_are_none(tmp_path: Path) -> None:
    boxes = np.float32([[[0, 0, 2, 2], [0, 0, 2, 1.9], [5, 5, 6, 6], [8, 8, 9, 9]]])
    scores = np.float32([[[0.6, 0.9, 0.1, 0.7]]])
    net = Writer()
    x, y = net.input("boxes", boxes.shape), net.input("scores", scores.shape)
    limits = [net.constant(np.array(n)) for n in (4, 0.5, 0.3)]
    chosen = net.layer(
        "NonMaxSuppression", [x, y, *limits], [(-1, 3), (-1, 3), (1,)], opset="opset9"
    )
    axis, zero, box = (net.constant(np.array(n)) for n in (1, 0, 2))
    places = net.layer("Gather", [chosen, box, axis], [(-1,)], opset="opset8")
    flat = net.layer("Squeeze", [x, net.constant(np.array([0]))], [(4, 4)])
    found = net.layer("Gather", [flat, places, zero], [(-1, 4)], opset="opset8")
    mean = net.layer("ReduceMean", [found, net.constant(np.array([0]))], [(4,)])
    model = net.result(chosen, (chosen, 7), found, mean).load(tmp_path)
    indices, count, best, centre = model(boxes, scores)
    np.testing.assert_array_equal(indices[:, 2], [1, 3, -1, -1])  # as the layer itself pads them
    assert count == 2
    np.testing.assert_array_equal(best, [*boxes[0, [1, 3]], *[[np.nan] * 4] * 2])
    np.testing.assert_allclose(centre, boxes[0, [1, 3]].mean(0))


@pytest.mark.parametrize(
    ("type", "says"), [("RandomUniform", "random numbers"), ("StringTensorPack", "holds text")]
)
def test_what_is_no_function_of_arrays_is_refused(type: str, says: str, tmp_path: Path) -> None:
    net = Writer()
    layer = net.layer(type, [net.input("x", (3,))], [(3,)])
    with pytest.raises(nnef_jax.NnefError, match=says):
        net.result(layer).load(tmp_path)


@pytest.mark.parametrize(
    ("type", "name", "value"),
    [("Gelu", "approximation_mode", "tan"), ("AvgPool", "auto_pad", "same_up")],
)
def test_values_of_attributes_that_nothing_has(
    type: str, name: str, value: str, tmp_path: Path
) -> None:
    net = Writer()
    given = {"kernel": "2", name: value}
    layer = net.layer(type, [net.input("x", (1, 1, 4))], [(1, 1, 4)], attributes=given)
    with pytest.raises(
        nnef_jax.NnefError, match=f"(?s)'{name}' is '{value}'.*did you mean '{value}"
    ):
        net.result(layer).load(tmp_path)
