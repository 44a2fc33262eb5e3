"""Reads the inputs of `nnef-jax run`: assigns files to inputs, and pictures to batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nnef_jax import InputError, TensorSpec, UnsupportedError
from nnef_jax.cli.pictures import PICTURES, PictureOptions, is_picture, read_picture
from nnef_jax.storage import files
from nnef_jax.storage.numpyfile import read_npy, read_npz
from nnef_jax.storage.tensorfile import read_tensor_file

ARRAYS = (".npy", ".npz", ".dat")
_KINDS = ", ".join((*ARRAYS, *PICTURES))
_NAME_HINT = "NAME=FILE says which input a file is for"

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class CallInputs:
    """The inputs of one call: arrays by input name, and the names of the pictures in its batch."""

    arrays: dict[str, Array]
    pictures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Batch:
    name: str
    paths: Sequence[Path]
    pictures: Sequence[Array]
    stacks: bool  # whether the pictures are stacked to one tensor


def read_inputs(
    arguments: Sequence[str], specs: Sequence[TensorSpec], options: PictureOptions
) -> list[CallInputs]:
    """Return the calls that the files on a command line describe.

    `NAME=FILE` is a file for the input NAME. A .npz file without a name has arrays by input name.
    Any other file without a name is for the next input that has no file. Several pictures for one
    input are stacked if the batch extent of the input is open, or equals the number of pictures. If
    the extent is 1, or if there is no batch axis, each picture becomes a separate call.

    Raises InputError if files and inputs do not match, and DataError or OSError for a bad file.
    """
    arrays, paths = _assign(arguments, [spec.name for spec in specs])
    batches: list[_Batch] = []
    for spec in specs:
        input_paths = paths.get(spec.name, [])
        if any(map(is_picture, input_paths)):
            pictures = [read_picture(path, spec, options) for path in input_paths]
            count = len(input_paths)
            extent = spec.shape[0] if options.layout.startswith("n") else 1
            if extent not in (None, 1, count):
                given = f"{count} pictures are given" if count > 1 else "1 picture is given"
                message = f"{given} for input '{spec.name}', which takes a batch of {extent}"
                raise InputError(message)
            is_uniform = len({picture.shape for picture in pictures}) == 1
            stacks = count == 1 or (is_uniform and extent != 1)
            batches.append(_Batch(spec.name, input_paths, pictures, stacks))
        elif input_paths:
            arrays[spec.name] = read_array(input_paths[0], spec.name)
    return _calls(arrays, batches)


def _calls(arrays: dict[str, Array], batches: Sequence[_Batch]) -> list[CallInputs]:
    if not batches:
        return [CallInputs(arrays)]
    longest = max(batches, key=lambda batch: len(batch.pictures))
    count = len(longest.pictures)
    if any(len(batch.pictures) not in (1, count) for batch in batches):
        counts = [f"{len(batch.pictures)} for input '{batch.name}'" for batch in batches]
        shown = ", ".join(counts)
        raise InputError(f"the numbers of pictures differ: {shown}")
    titles = tuple(map(str, longest.paths))
    if all(batch.stacks for batch in batches):
        stacked = {batch.name: np.concatenate(batch.pictures) for batch in batches}
        return [CallInputs(arrays | stacked, titles)]
    calls: list[CallInputs] = []
    for i, title in enumerate(titles):
        # A single picture is used in every call.
        pictures = {batch.name: batch.pictures[i % len(batch.pictures)] for batch in batches}
        calls.append(CallInputs(arrays | pictures, (title,)))
    return calls


def _assign(
    arguments: Sequence[str], names: Sequence[str]
) -> tuple[dict[str, Array], dict[str, list[Path]]]:
    """Assign the arrays and files of a command line to inputs.

    The first result has arrays from unnamed .npz files, and the second result has the files of the
    other inputs. Both are dicts by the name of the input.
    """
    arrays: dict[str, Array] = {}
    paths: dict[str, list[Path]] = {}
    unnamed: list[Path] = []
    shown = ", ".join(names) or "none"
    for argument in arguments:
        name, equals, file = argument.partition("=")
        if equals and name in names:
            paths.setdefault(name, []).append(Path(file))
        elif equals and name.isidentifier() and not Path(argument).exists():
            raise InputError(f"the graph has no input '{name}', its inputs are {shown}")
        elif Path(argument).suffix.lower() == ".npz":
            for member, array in read_members(Path(argument)).items():
                if member not in names:
                    message = f"{argument} holds '{member}', the graph's inputs are {shown}"
                    raise InputError(message, hint=_NAME_HINT)
                if member in arrays:
                    raise InputError(f"input '{member}' is given by two .npz files")
                arrays[member] = array
        else:
            unnamed.append(Path(argument))
    twice = [name for name in paths if name in arrays]
    if twice:
        raise InputError(f"input '{twice[0]}' is given by name and by a .npz file")
    free = [name for name in names if name not in paths and name not in arrays]
    if len(free) == 1 and unnamed:
        paths[free[0]] = unnamed
    elif len(unnamed) > len(free):
        message = f"{len(unnamed)} files are given without a name, the graph's inputs are {shown}"
        if len(free) < len(names):
            message += f", of which {len(free)} have no file yet"
        raise InputError(message, hint=_NAME_HINT)
    else:
        for name, path in zip(free[: len(unnamed)], unnamed, strict=True):
            paths[name] = [path]
    missing = [name for name in free if name not in paths]
    if missing:
        missing_names = ", ".join(map(repr, missing))
        raise InputError(f"no file is given for input {missing_names}, the graph takes {shown}")
    _require_single_arrays(paths)
    return arrays, paths


def _require_single_arrays(paths: dict[str, list[Path]]) -> None:
    """Raise InputError if an input has several files, unless all its files are pictures."""
    for name, input_paths in paths.items():
        are_pictures = all(map(is_picture, input_paths))
        if len(input_paths) > 1 and not are_pictures:
            raise InputError(
                f"{len(input_paths)} files are given for input '{name}', "
                "only pictures may be several",
                hint="put the arrays of a batch into one file",
            )


def read_array(path: Path, name: str) -> Array:
    """Read the array of an input from a file.

    In a .npz file the array has the input's name, or is the only array. Raises DataError for a
    broken file, and LimitError for a file that expands beyond `Limits`.
    """
    match path.suffix.lower():
        case ".npy":
            with files.within_limits(str(path)) as (data, _):
                return read_npy(data, str(path))
        case ".npz":
            members = read_members(path)
            if name in members:
                return members[name]
            if len(members) != 1:
                raise InputError(f"{path} holds {', '.join(members) or 'nothing'}, but no '{name}'")
            (array,) = members.values()
            return array
        case ".dat":
            stored = read_tensor_file(path)
            if stored.quantized:
                raise UnsupportedError(f"{path} holds quantised data")
            return stored.array
        case _:
            message = f"{path}: inputs are not read from this kind of file"
            raise InputError(message, hint=f"give {_KINDS}")


def read_members(path: Path) -> dict[str, Array]:
    """Read all arrays in a .npz file by name.

    Raises DataError if the file is broken, and LimitError if it is too large.
    """
    with files.within_limits(str(path)) as (data, meter):
        return read_npz(data, str(path), meter)
