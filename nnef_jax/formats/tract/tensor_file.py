"""Reads tensor files of the dialect, which are those of NNEF 1.0 with additional item types.

The header is that of NNEF 1.0 (`storage.tensorfile`). Item types of vendor 0 are the standard's.
The two quantised types are plain integers, however, since tract writes all integers as quantised.
The item types of vendor 'TR' are:

    0x0000    complex numbers of 32, 64 and 128 bits, the real part first
    0x1000    strings, which are refused
    0x3040    Q4_0: blocks of 18 bytes: the scale in float16, then 16 bytes of two codes of 4 bits.
              A number is (code - 8) * scale. The low halves of the bytes are the first 16 codes,
              and the high halves are the last 16 codes
    0x2040    Q4_0 in tract's older order: byte j has code 2j (low half) and 2j + 1 (high half)
    0x3080    Q8_1: blocks of 36 bytes: the scale in float16, scale * sum of the codes in float16,
              then 32 signed codes of 8 bits. A number is code * scale. tract reads this item type.
    0x3081    Q8_1: tract writes this item type

The blocks have the layout of ggml's blocks. Extents may be 0. Complex numbers whose parts have 16
bits are read as complex64, and blocks are read as float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering.extents import Shape, show
from nnef_jax.errors import DataError, UnsupportedError
from nnef_jax.formats.syntax.declared_tensors import check_shape
from nnef_jax.limits import Meter
from nnef_jax.storage import tensorfile
from nnef_jax.storage.tensorfile import HEADER_SIZE, FinalHeader, TensorFile, shaped

_Codes = NDArray[np.uint8]
_Reals = NDArray[np.float32]

# The largest number of items of a tensor that can be an attribute. Flattening reads only the type
# of a larger tensor.
LARGEST_ATTRIBUTE = 4096
_BLOCK = 32  # the number of numbers in a block
_VENDOR = 0x5452  # the number of the vendor 'TR'
# Item types of the vendor 'TR'.
_COMPLEX = 0x0000
_COMPLEX_INTEGERS = 0x0004
_STRINGS = 0x1000
# Maps the number of bits of a complex number to the dtype of a stored part, and to the dtype of the
# array that is made from the parts.
_COMPLEX_TYPES = {
    32: ("<f2", "complex64"), 64: ("<f4", "complex64"), 128: ("<f8", "complex128"),
}  # fmt: skip


def _scales(blocks: _Codes) -> _Reals:
    """Return the scale of each block. A scale is the float16 in the first two bytes of a block."""
    return blocks[:, :2].copy().view("<f2").astype(np.float32)


def _numbers_of_q4_0(blocks: _Codes) -> _Reals:
    """Decode blocks in the format Q4_0: a scale, then 16 bytes with two codes of 4 bits each.

    The low halves of the bytes are the first 16 codes, and the high halves are the last 16 codes.
    """
    code_pairs = blocks[:, 2:]  # the scale takes the first two bytes
    numbers = np.concatenate([code_pairs & 15, code_pairs >> 4], axis=1).astype(np.float32)
    numbers -= 8  # the codes 0 to 15 stand for -8 to 7
    numbers *= _scales(blocks)
    return numbers


def _numbers_of_old_q4_0(blocks: _Codes) -> _Reals:
    """Decode blocks in tract's older order of Q4_0, in which a byte has two successive codes."""
    # Axis 1 is 0 for numbers from low halves of bytes, and 1 for numbers from high halves. Axis 2
    # is the index of the byte.
    halves = _numbers_of_q4_0(blocks).reshape(-1, 2, _BLOCK // 2)
    return halves.swapaxes(1, 2).reshape(-1, _BLOCK)


def _numbers_of_q8_1(blocks: _Codes) -> _Reals:
    """Decode blocks in the format Q8_1: a scale, a sum that is not needed, and 32 signed bytes."""
    codes = blocks[:, 4:].view(np.int8)
    return codes * _scales(blocks)


# A format of blocks: the number of bytes of a block, and a function that decodes blocks. The
# function takes bytes of shape (n, number of bytes), and returns numbers of shape (n, 32).
_Format = tuple[int, Callable[[_Codes], _Reals]]
# Maps item types to the formats of their blocks.
_FORMATS: dict[int, _Format] = {
    0x3040: (18, _numbers_of_q4_0),
    0x2040: (18, _numbers_of_old_q4_0),
    0x3080: (36, _numbers_of_q8_1),
    0x3081: (36, _numbers_of_q8_1),
}


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A tensor that was read from a member of an archive.

    Args:
        array: the items. The array cannot be written to.
        member: the name of the archive's member.
        in_blocks: whether the file has the items in blocks.
    """

    array: NDArray[Any]
    member: str
    in_blocks: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        # A large array is not pickled. A pickled network has its data elsewhere, and flattening
        # reads only the items of small tensors.
        if self.array.size <= LARGEST_ATTRIBUTE:
            return type(self), (self.array, self.member, self.in_blocks)
        return _without_data, (self.array.dtype, self.array.shape, self.member, self.in_blocks)

    def content(self) -> tuple[str, bytes]:
        """Return a description of the tensor's type, and the tensor's bytes.

        The bytes are left out if the tensor is too large to be an attribute.
        """
        type = f"{self.array.dtype}{self.array.shape}{self.in_blocks}"
        may_be_attribute = self.array.size <= LARGEST_ATTRIBUTE
        data = self.array.tobytes() if may_be_attribute else b""
        return type, data

    @property
    def codes(self) -> TensorFile | None:
        """Return a tensor of integers as codes for graph.quant. Return None for other tensors."""
        dtype = self.array.dtype
        if dtype.kind not in "iu":
            return None
        bits = 8 * dtype.itemsize
        is_signed = dtype.kind == "i"
        return TensorFile(self.array, bits, signed=is_signed, quantized=True)

    def shaped(self, shape: Shape, label: str) -> NDArray[Any]:
        """Return the array in `shape`, which is declared for the variable `label`.

        The declared shape and the array's shape may differ in trailing extents of 1. A tensor in
        blocks is a matrix in the file, so only the numbers of items must agree. Raises DataError if
        the two shapes do not agree.
        """
        if not self.in_blocks:
            check_shape(self.array.shape, shape, label, self.member)
        elif math.prod(shape) != self.array.size:
            raise DataError(
                f"{self.member} has {self.array.size} items, variable '{label}' is declared with "
                f"{show(shape)}: {math.prod(shape)} items"
            )
        return self.array.reshape(shape)


def _without_data(dtype: np.dtype[Any], shape: Shape, member: str, in_blocks: bool) -> StoredTensor:
    """Return zeros in place of a tensor whose data are left out. The zeros take no memory."""
    zeros = np.broadcast_to(np.zeros((), dtype), shape)
    return StoredTensor(zeros, member, in_blocks)


def read_tensor_file(data: memoryview, name: str, meter: Meter) -> StoredTensor:
    """Read the tensor in a file of the dialect. `name` is the name of the file in errors.

    Memory is allocated only after the header is checked, also against the size of the file. Raises
    DataError if the header is wrong, and UnsupportedError for an item type that has no dtype.
    Raises LimitError if the conversion of the tensor takes more memory than the meter allows.
    """
    header = tensorfile.final_header(data, name)
    if header.vendor != _VENDOR:
        array = tensorfile.read_tensor_file(data, name=name, meter=meter, empty=True).array
        return StoredTensor(array, name)
    stored = _vendor_tensor(data, header, name, meter)
    stored.array.setflags(write=False)
    return stored


def _vendor_tensor(data: memoryview, header: FinalHeader, name: str, meter: Meter) -> StoredTensor:
    """Read a tensor with an item type of tract. NNEF 1.0 does not have these item types."""
    kind = header.item_type
    if kind in _FORMATS:
        return _blocks(data, header, _FORMATS[kind], name, meter)
    if kind == _COMPLEX:
        return _complex(data, header, name, meter)
    if kind == _STRINGS:
        raise UnsupportedError(f"{name} holds strings, but JAX has no arrays of strings")
    if kind == _COMPLEX_INTEGERS:
        raise UnsupportedError(
            f"{name} holds complex integers of {header.bits} bits",
            hint="store the parts of complex numbers as real numbers",
        )
    supported = ", ".join(f"{number:#06x}" for number in (_COMPLEX, *_FORMATS))
    message = f"{name}: item type {kind:#06x} of vendor 'TR'"
    raise UnsupportedError(message, hint=f"the supported ones are {supported}")


def _payload(data: memoryview, header: FinalHeader, size: int, name: str) -> memoryview:
    """Return the `size` bytes after the header.

    Raises DataError unless the header declares `size` bytes, and the file has them.
    """
    length = len(data) - HEADER_SIZE
    if header.length != size or length != size:
        raise DataError(
            f"{name}: extents {list(header.shape)} take {size} bytes, but the data length is "
            f"{header.length} and {length} bytes follow the header"
        )
    return data[HEADER_SIZE:]


def _blocks(
    data: memoryview, header: FinalHeader, format: _Format, name: str, meter: Meter
) -> StoredTensor:
    """Read a tensor that is stored in blocks. `format` describes the blocks."""
    block_size, numbers_of = format
    items = math.prod(header.shape)
    if math.prod(header.shape[1:]) % _BLOCK != 0:
        raise DataError(
            f"{name}: extents {list(header.shape)} do not divide into blocks of {_BLOCK} items "
            "along the second and further axes"
        )
    payload = _payload(data, header, items // _BLOCK * block_size, name)
    meter.expand(4 * items, name)  # the result is float32
    blocks = np.frombuffer(payload, np.uint8).reshape(-1, block_size)
    # An infinite scale times 0 is NaN, which needs no warning.
    with np.errstate(invalid="ignore"):
        array = numbers_of(blocks)
    return StoredTensor(shaped(array, header.shape, name), name, in_blocks=True)


def _complex(data: memoryview, header: FinalHeader, name: str, meter: Meter) -> StoredTensor:
    """Read a tensor of complex numbers, which are stored as pairs of a real and an imaginary part.

    Numbers of 32 bits are read as complex64.
    """
    if header.bits not in _COMPLEX_TYPES:
        raise DataError(f"{name}: {header.bits} bits for a complex number, expected 32, 64 or 128")
    part_dtype, dtype = _COMPLEX_TYPES[header.bits]
    size = math.prod(header.shape) * header.bits // 8
    parts = np.frombuffer(_payload(data, header, size, name), part_dtype)
    count = parts.size // 2
    meter.expand(max(size, 8 * count), name)  # a complex64 takes 8 bytes
    wide_part_dtype = "float64" if dtype == "complex128" else "float32"
    array = parts.astype(wide_part_dtype).view(dtype)
    return StoredTensor(shaped(array, header.shape, name), name)
