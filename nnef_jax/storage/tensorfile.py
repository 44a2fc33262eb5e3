"""Reads and writes tensor files ('.dat'): a header and the items of one tensor (spec 5.2).

All numbers are little endian. The header of NNEF 1.0 has 128 bytes:

    0   4E EF, major 1, minor 0
    4   data length in bytes          8   rank, at most 8          12  8 extents, the unused ones 0
    44  bits of an item               48  item type                52  19 reserved words

The header of the provisional specification has no fixed length:

    0   4E EF, major 1, minor 0
    4   length of this header         8   rank                     12  as many extents as the rank
    +0  item type (one byte)          +1  bits of an item (one byte)
    +2  length of the text            +4  quantisation algorithm, as text

The items follow the header. Items that have not 8, 16, 32 or 64 bits are packed (see `bitstream`).

The Khronos tools from before 2018-10-19 wrote one reserved word too many: for items of types 0 and
1, their headers have 132 bytes. Such files are read with a warning. Any other surplus bytes are an
error.
"""

from __future__ import annotations

import math
import os
import struct
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nnef_jax.errors import DataError, UnsupportedError
from nnef_jax.limits import Limits, Meter, within_memory
from nnef_jax.options import numpy_of, require, require_flags, require_path, require_readable
from nnef_jax.storage import bitstream, files

_MAGIC = b"\x4e\xef"
_HEADER = struct.Struct("<2sBBII8IIHHI72x")
HEADER_SIZE = _HEADER.size  # In NNEF 1.0 a header has this many bytes.
_EXTENTS_START = 12  # In headers of either kind, the extents begin at this byte.
_MAX_RANK = 8  # A tensor has at most this many axes.
_MAX_WORD = 0xFFFF_FFFF  # A word of the header is at most this number.


class _ItemType(NamedTuple):
    """The type of the items in a tensor file: its name, its kind, and whether items are codes."""

    name: str
    kind: str  # This is numpy's letter for the kind of number.
    quantized: bool


# The key is the code of an item type in a header.
_FINAL = {
    0: _ItemType("FLOAT", "f", quantized=False),
    1: _ItemType("UINT", "u", quantized=False),
    2: _ItemType("QUINT", "u", quantized=True),
    3: _ItemType("QINT", "i", quantized=True),
    4: _ItemType("INT", "i", quantized=False),
    5: _ItemType("BOOL", "b", quantized=False),
}
_PROVISIONAL = {
    0: _ItemType("float", "f", quantized=False),
    1: _ItemType("quantized", "u", quantized=True),
    2: _ItemType("signed integer", "i", quantized=False),
    3: _ItemType("unsigned integer", "u", quantized=False),
}
_OLD_TYPES = (0, 1)  # Files with the old header have items of one of these types.
_OLD = (
    "tensor files have the header of the Khronos tools from before 2018-10-19: their bytes 128 to "
    "131, which are 0, are left out; save the network to write them anew"
)
_BITS = {"f": "16, 32 or 64", "b": "1 or 8", "i": "1 to 64", "u": "1 to 64"}
_WRITABLE = {np.dtype(c) for c in ("?", *np.typecodes["AllInteger"], *"efd")}


@dataclass(frozen=True, slots=True, eq=False)
class TensorFile:
    """The array in a tensor file, and the properties of its items.

    `array` is read-only, and a view of the file if possible. Integers of 12 bits have a dtype of 16
    bits. Quantised items are the stored codes. `quantization` is the algorithm in a provisional
    header, such as 'linear_quantize(min = -1.0, ...)', or ''.
    """

    array: NDArray[Any]
    bits: int  # An item has this many bits.
    signed: bool
    quantized: bool
    quantization: str = ""


@dataclass(frozen=True, slots=True)
class FinalHeader:
    """The fields of an NNEF 1.0 header, without any check.

    `vendor` is 0 for the item types of the standard.
    """

    length: int  # The items take this many bytes.
    shape: tuple[int, ...]
    bits: int
    item_type: int
    vendor: int
    signed: int


@dataclass(frozen=True, slots=True)
class _Header:
    """The checked fields of a header of NNEF 1.0 or of its provisional specification."""

    dtype: np.dtype[Any]
    bits: int  # An item has this many bits.
    shape: tuple[int, ...]
    quantized: bool
    start: int  # The items begin at this byte of the file.
    length: int | None = None  # The items take this many bytes. A provisional header has None.
    quantization: str = ""  # A provisional header names the quantisation algorithm.


