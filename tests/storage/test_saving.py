"""Saving over what is there: old or new, neighbours untouched, modes kept, nothing left behind."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnef_jax.errors import NnefError
from nnef_jax.storage import files, labels, placing, temporaries
from nnef_jax.storage.archive import open_archive
from nnef_jax.storage.labels import quoted_members
from nnef_jax.storage.tensorfile import read_tensor, write_tensor
from nnef_jax.storage.writer import write_members
from tests import kill_commands
from tests.kill_saves import CHANGING, LOOKING, TARGETS, VERSIONS, Place, at_call

LEFTOVER, OTHER = ".nnef_jax-0123456789abcdef", ".nnef_jax-fedcba9876543210"
GRAPH = b"v = variable(label = 'a/w');  # 'not/a/label'\n w = variable(label = \"/b\");"
OLD: dict[str, Any] = {"graph.nnef": GRAPH, "a/w.dat": np.arange(3), "b.dat": np.arange(4)}
NEW: dict[str, Any] = {"graph.nnef": GRAPH + b"# new", "a/w.dat": np.arange(5)}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "m"
    write_members(path, OLD)
    yield path
    with contextlib.suppress(FileNotFoundError):
        path.chmod(0o700)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where there is one: a disk takes long to say that all is on it."""
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=folder) as path:
        yield Path(path)


