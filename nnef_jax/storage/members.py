"""The members of a packed archive: those at its top, or in one folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from nnef_jax.errors import ArchiveError
from nnef_jax.storage.labels import is_graph, split_name

_Member = TypeVar("_Member")


class PackedArchive(Generic[_Member]):
    """The members of an archive by name, of which the last of a name counts, as in tar.

    Without any of `graphs` at the top, the folder that holds one is the container. Names that are
    absolute or have a '..' part are left out.
    """

    def __init__(
        self, members: Iterable[tuple[str, _Member]], name: str, graphs: Sequence[str]
    ) -> None:
        self._name = name
        found = {_normal(path): member for path, member in members}
        found.pop("", None)
        self._members = _at_top(found, name, graphs)

    def location(self, name: str) -> str:
        """Return the name of a member in errors, behind that of the archive."""
        return f"{self._name}/{name}"

    def names(self) -> Iterator[str]:
        """Yield the names of the members, of links too."""
        return iter(self._members)

    def exists(self, name: str) -> bool:
        """Tell whether there is a member of this name, readable or not."""
        return _normal(name) in self._members

    def find(self, name: str) -> _Member:
        """Return a member; raise ArchiveError where there is none of this name."""
        member = self._members.get(_normal(name))
        if member is None:
            raise ArchiveError(f"there is no member '{name}' in {self._name}")
        return member


def _normal(name: str) -> str:
    return "/".join(split_name(name) or ())


def _at_top(members: dict[str, _Member], name: str, graphs: Sequence[str]) -> dict[str, _Member]:
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
