"""Open extents: bounds, and shapes that stay symbolic in what is exported."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

import nnef_jax
from tests.openvino.documents import Writer
from tests.openvino.test_state import BATCH, WIDTH, cache, real


def exported(model: nnef_jax.Model, path: Path, **options: object) -> jax.export.Exported:
    model.export(path, params="beside", platforms=("cpu", "tpu"), **options)  # type: ignore[arg-type]
    return jax.export.deserialize(bytearray(path.read_bytes()))


def test_shapes_that_are_computed_stay_open(tmp_path: Path) -> None:
    """x [batch,2,length] as [batch,2*length], plus length, plus the places of its columns."""
    net = Writer()
    x, zero, minus = net.input("x", (-1, 2, -1)), net.constant(np.array(0)), np.array([-1])
    shape = net.layer("ShapeOf", [x], [(3,)], attributes={"output_type": "i64"})
    batch = net.layer("Gather", [shape, net.constant(np.array([0])), zero], [(1,)])
    length = net.layer("Gather", [shape, net.constant(np.array(2)), zero], [()])
    wanted = net.layer("Concat", [batch, net.constant(minus)], [(2,)], attributes={"axis": 0})
    flat = net.layer("Reshape", [x, wanted], [(-1, -1)], attributes={"special_zero": "false"})
    double = net.layer("Multiply", [length, net.constant(np.array(2))], [()])
    one = net.constant(np.array(1))
    places = net.layer("Range", [zero, double, one], [(-1,)], attributes={"output_type": "i64"})
    real_places, real_length = (
        net.layer("Convert", [y], [s], attributes={"destination_type": "f32"})
        for y, s in ((places, (-1,)), (length, ()))
    )
    total = net.layer("Add", [flat, real_places], [(-1, -1)])
    model = net.result(net.layer("Add", [total, real_length], [(-1, -1)])).load(tmp_path)
    function = exported(model, tmp_path / "net")
    for shape in ((1, 2, 3), (4, 2, 5)):
        x = real(*shape)
        wanted = x.reshape(shape[0], -1) + np.arange(2 * shape[2]) + shape[2]
        np.testing.assert_allclose(model(x), wanted, rtol=1e-5)
        np.testing.assert_allclose(function.call(model.params, x), wanted, rtol=1e-5)


def test_a_cache_of_any_length(tmp_path: Path) -> None:
    model = cache().load(tmp_path)
    function = exported(model, tmp_path / "net", entry="step")
    first = exported(model, tmp_path / "first")
    past, beam = real(BATCH, 5, WIDTH), np.arange(BATCH, dtype=np.int32)
    for length in (1, 3):
        x = real(BATCH, length, WIDTH)
        np.testing.assert_allclose(first.call(model.params, x, beam), x.sum(1), rtol=1e-5)
        whole = np.concatenate([past, x], 1)
        y, state = function.call(model.params, {"past": past}, x, beam)
        np.testing.assert_array_equal(state["past"], whole)
        np.testing.assert_allclose(y, whole.sum(1), rtol=1e-5)


@pytest.mark.parametrize(("declared", "extents"), [("2..4", (1, 5)), ("2..", (1,)), ("..4", (5,))])
def test_bounds(declared: str, extents: tuple[int, ...], tmp_path: Path) -> None:
    net = Writer()
    path = net.result(net.layer("ReLU", [net.input("x", (-1, 3))], [(-1, 3)])).write(tmp_path)
    path.write_text(path.read_text().replace('shape="?,3"', f'shape="{declared},3"'))
    model = nnef_jax.load(path)
    assert model(np.ones((3, 3))).shape == (3, 3)
    for extent in extents:
        message = rf"net\.xml:1:.*input 'x': axis 0 has {extent} items, it must have {declared}"
        with pytest.raises(nnef_jax.ShapeError, match=message):
            model(np.ones((extent, 3)))


def _of_open_rank(folder: Path, shape: str = "...") -> Path:
    net = Writer()
    x = net.layer("Parameter", outputs=[()], name="x", attributes={"shape": shape})
    return net.result(net.layer("Exp", [x], name="y")).write(folder)


@pytest.mark.parametrize("shape", [(), (2,), (None, 3)])
def test_a_rank_that_is_open(shape: tuple[int | None, ...], tmp_path: Path) -> None:
    model = nnef_jax.load(_of_open_rank(tmp_path), input_shapes={"x": shape})
    assert model.inputs[0].shape == model.outputs[0].shape == shape
    x = np.full([n or 2 for n in shape], 0.5, np.float32)
    np.testing.assert_allclose(model(x), np.exp(x), rtol=1e-6)


def test_a_rank_that_nothing_says(tmp_path: Path) -> None:
    message = (
        r"(?s)net.xml:1:\d+: input 'x': its rank is open.*input_shapes=\{'x': \(None, None\)\}"
    )
    with pytest.raises(nnef_jax.NnefError, match=message):
        nnef_jax.load(_of_open_rank(tmp_path))


def test_what_is_no_shape_is_refused_whatever_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(nnef_jax.NnefError, match=r"input 'x': a shape has the extent '\.\.\.'"):
        nnef_jax.load(_of_open_rank(tmp_path, "...,3"), input_shapes={"x": (2, 3)})


def test_a_variable_of_open_rank(tmp_path: Path) -> None:
    net, given = Writer(), {"variable_id": "v", "variable_type": "f32", "variable_shape": "..."}
    net.result(net.layer("ReadValue", attributes=given, opset="opset6", name="past"))
    with pytest.raises(nnef_jax.NnefError, match=r"'past' \(ReadValue\): its rank is open"):
        net.load(tmp_path)
