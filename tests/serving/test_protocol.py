"""Requests and responses as bytes: what is refused, and by which words."""

from __future__ import annotations

import importlib
import json
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nnef_jax import InputError, TensorSpec, UnsupportedError

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("prometheus_client", reason="needs the extra serve")
protocol: Any = importlib.import_module("nnef_jax.serving.protocol")

_OUTPUTS = (TensorSpec("y", (None, 2), "float32"),)
_TENSOR = {"name": "x", "shape": [1, 2], "datatype": "FP32"}


def _decoded(document: Any, body: bytes = b"") -> Any:
    text = json.dumps(document).encode()
    return protocol.decoded(text + body, len(text), _OUTPUTS)


def _of(body: bytes = b"", /, **changed: Any) -> Any:
    tensor = {**_TENSOR, "data": [1, 2], **changed}
    return _decoded({"inputs": [{k: v for k, v in tensor.items() if v is not None}]}, body)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("BOOL", np.bool_),
        ("INT8", np.int8),
        ("UINT16", np.uint16),
        ("INT64", np.int64),
        ("UINT64", np.uint64),
        ("FP16", np.float16),
        ("BF16", ml_dtypes.bfloat16),
        ("FP32", np.float32),
        ("FP64", np.float64),
    ],
)
def test_datatypes_there_and_back(name: str, dtype: Any) -> None:
    x = np.array([[0, 1], [1, 3]]).astype(dtype)
    spec = TensorSpec("x", (2, 2), np.dtype(dtype).name)
    assert protocol.datatype(spec) == name
    size = {"binary_data_size": x.nbytes}
    sent = _of(x.tobytes(), shape=[2, 2], datatype=name, data=None, parameters=size).arrays["x"]
    assert sent.dtype == dtype
    np.testing.assert_array_equal(sent, x)
    for data in (x.tolist(), x.ravel().tolist()):
        sent = _of(shape=[2, 2], datatype=name, data=data).arrays["x"]
        assert sent.dtype == dtype
        np.testing.assert_array_equal(sent, x)
    for is_binary in (True, False):
        request = protocol.InferenceRequest("7", {}, {"x": is_binary}, {})
        body, length = protocol.encoded("m", request, [spec], [x])
        document = json.loads(body[:length])
        assert document["id"] == "7" and document["model_name"] == "m"
        (output,) = document["outputs"]
        assert output["datatype"] == name and output["shape"] == [2, 2]
        found = body[length:] if is_binary else np.array(output["data"]).astype(dtype).tobytes()
        assert found == x.tobytes()


def test_a_byte_is_true_unless_it_is_0() -> None:
    size = {"binary_data_size": 2}
    found = _of(b"\2\0", datatype="BOOL", data=None, parameters=size)
    np.testing.assert_array_equal(found.arrays["x"].view(np.uint8), [[1, 0]])


def test_float8_has_no_name() -> None:
    with pytest.raises(UnsupportedError, match="float8_e4m3fn"):
        protocol.datatype(TensorSpec("x", (1,), "float8_e4m3fn"))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"datatype": "BYTES", "data": ["a", "b"]}, "datatype 'BYTES'"),
        ({"datatype": None}, "datatype None"),
        ({"name": 3}, "no name"),
        ({"shape": [2]}, None),
        ({"shape": [1, 3]}, "2 items, its shape 3"),
        ({"shape": [1, -2]}, "shape"),
        ({"shape": [0, 2], "data": []}, "shape"),
        ({"shape": [True, 2]}, "shape"),
        ({"shape": [1 << 70]}, "shape"),
        ({"shape": [1] * 40}, "shape"),
        ({"shape": "12"}, "shape"),
        ({"data": None}, "data must be a list"),
        ({"data": [[1], [2, 3]]}, "not an array"),
        ({"data": ["1", "2"]}, "must be of FP32"),
        ({"data": [True, False]}, "must be of FP32"),
        ({"data": [None, {}]}, "must be of FP32"),
        ({"data": [True, 2.5]}, "must be of FP32"),
        ({"data": [["1"], ["2"]]}, "must be of FP32"),
        ({"data": [1, [2]]}, "must be of FP32"),
        ({"data": [1, 10**400]}, "do not fit FP32"),
        ({"datatype": "INT8", "data": [1, True]}, "must be of INT8"),
        ({"datatype": "INT8", "data": [1.5, 2]}, "must be of INT8"),
        ({"datatype": "INT8", "data": [1, 300]}, "do not fit INT8"),
        ({"datatype": "UINT64", "data": [1, 1 << 70]}, "do not fit UINT64"),
        ({"datatype": "BOOL", "data": [1, 0]}, "must be of BOOL"),
        ({"parameters": {"binary_data_size": 8}}, "0 bytes are left"),
        ({"parameters": {"binary_data_size": True}}, "binary_data_size"),
        ({"parameters": {"binary_data_size": -8}}, "binary_data_size"),
        ({"parameters": {"shared_memory_region": "r"}}, "shared_memory_region"),
        ({"parameters": []}, "parameters of input 'x'"),
    ],
)
def test_wrong_tensors_are_refused(changed: Any, named: str | None) -> None:
    if named is None:
        assert _of(**changed).arrays["x"].shape == (2,)
        return
    with pytest.raises(InputError, match=named):
        _of(**changed)


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ([], "the request must be a JSON object"),
        ({"inputs": {}}, "inputs must be a list"),
        ({"inputs": [3]}, "an input must be a JSON object"),
        ({"inputs": [{**_TENSOR, "data": [1, 2]}] * 2}, "given twice"),
        ({"inputs": [], "id": 3}, "id must be a string"),
        ({"inputs": [], "outputs": [{"name": "z"}]}, "no output 'z'"),
        ({"inputs": [], "outputs": [{"name": "y", "parameters": {"classification": 3}}]}, "classi"),
    ],
)
def test_wrong_requests_are_refused(document: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        _decoded(document)


def test_a_long_string_takes_no_memory() -> None:
    """An array of strings has room for the longest in each: 4 bytes a letter."""
    data = ["x" * 25_000, *[""] * 10_000]
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="must be of FP32"):
            _of(shape=[1, len(data)], data=data)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["FP32", "INT32", "BOOL", "BF16"])
