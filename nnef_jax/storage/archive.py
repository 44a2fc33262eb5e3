"""Opens the containers in which networks are stored (spec 5.1).

Nothing is extracted to the disk, and no name or link leads outside of a container.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any, NamedTuple, Self

from lowering.location import Source, Span
from nnef_jax.errors import ArchiveError, NnefSyntaxError
from nnef_jax.limits import MEMBER_STEPS, Meter
from nnef_jax.reading.foreign import refuse_file, refuse_stand_in
from nnef_jax.storage import files
from nnef_jax.storage.folder import Folder
from nnef_jax.storage.labels import is_graph
from nnef_jax.storage.tarball import Tarball, is_tarball
from nnef_jax.storage.ziparchive import ZIP_SIGNATURES, ZipArchive

GRAPH = "graph.nnef"
_START_BYTES = 512  # The type of a file is recognised by its first 512 bytes.
_MOST_SHOWN_NAMES = 5  # An error lists at most this many names.
# If a container has no graph at its top, up to 1000 names are searched for a graph in a subfolder.
# If there is one, the hint of the error names the subfolder.
_MOST_SEARCHED_NAMES = 1000


class _Texts:
    """A container of texts in memory. It maps names of members to texts."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def names(self) -> Collection[str]:
        return self._texts.keys()

    def exists(self, name: str) -> bool:
        return name in self._texts

    def location(self, name: str) -> str:
        return name

    def read(self, name: str) -> memoryview:
        return memoryview(self._texts[name].encode("utf-8", "surrogatepass"))


class _SingleFile:
    """A file that holds a whole network. This class makes it a container with one member."""

    def __init__(self, data: memoryview, name: str, member: str) -> None:
        self._data = data
        self._name = name
        self._member = member

    def names(self) -> list[str]:
        return [self._member]

    def exists(self, name: str) -> bool:
        return name == self._member

    def location(self, name: str) -> str:
        return self._name if name == self._member else name

    def read(self, name: str) -> memoryview:
        if name != self._member:
            raise ArchiveError(f"there is no '{name}' beside {self._name}, which has no folder")
        return self._data


class _InMemory:
    """A container in memory. The bytes of a member are made when the member is read."""

    def __init__(self, members: Mapping[str, Callable[[], memoryview]]) -> None:
        self._members = members

    def names(self) -> Collection[str]:
        return self._members.keys()

    def exists(self, name: str) -> bool:
        return name in self._members

    def location(self, name: str) -> str:
        return name

    def read(self, name: str) -> memoryview:
        if name not in self._members:
            raise ArchiveError(f"there is no '{name}'")
        return self._members[name]().toreadonly()


_Container = Folder | Tarball | ZipArchive | _Texts | _InMemory | _SingleFile
# The function takes the first bytes of a file. If the file may hold a whole network, the function
# returns a name for the file as the member of a container. Otherwise the result is ''.
Sniff = Callable[[bytes], str]


