"""A table of the operators that a format has: versions, attributes, and what each becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from nnef_jax.flattening.attributes import Attribute
from nnef_jax.flattening.code_reader import CodeReader
from nnef_jax.flattening.operators import NEWEST, Operator, Operators, Refusal, Row

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
        is_always_read: whether it is read wherever the operator stands.
    """

    name: str
    type: str
    default: Any = None
    words: tuple[str, ...] = ()
    is_required: bool = False
    is_always_read: bool = True


@dataclass(frozen=True, slots=True)
class OperatorEntry:
    """An operator of a format between two versions, both included.

    Args:
        until: None if it has no last version.
        role: "operation", a part of the graph's "structure" as an input is, "definition" if it is
            run by operations that define it, or "refused".
        kinds: of the operations that it may become. None is for a text, an input or a constant.
        has_all_kinds: whether it becomes operations of no other kind.
        refusal: why it is refused.
    """

    name: str
    domain: str = ""
    since: int = 1
    until: int | None = None
    attributes: tuple[AttributeEntry, ...] = ()
    role: Role = "operation"
    kinds: tuple[str, ...] = ()
    has_all_kinds: bool = True
    refusal: str = ""


def entries_of(
    operators: Operators, site: type, key: Callable[[str], str] = str
) -> Iterator[OperatorEntry]:
    """Yield the entries of a registry, given the class of its sites and what names are to these."""
    reader = CodeReader(site, key)
    for _, group in groupby(operators, lambda x: (x.domain, key(x.name))):
        versions = list(group)
        following = [x.since - 1 for x in versions[1:]]
        for operator, last in zip(versions, [*following, NEWEST], strict=True):
            yield _entry(operator, min(operator.until, last), reader)


def _entry(operator: Operator, last: int, reader: CodeReader) -> OperatorEntry:
    facts, meaning = reader.facts(operator), operator.meaning
    until = None if last == NEWEST else last
    always = _always(operator)
    attributes = tuple(_attributes(always, facts.reads - always))
    versions = operator.name, operator.domain, operator.since, until, attributes
    if isinstance(meaning, Refusal):
        return OperatorEntry(*versions, "refused", refusal=meaning.reason)
    kinds = tuple(sorted(facts.kinds))
    return OperatorEntry(*versions, "operation", kinds, has_all_kinds=not facts.is_open)


def _always(operator: Operator) -> frozenset[Attribute]:
    """Return the attributes that a registration names itself."""
    meaning = operator.meaning
    parts: list[Any] = [*operator.attributes.values()]
    if isinstance(meaning, Row):
        parts += [*meaning.inputs, *meaning.attributes.values()]
    return frozenset(x for x in parts if isinstance(x, Attribute))


def _attributes(
    always: Iterable[Attribute], others: Iterable[Attribute]
) -> Iterator[AttributeEntry]:
    """Yield attributes by name; one that is read in several ways has all types."""
    by_name: dict[str, list[Attribute]] = {}
    for x in (*always, *others):
        by_name.setdefault(x.name, []).append(x)
    named = {x.name for x in always}
    for name, reads in sorted(by_name.items()):
        types = dict.fromkeys(_TYPES.get(x.type, x.type) for x in reads)
        words = [
            w
            for x in reads
            if x.type in ("word", "choice")
            for w in x.arguments
            if isinstance(w, str)
        ]
        defaults = [x.arguments[0] if x.arguments else None for x in reads]
        is_one = all(x == defaults[0] for x in defaults) and defaults[0] is not ...
        default = defaults[0] if is_one else None
        yield AttributeEntry(
            name,
            " or ".join(sorted(types)),
            list(default) if isinstance(default, tuple) else default,
            tuple(dict.fromkeys(words)),
            is_required=name in named and all(x is None for x in defaults),
            is_always_read=name in named,
        )
