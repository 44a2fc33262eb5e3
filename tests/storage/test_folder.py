"""Folders that change, or refuse, while they are read: nothing outside is ever seen."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from nnef_jax.errors import ArchiveError, LimitError, NnefError
from nnef_jax.limits import Meter
from nnef_jax.storage import files, folder
from nnef_jax.storage.archive import open_archive
from nnef_jax.storage.folder import Folder

GRAPH = b"version 1.0;\ngraph G( x ) -> ( y ) {}\n"
INSIDE, OUTSIDE = b"inside", b"outside"
DEEP = "a/b/c/w.dat"


@pytest.fixture
def model(tmp_path):
    """A network, and beside it a folder of the same form that nobody may read through it."""
    for top, data in (("model", INSIDE), ("outside", OUTSIDE)):
        path = tmp_path / top
        (path / "a" / "b" / "c").mkdir(parents=True)
        (path / "graph.nnef").write_bytes(GRAPH)
        for parent in ("", "a", "a/b", "a/b/c"):
            (path / parent / "w.dat").write_bytes(data)
    return tmp_path / "model"


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def swap_for_a_link(path: Path, outside: Path):
    path.rename(path.with_name(f"{path.name}.aside"))
    path.symlink_to(outside)


# Links


@pytest.mark.parametrize("part", ["", "a", "a/b", "a/b/c", DEEP])
@pytest.mark.parametrize("call", range(10))
@pytest.mark.parametrize("function", ["stat", "open", "readlink", "scandir"])
def test_a_part_that_becomes_a_link_between_two_calls(model, monkeypatch, part, call, function):
    """Every part of the path, swapped before every call of the system that reading makes."""
    original, calls = getattr(os, function), 0

    def swapping(*arguments, **options):
        nonlocal calls
        if calls == call:
            swap_for_a_link(model / part, model.parent / "outside" / part)
        calls += 1
        return original(*arguments, **options)

    with open_archive(model) as archive, monkeypatch.context() as patch:
        patch.setattr(os, function, swapping)
        with contextlib.suppress(ArchiveError):
            assert archive.open_tensor(DEEP) == INSIDE
        archive.exists(DEEP)
        with contextlib.suppress(ArchiveError):
            archive.names()


def test_the_folder_that_was_opened_is_the_one_that_is_read(model):
    with open_archive(model) as archive:
        swap_for_a_link(model, model.parent / "outside")
        assert archive.open_tensor(DEEP) == INSIDE
    with open_archive(model) as archive:  # the user's own path may be a link
        assert archive.open_tensor(DEEP) == OUTSIDE


SWAPPER = """
import os, sys
folder, outside = sys.argv[1:]
while True:
    os.rename(folder, folder + ".aside")
    os.symlink(outside, folder)
    os.unlink(folder)
    os.rename(folder + ".aside", folder)
