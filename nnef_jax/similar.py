"""Names in messages: what may have been meant by one that nothing has."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from itertools import chain, islice

from nnef_jax.limits import COMPARISONS_PER_STEP, Meter

Names = Collection[str]
_LISTED = 20


def listed(names: Names) -> str:
    """Return names for a message, cut where they are many."""
    more = len(names) - _LISTED
    return ", ".join(islice(names, _LISTED)) + (f" and {more} more" if more > 0 else "")


def did_you_mean(
    name: str, *known: Names, meter: Meter | None = None, most: int = 3, cutoff: float = 0.6
) -> str:
    """Return a hint such as "did you mean 'relu' or 'elu'?", or '' where no name is similar.

    Names that the meter cannot afford to compare, letter by letter, are left out.
    """
    meter = meter or Meter()
    if not meter.affords(sum(map(len, known))):
        return ""
    compared: list[str] = []
    for other in chain(*known):
        if not meter.affords(len(name) * len(other) // COMPARISONS_PER_STEP):
            break
        compared.append(other)
    found = difflib.get_close_matches(name, compared, n=most, cutoff=cutoff)
    return f"did you mean {' or '.join(map(repr, found))}?" if found else ""