def read_tensor(source: files.Readable, *, limits: Limits | None = None) -> NDArray[Any]:
    """Read a tensor file of NNEF 1.0 or of its provisional specification (spec 5.2).

    `source` is a path, bytes, or a binary file object, which is read to its end. The dtype of the
    array is float16, float32, float64, bool, or the smallest integer type that holds the items.
    Quantised items are the stored codes. The array is read-only. A large file is mapped if
    possible. `limits` bounds the memory that items of unusual widths take when they are unpacked.

    Raises `DataError` for a broken file, `UnsupportedError` for an item type that a vendor defines,
    and `LimitError` for a tensor that takes too much memory. Warns about a file with the header
    that the Khronos tools wrote before 2018-10-19. This header is 4 bytes longer.

    >>> filter = nnef_jax.read_tensor("model/conv1/filter.dat")
    """
    require_readable("source", source)
    require("limits", limits, Limits | None, "a nnef_jax.Limits")
    with within_memory("the tensor"):
        return read_tensor_file(source, meter=Meter(limits)).array


def read_tensor_file(
    source: files.Readable, *, name: str = "", meter: Meter | None = None, empty: bool = False
) -> TensorFile:
    """Return the array of a tensor file, with the properties that the header describes.

    `name` is the name of the file in errors. Memory is allocated only after the check that the
    header matches the size of the file. `empty` allows extents of 0, which the standard forbids,
    but some programs write. Raises the errors of `read_tensor`.
    """
    if meter is None:
        meter = Meter()
    if isinstance(source, str | os.PathLike):
        path = os.fsdecode(source)
        name = name or path
        with files.open_regular(path, DataError) as file:
            data = files.contents(file)
    else:
        name = name or str(getattr(source, "name", "tensor"))
        data = files.bytes_of(source, meter, name)
    header = _read_header(data, name)
    if 0 in header.shape and not empty:
        raise DataError(f"{name}: extents {list(header.shape)}, expected each to be at least 1")
    item_count = math.prod(header.shape)
    size = bitstream.packed_size(item_count, header.bits)
    _check_length(data, header, items=item_count, size=size, name=name)
    stored_items = data[header.start : header.start + size]
    items = _decode(stored_items, header, item_count, meter, name)
    array = shaped(items, header.shape, name)
    array.setflags(write=False)
    return TensorFile(
        array=array,
        bits=header.bits,
        signed=header.dtype.kind in "if",
        quantized=header.quantized,
        quantization=header.quantization,
    )


def shaped(array: NDArray[np.generic], shape: tuple[int, ...], name: str) -> NDArray[Any]:
    """Reshape a flat array to `shape`. Raises DataError for more axes than numpy allows."""
    try:
        return array.reshape(shape)
    except ValueError as error:
        raise DataError(f"{name}: extents {list(shape)}: {error}") from None


def _first_word_and_rank(data: memoryview, name: str) -> tuple[int, int]:
    """Return two numbers of a tensor file's header: the first word after the version, and the rank.

    In a header of NNEF 1.0, the first word is the length of the data. In a provisional header, it
    is the length of the header. Raises DataError if the file is not a tensor file.
    """
    magic = bytes(data[:2])
    if magic != _MAGIC:
        start = f"starts with {magic.hex(' ')}" if magic else "is empty"
        raise DataError(f"{name}: {start}, expected the magic number 4e ef of a tensor file")
    if len(data) < _EXTENTS_START:
        raise DataError(f"{name}: the header ends after {len(data)} bytes")
    major, minor, first_word, rank = struct.unpack_from("<BBII", data, 2)
    if (major, minor) != (1, 0):
        raise DataError(f"{name}: version {major}.{minor}, expected 1.0")
    if rank > _MAX_RANK:
        raise DataError(f"{name}: rank {rank}, expected at most {_MAX_RANK}")
    return first_word, rank


