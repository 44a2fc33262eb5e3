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
    """The pictures for one input.

    `name` is the name of the input. `pictures` has an array for each picture. If `is_stacked` is
    true, the pictures are stacked to one tensor. Otherwise each picture is for a separate call.
    """

    name: str
    paths: Sequence[Path]
    pictures: Sequence[Array]
    is_stacked: bool


def read_inputs(
    arguments: Sequence[str], specs: Sequence[TensorSpec], options: PictureOptions
) -> list[CallInputs]:
    """Return the calls that the files on a command line describe.

    `NAME=FILE` is a file for the input NAME. A .npz file without a name has arrays by input name.
    Any other file without a name is for the next input that has no file. Several pictures for one
    input are stacked if the batch extent of the input is open, or equals the number of pictures. If
    the batch extent is 1, or if there is no batch axis, each picture becomes a separate call.

    Raises InputError if files and inputs do not match, and DataError or OSError for a bad file.
    """
    arrays, paths = _assign(arguments, [spec.name for spec in specs])
    batches: list[_Batch] = []
    for spec in specs:
        input_paths = paths.get(spec.name, [])
        if any(map(is_picture, input_paths)):
            batches.append(_batch_of_pictures(input_paths, spec, options))
        elif input_paths:
            arrays[spec.name] = read_array(input_paths[0], spec.name)
    return _calls(arrays, batches)


def _batch_of_pictures(paths: Sequence[Path], spec: TensorSpec, options: PictureOptions) -> _Batch:
    """Read the pictures for an input. Raises InputError if they do not fit the input's batch."""
    pictures = [read_picture(path, spec, options) for path in paths]
    count = len(paths)
    # A layout without "n" has no batch axis, so each picture is for a separate call.
    batch_extent = spec.shape[0] if options.layout.startswith("n") else 1
    if batch_extent not in (None, 1, count):
        number = f"{count} pictures are given" if count > 1 else "1 picture is given"
        message = f"{number} for input '{spec.name}', which takes a batch of {batch_extent}"
        raise InputError(message)
    is_single = count == 1
    have_equal_shapes = len({picture.shape for picture in pictures}) == 1
    can_be_stacked = have_equal_shapes and batch_extent != 1
    return _Batch(spec.name, paths, pictures, is_stacked=is_single or can_be_stacked)


def _calls(arrays: dict[str, Array], batches: Sequence[_Batch]) -> list[CallInputs]:
    """Return the calls. Some inputs are arrays, and some inputs are pictures.

    If all pictures are stacked, there is a single call. Otherwise there is a call for each picture.
    Every call gets the inputs in `arrays`.
    """
    if not batches:
        return [CallInputs(arrays)]
    # Each input must have the same number of pictures, or a single picture.
    largest_batch = max(batches, key=lambda batch: len(batch.pictures))
    call_count = len(largest_batch.pictures)
    if any(len(batch.pictures) not in (1, call_count) for batch in batches):
        counts = [f"{len(batch.pictures)} for input '{batch.name}'" for batch in batches]
        raise InputError(f"the numbers of pictures differ: {', '.join(counts)}")
    titles = tuple(map(str, largest_batch.paths))
    if all(batch.is_stacked for batch in batches):
        stacked = {batch.name: np.concatenate(batch.pictures) for batch in batches}
        return [CallInputs(arrays | stacked, titles)]
    calls: list[CallInputs] = []
    for index, title in enumerate(titles):
        call_arrays = dict(arrays)
        for batch in batches:
            # A single picture for an input is used in every call.
            is_single = len(batch.pictures) == 1
            call_arrays[batch.name] = batch.pictures[0 if is_single else index]
        calls.append(CallInputs(call_arrays, (title,)))
    return calls


def _assign(
    arguments: Sequence[str], names: Sequence[str]
) -> tuple[dict[str, Array], dict[str, list[Path]]]:
    """Assign the arguments of a command line to inputs.

    Returns two dicts whose keys are names of inputs. The first dict has the arrays from .npz files
    without a name, and the second dict has the files of the remaining inputs.
    """
    arrays: dict[str, Array] = {}
    paths: dict[str, list[Path]] = {}
    unnamed_paths: list[Path] = []
    listed_names = ", ".join(names) or "none"
    for argument in arguments:
        name, equals, file = argument.partition("=")
        if equals and name in names:
            paths.setdefault(name, []).append(Path(file))
            continue
        path = Path(argument)
        # The name of an existing file may contain "=".
        looks_like_assignment = equals and name.isidentifier()
        if looks_like_assignment and not path.exists():
            raise InputError(f"the graph has no input '{name}', its inputs are {listed_names}")
        if path.suffix.lower() == ".npz":
            _add_members(arrays, path, argument, names)
        else:
            unnamed_paths.append(path)
    names_of_both = [name for name in paths if name in arrays]
    if names_of_both:
        raise InputError(f"input '{names_of_both[0]}' is given by name and by a .npz file")
    # Files without a name are for the inputs that have neither a file nor an array.
    names_without_file = [name for name in names if name not in paths and name not in arrays]
    _assign_unnamed(paths, unnamed_paths, names_without_file, names)
    missing = [name for name in names_without_file if name not in paths]
    if missing:
        missing_names = ", ".join(map(repr, missing))
        message = f"no file is given for input {missing_names}, the graph takes {listed_names}"
        raise InputError(message)
    _require_single_arrays(paths)
    return arrays, paths


def _add_members(arrays: dict[str, Array], path: Path, argument: str, names: Sequence[str]) -> None:
    """Add the arrays in a .npz file to `arrays`. `names` are the names of the inputs.

    Raises InputError for an array of an unknown name, or of a name that `arrays` has already.
    """
    for member, array in read_members(path).items():
        if member not in names:
            listed_names = ", ".join(names) or "none"
            message = f"{argument} holds '{member}', the graph's inputs are {listed_names}"
            raise InputError(message, hint=_NAME_HINT)
        if member in arrays:
            raise InputError(f"input '{member}' is given by two .npz files")
        arrays[member] = array


def _assign_unnamed(
    paths: dict[str, list[Path]],
    unnamed_paths: list[Path],
    names_without_file: Sequence[str],
    names: Sequence[str],
) -> None:
    """Assign the unnamed paths, in order, to the inputs that have no file, and add them to `paths`.

    If only one input has no file, all unnamed paths are for this input. Raises InputError if there
    are too many paths. `names` are the names of all inputs.
    """
    if len(names_without_file) == 1 and unnamed_paths:
        (name,) = names_without_file
        paths[name] = unnamed_paths
        return
    if len(unnamed_paths) > len(names_without_file):
        listed_names = ", ".join(names) or "none"
        message = f"{len(unnamed_paths)} files are given without a name"
        message += f", the graph's inputs are {listed_names}"
        if len(names_without_file) < len(names):
            message += f", of which {len(names_without_file)} have no file yet"
        raise InputError(message, hint=_NAME_HINT)
    # If there are fewer files than inputs, the last inputs get no file.
    for name, path in zip(names_without_file, unnamed_paths, strict=False):
        paths[name] = [path]


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
            with files.within_limits(str(path)) as (data, _meter):
                return read_npy(data, str(path))
        case ".npz":
            members = read_members(path)
            if name in members:
                return members[name]
            if len(members) != 1:
                listed_members = ", ".join(members) or "nothing"
                raise InputError(f"{path} holds {listed_members}, but no '{name}'")
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
    """Read a .npz file, and return a dict from the names in the file to arrays.

    Raises DataError if the file is broken, and LimitError if it is too large.
    """
    with files.within_limits(str(path)) as (data, meter):
        return read_npz(data, str(path), meter)
