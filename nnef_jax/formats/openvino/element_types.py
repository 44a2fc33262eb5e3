"""Element types: their names and bytes in files, and the dtypes in which they are computed.

A tensor of whole bytes is a view of the bytes of the .bin file. A tensor that reaches beyond the
end of the file is an error. If items take less than a byte, a byte has several items. The first
item is in the low bits of the byte, except for the type u1, whose first item is the high bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation
from nnef_jax.flattening import emission
from nnef_jax.storage.bitstream import codes_of, packed_size

# Maps the name of an element type to the dtype of its items. The names are those of versions 10 and
# 11. `_ALIASES` has the names that ports and older versions use instead.
_DTYPES: dict[str, Any] = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2,
    "f8e8m0": ml_dtypes.float8_e8m0fnu,
    "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8, "i4": ml_dtypes.int4,
    "u64": np.uint64, "u32": np.uint32, "u16": np.uint16, "u8": np.uint8, "u4": ml_dtypes.uint4,
    "u2": ml_dtypes.uint2, "boolean": np.bool_, "u1": np.uint8, "bin": np.uint8,
    "nf4": ml_dtypes.uint4,
    "f4e2m1": ml_dtypes.float4_e2m1fn,
}  # fmt: skip
_ALIASES = {
    "fp64": "f64", "fp32": "f32", "fp16": "f16", "mixed": "f32", "bool": "boolean",
    "float": "f32", "double": "f64", "half": "f16",
}  # fmt: skip
_NAMES = {type: np.dtype(dtype).name for type, dtype in _DTYPES.items()}
# Maps the name of a dtype to the first element type in `_DTYPES` that has this dtype.
BY_DTYPE = {name: type for type, name in reversed(_NAMES.items())}
# Maps element types of less than a byte to the number of bits of an item.
_BITS = {"u1": 1, "bin": 1, "u2": 2, "i4": 4, "u4": 4, "nf4": 4, "f4e2m1": 4}
# The 16 numbers of the type nf4. A stored item is an index into this list. The numbers are
# quantiles of the normal distribution (Dettmers et al. 2023, arXiv:2305.14314, appendix E).
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip


@dataclass(slots=True, eq=False)
class Weights:
    """The bytes of the .bin file; `name` is the name of the file in error messages.

    `data` is None if the file is missing.
    """

    data: memoryview | bytes | None
    name: str

    def __reduce__(self) -> tuple[Any, ...]:
        # The bytes are copied, since the file may be missing where the pickle is read.
        data = None if self.data is None else bytes(self.data)
        return Weights, (data, self.name)

    def slice(self, offset: int, size: int) -> memoryview:
        """Return `size` bytes of the .bin file, from the byte `offset` on.

        Raises InvalidOperation if the file is missing or too short.
        """
        if self.data is None:
            raise InvalidOperation(
                f"its weights are in '{self.name}', which does not exist",
                "put the file beside the .xml, or name it: load(..., weights=)",
            )
        if offset < 0 or offset + size > len(self.data):
            raise InvalidOperation(
                f"its weights are the bytes {offset} to {offset + size} of '{self.name}', "
                f"which has only {len(self.data)} bytes",
                "the file is cut off, or belongs to another network",
            )
        return memoryview(self.data)[offset : offset + size]


def element_type(name: str) -> str:
    """Return the name of an element type in version 11 of the format, such as "f32".

    `name` is any name of the type, in upper or lower case, such as "FP32". Raises InvalidOperation
    if there is no such type.
    """
    spelling = name.strip().lower()
    type = _ALIASES.get(spelling, spelling)
    if type not in _DTYPES:
        raise InvalidOperation(
            f"there is no element type '{name[:40]}'", f"the types are {', '.join(_DTYPES)}"
        )
    return type


def size_of(type: str, items: int) -> int:
    """Return the number of bytes that `items` items of the element type `type` take in a .bin file.

    For example, 3 items of the type u4 take 2 bytes.
    """
    if type in _BITS:
        return packed_size(items, _BITS[type])
    return items * np.dtype(_DTYPES[type]).itemsize


def unpacked(data: memoryview, type: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the array of a tensor from the tensor's bytes in the .bin file.

    If elements are whole bytes, the array is a view of `data`, otherwise a copy. Elements of the
    type nf4 are returned as codes, which are indices into `NF4`.
    """
    dtype = np.dtype(_DTYPES[type])
    if type not in _BITS:
        return np.frombuffer(data, dtype).reshape(shape)
    return codes_of(data, _BITS[type], shape, from_high=type == "u1").view(dtype)


def storage_dtype(type: str, real: str) -> str:
    """Return the dtype in which the graph holds weights of an element type.

    Weights of type f32 are held in `real`. Weights of 64 bits are held in their
    `computation_dtype`. All other weights are held in the dtype of the file.
    """
    if type in ("i64", "u64", "f64"):
        return computation_dtype(type, real)
    if type == "f32":
        return real
    return _NAMES[type]


def computation_dtype(type: str, real: str) -> str:
    """Return the dtype in which tensors of an element type are computed.

    f32, f16 and nf4 are computed in `real`. This includes f16, because OpenVINO's runtime computes
    f16 in f32 on CPUs. Unless jax's x64 mode is on, f64 is computed in `real`, and integers of 64
    bits are computed in 32 bits.
    """
    if type in ("f16", "nf4"):
        return real
    if type not in _DTYPES:  # strings have such a type
        raise InvalidOperation(f"there are no tensors of type '{type}'")
    return emission.computation_dtype(_NAMES[type], real)
