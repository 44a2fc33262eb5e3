"""Offers a folder as a container, and maps or reads the files in it.

A path is opened part by part. Each part is opened relative to the descriptor of the folder before
it, and the kernel follows no link. If a folder is replaced by a link during a load, nothing outside
of the container is read.

The cache of a model hub, such as that of Hugging Face, stores each file in a folder of blobs, and
has other folders with links to these files. In such a cache a member may be a link to a file that
lies directly in the folder of blobs.
"""

from __future__ import annotations

import errno
import os
import stat
import time
import weakref
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress

from nnef_jax.errors import ArchiveError, LimitError
from nnef_jax.limits import Meter
from nnef_jax.storage import files
from nnef_jax.storage.labels import split_name

# If a file was written less than 0.1 s ago, another process may still be writing it. After a pause
# of 0.01 s, the file is checked for changes.
_RECENT_SECONDS = 0.1
_PAUSE = 0.01
_MAX_LINKS = 40  # On a path, at most this many links are followed. Linux has the same limit.
# Folders may be nested this deeply. Each of the nested folders takes a file descriptor while names
# are listed.
_MAX_DEPTH = 100
_ROOT_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_FLAGS = _ROOT_FLAGS | getattr(os, "O_NOFOLLOW", 0)
# This is true if the system can open a path relative to a folder's descriptor. Windows cannot do
# so. If a path is replaced between its check and its opening on Windows, this is not detected.
_OPENAT = os.scandir in os.supports_fd and ({os.open, os.stat, os.readlink} <= os.supports_dir_fd)


