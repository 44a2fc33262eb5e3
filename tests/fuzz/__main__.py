"""Tries mutants of one kind, and continues where it was stopped.

    python -m tests.fuzz onnx --count 200000 --seed 77 --state onnx.json
    python -m tests.fuzz nnef --only 77:1234         # one mutant, with its traceback
    python -m tests.fuzz nnef --only 77:1234 --keep  # and its smallest form as a regression

A mutant may end in a result or an error that is right for its kind, within 10 seconds of the
processor and 2 GB beside what the process holds before it. Anything else is an escape. Seed and
number alone decide on a mutant, whatever the number of processes. What `--keep` writes to
tests/regressions is loaded by `tests/formats/test_hostile.py`.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import math
import os
import random
import sys
import tarfile
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.fuzz import KINDS, Kind, kind
from tests.fuzz.bounds import ROOT, place
from tests.fuzz.driver import State, prepare, try_all
from tests.helpers import tar


def minimised(tried: Kind, source: bytes, wanted: str) -> bytes:
    """Return the smallest archive with the same failure that is found in a minute."""

    def fails(content: bytes) -> bool:
        try:
            tried.end(content)
        except BaseException as error:
            return place(error) == wanted
        return False

    try:
        with tarfile.open(fileobj=io.BytesIO(source)) as archive:
            files = {m.name: archive.extractfile(m) for m in archive.getmembers() if m.isfile()}
            members = {name: file.read() for name, file in files.items() if file}
    except (tarfile.TarError, OSError, EOFError):
        return source
    if not fails(tar(members)):
        return source
    end = time.monotonic() + 60
    for name in list(members):
        size = len(members[name])
        while size and time.monotonic() < end:
            at = 0
            while at < len(members[name]) and time.monotonic() < end:
                kept = members[name]
                members[name] = kept[:at] + kept[at + size :]
                if not fails(tar(members)):
                    members[name] = kept
                    at += size
            size //= 2
    return tar(members)


def replay(name: str, seed: int, number: int, *, keep: bool) -> int:
    """Try one mutant and print the outcome; write its smallest form if it is to be kept."""
    tried = kind(name)
    prepare(name)
    sort, mutant = tried.mutant(seed, number)
    print(f"{sort}:")
    _show(mutant)
    try:
        print(tried.end(mutant))
    except BaseException as error:
        traceback.print_exc()
        if keep and isinstance(mutant, bytes):
            small = minimised(tried, mutant, place(error))
            path = f"{type(error).__name__}-{hashlib.sha256(small).hexdigest()[:12]}.tar"
            (ROOT / "tests/regressions" / path).write_bytes(small)
            _show(small)
            print(f"kept as {path}")
        return 1
    return 0


def _show(mutant: Any) -> None:
    """Print a mutant, or the texts of an archive's documents."""
    for part in mutant if isinstance(mutant, tuple) else (mutant,):
        print(f"{len(part)} bytes" if isinstance(part, bytes) else part)
        with (
            suppress(tarfile.TarError, OSError, EOFError, TypeError),
            tarfile.open(fileobj=io.BytesIO(part)) as archive,
        ):
            for member in archive.getmembers():
                file = archive.extractfile(member)
                if file is not None and member.name.endswith((".nnef", ".xml", ".quant", ".json")):
                    print(f"{member.name}:\n{file.read().decode('utf-8', 'replace')}")


def main() -> int:
    """Try mutants that have not been tried; return 1 if any ever escaped."""
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--state", type=Path, help="a file that keeps what has been tried")
    parser.add_argument("--only", help="SEED:NUMBER of one mutant")
    parser.add_argument("--keep", action="store_true", help="write --only's to tests/regressions")
    options = parser.parse_args()
    if options.only:
        seed, _, number = options.only.partition(":")
        return replay(options.kind, int(seed), int(number), keep=options.keep)
    state = State.read(options.state, options.kind, options.seed)
    end = time.monotonic() + 60 * options.minutes
    try:
        try_all(state, options.count, options.processes, end, options.state)
    finally:
        print(state.summary(), flush=True)
    return int(bool(state.escaped))


if __name__ == "__main__":
    sys.exit(main())