def _read_header(data: memoryview, name: str) -> _Header:
    """Return the checked header of a tensor file, of NNEF 1.0 or of the provisional specification.

    Raises DataError for a broken header, and UnsupportedError for an item type of a vendor.
    """
    first_word, rank = _first_word_and_rank(data, name)
    extents_end = _EXTENTS_START + 4 * rank
    if len(data) < extents_end + 4:
        raise DataError(f"{name}: the header ends after {len(data)} bytes")
    # A provisional header has these three fields after the extents. If the header is final, `bits`
    # is 0. In a final header this byte belongs to an unused extent, or is the high byte of the
    # number of bits, which is below 256.
    code, bits, text_length = struct.unpack_from("<BBH", data, extents_end)
    shape: tuple[int, ...] = struct.unpack_from(f"<{rank}I", data, _EXTENTS_START)
    provisional_length = extents_end + 4 + text_length
    has_provisional_length = first_word == provisional_length or len(data) < HEADER_SIZE
    if bits and has_provisional_length:
        return _provisional_header(data, name, shape, code, bits, text_length)
    header = final_header(data, name)
    if header.vendor:
        vendor_bytes = header.vendor.to_bytes(2, "big")
        letters = f" ('{vendor_bytes.decode()}')" if vendor_bytes.isalnum() else ""
        raise UnsupportedError(
            f"{name}: item type {header.item_type:#x} of vendor {header.vendor:#06x}{letters}",
            hint="NNEF defines the item types of vendor 0 only",
        )
    dtype, quantized = _item_type(_FINAL, header.item_type, header.bits, name)
    if header.item_type == 1 and header.signed:
        # NNEF 1.0.0 stored signed integers as type 1, UINT, with the field `signed`.
        dtype = np.dtype(f"i{dtype.itemsize}")
    start = HEADER_SIZE
    if _is_old(data, header):
        warnings.warn(_OLD, stacklevel=2)
        start += 4  # This is the surplus word of 4 bytes.
    return _Header(
        dtype=dtype,
        bits=header.bits,
        shape=shape,
        quantized=quantized,
        start=start,
        length=header.length,
    )


def _is_old(data: memoryview, header: FinalHeader) -> bool:
    """Tell whether a header has the surplus word of the Khronos tools from before 2018-10-19."""
    if header.item_type not in _OLD_TYPES or header.bits % 8:
        return False
    surplus_count = len(data) - HEADER_SIZE - header.length
    surplus_word = bytes(data[HEADER_SIZE : HEADER_SIZE + 4])
    return surplus_count == 4 and surplus_word == bytes(4)


def final_header(data: memoryview, name: str) -> FinalHeader:
    """Return the header of an NNEF 1.0 tensor file without checking its fields.

    The item type may be one that a vendor defines. Raises DataError if the header is broken.
    """
    _, rank = _first_word_and_rank(data, name)
    if len(data) < HEADER_SIZE:
        raise DataError(f"{name}: the header ends after {len(data)} of {HEADER_SIZE} bytes")
    _magic, _major, _minor, length, _rank, *words = _HEADER.unpack_from(data)
    # A header has 8 extents, of which the first `rank` are in use.
    *extents, bits, item_type, vendor, signed = words
    return FinalHeader(
        length=length,
        shape=tuple(extents[:rank]),
        bits=bits,
        item_type=item_type,
        vendor=vendor,
        signed=signed,
    )


def _provisional_header(
    data: memoryview, name: str, shape: tuple[int, ...], code: int, bits: int, text_length: int
) -> _Header:
    """Return the checked header of a tensor file of the provisional specification.

    `code` is the code of the item type, `bits` is the number of bits of an item, and `text_length`
    is the length in bytes of the quantisation algorithm. Raises DataError for a broken header.
    """
    dtype, quantized = _item_type(_PROVISIONAL, code, bits, name)
    # Each extent has 4 bytes. Then the type, the bits and the length of the text take 4 bytes.
    text_start = _EXTENTS_START + 4 * len(shape) + 4
    start = text_start + text_length
    (offset,) = struct.unpack_from("<I", data, 4)
    if offset != start:
        raise DataError(f"{name}: offset {offset} of the data, but the header takes {start} bytes")
    if start > len(data):
        raise DataError(f"{name}: the header ends after {len(data)} of {start} bytes")
    if text_length and not quantized:
        raise DataError(f"{name}: a quantisation algorithm for items that are not quantised")
    try:
        quantization = bytes(data[text_start:start]).decode()
    except UnicodeDecodeError:
        raise DataError(f"{name}: the quantisation algorithm is not UTF-8 text") from None
    return _Header(dtype, bits, shape, quantized, start, quantization=quantization)


