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
    hidden_count = len(names) - _LISTED
    return f"{text} and {hidden_count} more" if hidden_count > 0 else text


def did_you_mean(
    name: str, *names: Names, meter: Meter | None = None, most: int = 3, cutoff: float = 0.6
) -> str:
    """Return a hint such as "did you mean 'relu' or 'elu'?", or '' if no name is similar.

    Args:
        name: the unknown name.
        names: collections of names that exist.
        meter: counts the steps of the comparisons. If the limit of steps does not allow all
            comparisons, the last names are left out.
        most: the largest number of names in the hint.
        cutoff: the least similarity of a name in the hint, from 0 to 1.
    """
    if meter is None:
        meter = Meter()
    if not meter.try_spend(sum(map(len, names))):
        return ""
    compared: list[str] = []
    for candidate in chain(*names):
        comparisons = len(name) * len(candidate)
        if not meter.try_spend(comparisons // COMPARISONS_PER_STEP):
            break
        compared.append(candidate)
    matches = difflib.get_close_matches(name, compared, n=most, cutoff=cutoff)
    if not matches:
        return ""
    return f"did you mean {' or '.join(map(repr, matches))}?"
