"""Reads members of an archive in two formats: JSON, and safetensors, which has a JSON header.

A graph reads single values of a JSON document. A safetensors file begins with the length of its
header, which is a little-endian integer of 8 bytes. The header is JSON. It maps the label of each
variable to the dtype, the shape and the byte range of the tensor. The data follow without gaps. The
package `safetensors` is not used, since it would copy all tensors. This description follows the
README of the format.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

import jax.numpy as jnp
import numpy as np

from lowering.location import Source, Span
from nnef_jax.errors import DataError, LimitError, UnsupportedError
from nnef_jax.formats.tract.tensor_file import StoredTensor
from nnef_jax.limits import Meter, raising
from nnef_jax.storage.tensorfile import shaped
from nnef_jax.wording.similar import did_you_mean

Json = bool | int | float | str | list[Any]

# Matches a step of a key path. Group 1 is a name or a number, and group 2 is a number in brackets.
_STEP = re.compile(r"\.?([^.\[\]]+)|\[([0-9]+)\]")
_INDEX = re.compile("[0-9]{1,18}")  # an index of more digits is beyond the end of each list
_BEYOND = 1 << 64  # the smallest positive integer that has more than 64 bits

SUFFIX = ".safetensors"
_LENGTH_BYTES = 8  # the number of bytes of the integer that is the length of the header
_MAX_RANK = 32  # the largest number of axes of a tensor
# Maps the names that a header has for dtypes to the names that JAX has for them.
_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
    "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
}  # fmt: skip


def read_json(source: Source, meter: Meter) -> Any:
    """Parse a JSON document.

    Raises DataError if the text is no JSON, and LimitError if lists and objects are nested too
    deeply.
    """
    deepest = meter.limits.nesting
    too_deep = LimitError(
        f"{source.name}: nested more than {deepest} deep", hint=raising("nesting")
    )
    try:
        document = json.loads(source.text)
    except json.JSONDecodeError as error:
        raise DataError(f"not JSON: {error.msg}", span=Span(source, error.pos)) from None
    except ValueError as error:  # Python refuses integers with very many digits
        raise DataError(f"{source.name}: {error}") from None
    except RecursionError:
        raise too_deep from None
    level_values = [document]
    for _ in range(deepest):
        # The values of the next level of nesting are the parts of all values of this level.
        parts: list[Any] = []
        for value in level_values:
            parts += _parts(value)
        level_values = parts
        if not level_values:
            return document
    raise too_deep


def value_at(document: object, key: str, name: str, meter: Meter) -> Json:
    """Return the value in a JSON document at a path such as "$.a[0].b" or "a.0.b".

    `name` is the name of the document in errors. Raises DataError if there is no such value, or if
    no argument of an operation can have the value.
    """
    value: Any = document
    path = key.removeprefix("$")
    offset = 0
    while offset < len(path):
        step = _STEP.match(path, offset)
        if step is None:
            raise DataError(
                f"'{key}' is not a key path", hint="write names and numbers with points between"
            )
        unbracketed, bracketed = step.groups()
        value = _step(value, unbracketed or bracketed, key, name, meter)
        offset = step.end()
    _require_argument(value, key, name, meter)
    return value


def _require_argument(value: Json, key: str, name: str, meter: Meter) -> None:
    """Raise DataError unless a value may be an argument of an operation.

    An argument contains no null, no object and no integer of more than 64 bits. The value is at the
    path `key` of the document `name`.
    """
    pending: list[Any] = [value]
    while pending:
        meter.spend(1, name)
        item = pending.pop()
        if item is None or isinstance(item, dict):
            kind = "null" if item is None else "an object"
            is_inside = isinstance(value, list)
            inside = " inside the list" if is_inside else ""
            raise DataError(
                f"{name} has {kind}{inside} at '{key}'",
                hint="a graph can take a number, a truth value, a string or a list of these",
            )
        if isinstance(item, int) and abs(item) >= _BEYOND:
            raise DataError(f"{name} has an integer of more than 64 bits at '{key}'")
        pending += _parts(item)


def _step(value: object, step: str, key: str, name: str, meter: Meter) -> Any:
    """Return the member of an object, or the item of a list, at one step of a path.

    `key` is the entire path, and `name` is the name of the document. Raises DataError if there is
    no such member or item.
    """
    match value:
        case dict() if step in value:
            return value[step]
        case list() if _INDEX.fullmatch(step) and int(step) < len(value):
            return value[int(step)]
        case dict():
            hint = did_you_mean(step, value, meter=meter)
        case list():
            hint = f"the list there has {len(value)} items"
        case _:
            hint = "the value there has no parts"
    raise DataError(f"{name} has nothing at '{key}': there is no '{step}'", hint=hint)


def _parts(value: object) -> Iterable[Any]:
    """Return the values in an object or a list. Other values have no parts."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


