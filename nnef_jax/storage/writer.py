"""Writing a container: a folder, or a tar archive whose bytes depend on its members alone."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import shutil
import tarfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from nnef_jax.errors import ArchiveError
from nnef_jax.storage import files
from nnef_jax.storage.labels import refusal, split_name
from nnef_jax.storage.tensorfile import TensorFile, encode_tensor

Member = bytes | npt.NDArray[Any] | TensorFile
_Opener = Callable[[BinaryIO], AbstractContextManager[Any]]


def _gzip(file: BinaryIO) -> AbstractContextManager[Any]:
    return gzip.GzipFile("", "wb", 6, file, mtime=0)


_FORMATS: tuple[tuple[tuple[str, ...], _Opener], ...] = (
    ((".tar",), nullcontext),
    ((".tgz", ".tar.gz"), _gzip),
    ((".tar.xz", ".txz"), partial(lzma.open, mode="wb")),
    ((".tar.bz2", ".tbz2"), partial(bz2.open, mode="wb")),
)


def write_archive(
    path: str | os.PathLike[Any], members: Mapping[str, Member], *, overwrite: bool = False
) -> None:
    """Write a container of members by name: bytes as they are, arrays as tensor files (spec 5.1).

    The suffix of the path decides: .tar, .tar.gz or .tgz, .tar.xz or .txz, .tar.bz2 or .tbz2 are
    archives, every other path is a folder. The members are sorted and carry no time and no owner,
    so that equal members make equal archives. A `TensorFile` keeps its bits and its quantised mark.

    The container appears complete or not at all. With `overwrite` it takes the place of what is
    there, but never of a folder that has other things in it than a network.

    Raises `FileExistsError` where there is something already, `ArchiveError` for a name that could
    lead outside or collides with another, `DataError` for an array no tensor file can hold.
    """
    target = os.path.abspath(os.fsdecode(path))
    named = _by_normal_name(members)
    if os.path.lexists(target):
        _check_replaceable(target, overwrite)
    lowered = target.lower()
    opener = next((opener for suffixes, opener in _FORMATS if lowered.endswith(suffixes)), None)
    if opener is None:
        _write_folder(target, named)
        return
    with files.replacing(target) as file, opener(file) as stream:
        _write_tar(stream, named)


def _by_normal_name(members: Mapping[str, Member]) -> dict[str, Member]:
    named: dict[str, Member] = {}
    for name in sorted(members):
        reason = "is an absolute path" if name.startswith("/") else refusal(name)
        if reason:
            raise ArchiveError(f"member name {name!r} {reason}")
        normal = "/".join(split_name(name) or ())
        if normal in named:
            raise ArchiveError(f"there are two members named '{normal}'")
        named[normal] = members[name]
    for name in named:
        for end in (i for i, c in enumerate(name) if c == "/"):
            if name[:end] in named:
                raise ArchiveError(f"'{name[:end]}' cannot be a member: '{name}' is below it")
    return dict(sorted(named.items()))


def _check_replaceable(target: str, overwrite: bool) -> None:
    if not overwrite:
        raise FileExistsError(errno.EEXIST, "exists already (overwrite=True replaces it)", target)
    is_folder = os.path.isdir(target) and not os.path.islink(target)
    if is_folder and os.listdir(target) and not os.path.lexists(f"{target}/graph.nnef"):
        raise FileExistsError(errno.EEXIST, "is a folder without graph.nnef, not replaced", target)


def _parts(member: Member) -> tuple[bytes | memoryview, ...]:
    if isinstance(member, TensorFile):
        return encode_tensor(member.array, bits=member.bits, quantized=member.quantized)
    return encode_tensor(member) if isinstance(member, np.ndarray) else (member,)


def _write_tar(stream: Any, members: dict[str, Member]) -> None:
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, member in members.items():
            content = b"".join(_parts(member))
            info = tarfile.TarInfo(name)  # of the year 1970, and nobody's
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def _write_folder(target: str, members: dict[str, Member]) -> None:
    temporary = files.sibling(target)
    os.mkdir(temporary)
    try:
        for name, member in members.items():
            path = os.path.join(temporary, *name.split("/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "xb") as file:
                for part in _parts(member):
                    file.write(part)
        _put_in_place(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _put_in_place(temporary: str, target: str) -> None:
    """Rename a folder to `target`. What is there is set aside first, and removed last."""
    if not os.path.lexists(target):
        os.rename(temporary, target)
        return
    old = files.sibling(target)
    os.rename(target, old)
    try:
        os.rename(temporary, target)
    except BaseException:
        os.rename(old, target)
        raise
    if os.path.isdir(old) and not os.path.islink(old):
        shutil.rmtree(old)
    else:
        os.unlink(old)
