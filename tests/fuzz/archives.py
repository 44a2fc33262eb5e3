"""Archives with wrong headers: fields of tar and zip with right checksums, and nested archives."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import struct
import zipfile

from tests.fuzz.draw import INTEGERS, changed_bytes
from tests.helpers import tar

_BLOCK = 512
# Fields of a tar header: where they begin, how long they are, and whether they are numbers.
_TAR = {
    "name": (0, 100, False),
    "mode": (100, 8, True),
    "size": (124, 12, True),
    "time": (136, 12, True),
    "type": (156, 1, False),
    "link": (157, 100, False),
    "magic": (257, 8, False),
    "prefix": (345, 155, False),
}
# Fields of zip headers by signature: where they begin and their width.
_ZIP = {
    b"PK\x03\x04": ((4, 2), (6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)),
    b"PK\x01\x02": (
        (4, 2), (8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2), (34, 2),
        (38, 4), (42, 4),
    ),
    b"PK\x05\x06": ((4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2)),
}  # fmt: skip
_NAMES = (
    "graph.nnef", "graph.quant", "v.dat", "./graph.nnef", "a/graph.nnef", "../graph.nnef", "", "/",
    "/graph.nnef", "graph.nnef/", "v.dat/x", "c.json", "net.xml", "net.bin", "a//v.dat", ".", "..",
    "m.safetensors", "m.nnef.tgz", "a\\v.dat", "\u00e9", "x" * 99, "x/" * 49 + "y",
)  # fmt: skip
_SIZES = (*(n for n in INTEGERS if n >= 0), 511, 512, 513, 2**33 - 1, 2**63, 2**64 - 1)
_KINDS = b"0\x00\x01123456789LKxXgSVDAMN \xff"


def archive(members: dict[str, bytes], chance: random.Random) -> bytes:
    """Return an archive of the members, of any kind, with wrong headers."""
    if chance.random() < 0.35:
        content = _zip_mutated(_zip(members, chance), chance)
    else:
        content = _tar_mutated(_records(members, chance), chance)
    return _compressed(content, chance)


def _compressed(content: bytes, chance: random.Random) -> bytes:
    """Compress an archive or not, sometimes twice, cut it off, or append bytes."""
    for _ in range(chance.choice((0, 0, 0, 1, 1, 2))):
        match chance.randrange(4):
            case 0:
                content = bz2.compress(content, 1)
            case 1:
                content = lzma.compress(content, preset=0)
            case _:
                content = gzip.compress(content, 1, mtime=0)
        if chance.random() < 0.1:
            content += chance.choice((bytes(7), b"x", content, content[:20]))
        elif chance.random() < 0.15:
            content = changed_bytes(content, chance)
    return content


def _records(members: dict[str, bytes], chance: random.Random) -> bytes:
    """Return a tar archive, in half of all cases with an extended header before a member."""
    content = bytearray(tar(members))
    if chance.random() < 0.5:
        place = chance.choice(list(_headers(content)) or [0])
        content[place:place] = _extended(chance)
    return bytes(content)


def _extended(chance: random.Random) -> bytes:
    """Return a header of pax or GNU with records: paths and sizes, right lengths or wrong ones."""
    keys = ("path", "size", "linkpath", "GNU.sparse.map", "GNU.sparse.realsize", "mtime", "", "é")
    values = (*_NAMES, *map(str, _SIZES), "-1", "1e9", "\u0661", "9" * 30, "\n", "0 512")
    if chance.random() < 0.2:
        kind, data = chance.choice(b"LK"), chance.choice(_NAMES).encode() + b"\0"
    else:
        kind, data = chance.choice(b"xxxgX"), b""
        for _ in range(chance.choice((1, 1, 2, 3))):
            rest = f" {chance.choice(keys)}={chance.choice(values)}\n".encode()
            length = len(rest) + len(str(len(rest) + 2))
            length = chance.choice((length,) * 6 + (0, 1, length + 1, length - 1, 10**18))
            data += str(length).encode() + rest
    header = bytearray(_BLOCK)
    header[:4] = b"@pax"
    header[124:136] = b"%011o\0" % len(data)
    header[156], header[257:265] = kind, b"ustar\x0000"
    return bytes(_summed(header)) + data + bytes(-len(data) % _BLOCK)


def _summed(header: bytearray) -> bytearray:
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return header


def _headers(content: bytes | bytearray) -> list[int]:
    """Return where the headers of a tar archive start: blocks with a right checksum."""
    places: list[int] = []
    for at in range(0, len(content) - _BLOCK + 1, _BLOCK):
        block = bytearray(content[at : at + _BLOCK])
        if any(block) and _summed(block[:])[148:154] == block[148:154]:
            places.append(at)
    return places


def _tar_mutated(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 3))):
        places = _headers(changed)
        if not places:
            break
        at = chance.choice(places)
        header = changed[at : at + _BLOCK]
        key = chance.choice(("name", "size", "size", "type", "type", *_TAR))
        start, width, is_number = _TAR[key]
        match chance.randrange(8):
            case 0:
                del changed[at : at + _BLOCK * chance.choice((1, 2))]
            case 1:
                changed[at:at] = changed[at : at + _BLOCK * 2]
            case 2:
                del changed[chance.randrange(at, len(changed)) :]
            case _:
                header[start : start + width] = _field(key, width, is_number, chance)
                changed[at : at + _BLOCK] = _summed(header) if chance.random() < 0.9 else header
    return bytes(changed)


def _field(key: str, width: int, is_number: bool, chance: random.Random) -> bytes:
    if key == "type":
        return bytes([chance.choice(_KINDS)])
    if key == "magic":
        return chance.choice((b"ustar\x0000", b"ustar  \0", bytes(8), b"\xff" * 8))
    if not is_number:
        return chance.choice(_NAMES).encode()[:width].ljust(width, b"\0")
    size = chance.choice(_SIZES)
    forms = (
        b"%o" % size,
        b"\x80" + size.to_bytes(16, "big")[-(width - 1) :],
        b"\xff" * width,
        chance.choice((b"9", b" ", b"", b"-1", b"+7", b"0x7", b"1_0", b"7" * width, b"\xb2")),
    )
    return chance.choice(forms)[:width].ljust(width, b"\0")


def _zip(members: dict[str, bytes], chance: random.Random) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
            made.writestr(info, content)
        if chance.random() < 0.2:
            made.comment = b"PK\x05\x06" + bytes(chance.choice((0, 18, 40)))
    return file.getvalue()


def _zip_mutated(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 3))):
        signature = chance.choice(list(_ZIP))
        places = [i for i in range(len(changed)) if changed.startswith(signature, i)]
        if not places:
            continue
        at = chance.choice(places)
        match chance.randrange(10):
            case 0:
                name = chance.choice(_NAMES).encode()
                offset = 30 if signature == b"PK\x03\x04" else 46
                changed[at + offset : at + offset + len(name)] = name
            case 1:
                del changed[chance.randrange(at, len(changed)) :]
            case 2:
                changed[at:at] = changed[at : at + 46]
            case 3:
                changed[at : at + 4] = chance.choice(list(_ZIP))
            case 4 if signature == b"PK\x01\x02":  # a zip64 record of sizes
                extra = struct.pack("<HHQQ", 1, chance.choice((0, 8, 16, 24, 9)), 2**40, 2**63)
                changed[at + 46 : at + 46] = extra
                changed[at + 20 : at + 28] = b"\xff" * 8
                changed[at + 30 : at + 32] = struct.pack("<H", len(extra))
            case _:
                start, width = chance.choice(_ZIP[signature])
                old = int.from_bytes(changed[at + start : at + start + width], "little")
                values = (0, 1, 8, 9, 12, 14, 99, old + 1, old - 1, old * 2, 2**31, 2**32 - 1)
                new = chance.choice(values) % 2 ** (8 * width)
                changed[at + start : at + start + width] = new.to_bytes(width, "little")
    return bytes(changed)