def content(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


# What is not the network's


@pytest.mark.parametrize(
    "name",
    [
        "thesis.txt",
        "thesis.dat",
        "a/thesis.txt",
        "a/w.dat.bak",
        "not/a/label.dat",
        "b/b.dat",
        "graph.nnef.bak",
        ".git/config",
        "model.safetensors",
        "a.json",
        ".nnef_jax-0123456789abcde",
        ".nnef_jax-0123456789abcdefa",
        ".nnef_jax-0123456789ABCDEF",
    ],
)
def test_a_folder_that_holds_anything_else_is_not_replaced(folder, name):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("mine")
    before = content(folder)
    with pytest.raises(FileExistsError, match="which is not the network's") as caught:
        write_members(folder, NEW, overwrite=True)
    named = caught.value.strerror.split("'")[1]
    assert name == named or name.startswith(f"{named}/")
    assert caught.value.filename == str(folder)
    assert content(folder) == before
    assert os.listdir(folder.parent) == ["m"]


@pytest.mark.parametrize("kind", ["folder", "link", "fifo", "folder of a member's name"])
def test_other_things_than_files_are_not_the_networks_either(folder, kind):
    if kind == "folder":
        (folder / "notes").mkdir()
    elif kind == "link":
        (folder / "notes").symlink_to("a")
    elif kind == "fifo":
        os.mkfifo(folder / "notes")
    else:
        (folder / "b.dat").unlink()
        (folder / "b.dat").mkdir()
    with pytest.raises(FileExistsError, match=r"'notes'|'b\.dat'"):
        write_members(folder, NEW, overwrite=True)
    assert read_tensor(folder / "a" / "w.dat").size == 3


def test_what_comes_while_a_network_is_written_is_not_removed(folder, monkeypatch):
    """At each moment: while it is written, between the last look and the swap."""
    exchange = placing._exchange

    def late(one: str, other: str) -> bool:
        (folder / "thesis.txt").write_text("mine")
        monkeypatch.setattr(placing, "_exchange", exchange)
        return exchange(one, other)

    monkeypatch.setattr(placing, "_exchange", late)
    with pytest.raises(FileExistsError, match=r"thesis\.txt"):
        write_members(folder, NEW, overwrite=True)
    assert (folder / "thesis.txt").read_text() == "mine"
    assert read_tensor(folder / "a" / "w.dat").size == 3
    assert os.listdir(folder.parent) == ["m"]


def test_members_of_the_network_that_is_there_go(folder):
    (folder / "graph.quant").write_text("")
    (folder / "a" / "w.dat").unlink()
    (folder / "a" / "w.dat").symlink_to("../b.dat")
    write_members(folder, NEW, overwrite=True)
    assert sorted(content(folder)) == ["a/w.dat", "graph.nnef"]
    # Files of names that are written now may have labels that the old text computes.
    write_members(folder, {"graph.nnef": b"", "c/d.dat": np.ones(1)}, overwrite=True)
    write_members(folder, {"graph.nnef": b"", "c/d.dat": np.ones(2)}, overwrite=True)
    assert read_tensor(folder / "c" / "d.dat").size == 2


@pytest.mark.parametrize("kind", ["fifo", "link to a device", "link to a fifo"])
@pytest.mark.parametrize("name", ["m", "m.tar"])
def test_devices_and_fifos_are_never_replaced(tmp_path, kind, name):
    os.mkfifo(tmp_path / "fifo")
    path = tmp_path / name
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null" if "device" in kind else "fifo")
    before = path.lstat().st_ino
    with pytest.raises(FileExistsError, match="is no regular file"):
        write_members(path, NEW, overwrite=True)
    with pytest.raises(FileExistsError, match="is no regular file"):
        write_tensor(path, np.arange(3))
    assert path.lstat().st_ino == before


def test_an_archive_does_not_replace_a_folder(tmp_path):
    (tmp_path / "m.tar").mkdir()
    with pytest.raises(IsADirectoryError):
        write_members(tmp_path / "m.tar", NEW, overwrite=True)
    with pytest.raises(IsADirectoryError):
        write_tensor(tmp_path / "m.tar", np.arange(3))
    assert os.listdir(tmp_path) == ["m.tar"]


@pytest.mark.parametrize("name", ["m", "m.tar"])
def test_what_comes_meanwhile_is_not_replaced_without_being_told(tmp_path, monkeypatch, name):
    path = tmp_path / name
    status = placing.status

    def late(target: str) -> os.stat_result | None:
        found = status(target)
        if target == str(path):
            monkeypatch.setattr(placing, "status", status)
            write_members(path, OLD)
        return found

    monkeypatch.setattr(placing, "status", late)
    with pytest.raises(FileExistsError, match="exists already"):
        write_members(path, NEW)
    with open_archive(path) as archive:
        assert read_tensor(archive.open_tensor("a/w.dat")).size == 3
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize(
    ("text", "members"),
    [
        ("variable(label = 'a/b')", {"a/b.dat"}),
        ('variable(label = "//a/./b")', {"a/b.dat"}),
        ("# 'a'\n'b' # don't\n'c'", {"b.dat", "c.dat"}),
        (r"'it\'s' " + r'"\\"', {"it's.dat"}),
        ("'a# b' \"it's\"", {"a# b.dat", "it's.dat"}),
        ("'../a' '' 'a/'", set()),
        ("'open\n'b'", {"open.dat", "b.dat"}),
    ],
)
def test_members_that_a_document_quotes(text, members):
    assert quoted_members(text) == members


@pytest.mark.parametrize("part", ["'", '"', "\\'", "'\\", "#", "'\"", "\"\\'", "'\n", "'#\n", "a"])
@pytest.mark.parametrize("first", ["", "'", '"', "#", "\\"])
def test_no_part_of_a_hostile_text_is_looked_at_twice(first, part):
    """Each quote and '#' starts a match or is in one, so no look from one of them is in vain."""
    text = first + part * 50
    covered: set[int] = set()
    for match in labels._QUOTED.finditer(text):
        covered |= set(range(*match.span()))
    assert all(i in covered for i, character in enumerate(text) if character in "'\"#")


# Modes


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o444, 0o755])
@pytest.mark.parametrize("name", ["m.tar", "w.dat"])
def test_a_file_keeps_its_mode(tmp_path, name, mode):
    path = tmp_path / name

    def save() -> None:
        if name == "m.tar":
            write_members(path, NEW, overwrite=True)
        else:
            write_tensor(path, np.arange(3))

    save()
    path.chmod(mode)
    inode = path.stat().st_ino
    save()
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.stat().st_ino != inode


