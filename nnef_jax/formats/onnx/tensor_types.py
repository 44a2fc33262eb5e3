"""The element types of ONNX: codes, dtypes and sizes.

The module also makes arrays from the bytes of tensors.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation
from lowering.extents import volume
from nnef_jax.storage.bitstream import BITS, codes_of, packed_size

# Maps the codes of element types in TensorProto.DataType (onnx.proto) to dtypes.
_DTYPES: dict[int, Any] = {
    1: np.float32, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32, 7: np.int64,
    9: np.bool_, 10: np.float16, 11: np.float64, 12: np.uint32, 13: np.uint64, 14: np.complex64,
    15: np.complex128, 16: ml_dtypes.bfloat16, 17: ml_dtypes.float8_e4m3fn,
    18: ml_dtypes.float8_e4m3fnuz, 19: ml_dtypes.float8_e5m2, 20: ml_dtypes.float8_e5m2fnuz,
    21: ml_dtypes.uint4, 22: ml_dtypes.int4, 23: ml_dtypes.float4_e2m1fn,
    24: ml_dtypes.float8_e8m0fnu, 25: ml_dtypes.uint2, 26: ml_dtypes.int2,
}  # fmt: skip
_DTYPE_NAMES = {code: np.dtype(dtype).name for code, dtype in _DTYPES.items()}
_STRING_CODE = 8  # the code of strings


def dtype_of(code: int) -> str:
    """Return the name of the dtype with a code of `TensorProto.DataType`.

    Raises InvalidOperation for strings and for unknown codes.
    """
    if code == _STRING_CODE:
        raise InvalidOperation("it has strings, of which there are no arrays in JAX")
    if code not in _DTYPE_NAMES:
        raise InvalidOperation(f"there is no element type {code}")
    return _DTYPE_NAMES[code]


def code_of(dtype: str) -> int:
    """Return the code of a dtype in `TensorProto.DataType`."""
    code_by_name = {name: code for code, name in _DTYPE_NAMES.items()}
    return code_by_name[dtype]


def size_of(dtype: str, items: int) -> int:
    """Return the number of bytes that `items` items of a dtype take in a file."""
    if dtype in BITS:
        return packed_size(items, BITS[dtype])
    return items * np.dtype(dtype).itemsize


def unpacked(data: memoryview, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Make the array of a tensor from the tensor's bytes `data`.

    The array is a view of `data`, unless items have fewer than 8 bits. Raises InvalidOperation if
    the number of bytes does not fit the shape.
    """
    size = size_of(dtype, volume(shape))
    if len(data) != size:
        message = f"it has {len(data)} bytes, {list(shape)} items of {dtype} take {size}"
        raise InvalidOperation(message)
    if dtype not in BITS:
        return np.frombuffer(data, np.dtype(dtype)).reshape(shape)
    return codes_of(data, BITS[dtype], shape).view(dtype)


def converted(stored: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Convert the stored numbers of a message to items of a dtype.

    A stored integer may have the bits of a float of up to 16 bits, or the bits of several items of
    fewer than 8 bits. The result then has unsigned integers of the size of the dtype.
    Raises InvalidOperation if an integer is outside of the range of the dtype.
    """
    tensor_dtype = np.dtype(dtype)
    has_integers = stored.dtype.kind in "iu"
    stores_bits = has_integers and tensor_dtype.kind in "fV"  # "V" is for dtypes of ml_dtypes.
    item_dtype: Any = f"u{tensor_dtype.itemsize}" if stores_bits else tensor_dtype
    array = stored.astype(item_dtype, copy=False)
    changed_items = stored[stored != array]
    if has_integers and changed_items.size > 0:
        raise InvalidOperation(f"it has {changed_items[0]}, which is no {dtype}")
    return array