class Folder:
    """The files in a folder and its subfolders, even if another folder gets the folder's name.

    A symbolic link may only lead to a file in the folder, or to a blob. A hard link is a file like
    any other. `named` is the path of the file in this folder that the user named, or "". If this
    path is a link, the blobs are the files beside the link's target. If the path is no link, but
    this folder is in the cache of a model hub, the blobs are the files in the cache's folder
    `blobs`.
    """

    def __init__(self, path: str, meter: Meter, named: str = "") -> None:
        self._path = path
        self._meter = meter
        self._real = os.path.realpath(path)
        self._named = os.path.basename(named)
        self._blobs = _blobs_of(self._real, named)
        # Maps the name of a file to the status that the file had when it was read.
        self._read: dict[str, os.stat_result] = {}
        # `_root` is the descriptor of this folder. `_store` is the descriptor of the blobs' folder.
        self._root = os.open(path or ".", _ROOT_FLAGS) if _OPENAT else None
        self._store = None
        if _OPENAT and self._blobs:
            # If the folder of blobs cannot be opened, reading a blob raises an error later.
            with suppress(OSError):
                self._store = os.open(self._blobs, _FLAGS)
        self._close = weakref.finalize(self, _close, self._root, self._store)

    def close(self) -> None:
        """Close the folder."""
        self._close()

    def location(self, name: str) -> str:
        """Return the path that errors show for a member."""
        return os.path.join(self._path, name)

    def names(self) -> Iterator[str]:
        """Yield the names of all readable files and all links.

        Raises LimitError if folders are nested too deeply.
        """
        self._check_open()
        return self._names(self._root, folder=".", prefix="", depth=_MAX_DEPTH)

    def _names(self, parent: int | None, folder: str, prefix: str, depth: int) -> Iterator[str]:
        """Yield the names of the files and links in a folder and its subfolders.

        `folder` is a name in the folder with the descriptor `parent`. Each yielded name begins with
        `prefix`. Raises LimitError for more than `depth` levels.
        """
        if depth == 0:
            raise LimitError(f"{self._path}: folders are nested more than {_MAX_DEPTH} deep")
        subfolders: list[str] = []
        # On systems without descriptors of folders, `parent` and `descriptor` are None.
        descriptor = None
        try:
            if parent is not None:
                descriptor = _open_subfolder(parent, folder)
        except OSError:
            # The folder cannot be opened. Its files are not readable, so they are not listed.
            return
        try:
            folder_to_scan = os.path.join(self._real, prefix) if descriptor is None else descriptor
            with suppress(OSError), os.scandir(folder_to_scan) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        subfolders.append(entry.name)
                    else:
                        yield prefix + entry.name
            for name in subfolders:
                yield from self._names(
                    descriptor, folder=name, prefix=f"{prefix}{name}/", depth=depth - 1
                )
        finally:
            _close(descriptor)

    def exists(self, name: str) -> bool:
        """Tell whether there is a member of this name. A folder is not a member."""
        self._check_open()
        parts = split_name(name)
        if not parts:
            return False
        try:
            with self._parent(name, parts, follow=False) as (folder, part):
                mode = os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode
        except (OSError, ValueError):
            # `_parent` raises ArchiveError, which is a ValueError, for a link out of the folder.
            return False
        return not stat.S_ISDIR(mode)

    def read(self, name: str) -> memoryview:
        """Return the bytes of the regular file with this name. A large file is mapped.

        Raises ArchiveError if there is no such file or the file cannot be read, and LimitError if
        the file is too large.
        """
        self._check_open()
        location = self.location(name)
        parts = split_name(name)
        if not parts:
            raise ArchiveError(f"there is no member {name!r} below '{self._path}'")
        with files.reported(location, ArchiveError):
            try:
                with (
                    self._parent(name, parts, follow=True) as (folder, part),
                    files.open_regular(
                        part, ArchiveError, follow=False, folder=folder, shown=location
                    ) as file,
                ):
                    self._read[name] = os.fstat(file.fileno())
                    return files.contents(file, self._meter, location)
            except (FileNotFoundError, NotADirectoryError):
                raise ArchiveError(f"there is no file '{location}'") from None

    def is_changed(self) -> bool:
        """Tell whether the folder, or a file that was read, has been replaced or changed."""
        if self._differs():
            return True
        last_change = max((status.st_mtime for status in self._read.values()), default=0.0)
        if last_change < time.time() - _RECENT_SECONDS:
            return False
        # Another process may still be writing the newest file. Then only a part of it was read.
        time.sleep(_PAUSE)
        return self._differs()

    def _differs(self) -> bool:
        """Tell whether the folder was replaced, or a file that was read was replaced or changed."""
        try:
            if self._root is not None:
                opened_status = os.fstat(self._root)
                if not os.path.samestat(os.stat(self._path or "."), opened_status):
                    return True
            for name, status_before in self._read.items():
                parts = split_name(name) or ()
                with self._parent(name, parts, follow=True) as (folder, part):
                    status = os.stat(part, dir_fd=folder, follow_symlinks=False)
                if _version(status) != _version(status_before):
                    return True
        except (OSError, ValueError):
            # A file was removed, or replaced by a link that leads outside.
            return True
        return False

    def _check_open(self) -> None:
        """Raise ValueError if the folder is closed.

        A closed descriptor must not be used, because its number may now belong to another file.
        """
        if not self._close.alive:
            raise ValueError(f"{self._path} is closed")

    @contextmanager
    def _parent(
        self, name: str, parts: Sequence[str], *, follow: bool
    ) -> Generator[tuple[int | None, str]]:
        """Yield the descriptor of a member's folder, and the member's name in this folder.

        Links on the path are resolved. If `follow` is false, a link in the last part of the path is
        not followed.
        """
        if self._root is None:
            yield None, self._resolved(name, parts, follow=follow)
            return
        folders = _OpenFolders(self._root)
        # `remaining` has the unresolved parts of the path in reverse order.
        remaining = list(reversed(parts))
        link_count = 0
        try:
            # If links are not followed in the last part, this part remains unresolved.
            while len(remaining) > 1 or follow:
                # If no part remains, the path is the path of the folder itself.
                part = remaining.pop() if remaining else "."
                if part == "..":
                    if not folders.names:
                        raise self._outside(name)
                    folders.leave()
                    continue

                mode = os.stat(part, dir_fd=folders.last, follow_symlinks=False).st_mode
                if not stat.S_ISLNK(mode):
                    if not remaining:
                        # The last part is no link, so the path is resolved.
                        remaining.append(part)
                        break
                    folders.enter(part)
                    continue

                link_count += 1
                if link_count > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                target = os.readlink(part, dir_fd=folders.last)
                target_path = os.path.join(self._real, *folders.names, target)
                # The link that the user named may lead to a blob by way of other links.
                if name == self._named:
                    target_path = os.path.realpath(target_path)
                blob = self._blob_name(target_path)
                is_last_part = not remaining
                if self._store is not None and blob and is_last_part:
                    folders.enter_copy(self._store)
                    remaining.append(blob)
                    break
                if os.path.isabs(target):
                    # An absolute target starts again at this folder.
                    target = self._below_root(name, target)
                    folders.leave_all()
                target_parts = [part for part in target.split("/") if part not in ("", ".")]
                remaining += reversed(target_parts)
            yield folders.last, remaining.pop()
        finally:
            folders.leave_all()

    def _blob_name(self, path: str) -> str:
        """Return the name of the blob at a path, or '' if there is no blob at the path."""
        if not self._blobs:
            return ""
        folder, name = os.path.split(path)
        is_in_blobs = os.path.realpath(folder) == self._blobs
        is_file_name = name not in (".", "..")
        return name if is_in_blobs and is_file_name else ""

    def _below_root(self, name: str, target: str) -> str:
        """Return the absolute path `target` as a path relative to this folder.

        Whether there is a file at the path is not checked. Raises ArchiveError if the path is
        outside of the folder. `name` is the name of the member in the error.
        """
        for root in (self._real, os.path.abspath(self._path)):
            if f"{target}/".startswith(f"{root}/"):
                return target.removeprefix(root)
        raise self._outside(name)

    def _resolved(self, name: str, parts: Sequence[str], *, follow: bool) -> str:
        """Return the path of a member, with links resolved.

        This function is for systems on which a path cannot be opened relative to a folder's
        descriptor. `parts` are the parts of the member's name. If `follow` is false, a link in the
        last part is not followed.
        """
        *folders, last = parts
        path = os.path.realpath(os.path.join(self._real, *folders), strict=True)
        path = os.path.join(path, last)
        if follow:
            path = os.path.realpath(path, strict=True)
        is_in_folder = os.path.commonpath([self._real, path]) == self._real
        if is_in_folder or self._blob_name(path):
            return path
        raise self._outside(name)

    def _outside(self, name: str) -> ArchiveError:
        """Return the error for a member that is a link to a file outside of the folder."""
        return ArchiveError(
            f"'{self.location(name)}' is a symbolic link that leads outside of the folder",
            hint="links that leave the model are not followed: copy the file into the folder",
        )