def test_a_folder_and_its_files_keep_their_modes(folder):
    umask = os.umask(0o022)
    try:
        modes = {"": 0o2750, "graph.nnef": 0o600, "a": 0o500, "a/w.dat": 0o440}
        for name, mode in reversed(modes.items()):
            (folder / name).chmod(mode)
        write_members(folder, NEW | {"c/d.dat": np.ones(2)}, overwrite=True)
    finally:
        os.umask(umask)
    modes |= {"c": 0o755, "c/d.dat": 0o644}
    assert {name: stat.S_IMODE((folder / name).stat().st_mode) for name in modes} == modes
    assert os.listdir(folder.parent) == ["m"]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
@pytest.mark.parametrize("existing", ["", "file", "link"])
def test_new_ones_follow_the_umask(tmp_path, umask, existing):
    before = os.umask(umask)
    try:
        for name in ("m", "m.tar", "w.dat"):
            path = tmp_path / name
            if existing == "link":
                path.symlink_to("nowhere")
            elif existing == "file" and name == "m":
                path.touch(0o600)
            if name == "w.dat":
                write_tensor(path, np.arange(3))
            else:
                write_members(path, NEW, overwrite=True)
            expected = 0o777 if path.is_dir() else 0o666
            assert stat.S_IMODE(path.lstat().st_mode) == expected & ~umask
    finally:
        os.umask(before)


@pytest.mark.parametrize("name", TARGETS)
def test_nobody_else_reads_what_replaces_a_private_file(tmp_path, monkeypatch, name):
    """Neither while it is written."""
    place = Place(tmp_path, name)
    place.target.chmod(0o700)
    seen: list[int] = []
    fsync = os.fsync

    def looking(descriptor: int) -> None:
        for left in place.leftovers():
            seen.append(stat.S_IMODE((tmp_path / left).stat().st_mode))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", looking)
    place.save("new")
    assert seen and not any(mode & 0o077 for mode in seen)


# The disk


@pytest.mark.parametrize("name", TARGETS)
def test_all_is_on_the_disk_before_and_after_it_takes_its_place(tmp_path, monkeypatch, name):
    place = Place(tmp_path, name)
    synced: list[tuple[str, str]] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        path = os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path)
        synced.append((path, place.look()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    place.save("new")
    temporary = synced[0][0].split("/")[0]
    inner = ["", "/both.dat", "/graph.nnef", "/new", "/new/own.dat"] if name == "m" else [""]
    before = sorted(path for path, version in synced if version == "old")
    assert before == [temporary + path for path in inner]
    assert [path for path, version in synced if version == "new"] == ["."]


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("function", ["fsync", "replace", "rename", "open", "mkdir"])
def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch, name, function):
    place = Place(tmp_path, name)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, function, full)
        try:
            place.save("new")
        except OSError as error:
            assert error.filename == str(place.target)
    assert place.look() in VERSIONS
    assert not place.leftovers()


