"""JSON members of an archive, of which a graph takes single values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from lowering.location import Source, Span
from nnef_jax.errors import DataError, LimitError
from nnef_jax.limits import Meter, raising
from nnef_jax.similar import did_you_mean

Json = bool | int | float | str | list[Any]

_STEP = re.compile(r"\.?([^.\[\]]+)|\[([0-9]+)\]")
_INDEX = re.compile("[0-9]{1,18}")
_BEYOND = 1 << 64


def read_json(source: Source, meter: Meter) -> Any:
    """Return a JSON document. Raises DataError, LimitError where it is nested too deeply."""
    deepest = meter.limits.nesting
    deep = LimitError(f"{source.name}: nested more than {deepest} deep", hint=raising("nesting"))
    try:
        document = json.loads(source.text)
    except json.JSONDecodeError as error:
        raise DataError(f"not JSON: {error.msg}", span=Span(source, error.pos)) from None
    except ValueError as error:  # more digits than Python converts
        raise DataError(f"{source.name}: {error}") from None
    except RecursionError:
        raise deep from None
    level = [document]
    for _ in range(deepest):
        level = [part for value in level for part in _parts(value)]
        if not level:
            return document
    raise deep


def value_at(document: Any, key: str, name: str, meter: Meter) -> Json:
    """Return the value at a path such as '$.a[0].b' or 'a.0.b'. Raises DataError without one."""
    value, path, at = document, key.removeprefix("$"), 0
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            raise DataError(
                f"'{key}' is not a key path", hint="write names and numbers with points between"
            )
        value = _step(value, step[1] or step[2], key, name, meter)
        at = step.end()
    pending = [value]
    while pending:
        meter.spend(1, name)
        item = pending.pop()
        if item is None or isinstance(item, dict):
            what = "null" if item is None else "an object"
            inside = "" if item is value else " inside the list"
            raise DataError(
                f"{name} has {what}{inside} at '{key}'",
                hint="a graph can take a number, a truth value, a string or a list of these",
            )
        if isinstance(item, int) and abs(item) >= _BEYOND:
            raise DataError(f"{name} has an integer of more than 64 bits at '{key}'")
        pending += _parts(item)
    return value


def _step(value: Any, step: str, key: str, name: str, meter: Meter) -> Any:
    match value:
        case dict() if step in value:
            return value[step]
        case list() if _INDEX.fullmatch(step) and int(step) < len(value):
            return value[int(step)]
        case dict():
            hint = did_you_mean(step, value, meter=meter)
        case list():
            hint = f"the list there has {len(value)} items"
        case _:
            hint = "what is there has no parts"
    raise DataError(f"{name} has nothing at '{key}': there is no '{step}'", hint=hint)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
