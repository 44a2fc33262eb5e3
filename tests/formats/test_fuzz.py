"""The runner of mutants goes on where it was stopped, whatever stopped it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import fuzz
from tests.fuzz import Found, State, trial
from tests.fuzz_mutants import GROUPS, mutant

DIGESTS = """
import hashlib
from tests.fuzz_mutants import GROUPS, mutant
for group in ("nnef", "openvino"):
    print([hashlib.sha1(repr(mutant(group, 3, i)).encode()).hexdigest() for i in range(40)])
"""


def test_seed_and_number_alone_decide_on_a_mutant() -> None:
    texts = [
        subprocess.run(
            [sys.executable, "-c", DIGESTS],
            capture_output=True,
            text=True,
            check=True,
            cwd=fuzz.ROOT,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(fuzz.ROOT), "JAX_PLATFORMS": "cpu"},
        ).stdout
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1] and len(texts[0]) > 3000


def test_mutants_of_all_sorts_end_in_a_model_or_an_error_of_ours() -> None:
    for i in range(250):
        _, (_, content) = mutant("nnef", 0, i)
        trial(content)
    assert {mutant("nnef", 0, i)[0] for i in range(250)} == {x.__name__ for x in GROUPS["nnef"]}


def test_blocks_that_are_done_are_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[range] = []

    class Alone(fuzz.Worker):
        """Tries within this process, and is stopped at the third block of a run."""

        def _start(self) -> None:
            self.tasks, self._other = fuzz.multiprocessing.get_context("spawn").Pipe()

        def give(self, numbers: range) -> None:
            if len(tried) == 2:
                raise KeyboardInterrupt
            tried.append(numbers)
            self._other.send(
                Found(fuzz.Counter({"parts/model": len(numbers)}), [("f", numbers[0])])
            )
            self.numbers = numbers

        def end(self) -> None:
            pass

    monkeypatch.setattr(fuzz, "Worker", Alone)
    path, end = tmp_path / "state.json", float("inf")
    with pytest.raises(KeyboardInterrupt):
        fuzz._try_all(State.read(path, "nnef", 5), 700, 1, end, path)
    assert json.loads(path.read_text())["done"] == [0, 1]
    first, tried = tried, []
    state = State.read(path, "nnef", 5)
    fuzz._try_all(state, 700, 1, end, path)
    assert (first, tried) == ([range(250), range(250, 500)], [range(500, 700)])
    assert state == State.read(path, "nnef", 5) and state.outcomes == {"parts/model": 700}
    assert state.escapes == {"f": [0, 250, 500]} and "(5:0 5:250 5:500)" in state.summary()
    with pytest.raises(ValueError, match="of kind nnef and seed 5"):
        State.read(path, "nnef", 6)
    assert [*tmp_path.iterdir()] == [path]