def test_a_disk_that_fills_up_while_a_member_is_written(tmp_path):
    """By a limit on the size of files, which the system tells as it does a full disk."""
    script = f"""
import resource, signal
from pathlib import Path
import numpy as np
from nnef_jax.storage.tensorfile import write_tensor
from nnef_jax.storage.writer import write_members
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
for name in ("m", "m.tar", "w.dat"):
    path = Path({str(tmp_path)!r}, name)
    try:
        if name == "w.dat":
            write_tensor(path, np.ones(1 << 16))
        else:
            write_members(path, {{"graph.nnef": b"", "w.dat": np.ones(1 << 16)}})
    except OSError as error:
        print(error.filename)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout.split() == [str(tmp_path / name) for name in ("m", "m.tar", "w.dat")]
    assert not os.listdir(tmp_path)


# Every moment


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
@pytest.mark.parametrize("name", TARGETS)
def test_an_error_at_any_call_of_the_system(memory, name, error):
    place = Place(memory, name)
    number, failed = 0, True
    while failed:
        failed, removing = False, False

        def fail() -> None:
            nonlocal failed, removing
            failed = True
            removing = any(f == "remove" for f in callers())
            raise error

        try:
            # Closing is left out: it never fails without closing.
            sys.setprofile(at_call(number, fail, (CHANGING | LOOKING) - {"close"}))
            place.save("new")
        except (OSError, NnefError, KeyboardInterrupt):
            pass
        finally:
            sys.setprofile(None)
        place.look()
        # Where removing itself fails the next save has to do it.
        assert removing or not place.leftovers()
        place.save("old")
        assert place.look() == "old"
        assert not place.leftovers()
        number += 1
    assert number > 15


def callers() -> list[str]:
    frame, names = sys._getframe(), []
    while frame:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


def test_kills_at_random_moments_and_before_every_call(memory):
    """See tests/kill_saves.py, which kills five hundred when it is asked to."""
    arguments = ["--count", "32", "--every-call", "--seed", "1", "--folder", str(memory)]
    command = [sys.executable, "-m", "tests.kill_saves", *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_commands_that_are_killed_or_find_the_disk_full(memory):
    """Each of five writers at a few of its calls; without `--short` at all of them."""
    command = [sys.executable, "-m", "tests.kill_saves", "--commands", "--short"]
    command += ["--folder", str(memory)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    for job in ("save", "convert", "export", "view", "batch"):
        assert re.search(rf"^{job} .*'kill: .*, killed'", result.stdout, re.MULTILINE), job


@pytest.mark.filterwarnings("ignore:os.fork")  # the child writes a file and ends
def test_a_writer_that_leaves_half_is_found(memory):
    """What looks for damage finds it: a file that is written where it is to be."""
    job = kill_commands.Job("careless", "out.bin")
    (memory / "place").mkdir()

    def careless(folder, version):
        with open(folder / "place/out.bin", "wb") as file:
            file.write(version.encode())
            file.flush()
            file.write(version.encode())
        return 0

    job.run = careless
    with pytest.raises(AssertionError, match=r"careless out\.bin, kill at .*: half: \[''\]"):
        kill_commands.end(job, memory)


RACE = """
import os, sys
from pathlib import Path
from tests.kill_saves import Place
place = object.__new__(Place)
version, *targets = sys.argv[1:]
for target in targets:
    place.target = Path(target)
    for _ in range(40):
        place.save(version)
