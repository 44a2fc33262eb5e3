"""The command `nnef-jax formats`, which shows the operators of each format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnef_jax import InputError
from nnef_jax.cli import command_options as option
from nnef_jax.cli.commands import app
from nnef_jax.cli.terminal import print_result, status
from nnef_jax.formats import FORMATS, operators_of

if TYPE_CHECKING:
    from nnef_jax.flattening.operators.table import AttributeEntry, OperatorEntry

    Tables = Mapping[str, list[OperatorEntry]]

_ROLES = {"structure": "(part of the graph's structure)", "definition": "(its definition)"}


@app.command()
def formats(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[FORMAT|OPERATOR]",
            help=f"A format ({', '.join(FORMATS)}), or an operator, to show its attributes too.",
            show_default=False,
        ),
    ] = None,
    as_json: option.Json = False,
) -> None:
    """Show the operators of each format.

    For each operator, the command shows its versions, and the kinds of operations that it becomes.
    A single use of an operator may become only some of these kinds.
    """
    format_names = [name] if name in FORMATS else [*FORMATS]
    operator = None if name in FORMATS else name
    with status("reading the operators"):
        tables = {format_name: list(operators_of(format_name)) for format_name in format_names}
        if operator is not None:
            tables = _entries_of(operator, tables)
    if as_json:
        dicts = {format_name: list(map(asdict, table)) for format_name, table in tables.items()}
        print_result(json.dumps(dicts))
        return
    blocks: list[Iterable[str]] = []
    for format_name, table in tables.items():
        if operator is not None:
            blocks += [_block(format_name, entry) for entry in table]
        else:
            blocks.append(_table(format_name, table))
    print_result(*_separated(blocks))


def _entries_of(
    name: str, tables: Mapping[str, list[OperatorEntry]]
) -> dict[str, list[OperatorEntry]]:
    """Return the entries of an operator in each format that has the operator.

    `name` is the operator's name in upper or lower case, with or without the prefix of a registry.
    `tables` has all entries of each format. Raises InputError if no format has the operator.
    """

    def has_name(entry: OperatorEntry) -> bool:
        # The names "cast" and "core_cast" fit the operator "tract_core_cast", and "ast" does not. A
        # "_" is added in front of both texts, so that only whole words of the operator fit.
        return f"_{entry.name}".lower().endswith(f"_{name}".lower())

    matches: dict[str, list[OperatorEntry]] = {}
    for format_name, table in tables.items():
        entries = [entry for entry in table if has_name(entry)]
        if entries:
            matches[format_name] = entries
    if matches:
        return matches
    from nnef_jax.wording.similar import did_you_mean

    operator_names: dict[str, None] = {}
    for table in tables.values():
        operator_names.update(dict.fromkeys(entry.name for entry in table))
    hint = did_you_mean(name, [*tables, *operator_names])
    raise InputError(f"no format and no operator is called {name!r}", hint=hint)


def _separated(blocks: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of all blocks, with an empty line between two blocks."""
    lines: list[str] = []
    for block in blocks:
        if lines:
            lines.append("")
        lines += block
    return lines


def _table(format_name: str, entries: list[OperatorEntry]) -> list[str]:
    """Return the lines of a table with a row for each operator of a format."""
    from nnef_jax.results import table_of, text_of

    columns = {"operator": [entry.name for entry in entries]}
    if any(entry.domain for entry in entries):
        columns["domain"] = [entry.domain for entry in entries]
    columns["versions"] = [versions(entry) for entry in entries]
    columns["becomes"] = [becomes(entry) for entry in entries]
    rows = zip(*columns.values(), strict=True)
    title = f"{format_name}: {len(entries)} operators"
    return text_of(table_of(title, [*columns], rows)).splitlines()


def _block(format_name: str, entry: OperatorEntry) -> Iterator[str]:
    """Yield the lines that describe one operator of a format."""
    domain = f" of {entry.domain}" if entry.domain else ""
    yield f"{entry.name}{domain} ({format_name})"
    facts = [("versions", versions(entry)), ("becomes", becomes(entry))]
    facts += [("attribute", attribute(x)) for x in entry.attributes]
    for head, text in facts:
        yield f"{head:<12}{text}"


def versions(entry: OperatorEntry) -> str:
    """Return a text for the versions of an operator: "all", "13-", "7-12" or "7".

    "13-" means version 13 and all later versions.
    """
    if entry.until is None:
        is_in_all_versions = entry.since == 1
        return "all" if is_in_all_versions else f"{entry.since}-"
    if entry.since < entry.until:
        return f"{entry.since}-{entry.until}"
    return str(entry.since)


def becomes(entry: OperatorEntry) -> str:
    """Return a text for the kinds of operations that an operator becomes, such as "conv, add".

    If the operator becomes no operation, the text tells why.
    """
    if entry.role == "refused":
        return f"refused: {entry.refusal}"
    if entry.role in _ROLES:
        return _ROLES[entry.role]
    if not entry.kinds:
        return "(no operation)"
    return ", ".join(entry.kinds)


def attribute(entry: AttributeEntry) -> str:
    """Return a text for an attribute, such as "axis: integer = 0" or "mode: max | mean"."""
    values = " | ".join(entry.words) or entry.type
    text = f"{entry.name}: {values}"
    default: Any = entry.default
    if default is not None and not entry.words:
        text += f" = {json.dumps(default)}"
    if entry.is_required:
        text += ", required"
    return text
