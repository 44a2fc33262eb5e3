"""What boxes are coloured by: a profile's times and a comparison's errors, by names of tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nnef_jax.errors import InputError
from nnef_jax.options import require

Fields = Mapping[str, Any]  # which a node gets


def fields_by_name(profile: Any, comparison: Any) -> dict[str, dict[str, Any]]:
    """Return measures of nodes, by the name of a tensor that they write: seconds; error, reason.

    `profile` and `comparison` are results, their `to_dict()`, or None. Raises InputError for what
    is neither.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, given, fields_in in (
        ("profile", profile, _times),
        ("comparison", comparison, _errors),
    ):
        given = given.to_dict() if hasattr(given, "to_dict") else given
        require(name, given, Mapping | None, "a result, or the dict that its to_dict() returns")
        try:
            for tensor, fields in {} if given is None else fields_in(given):
                found.setdefault(tensor, {}).update(fields)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            raise InputError(
                f"the {name} is not as the command of that name writes it",
                hint=f"give {_SHAPES[name]}",
            ) from None
    return found


_SHAPES = {
    "profile": '{"operations": [{"name": ..., "seconds": ...}, ...]}',
    "comparison": '{"tensors": {name: {"b": ..., "snr": ..., "reason": ...}, ...}}',
}


def _times(profile: Mapping[str, Any]) -> list[tuple[str, Fields]]:
    rows = [(str(row["name"]), float(row["seconds"])) for row in profile["operations"]]
    return [(name, {"seconds": x}) for name, x in rows if 0 <= x < math.inf]


def _errors(comparison: Mapping[str, Any]) -> list[tuple[str, Fields]]:
    """Return errors relative to the tensor: root mean squares, by both networks' names."""
    found: list[tuple[str, Fields]] = []
    for name, row in comparison["tensors"].items():
        noise, reason = _noise(float(row["snr"])), str(row["reason"])
        # What cannot be measured but differs, a NaN, say, is all wrong.
        error = noise if noise < math.inf else float(bool(reason))
        fields = {"error": error, "reason": reason}
        found += [(str(row["b"]), fields), (str(name), fields)]
    return found


def _noise(decibels: float) -> float:
    return math.inf if not decibels > -600 else 10 ** (-decibels / 20)
