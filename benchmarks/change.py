"""Compares the change of a figure between two commits with its spread for one commit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.timing import QUIET, geometric_mean

THIS, THAT, TWIN = ROLES = ("this", "that", "twin")  # this checkout, that commit, its second copy

_UNITS = {"s": ("ms", 1e3), "B": ("MB", 1e-6)}
_SHARE = 0.9  # the share of the rounds of a commit against its twin that the spread covers


@dataclass(frozen=True)
class Change:
    """The values of one figure in all rounds, in seconds or bytes. Smaller values are better."""

    title: str
    unit: str  # "s" or "B"
    rounds: Sequence[Mapping[str, float]]  # the value of each role in a round
    elsewhere: float = 0.0  # cores that other processes used in the worst turn

    def median(self, role: str) -> float:
        """Return the median of a role's values in all rounds."""
        return median(values[role] for values in self.rounds)

    @property
    def ratio(self) -> float:
        """The median over all rounds of this checkout's value divided by that commit's."""
        return math.exp(median(self._logarithms(THIS)))

    @property
    def ratio_to_itself(self) -> float:
        """The median over all rounds of the twin's value divided by that commit's."""
        return math.exp(median(self._logarithms(TWIN)))

    @property
    def spread(self) -> float:
        """The ratio between the commit and its twin that nine tenths of the rounds do not exceed.

        Because it does not matter which of the two is divided by the other, a ratio and its inverse
        count as the same distance.
        """
        return math.exp(np.quantile(np.abs(self._logarithms(TWIN)), _SHARE))

    @property
    def verdict(self) -> str:
        """ "worse" or "better" if the change is larger than the spread, otherwise ""."""
        if abs(math.log(self.ratio)) <= math.log(self.spread):
            return ""
        return "worse" if self.ratio > 1 else "better"

    def as_dict(self) -> dict[str, Any]:
        """Return the change as values for JSON."""
        found = {"title": self.title, "unit": self.unit, "ratio": self.ratio, "spread": self.spread}
        found |= {"verdict": self.verdict, "cores_used_elsewhere": self.elsewhere}
        return {**found, "rounds": self.rounds}

    def _logarithms(self, role: str) -> list[float]:
        return [math.log(values[role] / values[THAT]) for values in self.rounds]


def summarise(changes: Sequence[Change]) -> dict[str, Any]:
    """Return geometric means of the ratios, and how many changes are larger than the spread."""
    verdicts = [change.verdict for change in changes]
    return {
        "figures": len(changes),
        "mean": geometric_mean([change.ratio for change in changes]),
        "mean_to_itself": geometric_mean([change.ratio_to_itself for change in changes]),
        "worse": verdicts.count("worse"),
        "better": verdicts.count("better"),
    }


def print_changes(console: Console, changes: Sequence[Change]) -> None:
    """Print a table of all changes, and a summary."""
    table = Table(title="medians")
    table.add_column("figure")
    for name in (THAT, THIS, "change", "that against itself"):
        table.add_column(name, justify="right")
    table.add_column("beyond it")
    for change in changes:
        values = [_amount(change, role) for role in (THAT, THIS)]
        row = [change.title, *values, percent(change.ratio), spread(change), change.verdict]
        table.add_row(*row, style="red" if change.verdict == "worse" else None)
    console.print(table)
    found = summarise(changes)
    console.print(
        f"geometric mean {percent(found['mean'])}, of the commit against itself "
        f"{percent(found['mean_to_itself'])}; beyond the spread {found['worse']} of "
        f"{found['figures']} are worse, {found['better']} better"
    )
    if busy := [change.title for change in changes if change.elsewhere > QUIET]:
        console.print(f"other processes were running during {len(busy)}: spreads are theirs, too")


def line(change: Change) -> str:
    """Return a line of text about a change."""
    found = f"{change.title}: {percent(change.ratio)} {change.verdict}".rstrip()
    return f"{found} (against itself {spread(change)})"


def spread(change: Change) -> str:
    """Return the spread as a range of changes in percent."""
    return f"{percent(1 / change.spread)[:-2]} to {percent(change.spread)}"


def percent(ratio: float) -> str:
    """Return a ratio as a change in percent, such as "+1.5 %" for 1.015."""
    return f"{(ratio - 1) * 100:+.1f} %"


def _amount(change: Change, role: str) -> str:
    unit, factor = _UNITS[change.unit]
    value = change.median(role) * factor
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
