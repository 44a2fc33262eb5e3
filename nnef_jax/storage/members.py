"""Which members of an archive are the container's: those at its top, or in one folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from nnef_jax.errors import ArchiveError
from nnef_jax.storage.labels import is_graph

_Member = TypeVar("_Member")


def at_top(members: dict[str, _Member], name: str, graphs: Sequence[str]) -> dict[str, _Member]:
    """Return the members by their names in the container, which has one of `graphs` at its top."""
    if any("/" not in member and is_graph(member, graphs) for member in members):
        return members
    paths = [path.split("/") for path in members]
    found = {
        path[0]: "/".join(path) for path in paths if len(path) == 2 and is_graph(path[1], graphs)
    }
    if len(found) > 1:
        raise ArchiveError(f"{name} holds several networks: {', '.join([*found.values()][:5])}")
    prefix = "".join(f"{folder}/" for folder in found)
    return {p.removeprefix(prefix): m for p, m in members.items() if p.startswith(prefix)}
