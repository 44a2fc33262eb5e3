"""Archive members in the safetensors format, whose tensors are named by the labels of variables.

Reading them takes the package `safetensors`, an optional extra.
"""

from __future__ import annotations

import importlib
from typing import Any

import jax.numpy as jnp
import numpy as np

from nnef_jax.errors import DataError, LimitError, UnsupportedError
from nnef_jax.formats.tract.tensors import StoredTensor, datum_of
from nnef_jax.limits import Limits
from nnef_jax.storage.tensorfile import check_size

SUFFIX = ".safetensors"
_MAX_RANK = 32
_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
    "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
}  # fmt: skip


class SafetensorsFile:
    """A member that has been read; its tensors are made when they are asked for.

    Raises DataError for a broken one, LimitError for one of more than `limits.archive_bytes`, and
    UnsupportedError where the package is not installed.
    """

    def __init__(self, data: memoryview, name: str, limits: Limits) -> None:
        self._name = name
        self._limits = limits
        package = _package(name)
        if len(data) > limits.archive_bytes:
            raise LimitError(
                f"{name}: larger than {limits.archive_bytes} bytes",
                hint="raise Limits.archive_bytes if the file is to be trusted",
            )
        try:
            self._entries: dict[str, Any] = dict(package.deserialize(bytes(data)))
        except package.SafetensorError as error:
            raise DataError(f"{name}: {error}") from None
        except MemoryError:
            raise LimitError(f"{name}: does not fit into memory") from None

    def get(self, label: str) -> StoredTensor | None:
        """The tensor of a name, or None.

        Raises UnsupportedError for numbers of a kind that nothing here computes with, DataError or
        LimitError for extents that no array can have.
        """
        entry = self._entries.get(label)
        if entry is None:
            return None
        name, shape = f"{self._name}: '{label}'", tuple(entry["shape"])
        if entry["dtype"] not in _DTYPES:
            raise UnsupportedError(
                f"{name} holds numbers of type {entry['dtype']}",
                hint=f"store one of {', '.join(_DTYPES)}",
            )
        if len(shape) > _MAX_RANK:
            raise DataError(f"{name} has rank {len(shape)}, expected at most {_MAX_RANK}")
        dtype = jnp.dtype(_DTYPES[entry["dtype"]])
        check_size(shape, dtype, name, self._limits)
        truth = dtype.kind == "b"
        array = np.frombuffer(entry["data"], np.uint8 if truth else dtype).reshape(shape)
        array = array != 0 if truth else array
        array.setflags(write=False)
        datum = "bf16" if entry["dtype"] == "BF16" else datum_of(array.dtype)
        return StoredTensor(array, datum, name)


def _package(name: str) -> Any:
    try:
        return importlib.import_module("safetensors")
    except ImportError:
        raise UnsupportedError(
            f"reading {name} needs the package safetensors",
            hint="pip install nnef_jax[safetensors]",
        ) from None
