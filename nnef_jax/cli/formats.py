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
    is_operator = name is not None and name not in FORMATS
    format_names = [*FORMATS] if name is None or is_operator else [name]
    with status("reading the operators"):
        tables = {format: list(operators_of(format)) for format in format_names}
        if name is not None and is_operator:
            tables = _entries_of(name, tables)
    if as_json:
        dicts = {format: list(map(asdict, table)) for format, table in tables.items()}
        print_result(json.dumps(dicts))
    elif is_operator:
        blocks: list[Iterable[str]] = []
        for format, table in tables.items():
            blocks += [_block(format, entry) for entry in table]
        print_result(*_separated(blocks))
    else:
        print_result(*_separated(_table(format, table) for format, table in tables.items()))


def _entries_of(
    name: str, tables: Mapping[str, list[OperatorEntry]]
) -> dict[str, list[OperatorEntry]]:
    """Return the entries of an operator, by the name of each format that has it.

    Upper and lower case are equal, and the prefix of a registry may be left out of `name`. Raises
    InputError if no format has the operator.
    """

    def has_name(entry: OperatorEntry) -> bool:
        # The name "cast" or "core_cast" fits the operator "tract_core_cast". The "_" in front of
        # both texts ensures that the name begins at a part of the operator's name.
        return f"_{entry.name}".lower().endswith(f"_{name}".lower())

    matches: dict[str, list[OperatorEntry]] = {}
    for format, table in tables.items():
        entries = [entry for entry in table if has_name(entry)]
        if entries:
            matches[format] = entries
    if matches:
        return matches
    from nnef_jax.wording.similar import did_you_mean

    names: dict[str, None] = {}
    for table in tables.values():
        names.update(dict.fromkeys(entry.name for entry in table))
    hint = did_you_mean(name, [*tables, *names])
    raise InputError(f"no format and no operator is called {name!r}", hint=hint)


def _separated(blocks: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of all blocks, with an empty line between two blocks."""
    lines: list[str] = []
    for block in blocks:
        if lines:
            lines.append("")
        lines += block
    return lines


def _table(format: str, entries: list[OperatorEntry]) -> list[str]:
    """Return the lines of a table with a row for each operator of a format."""
    from nnef_jax.results import table_of, text_of

    columns = {"operator": [x.name for x in entries]}
    if any(x.domain for x in entries):
        columns["domain"] = [x.domain for x in entries]
    columns["versions"] = [versions(x) for x in entries]
    columns["becomes"] = [becomes(x) for x in entries]
    rows = zip(*columns.values(), strict=True)
    title = f"{format}: {len(entries)} operators"
    return text_of(table_of(title, [*columns], rows)).splitlines()


def _block(format: str, entry: OperatorEntry) -> Iterator[str]:
    """Yield the lines that describe one operator of a format."""
    domain = f" of {entry.domain}" if entry.domain else ""
    yield f"{entry.name}{domain} ({format})"
    facts = [("versions", versions(entry)), ("becomes", becomes(entry))]
    facts += [("attribute", attribute(x)) for x in entry.attributes]
    for head, text in facts:
        yield f"{head:<12}{text}"


def versions(entry: OperatorEntry) -> str:
    """Return a text for the versions of an operator: "all", "13-", "7-12" or "7"."""
    if entry.until is None:
        has_all_versions = entry.since == 1
        return "all" if has_all_versions else f"{entry.since}-"
    if entry.since < entry.until:
        return f"{entry.since}-{entry.until}"
    return str(entry.since)


def becomes(entry: OperatorEntry) -> str:
    """Return a text for the kinds of operations that an operator becomes.

    If it becomes no operation, the text tells why.
    """
    if entry.role == "refused":
        return f"refused: {entry.refusal}"
    if entry.role in _ROLES:
        return _ROLES[entry.role]
    if not entry.kinds:
        return "(no operation)"
    return ", ".join(entry.kinds)


def attribute(entry: AttributeEntry) -> str:
    """Return a text for an attribute, with its name, type and default."""
    values = " | ".join(entry.words) or entry.type
    text = f"{entry.name}: {values}"
    default: Any = entry.default
    if default is not None and not entry.words:
        text += f" = {json.dumps(default)}"
    if entry.is_required:
        text += ", required"
    return text
