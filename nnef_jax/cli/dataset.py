"""Lists the files of `nnef-jax batch`, and reads them ahead of the network."""

from __future__ import annotations

import codecs
import glob
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from lowering.extents import show
from lowering.graph import TensorType
from nnef_jax import DataError, InputError, NnefError, TensorSpec
from nnef_jax.calls.array_conversion import converted_to_type
from nnef_jax.cli.inputs import ARRAYS, Array, read_array, read_members
from nnef_jax.cli.pictures import PICTURES, PictureOptions, is_picture, read_picture
from nnef_jax.errors import extra_missing
from nnef_jax.storage import files

_CHUNK = 16  # A thread reads at most this many files at a time.
_SUFFIXES = (*ARRAYS, *PICTURES)


@dataclass(frozen=True, slots=True)
class Item:
    """A file, its size in bytes, and its modification time in ns.

    The size and the time are None if the file is missing.
    """

    file: str
    size: int | None
    modified: int | None


def find_items(arguments: Sequence[str], listed: Path | None, output: Path) -> list[Item]:
    """Return an item for each input file.

    Args:
        arguments: files, folders and patterns. A folder stands for all input files below it, sorted
            by name.
        listed: a text file with names of input files, in addition to `arguments`, or None. If a
            file in this list is missing, its item fails later, when the item is read.
        output: the output folder. Files in this folder are no inputs.

    Raises InputError for a folder or pattern without a file, and OSError if a file in `arguments`,
    or the file `listed`, is missing or unreadable.
    """
    output_prefix = os.path.realpath(output) + os.sep

    def is_output(file: str) -> bool:
        return os.path.realpath(file).startswith(output_prefix)

    paths: list[str] = []
    for argument in arguments:
        inputs = [file for file in _files_of(argument) if not is_output(file)]
        if not inputs:
            raise InputError(f"'{argument}' is in the output folder")
        paths += inputs
    if listed:
        if is_output(str(listed)):
            message = f"'{listed}' is in the output folder"
            raise InputError(message, hint="give another one to --out")
        paths += read_list(listed)
    if not paths:
        raise InputError("no inputs are given", hint="give files, folders, patterns or --list FILE")
    # The names of failed files are written to a text file with a name in each line, so a name must
    # not contain a line break.
    broken_names = [file for file in paths if "\n" in file or file.endswith("\r")]
    if broken_names:
        raise InputError(f"{broken_names[0]!r}: a file must not have a line break in its name")
    return [_item(file) for file in paths]


def _files_of(argument: str) -> list[str]:
    """Return the input files in a folder, the files that match a pattern, or a single file.

    Raises InputError for a folder or pattern without a file, and OSError for a missing file.
    """
    if os.path.isdir(argument):
        files_below = list(_input_files_below(argument))
        if not files_below:
            raise InputError(f"no {', '.join(_SUFFIXES)} file is below '{argument}'")
        return files_below
    # A file may have a name such as "scan[1].npy", which looks like a pattern.
    is_pattern = glob.has_magic(argument) and not os.path.lexists(argument)
    if is_pattern:
        matches = sorted(glob.iglob(argument, recursive=True))
        matching_files = [path for path in matches if os.path.isfile(path)]
        if not matching_files:
            raise InputError(f"no file matches '{argument}'")
        return matching_files
    os.stat(argument)  # This raises OSError if the file is missing.
    return [argument]


def read_list(path: Path) -> list[str]:
    """Return the names of files in a text file with a name in each line.

    The names may contain any bytes. Empty lines are left out.
    """
    with files.open_regular(str(path), DataError) as file:
        content = file.read().removeprefix(codecs.BOM_UTF8)
    names = [line.removesuffix(b"\r") for line in content.split(b"\n")]
    return [os.fsdecode(name) for name in names if name]