class Archive:
    """A container that is open for reading. An archive is a context manager.

    Bytes that were read stay valid after the archive is closed. Member names are relative to a
    folder in the container, and the parts of a name are separated by '/'. A name with '..' matches
    no member.
    """

    def __init__(
        self, container: _Container, name: str, meter: Meter, folder: str = "", graph: str = GRAPH
    ) -> None:
        self.name = name
        # `graph` is the name of the member that holds the network's graph.
        self.graph = graph
        # `weights` has the name and the bytes of a separate file of weights, if there is one.
        self.weights: tuple[str, memoryview] | None = None
        self._texts: dict[str, Source] = {}
        self._container: _Container | None = container
        self._meter = meter
        self._folder = folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the container. If this archive is a subfolder of another archive, do nothing."""
        if isinstance(self._container, Folder) and not self._folder:
            self._container.close()
        self._container = None

    def __getstate__(self) -> dict[str, Any]:
        # An open container cannot be pickled. An unpickled archive is closed.
        return self.__dict__ | {"_container": None}

    @property
    def texts(self) -> Mapping[str, str]:
        """Return the texts of the members that `read_text` has read, as a dict by name."""
        return {name: source.text for name, source in self._texts.items()}

    def names(self) -> list[str]:
        """Return the names of all members, sorted. Links are members, but folders are not."""
        names: list[str] = []
        for name in self._open.names():
            if name.startswith(self._folder):
                self._meter.spend(MEMBER_STEPS, self.name)
                names.append(name.removeprefix(self._folder))
        return sorted(names)

    def exists(self, name: str) -> bool:
        """Tell whether there is a member of this name. A link is a member too."""
        return self._open.exists(self._inner(name))

    def location(self, name: str) -> str:
        """Return the name that errors show for a member, such as 'model.tgz/graph.nnef'."""
        return self._open.location(self._folder + name)

    def read_text(self, name: str) -> Source:
        """Read a member as UTF-8 text without NUL characters.

        Raises ArchiveError, NnefSyntaxError or LimitError.
        """
        if name not in self._texts:
            data = self.open_tensor(name)
            location = self.location(name)
            self._meter.spend(len(data), location)
            self._texts[name] = _decode(bytes(data), location)
        return self._texts[name]

    def open_tensor(self, name: str) -> memoryview:
        """Return the bytes of a member that is a regular file, without a copy if possible.

        Raises ArchiveError if no regular file has this name.
        """
        data = self._open.read(self._inner(name))
        refuse_stand_in(self.location(name), data)
        return data

    def subfolder(self, folder: str) -> Archive:
        """Return a subfolder as a new archive, readable until this archive is closed."""
        path = f"{self._folder}{folder}/"
        return Archive(self._open, self.location(folder), self._meter, folder=path)

    @property
    def is_changed(self) -> bool:
        """Tell whether the container is a folder that was changed or replaced after its opening."""
        return isinstance(self._open, Folder) and self._open.is_changed()

    @property
    def is_of_texts(self) -> bool:
        """Tell whether `archive_of_texts` made this archive."""
        return isinstance(self._open, _Texts)

    @property
    def _open(self) -> _Container:
        """Return the container. Raises ValueError if it is closed."""
        if self._container is None:
            raise ValueError(f"{self.name} is closed")
        return self._container

    def _inner(self, name: str) -> str:
        """Return the name that a member of this folder has in the container.

        An absolute name is returned unchanged, since no member has such a name.
        """
        return name if name.startswith("/") else self._folder + name


def open_archive(
    source: files.Readable,
    meter: Meter | None = None,
    *,
    name: str = "",
    graphs: Sequence[str] = (GRAPH,),
    weights: files.Readable | None = None,
    sniff: Sniff = lambda _: "",
) -> Archive:
    """Open a network's container. One of the files `graphs` must be at its top level (spec 5.1).

    Args:
        source: a folder, the file of a graph in a folder, an archive, the bytes of an archive, or a
            binary file object, which is read to its end. An archive is a zip file, or a tar file
            that is plain or compressed by gzip, bzip2 or xz; the type is recognised by content. An
            archive may hold the network in a single folder.
        meter: counts the work and the memory.
        name: the source's name in errors if it is not a path.
        graphs: names or patterns of members that are graphs.
        weights: a separate file of weights.
        sniff: a function that takes the first bytes of a file. If the file is a network by itself,
            the function returns a name for the graph, and otherwise "".

    Raises `ArchiveError` for a source that is not a container, has none of `graphs` or cannot be
    read, `LimitError` for a source that is too large or expands too much, and `FileNotFoundError`
    if the path does not exist.
    """
    if meter is None:
        meter = Meter()
    while True:
        name, container, graph = _open_source(source, meter, name, graphs, sniff)
        if not graph:
            # The source is a folder or an archive, in which the graph must be searched.
            graph = _graph_in(container, graphs, name)
        if graph:
            break
        is_changed = isinstance(container, Folder) and container.is_changed()
        if not is_changed:
            # If the name shows that the source has another format, `refuse_file` raises an error.
            refuse_file(name, b"")
            raise _without_graph(container, name, graphs)
        # While the folder was searched, another process may have put a graph into it. The folder is
        # opened again.
        meter.spend(MEMBER_STEPS, name)
    archive = Archive(container, name, meter, graph=graph)
    if weights is not None:
        archive.weights = files.contents_of(weights, meter, "weights", ArchiveError)
    return archive


def _without_graph(container: _Container, name: str, graphs: Sequence[str]) -> ArchiveError:
    """Return the error for a container that has none of `graphs` at its top level."""
    names = list(islice(container.names(), _MOST_SEARCHED_NAMES))
    shown_names = ", ".join(names[:_MOST_SHOWN_NAMES])
    if len(names) > _MOST_SHOWN_NAMES:
        shown_names += ", ..."
    expected = " or ".join(graphs)
    hint = f"a container has {expected} at its top, or in its only folder"
    # If subfolders have a graph, the hint names these subfolders instead.
    subfolders_with_graph: set[str] = set()
    for member in names:
        subfolder, file_name = os.path.split(member)
        if is_graph(file_name, graphs):
            subfolders_with_graph.add(subfolder)
    if subfolders_with_graph and isinstance(container, Folder):
        shown_subfolders = sorted(subfolders_with_graph)[:_MOST_SHOWN_NAMES]
        paths = [os.path.join(name, subfolder) for subfolder in shown_subfolders]
        hint = f"there is one in {', '.join(paths)}"
    message = f"{name} has no {expected}; it holds {shown_names or 'nothing'}"
    return ArchiveError(message, hint=hint)


def _graph_in(container: _Container, graphs: Sequence[str], name: str) -> str:
    """Return the member at the top level that matches one of `graphs`, or '' if none does.

    Raises ArchiveError if several members match a pattern in `graphs`.
    """
    for graph in graphs:
        if container.exists(graph):
            return graph

    def is_at_top(member: str) -> bool:
        return "/" not in member

    members_at_top: Iterable[str] = filter(is_at_top, container.names())
    if isinstance(container, Folder):
        # A folder may have millions of members in subfolders. `names` yields the members at the top
        # level first, so the search ends at the first member in a subfolder.
        members_at_top = takewhile(is_at_top, container.names())
    matches = [member for member in members_at_top if is_graph(member, graphs)]
    if len(matches) > 1:
        paths = ", ".join(sorted(matches)[:_MOST_SHOWN_NAMES])
        raise ArchiveError(f"{name} holds several networks: {paths}", hint="load one by its path")
    return matches[0] if matches else ""


def archive_of_texts(texts: Mapping[str, str], meter: Meter) -> Archive:
    """Return an archive in memory. `texts` maps names of members to texts."""
    return Archive(_Texts(texts), "the document", meter)


def archive_of_members(
    members: Mapping[str, Callable[[], memoryview]], graph: str, meter: Meter
) -> Archive:
    """Return an archive in memory.

    `members` is a dict from names of members to functions. Each function returns the bytes of the
    member. `graph` is the name of the member with the graph.
    """
    return Archive(_InMemory(members), "the network to save", meter, graph=graph)


class _OpenSource(NamedTuple):
    """A source that was opened.

    `name` is the name of the source in errors. `graph` is the name of the member with the graph.
    For a folder or an archive `graph` is "", because this member must still be searched.
    """

    name: str
    container: _Container
    graph: str


def _open_source(
    source: files.Readable, meter: Meter, name: str, graphs: Sequence[str], sniff: Sniff
) -> _OpenSource:
    """Open a source. The arguments are those of `open_archive`."""
    if not isinstance(source, str | os.PathLike):
        name, data = files.contents_of(source, meter, name or "the archive", ArchiveError)
        return _OpenSource(name, *_container_of(data, name, meter, graphs, sniff))
    path = os.fsdecode(source)
    if "\0" in path:
        raise ArchiveError(f"path {path!r} holds a NUL character")
    with files.reported(path, ArchiveError):
        if stat.S_ISDIR(os.stat(path).st_mode):
            return _OpenSource(path, Folder(path, meter), graph="")
        _name, data = files.contents_of(path, meter, path, ArchiveError)
        folder, file_name = os.path.split(path)
        is_packed = _is_packed(bytes(data[:_START_BYTES]))
        # The path of a graph stands for the folder that contains the graph. But an archive may also
        # have the name of a graph.
        if is_graph(file_name, graphs) and not is_packed:
            return _OpenSource(folder or ".", Folder(folder, meter, named=path), graph=file_name)
    return _OpenSource(path, *_container_of(data, path, meter, graphs, sniff))


def _is_packed(start: bytes) -> bool:
    """Tell whether a file that starts with the bytes `start` is a zip, tar or compressed file."""
    return start.startswith(ZIP_SIGNATURES) or is_tarball(start)


def _container_of(
    data: memoryview, name: str, meter: Meter, graphs: Sequence[str], sniff: Sniff
) -> tuple[_Container, str]:
    """Return a file's bytes as a container, and the name of the member that holds the graph.

    A file that is a graph becomes a container with this graph as its only member. For an archive
    the name is "", because the graph must still be searched. Raises ArchiveError for a file that is
    neither a graph nor an archive.
    """
    start = bytes(data[:_START_BYTES])
    if not _is_packed(start):
        member = sniff(start)
        if member:
            return _SingleFile(data, name, member), member
    # `Tarball` raises ArchiveError for a file that is no archive.
    archive_type = ZipArchive if start.startswith(ZIP_SIGNATURES) else Tarball
    try:
        return archive_type(data, name, meter, graphs), ""
    except ArchiveError:
        # If `refuse_file` recognises the type of the file, it raises an error that names the type.
        # Otherwise the error of the archive is raised.
        refuse_file(name, start)
        raise


def _decode(data: bytes, location: str) -> Source:
    """Decode the bytes of a member as UTF-8 text.

    Raises NnefSyntaxError for a byte that is not UTF-8 text, or for a NUL character.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        reason = f"byte {data[error.start]:#04x} is not UTF-8 text ({error.reason})"
        # An error shows the text with replacement characters in place of wrong bytes. The text in
        # front of the first wrong byte is unchanged, so its length in characters is the offset.
        offset = len(data[: error.start].decode())
        shown = Source(location, data.decode(errors="replace"))
        raise NnefSyntaxError(reason, span=Span(shown, offset)) from None
    source = Source(location, text)
    offset = text.find("\0")
    if offset >= 0:
        raise NnefSyntaxError("NUL character in the text", span=Span(source, offset))
    return source
