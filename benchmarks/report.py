"""Prints the tables of the benchmarks, and draws the plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.inference import SUBJECT, Result
from benchmarks.timing import QUIET, geometric_mean


def print_machine(console: Console, machine: Mapping[str, Any]) -> None:
    """Print a line about the machine, and a line with the versions."""
    versions = ", ".join(f"{name} {v}" for name, v in machine["versions"].items())
    console.print(f"{machine['processor']}, {machine['cores']} cores, load {machine['load']}")
    console.print(f"{versions}, Python {machine['python']}\n")


def print_results(console: Console, results: Sequence[Result]) -> None:
    """Print the median milliseconds and ratios of each network, and the mean and worst ratios."""
    engines = list(dict.fromkeys(e for r in results for e in (*r.medians, *r.failures)))
    columns = [e for e in engines if e != SUBJECT]
    table = Table(title="median ms (nnef_jax's time / the engine's)")
    table.add_column("network, batch")
    for name in (SUBJECT, *columns, "fastest"):
        table.add_column(name, justify="right")
    for result in results:
        times, ratios = result.medians, result.ratios
        cells = [f"{times[SUBJECT] * 1e3:.3g}" if SUBJECT in times else "-"]
        cells += [_cell(times.get(name), ratios.get(name)) for name in columns]
        table.add_row(
            f"{result.network}, {result.batch}", *cells, _cell(None, ratios.get("fastest"))
        )
    summary = summarise(results)
    for row, key in (("geometric mean", "mean"), ("worst", "worst")):
        cells = [_cell(None, summary.get(n, {}).get(key)) for n in (*columns, "fastest")]
        table.add_row(row, "", *cells, style="bold")
    console.print(table)
    for result in results:
        busy = result.timed.elsewhere
        if busy > QUIET:
            message = f"other processes used up to {busy:.1f} cores: left out of mean and worst"
            console.print(f"{result.network}, {result.batch}: {message}", style="red")
        for engine, reason in result.failures.items():
            console.print(f"{result.network}, {result.batch}: {engine} failed: {reason}")


def line(result: Result) -> str:
    """Return a line of text with the ratios of one result."""
    return ", ".join(f"{name} {ratio:.2f}" for name, ratio in result.ratios.items()) or "-"


def summarise(results: Sequence[Result]) -> dict[str, dict[str, float]]:
    """Return the geometric mean and the worst of the ratios to each engine.

    Results that were measured while other processes used the processor are left out.

    The network mlp is left out too, because its time is the overhead of a call and not arithmetic.
    """
    by_engine: dict[str, list[float]] = {}
    for result in (r for r in results if r.timed.elsewhere <= QUIET and r.network != "mlp"):
        for name, ratio in result.ratios.items():
            by_engine.setdefault(name, []).append(ratio)
    return {n: {"mean": geometric_mean(v), "worst": max(v)} for n, v in by_engine.items()}


def print_facts(console: Console, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table with a row for each dictionary. All of them have the same keys."""
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()))
    console.print(table)


def plot(results: Sequence[Result], path: Path) -> None:
    """Draw bars of the ratios to each engine, with a line at 1, where both are equally fast."""
    from matplotlib.figure import Figure

    rows = [r for r in results if r.ratios]
    engines = [n for n in dict.fromkeys(n for r in rows for n in r.ratios) if n != "fastest"]
    height = 0.8 / max(len(engines), 1)
    figure = Figure(figsize=(8, 1.5 + 0.6 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for index, engine in enumerate(engines):
        shown = [(row, r.ratios[engine]) for row, r in enumerate(rows) if engine in r.ratios]
        positions = [row + (index - (len(engines) - 1) / 2) * height for row, _ in shown]
        axes.barh(positions, [ratio for _, ratio in shown], height, label=engine)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_yticks(range(len(rows)), [f"{r.network}, batch {r.batch}" for r in rows])
    axes.invert_yaxis()
    axes.set_xlabel("nnef_jax's time / the engine's: below 1.0 nnef_jax is faster")
    axes.legend()
    figure.savefig(path, dpi=120)


def _cell(time: float | None, ratio: float | None) -> str:
    parts = [f"{time * 1e3:.3g}"] if time is not None else []
    parts += [f"({ratio:.2f})" if parts else f"{ratio:.2f}"] if ratio is not None else []
    return " ".join(parts) or "-"