"""


def test_parents_that_are_swapped_all_the_time(model):
    """Another process swaps a parent for a link to outside while hundreds of reads go on."""
    outside = model.parent / "outside" / "a" / "b"
    inside = refused = 0
    arguments = [sys.executable, "-c", SWAPPER, str(model / "a" / "b"), str(outside)]
    with subprocess.Popen(arguments) as swapper, open_archive(model) as archive:
        try:
            while min(inside, refused) < 200 and swapper.poll() is None:
                try:
                    assert archive.open_tensor(DEEP) == INSIDE
                    inside += 1
                except ArchiveError:
                    refused += 1
        finally:
            swapper.kill()
    assert min(inside, refused) == 200


@pytest.mark.parametrize(
    ("link", "target", "name"),
    [
        ("l.dat", "w.dat", "l.dat"),
        ("a/l.dat", "../w.dat", "a/l.dat"),
        ("a/b/l.dat", "../.././a//b/c/w.dat", "a/b/l.dat"),
        ("l", "a/b", "l/c/w.dat"),
        ("l", ".", "l/a/w.dat"),
        ("a/l", "../a/l2/../c", "a/l/w.dat"),  # '..' of what a link leads to
        ("l.dat", "{model}/a/w.dat", "l.dat"),
        ("a/l", "{model}", "a/l/w.dat"),
    ],
)
def test_links_inside_lead_where_the_kernel_says(model, link, target, name):
    (model / "a" / "l2").symlink_to("b/c")
    (model / link).symlink_to(target.format(model=model))
    expected = (model / name).read_bytes()
    (model / "w.dat").write_bytes(INSIDE + b" top")
    with open_archive(model) as archive:
        assert archive.exists(name)
        assert archive.open_tensor(name) == (model / name).read_bytes()
        assert expected == INSIDE


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("../outside/w.dat", "leads outside"),
        ("a/../../model/w.dat", "leads outside"),  # no way out, even one that leads back in
        ("{outside}/w.dat", "leads outside"),
        ("{model}/../outside/w.dat", "leads outside"),
        ("{model}x/w.dat", "leads outside"),
        ("/", "leads outside"),
        ("a", "is a folder"),
        ("a/..", "is a folder"),
        ("l.dat", "cannot be read: Too many levels of symbolic links"),
        ("w.dat/w.dat", "there is no file"),
        ("w.dat/..", "there is no file"),
        ("missing", "there is no file"),
    ],
)
def test_links_that_lead_to_nothing_that_is_read(model, target, message):
    outside = model.parent / "outside"
    (model / "l.dat").symlink_to(target.format(model=model, outside=outside))
    with open_archive(model) as archive, pytest.raises(ArchiveError, match=message):
        archive.open_tensor("l.dat")


def test_hard_links_are_files_of_the_folder(model):
    os.link(model.parent / "outside" / "w.dat", model / "hard.dat")
    with open_archive(model) as archive:
        assert archive.open_tensor("hard.dat") == OUTSIDE


# Caches of hubs


@pytest.fixture
def snapshot(tmp_path):
    """A folder of links to blobs, as clients of hubs make it; beside it what nobody may read."""
    for path in ("hub/blobs/more", "hub/snapshots/1/onnx", "hub/other"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "hub" / "blobs" / "b0").write_bytes(GRAPH)
    (tmp_path / "hub" / "blobs" / "b1").write_bytes(INSIDE)
    for path in ("blobs/more/b2", "other/b1"):
        (tmp_path / "hub" / path).write_bytes(OUTSIDE)
    here = tmp_path / "hub" / "snapshots" / "1"
    (here / "graph.nnef").symlink_to("../../blobs/b0")
    (here / "w.dat").symlink_to("../../blobs/b1")
    (here / "onnx" / "w.dat").symlink_to("../../../blobs/b1")
    return here


def test_a_member_may_be_a_link_to_a_blob(snapshot, tmp_path):
    (snapshot / "absolute.dat").symlink_to(tmp_path / "hub" / "blobs" / "b1")
    (snapshot / "chain.dat").symlink_to("onnx/w.dat")
    (tmp_path / "latest").symlink_to(snapshot)
    for named in (snapshot, snapshot / "graph.nnef", tmp_path / "latest"):
        before = descriptors()
        with open_archive(named) as archive:
            assert archive.read_text("graph.nnef").text == GRAPH.decode()
            for name in ("w.dat", "onnx/w.dat", "absolute.dat", "chain.dat"):
                assert archive.open_tensor(name) == INSIDE
        assert descriptors() == before


@pytest.mark.parametrize(
    "target",
    [
        "../../other/b1",
        "../../blobs/more/b2",
        "../../blobs/../other/b1",
        "../../blobs/..",
        "../../blobs",
        "../../blobs/",
        "{hub}/other/b1",
        "../../blobs/elsewhere",
        "../../blobs/missing",
    ],
)
def test_other_links_out_of_a_snapshot_are_refused(snapshot, target):
    hub = snapshot.parent.parent
    (hub / "blobs" / "elsewhere").symlink_to("../other/b1")
    (snapshot / "l.dat").symlink_to(target.format(hub=hub))
    (snapshot / "d").symlink_to("../../blobs")
    for named in (snapshot, snapshot / "graph.nnef"):
        with open_archive(named) as archive:
            for name in ("l.dat", "d/b1"):
                with pytest.raises(ArchiveError):
                    archive.open_tensor(name)


def test_the_users_own_link_says_where_blobs_are(model, tmp_path):
    """In any folder; links of a folder that lies in no hub's cache lead nowhere else."""
    graph, outside = model / "graph.nnef", tmp_path / "outside"
    graph.unlink()
    graph.symlink_to(outside / "graph.nnef")
    (model / "w.dat").unlink()
    (model / "w.dat").symlink_to("../outside/w.dat")
    with open_archive(graph) as archive:
        assert archive.open_tensor("w.dat") == OUTSIDE
    with open_archive(model) as archive, pytest.raises(ArchiveError, match="leads outside"):
        archive.open_tensor("w.dat")
    outside.rename(tmp_path / "hidden")
    with pytest.raises(FileNotFoundError):
        open_archive(graph)


@pytest.mark.parametrize("call", range(6))
@pytest.mark.parametrize("function", ["stat", "open", "readlink"])
@pytest.mark.parametrize("part", ["blobs", "blobs/b1", "snapshots/1/w.dat", "snapshots/1"])
def test_blobs_that_become_links_between_two_calls(snapshot, monkeypatch, part, call, function):
    original, calls, hub = getattr(os, function), 0, snapshot.parent.parent

    def swapping(*arguments, **options):
        nonlocal calls
        if calls == call:
            outside = hub / "other" / "b1"
            swap_for_a_link(hub / part, outside if part.endswith(("b1", "dat")) else outside.parent)
        calls += 1
        return original(*arguments, **options)

    with open_archive(snapshot) as archive, monkeypatch.context() as patch:
        patch.setattr(os, function, swapping)
        with contextlib.suppress(ArchiveError):
            assert archive.open_tensor("w.dat") == INSIDE


