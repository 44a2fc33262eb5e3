"""What is saved as NNEF is read back, or refused before anything is replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import nnef_jax
from nnef_jax.errors import DataError, NnefError, UnsupportedError

pytest.importorskip("onnx")

import ml_dtypes
from onnx import TensorProto, numpy_helper

from nnef_jax.formats.nnef.frontend import StandardFrontend
from nnef_jax.formats.onnx.frontend import OnnxFrontend
from tests.onnx.models import model, node, tensor

X = np.arange(6, dtype=np.float32).reshape(2, 3)
DTYPES = ("bool", "int2", "uint2", "int4", "uint4", "int8", "uint8", "int16", "uint16", "int32",
          "uint32", "int64", "float32")  # fmt: skip
TYPES = {x: getattr(TensorProto, x.upper()) for x in DTYPES[:-1]} | {"float32": TensorProto.FLOAT}


WIDE = ("int32", "int64")  # the integers of NNEF, of 32 bits


def ends(dtype: str) -> tuple[int, int]:
    """Return the least and the largest number, of real ones some that are far from 0."""
    if dtype in ("bool", "float32"):
        return (0, 1) if dtype == "bool" else (-(1 << 24), 1 << 24)
    bounds = ml_dtypes.iinfo(dtype)
    return int(bounds.min), int(bounds.max)


@pytest.mark.parametrize("wanted", [x for x in DTYPES if x not in ("bool", "float32")])
@pytest.mark.parametrize("source", DTYPES)
def test_a_cast_that_loses_numbers_is_not_saved(source: str, wanted: str, tmp_path: Path) -> None:
    nodes = [node("Cast", "x", "a", to=TYPES[wanted]), node("Cast", "a", "y", to=TYPES["int32"])]
    ports = [tensor("x", (3,), TYPES[source])], [tensor("y", (3,), TYPES["int32"])]
    found = nnef_jax.load(model(nodes, *ports, version=25))
    low, high = ends(source)
    if source == wanted or wanted in WIDE or ends(wanted)[0] <= low <= high <= ends(wanted)[1]:
        found.save(tmp_path / "saved")
        again = nnef_jax.load(tmp_path / "saved")
        x = np.clip([low, high, 1], *ends("int32")).astype(again.inputs[0].dtype)
        np.testing.assert_array_equal(again(x), x)
    else:
        with pytest.raises(UnsupportedError, match=f"a cast to {wanted} limits the range"):
            found.save(tmp_path / "saved")


def test_infinite_numbers_are_computed(tmp_path: Path) -> None:
    """A mask of torch's attention: what is hidden is -infinity before a softmax."""
    nodes = [
        node("Less", "x one", "c"),
        node("Where", "c none x", "m"),
        node("Min", "m all", "n"),
        node("Softmax", "n", "s"),
        node("Relu", "s"),
    ]
    weights = {"one": np.float32(1), "none": np.float32(-np.inf), "all": np.float32(np.inf)}
    constants = [node("Constant", "", name, value_float=float(x)) for name, x in weights.items()]
    network = nnef_jax.load(model([*constants, *nodes]))
    wanted = np.exp(X) * (X >= 1)
    wanted /= wanted.sum(1, keepdims=True)
    network.save(tmp_path / "saved")
    nnef_jax.convert(model([*constants, *nodes]), tmp_path / "kept", keep=True)
    for path in ("saved", "kept"):
        assert "minus_infinity = log(0.0);" in (tmp_path / path / "graph.nnef").read_text()
        np.testing.assert_allclose(nnef_jax.load(tmp_path / path)(X), wanted, rtol=1e-6)


def slice_of_nothing() -> Any:
    nodes = [node("Shape", "x", "y", start=1, end=1)]
    return model(nodes, [tensor("x")], [tensor("y", (0,), TensorProto.INT64)])


def no_outputs() -> Any:
    return model([node("Relu", "x", "z")], outputs=[])


def complex_constant() -> Any:
    value = numpy_helper.from_array(np.array(1 + 2j, np.complex64))
    nodes = [node("Constant", "", "c", value=value), node("Equal", "x c", "y")]
    ports = [tensor("x", (2,), TensorProto.COMPLEX64)], [tensor("y", (2,), TensorProto.BOOL)]
    return model(nodes, *ports)


def two_labels_of_one_file() -> Any:
    nodes = [node("Add", "x /w", "p"), node("Add", "p w", "y")]
    return model(nodes, weights={"w": X, "/w": X + 1})


def far_beyond_int32(count: int = 1) -> Any:
    nodes = [node("Cast", "w", "v", to=TensorProto.FLOAT), node("Add", "x v", "y")]
    return model(nodes, weights={"w": np.full((count, 2, 3), 3_000_000_000, np.uint32)})


def many_far_beyond_int32() -> Any:
    return far_beyond_int32(1000)


