"""Decodes requests and encodes responses of the Open Inference Protocol 2, with binary tensors.

A body starts with JSON. If the parameters of a tensor have `binary_data_size`, the items of the
tensor follow the JSON, in the order of the tensors and in little endian. In this case the header
`Inference-Header-Content-Length` is the number of bytes of the JSON.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowering import rounding
from nnef_jax.errors import InputError, UnsupportedError
from nnef_jax.options import shown
from nnef_jax.serving.json_pieces import Items, Pieces, dumped, flattened, loads
from nnef_jax.tensor_spec import TensorSpec
from nnef_jax.wording.similar import did_you_mean, listed

LENGTH = "Inference-Header-Content-Length"
_LITTLE = sys.byteorder == "little"
_DATATYPES = {
    "BOOL": "bool",
    **{f"INT{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "FP16": "float16",
    "BF16": "bfloat16",
    "FP32": "float32",
    "FP64": "float64",
}
_NAMES = {dtype: name for name, dtype in _DATATYPES.items()}
# the types of JSON items, by the kind of a dtype
_TYPES: Mapping[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}}
_MOST_AXES = 32
_TOO_LARGE_EXTENT = 1 << 62
_Object = Mapping[str, Any]  # a JSON object


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """The content of an inference request.

    Args:
        id: the id, which the response repeats; "" if the request has none.
        arrays: the inputs by name, in the datatypes of the request.
        outputs: for each requested output, whether it is sent as a binary tensor.
        parameters: the parameters of the request, such as `sequence_id`.
    """

    id: str
    arrays: Mapping[str, NDArray[Any]]
    outputs: Mapping[str, bool]
    parameters: Mapping[str, Any]


def datatype(spec: TensorSpec) -> str:
    """Return the name that the protocol gives to a dtype.

    Raises UnsupportedError for a dtype that the protocol lacks.
    """
    if spec.dtype not in _NAMES:
        raise UnsupportedError(f"'{spec}' cannot be served: the protocol has no {spec.dtype}")
    return _NAMES[spec.dtype]


def described(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    """Return the metadata of inputs or outputs in the protocol's form. -1 is an open extent."""
    tensors: list[dict[str, Any]] = []
    for spec in specs:
        shape = [-1 if extent is None else extent for extent in spec.shape]
        tensors.append({"name": spec.name, "datatype": datatype(spec), "shape": shape})
    return tensors


def json_length(header: str | None, size: int) -> int:
    """Return the number of bytes of JSON in a body of `size` bytes.

    `header` is the value of the HTTP header with this number; without a header the whole body is
    JSON. Raises InputError for a wrong number.
    """
    if header is None:
        return size
    is_number = header.isascii() and header.isdecimal() and len(header) < 20
    if not is_number or int(header) > size:
        raise InputError(f"{LENGTH} is {header!r:.60}, the body has {size} bytes")
    return int(header)


def decoded(
    body: bytes | bytearray, length: int, outputs: Sequence[TensorSpec]
) -> InferenceRequest:
    """Return the request that a body contains, which starts with `length` bytes of JSON.

    `outputs` are the outputs of the model. Raises InputError for a wrong request.
    """
    try:
        document: Any = loads(bytes(memoryview(body)[:length]))
    except (ValueError, RecursionError) as error:
        raise InputError(f"the request is not JSON: {error}") from None
    request = _fields("the request", document)
    parameters = _parameters("the request", request)
    arrays: dict[str, NDArray[Any]] = {}
    start = length
    for item in _items("inputs", request, []):
        name, what = _name_and_title("input", item)
        if name in arrays:
            raise InputError(f"{what} is given twice")
        size = _parameters(what, item).get("binary_data_size")
        if size is None:
            arrays[name] = _from_json(what, item)
            continue
        if type(size) is not int or not 0 <= size <= len(body) - start:
            left = len(body) - start
            raise InputError(f"{what}: binary_data_size is {shown(size)}, {left} bytes are left")
        arrays[name] = _from_bytes(what, item, memoryview(body)[start : start + size])
        start += size
    if start != len(body):
        raise InputError(f"{len(body) - start} bytes of the body belong to no input")
    id = request.get("id", "")
    if not isinstance(id, str):
        raise InputError(f"id must be a string, it is {shown(id)}")
    return InferenceRequest(id, arrays, _requested(request, parameters, outputs), parameters)


def encoded(
    model: str, request: InferenceRequest, specs: Sequence[TensorSpec], results: Sequence[ArrayLike]
) -> tuple[bytes, int | None]:
    """Return the body of a response, and the number of bytes of JSON in it.

    The number is None if no output is a binary tensor.
    """
    by_name = {spec.name: (spec, x) for spec, x in zip(specs, results, strict=True)}
    head = {"model_name": model, "model_version": "1"}
    if request.id:
        head["id"] = request.id
    text = [f'{json.dumps(head)[:-1]}, "outputs": [']
    parts: list[bytes] = []
    for name, is_binary in request.outputs.items():
        spec, result = by_name[name]
        array = np.asarray(result)
        output: dict[str, Any] = {"name": name, "datatype": datatype(spec), "shape": array.shape}
        if len(text) > 1:
            text.append(", ")
        if is_binary:
            parts.append(_in_little_endian(array).tobytes())
            output["parameters"] = {"binary_data_size": len(parts[-1])}
            text.append(json.dumps(output))
        else:
            text += [f'{json.dumps(output)[:-1]}, "data": [', *dumped(array), "]}"]
    # All texts and tensors are joined at once, which avoids another copy.
    texts = [x.encode() for x in (*text, "]}")]
    length = sum(map(len, texts)) if parts else None
    return b"".join([*texts, *parts]), length


