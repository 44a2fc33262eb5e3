"""What OpenVINO's converter writes of networks of today, in documents of our own."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import nnef_jax
from tests.openvino.documents import Writer

X = np.random.default_rng(0).uniform(-1, 1, (1, 2, 4, 5)).astype(np.float32)


def widened(net: Writer, item: float, name: str) -> int:
    """A number of 16 bits, converted to 32."""
    stored = net.constant(np.float16(item), name, "f16")
    return net.layer("Convert", [stored], attributes={"destination_type": "f32"})


def test_a_number_of_16_bits_decides(tmp_path: Path) -> None:
    """Files with weights of 16 bits have those that decide the structure in 16 bits too."""
    net = Writer()
    x, value = net.input("x", X.shape), widened(net, 0.5, "value")
    begin, end = net.constant([0, 0, 1, 0]), net.constant([0, 0, 0, 2])
    mode = {"pad_mode": "constant"}
    padded = net.layer("Pad", [x, begin, end, value], [(1, 2, 5, 7)], attributes=mode)
    scaled = net.layer("Multiply", [padded, widened(net, 3, "scale")], [(1, 2, 5, 7)])
    model = net.result(scaled).load(tmp_path)
    wanted = 3 * np.pad(X, ((0, 0), (0, 0), (1, 0), (0, 2)), constant_values=0.5)
    np.testing.assert_allclose(model(X), wanted, rtol=1e-6)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model))(X), model(X))
    assert {k: v.dtype.name for k, v in model.params.items()} == {"scale": "float16"}


@pytest.mark.parametrize("reads", [False, True])
def test_places_of_maxima_are_found_where_they_are_read(reads: bool, tmp_path: Path) -> None:
    net = Writer()
    given = {"kernel": "2,2", "strides": "2,2", "pads_begin": "0,0", "pads_end": "0,0", "axis": 2,
             "dilations": "1,1", "rounding_type": "floor", "index_element_type": "i64"}  # fmt: skip
    shapes = [(1, 2, 2, 2)] * 2
    x = net.input("x", X.shape)
    pool = net.layer("MaxPool", [x], shapes, attributes=given, opset="opset8")
    model = net.result(*[(pool, 1), (pool, 2)][: 1 + reads]).load(tmp_path)
    cells = X[:, :, :4, :4].reshape(1, 2, 2, 2, 2, 2).transpose(0, 1, 2, 4, 3, 5)
    wanted = cells.reshape(1, 2, 2, 2, 4)
    if reads:
        found, places = model(X)
        rows, columns = np.unravel_index(wanted.argmax(-1), (2, 2))
        at = (2 * np.arange(2)[:, None] + rows) * 5 + 2 * np.arange(2) + columns
        np.testing.assert_array_equal(places, at)
    else:
        found = model(X)
        assert [operation.kind for operation in model.graph.operations] == ["max_pool"]
    np.testing.assert_array_equal(found, wanted.max(-1))


def interpolated(net: Writer, x: int, shape: Sequence[int], mode: str, how: str, to: list) -> int:
    given = {"mode": mode, "shape_calculation_mode": how, "nearest_mode": "floor",
             "coordinate_transformation_mode": "asymmetric" if mode == "nearest" else "half_pixel",
             "pads_begin": "0", "pads_end": "0"}  # fmt: skip
    inputs = [x, net.constant(to), net.constant([2, 3])]
    return net.layer("Interpolate", inputs, [shape], attributes=given, opset="opset11")


def test_items_lie_where_scales_say(tmp_path: Path) -> None:
    """Five items times 2.3 are eleven, which lie 1 / 2.3 apart."""
    net = Writer()
    x = net.input("x", X.shape)
    wide = interpolated(net, x, (1, 2, 4, 11), "linear_onnx", "scales", [1.0, 2.3])
    model = net.result(wide).load(tmp_path)
    places = (np.arange(11) + 0.5) / 2.3 - 0.5
    wanted = [[np.interp(places, np.arange(5), row) for row in plane] for plane in X[0]]
    np.testing.assert_allclose(model(X)[0], wanted, rtol=1e-5, atol=1e-6)


def test_whole_factors_are_the_standards(tmp_path: Path) -> None:
    net = Writer()
    x = net.input("x", X.shape)
    twice = interpolated(net, x, (1, 2, 8, 15), "nearest", "sizes", [8, 15])
    more = interpolated(net, x, (1, 2, 8, 5), "linear", "scales", [2.0, 1.0])
    model = net.result(twice, more).load(tmp_path)
    model.save(tmp_path / "saved")
    saved = nnef_jax.load(tmp_path / "saved")
    assert [x.kind for x in saved.graph.operations] == ["nearest_upsample", "multilinear_upsample"]
    above, below = (np.take(X, np.clip(np.arange(4) + i, 0, 3), 2) for i in (-1, 1))
    wanted = np.stack([0.25 * above + 0.75 * X, 0.75 * X + 0.25 * below], 3).reshape(1, 2, 8, 5)
    for nearest, linear in (model(X), saved(X)):
        np.testing.assert_array_equal(nearest, X.repeat(2, 2).repeat(3, 3))
        np.testing.assert_allclose(linear, wanted, rtol=1e-5, atol=1e-6)


def test_weights_of_4_bits_are_written_as_nnef(tmp_path: Path) -> None:
    """NNEF has integers alone: they are read again as those."""
    net = Writer()
    x, codes = net.input("x", (2, 4)), np.array([0x21, 0x43, 0xF5, 0x87], np.uint8)
    net.shapes[w := net.constant(codes, "w", "i4"), 0] = (2, 4)
    net.layers[w] = net.layers[w].replace('shape="4"', 'shape="2,4"')
    given = {"destination_type": "f32"}
    weights = net.layer("Convert", [w], [(2, 4)], attributes=given)
    product = net.layer("MatMul", [x, weights], [(2, 2)], attributes={"transpose_b": "true"})
    model = net.result(product).load(tmp_path)
    assert model.params["w"].dtype.name == "int4"
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    wanted = x @ np.float32([[1, 2, 3, 4], [5, -1, 7, -8]]).T
    np.testing.assert_array_equal(model(x), wanted)
    model.save(tmp_path / "saved")
    np.testing.assert_array_equal(nnef_jax.load(tmp_path / "saved")(x), wanted)