def _item_type(
    types: dict[int, _ItemType], code: int, bits: int, name: str
) -> tuple[np.dtype[Any], bool]:
    """Return the dtype of items of `bits` bits each, and whether the items are quantised.

    `types` has the possible item types by code, and `code` is the code of the items' type. Raises
    DataError for an unknown code, or a number of bits that the type cannot have.
    """
    if code not in types:
        codes = ", ".join(f"{number} {known_type.name}" for number, known_type in types.items())
        raise DataError(f"{name}: item type {code}, expected one of {codes}")
    item_type = types[code]
    dtype = _dtype(item_type.kind, bits)
    if dtype is None:
        problem = f"{bits} bits for an item of type {item_type.name}"
        raise DataError(f"{name}: {problem}, expected {_BITS[item_type.kind]}")
    return dtype, item_type.quantized


def _dtype(kind: str, bits: int) -> np.dtype[Any] | None:
    """Return the smallest dtype for items with `bits` bits.

    `kind` is numpy's letter for a kind of numbers, such as "f". Returns None if an item of this
    kind cannot have `bits` bits.
    """
    if kind == "b" and bits in (1, 8):
        return np.dtype(np.bool_)
    if kind == "f" and bits in (16, 32, 64):
        return np.dtype(f"f{bits // 8}")
    if kind in "iu" and bits >= 1:
        for width in (8, 16, 32, 64):
            if bits <= width:
                return np.dtype(f"{kind}{width // 8}")
    return None


def _check_length(data: memoryview, header: _Header, items: int, size: int, name: str) -> None:
    """Raise DataError if the file has more or fewer bytes than the items take.

    `items` is the number of items, and `size` is the number of bytes that they take.
    """
    expected = f"{items} items of {header.bits} bits take {size} bytes"
    if header.length not in (None, size):
        raise DataError(
            f"{name}: data length {header.length}, but extents are {list(header.shape)}: {expected}"
        )
    stored_size = len(data) - header.start
    if stored_size < size:
        raise DataError(f"{name}: truncated: {stored_size} bytes follow the header, but {expected}")
    if stored_size > size:
        raise DataError(f"{name}: {stored_size - size} bytes too many: {expected}")