REFUSED = {
    slice_of_nothing: "a tensor without items is not NNEF",
    no_outputs: "a graph without outputs cannot be written",
    complex_constant: r"node \(Equal\): it has items of complex64",
    two_labels_of_one_file: "would both be stored in 'w.dat'",
    far_beyond_int32: "'constant': 3000000000 does not fit int32",
    many_far_beyond_int32: "values from 3000000000 to 3000000000, which do not fit int32",
}


@pytest.mark.parametrize("container", ["old", "old.tgz"])
@pytest.mark.parametrize("make", REFUSED)
def test_a_good_file_stays(make: Any, container: str, tmp_path: Path) -> None:
    path = tmp_path / container
    nnef_jax.load(model([node("Relu", "x", "y")])).save(path)
    proto = make()
    for write in (nnef_jax.load(proto).save, lambda path, **o: nnef_jax.convert(proto, path, **o)):
        with pytest.raises((UnsupportedError, DataError), match=REFUSED[make]):
            write(path, overwrite=True)
        np.testing.assert_array_equal(nnef_jax.load(path)(X - 2), np.maximum(X - 2, 0))
    assert [x.name for x in tmp_path.iterdir()] == [container]


@pytest.mark.parametrize("make", [no_outputs, complex_constant, two_labels_of_one_file])
def test_custom_operations_are_no_way_round(make: Any, tmp_path: Path) -> None:
    with pytest.raises(NnefError, match=r"without outputs|complex|both be stored"):
        nnef_jax.convert(make(), tmp_path / "kept", keep=True)
    assert not list(tmp_path.iterdir())


def test_a_tensor_without_items_is_kept(tmp_path: Path) -> None:
    nnef_jax.convert(slice_of_nothing(), tmp_path / "kept", keep=True)
    assert np.asarray(nnef_jax.load(tmp_path / "kept")(X)).shape == (0,)


def test_numbers_beside_kept_integers_have_their_width(tmp_path: Path) -> None:
    nodes = [node("Cast", "x", "i", to=TensorProto.INT64), node("Add", "i one", "y")]
    proto = model(nodes, outputs=[tensor("y", None, TensorProto.INT64)],
                  weights={"one": np.array(1)})  # fmt: skip
    with jax.enable_x64(True):
        nnef_jax.convert(proto, tmp_path / "kept", keep=True)
        y = nnef_jax.load(tmp_path / "kept")(X)
    assert y.dtype == np.int64
    np.testing.assert_array_equal(y, X.astype(np.int64) + 1)


def test_parameters_that_no_file_holds_are_refused(tmp_path: Path) -> None:
    text = """version 1.0;
graph net( x ) -> ( y )
{
    x = external<integer>(shape = [1, 2]);
    w = variable<integer>(label = 'w', shape = [1, 2]);
    y = select(true, x, w);
}
"""
    nnef_jax.write_archive(tmp_path / "net", text, {"w": np.int32([[1, 2]])})
    large = np.array([[1, 1 << 40]])
    with pytest.raises(DataError, match="do not fit int32"):
        nnef_jax.write_archive(tmp_path / "net", text, {"w": large}, overwrite=True)
    stored = nnef_jax.read_tensor(tmp_path / "net/w.dat")
    np.testing.assert_array_equal(stored, [[1, 2]])


def test_saving_flattens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node("Add", "h x", "a"), node("Reshape", "a s", "b"), node("Neg", "b", "y")]
    inputs = [tensor("h"), tensor("s", (2,), TensorProto.INT64), tensor("x")]
    source = model(nodes, inputs, [tensor("y", (3, 2)), tensor("a")])
    values = {"s": np.array([3, 2])}
    found = nnef_jax.load(source, values=values, state={"h": "a"})
    part = nnef_jax.load(source, values=values).cut(inputs=["a"], outputs=["y"])
    document = nnef_jax.load("examples/digits/model")
    with monkeypatch.context() as patched:
        patched.setattr(OnnxFrontend, "flatten", None)
        patched.setattr(StandardFrontend, "flatten", None)
        found.save(tmp_path / "found")
        part.save(tmp_path / "part")
        document.save(tmp_path / "document")
    # What is state in a load is an input and an output in the document, in its order.
    again = nnef_jax.load(tmp_path / "found")
    assert [x.name for x in again.inputs] == ["h", "x"]
    np.testing.assert_array_equal(again(X, 2 * X).y, -3 * X.reshape(3, 2))
    np.testing.assert_array_equal(nnef_jax.load(tmp_path / "part")(X), -X.reshape(3, 2))
    assert str(nnef_jax.load(tmp_path / "document").summary()) == str(document.summary())


def test_each_save_has_the_limits_of_a_load(tmp_path: Path) -> None:
    found = nnef_jax.load(model([node("Relu", "x", "y")]), limits=nnef_jax.Limits(steps=3000))
    for _ in range(100):
        found.save(tmp_path / "saved", overwrite=True)
