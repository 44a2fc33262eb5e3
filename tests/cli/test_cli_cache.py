"""The cache of the command line: where it is, what is removed from it, when it is not used."""

from __future__ import annotations

import json
import os
import stat
import sys
import warnings

import numpy as np
import pytest

from nnef_jax.cli import cache
from nnef_jax.execution import cache_folder
from tests.cli_support import call, fails, linear_scores, ok

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="folders of POSIX")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The folder that the user's caches are in."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def run(tmp_path):
    """The arguments of a run, and what it prints."""
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    arguments = ["run", linear_scores(tmp_path / "scores"), tmp_path / "x.npy"]
    return arguments, ok(*arguments, "--no-cache")


def entries(home):
    return sorted(path.name for path in (home / "nnef-jax").glob("*"))


def entry(home, number, *, size=1000, age=0):
    """A file that is named as an entry, last used so many seconds ago."""
    path = home / "nnef-jax" / f"{number:064x}.bin"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_bytes(bytes(size))
    os.utime(path, (path.stat().st_mtime - age,) * 2)
    return path


def test_runs_keep_what_they_compile_in_the_users_folder(home, run):
    arguments, wanted = run
    assert not home.exists()  # without a cache
    assert ok(*arguments) == wanted
    kept = entries(home)
    assert kept
    assert stat.S_IMODE((home / "nnef-jax").stat().st_mode) == 0o700
    assert ok(*arguments) == wanted
    assert entries(home) == kept


def test_what_is_found_is_marked_as_used(home, run):
    arguments, _ = run
    ok(*arguments)
    for path in (home / "nnef-jax").iterdir():
        os.utime(path, (1, 1))
    ok(*arguments)
    assert min(file.used for file in cache_folder.entries(str(home / "nnef-jax"))) > 1e9


def test_compile_fills_the_users_folder(home, run):
    (_, scores, _), _ = run
    out = ok("compile", scores, "--shape", "x=2,4")
    assert out.endswith(f"kept in {home / 'nnef-jax'}\n")
    assert entries(home)


def test_cache_is_shown_and_cleared(home):
    nothing = ok("cache")
    assert nothing.splitlines()[:2] == [f"folder          {home / 'nnef-jax'}", "files           0"]
    assert not home.exists()
    for number in range(3):
        entry(home, number, size=500_000)
    others = {"notes.txt", "a" * 63 + ".bin", "b" * 64 + ".npy", "c" * 64 + ".bin.txt"}
    for name in others:
        (home / "nnef-jax" / name).touch()
    (home / "nnef-jax" / ("d" * 64 + ".bin")).mkdir()
    (home / "nnef-jax" / ("e" * 64 + ".xla")).symlink_to(home)
    others |= {"d" * 64 + ".bin", "e" * 64 + ".xla"}
    assert "size            1.5 MB\nat most         2000.0 MB" in ok("cache")
    shown = json.loads(ok("cache", "--json"))
    folder = str(home / "nnef-jax")
    assert shown == {"folder": folder, "files": 3, "bytes": 1_500_000, "most_bytes": cache.MOST}
    assert ok("cache", "--clear") == f"removed 3 files, 1.5 MB, from {folder}\n"
    assert set(entries(home)) == others
    cleared = {"folder": folder, "files": 0, "bytes": 0, "cleared": True}
    assert json.loads(ok("cache", "--clear", "--json")) == cleared


def test_leftovers_of_killed_writers_are_cleared(home):
    left = entry(home, 0).with_name(".nnef_jax-0123456789abcdef")
    left.touch()
    ok("cache", "--clear")
    assert entries(home) == []


def test_the_folder_is_bounded(home, run, monkeypatch):
    arguments, wanted = run
    old, young = entry(home, 1, age=1000), entry(home, 2, age=500)
    stranger = home / "nnef-jax" / "stranger"
    stranger.write_bytes(bytes(10_000))
    os.utime(stranger, (1, 1))
    assert ok(*arguments) == wanted
    assert old.exists() and young.exists()
    own = sum(f.size for f in cache_folder.entries(str(home / "nnef-jax"))) - 2000
    monkeypatch.setattr(cache, "MOST", own + 1500)
    assert ok(*arguments) == wanted
    assert (old.exists(), young.exists(), stranger.exists()) == (False, True, True)
    monkeypatch.setattr(cache, "MOST", 0)
    assert ok(*arguments) == wanted
    assert entries(home) == ["stranger"]
    assert ok(*arguments) == wanted


def test_trimming_beside_other_processes(home, monkeypatch):
    gone, stuck, last = (entry(home, number, age=10 - number) for number in range(3))
    unlink = os.unlink

    def other(path):
        if str(path) == str(stuck):  # as Windows refuses to remove what is open
            raise PermissionError
        unlink(path)
        if str(path) == str(gone):
            unlink(last)  # by another process that trims

    monkeypatch.setattr(os, "unlink", other)
    removed = cache_folder.trim(str(home / "nnef-jax"), 0)
    assert [file.path for file in removed] == [str(gone)]
    assert entries(home) == [stuck.name]


def _readonly(home):
    (home / "nnef-jax").mkdir(parents=True, mode=0o500)


def _writable_by_all(home):
    (home / "nnef-jax").mkdir(parents=True)
    (home / "nnef-jax").chmod(0o777)


def _file(home):
    home.mkdir()
    (home / "nnef-jax").touch()


def _file_above(home):
    home.touch()


@pytest.mark.parametrize("make", [_writable_by_all, _file, _file_above])
def test_a_folder_of_no_use_is_not_used_without_a_word(home, run, make):
    make(home)
    arguments, wanted = run
    assert ok(*arguments) == wanted
    assert entries(home) == []
    if make is not _file_above:
        assert "cannot be used: " in fails("cache")
        assert "cannot be used: " in fails("cache", "--clear")
    assert "hint: give another folder to --cache-dir" in fails(
        "compile", arguments[1], "--shape", "x=2,4"
    )


def test_another_users_folder_is_not_used(home, run, monkeypatch):
    arguments, wanted = run
    (home / "nnef-jax").mkdir(parents=True, mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert ok(*arguments) == wanted
    assert entries(home) == []
    assert "it belongs to another user" in fails("cache")


def test_a_relative_folder_is_not_used(tmp_path, run, monkeypatch):
    arguments, wanted = run
    monkeypatch.setattr(cache_folder, "users_folder", lambda: "cache")
    monkeypatch.chdir(tmp_path)
    assert ok(*arguments) == wanted
    assert not (tmp_path / "cache").exists()
    assert "it is no absolute path" in fails("compile", arguments[1], "--shape", "x=2,4")


def test_what_cannot_be_kept_is_no_matter(home, run, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    arguments, wanted = run
    monkeypatch.setattr("nnef_jax.execution.checked_file.write_checked", full)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert ok(*arguments) == wanted


def test_no_cache_and_a_folder(run, tmp_path):
    arguments, _ = run
    code, _, err = call(*arguments, "--no-cache", "--cache-dir", tmp_path / "cache")
    assert code == 2
    assert "does not go with --cache-dir" in err
