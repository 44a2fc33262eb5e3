"""Extracts measures that colour boxes: times of a profile, errors of a comparison, by tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from nnef_jax.errors import InputError
from nnef_jax.options import require

Fields = Mapping[str, Any]  # the fields of a node
_LEAST_DECIBELS = -600  # Below this ratio, an error is regarded as infinite.
_Result = Mapping[str, Any]  # the dict that a result's `to_dict()` returns


def fields_by_name(profile: object, comparison: object) -> dict[str, dict[str, Any]]:
    """Return the fields seconds, error and reason of nodes, by the name of a tensor they write.

    `profile` and `comparison` are results, the dicts that their `to_dict()` returns, or None.
    Raises InputError if a dict has another form.
    """
    measures: dict[str, dict[str, Any]] = {}
    for name, result, fields_in in (
        ("profile", profile, _times),
        ("comparison", comparison, _errors),
    ):
        to_dict = getattr(result, "to_dict", None)
        content: Any = to_dict() if callable(to_dict) else result
        require(name, content, Mapping | None, "a result, or the dict that its to_dict() returns")
        if content is None:
            continue
        try:
            for tensor, fields in fields_in(content):
                measures.setdefault(tensor, {}).update(fields)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            message = f"the {name} has not the form that its to_dict() returns"
            raise InputError(message, hint=f"give {_SHAPES[name]}") from None
    return measures


_SHAPES = {
    "profile": '{"operations": [{"name": ..., "seconds": ...}, ...]}',
    "comparison": '{"tensors": {name: {"b": ..., "snr": ..., "reason": ...}, ...}}',
}


def _times(profile: _Result) -> list[tuple[str, Fields]]:
    rows = [(str(row["name"]), float(row["seconds"])) for row in profile["operations"]]
    return [(name, {"seconds": x}) for name, x in rows if 0 <= x < math.inf]


def _errors(comparison: _Result) -> list[tuple[str, Fields]]:
    """Return the relative error of each tensor of a comparison, and the reason why it differs.

    A tensor occurs twice: by its names in the two networks. The relative error is the root mean
    square of the difference, divided by the root mean square of the tensor.
    """
    rows: list[tuple[str, Fields]] = []
    for name, row in comparison["tensors"].items():
        error = _noise_ratio(float(row["snr"]))
        reason = str(row["reason"])
        if error == math.inf:
            # The difference cannot be measured, for instance beside a NaN. A tensor that differs
            # therefore counts as completely wrong.
            error = 1.0 if reason else 0.0
        fields = {"error": error, "reason": reason}
        rows += [(str(row["b"]), fields), (str(name), fields)]
    return rows


def _noise_ratio(decibels: float) -> float:
    """Return the relative error for a signal-to-noise ratio in dB.

    The error is infinite if the ratio is below `_LEAST_DECIBELS` or NaN.
    """
    return 10 ** (-decibels / 20) if decibels > _LEAST_DECIBELS else math.inf
