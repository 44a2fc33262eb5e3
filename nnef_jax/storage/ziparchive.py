"""Offers a zip archive as a container.

Stored members are views of the archive, and compressed members are inflated. The standard library
reads the central directory, which has names, sizes and offsets. This module reads the data, because
the standard library would copy stored members, and has no limits.
"""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Sequence

from nnef_jax.errors import ArchiveError, LimitError
from nnef_jax.limits import MEMBER_STEPS, PIECE_STEPS, Meter
from nnef_jax.storage.members import PackedArchive

_LOCAL_SIGNATURE = b"PK\x03\x04"  # A member's header begins with these bytes.
# A zip archive begins with the header of its first member. An empty archive has only the record at
# the end of each archive. This record begins with the second of these texts.
ZIP_SIGNATURES = _LOCAL_SIGNATURE, b"PK\x05\x06"
# The fields of a member's header that are read: the signature, and the lengths of the name and of
# the extra field.
_LOCAL = struct.Struct("<4s22xHH")
_PIECE_BYTES = 1 << 13  # A member is inflated in pieces of this many compressed bytes.
# A piece inflates to at most this many bytes. deflate makes data at most 1032 times as long.
_MOST_INFLATED_BYTES = 1100 * _PIECE_BYTES
# This many inflated bytes count as one step of the meter. For gzip the number is the same.
_BYTES_PER_STEP = 512
# This many bytes precede the inflated data in a bytearray. A large bytearray usually starts 16
# bytes after a multiple of 64, so the data start at a multiple of 64.
_PADDING = 48
# The entry of a member in the central directory has at least this many bytes.
_LEAST_ENTRY_BYTES = 46
_ENCRYPTED_FLAG = 1  # This bit in the flags of a member marks the member as encrypted.


