"""Damages a cache of compiled networks, and checks whether a result ever differs.

    python -m tests.flip_cache --count 2000

Each trial damages a file of a cache at random, or swaps two, and runs all networks with it, twice:
results are those of the whole cache to the bit, nothing is raised, and the second time nothing is
written any more. Trials run by the hundred in processes of their own, since machine code with a
wrong byte in it can end one.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.helpers import model_of

NET = """version 1.0;
graph net( x ) -> ( y )
{{
    x = external(shape = [1,{inputs}]);
    filter = variable(shape = [{outputs},{inputs}], label = 'filter');
    bias = variable(shape = [1,{outputs}], label = 'bias');
    powers = exp(filter);
    y = linear(x, powers, bias);
}}
"""
# Outputs, inputs, and what scales the filter. The first two share their code; what is prepared of
# the last one is large enough to be mapped.
NETWORKS = ((3, 4, 1.0), (3, 4, 0.5), (5, 7, 1.0), (512, 520, 1.0))
_BATCH = 100


def main() -> int:
    """Run trials and print the outcomes; return 1 if a trial failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=2000, help="number of trials")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--here", action="store_true", help="in this process, printing JSON")
    options = parser.parse_args()
    if options.here:
        print(json.dumps(outcomes(options.count, options.seed)))
        return 0
    total: Counter[str] = Counter()
    for start in range(0, options.count, _BATCH):
        count, seed = min(_BATCH, options.count - start), options.seed + start
        arguments = ["--here", "--count", str(count), "--seed", str(seed)]
        command = [sys.executable, "-m", "tests.flip_cache", *arguments]
        child = subprocess.run(command, capture_output=True, text=True)
        if child.returncode:
            total[f"process ended with {child.returncode} (seed {seed})"] += 1
        else:
            total.update(json.loads(child.stdout))
    for outcome, times in sorted(total.items()):
        print(f"{times:6} {outcome}")
    return int(any(not outcome.endswith(": right") for outcome in total))


def outcomes(count: int, seed: int) -> Counter[str]:
    """Count outcomes of trials by kind of damage. Trial `i` depends on `seed + i` alone."""
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        expected = results(cache)
        for network, result in zip(NETWORKS, expected, strict=True):
            x, filter = _data(*network)
            np.testing.assert_allclose(result, x @ np.exp(filter).T + 1, rtol=1e-5)
        whole = {path.name: path.read_bytes() for path in cache.iterdir()}
        for trial in range(seed, seed + count):
            kind, files = damaged(whole, random.Random(trial))
            for path in cache.iterdir():
                path.unlink()
            for name, content in files.items():
                (cache / name).write_bytes(content)
            found[f"{kind}: {_outcome(cache, expected)}"] += 1
    return found


def results(cache: Path) -> list[np.ndarray]:
    """Return the results of the networks with a cache."""
    found: list[np.ndarray] = []
    for network in NETWORKS:
        x, filter = _data(*network)
        text = NET.format(outputs=filter.shape[0], inputs=filter.shape[1])
        data = {"filter": filter, "bias": np.ones((1, len(filter)), np.float32)}
        found.append(np.asarray(model_of(text, data=data, cache_dir=cache)(x)))
    return found


def _data(outputs: int, inputs: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Return an input and a filter."""
    values = np.random.default_rng(outputs).random((outputs + 1, inputs), np.float32)
    return values[:1], scale * values[1:]


def _outcome(cache: Path, expected: list[np.ndarray]) -> str:
    written: list[dict[str, int]] = []
    for _ in range(2):
        try:
            found = results(cache)
        except Exception as error:
            return f"{type(error).__name__}"
        if not all(map(np.array_equal, found, expected)):
            return "wrong"
        written.append({path.name: path.stat().st_ino for path in cache.iterdir()})
    return "right" if written[0] == written[1] else "written again"


# Damage


def flip(content: bytes, chance: random.Random) -> bytes:
    """Invert one bit."""
    place = _place(content, chance)
    return _replaced(content, place, bytes([content[place] ^ 1 << chance.randrange(8)]))


def invert(content: bytes, chance: random.Random) -> bytes:
    """Invert all bits of a byte."""
    place = _place(content, chance)
    return _replaced(content, place, bytes([content[place] ^ 255]))


def cut(content: bytes, chance: random.Random) -> bytes:
    """Cut off the end, or everything."""
    return content[: _place(content, chance)]


def extend(content: bytes, chance: random.Random) -> bytes:
    """Append bytes, zeros or others."""
    size = chance.choice((1, 8, 64, 4096))
    return content + chance.choice((bytes(size), chance.randbytes(size)))


def lose(content: bytes, chance: random.Random) -> bytes:
    """Replace a block by zeros, as after a crash of the system."""
    place = _place(content, chance) // 512 * 512
    return _replaced(content, place, bytes(min(4096, len(content) - place)))


def move(content: bytes, chance: random.Random) -> bytes:
    """Move a block to another place."""
    here, there = (_place(content, chance) // 64 * 64 for _ in range(2))
    size = min(512, len(content) - max(here, there))
    return _replaced(content, here, content[there : there + size])


CHANGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(flip, flip, invert, invert),
    *(cut, extend, lose, move),
)


def damaged(whole: dict[str, bytes], chance: random.Random) -> tuple[str, dict[str, bytes]]:
    """Return the name of a kind of damage, and the files after it, at least one changed."""
    while True:
        name, other = chance.sample(sorted(whole), 2)
        match chance.randrange(10):
            case 0 | 1:
                kind, changed = "swap", {name: whole[other], other: whole[name]}
            case 2:
                kind, changed = "copy", {name: whole[other]}
            case _:
                change = chance.choice(CHANGES)
                kind, changed = change.__name__, {name: change(whole[name], chance)}
        if whole | changed != whole:
            return f"{Path(name).suffix} {kind}", whole | changed


def _place(content: bytes, chance: random.Random) -> int:
    """Choose the index of a byte, half of the time near the start, where headers are."""
    return chance.randrange(chance.choice((min(256, len(content)), len(content))))


def _replaced(content: bytes, place: int, part: bytes) -> bytes:
    return content[:place] + part + content[place + len(part) :]


if __name__ == "__main__":
    sys.exit(main())
