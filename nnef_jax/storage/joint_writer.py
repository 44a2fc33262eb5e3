"""Writes one tar archive from all hosts of a program; each host writes its shards of the arrays."""

from __future__ import annotations

import math
import os
import tarfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import BinaryIO

import jax
import numpy as np
from jax.experimental.multihost_utils import broadcast_one_to_all, process_allgather

from nnef_jax.errors import ArchiveError
from nnef_jax.storage import files, placing, temporaries
from nnef_jax.storage.tensorfile import encode_tensor
from nnef_jax.storage.writer import Member, by_normal_name, write_tar

_LONGEST_PATH_BYTES = 4096  # The path of the temporary file has at most this many bytes.


def write_jointly(
    path: str | os.PathLike[str],
    members: Mapping[str, Member],
    spread: Mapping[str, jax.Array],
    *,
    overwrite: bool = False,
) -> None:
    """Write an archive from several hosts, which share a file system. All hosts make this call.

    The first host writes all members, with zeros for the arrays in `spread`. Then each host writes
    its shards of these arrays into the file. No two hosts write the same bytes. Finally the first
    host renames the file. An error on one host is raised on all hosts.

    Args:
        path: the file to write. Its name must end in .tar.
        members: the members by name.
        spread: maps names of members to the arrays whose shards are on several hosts.
        overwrite: whether an existing file is replaced.
    """
    target = os.path.abspath(os.fsdecode(path))
    if not target.lower().endswith(".tar"):
        raise ArchiveError(
            f"'{target}' cannot be written by several hosts: they write parts of one file",
            hint="end the path in .tar, which is not compressed",
        )
    is_first = jax.process_index() == 0
    temporary_path = ""
    with ExitStack() as stack:
        with _together():
            if is_first:
                old_status = files.check_target(target, overwrite=overwrite)
                temporary = temporaries.temporary_file(target, private=old_status is not None)
                temporary_path, file = stack.enter_context(temporary)
                write_tar(file, by_normal_name(members))
                file.flush()
                os.fsync(file.fileno())
        with _together():
            # Only the first host knows the path of the temporary file.
            _fill_parts(_broadcast(temporary_path), spread)
        with _together():
            if is_first:
                # The check from the start is repeated, because the target may have changed.
                old_status = files.check_target(target, overwrite=overwrite)
                placing.keep_mode(temporary_path, old_status)
                placing.place_file(temporary_path, target, overwrite=overwrite)


@contextmanager
def _together() -> Generator[None]:
    """Wait until all hosts have run the block. If a host failed, raise an error on each host."""
    error: Exception | None = None
    try:
        yield
    except Exception as error_on_this_host:
        error = error_on_this_host
    # `have_failed` has a bool for each host: True if the block failed on the host.
    have_failed = process_allgather(np.array([error is not None]))
    failed_hosts = np.flatnonzero(have_failed)
    if error is not None:
        raise error
    if failed_hosts.size:
        raise ArchiveError(f"host {failed_hosts[0]} failed to write its part of the archive")


def _broadcast(text: str) -> str:
    """Return the text of the first host on all hosts. The texts of the remaining hosts are ignored.

    The function sends an array of bytes, because jax cannot send texts.
    """
    content = np.zeros(_LONGEST_PATH_BYTES, np.uint8)
    encoded = np.frombuffer(os.fsencode(text), np.uint8)
    content[: encoded.size] = encoded
    return os.fsdecode(bytes(broadcast_one_to_all(content)).rstrip(b"\0"))


def _fill_parts(path: str, spread: Mapping[str, jax.Array]) -> None:
    """Write this host's shards of the arrays into a tar archive."""
    with tarfile.open(path) as tar, open(path, "r+b", buffering=0) as file:
        for name, array in spread.items():
            start = tar.getmember(name).offset_data
            for shard in array.addressable_shards:
                # Several devices may have equal shards, of which only the first one is written.
                if shard.replica_id == 0:
                    _write_shard(file, start, shard, array.shape)
        os.fsync(file.fileno())


def _write_shard(file: BinaryIO, start: int, shard: jax.Shard, shape: Sequence[int]) -> None:
    """Write a shard into the tensor file of its array.

    The tensor file begins at the offset `start` of the archive. `shape` is the shape of the array.
    """
    array = np.asarray(shard.data)
    header, data = encode_tensor(array)
    bytes_per_item = len(data) // max(array.size, 1)
    written_bytes = 0
    for first_item, item_count in _runs(shard.index, shape):
        run_bytes = item_count * bytes_per_item
        file.seek(start + len(header) + first_item * bytes_per_item)
        file.write(data[written_bytes : written_bytes + run_bytes])
        written_bytes += run_bytes


def _runs(index: Sequence[slice], shape: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the items of an array that a shard covers, as runs of contiguous items.

    A run is a pair: the index of the first item in the flat array, and the number of items. `index`
    has a slice for each axis of the array. If it is [:, 1:3] and the shape is (2, 4), the runs are
    (1, 2) and (5, 2).
    """
    bounds: list[tuple[int, int]] = []
    for axis_slice, extent in zip(index, shape, strict=True):
        first, end, _step = axis_slice.indices(extent)
        bounds.append((first, end))
    # A cut axis is an axis along which the shard covers only a part of the array. After the last
    # cut axis, the shard covers all indices, so a run extends over all items along these axes.
    last_cut_axis = -1
    for axis, extent in enumerate(shape):
        if bounds[axis] != (0, extent):
            last_cut_axis = axis
    if last_cut_axis < 0:
        yield 0, math.prod(shape)
        return
    # The stride of an axis is the number of items from one index to the next along the axis. For
    # the shape (2, 4), the strides are 4 and 1.
    strides = [math.prod(shape[axis + 1 :]) for axis in range(last_cut_axis + 1)]
    *outer_strides, stride = strides
    first, end = bounds[last_cut_axis]
    items_of_run = (end - first) * stride
    outer_ranges = [range(*outer_bounds) for outer_bounds in bounds[:last_cut_axis]]
    # There is a run for each combination of indices along the axes before the last cut axis.
    for outer_indices in product(*outer_ranges):
        first_item = first * stride
        for outer_index, outer_stride in zip(outer_indices, outer_strides, strict=True):
            first_item += outer_index * outer_stride
        yield first_item, items_of_run