class ZipArchive(PackedArchive[zipfile.ZipInfo]):
    """The members of a zip archive, without folders.

    The checksum of an inflated member is always compared. The checksum of a stored member is
    compared only if `checked` is true, since this reads all bytes of the member.
    """

    def __init__(
        self,
        data: memoryview,
        name: str,
        meter: Meter,
        graphs: Sequence[str],
        *,
        checked: bool = False,
    ) -> None:
        self._name = name
        self._data = data
        self._meter = meter
        self._checked = checked
        self._inflated: dict[zipfile.ZipInfo, memoryview] = {}
        # The name of a folder ends in "/". The method `is_dir` is not called, because in Python
        # 3.11 it fails for a name that is empty, or begins with NUL.
        entries = self._entries()
        members = [(entry.filename, entry) for entry in entries if not entry.filename.endswith("/")]
        super().__init__(members, name, graphs)

    def _entries(self) -> list[zipfile.ZipInfo]:
        """Return the entries of the central directory. Raises ArchiveError if it is broken."""
        try:
            with zipfile.ZipFile(_File(self._data, self._name, self._meter)) as file:
                return file.infolist()
        except LimitError:
            # This error is a ValueError, which the next clause would convert.
            raise
        except (
            zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OSError
        ) as error:  # fmt: skip
            raise ArchiveError(f"{self._name}: broken or truncated zip archive: {error}") from None

    def read(self, name: str) -> memoryview:
        """Return the bytes of a member. Raises ArchiveError if they cannot be read."""
        member = self.find(name)
        if member not in self._inflated:
            self._inflated[member] = self._read(member, self.location(name))
        return self._inflated[member]

    def _read(self, member: zipfile.ZipInfo, location: str) -> memoryview:
        """Return the bytes of a member: a view of the archive, or the inflated bytes."""
        _require_readable(member, location)
        stored = self._stored(member, location)
        if member.compress_type == zipfile.ZIP_DEFLATED:
            return self._inflate(stored, member, location)
        if self._checked:
            self._meter.spend(len(stored) // _BYTES_PER_STEP, location)
            _check(stored, member, location)
        return stored

    def _stored(self, member: zipfile.ZipInfo, location: str) -> memoryview:
        """Return the bytes of a member as they are stored, after the member's header."""
        offset = member.header_offset
        header = b""
        # A broken directory may have a negative offset, which a slice would count from the end.
        if offset >= 0:
            header = bytes(self._data[offset : offset + _LOCAL.size])
        has_header = len(header) == _LOCAL.size and header.startswith(_LOCAL_SIGNATURE)
        if not has_header:
            raise ArchiveError(f"'{location}': there is no header at byte {offset} of {self._name}")
        _signature, name_length, extra_length = _LOCAL.unpack(header)
        start = offset + _LOCAL.size + name_length + extra_length
        stored = self._data[start : start + member.compress_size]
        if len(stored) < member.compress_size:
            raise ArchiveError(f"'{location}' is truncated: {len(stored)} bytes of it are left")
        return stored

    def _inflate(self, data: memoryview, member: zipfile.ZipInfo, location: str) -> memoryview:
        """Return the inflated bytes of a member, whose compressed bytes are `data`."""
        expanded = bytearray(_PADDING)
        stream = zlib.decompressobj(-zlib.MAX_WBITS)  # The sign means that there is no header.
        self._meter.expand(member.file_size, location)
        try:
            for start in range(0, len(data), _PIECE_BYTES):
                piece = stream.decompress(data[start : start + _PIECE_BYTES], _MOST_INFLATED_BYTES)
                self._meter.spend(PIECE_STEPS + len(piece) // _BYTES_PER_STEP, location)
                expanded += piece
                is_too_large = len(expanded) > _PADDING + member.file_size
                if is_too_large:
                    # The member expands beyond its size in the directory. `_check` refuses it.
                    break
        except zlib.error as error:
            raise ArchiveError(f"'{location}': broken compression: {error}") from None
        content = memoryview(expanded)[_PADDING:].toreadonly()
        _check(content, member, location)
        return content


def _require_readable(member: zipfile.ZipInfo, location: str) -> None:
    """Raise ArchiveError for a link, an encrypted member, and an unusual compression."""
    # The upper 16 bits of this field are the mode of the file on Unix.
    mode = member.external_attr >> 16
    if stat.S_ISLNK(mode):
        raise ArchiveError(
            f"'{location}' is a symbolic link; only regular members are read",
            hint="pack the archive with the files themselves",
        )
    if member.flag_bits & _ENCRYPTED_FLAG:
        raise ArchiveError(f"'{location}' is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ArchiveError(
            f"'{location}' is compressed by method {member.compress_type}",
            hint="pack the archive by deflate, which every zip program has",
        )


def _check(content: memoryview, member: zipfile.ZipInfo, location: str) -> None:
    """Raise ArchiveError if a member's bytes differ from its entry in size or checksum."""
    if len(content) != member.file_size or zlib.crc32(content) != member.CRC:
        raise ArchiveError(f"'{location}' is damaged: its checksum differs")


class _File(io.RawIOBase):
    """A file object over bytes. The standard library reads the central directory from it.

    The meter counts the entries that may be in the bytes that were read.
    """

    def __init__(self, data: memoryview, name: str, meter: Meter) -> None:
        super().__init__()
        self._data = data
        self._name = name
        self._meter = meter
        self._position = 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origins = {
            io.SEEK_SET: 0,
            io.SEEK_CUR: self._position,
            io.SEEK_END: len(self._data),
        }
        position = origins[whence] + offset
        if position < 0:
            raise OSError("there is nothing before the start")
        self._position = position
        return position

    def read(self, size: int = -1) -> bytes:
        end = len(self._data) if size < 0 else self._position + size
        part = self._data[self._position : end]
        # These bytes may be entries of the central directory. The standard library makes an object
        # for each entry.
        most_entries = len(part) // _LEAST_ENTRY_BYTES
        self._meter.spend(most_entries * MEMBER_STEPS, self._name)
        self._position += len(part)
        return bytes(part)
