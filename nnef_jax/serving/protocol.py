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
# Maps a kind of numpy's dtypes, such as "b" for bool, to the types that JSON items may have. Items
# of all other kinds are numbers.
_TYPES: Mapping[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}}
_MOST_AXES = 32  # A tensor in a request has at most this many axes.
_TOO_LARGE_EXTENT = 1 << 62  # The extents of a tensor in a request are smaller than this.
_Object = Mapping[str, Any]  # This is a JSON object.


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
    """Return the protocol's name for the dtype of a tensor.

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

    `header` is the value of the HTTP header `LENGTH`, which contains this number. If `header` is
    None, the complete body is JSON. Raises InputError for a wrong number.
    """
    if header is None:
        return size
    is_short_number = header.isascii() and header.isdecimal() and len(header) < 20
    if is_short_number and int(header) <= size:
        return int(header)
    raise InputError(f"{LENGTH} is {header!r:.60}, the body has {size} bytes")


def decoded(
    body: bytes | bytearray, length: int, outputs: Sequence[TensorSpec]
) -> InferenceRequest:
    """Return the request in a body that starts with `length` bytes of JSON.

    `outputs` are the outputs of the model. Raises InputError for a wrong request.
    """
    try:
        document: Any = loads(bytes(memoryview(body)[:length]))
    except (ValueError, RecursionError) as error:
        raise InputError(f"the request is not JSON: {error}") from None
    request = _fields("the request", document)
    parameters = _parameters("the request", request)
    arrays = _inputs(request, binary=memoryview(body)[length:])
    id = request.get("id", "")
    if not isinstance(id, str):
        raise InputError(f"id must be a string, it is {shown(id)}")
    return InferenceRequest(id, arrays, _requested(request, parameters, outputs), parameters)


def _inputs(request: _Object, binary: memoryview) -> dict[str, NDArray[Any]]:
    """Return a dict from names to the inputs of a request.

    `binary` has the bytes of the binary tensors, one after the other. Raises InputError for a wrong
    input, and if some bytes belong to no input.
    """
    arrays: dict[str, NDArray[Any]] = {}
    remaining = binary
    for item in _items("inputs", request, default=[]):
        name, title = _name_and_title("input", item)
        if name in arrays:
            raise InputError(f"{title} is given twice")
        size = _parameters(title, item).get("binary_data_size")
        if size is None:
            arrays[name] = _from_json(title, item)
            continue
        is_valid_size = type(size) is int and 0 <= size <= len(remaining)
        if not is_valid_size:
            message = f"{title}: binary_data_size is {shown(size)}"
            raise InputError(f"{message}, {len(remaining)} bytes are left")
        arrays[name] = _from_bytes(title, item, remaining[:size])
        remaining = remaining[size:]
    if len(remaining) > 0:
        raise InputError(f"{len(remaining)} bytes of the body belong to no input")
    return arrays


def encoded(
    model: str, request: InferenceRequest, specs: Sequence[TensorSpec], results: Sequence[ArrayLike]
) -> tuple[bytes, int | None]:
    """Return the body of a response, and the number of bytes of JSON in it.

    The number is None if no output is a binary tensor.

    Args:
        model: the name of the model.
        request: the request, which names the outputs of the response.
        specs: all outputs of the model.
        results: the values of these outputs.
    """
    by_name = {spec.name: (spec, result) for spec, result in zip(specs, results, strict=True)}
    head = {"model_name": model, "model_version": "1"}
    if request.id:
        head["id"] = request.id
    # The JSON is written in pieces. The first piece is the object `head` without its last brace, so
    # that the member "outputs" can be added.
    pieces = [f'{json.dumps(head).removesuffix("}")}, "outputs": [']
    binary_tensors: list[bytes] = []
    for name, is_binary in request.outputs.items():
        spec, result = by_name[name]
        array = np.asarray(result)
        output: dict[str, Any] = {"name": name, "datatype": datatype(spec), "shape": array.shape}
        is_first = len(pieces) == 1
        if not is_first:
            pieces.append(", ")
        if is_binary:
            tensor = _in_little_endian(array).tobytes()
            binary_tensors.append(tensor)
            output["parameters"] = {"binary_data_size": len(tensor)}
            pieces.append(json.dumps(output))
        else:
            # The member "data" is added like "outputs" above.
            pieces += [f'{json.dumps(output).removesuffix("}")}, "data": [', *dumped(array), "]}"]
    pieces.append("]}")
    # Each join copies the bytes. All pieces and tensors are therefore joined only once, at the end.
    encoded_pieces = [x.encode() for x in pieces]
    length = sum(map(len, encoded_pieces)) if binary_tensors else None
    return b"".join([*encoded_pieces, *binary_tensors]), length


def _in_little_endian(array: NDArray[Any]) -> NDArray[Any]:
    """Convert the items of an array to little endian, or back from little endian.

    On a host that is little endian, the array is returned unchanged.
    """
    return array if _LITTLE else array.byteswap()


def _fields(title: str, value: object) -> _Object:
    """Return a value that must be a JSON object. `title` names the value in errors."""
    if not isinstance(value, dict):
        raise InputError(f"{title} must be a JSON object, it is {shown(value)}")
    return value  # pyright: ignore[reportUnknownVariableType]


