"""A table of the operators that a format has: versions, attributes, and what each becomes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from nnef_jax.flattening.operators.attributes import Attribute
from nnef_jax.flattening.operators.kinds import kinds_of
from nnef_jax.flattening.operators.registry import NEWEST, Operator, OperatorRow, Operators, Refusal

Role = Literal["operation", "structure", "definition", "refused"]
_TYPES = {
    "flag": "truth value", "number": "number", "int": "integer", "numbers": "numbers",
    "ints": "integers", "axis_of": "axis", "dtype": "element type", "text": "text", "word": "word",
    "choice": "word", "subgraph": "graph", "body": "graph",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class AttributeEntry:
    """An attribute of an operator.

    Args:
        type: as "integer" or "integers".
        default: None if there is none, or if it depends on something.
        words: those that are allowed, where the type is "word".
        is_required: whether every file must have it.
    """

    name: str
    type: str
    default: Any = None
    words: tuple[str, ...] = ()
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class OperatorEntry:
    """An operator of a format between two versions, both included.

    Args:
        until: None if it has no last version.
        role: "operation", a part of the graph's "structure" as an input is, "definition" if it is
            run by operations that define it, or "refused".
        kinds: of the operations that it may become.
        refusal: why it is refused.
    """

    name: str
    domain: str = ""
    since: int = 1
    until: int | None = None
    attributes: tuple[AttributeEntry, ...] = ()
    role: Role = "operation"
    kinds: tuple[str, ...] = ()
    refusal: str = ""


def entries_of(operators: Operators, site: type) -> Iterator[OperatorEntry]:
    """Yield the entries of a registry. `site` is the class of the format's sites."""
    for _, group in groupby(operators, lambda x: (x.domain, operators.key(x.name))):
        versions = list(group)
        following = [x.since - 1 for x in versions[1:]]
        for operator, last in zip(versions, [*following, NEWEST], strict=True):
            yield _entry(operator, min(operator.until, last), site)


def _entry(operator: Operator, last: int, site: type) -> OperatorEntry:
    meaning, until = operator.meaning, None if last == NEWEST else last
    attributes = tuple(sorted(_attributes(operator), key=lambda x: x.name))
    versions = operator.name, operator.domain, operator.since, until, attributes
    if isinstance(meaning, Refusal):
        return OperatorEntry(*versions, "refused", refusal=meaning.reason)
    return OperatorEntry(*versions, "operation", tuple(kinds_of(operator, site)))


def _attributes(operator: Operator) -> Iterator[AttributeEntry]:
    """Yield the attributes that a registration names. Meanings may read more of them."""
    readers = [*operator.attributes.values()]
    if isinstance(meaning := operator.meaning, OperatorRow):
        readers += [*meaning.inputs, *meaning.attributes.values()]
    for x in readers:
        if not isinstance(x, Attribute):
            continue
        type, arguments = _TYPES.get(x.type, x.type), x.arguments
        if type == "word":
            yield AttributeEntry(x.name, type, None, arguments, is_required=x.type == "choice")
            continue
        default = arguments[-1] if arguments else None
        default = list(default) if isinstance(default, tuple) else default
        is_plain = isinstance(default, bool | int | float | str | list)
        yield AttributeEntry(
            x.name, type, default if is_plain else None, is_required=default is None
        )