def _decode(data: memoryview, header: _Header, items: int, meter: Meter, name: str) -> NDArray[Any]:
    """Return the items of a tensor file as a flat array, without a copy if possible.

    `data` has the bytes of the items, and `items` is the number of items.
    """
    dtype = header.dtype
    is_packed = header.bits != dtype.itemsize * 8
    if dtype.kind == "b":
        meter.expand(items, name)
        stored = np.frombuffer(data, np.uint8)
        return np.unpackbits(stored, count=items).view(dtype) if is_packed else stored != 0
    if not is_packed:
        array = np.frombuffer(data, dtype.newbyteorder("<"))
        # The file is little endian. The array is copied only if the machine is big endian, or if
        # the items are not aligned.
        return np.require(array, dtype, requirements="A")
    meter.expand(items * dtype.itemsize, name)
    bits = items * (header.bits + bitstream.BITS_FOR_ITEM)
    meter.spend(bits // bitstream.BITS_PER_STEP, name)
    return bitstream.unpack(data, items, dtype, header.bits)


def write_tensor(
    file: str | os.PathLike[str] | BinaryIO,
    array: ArrayLike,
    *,
    bits: int | None = None,
    quantized: bool = False,
    overwrite: bool = True,
) -> None:
    """Write a tensor file of NNEF 1.0 (spec 5.2) to a path or a binary file object.

    A file at the path is replaced atomically. The array's dtype is float16, float32, float64, an
    integer type, or bool. bfloat16 is written as float32. `bits` is the number of bits of an item:
    1 to 64 for integers, and 1 (the default) or 8 for bool. `quantized` marks the items as codes;
    the file graph.quant describes the algorithm that made them.

    Raises `DataError` for another dtype, values that do not fit `bits`, rank above 8, an extent of
    0, or 4 GiB of data and more. Raises FileExistsError for an existing file if `overwrite` is
    False.

    >>> nnef_jax.write_tensor("model/conv1/filter.dat", filter)
    """
    if not callable(getattr(file, "write", None)):
        require_path("file", file)
    require("bits", bits, int | None, "an integer, or None")
    require_flags(quantized=quantized, overwrite=overwrite)
    header, data = encode_tensor(array, bits=bits, quantized=quantized)
    if isinstance(file, str | os.PathLike):
        opening = files.replacing(os.fsdecode(file), overwrite=overwrite)
    else:
        opening = nullcontext(file)
    with opening as stream:
        stream.write(header)
        stream.write(data)


def encode_tensor(
    array: ArrayLike, *, bits: int | None = None, quantized: bool = False
) -> tuple[bytes, memoryview]:
    """Return the header and the data that `write_tensor` writes.

    `write_tensor` explains `bits` and `quantized`.
    """
    values = numpy_of(array, DataError, "the argument 'array' is no array")
    if values.dtype.name == "bfloat16":
        values = values.astype(np.float32)
    kind = values.dtype.kind
    if values.dtype.newbyteorder("=") not in _WRITABLE:
        raise DataError(
            f"a tensor file cannot hold items of dtype {values.dtype}",
            hint="convert the array to float, integer or bool of at most 64 bits first",
        )
    dtype_bits = 1 if kind == "b" else values.dtype.itemsize * 8
    if bits is None:
        bits = dtype_bits
    stored_dtype = _dtype(kind, bits)
    is_float_of_other_width = kind == "f" and bits != dtype_bits
    if stored_dtype is None or is_float_of_other_width:
        raise DataError(f"items of dtype {values.dtype} cannot be stored in {bits} bits")
    if quantized and kind not in "iu":
        raise DataError(f"quantised codes are integers, not of dtype {values.dtype}")
    _require_storable(values.shape)
    length = bitstream.packed_size(values.size, bits)
    if length > _MAX_WORD:
        raise DataError(f"{length} bytes of data, but a tensor file holds less than 4 GiB")
    if bits < dtype_bits:
        _require_range(values, bits)
    codes = {(item.kind, item.quantized): code for code, item in _FINAL.items()}
    header = _packed_header(values.shape, bits, codes[kind, quantized], length)
    return header, _encode(values, stored_dtype, bits)


def _packed_header(shape: tuple[int, ...], bits: int, item_type: int, length: int) -> bytes:
    """Return the bytes of an NNEF 1.0 header for data of `length` bytes."""
    version = (1, 0)
    rank = len(shape)
    unused_extents = [0] * (_MAX_RANK - rank)
    extents = (*shape, *unused_extents)
    vendor = 0
    # The item type tells whether items are signed, so the field `signed` is always 0.
    signed = 0
    fields = (*version, length, rank, *extents, bits, item_type, vendor, signed)
    return _HEADER.pack(_MAGIC, *fields)


def _require_storable(shape: tuple[int, ...]) -> None:
    """Raise DataError for a shape that a tensor file cannot have."""
    if len(shape) > _MAX_RANK:
        raise DataError(f"rank {len(shape)}, but a tensor file has at most {_MAX_RANK}")
    if 0 in shape:
        raise DataError(f"extents {list(shape)}: a tensor file cannot hold an empty tensor")


def _require_range(values: NDArray[Any], bits: int) -> None:
    """Raise DataError unless every integer in an array fits `bits` bits."""
    is_signed = values.dtype.kind == "i"
    lowest = -(2 ** (bits - 1)) if is_signed else 0
    highest = lowest + 2**bits - 1
    least = int(values.min())
    greatest = int(values.max())
    if least < lowest or greatest > highest:
        raise DataError(
            f"values from {least} to {greatest} do not fit {bits} bits, which hold {lowest} to "
            f"{highest}"
        )


def _encode(values: NDArray[Any], dtype: np.dtype[np.generic], bits: int) -> memoryview:
    """Return the bytes of items with `bits` bits each. `dtype` is the smallest dtype for items."""
    flat = values.reshape(-1)
    if values.dtype.kind == "b" and bits == 1:
        return np.packbits(flat).data
    if bits == dtype.itemsize * 8:
        return np.ascontiguousarray(flat, dtype.newbyteorder("<")).view(np.uint8).data
    return memoryview(bitstream.pack(flat.astype(dtype), bits))