"""


def test_of_several_savers_at_once_one_wins_whole(memory):
    places: dict[str, Place] = {}
    for name in TARGETS:
        (memory / name).mkdir()
        places[name] = Place(memory / name, name)
    targets = [str(place.target) for place in places.values()]
    savers = [
        subprocess.Popen([sys.executable, "-c", RACE, version, *targets])
        for version in (*VERSIONS, "new")
    ]
    seen = set[str]()
    while any(saver.poll() is None for saver in savers):
        for name, place in places.items():
            # Who reads a folder that goes away misses files; an archive is always there.
            with contextlib.suppress(*([NnefError, AssertionError] if name == "m" else [])):
                place.look()
                seen.add(name)
    assert [saver.wait() for saver in savers] == [0, 0, 0]
    assert seen == {*TARGETS}
    assert {place.look() for place in places.values()} <= {*VERSIONS}
    assert not any(place.leftovers() for place in places.values())


# Leftovers


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_living_writers_temporary_is_not_swept(tmp_path, kind):
    make = temporaries.temporary_file if kind == "file" else temporaries.temporary_folder
    with make(str(tmp_path / "other"), private=False):
        (mine,) = os.listdir(tmp_path)
        write_members(tmp_path / "m", NEW)
        write_tensor(tmp_path / "w.dat", np.arange(3))
        assert sorted(os.listdir(tmp_path)) == sorted([mine, "m", "w.dat"])
    assert sorted(os.listdir(tmp_path)) == ["m", "w.dat"]


def test_leftovers_are_swept_beside_the_target_and_in_its_folders(folder):
    for parent in (folder.parent, folder, folder / "a"):
        (parent / LEFTOVER / "x" / "y").mkdir(parents=True)
        (parent / LEFTOVER / "x" / "w.dat").touch(0o000)
        (parent / LEFTOVER / "x").chmod(0o500)
        (parent / OTHER).touch()
    write_members(folder, NEW, overwrite=True)
    assert os.listdir(folder.parent) == ["m"]
    assert sorted(content(folder)) == ["a/w.dat", "graph.nnef"]


def test_links_and_fifos_of_such_names_are_not_ours(tmp_path):
    (tmp_path / "thesis.txt").touch()
    (tmp_path / LEFTOVER).symlink_to("thesis.txt")
    os.mkfifo(tmp_path / OTHER)
    write_tensor(tmp_path / "w.dat", np.arange(3))
    assert len(os.listdir(tmp_path)) == 4


def test_a_sweep_that_is_faster_than_the_lock(tmp_path, monkeypatch):
    """A new temporary has no lock for a moment: a sweep may take it, and another one is made."""
    lock, swept = temporaries._lock, []

    def late(descriptor: int) -> bool | None:
        if len(swept) < 3:
            swept.append(descriptor)
            monkeypatch.setattr(temporaries, "_lock", lock)
            temporaries.sweep(str(tmp_path))
            monkeypatch.setattr(temporaries, "_lock", late)
        return lock(descriptor)

    monkeypatch.setattr(temporaries, "_lock", late)
    write_tensor(tmp_path / "w.dat", np.arange(3))
    write_members(tmp_path / "m", NEW)
    assert len(swept) == 3
    assert sorted(os.listdir(tmp_path)) == ["m", "w.dat"]


# Systems that can do less


def test_without_an_exchange_the_old_folder_is_set_aside(folder, monkeypatch):
    monkeypatch.setattr(placing, "_exchange", lambda *_: False)
    write_members(folder, NEW, overwrite=True)
    assert sorted(content(folder)) == ["a/w.dat", "graph.nnef"]
    assert os.listdir(folder.parent) == ["m"]
    rename = os.rename

    def failing(source: str, target: str) -> None:
        if target == str(folder) and "replaced" not in source:
            raise OSError(errno.ENOTEMPTY if folder.exists() else errno.EIO, "no")
        rename(source, target)

    monkeypatch.setattr(os, "rename", failing)
    before = content(folder)
    with pytest.raises(OSError, match="no"):
        write_members(folder, OLD, overwrite=True)
    assert content(folder) == before
    assert os.listdir(folder.parent) == ["m"]


@pytest.mark.parametrize("name", ["m", "m.tar", "w.dat"])
def test_without_locks_hard_links_and_syncs_of_folders(tmp_path, monkeypatch, name):
    class Unable:
        LOCK_EX = LOCK_NB = 0

        @staticmethod
        def flock(*_: Any) -> None:
            raise OSError(errno.ENOLCK, "no locks")

    def unable(*_: Any) -> None:
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(temporaries, "fcntl", Unable)
    monkeypatch.setattr(os, "link", unable)
    (tmp_path / LEFTOVER).touch()  # whose it is nothing tells
    for overwrite in (False, True):
        if name == "w.dat":
            write_tensor(tmp_path / name, np.arange(3))
        else:
            write_members(tmp_path / name, NEW, overwrite=overwrite)
    assert sorted(os.listdir(tmp_path)) == [LEFTOVER, name]


@pytest.mark.parametrize("name", ["m", "m.tar", "w.dat"])
@pytest.mark.parametrize("function", ["open", "mkdir", "replace", "rename", "fsync", "chmod"])
def test_errors_name_the_path_and_no_temporary(tmp_path, monkeypatch, name, function):
    place, original = Place(tmp_path, name), getattr(os, function)

    def refused(path: Any, *others: Any, **options: Any) -> Any:
        if function == "fsync" or temporaries.NAME.search(str(path)):
            named = [] if function == "fsync" else [str(path), None, str(place.target)]
            raise OSError(errno.EROFS, "no", *named)
        return original(path, *others, **options)

    monkeypatch.setattr(os, function, refused)
    try:
        place.save("new")
    except OSError as error:
        assert str(error) == f"[Errno {errno.EROFS}] no: '{place.target}'"


def test_errors_of_the_block_keep_their_own_names(tmp_path):
    with (
        pytest.raises(FileNotFoundError) as caught,
        files.replacing(str(tmp_path / "f")),
        open(tmp_path / "source"),
    ):
        pass
    assert caught.value.filename == str(tmp_path / "source")
    assert not os.listdir(tmp_path)