def _in_little_endian(array: NDArray[Any]) -> NDArray[Any]:
    """Convert the items of an array to little endian, or back from little endian.

    On a host that is little endian, the array is returned unchanged.
    """
    return array if _LITTLE else array.byteswap()


def _fields(what: str, value: object) -> _Object:
    if not isinstance(value, dict):
        raise InputError(f"{what} must be a JSON object, it is {shown(value)}")
    return value  # pyright: ignore[reportUnknownVariableType]


def _items(name: str, request: _Object, default: list[Any] | None) -> list[Any]:
    items = request.get(name, default)
    if not isinstance(items, list):
        raise InputError(f"{name} must be a list, it is {shown(items)}")
    return items  # pyright: ignore[reportUnknownVariableType]


def _parameters(what: str, item: _Object) -> _Object:
    parameters = _fields(f"parameters of {what}", item.get("parameters", {}))
    for name in ("shared_memory_region", "classification"):
        if name in parameters:
            raise InputError(f"{what} asks for {name}, which is not supported")
    return parameters


def _name_and_title(kind: str, item: object) -> tuple[str, str]:
    """Return the name of an input or output, and its title in messages, such as "input 'x'".

    `kind` is "input" or "output". Raises InputError if `item` has no name.
    """
    name = _fields(f"an {kind}", item).get("name")
    if not isinstance(name, str):
        raise InputError(f"an {kind} has no name, it is {shown(name)}")
    return name, f"{kind} '{name}'"


def _requested(
    request: _Object, parameters: _Object, outputs: Sequence[TensorSpec]
) -> dict[str, bool]:
    """Return the names of the requested outputs, each with whether it is sent as a binary tensor.

    `outputs` are all outputs of the model, which are requested by default.
    """
    names = [spec.name for spec in outputs]
    is_binary = parameters.get("binary_data_output") is True
    requested: dict[str, bool] = {}
    for item in _items("outputs", request, []):
        name, what = _name_and_title("output", item)
        if name not in names:
            message = f"the graph has no {what}, its outputs are {listed(names)}"
            raise InputError(message, hint=did_you_mean(name, names))
        requested[name] = _parameters(what, item).get("binary_data", is_binary) is True
    return requested or dict.fromkeys(names, is_binary)


def _type(what: str, item: _Object) -> tuple[list[int], np.dtype[Any]]:
    """Return the shape and the dtype in the description of an input.

    `what` is the title of the input in messages. Raises InputError if shape or datatype are wrong.
    """
    shape: Any = item.get("shape")
    name = item.get("datatype")
    if not isinstance(name, str) or name not in _DATATYPES:
        names = listed(_DATATYPES)
        raise InputError(f"{what} has datatype {shown(name)}, which is none of {names}")
    is_list = isinstance(shape, list) and len(shape) <= _MOST_AXES
    if not is_list or not all(map(_is_extent, shape)):
        raise InputError(f"{what} has shape {str(shape)[:60]}, it must be a list of extents from 1")
    return shape, jnp.dtype(_DATATYPES[name])


def _is_extent(value: object) -> bool:
    return type(value) is int and 1 <= value < _TOO_LARGE_EXTENT


def _from_bytes(what: str, item: _Object, data: memoryview) -> NDArray[Any]:
    if "data" in item:
        raise InputError(f"{what} has both data and binary_data_size")
    shape, dtype = _type(what, item)
    size = math.prod(shape) * dtype.itemsize
    if len(data) != size:
        raise InputError(f"{what} has {len(data)} bytes, its shape and datatype take {size}")
    if dtype.kind == "b":
        return np.frombuffer(data, np.uint8).reshape(shape) != 0
    return _in_little_endian(np.frombuffer(data, dtype).reshape(shape))


def _from_json(what: str, item: _Object) -> NDArray[Any]:
    """Return an input whose items are JSON numbers, in a flat list or in nested lists.

    `item` is the description of the input, and `what` is its title in messages.
    """
    shape, dtype = _type(what, item)
    data = item.get("data")
    lists = data.flat() if isinstance(data, Pieces) else [_items("data", item, None)]
    parts = [_numbers(what, item["datatype"], dtype, items) for items in lists]
    count = sum(map(len, parts))
    if count != math.prod(shape):
        raise InputError(f"data of {what} have {count} items, its shape {math.prod(shape)}")
    return np.concatenate(parts).reshape(shape)


def _numbers(what: str, name: str, dtype: np.dtype[Any], items: Items) -> NDArray[Any]:
    """Return the numbers in nested lists as a flat array of a dtype.

    Types are checked before the array is made. Otherwise a list of strings would become an array in
    which every item has the length of the longest string.
    """
    try:
        items = flattened(items)
    except ValueError as error:
        raise InputError(f"data of {what} are not an array: {error}") from None
    if not set(map(type, items)) <= _TYPES.get(dtype.kind, {int, float}):
        raise InputError(f"data of {what} must be of {name}")
    if dtype.kind in "iu" and items:
        bounds = np.iinfo(dtype)
        if min(items) < bounds.min or max(items) > bounds.max:
            raise InputError(f"data of {what} do not fit {name}")
        return np.array(items, dtype)
    wide_dtype = bool if dtype.kind == "b" else np.float64
    try:
        array = np.array(items, wide_dtype)
    except OverflowError:  # An integer is too large for float64.
        raise InputError(f"data of {what} do not fit {name}") from None
    return rounding.saturated(array, dtype)
