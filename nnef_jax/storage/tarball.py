"""Offers a tar archive as a container.

A compressed archive is expanded in memory, and nothing is extracted to the disk. The index of the
standard library's module `tarfile` is not used, because it copies members, and ends silently at a
broken header.
"""

from __future__ import annotations

import bz2
import lzma
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nnef_jax.errors import ArchiveError
from nnef_jax.limits import MEMBER_STEPS, PIECE_STEPS, Meter
from nnef_jax.storage import files
from nnef_jax.storage.members import PackedArchive

_BLOCK = 512  # A tar archive consists of blocks of this many bytes.
_CHUNK = 1 << 20  # The pages of a mapped file are freed after every chunk of this many bytes.
_PIECE_BYTES = 1 << 13  # A compressed file is expanded in pieces of this many compressed bytes.
# A piece expands to at most this many bytes. gzip makes data at most 1032 times as long.
_MOST_EXPANDED_BYTES = 1100 * _PIECE_BYTES
# The expansion of an xz file may take this many bytes of memory. For a file that `xz -9` wrote, 65
# MiB are enough.
_XZ_MEMORY_BYTES = 256 << 20
# This many bytes precede the expanded archive in a bytearray. A large bytearray usually starts 16
# bytes after a multiple of 64, so the archive starts at a multiple of 64. The tensors then also
# start at multiples of 64, because they follow headers of 512 and 128 bytes. Tensors at other
# addresses would be copied: a load of 102 MB takes 102 MB of memory with this padding, and 204 MB
# without it.
_PADDING = 48

# A file of an unsupported kind is recognised by its first bytes.
_UNSUPPORTED = ((b"\x28\xb5\x2f\xfd", "compressed by zstandard"),)

# The fields of a header are at these bytes.
_PATH_FIELD = slice(0, 100)
_SIZE_FIELD = slice(124, 136)
_CHECKSUM_FIELD = slice(148, 156)
_KIND_BYTE = 156
_MAGIC_FIELD = slice(257, 263)
_PREFIX_FIELD = slice(345, 500)

# A header has one of these characters as its type flag.
_REGULAR = "\0" + "07"
_FOLDERS = "5D"
_WITHOUT_DATA = "123456"
_LONG_NAME = "L"
_EXTENDED = "xX"
_IGNORED = "Kg"
_HEADERS = _LONG_NAME + _EXTENDED + _IGNORED
_MAX_HEADER_BYTES = 1 << 20  # An extended header has at most this many bytes.
_MAX_DIGITS = 20  # A size has at most this many digits.
_KINDS = {
    "1": "a hard link",
    "2": "a symbolic link",
    "3": "a character device",
    "4": "a block device",
    "6": "a fifo",
    "S": "a sparse file",
}


@dataclass(frozen=True, slots=True)
class _Member:
    """A member of a tar archive: where its data are in the archive."""

    name: str
    # This is the type flag in the member's header.
    kind: str
    # The data begin at this byte of the expanded archive, and have this many bytes.
    start: int
    size: int


def is_tarball(start: bytes) -> bool:
    """Tell whether a file is a tar archive or a compressed file. `start` has its first bytes."""
    return _compression(start) is not None or _is_header(start[:_BLOCK])


class Tarball(PackedArchive[_Member]):
    """The members of a tar archive, without folders."""

    def __init__(self, data: memoryview, name: str, meter: Meter, graphs: Sequence[str]) -> None:
        self._data = _expand(data, name, meter)
        members: list[tuple[str, _Member]] = []
        for member in _scan(self._data, name, meter):
            is_folder = member.kind in _FOLDERS or member.name.endswith("/")
            if not is_folder:
                members.append((member.name, member))
        super().__init__(members, name, graphs)

    def read(self, name: str) -> memoryview:
        """Return a view of a member's bytes. Raises ArchiveError if it is not a regular file."""
        member = self.find(name)
        if member.kind not in _REGULAR:
            kind = _KINDS.get(member.kind, f"of type {member.kind!r}")
            raise ArchiveError(
                f"'{self.location(name)}' is {kind}; only regular members are read",
                hint="pack the archive with the files themselves (tar --dereference)",
            )
        return self._data[member.start : member.start + member.size]


class _Compression(NamedTuple):
    """A kind of compression. A compressed file begins with the bytes `magic`.

    `decompressor` makes a decompressor of zlib, bz2 or lzma. These have no common type.
    `bytes_per_step` is the number of expanded bytes that count as one step of the meter. On the
    slowest inputs, which are zeros or repeated random bytes, gzip expands 1200 MB/s, xz 600 MB/s,
    and bzip2 90 MB/s.
    """

    magic: bytes
    decompressor: Callable[[], Any]
    bytes_per_step: int


