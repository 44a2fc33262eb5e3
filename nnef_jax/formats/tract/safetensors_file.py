"""Archive members in the safetensors format, whose tensors are named by variables' labels.

8 bytes hold the header's length (little endian), the header (JSON) the dtype, shape and place of
each tensor; the data follow without holes. The package `safetensors` would hold all tensors a
second time. Source: the format's README.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, cast

import jax.numpy as jnp
import numpy as np

from lowering.location import Source
from nnef_jax.errors import DataError, UnsupportedError
from nnef_jax.formats.tract.json_documents import read_json
from nnef_jax.formats.tract.tensor_file import StoredTensor
from nnef_jax.limits import Meter
from nnef_jax.storage.tensorfile import shaped

SUFFIX = ".safetensors"
_LENGTH = 8  # bytes of the header's length
_MAX_RANK = 32
_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
    "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
}  # fmt: skip


class SafetensorsFile:
    """A member; its tensors are views. Raises DataError or LimitError for its header."""

    def __init__(self, data: memoryview, name: str, meter: Meter) -> None:
        self._name = name
        start = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
        if not _LENGTH < start <= len(data):
            raise DataError(f"{name}: no header of the safetensors format")
        meter.spend(start, name)
        try:
            text = str(data[_LENGTH:start], "utf-8")
        except UnicodeDecodeError:
            raise DataError(f"{name}: the header is not UTF-8 text") from None
        header = read_json(Source(name, text), meter)
        if not isinstance(header, dict):
            raise DataError(f"{name}: the header is no object")
        self._data = data[start:]
        self._entries = {
            label: self._entry(label, entry)
            for label, entry in cast(dict[str, Any], header).items()
            if label != "__metadata__"
        }
        end = 0
        for entry in sorted(self._entries.values(), key=lambda entry: entry["data_offsets"]):
            begin, after = entry["data_offsets"]
            if begin != end:
                raise DataError(f"{name}: the data of tensors have a hole or overlap at byte {end}")
            end = after
        if end != len(self._data):
            raise DataError(f"{name}: {len(self._data)} bytes of data, tensors take {end}")

    def _entry(self, label: str, entry: Any) -> Mapping[str, Any]:
        match entry:
            case {
                "dtype": str(),
                "shape": list() as shape,
                "data_offsets": [int() as begin, int() as end],
            } if 0 <= begin <= end and all(type(extent) is int and extent >= 0 for extent in shape):
                return cast(Mapping[str, Any], entry)
            case _:
                raise DataError(f"{self._name}: '{label}' is not described as the format asks")

    @property
    def labels(self) -> Collection[str]:
        """Return the names of its tensors."""
        return self._entries.keys()

    def get(self, label: str) -> StoredTensor:
        """Return a tensor. Raises UnsupportedError for its dtype, DataError for its shape."""
        entry = self._entries[label]
        name, shape = f"{self._name}: '{label}'", tuple(entry["shape"])
        if entry["dtype"] not in _DTYPES:
            message = f"{name} holds numbers of type {entry['dtype']}"
            raise UnsupportedError(message, hint=f"store one of {', '.join(_DTYPES)}")
        if len(shape) > _MAX_RANK:
            raise DataError(f"{name} has rank {len(shape)}, expected at most {_MAX_RANK}")
        dtype = jnp.dtype(_DTYPES[entry["dtype"]])
        begin, end = entry["data_offsets"]
        if math.prod(shape) * dtype.itemsize != end - begin:
            raise DataError(f"{name}: {end - begin} bytes for shape {list(shape)}")
        truth = dtype.kind == "b"
        array = np.frombuffer(self._data[begin:end], np.uint8 if truth else dtype)
        array = shaped(array != 0 if truth else np.require(array, requirements="A"), shape, name)
        array.setflags(write=False)
        return StoredTensor(array, name)
