"""Suggests similar names in messages about an unknown name, and lists names."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from itertools import chain, islice

from nnef_jax.limits import COMPARISONS_PER_STEP, Meter

Names = Collection[str]
_LISTED = 20


def listed(names: Names) -> str:
    """Return a text that lists at most 20 names, and says how many more there are."""
    text = ", ".join(islice(names, _LISTED))
    more = len(names) - _LISTED
    return f"{text} and {more} more" if more > 0 else text


def did_you_mean(
    name: str, *names: Names, meter: Meter | None = None, most: int = 3, cutoff: float = 0.6
) -> str:
    """Return a hint such as "did you mean 'relu' or 'elu'?", or '' if no name is similar.

    Comparing names costs steps of the meter. Names for which the steps do not suffice are left out.
    """
    meter = meter or Meter()
    if not meter.try_spend(sum(map(len, names))):
        return ""
    compared: list[str] = []
    for other in chain(*names):
        if not meter.try_spend(len(name) * len(other) // COMPARISONS_PER_STEP):
            break
        compared.append(other)
    matches = difflib.get_close_matches(name, compared, n=most, cutoff=cutoff)
    return f"did you mean {' or '.join(map(repr, matches))}?" if matches else ""