_ZLIB_OF_GZIP = 16 + zlib.MAX_WBITS  # The summand 16 makes zlib read a header of gzip.
_COMPRESSIONS = (
    _Compression(b"\x1f\x8b", lambda: zlib.decompressobj(_ZLIB_OF_GZIP), 512),
    _Compression(b"BZh", bz2.BZ2Decompressor, 48),
    _Compression(
        b"\xfd7zXZ\0", lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES), 256
    ),
)


def _expand(data: memoryview, name: str, meter: Meter) -> memoryview:
    """Return the bytes of a tar archive. If `data` are compressed, the bytes are expanded.

    If there are too many expanded bytes, the meter raises LimitError before they fill the memory.
    """
    compression = _compression(bytes(data[:_BLOCK]))
    if compression is None:
        return data
    expanded = bytearray(_PADDING)
    try:
        for piece in _pieces(data, compression.decompressor, name, meter):
            meter.expand(len(piece), name)
            meter.spend(PIECE_STEPS + len(piece) // compression.bytes_per_step, name)
            expanded += piece
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise ArchiveError(f"{name}: broken or truncated compression: {error}") from None
    return memoryview(expanded)[_PADDING:].toreadonly()


def _compression(start: bytes) -> _Compression | None:
    """Return the compression of a file that starts with the bytes `start`, or None."""
    for compression in _COMPRESSIONS:
        if start.startswith(compression.magic):
            return compression
    return None


def _pieces(
    data: memoryview, decompressor: Callable[[], Any], name: str, meter: Meter
) -> Iterator[bytes]:
    """Yield the expanded pieces of a compressed file.

    The file consists of one or more streams. Zeros may follow each stream.
    """
    position = 0
    while position < len(data):
        meter.spend(MEMBER_STEPS, name)
        stream = decompressor()
        while not stream.eof:
            compressed_piece = data[:0]
            # If a decompressor of bz2 or lzma still holds input, it needs no further input.
            # Decompressors of zlib always need input, and have no attribute `needs_input`.
            needs_input = getattr(stream, "needs_input", True)
            if needs_input:
                compressed_piece = data[position : position + _PIECE_BYTES]
                if not compressed_piece:
                    raise EOFError("it ends within a stream")
            position += len(compressed_piece)
            yield stream.decompress(compressed_piece, _MOST_EXPANDED_BYTES)
            if position % _CHUNK == 0:
                files.release(np.frombuffer(data[:position], np.uint8))
        # The last piece may contain the start of the next stream.
        position -= len(stream.unused_data)
        # Zeros after the stream are skipped.
        while position < len(data) and data[position] == 0:
            chunk = bytes(data[position : position + _CHUNK])
            leading_zeros = len(chunk) - len(chunk.lstrip(b"\0"))
            position += leading_zeros


def _scan(data: memoryview, name: str, meter: Meter) -> Iterator[_Member]:
    """Yield the members of a tar archive in the order of their headers.

    Extended headers may precede the header of a member. Their data are fields of the member, such
    as a long path.
    """
    if not len(data):
        raise ArchiveError(f"{name} is empty, not a tar archive")
    position = 0
    # These are fields of the next member, from the extended headers that precede the member.
    extended: dict[str, str] = {}
    while position < len(data):
        header = bytes(data[position : position + _BLOCK])
        # Blocks of zeros mark the end of an archive. If the blocks are missing, the loop ends at
        # the end of the data.
        if not any(header):
            break
        if not _is_header(header):
            raise _broken(header, name, position)
        meter.spend(MEMBER_STEPS, name)
        kind = chr(header[_KIND_BYTE])
        start = position + _BLOCK
        try:
            size = _data_size(header, kind, extended, remaining_bytes=len(data) - start)
            # The data fill whole blocks, so the next header is at a multiple of the block's size.
            blocks = math.ceil(size / _BLOCK)
            position = start + blocks * _BLOCK
            if kind in _HEADERS:
                # A record has at least 6 bytes, so the work for records is at most proportional to
                # the size.
                meter.spend(size // 2, name)
            if kind == _LONG_NAME:
                extended["path"] = _text(bytes(data[start : start + size]))
            elif kind in _EXTENDED:
                extended |= _records(bytes(data[start : start + size]))
            elif kind not in _IGNORED:
                path = extended.get("path") or _path(header)
                # "S" is the type flag of a sparse file.
                member_kind = "S" if "sparse" in extended else kind
                yield _Member(path, member_kind, start, size)
                extended = {}
        except ValueError as error:
            raise ArchiveError(f"{name}: header at byte {start - _BLOCK}: {error}") from None


def _data_size(
    header: bytes, kind: str, extended: Mapping[str, str], *, remaining_bytes: int
) -> int:
    """Return the number of bytes of data that follow a header.

    `kind` is the type flag of the header. `extended` has the records of the extended headers that
    precede it. `remaining_bytes` is the number of bytes after the header. Raises ValueError if the
    data have more bytes, or if an extended header is too large.
    """
    size = _size(header, extended)
    if kind in _WITHOUT_DATA:
        size = 0
    if size > remaining_bytes:
        raise ValueError(f"truncated: {remaining_bytes} of {size} bytes of data are left")
    if kind in _HEADERS and size > _MAX_HEADER_BYTES:
        raise ValueError(f"an extended header of {size} bytes")
    return size


def _broken(header: bytes, name: str, position: int) -> ArchiveError:
    """Return the error for the broken header at a position.

    If the position is 0, the file is not a tar archive.
    """
    if position:
        state = "truncated" if len(header) < _BLOCK else "broken"
        return ArchiveError(f"{name}: the header at byte {position} is {state}")
    reason = ""
    for magic, kind in _UNSUPPORTED:
        if header.startswith(magic):
            reason = f": it is {kind}"
    return ArchiveError(
        f"{name} is not a tar archive, compressed or not{reason}",
        hint="a network is a folder, a zip or tar archive (gzip, bzip2, xz) of one, or a file "
        "graph.nnef, .onnx, .xml or .tflite",
    )


def _is_header(block: bytes) -> bool:
    """Tell whether a block has the checksum of a header.

    Old programs summed the bytes as signed numbers. The sum of signed numbers is accepted too.
    """
    if len(block) < _BLOCK:
        return False
    try:
        stored = _number(block[_CHECKSUM_FIELD])
    except ValueError:
        return False
    # The checksum is the sum of all bytes of the header. For the sum, the field of the checksum is
    # replaced by 8 spaces.
    header = bytearray(block)
    header[_CHECKSUM_FIELD] = b" " * 8
    unsigned_sum = sum(header)
    large_bytes = sum(byte > 127 for byte in header)
    signed_sum = unsigned_sum - 256 * large_bytes
    return stored in (unsigned_sum, signed_sum)


def _number(field: bytes) -> int:
    """Return the number in a field of a header.

    The field has octal digits, or the byte 0x80 followed by a big-endian number.
    """
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    text, _, _padding = field.partition(b"\0")
    digits = text.strip()
    if not digits:
        return 0
    if not digits.isdigit():
        raise ValueError(f"{field!r} is not an octal number")
    return int(digits, 8)


def _size(header: bytes, extended: Mapping[str, str]) -> int:
    """Return the size of a member's data in bytes. An extended header takes precedence."""
    if "size" in extended:
        return int(extended["size"])
    return _number(header[_SIZE_FIELD])


def _path(header: bytes) -> str:
    """Return the path in a header. In the format ustar a long path has a separate prefix."""
    path = _text(header[_PATH_FIELD])
    if header[_MAGIC_FIELD] != b"ustar\0":
        return path
    prefix = _text(header[_PREFIX_FIELD])
    return f"{prefix}/{path}" if prefix else path


def _text(field: bytes) -> str:
    """Return the text in a field, up to the first NUL character."""
    text, _, _padding = field.partition(b"\0")
    return text.decode("utf-8", "backslashreplace")


_BROKEN_RECORD = "a record of the extended header is broken"


def _records(data: bytes) -> dict[str, str]:
    """Return the records "path", "size" and "sparse" of an extended header.

    A record consists of its length in decimal digits, a space, a key, '=', a value and a newline:
    "12 size=123\\n" has 12 bytes. "sparse" stands for any record whose key begins with GNU.sparse.
    """
    records: dict[str, str] = {}
    position = 0
    while position < len(data):
        digits = data[position : position + _MAX_DIGITS].partition(b" ")[0]
        if not digits.isdigit():
            raise ValueError(_BROKEN_RECORD)
        start = position + len(digits) + 1
        end = position + int(digits)
        key, equals, value = data[start:end].partition(b"=")
        is_complete = bool(equals) and value.endswith(b"\n") and end <= len(data)
        if not is_complete:
            raise ValueError(_BROKEN_RECORD)
        text = value[:-1].decode("utf-8", "backslashreplace")
        is_size = text.isdecimal() and len(text) <= _MAX_DIGITS
        if key == b"size" and not is_size:
            raise ValueError(f"{text[:40]!r} is not a size")
        if key in (b"path", b"size"):
            records[key.decode()] = text
        elif key.startswith(b"GNU.sparse"):
            records["sparse"] = text
        position = end
    return records
