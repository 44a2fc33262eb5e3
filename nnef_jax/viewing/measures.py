"""Extracts the numbers by which boxes are coloured: times of a profile, errors of a comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nnef_jax.errors import InputError
from nnef_jax.options import require

Fields = Mapping[str, Any]  # These are fields of a node.
# The error is taken as infinite if the signal-to-noise ratio is not above this number of dB.
_LEAST_DECIBELS = -600
_Result = Mapping[str, Any]  # This is the dict that a result's `to_dict()` returns.


def fields_by_name(profile: object, comparison: object) -> dict[str, dict[str, Any]]:
    """Return a dict from names of tensors to fields of the nodes that write the tensors.

    A profile gives the field "seconds". A comparison gives the fields "error" and "reason".
    `profile` and `comparison` are results, dicts from a result's `to_dict()`, or None. Raises
    InputError if a dict has another form.
    """
    fields_by_tensor: dict[str, dict[str, Any]] = {}
    results = {"profile": profile, "comparison": comparison}
    readers = {"profile": _times, "comparison": _errors}
    for name, result in results.items():
        to_dict = getattr(result, "to_dict", None)
        content: Any = to_dict() if callable(to_dict) else result
        require(name, content, Mapping | None, "a result, or the dict that its to_dict() returns")
        if content is None:
            continue
        try:
            for tensor, fields in readers[name](content):
                fields_by_tensor.setdefault(tensor, {}).update(fields)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            message = f"the {name} has not the form that its to_dict() returns"
            raise InputError(message, hint=f"give {_SHAPES[name]}") from None
    return fields_by_tensor


_SHAPES = {
    "profile": '{"operations": [{"name": ..., "seconds": ...}, ...]}',
    "comparison": '{"tensors": {name: {"b": ..., "snr": ..., "reason": ...}, ...}}',
}


def _times(profile: _Result) -> list[tuple[str, Fields]]:
    """Return pairs of an operation's name and a dict {"seconds": time}, from a profile.

    Times that are not finite are left out.
    """
    times: list[tuple[str, Fields]] = []
    for row in profile["operations"]:
        name = str(row["name"])
        seconds = float(row["seconds"])
        if 0 <= seconds < math.inf:
            times.append((name, {"seconds": seconds}))
    return times


def _errors(comparison: _Result) -> list[tuple[str, Fields]]:
    """Return pairs of a tensor's name and a dict {"error": error, "reason": reason}.

    The pairs come from a comparison of two networks. A tensor occurs twice, because it has a name
    in each network. The error is the root mean square of the difference, divided by the root mean
    square of the tensor. The reason tells why the tensor differs.
    """
    rows: list[tuple[str, Fields]] = []
    for name, row in comparison["tensors"].items():
        error = _noise_ratio(float(row["snr"]))
        reason = str(row["reason"])
        if error == math.inf:
            # The difference cannot be measured, for instance because an item is NaN. If the tensor
            # differs, its relative error is set to 1: the error is as large as the tensor.
            error = 1.0 if reason else 0.0
        fields = {"error": error, "reason": reason}
        rows += [(str(row["b"]), fields), (str(name), fields)]
    return rows


def _noise_ratio(decibels: float) -> float:
    """Return the relative error for a signal-to-noise ratio in dB.

    The error is infinite if the ratio is NaN, or not above `_LEAST_DECIBELS`.
    """
    if decibels > _LEAST_DECIBELS:
        return 10 ** (-decibels / 20)
    return math.inf
