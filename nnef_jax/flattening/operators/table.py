"""The table of a format's operators: their versions, attributes, and kinds of operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from nnef_jax.flattening.operators.attributes import Attribute
from nnef_jax.flattening.operators.inspection import TYPES, inspected
from nnef_jax.flattening.operators.registry import NEWEST, Operator, OperatorRow, Operators, Refusal

Role = Literal["operation", "structure", "definition", "refused"]


@dataclass(frozen=True, slots=True)
class AttributeEntry:
    """An attribute of an operator.

    Args:
        name: the attribute's name in the format.
        type: the attribute's type, such as "integer" or "integers".
        default: the default value. It is None if there is no default, or if the default is
            computed.
        words: the allowed words, if the type is "word".
        is_required: whether every file must have the attribute.
    """

    name: str
    type: str
    default: Any = None
    words: tuple[str, ...] = ()
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class OperatorEntry:
    """An operator of a format in a range of versions.

    Args:
        name: the operator's name in the format.
        domain: the domain of the name, "" in formats without domains.
        since: the first version.
        until: the last version, or None if the operator is in all later versions.
        attributes: the attributes, sorted by name.
        role: "operation" for most operators; "structure" for a member of the graph, such as an
            input; "definition" for an operator that the document defines by other operators;
            "refused" for an operator that is not supported.
        kinds: the kinds of the operations that the operator may become.
        refusal: the reason why the operator is refused.
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
    """Yield a row of the table for each operator of a registry.

    `site` is the class of the sites.
    """
    for _, group in groupby(operators, lambda x: (x.domain, operators.key(x.name))):
        versions = list(group)
        # A meaning ends before the version in which the next meaning of the same operator begins.
        last_versions = [x.since - 1 for x in versions[1:]]
        last_versions.append(NEWEST)
        for operator, last_version in zip(versions, last_versions, strict=True):
            yield _entry(operator, min(operator.until, last_version), site)


def _entry(operator: Operator, last: int, site: type) -> OperatorEntry:
    meaning = operator.meaning
    until = None if last == NEWEST else last
    versions = operator.name, operator.domain, operator.since, until
    if isinstance(meaning, Refusal):
        return OperatorEntry(*versions, role="refused", refusal=meaning.reason)
    inspection = inspected(operator, site)
    attributes = {x.name: _attribute(x, False) for x in sorted(inspection.attributes, key=repr)}
    attributes |= {x.name: _attribute(x, True) for x in _registered(operator)}
    by_name = tuple(attributes[name] for name in sorted(attributes))
    return OperatorEntry(*versions, by_name, "operation", tuple(sorted(inspection.kinds)))


def _registered(operator: Operator) -> Iterator[Attribute]:
    """Yield the attributes that a registration declares, which are always read."""
    readers = [*operator.attributes.values()]
    meaning = operator.meaning
    if isinstance(meaning, OperatorRow):
        readers += [*meaning.inputs, *meaning.attributes.values()]
    yield from (x for x in readers if isinstance(x, Attribute))


def _attribute(x: Attribute, is_registered: bool) -> AttributeEntry:
    type = TYPES.get(x.type, x.type)
    if type == "word":
        is_required = is_registered and x.type == "choice"
        words = tuple(dict.fromkeys(x.arguments))
        return AttributeEntry(x.name, type, None, words, is_required)
    default = x.arguments[-1] if x.arguments else None
    is_required = is_registered and default is None
    if isinstance(default, tuple):
        default = list(default)
    elif not isinstance(default, bool | int | float | str | list):
        default = None
    return AttributeEntry(x.name, type, default, is_required=is_required)
