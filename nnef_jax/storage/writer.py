"""Writes containers: a folder, or a tar archive whose bytes depend only on its members."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import stat
import tarfile
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from nnef_jax.errors import ArchiveError
from nnef_jax.limits import Meter
from nnef_jax.storage import files, placing, protected_files, temporaries
from nnef_jax.storage.folder import Folder
from nnef_jax.storage.labels import parent_folders, quoted_members, refusal, split_name
from nnef_jax.storage.tensorfile import TensorFile, encode_tensor

_GRAPH = "graph.nnef"
_QUANTIZATION = "graph.quant"

Member = bytes | NDArray[Any] | TensorFile
# The function takes an open file, and returns a stream into which a tar archive is written.
_Opener = Callable[[Any], AbstractContextManager[Any]]
_FORMATS: dict[tuple[str, ...], _Opener] = {
    (".tar",): nullcontext,
    (".tgz", ".tar.gz"): lambda file: gzip.GzipFile("", "wb", 6, file, mtime=0),
    (".tar.xz", ".txz"): partial(lzma.open, mode="wb"),
    (".tar.bz2", ".tbz2"): partial(bz2.open, mode="wb"),
}


# Files of other formats have these endings. A folder with such a name would be misleading.
_FOREIGN = (
    ".onnx",
    ".xml",
    ".bin",
    ".npz",
    ".tflite",
    ".pb",
    ".pt",
    ".pth",
    ".safetensors",
    ".json",
)


def write_members(
    path: str | os.PathLike[str], members: Mapping[str, Member], *, overwrite: bool = False
) -> None:
    """Write members by name into a container: bytes unchanged, arrays as tensor files (spec 5.1).

    If the path ends in .tar, .tar.gz, .tgz, .tar.xz, .txz, .tar.bz2 or .tbz2, the container is an
    archive, otherwise a folder. Equal members give equal archives. A member that is a `TensorFile`
    keeps its number of bits and its mark as quantised.

    The container is written atomically, even if the process is killed. A folder is replaced only if
    it holds no other files than graph.nnef, graph.quant, the tensor files of labels in that
    graph.nnef, and files with names of new members (see docs/saving.md).

    Raises:
        FileExistsError: the path must not be replaced.
        ArchiveError: the path has the ending .zip or the ending of another format, or the name of a
            member leads outside of the container, or collides with another name.
        DataError: no tensor file can hold an array.
        OSError: the disk is full or read-only.
    """
    target = os.path.abspath(os.fsdecode(path))
    members_by_name = by_normal_name(members)
    lower_case_target = target.lower()
    hint = "end the path in .tgz or .tar; without such an ending it is a folder"
    if lower_case_target.endswith(".zip"):
        message = f"'{target}' would be a zip archive: these can be read, but not written"
        raise ArchiveError(message, hint=hint)
    if lower_case_target.endswith(_FOREIGN):
        message = f"'{target}' would be of another format: only NNEF is written here"
        raise ArchiveError(message, hint=hint)
    if os.path.lexists(target) and not overwrite:
        raise placing.exists(target)
    opener = _opener_for(lower_case_target)
    if opener is None:
        write_folder(target, members_by_name, overwrite=overwrite, network=True)
        return
    with files.replacing(target, overwrite=overwrite) as file, opener(file) as stream:
        write_tar(stream, members_by_name)


def _opener_for(path: str) -> _Opener | None:
    """Return the function that opens an archive for writing, selected by the path's ending.

    Returns None if the path has no ending of an archive. The path is then the path of a folder.
    """
    for suffixes, opener in _FORMATS.items():
        if path.endswith(suffixes):
            return opener
    return None


def by_normal_name(members: Mapping[str, Member]) -> dict[str, Member]:
    """Return members by normalised name, sorted: the name "./a//b" becomes "a/b".

    Raises ArchiveError for an unsafe name, and for names that collide.
    """
    normalised: dict[str, Member] = {}
    for name in sorted(members):
        reason = "is an absolute path" if name.startswith("/") else refusal(name)
        if reason:
            raise ArchiveError(f"member name {name!r} {reason}")
        normal_name = "/".join(split_name(name) or ())
        if normal_name in normalised:
            raise ArchiveError(f"there are two members named '{normal_name}'")
        normalised[normal_name] = members[name]
    # A folder that contains a member cannot be a file.
    for name in normalised:
        folders_that_are_members = parent_folders(name) & normalised.keys()
        if folders_that_are_members:
            folder = min(folders_that_are_members)
            raise ArchiveError(f"'{folder}' cannot be a member: '{name}' is below it")
    return dict(sorted(normalised.items()))


def parts_of(member: Member) -> tuple[bytes | memoryview, ...]:
    """Return the bytes to write for a member, in one or two parts.

    A tensor has two parts, its header and its data.
    """
    if isinstance(member, TensorFile):
        return encode_tensor(member.array, bits=member.bits, quantized=member.quantized)
    if isinstance(member, np.ndarray):
        return encode_tensor(member)
    return (member,)


def write_tar(stream: BinaryIO, members: dict[str, Member]) -> None:
    """Write members by name as a tar archive. The names must be normalised."""
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, member in members.items():
            content = b"".join(parts_of(member))
            # A new `TarInfo` has the time 0 and the owner root, so equal members give equal bytes.
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def write_folder(
    path: str, members: Mapping[str, Member], *, overwrite: bool, network: bool = False
) -> None:
    """Write members by name as a folder, atomically. The names must be safe.

    An empty folder at the path is replaced. Any other folder is replaced only if `overwrite` is
    true, and each file in the folder has the name of a new member. If `network` is true, the folder
    may also have the files of a network under different names.

    Raises FileExistsError for a folder that may not be replaced, and the errors of `write_members`.
    """
    target = os.path.abspath(path)
    names = members.keys()
    check = partial(_check_replaceable, shown=target, names=names, network=network)
    with placing.naming(target):
        old_status = check_folder(target, names, overwrite=overwrite, network=network)
        # The new folder gets the modes of the folder that it replaces. If a link is replaced, the
        # folder to which the link leads stays, and its modes are not used.
        replaces_folder = old_status is not None and stat.S_ISDIR(old_status.st_mode)
        old_folder = target if replaces_folder else None
        with temporaries.temporary_folder(target, private=replaces_folder) as temporary:
            _write_members(temporary, members, old_folder)
            check_of_old_folder = check if overwrite else None
            placing.place_folder(temporary, target, check_of_old_folder)


def check_folder(
    path: str, names: Collection[str], *, overwrite: bool, network: bool = False
) -> os.stat_result | None:
    """Raise the error that `write_folder` would raise before it writes. Return the old status.

    The old status is the status of the old folder, or None if there is none. `names` are the names
    of the new members. `overwrite` and `network` are explained at `write_folder`.
    """
    placing.require_parent(path)
    target = os.path.abspath(path)
    old_status = placing.status(target)
    if old_status and not overwrite:
        is_empty_folder = stat.S_ISDIR(old_status.st_mode) and not os.listdir(target)
        if not is_empty_folder:
            raise placing.exists(path)
    with temporaries.locked(target):
        _check_replaceable(target, shown=path, names=names, network=network)
    return old_status


def _write_members(folder: str, members: Mapping[str, Member], old_folder: str | None) -> None:
    """Write members into the new folder `folder`.

    A new file gets the mode of the file with the same name in `old_folder`, if there is one.
    """

    def keep_old_mode(name: str) -> None:
        if old_folder:
            old_status = placing.status(os.path.join(old_folder, name))
            placing.keep_mode(os.path.join(folder, name), old_status)

    for name, member in members.items():
        path = os.path.join(folder, *name.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "xb") as file:
            file.writelines(parts_of(member))
            file.flush()
            os.fsync(file.fileno())
        keep_old_mode(name)
    subfolders = {""}.union(*map(parent_folders, members))
    # In reverse order "a/b" comes before "a", so inner folders are on the disk before outer ones.
    for name in sorted(subfolders, reverse=True):
        placing.sync_folder(os.path.join(folder, name))
        keep_old_mode(name)


def _check_replaceable(path: str, *, shown: str, names: Collection[str], network: bool) -> None:
    """Raise FileExistsError if a path must not be replaced.

    An input of the same command must not be replaced. A folder must not be replaced if it has files
    that are not in `names`. If `network` is true, the folder may also have files of a network.
    `shown` is the path in the error.
    """
    protected_files.require_other(path)
    # A file or a link may be replaced whatever it contains.
    if os.path.islink(path) or not os.path.isdir(path):
        return
    temporaries.sweep(path)
    entries = os.listdir(path)
    if not entries:
        return
    replaceable = {*names}
    if network:
        if _GRAPH not in entries:
            reason = f"is a folder without {_GRAPH}, not replaced"
            raise FileExistsError(errno.EEXIST, reason, shown)
        with protected_files.without_noting():
            folder = Folder(path, Meter())
            text = bytes(folder.read(_GRAPH)).decode(errors="replace")
            folder.close()
        replaceable |= {_GRAPH, _QUANTIZATION, *quoted_members(text)}
    other_file = _other_file(path, replaceable)
    if other_file:
        remark = "which is not the network's" if network else "which is none of the new files"
        reason = f"is not replaced: it holds '{other_file}', {remark}"
        raise FileExistsError(errno.EEXIST, reason, shown)


def _other_file(root: str, members: set[str]) -> str:
    """Return the name of an unexpected file or folder in `root`, or '' if there is none.

    The members `members` and the folders that contain them are expected. Raises FileExistsError for
    a member that is an input of the same command.
    """
    expected_folders = set[str]().union(*map(parent_folders, members))
    unsearched_folders = [""]
    while unsearched_folders:
        folder = unsearched_folders.pop()
        folder_path = os.path.join(root, folder)
        temporaries.sweep(folder_path)
        for entry in sorted(os.listdir(folder_path)):
            name = f"{folder}/{entry}" if folder else entry
            path = os.path.join(root, name)
            is_link = os.path.islink(path)
            if os.path.isdir(path) and not is_link:
                unsearched_folders.append(name)
                is_expected = name in expected_folders
            else:
                protected_files.require_other(path)
                # A link instead of an expected folder is expected too.
                is_link_for_folder = is_link and name in expected_folders
                is_expected = is_link_for_folder or name in members
            if not is_expected:
                return name
    return ""