def test_long_data_are_read_in_pieces(name: str) -> None:
    """Flat, or in lists, of which the innermost may be long too."""
    dtype = {"FP32": np.float32, "INT32": np.int32, "BOOL": np.bool_, "BF16": ml_dtypes.bfloat16}
    x = np.arange(2 * 3 * 20_000).reshape(2, 3, -1) % 7
    x = (x % 2 == 0 if name == "BOOL" else x).astype(dtype[name])
    for data in (x.ravel(), x, x.reshape(-1, 4)):
        given = {"shape": x.shape, "datatype": name, "data": data.tolist()}
        np.testing.assert_array_equal(_of(**given).arrays["x"], x)
        with pytest.raises(InputError, match="have 120000 items, its shape 120002"):
            _of(**{**given, "shape": [2, 60_001]})
    for wrong, named in (("1", "must be of"), ([1], "must be of"), (None, "must be of")):
        given["data"] = [*x.ravel().tolist(), wrong]
        with pytest.raises(InputError, match=named):
            _of(**given)
    request = protocol.InferenceRequest("", {}, {"y": False, "z": False}, {})
    specs = [TensorSpec(n, x.shape, np.dtype(dtype[name]).name) for n in "yz"]
    body, _ = protocol.encoded("m", request, specs, [x, x[:1]])
    outputs = json.loads(body)["outputs"]
    assert [output["name"] for output in outputs] == ["y", "z"]
    assert outputs[0]["data"] == x.ravel().tolist() and outputs[1]["shape"] == [1, 3, 20_000]


def test_numbers_beyond_a_type_are_its_largest() -> None:
    for name, numbers in (("FP16", [70000, -1e9]), ("FP32", [1e39, -(10**40)])):
        dtype = {"FP16": np.float16, "FP32": np.float32}[name]
        sent = _of(datatype=name, data=numbers).arrays["x"]
        assert sent.tolist() == [[np.finfo(dtype).max, np.finfo(dtype).min]]


def test_bytes_that_do_not_fit_are_refused() -> None:
    size = {"data": None, "parameters": {"binary_data_size": 8}}
    with pytest.raises(InputError, match="1 bytes of the body belong to no input"):
        _of(bytes(9), **size)
    with pytest.raises(InputError, match="has 8 bytes, its shape and datatype take 16"):
        _of(bytes(8), datatype="FP64", **size)
    with pytest.raises(InputError, match="both data and"):
        _of(bytes(8), parameters={"binary_data_size": 8})
    for body in (b"\xff", b"", b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5000):
        with pytest.raises(InputError, match="the request"):
            protocol.decoded(body, len(body), _OUTPUTS)


@pytest.mark.parametrize("header", ["-1", "+1", "1e1", "9", "", "1" * 5000, "\u0663", "0x1"])
def test_wrong_lengths_are_refused(header: str) -> None:
    with pytest.raises(InputError, match="the body has 8 bytes"):
        protocol.json_length(header, 8)
    assert protocol.json_length("8", 8) == protocol.json_length(None, 8) == 8


def test_outputs_that_are_asked_for() -> None:
    assert _decoded({"inputs": []}).outputs == {"y": False}
    binary = {"binary_data_output": True}
    assert _decoded({"inputs": [], "parameters": binary}).outputs == {"y": True}
    asked = [{"name": "y", "parameters": {"binary_data": False}}]
    assert _decoded({"outputs": asked, "parameters": binary}).outputs == {"y": False}
