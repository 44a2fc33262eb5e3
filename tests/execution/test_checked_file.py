"""Checked files: no other byte, size or name passes, and nothing that is found there hangs."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nnef_jax.execution import checked_file
from nnef_jax.execution.checked_file import HEADER, read_checked, write_checked

CONTENT = bytes(range(40))
_CHUNK = 16  # bytes that have a checksum of their own


def read(path: Path, mapped: bool = False) -> bytes | None:
    content = read_checked(str(path), mapped=mapped)
    return None if content is None else bytes(content)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of a few chunks."""
    monkeypatch.setattr(checked_file, "_CHUNK", _CHUNK)
    path = tmp_path / "name"
    write_checked(str(path), [CONTENT])
    assert read(path) == CONTENT
    return path


def test_every_bit_counts(path: Path) -> None:
    whole = path.read_bytes()
    for place in range(len(whole)):
        for change in (*(1 << bit for bit in range(8)), 255):
            other = bytearray(whole)
            other[place] ^= change
            path.write_bytes(other)
            assert read(path) is None, (place, change)


def test_every_size_counts(path: Path) -> None:
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert read(path) is None, size
    for more in (b"\0", b"\0" * _CHUNK, b"x", whole):
        path.write_bytes(whole + more)
        assert read(path) is None
        size = (len(whole) + len(more) - HEADER).to_bytes(8, "little")
        path.write_bytes(whole[:24] + size + whole[32:] + more)  # a header of that size
        assert read(path) is None


def test_blocks_in_another_order(path: Path) -> None:
    blocks = [bytes([i]) * _CHUNK for i in range(4)]
    write_checked(str(path), blocks)
    header = path.read_bytes()[:HEADER]
    for i in range(4):
        for j in range(i):
            swapped = list(blocks)
            swapped[i], swapped[j] = blocks[j], blocks[i]
            path.write_bytes(header + b"".join(swapped))
            assert read(path) is None


def test_every_name_counts(path: Path) -> None:
    whole = path.read_bytes()
    for name in ("Name", "name.", "nam", "name2", "é"):
        other = path.with_name(name)
        other.write_bytes(whole)
        assert read(other) is None
        write_checked(str(other), [CONTENT])
        assert read(other) == CONTENT
        assert other.read_bytes() != whole
    folder = path.with_name("folder")
    folder.mkdir()
    path.rename(folder / "name")
    assert read(folder / "name") == CONTENT  # a cache may move


@pytest.mark.parametrize("mapped", (False, True))
def test_parts_of_any_size(tmp_path: Path, mapped: bool) -> None:
    path = tmp_path / "name"
    chance = random.Random(0)
    mib = checked_file._CHUNK
    for sizes in ((), (0,), (1, 0, 2), (mib,), (mib - 1, 2), (5, 2 * mib + 3, mib, 7)):
        parts = [chance.randbytes(size) for size in sizes]
        write_checked(str(path), [memoryview(part) for part in parts])
        content = b"".join(parts)
        assert read(path, mapped) == content
        assert path.stat().st_size == HEADER + len(content)
        if content:
            place = HEADER + chance.randrange(len(content))
            whole = bytearray(path.read_bytes())
            whole[place] ^= 1
            path.with_name("other").write_bytes(whole)
            os.replace(path.with_name("other"), path)
            assert read(path, mapped) is None


def _hole(path: Path) -> None:
    """More than any memory holds, of which the disk holds the header alone."""
    with open(path, "wb") as file:
        file.write(checked_file._start(1 << 40) + bytes(32))
        file.truncate(1 << 43)


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)
    os.chdir(here)


STRANGE: dict[str, Callable[[Path], object]] = {
    "folder": lambda path: path.mkdir(),
    "fifo": lambda path: os.mkfifo(path),
    "socket": _socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "no target": lambda path: path.symlink_to("nowhere"),
    "loop": lambda path: path.symlink_to(path.name),
    "hole": _hole,
    "empty": lambda path: path.touch(),
}


@pytest.mark.parametrize("strange", STRANGE)
def test_what_is_no_such_file_is_not_found(tmp_path: Path, strange: str) -> None:
    path = tmp_path / "name"
    STRANGE[strange](path)
    for mapped in (False, True):
        assert read_checked(str(path), mapped=mapped) is None
    assert read_checked(str(path / "below"), mapped=False) is None
    assert read_checked(str(tmp_path / ("n" * 300)), mapped=False) is None


def test_a_link_to_a_file_serves(path: Path) -> None:
    (path.parent / "folder").mkdir()
    link = path.parent / "folder" / "name"
    link.symlink_to(path)
    assert read(link) == CONTENT


def test_writers_at_once(path: Path) -> None:
    """A reader finds what one of them wrote, whole."""
    contents = [bytes([i]) * 5000 for i in range(3)]
    write_checked(str(path), contents[:1])

    def write(content: bytes) -> None:
        for _ in range(30):
            write_checked(str(path), [content])

    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert read(path) in contents
    for writer in writers:
        writer.join()
    assert os.listdir(path.parent) == ["name"]
