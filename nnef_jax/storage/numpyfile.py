"""Reads and writes numpy's files: .npy for an array, .npz for arrays by name.

A .npy file consists of:

    0   93 "NUMPY", major, minor     8   length of the header: 2 bytes if major is 1, else 4
    +0  the header, {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } in any order
    +n  the items

Arrays are views of the file's bytes. Headers are matched by a regular expression and not evaluated
as Python code. Nothing is unpickled, since all items are numbers.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nnef_jax.errors import ArchiveError, DataError
from nnef_jax.limits import Meter
from nnef_jax.storage.ziparchive import ZipArchive

_MAGIC = b"\x93NUMPY"
_START_BYTES = 8  # The magic and the version take this many bytes.
# For each major version, the length of the header is stored in this many bytes.
_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
_LONGEST_HEADER_BYTES = 10_000  # A header has at most this many bytes. numpy has the same limit.
_MOST_BYTES = (1 << 63) - 1  # An array has at most this many bytes.
_FIELD_NAMES = {"descr", "fortran_order", "shape"}
_HEADER_TEXT = re.compile(r"\{(.*)\}", re.S)
_FIELD = re.compile(
    r"""\s*(?:
        ['"]descr['"]\s*:\s*['"](?P<descr>[<>=|]?[?biufcV][0-9]{0,4})['"]
      | ['"]fortran_order['"]\s*:\s*(?P<fortran_order>True|False)
      | ['"]shape['"]\s*:\s*\((?P<shape>(?:\s*[0-9]{1,19}L?\s*,)*(?:\s*[0-9]{1,19}L?)?)\s*\)
    )\s*(?:,\s*|$)""",
    re.X,
)

Array = NDArray[Any]


def read_npy(data: memoryview, name: str) -> Array:
    """Return the array in the bytes of a .npy file. The array is read-only.

    Bytes after the items are ignored, as numpy does. If the bytes are not a .npy file, raises a
    DataError whose message starts with `name`.
    """
    header_start, header_end = _header_bounds(data, name)
    text = bytes(data[header_start:header_end]).decode("latin-1").strip()
    dtype, is_in_columns, shape = _header(text, name)
    size = dtype.itemsize * math.prod(shape)
    stored_size = len(data) - header_end
    if size > stored_size:
        raise _broken(name, f"its header says {size} bytes of items, it has {stored_size}")
    # An array of the shape (0, 2^40, 2^40) has 0 bytes. But numpy refuses the shape, because the
    # product of the extents other than 0 is too large. Here DataError replaces numpy's error.
    size_without_zeros = dtype.itemsize * math.prod(max(1, extent) for extent in shape)
    if size_without_zeros > _MOST_BYTES:
        raise _broken(name, "its extents are too large")
    items = np.frombuffer(data[header_end : header_end + size], dtype)
    try:
        if is_in_columns:
            # An array of shape (2, 3) in columns is the transpose of an array of shape (3, 2).
            return items.reshape(tuple(reversed(shape))).T
        return items.reshape(shape)
    except ValueError as error:
        # The shape has more axes than numpy allows.
        raise _broken(name, str(error)) from None


def _header_bounds(data: memoryview, name: str) -> tuple[int, int]:
    """Return the offsets of the start and the end of a .npy file's header."""
    magic_and_version = bytes(data[:_START_BYTES])
    length_bytes = None
    if magic_and_version.startswith(_MAGIC) and len(magic_and_version) == _START_BYTES:
        major_version = magic_and_version[len(_MAGIC)]
        length_bytes = _LENGTH_BYTES.get(major_version)
    if length_bytes is None:
        raise _broken(name, "it does not start with a header of version 1, 2 or 3")
    start = _START_BYTES + length_bytes
    end = start + int.from_bytes(data[_START_BYTES:start], "little")
    if end > min(len(data), start + _LONGEST_HEADER_BYTES):
        raise _broken(name, "its header is truncated, or too long")
    return start, end


class _Header(NamedTuple):
    """The fields of a .npy file's header.

    If `is_in_columns` is true, the items are stored in Fortran order: the first axis varies
    fastest.
    """

    dtype: np.dtype[Any]
    is_in_columns: bool
    shape: tuple[int, ...]


def _header(text: str, name: str) -> _Header:
    """Return the fields in the text of a header. Raises DataError if a field is broken."""
    fields: dict[str, str] = {}
    dictionary = _HEADER_TEXT.fullmatch(text)
    # Each match of `_FIELD` removes a field from the start of `unread_text`.
    unread_text = dictionary[1] if dictionary else ""
    match = _FIELD.match(unread_text)
    while match:
        field = match.lastgroup or ""
        fields[field] = match[field]
        unread_text = unread_text[match.end() :]
        match = _FIELD.match(unread_text)
    if unread_text or fields.keys() != _FIELD_NAMES:
        raise _broken(name, f"its header is not that of an array of numbers: {text[:200]!r}")
    try:
        dtype = np.dtype(fields["descr"])
    except TypeError:
        raise _broken(name, f"there are no items of type '{fields['descr']}'") from None
    if not dtype.itemsize:
        raise _broken(name, "its items are empty")
    shape: list[int] = []
    for text_of_extent in fields["shape"].split(","):
        # Python 2 wrote a long integer as "3L".
        digits = text_of_extent.strip().removesuffix("L")
        # After the comma in "(3,)" there is no extent.
        if digits:
            shape.append(int(digits))
    return _Header(dtype, fields["fortran_order"] == "True", tuple(shape))


def read_npz(data: memoryview, name: str, meter: Meter) -> dict[str, Array]:
    """Read the bytes of a .npz file, and return a dict of read-only arrays by name.

    Only members that end in .npy are read. Raises DataError for a broken archive or member, and
    LimitError for an archive that expands to more than the meter allows.
    """
    try:
        archive = ZipArchive(data, name, meter, graphs=(), checked=True)
        arrays: dict[str, Array] = {}
        for member in archive.names():
            if member.endswith(".npy"):
                array = read_npy(archive.read(member), archive.location(member))
                arrays[member.removesuffix(".npy")] = array
        return arrays
    except ArchiveError as error:
        message = error.message.removeprefix(f"{name}: ")
        raise DataError(f"{name}: no .npz file: {message}", hint=error.hint) from None


def write_npz(archive: zipfile.ZipFile, arrays: Mapping[str, ArrayLike]) -> None:
    """Write arrays by name into a zip archive for `numpy.load`.

    Equal arrays give equal bytes.
    """
    for name, array in arrays.items():
        items = np.asarray(array)
        # A .npy file cannot name dtypes such as bfloat16. In numpy such a dtype has the kind "V".
        # Items of such a dtype are stored as raw bytes of the same size.
        if items.dtype.kind == "V":
            items = items.view(f"V{items.dtype.itemsize}")
        with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
            np.lib.format.write_array(member, items, allow_pickle=False)


def _broken(name: str, reason: str) -> DataError:
    """Return the error for bytes that are not a .npy file."""
    return DataError(f"{name}: no .npy file: {reason}")
