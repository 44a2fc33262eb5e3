"""A folder that is replaced, or rewritten, while a network is read from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import nnef_jax
from nnef_jax.errors import ArchiveError
from nnef_jax.storage.folder import Folder
from nnef_jax.storage.tensorfile import encode_tensor
from nnef_jax.storage.writer import write_members

LABELS = ("a/v", "b/w", "z")
CALLS = range(6)  # of the graph, what recognises formats, and of the tensor files


def members(value: int) -> dict[str, bytes | np.ndarray]:
    variables = "".join(
        f"{label[-1]} = variable<scalar>(shape = [1, 3], label = '{label}{value}');\n"
        for label in LABELS
    )
    text = "x = external<scalar>(shape = [1, 3]);\n" + variables + "y = x + v + w + z;"
    head = "version 1.0;\nextension KHR_enable_operator_expressions;\n"
    arrays = {f"{label}{value}.dat": np.full((1, 3), value, np.float32) for label in LABELS}
    return {"graph.nnef": f"{head}graph net( x ) -> ( y ) {{ {text} }}\n".encode(), **arrays}


def write_in_place(path: Path, value: int) -> None:
    """Write a network over another, as no writer of ours does."""
    for name, content in members(value).items():
        if isinstance(content, np.ndarray):
            header, data = encode_tensor(content)
            content = header + bytes(data)
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def save(path: Path, value: int) -> None:
    write_members(path, members(value), overwrite=True)


def link(path: Path, value: int) -> None:
    """Let a link lead to another folder, by one rename, and remove the one that it led to."""
    folder, link = path.with_name(f"v{value}"), path.with_name("new")
    write_in_place(folder, value)
    link.symlink_to(folder)
    old = os.path.realpath(path)
    os.replace(link, path)
    shutil.rmtree(old)


def prepare(path: Path, how: Callable[[Path, int], None]) -> None:
    if how is link:
        write_in_place(path.with_name("v1"), 1)
        path.symlink_to(path.with_name("v1"))
    else:
        save(path, 1)


def at_call(number: int, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Act before one of the calls that read a member."""
    original, left = Folder.read, number

    def read(self: Folder, name: str) -> memoryview:
        nonlocal left
        left -= 1
        if left == -1:
            act()
        return original(self, name)

    monkeypatch.setattr(Folder, "read", read)


@pytest.mark.parametrize("named", ["", "graph.nnef"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("how", [save, link])
def test_it_is_read_again(
    how: Callable[[Path, int], None],
    call: int,
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, ones = tmp_path / "m", np.ones((1, 3), np.float32)
    prepare(path, how)
    at_call(call, lambda: how(path, 2), monkeypatch)
    found = np.asarray(nnef_jax.load(path / named)(ones))
    assert found.tolist() in ([[4, 4, 4]], [[7, 7, 7]])
    assert nnef_jax.load(path)(ones).tolist() == [[7, 7, 7]]


def test_convert_reads_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m"
    prepare(path, link)
    at_call(1, lambda: link(path, 2), monkeypatch)
    text = nnef_jax.convert(path, tmp_path / "written")
    assert text in [str(members(i)["graph.nnef"], "utf-8") for i in (1, 2)]
    assert nnef_jax.load(tmp_path / "written").inputs


def test_a_graph_that_goes_away_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is read: when formats look for its graph."""
    path, original, acted = tmp_path / "m", Folder.exists, False
    save(path, 1)

    def exists(self: Folder, name: str) -> bool:
        nonlocal acted
        if not acted:
            acted = True
            save(path, 2)
        return original(self, name)

    monkeypatch.setattr(Folder, "exists", exists)
    assert nnef_jax.load(path)(np.ones((1, 3), np.float32)).tolist() == [[7, 7, 7]]


def test_what_never_stays_is_an_archive_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, original, value = tmp_path / "m", Folder.read, 1
    prepare(path, link)

    def read(self: Folder, name: str) -> memoryview:
        nonlocal value
        value += 1
        link(path, value)
        return original(self, name)

    monkeypatch.setattr(Folder, "read", read)
    with pytest.raises(ArchiveError, match="the network changes while it is read: "):
        nnef_jax.load(path)


def test_a_folder_that_is_removed_is_an_archive_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m"
    save(path, 1)
    at_call(1, lambda: shutil.rmtree(path), monkeypatch)
    with pytest.raises((ArchiveError, FileNotFoundError)):
        nnef_jax.load(path)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ["graph.nnef", "b/w1.dat"])
def test_a_file_that_is_half_written_is_read_again(
    name: str, call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is empty as it is read, and whole when the error is looked into."""
    path, original, changed = tmp_path / "m", Folder.is_changed, 0
    save(path, 1)
    whole = (path / name).read_bytes()

    def is_changed(self: Folder) -> bool:
        nonlocal changed
        (path / name).write_bytes(whole)
        found = original(self)
        changed += found
        return found

    monkeypatch.setattr(Folder, "is_changed", is_changed)
    at_call(call, lambda: (path / name).write_bytes(b"") and None, monkeypatch)
    assert nnef_jax.load(path)(np.ones((1, 3), np.float32)).tolist() == [[4, 4, 4]]
    assert changed <= 1


def test_errors_of_a_folder_that_stays_are_its_own(tmp_path: Path) -> None:
    path = tmp_path / "m"
    save(path, 1)
    (path / "b" / "w1.dat").write_bytes(b"")
    with pytest.raises(nnef_jax.DataError, match="is empty"):
        nnef_jax.load(path)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["save", "link"])
def test_thousands_of_loads(how: str, tmp_path: Path) -> None:
    """Another process replaces the folder all the time."""
    path = tmp_path / "m"
    prepare(path, {"save": save, "link": link}[how])
    script = f"""
import itertools, pathlib
from tests.storage.test_replacing import {how}
for value in itertools.count(2):
    {how}(pathlib.Path({str(path)!r}), value)
"""
    found = Counter[str]()
    with subprocess.Popen([sys.executable, "-c", script]) as saver:
        try:
            while found.total() < 3000 and saver.poll() is None:
                params = nnef_jax.load(path, unused=True).params
                values = {float(np.asarray(x)[0, 0]) for x in params.values()}
                assert len(values) == 1
                found[str(values)] += 1
        finally:
            saver.kill()
    assert found.total() == 3000 and len(found) > 100