def _items(name: str, request: _Object, default: list[Any] | None) -> list[Any]:
    """Return the member `name` of a request, or the default if there is no such member.

    Raises InputError if the result is not a list.
    """
    items = request.get(name, default)
    if not isinstance(items, list):
        raise InputError(f"{name} must be a list, it is {shown(items)}")
    return items  # pyright: ignore[reportUnknownVariableType]


def _parameters(title: str, item: _Object) -> _Object:
    """Return the parameters of `item`: the request, an input or an output.

    `title` names the item in errors. Raises InputError for parameters of extensions that are not
    supported.
    """
    parameters = _fields(f"parameters of {title}", item.get("parameters", {}))
    for name in ("shared_memory_region", "classification"):
        if name in parameters:
            raise InputError(f"{title} asks for {name}, which is not supported")
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
    """Return a dict from names of requested outputs to whether they are sent as binary tensors.

    `outputs` are all outputs of the model. A request that names no outputs requests all of them.
    """
    names = [spec.name for spec in outputs]
    is_binary_by_default = parameters.get("binary_data_output") is True
    requested: dict[str, bool] = {}
    for item in _items("outputs", request, default=[]):
        name, title = _name_and_title("output", item)
        if name not in names:
            message = f"the graph has no {title}, its outputs are {listed(names)}"
            raise InputError(message, hint=did_you_mean(name, names))
        binary_data = _parameters(title, item).get("binary_data", is_binary_by_default)
        requested[name] = binary_data is True
    return requested or dict.fromkeys(names, is_binary_by_default)


def _type(title: str, item: _Object) -> tuple[list[int], np.dtype[Any]]:
    """Return the shape and the dtype in the description of an input.

    `title` names the input in errors. Raises InputError if the shape or the datatype is wrong.
    """
    shape: Any = item.get("shape")
    name = item.get("datatype")
    if not isinstance(name, str) or name not in _DATATYPES:
        names = listed(_DATATYPES)
        raise InputError(f"{title} has datatype {shown(name)}, which is none of {names}")
    is_short_list = isinstance(shape, list) and len(shape) <= _MOST_AXES
    if is_short_list and all(map(_is_extent, shape)):
        return shape, jnp.dtype(_DATATYPES[name])
    raise InputError(f"{title} has shape {str(shape)[:60]}, it must be a list of extents from 1")


def _is_extent(value: object) -> bool:
    return type(value) is int and 1 <= value < _TOO_LARGE_EXTENT


def _from_bytes(title: str, item: _Object, data: memoryview) -> NDArray[Any]:
    """Return an input whose items are the bytes `data`, in little endian.

    `item` is the description of the input, and `title` names the input in errors.
    """
    if "data" in item:
        raise InputError(f"{title} has both data and binary_data_size")
    shape, dtype = _type(title, item)
    size = math.prod(shape) * dtype.itemsize
    if len(data) != size:
        raise InputError(f"{title} has {len(data)} bytes, its shape and datatype take {size}")
    if dtype.kind == "b":
        return np.frombuffer(data, np.uint8).reshape(shape) != 0
    return _in_little_endian(np.frombuffer(data, dtype).reshape(shape))


def _from_json(title: str, item: _Object) -> NDArray[Any]:
    """Return an input whose items are JSON numbers, in a flat list or in nested lists.

    `item` is the description of the input, and `title` names the input in errors.
    """
    shape, dtype = _type(title, item)
    data = item.get("data")
    lists = data.flat() if isinstance(data, Pieces) else [_items("data", item, default=None)]
    parts = [_numbers(title, item["datatype"], dtype, items) for items in lists]
    count = sum(map(len, parts))
    if count != math.prod(shape):
        raise InputError(f"data of {title} have {count} items, its shape {math.prod(shape)}")
    return np.concatenate(parts).reshape(shape)


def _numbers(title: str, datatype: str, dtype: np.dtype[Any], items: Items) -> NDArray[Any]:
    """Return the numbers in nested lists as a flat array of a dtype.

    Types are checked before the array is made. Otherwise a list of strings would become an array in
    which every item has the length of the longest string. `title` names the input in errors, and
    `datatype` is the protocol's name of the dtype.
    """
    try:
        numbers = flattened(items)
    except ValueError as error:
        raise InputError(f"data of {title} are not an array: {error}") from None
    allowed_types = _TYPES.get(dtype.kind, {int, float})
    has_allowed_types = set(map(type, numbers)) <= allowed_types
    if not has_allowed_types:
        raise InputError(f"data of {title} must be of {datatype}")
    if dtype.kind in "iu" and numbers:
        bounds = np.iinfo(dtype)
        if min(numbers) < bounds.min or max(numbers) > bounds.max:
            raise InputError(f"data of {title} do not fit {datatype}")
        return np.array(numbers, dtype)
    wide_dtype = bool if dtype.kind == "b" else np.float64
    try:
        array = np.array(numbers, wide_dtype)
    except OverflowError:
        # An integer is too large for float64.
        raise InputError(f"data of {title} do not fit {datatype}") from None
    return rounding.saturated(array, dtype)