def _input_files_below(folder: str) -> Iterator[str]:
    """Yield the paths of all input files below a folder. Files in a folder are sorted by name."""

    def raise_error(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(folder, onerror=raise_error):
        folders.sort()
        for name in sorted(names):
            if name.lower().endswith(_SUFFIXES):
                yield os.path.join(parent, name)


def _item(file: str) -> Item:
    """Return a file as an item, with its present size and time."""
    try:
        status = os.stat(file)
    except (OSError, ValueError):
        # `os.stat` raises a ValueError for a name that no file can have, such as one with NUL.
        return Item(file, size=None, modified=None)
    return Item(file, size=status.st_size, modified=status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class ItemReader:
    """A function that reads a file as an item: an array for each input, with a batch extent of 1.

    Args:
        specs: the inputs of a single item. The first extent of each input is 1.
        pictures: the options for converting pictures.
    """

    specs: tuple[TensorSpec, ...]
    pictures: PictureOptions

    def __call__(self, file: str) -> dict[str, Array]:
        """Return the arrays in a file by input name.

        Raises NnefError if the file does not fit the inputs, and OSError if it cannot be read.
        """
        path = Path(file)
        if len(self.specs) == 1:
            (spec,) = self.specs
            if is_picture(path):
                arrays = {spec.name: read_picture(path, spec, self.pictures)}
            else:
                arrays = {spec.name: read_array(path, spec.name)}
        else:
            arrays = self._arrays_of_several_inputs(path, file)
        return {spec.name: _as_item(file, arrays[spec.name], spec) for spec in self.specs}

    def _arrays_of_several_inputs(self, path: Path, file: str) -> dict[str, Array]:
        """Return the arrays in a .npz file, after checking that there is one for each input."""
        names = [spec.name for spec in self.specs]
        if path.suffix.lower() != ".npz":
            raise InputError(
                f"{file} is one array, the graph takes {', '.join(names)}",
                hint="an item for several inputs is a .npz with an array for each",
            )
        arrays = read_members(path)
        if arrays.keys() != set(names):
            members = ", ".join(arrays) or "nothing"
            raise InputError(f"{file} holds {members}, the graph takes {', '.join(names)}")
        return arrays


def _as_item(file: str, array: Array, spec: TensorSpec) -> Array:
    """Return the array of a file in the shape and dtype of an input.

    The array may lack the axis of the batch. Raises InputError for another shape.
    """
    shape: Any = spec.shape
    shape_without_batch = shape[1:]
    if array.shape not in (shape, shape_without_batch):
        raise InputError(
            f"{file} has shape {show(array.shape)}, "
            f"an item of input '{spec.name}' has {show(shape)} or {show(shape_without_batch)}"
        )
    item = converted_to_type(file, array.reshape(shape), TensorType(shape, spec.dtype))
    # The array may be a mapped file, whose content is read when it is used. The copy reads the
    # content now, in a thread for reading, and not later in the thread that computes.
    return np.array(item)


@dataclass(frozen=True, slots=True)
class ItemArrays:
    """An item, and the outcome of reading or computing it.

    The outcome of reading is a dict of arrays by input name. The outcome of computing is a dict of
    rows by output name. If the item failed, the outcome is the error.
    """

    item: Item
    outcome: Mapping[str, Array] | Exception


def reading_ahead(
    read: Callable[[str], dict[str, Array]],
) -> Callable[[Sequence[Item], int], Iterator[ItemArrays]]:
    """Return a function that reads items in threads of grain, and yields them in order.

    `read` is a function that reads one file. The returned function takes items, and the number of
    items to read ahead.

    Raises UnsupportedError if grain is not installed.
    """
    try:
        import grain
    except ImportError:
        raise extra_missing("reading a dataset needs grain", "batch") from None

    def attempt(item: Item) -> ItemArrays:
        """Read one item. An error becomes the outcome of the item."""
        try:
            return ItemArrays(item, read(item.file))
        except (NnefError, OSError) as error:
            return ItemArrays(item, error)
        except ValueError as error:
            # Opening a file raises a ValueError for a name that no file can have.
            return ItemArrays(item, InputError(f"{item.file}: {error}"))

    def stream(items: Sequence[Item], items_ahead: int) -> Iterator[ItemArrays]:
        # Each element of grain's dataset is a chunk of several items. Whenever grain yields an
        # element, grain checks all elements in a buffer. This takes 0.2 ms for 1000 elements. With
        # chunks there are fewer elements, and fewer checks.
        thread_count = min(items_ahead, 2 * (os.cpu_count() or 1))
        chunk_size = min(_CHUNK, items_ahead // thread_count)
        starts = range(0, len(items), chunk_size)
        chunks = [items[start : start + chunk_size] for start in starts]
        chunks_ahead = items_ahead // chunk_size
        # A context variable records which files are read. Threads of grain do not inherit this
        # thread's context, so each chunk is read in a copy of this context.
        context = copy_context()

        def read_chunk(chunk: Sequence[Item]) -> list[ItemArrays]:
            return context.copy().run(lambda: list(map(attempt, chunk)))

        # grain reads in threads instead of processes. Threads are fast enough, since decoders
        # release the GIL. If the command were killed, processes of grain would continue to run.
        dataset = grain.MapDataset.source(chunks).map(read_chunk)
        options = grain.ReadOptions(num_threads=thread_count, prefetch_buffer_size=chunks_ahead)
        return chain.from_iterable(dataset.to_iter_dataset(options))

    return stream