class SafetensorsFile:
    """A safetensors file, whose tensors are views of the bytes of the file.

    Raises DataError if the header is invalid, and LimitError if the header is too large.
    """

    def __init__(self, data: memoryview, name: str, meter: Meter) -> None:
        self._name = name
        header_length = int.from_bytes(data[:_LENGTH_BYTES], "little")
        start = _LENGTH_BYTES + header_length  # the offset of the tensors' data
        if not _LENGTH_BYTES < start <= len(data):
            raise DataError(f"{name}: no header of the safetensors format")
        meter.spend(start, name)
        try:
            text = str(data[_LENGTH_BYTES:start], "utf-8")
        except UnicodeDecodeError:
            raise DataError(f"{name}: the header is not UTF-8 text") from None
        header = read_json(Source(name, text), meter)
        if not isinstance(header, dict):
            raise DataError(f"{name}: the header is no object")
        self._data = data[start:]
        self._entries: dict[str, Mapping[str, Any]] = {}
        for label, entry in cast(dict[str, Any], header).items():
            if label != "__metadata__":
                self._entries[label] = self._entry(label, entry)
        self._require_no_gaps()

    def _require_no_gaps(self) -> None:
        """Raise DataError unless the data of the tensors follow each other up to the file's end."""
        ranges = sorted(entry["data_offsets"] for entry in self._entries.values())
        end = 0  # the end of the data of the tensors so far
        for tensor_begin, tensor_end in ranges:
            if tensor_begin != end:
                raise DataError(
                    f"{self._name}: the data of tensors have a gap or overlap at byte {end}"
                )
            end = tensor_end
        if end != len(self._data):
            size = f"{len(self._data)} bytes of data"
            raise DataError(f"{self._name}: the file has {size}, its tensors take {end}")

    def _entry(self, label: str, entry: object) -> Mapping[str, Any]:
        """Check the entry of the header for a tensor, and return it. Raises DataError."""
        match entry:
            case {
                "dtype": str(),
                "shape": list() as shape,
                "data_offsets": [int() as begin, int() as end],
            } if 0 <= begin <= end and all(type(extent) is int and extent >= 0 for extent in shape):
                return cast(Mapping[str, Any], entry)
            case _:
                raise DataError(
                    f"{self._name}: the header must have 'dtype', 'shape' and 'data_offsets' for "
                    f"'{label}'"
                )

    @property
    def labels(self) -> Collection[str]:
        """Return the labels of the tensors in the file."""
        return self._entries.keys()

    def get(self, label: str) -> StoredTensor:
        """Return the tensor with a label.

        Raises DataError if the data of the tensor are wrong, and UnsupportedError if its item type
        has no dtype.
        """
        entry = self._entries[label]
        name = f"{self._name}: '{label}'"
        shape = tuple(entry["shape"])
        if entry["dtype"] not in _DTYPES:
            message = f"{name} holds numbers of type {entry['dtype']}"
            raise UnsupportedError(message, hint=f"store one of {', '.join(_DTYPES)}")
        if len(shape) > _MAX_RANK:
            raise DataError(f"{name} has rank {len(shape)}, expected at most {_MAX_RANK}")
        dtype = jnp.dtype(_DTYPES[entry["dtype"]])
        begin, end = entry["data_offsets"]
        if math.prod(shape) * dtype.itemsize != end - begin:
            raise DataError(f"{name}: {end - begin} bytes do not fit the shape {list(shape)}")
        if dtype.kind == "b":  # each byte other than 0 is true
            array = np.frombuffer(self._data[begin:end], np.uint8) != 0
        else:
            array = np.frombuffer(self._data[begin:end], dtype)
            array = np.require(array, requirements="A")  # copies the data if they are not aligned
        array = shaped(array, shape, name)
        array.setflags(write=False)
        return StoredTensor(array, name)
