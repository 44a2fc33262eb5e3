"""Reports on randomly drawn networks: the distribution of ratios, and the slowest operations."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks.engines import example, write_nnef
from benchmarks.inference import Result
from benchmarks.networks.drawn import names
from benchmarks.report import print_facts
from benchmarks.timing import QUIET, geometric_mean

__all__ = ["names", "report"]

_WORST = 10


def report(results: Sequence[Result], console: Console) -> dict[str, Any]:
    """Print and return the distribution of the ratios to each engine, and the worst networks.

    Results that were measured while other processes used the processor are left out.
    """
    quiet = [r for r in results if r.ratios and r.timed.elsewhere <= QUIET]
    rows = [
        {"batch": batch, **_distribution(engine, [r.ratios[engine] for r in found])}
        for batch in dict.fromkeys(r.batch for r in quiet)
        for engine in dict.fromkeys(e for r in quiet for e in r.ratios)
        if (found := [r for r in quiet if r.batch == batch and engine in r.ratios])
    ]
    worst = sorted(quiet, key=lambda r: r.ratios.get("fastest", 0.0), reverse=True)[:_WORST]
    slowest = [_slowest(r) for r in worst]
    for title, table in (("nnef_jax's time / the engine's", rows), ("the worst", slowest)):
        if table:
            print_facts(console, title, table)
    return {"ratios": rows, "worst": slowest}


def _distribution(engine: str, ratios: Sequence[float]) -> dict[str, Any]:
    ordered = sorted(ratios)
    return {
        "to": engine,
        "networks": len(ordered),
        "mean": geometric_mean(ordered),
        "median": median(ordered),
        "90th_percentile": ordered[min(len(ordered) - 1, round(0.9 * (len(ordered) - 1)))],
        "worst": ordered[-1],
    }


def _slowest(result: Result) -> dict[str, Any]:
    """Return the slowest operation of a network, according to nnef_jax's profile."""
    import nnef_jax

    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        model = nnef_jax.load(write_nnef(result.network, result.batch, Path(folder)))
        profile = nnef_jax.profile(model, **example(result.network, result.batch))
    name, seconds = max(profile.by_operation().items(), key=lambda item: item[1])
    found = profile.operations[name]
    return {
        "network": f"{result.network}, {result.batch}",
        "ratio": result.ratios.get("fastest", 1.0),
        "ms": result.medians["nnef_jax"] * 1e3,
        "slowest": f"{name} ({found['kind']})",
        "share": seconds / profile.recorded_seconds,
        "GFLOP/s": 2e-9 * found["multiply_adds"] / seconds,
    }
