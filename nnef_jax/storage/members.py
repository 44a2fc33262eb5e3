"""Lists the members at the top level of a packed archive, or in its only folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from nnef_jax.errors import ArchiveError
from nnef_jax.storage.labels import is_graph, split_name

_Member = TypeVar("_Member")
_MOST_SHOWN_NAMES = 5  # An error lists at most this many names.


class PackedArchive(Generic[_Member]):
    """The members of an archive by name. If several members have the same name, the last is taken.

    `graphs` are names or patterns of members that are graphs. If no graph is at the top level, and
    one folder contains a graph, only the members of this folder are taken. Members whose names are
    absolute or have a part '..' are left out.
    """

    def __init__(
        self, members: Iterable[tuple[str, _Member]], name: str, graphs: Sequence[str]
    ) -> None:
        self._name = name
        members_by_name = {_normal(path): member for path, member in members}
        # `_normal` returns '' for an unsafe name. Such a member is left out.
        members_by_name.pop("", None)
        self._members = _at_top(members_by_name, name, graphs)

    def location(self, name: str) -> str:
        """Return the name that errors show for a member, such as 'model.tgz/graph.nnef'."""
        return f"{self._name}/{name}"

    def names(self) -> Iterator[str]:
        """Yield the names of the members, including links."""
        return iter(self._members)

    def exists(self, name: str) -> bool:
        """Tell whether there is a member of this name, even if it is not readable."""
        return _normal(name) in self._members

    def find(self, name: str) -> _Member:
        """Return the member of this name. Raises ArchiveError if there is none."""
        member = self._members.get(_normal(name))
        if member is None:
            raise ArchiveError(f"there is no member '{name}' in {self._name}")
        return member


def _normal(name: str) -> str:
    """Return the normalised name of a member: 'a/b' for './a//b'. It is '' for an unsafe name."""
    return "/".join(split_name(name) or ())


def _at_top(members: dict[str, _Member], name: str, graphs: Sequence[str]) -> dict[str, _Member]:
    """Return the members of the archive, or of the only folder in it that has a graph.

    A folder is searched only if no graph is at the top level of the archive. In the result, names
    are relative to the folder. Raises ArchiveError if several folders have a graph. `name` is the
    name of the archive in the error.
    """
    paths_at_top = [path for path in members if "/" not in path]
    if any(is_graph(path, graphs) for path in paths_at_top):
        return members
    # Maps the name of each folder with a graph to the path of the graph.
    graphs_in_folders: dict[str, str] = {}
    for path in members:
        folder, _, file_name = path.partition("/")
        is_in_folder = file_name and "/" not in file_name
        if is_in_folder and is_graph(file_name, graphs):
            graphs_in_folders[folder] = path
    if not graphs_in_folders:
        return members
    if len(graphs_in_folders) > 1:
        paths = list(graphs_in_folders.values())[:_MOST_SHOWN_NAMES]
        raise ArchiveError(f"{name} holds several networks: {', '.join(paths)}")
    (folder,) = graphs_in_folders
    prefix = f"{folder}/"
    selected: dict[str, _Member] = {}
    for path, member in members.items():
        if path.startswith(prefix):
            selected[path.removeprefix(prefix)] = member
    return selected