# Errors of the system


@pytest.mark.parametrize(
    "code", ["EACCES", "EPERM", "ENAMETOOLONG", "ELOOP", "ENOTDIR", "EIO", "EMFILE", "ENXIO"]
)
@pytest.mark.parametrize("function", ["open", "stat", "fstat", "read"])
def test_what_the_system_refuses_is_an_archive_error(model, monkeypatch, code, function):
    def refused(*_, **__):
        raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    with open_archive(model) as archive, monkeypatch.context() as patch:
        if function == "read":
            patch.setattr(files, "contents", refused)
        else:
            patch.setattr(os, function, refused)
        with pytest.raises(ArchiveError, match=r"w\.dat"):
            archive.open_tensor("a/w.dat")
        with pytest.raises(ArchiveError, match=r"graph\.nnef"):
            archive.read_text("graph.nnef")
        with pytest.raises(ArchiveError):
            open_archive(model / "graph.nnef")
        if function in ("open", "stat"):
            with pytest.raises(ArchiveError):
                open_archive(model)


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000 + "w", "a\0b", "\ud800"])
def test_names_that_the_system_does_not_take(model, name):
    with open_archive(model) as archive:
        assert not archive.exists(name)
        with pytest.raises(ArchiveError):
            archive.open_tensor(name)
    with pytest.raises((ArchiveError, FileNotFoundError)):
        open_archive(f"{model}/{name}")


def test_reading_without_memory_is_a_limit_error(model, monkeypatch):
    (model / "w.dat").write_bytes(bytes(files.MAP_FROM))

    def exhausted(*_, **__):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(files, "_FileMap", exhausted)
    for read in (
        lambda: open_archive(model).open_tensor("w.dat"),
        lambda: open_archive(model / "w.dat"),
    ):
        with pytest.raises(LimitError, match="does not fit into memory"):
            read()


def test_folders_nested_too_deep_are_a_limit_error(model):
    here = os.open(model, os.O_RDONLY)
    for _ in range(folder._MAX_DEPTH):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    with open_archive(model) as archive, pytest.raises(LimitError, match="nested more than"):
        archive.names()


# Descriptors


def test_descriptors_are_given_back(model):
    (model / "l").symlink_to("a/b/../b")
    (model / "out").symlink_to("../outside")
    before = descriptors()
    for _ in range(3):
        with open_archive(model) as archive:
            archive.names()
            next(iter(Folder(str(model), Meter()).names()))
            for name in (DEEP, "l/w.dat", "l/missing", "out/w.dat", "a", "../x"):
                with contextlib.suppress(NnefError):
                    archive.open_tensor(name)
                archive.exists(name)
        with pytest.raises(ArchiveError):
            open_archive(model / "a")
    assert descriptors() == before


def test_a_closed_folder_reads_no_other_file(model):
    """The number of its descriptor may be given to another folder at once."""
    archive = open_archive(model)
    below = archive.subfolder("a")
    archive.close()
    archive.close()
    other = open_archive(model.parent / "outside")
    for read in (below.names, lambda: below.exists("w.dat"), lambda: below.open_tensor("w.dat")):
        with pytest.raises(ValueError, match="is closed"):
            read()
    other.close()


@pytest.mark.skipif(bool(files._UNTRACKED), reason="maps take no descriptors here")
def test_maps_leave_descriptors_to_others(model):
    """Large members are mapped as long as the process has descriptors, then read."""
    used, limits = descriptors(), resource.getrlimit(resource.RLIMIT_NOFILE)
    for i in range(60):
        with (model / f"{i}.dat").open("wb") as file:
            file.truncate(files.MAP_FROM)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 60, limits[1]))
    try:
        with open_archive(model) as archive:
            data = [archive.open_tensor(f"{i}.dat") for i in range(60)]
            mapped = [isinstance(view.obj, mmap.mmap) for view in data]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert mapped == sorted(mapped, reverse=True)
    assert 10 < mapped.count(True) < 60


def test_many_large_members_under_a_memory_limit(model):
    """More of them than there is memory for: each is mapped, or a LimitError."""
    for i in range(40):
        with (model / f"{i}.dat").open("wb") as file:
            file.truncate(64 << 20)
    script = f"""
import resource
from nnef_jax.errors import LimitError
from nnef_jax.storage.archive import open_archive
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
with open_archive({str(model)!r}) as archive:
    kept = []
    try:
        for i in range(40):
            kept.append(archive.open_tensor(f"{{i}}.dat"))
    except LimitError as error:
        print(len(kept), error)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "does not fit into memory" in result.stdout, result.stderr