class _OpenFolders:
    """The folders on a path. Each folder is opened relative to the folder before it.

    `root` is the descriptor of the first folder, which remains open.
    """

    def __init__(self, root: int) -> None:
        self._descriptors = [root]
        # These are the names of the folders after the first one.
        self.names: list[str] = []

    @property
    def last(self) -> int:
        """Return the descriptor of the last folder."""
        return self._descriptors[-1]

    def enter(self, name: str) -> None:
        """Open a subfolder of the last folder."""
        self._descriptors.append(_open_subfolder(self.last, name))
        self.names.append(name)

    def enter_copy(self, descriptor: int) -> None:
        """Add a folder that is open already. Its descriptor is copied, and remains open."""
        self._descriptors.append(os.dup(descriptor))

    def leave(self) -> None:
        """Close the last folder."""
        os.close(self._descriptors.pop())
        self.names.pop()

    def leave_all(self) -> None:
        """Close all folders except the first one."""
        self.names.clear()
        while len(self._descriptors) > 1:
            os.close(self._descriptors.pop())


def _blobs_of(real: str, named: str) -> str:
    """Return the path of the folder of blobs, or '' if there is none.

    Args:
        real: the path of the opened folder, without links.
        named: the path of the file in this folder that the user named, or "". If `named` is a link,
            the blobs are beside the link's target.
    """
    if named and os.path.islink(named):
        return os.path.dirname(os.path.realpath(named))
    # A hub's cache has the blobs of the folder "TOP/snapshots/REVISION" in "TOP/blobs".
    top, separator, _ = real.rpartition(f"{os.sep}snapshots{os.sep}")
    if not separator:
        return ""
    blobs = os.path.join(top, "blobs")
    is_folder = os.path.isdir(blobs) and not os.path.islink(blobs)
    return blobs if is_folder else ""


def _version(status: os.stat_result) -> tuple[int, ...]:
    """Return numbers of a file's status that change if the file is replaced or changed."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _open_subfolder(parent: int, folder: str) -> int:
    """Open a folder in the folder with the descriptor `parent`, and return its descriptor."""
    return os.open(folder, _FLAGS, dir_fd=parent)


def _close(*descriptors: int | None) -> None:
    """Close descriptors. An argument is None if the descriptor was not opened."""
    for descriptor in descriptors:
        if descriptor is not None:
            os.close(descriptor)
