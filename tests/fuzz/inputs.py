"""Wrong `.npy`, `.npz`, PNG and JPEG files, read as the command line does."""

from __future__ import annotations

import io
import random
import struct
import tempfile
import zipfile
import zlib
from functools import cache, partial
from pathlib import Path

import numpy as np

from nnef_jax import TensorSpec
from nnef_jax.cli.inputs import read_inputs
from nnef_jax.cli.pictures import PictureOptions
from tests.fuzz import Kind
from tests.fuzz.draw import changed_bytes

_DESCRS = ["<f4", ">f4", "<f8", "<i8", "|b1", "|u1", "<c8", "<f2"]
_WORDS = [
    *("|O", "<U9", "<f3", "V2", "V0", "|V9999", "<M8[s]", "2,3", "f4,i4", "[('a','<f4')]"),
    *("None", "True", "(", ")" * 50, "(" * 9000, "-1", "1e9", "0x10", "9" * 19, "9" * 5000),
    *(str(1 << 31), str(1 << 62), str(1 << 63), str(1 << 64), "0,0", "1,2,3,4,5,6,7,8", "\0", "\n"),
    *("'shape'", "'descr'", "{}", ",", "L", "__import__('os').abort()", "lambda:0", "\xff"),
]


def attempt(mutant: tuple[str, bytes]) -> str:
    """Read a file by its suffix and content; return "value"."""
    suffix, content = mutant
    shape = (1, 3, None, None) if suffix in (".png", ".jpg") else (None,)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"x{suffix}"
        path.write_bytes(content)
        specs = [TensorSpec("x", shape, "float32")]
        (call,) = read_inputs([f"x={path}"], specs, PictureOptions())
        call.arrays["x"].tobytes()
    return "value"


def _changed(content: bytes, chance: random.Random) -> bytes:
    """Return the file, two times in three with other bytes or cut off."""
    if chance.random() < 0.3:
        return content
    if chance.random() < 0.1:
        return content[: chance.randrange(len(content))]
    return changed_bytes(content, chance)


def _array(chance: random.Random) -> np.ndarray:
    shape = [chance.randrange(4) for _ in range(chance.randrange(5))]
    array = np.zeros(shape, chance.choice(_DESCRS))
    return np.asfortranarray(array) if chance.random() < 0.3 else array


def _npy(chance: random.Random) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, _array(chance), version=chance.choice([(1, 0), (2, 0), (3, 0)]))
    content = file.getvalue()
    if chance.random() < 0.6:
        content = _with_header(content, chance)
    return _changed(content, chance)


def _with_header(content: bytes, chance: random.Random) -> bytes:
    """Change words of a header, and its length with it but for one time in ten."""
    wide = content[6] > 1
    start = 12 if wide else 10
    end = start + int.from_bytes(content[8:start], "little")
    header = content[start:end].decode("latin-1")
    for _ in range(chance.randint(1, 2)):
        at = chance.randrange(len(header.rstrip()))
        cut = at + chance.choice([0, 0, 1, 2, 5])
        header = header[:at] + chance.choice(_WORDS) + header[cut:]
    if chance.random() < 0.5:
        shape = ", ".join(chance.choice(["0", "1", "7", *_WORDS[17:24]]) for _ in range(3))
        header = (
            f"{{'descr': '{chance.choice(_DESCRS)}', 'fortran_order': False, 'shape': ({shape})}}"
        )
    raw = header.encode("latin-1", "replace")
    length = len(raw) if chance.random() < 0.9 else chance.getrandbits(16)
    size = struct.pack("<I" if wide else "<H", length & (0xFFFF_FFFF if wide else 0xFFFF))
    return content[:8] + size + raw + content[end:]


def _npz(chance: random.Random) -> bytes:
    file = io.BytesIO()
    kinds = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
    with zipfile.ZipFile(file, "w") as archive:
        names = ["x.npy", "0.npy", "../x.npy", "a\x1b.npy"]
        for name in chance.sample(names, chance.randint(1, 3)):
            member = zipfile.ZipInfo(name)
            member.compress_type = chance.choice(kinds)
            content = (
                _npy(chance)
                if chance.random() < 0.5
                else _zeros(1 << chance.choice([4, 10, 16, 20]))
            )
            archive.writestr(member, content)
    content = file.getvalue()
    return _changed(content, chance)


@cache
def _zeros(size: int) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.zeros(size, np.uint8))
    return file.getvalue()


@cache
def _picture(suffix: str, index: int) -> bytes:
    from PIL import Image

    mode = ["L", "RGB", "RGBA", "P", "1", "I;16"][index]
    if suffix == ".jpg":
        mode = ["L", "RGB", "CMYK"][index % 3]
    image = Image.new(mode, (9, 7))
    file = io.BytesIO()
    options = {"progressive": index > 2} if suffix == ".jpg" else {}
    image.save(file, "JPEG" if suffix == ".jpg" else "PNG", **options)
    return file.getvalue()


_EXTENTS = [0, 1, 9, 255, 8000, 30_000, 65_535]


def _png(chance: random.Random) -> bytes:
    """Change fields of the header, with its checksum, or any bytes, or add a chunk."""
    content = _picture(".png", chance.randrange(6))
    if chance.random() < 0.5:
        extents = [chance.choice([*_EXTENTS, 1 << 31, (1 << 32) - 1]) for _ in range(2)]
        bits, color = chance.choice([1, 2, 4, 8, 16, 3]), chance.choice([0, 2, 3, 4, 6, 5])
        header = b"IHDR" + struct.pack(">IIBBBBB", *extents, bits, color, 0, 0, chance.randrange(3))
        content = content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:]
    if chance.random() < 0.3:
        packed = zlib.compress(bytes(1 << chance.choice([4, 16, 22])))
        name = chance.choice(
            [b"iCCP", b"zTXt", b"iTXt", b"eXIf", b"tRNS", b"PLTE", b"acTL", b"fcTL"]
        )
        chunk = name + b"a\0\0" + packed
        chunk = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        content = content[:33] + chunk + content[33:]
    return _changed(content, chance)


def _jpeg(chance: random.Random) -> bytes:
    """Change the extents in the frame's header, repeat scans, or change any bytes."""
    content = _picture(".jpg", chance.randrange(6))
    at = max(content.find(b"\xff\xc0"), content.find(b"\xff\xc2"))
    if at >= 0 and chance.random() < 0.5:
        extents = struct.pack(">HH", *(chance.choice(_EXTENTS) for _ in range(2)))
        content = content[: at + 5] + extents + content[at + 9 :]
    scan = content.find(b"\xff\xda")
    if scan >= 0 and chance.random() < 0.3:
        content = content[:-2] + content[scan:-2] * chance.choice([1, 10, 1000]) + content[-2:]
    return _changed(content, chance)


def _mutant(suffix: str, chance: random.Random) -> tuple[str, bytes]:
    """Return a file that is likely, but not surely, broken."""
    return suffix, _MADE[suffix](chance)


_MADE = {".npy": _npy, ".npz": _npz, ".png": _png, ".jpg": _jpeg}
KIND = Kind(
    lambda: {suffix: (partial(_mutant, suffix), 1 + (suffix < ".o")) for suffix in _MADE}, attempt
)
