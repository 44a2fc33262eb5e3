"""The runner of mutants goes on where it was stopped, whatever stopped it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.fuzz import driver, kind, nnef
from tests.fuzz.bounds import ROOT
from tests.fuzz.driver import State, Trial

DOCUMENTS = nnef.documents.__wrapped__
DIGESTS = """
from tests.formats import test_fuzz
test_fuzz.nnef.documents = test_fuzz.few_documents
print(test_fuzz.digests())
"""


@cache
def few_documents() -> tuple[tuple[str, nnef.Members], ...]:
    """An eighth of the networks that mutants are made of: to write all takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        for table in ("NNEF", "TRACT_CASES"):
            patch.setattr(nnef, table, getattr(nnef, table)[::8])
        return DOCUMENTS()


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nnef, "documents", few_documents)


def digests() -> list[str]:
    return [hashlib.sha1(kind("nnef").mutant(3, i)[1]).hexdigest() for i in range(44)]


@pytest.mark.slow
def test_seed_and_number_alone_decide_on_a_mutant() -> None:
    other = subprocess.run(
        [sys.executable, "-c", DIGESTS],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
    ).stdout
    assert other.strip() == repr(digests())


def test_mutants_of_all_sorts_end_in_a_model_or_an_error_of_ours() -> None:
    ends = kind("nnef").ends(range(264))
    assert {end.split("/")[0] for end in ends} == set(kind("nnef").sorts())


class Alone(driver.Worker):
    """Tries nothing, and is stopped at the third mutant of a run; one of the others escapes."""

    def _start(self) -> None:
        self.tasks, self._other = driver.multiprocessing.get_context("spawn").Pipe()

    def give(self, number: int) -> None:
        if len(self.tried) == 2:
            raise KeyboardInterrupt
        self.tried.append(number)
        self.number = number
        self._other.send(Trial("parts/model", "f" if number % 2 else "", number, 3))

    def end(self) -> None:
        pass


def test_mutants_that_are_done_are_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "Worker", Alone)
    path, end, Alone.tried = tmp_path / "state.json", float("inf"), []
    with pytest.raises(KeyboardInterrupt):
        driver.try_all(State.read(path, "nnef", 5), 4, 1, end, path)
    assert json.loads(path.read_text())["done"] == 2 and Alone.tried == [0, 1]
    Alone.tried = []
    state = State.read(path, "nnef", 5)
    driver.try_all(state, 4, 1, end, path)
    assert Alone.tried == [2, 3] and state == State.read(path, "nnef", 5)
    assert (state.done, state.ends, state.escaped) == (4, {"parts/model": 4}, 2)
    assert (state.slowest, state.largest) == ((3, 3), (3, 3))
    assert state.escapes == {"f": [1, 3]} and "(5:1 5:3)" in state.summary()
    with pytest.raises(ValueError, match="of kind nnef and seed 5"):
        State.read(path, "nnef", 6)
    assert [*tmp_path.iterdir()] == [path]
