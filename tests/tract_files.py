"""Tensor files of tract's dialect, written field by field, and archives of them."""

from __future__ import annotations

import io
import struct
import tarfile

TR = 0x5452
OPEN = 0xFFFF_FFFF  # bits of items that have no width of their own
GRAPH = b"version 1.0;\n"


def tensor(
    shape: tuple[int, ...],
    bits: int,
    item: int,
    data: bytes,
    *,
    vendor: int = 0,
    length: int | None = None,
    rank: int | None = None,
) -> bytes:
    """Return a tensor file with a header of 128 bytes."""
    extents = (*shape, *[0] * (8 - len(shape)))
    length = len(data) if length is None else length
    rank = len(shape) if rank is None else rank
    start = struct.pack("<2sBBII8I", b"\x4e\xef", 1, 0, length, rank, *extents)
    return start + struct.pack("<IHH", bits, item, vendor) + bytes(76) + data


def floats(*values: float) -> bytes:
    """Return a tensor file of float32 with one axis."""
    return tensor((len(values),), 32, 0, struct.pack(f"<{len(values)}f", *values))


def tar(members: dict[str, bytes], mode: str = "w") -> bytes:
    """Return a tar archive of members whose names are kept as they are."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()
