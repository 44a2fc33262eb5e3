"""Kills savers and checks what is left: old or new, neighbours, no leftovers after the next.

    python -m tests.kill_saves --count 500      # at random moments
    python -m tests.kill_saves --every-call     # before each call that changes something
    python -m tests.kill_saves --commands       # so save, convert, export, batch and view

The first two do not import jax: a saver is a fork of this process.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Container
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from nnef_jax.storage.archive import open_archive
from nnef_jax.storage.tensorfile import read_tensor, write_tensor
from nnef_jax.storage.writer import write_members

TARGETS = ("m", "m.tar", "m.tgz", "w.dat")  # a folder, archives, a tensor file
VERSIONS = ("old", "new")


class Place:
    """A folder with a target that savers overwrite, and neighbours that they have to spare."""

    def __init__(self, folder: Path, target: str) -> None:
        self.folder, self.target = folder, folder / target
        names = ("thesis.txt", "notes/mine", ".nnef_jax-thesis", f".{target}.tmp")
        self._neighbours = {folder / name: name for name in names}
        (folder / "notes").mkdir()
        for path, content in self._neighbours.items():
            path.write_text(content)
        self.save("old")

    def save(self, version: str) -> None:
        value = VERSIONS.index(version)
        if self.target.suffix == ".dat":
            write_tensor(self.target, np.full(5000, value))
            return
        labels = [f"{version}/own", "both"]
        graph = "\n".join(f"# {version}\nvariable(label = '{label}')" for label in labels)
        members: dict[str, Any] = {f"{label}.dat": np.full(3000, value) for label in labels}
        write_members(self.target, members | {"graph.nnef": graph.encode()}, overwrite=True)

    def look(self) -> str:
        """Return which version is there, complete; AssertionError for anything else."""
        assert all(path.read_text() == text for path, text in self._neighbours.items())
        if self.target.suffix == ".dat":
            (value,) = set(read_tensor(self.target).tolist())
            return VERSIONS[value]
        with open_archive(self.target) as archive:
            version = archive.read_text("graph.nnef").text.split()[1]
            names = ["both.dat", "graph.nnef", f"{version}/own.dat"]
            assert archive.names() == names, f"{version} has {archive.names()}"
            for name in set(names) - {"graph.nnef"}:
                array = read_tensor(archive.open_tensor(name))
                assert array.shape == (3000,) and set(array.tolist()) == {VERSIONS.index(version)}
        return version

    def leftovers(self) -> list[str]:
        """Return what is in the folder beside the target and its neighbours."""
        known = {path.relative_to(self.folder).parts[0] for path in self._neighbours}
        return sorted(set(os.listdir(self.folder)) - known - {self.target.name})


# Calls of the system by name. Before a changing one, what is on the disk, or who holds a lock, is
# not what it was before the last one.
LOOKING = {"stat", "lstat", "fstat", "listdir", "scandir", "readlink", "mmap", "read", "getcwd"}
CHANGING = {"open", "mkdir", "rename", "replace", "link", "unlink", "rmdir", "chmod", "chown"}
CHANGING |= {"write", "flush", "close", "__exit__", "fsync", "flock", "truncate"}


def at_call(
    number: int, act: Callable[[], None], names: Container[str]
) -> Callable[[FrameType, str, Any], None]:
    """Return a function for sys.setprofile that acts before one of the calls of the system."""
    left = number

    def profile(frame: FrameType, event: str, function: Any) -> None:
        nonlocal left
        if event == "c_call" and _is_of_system(function) and function.__name__ in names:
            left -= 1
            if left < 0:
                sys.setprofile(None)
                act()

    return profile


def _is_of_system(function: Any) -> bool:
    owner = type(getattr(function, "__self__", None)).__module__
    return function.__module__ in ("posix", "fcntl", "_io") or owner == "_io"


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _forked(work: Callable[[], None]) -> int:
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    return child


def _check(place: Place, found: Counter[str]) -> None:
    found[place.look()] += 1
    found["with leftovers"] += bool(place.leftovers())
    place.save("old")
    assert place.look() == "old"
    assert not place.leftovers(), f"leftovers after the next save: {place.leftovers()}"


def kill_at_random(place: Place, count: int, seed: int) -> Counter[str]:
    """Kill savers at random moments; count how often the old and the new one were found."""
    random_ = random.Random(seed)
    found: Counter[str] = Counter()

    def work() -> None:
        while True:
            place.save("new")
            place.save("old")

    start = time.perf_counter()
    place.save("old")
    longest = 3 * (time.perf_counter() - start)
    for _ in range(count):
        child = _forked(work)
        time.sleep(random_.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        _check(place, found)
    return found


def kill_at_every_call(place: Place) -> Counter[str]:
    """Kill a saver before each of its calls that change something, one after another."""
    found: Counter[str] = Counter()
    status, number = signal.SIGKILL, 0
    while status:

        def work(number: int = number) -> None:
            sys.setprofile(at_call(number, _kill, CHANGING))
            place.save("new")
            sys.setprofile(None)

        _, status = os.waitpid(_forked(work), 0)
        assert status in (0, signal.SIGKILL), f"a saver ended with {status}"
        number += 1
        _check(place, found)
    return found


def main() -> None:
    """Print what was found for each target; fail if it is neither old nor new."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--every-call", action="store_true")
    parser.add_argument("--commands", action="store_true")
    parser.add_argument("--short", action="store_true", help="end each command in three ways")
    parser.add_argument("--folder", help="where to save; in memory it is a hundred times as fast")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    for index, target in enumerate(TARGETS):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            place = Place(Path(folder), target)
            if arguments.every_call:
                print(f"{target} at every call:", dict(kill_at_every_call(place)), flush=True)
            share = len(range(index, arguments.count, len(TARGETS)))
            if share:
                found = kill_at_random(place, share, arguments.seed + index)
                print(f"{target} at random:", dict(found), flush=True)
    if arguments.commands:
        from tests.kill_commands import main as end_commands

        end_commands(arguments.folder, short=arguments.short)


if __name__ == "__main__":
    main()
