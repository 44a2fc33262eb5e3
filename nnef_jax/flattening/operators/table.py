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
    """Yield a row for each operator of a registry.

    `site` is the class of the format's sites.
    """
    for _, group in groupby(operators, lambda x: (x.domain, operators.key(x.name))):
        meanings = list(group)
        # The last version of a row precedes the first version of the operator's next row.
        last_versions = [next_meaning.since - 1 for next_meaning in meanings[1:]]
        last_versions.append(NEWEST)
        for operator, last_version in zip(meanings, last_versions, strict=True):
            yield _entry(operator, min(operator.until, last_version), site)


def _entry(operator: Operator, last_version: int, site: type) -> OperatorEntry:
    """Return the row of the table for an operator. `site` is the class of the format's sites."""
    meaning = operator.meaning
    until = None if last_version == NEWEST else last_version
    name_and_versions = operator.name, operator.domain, operator.since, until
    if isinstance(meaning, Refusal):
        return OperatorEntry(*name_and_versions, role="refused", refusal=meaning.reason)
    inspection = inspected(operator, site)
    entry_by_name: dict[str, AttributeEntry] = {}
    for attribute in sorted(inspection.attributes, key=repr):
        entry_by_name[attribute.name] = _attribute_entry(attribute, is_registered=False)
    # The entry of a registered attribute replaces an entry that the inspection made.
    for attribute in _registered(operator):
        entry_by_name[attribute.name] = _attribute_entry(attribute, is_registered=True)
    attributes = tuple(entry_by_name[name] for name in sorted(entry_by_name))
    kinds = tuple(sorted(inspection.kinds))
    return OperatorEntry(*name_and_versions, attributes=attributes, role="operation", kinds=kinds)


def _registered(operator: Operator) -> Iterator[Attribute]:
    """Yield the attributes that an operator's registration declares. They are always read."""
    readers = [*operator.attributes.values()]
    meaning = operator.meaning
    if isinstance(meaning, OperatorRow):
        readers += [*meaning.inputs, *meaning.attributes.values()]
    yield from (x for x in readers if isinstance(x, Attribute))


def _attribute_entry(attribute: Attribute, *, is_registered: bool) -> AttributeEntry:
    """Return the entry of an attribute.

    `is_registered` tells whether the operator's registration declares the attribute.
    """
    name = attribute.name
    type = TYPES.get(attribute.type, attribute.type)
    if type == "word":  # the arguments are the allowed words
        is_required = is_registered and attribute.type == "choice"
        words = tuple(dict.fromkeys(attribute.arguments))
        return AttributeEntry(name, type, words=words, is_required=is_required)
    # The arguments end with the default. Without arguments, the default is not known.
    default = attribute.arguments[-1] if attribute.arguments else None
    is_required = is_registered and default is None
    if isinstance(default, tuple):
        default = list(default)
    can_be_shown = isinstance(default, bool | int | float | str | list)
    if not can_be_shown:
        default = None
    return AttributeEntry(name, type, default, is_required=is_required)
