"""Zip archives as containers: what is stored is viewed, what is packed is bounded."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
from contextlib import suppress

import numpy as np
import pytest

import nnef_jax
from nnef_jax.errors import ArchiveError, LimitError, NnefError
from nnef_jax.limits import Limits, Meter
from nnef_jax.storage.archive import open_archive

GRAPH = b"version 1.0;\ngraph G( x ) -> ( y )\n{\nx = external(shape = [2]);\ny = relu(x);\n}\n"
MODEL = {"graph.nnef": GRAPH, "a/w.dat": b"weight" * 100}
METHODS = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED}


def packed(members=MODEL, method=zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("folder", ["", "net/"])
def test_members_are_those_that_were_packed(method, folder, tmp_path):
    data = packed({folder + name: x for name, x in MODEL.items()}, method)
    path = tmp_path / "net.zip"
    path.write_bytes(data)
    for source in (data, path, io.BytesIO(data)):
        with open_archive(source) as archive:
            assert archive.names() == sorted(MODEL)
            for name, content in MODEL.items():
                assert archive.exists(name)
                assert archive.open_tensor(name) == content
            assert not archive.exists("b")
            with pytest.raises(ArchiveError, match="no member 'b'"):
                archive.open_tensor("b")
    np.testing.assert_array_equal(nnef_jax.load(path)(np.float32([-1, 2])), [0, 2])


def test_stored_members_are_not_copied():
    data = packed({"graph.nnef": GRAPH, "w.dat": bytes(8_000_000)}, zipfile.ZIP_STORED)
    tracemalloc.start()
    with open_archive(data) as archive:
        assert len(archive.open_tensor("w.dat")) == 8_000_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_a_bomb_is_found_out_while_it_grows():
    data = packed({"graph.nnef": GRAPH, "w.dat": bytes(50_000_000)})
    assert len(data) < 100_000
    tracemalloc.start()
    archive = open_archive(data, Meter(Limits(expanded_bytes=1_000_000)))
    with pytest.raises(LimitError, match=r"w\.dat: the network takes more than 1000000 bytes"):
        archive.open_tensor("w.dat")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 25_000_000  # what is expanded at a time is 9 MB


def test_a_directory_without_end_is_charged():
    entry = packed()[packed().index(b"PK\x01\x02") :][: 46 + len("graph.nnef")]
    data = b"PK\x03\x04" + bytes(26) + entry * 600_000
    data += struct.pack("<4s8xIIH", b"PK\x05\x06", 600_000 * len(entry), 30, 0)
    with pytest.raises(LimitError, match="more than 10000000 steps"):
        open_archive(data)


def with_field(data: bytes, at: int, value: bytes) -> bytes:
    """Change a field of the first entry of the central directory."""
    start = data.index(b"PK\x01\x02") + at
    return data[:start] + value + data[start + len(value) :]


WRONG = {
    "cut off": (packed()[:-30], "broken or truncated zip archive"),
    "no directory": (b"PK\x03\x04" + bytes(500), "broken or truncated zip archive"),
    "empty": (packed({}), "holds nothing"),
    "encrypted": (with_field(packed(), 8, b"\1\0"), "is encrypted"),
    "method": (with_field(packed(), 10, b"\x0c\0"), "compressed by method 12"),
    "checksum": (with_field(packed(), 16, b"\1\2\3\4"), "its checksum differs"),
    "size": (with_field(packed(), 24, b"\1\0\0\0"), "its checksum differs"),
    "place": (with_field(packed(), 42, b"\xff\xff\xff\0"), "no header at byte 16777215"),
    "link": (with_field(packed(), 38, struct.pack("<I", 0o120777 << 16)), "is a symbolic link"),
    "long": (
        with_field(packed(method=0), 20, struct.pack("<II", 9999, 9999)),
        "is truncated",
    ),
    "outside": (packed({"../graph.nnef": GRAPH}), "has no graph.nnef"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name):
    data, message = WRONG[name]
    with pytest.raises(ArchiveError, match=message):
        open_archive(data).open_tensor("graph.nnef")


def test_members_without_a_name_are_left_out():
    data = packed({"?": b"one", "graph.nnef": GRAPH})
    begins_with_nul = data.replace(b"?", b"\0")
    empty = bytearray(data)
    for entry, at in ((b"PK\x03\x04", 26), (b"PK\x01\x02", 28)):  # the byte is of no extra field
        start = data.index(entry) + at
        empty[start : start + 4] = struct.pack("<HH", 0, 1)
    for wrong in (begins_with_nul, bytes(empty)):
        with open_archive(wrong) as archive:
            assert archive.names() == ["graph.nnef"]
            assert archive.open_tensor("graph.nnef") == GRAPH


def test_no_change_of_a_byte_breaks_it():
    random = np.random.default_rng(0)
    for method in METHODS.values():
        good = packed(method=method)
        for _ in range(300):
            data = bytearray(good)
            for at in random.integers(len(data), size=2):
                data[at] = random.integers(256)
            size = random.integers(len(data) // 2, len(data) + 9)
            with suppress(NnefError):
                archive = open_archive(bytes(data[:size]))
                for name in archive.names():
                    archive.open_tensor(name)


def test_no_folder_is_written_by_the_name_of_a_zip_archive(tmp_path):
    path = tmp_path / "net.ZIP"
    with pytest.raises(ArchiveError, match="can be read, but not written"):
        nnef_jax.convert(packed({"graph.nnef": GRAPH}), path)
    assert not path.exists()
