"""Measures a call of each network by each engine, for the main table."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import timing
from benchmarks.engines import ENGINES, Engine, example

SUBJECT = "nnef_jax"


@dataclass
class Result:
    """The measurement of one network at one batch size by all engines."""

    network: str
    batch: int
    timed: timing.Measurement  # by engine
    differences: dict[str, float] = field(default_factory=dict)  # relative, of each engine's output
    failures: dict[str, str] = field(default_factory=dict)  # engines that could not run it

    @property
    def medians(self) -> dict[str, float]:
        """The median seconds of a call, by engine."""
        return self.timed.medians

    @property
    def ratios(self) -> dict[str, float]:
        """nnef_jax's time divided by that of each engine.

        The key "fastest" is the ratio to the fastest of the engines with `is_usual`.
        """
        times = self.medians
        if SUBJECT not in times:
            return {}
        usual = {name: time for name, time in times.items() if ENGINES[name].is_usual}
        apart = {n: times[SUBJECT] / time for n, time in times.items() if n not in usual}
        return apart | timing.ratios(usual, SUBJECT)

    def as_dict(self) -> dict[str, Any]:
        """Return the result as values for JSON."""
        return {**asdict(self), "medians": self.medians, "ratios": self.ratios}


def run(
    engines: Sequence[Engine], networks: Sequence[str], batches: Sequence[int], rounds: int
) -> Iterator[Result]:
    """Yield the result for each network at each batch size.

    Raises DisagreementError if the engines' outputs differ, because their times cannot be compared
    then.
    """
    for network in networks:
        for batch in batches:
            with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
                yield _measure(engines, network, batch, rounds, Path(folder))


def _measure(
    engines: Sequence[Engine], network: str, batch: int, rounds: int, folder: Path
) -> Result:
    inputs = example(network, batch)
    calls: dict[str, Any] = {}
    outputs: dict[str, Any] = {}
    failures: dict[str, str] = {}
    for engine in engines:
        try:
            call = engine.prepare(network, batch, inputs, folder)
            outputs[engine.name] = engine.array(call()).copy()
        except Exception as error:  # the engine may lack an operation; the others are compared
            failures[engine.name] = f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            calls[engine.name] = call
    try:
        differences = timing.check_agreement(outputs, {e.name: e.tolerance for e in engines})
    except timing.DisagreementError as error:
        raise timing.DisagreementError(f"{network}, batch {batch}: outputs {error}") from None
    return Result(network, batch, timing.measure(calls, rounds), differences, failures)
