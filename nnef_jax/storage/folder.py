"""A folder as a container: its files are mapped or read where they are."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from nnef_jax.errors import ArchiveError
from nnef_jax.storage import files
from nnef_jax.storage.labels import split_name

# Each map holds a file descriptor, of which a process often has no more than a thousand.
_MAX_MAPS = 256


class Folder:
    """The files of a folder and of those in it. A symbolic link may only lead to one of them."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._root = os.path.realpath(path)
        self._maps = 0

    def location(self, name: str) -> str:
        """The path to show for a member."""
        return os.path.join(self._path, name)

    def names(self) -> Iterator[str]:
        """The files below the folder, links among them; linked folders are not entered."""
        for folder, _, names in os.walk(self._root):
            below = os.path.relpath(folder, self._root).replace(os.sep, "/")
            yield from (name if below == "." else f"{below}/{name}" for name in names)

    def exists(self, name: str) -> bool:
        """Whether there is something of this name that is not a folder, readable or not."""
        parts = split_name(name)
        if not parts:
            return False
        try:
            mode = os.lstat(os.path.join(self._root, *parts)).st_mode
        except (OSError, ValueError):
            return False
        return not stat.S_ISDIR(mode)

    def read(self, name: str) -> memoryview:
        """The bytes of a member: a map of a large file."""
        path = self._resolve(name)
        try:
            with files.open_regular(path, ArchiveError, follow=False) as file:
                if self._maps == _MAX_MAPS:
                    return memoryview(file.read())
                data = files.contents(file)
        except OSError as error:
            raise self._unreadable(name, error) from None
        self._maps += not isinstance(data.obj, bytes)
        return data

    def _resolve(self, name: str) -> str:
        parts = split_name(name)
        if not parts:
            raise ArchiveError(f"there is no member {name!r} below '{self._path}'")
        try:
            path = os.path.realpath(os.path.join(self._root, *parts), strict=True)
            inside = os.path.commonpath([self._root, path]) == self._root
        except (OSError, ValueError) as error:
            raise self._unreadable(name, error) from None
        if not inside:
            raise ArchiveError(
                f"'{self.location(name)}' is a symbolic link that leads outside of the folder",
                hint="links that leave the model are not followed: copy the file into the folder",
            )
        return path

    def _unreadable(self, name: str, error: OSError | ValueError) -> ArchiveError:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return ArchiveError(f"there is no file '{self.location(name)}'")
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return ArchiveError(f"'{self.location(name)}' cannot be read: {reason}")
