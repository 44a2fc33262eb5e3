"""The results of `nnef-jax batch`: a folder of parts, which a later run continues.

PART.npz has the outputs of consecutive items, with a row for each item. PART.jsonl has a line for
each item. The line contains the name of the item's file, and either the index of the item's row in
PART.npz or the error. The last line also contains a checksum of both files. PART.jsonl is written
after PART.npz, and a part whose checksum is missing or wrong is computed again. batch.json has the
settings of all parts.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from math import ceil
from pathlib import Path
from typing import Any, cast

import numpy as np

from nnef_jax import DataError, InputError, NnefError, TensorSpec
from nnef_jax.cli.dataset import Item, ItemArrays
from nnef_jax.cli.inputs import Array
from nnef_jax.cli.outputs import save_npz
from nnef_jax.cli.terminal import message_of
from nnef_jax.storage import files, protected_files
from nnef_jax.wording.printable import printable

_SETTINGS = "batch.json"
_FAILURES = "failures.txt"
_PART_SIZE = "--part-size"
_OTHER_FOLDER = "give another folder to --out"
_CHECKSUM = "sha256"
_PART = re.compile(r"part-(\d{5,})\.jsonl")
_DEFAULT_BYTES = 64 << 20  # By default a part has about this many bytes.
_MOST_ITEMS = 1024  # By default a part has at most this many items.


class Parts:
    """The finished and the pending parts of a batch, in a folder.

    Raises InputError if the folder has results for other items or settings, or other files but no
    batch.json.
    Raises DataError if batch.json is damaged, and OSError if the folder cannot be read or created.

    Args:
        folder: the folder of the parts, which is created if it is missing.
        items: all items, in order.
        settings: the JSON values on which results depend. The keys are the names that the values
            have in error messages.
        outputs: the outputs of the network. Their first extent is the size of a batch.
        size: the number of items of a part. The default is the size in an earlier run. Without an
            earlier run, the outputs of a part have about 64 MB, but a part has at most 1024 items.
    """

    def __init__(
        self,
        folder: Path,
        items: Sequence[Item],
        settings: Mapping[str, Any],
        outputs: Sequence[TensorSpec],
        size: int | None,
    ) -> None:
        self.folder: Path = folder
        self._items = items
        self._outputs = outputs
        # Each failure is the name of a file and the reason.
        self.failures: list[tuple[str, str]] = []
        # These are the paths of damaged parts, which are computed again.
        self.damaged: list[str] = []
        self._size = self._size_of_parts(settings, size)
        self.pending: list[int] = self._pending_parts()

    def items_of(self, part: int) -> Sequence[Item]:
        """Return the items of the part with the index `part`."""
        start = part * self._size
        return self._items[start : start + self._size]

    def write(self, part: int, results: Sequence[ItemArrays]) -> None:
        """Write the results of all items of a part, and then a record for each item."""
        self._write_arrays(part, results)
        records: list[dict[str, Any]] = []
        next_row = 0
        for result in results:
            record = asdict(result.item)
            if isinstance(result.outcome, Exception):
                record["error"] = reason(result.outcome)
                self.failures.append((record["file"], record["error"]))
            else:
                record["row"] = next_row
                next_row += 1
            records.append(record)
        # The checksum of the part is computed from all records, and then added to the last record.
        records[-1][_CHECKSUM] = self._checksum(part, records)
        with files.replacing(self._path(part, "jsonl"), overwrite=True) as file:
            file.writelines(_encoded(records))

    def _write_arrays(self, part: int, results: Sequence[ItemArrays]) -> None:
        """Write the outputs of a part, with a row for each item that did not fail."""
        outcomes = [result.outcome for result in results]
        computed_rows = [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
        arrays: dict[str, Array] = {}
        for spec in self._outputs:
            if computed_rows:
                arrays[spec.name] = np.stack([outputs[spec.name] for outputs in computed_rows])
            else:
                # All items failed. In the empty array, the extent 0 stands for an open extent.
                item_shape = [extent or 0 for extent in spec.shape[1:]]
                arrays[spec.name] = np.zeros((0, *item_shape), spec.dtype)
        save_npz(self._path(part, "npz"), arrays, overwrite=True)

    def write_failures(self) -> str:
        """Write the names of the files that failed, one a line.

        Return the path of the written file, or '' if nothing failed.
        """
        path = str(self.folder / _FAILURES)
        if not self.failures:
            # An earlier run may have left a list.
            with suppress(FileNotFoundError):
                os.unlink(path)
            return ""
        with files.replacing(path, overwrite=True) as file:
            file.writelines(os.fsencode(f"{name}\n") for name, _reason in self.failures)
        return path

    def _size_of_parts(self, settings: Mapping[str, Any], size: int | None) -> int:
        """Return the number of items of a part.

        If the folder has no settings of an earlier run, write the current settings. `size` is the
        number of items that the user has chosen, or None. Raises InputError if the settings of an
        earlier run differ.
        """
        with suppress(FileExistsError):
            self.folder.mkdir()
        if not self.folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.folder))
        path = str(self.folder / _SETTINGS)
        earlier_settings = _read_settings(path)
        if earlier_settings is not None:
            part_size: int = size or earlier_settings[_PART_SIZE]
            self._require_equal_settings(earlier_settings, {**settings, _PART_SIZE: part_size})
            return part_size
        foreign_files = [name for name in os.listdir(self.folder) if not name.startswith(".")]
        if foreign_files:
            raise InputError(
                f"'{self.folder}' holds other files, such as '{min(foreign_files)}'",
                hint="give an empty or a new folder to --out",
            )
        part_size = size or self._default_size()
        with files.replacing(path, overwrite=True) as file:
            file.write(json.dumps({**settings, _PART_SIZE: part_size}).encode())
        return part_size

    def _require_equal_settings(
        self, earlier: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> None:
        """Raise InputError if the settings of an earlier run differ from the current settings."""
        # The earlier settings were stored as JSON, which turns tuples into lists. The current
        # settings are converted in the same way before the comparison.
        current = json.loads(json.dumps(settings))
        for name in sorted(earlier.keys() | current.keys()):
            earlier_value = earlier.get(name)
            value = current.get(name)
            if value == earlier_value:
                continue
            # The network is stored as a digest, which an error need not show.
            origin = "of another network"
            if name != "network":
                origin = f"with {name} {_shown(earlier_value)}, now it is {_shown(value)}"
            raise InputError(f"'{self.folder}' has results {origin}", hint=_OTHER_FOLDER)

    def _default_size(self) -> int:
        """Return the number of items whose outputs have 64 MB: at least 1, and at most 1024."""
        bytes_per_item = 0
        for spec in self._outputs:
            # An open extent is taken as 1.
            number_count = int(np.prod([extent or 1 for extent in spec.shape[1:]]))
            bytes_per_item += number_count * np.dtype(spec.dtype).itemsize
        items_in_default_bytes = _DEFAULT_BYTES // max(bytes_per_item, 1)
        return max(1, min(_MOST_ITEMS, items_in_default_bytes))

    def _pending_parts(self) -> list[int]:
        """Return the indices of the parts that are missing, damaged or outdated.

        A part is outdated if items were added to it, or if the file of a failed item has changed.
        Damaged parts are added to the attribute `damaged`, and failures in finished parts to the
        attribute `failures`.
        """
        part_count = ceil(len(self._items) / self._size)
        matches = map(_PART.fullmatch, os.listdir(self.folder))
        parts_with_records = {int(match[1]) for match in matches if match}
        # A part beyond the last one is from an earlier run with more items.
        if parts_with_records and max(parts_with_records) >= part_count:
            raise self._other_inputs(f"there were more than {len(self._items)}")
        pending: list[int] = []
        for part in range(part_count):
            has_arrays = os.path.exists(self._path(part, "npz"))
            is_missing = part not in parts_with_records or not has_arrays
            if is_missing:
                pending.append(part)
                continue
            records = self._read(part)
            if records is None:
                self.damaged.append(self._path(part, "jsonl"))
                pending.append(part)
            elif self._is_outdated(part, records, self.items_of(part)):
                pending.append(part)
            else:
                failed = [record for record in records if "row" not in record]
                self.failures += [(record["file"], record["error"]) for record in failed]
        return pending

    def _is_outdated(
        self, part: int, records: Sequence[dict[str, Any]], items: Sequence[Item]
    ) -> bool:
        """Tell whether items were added to a part, or the file of a failed item has changed.

        `records` are the part's records from the earlier run. `items` are its current items. Raises
        InputError if the file of a computed item has changed, or if the part had other items.
        """
        if len(records) > len(items):
            raise self._other_inputs(f"there were more than {len(self._items)}")
        has_changed_failure = False
        # If items were added since the earlier run, there are more items than records.
        for record, item in zip(records, items, strict=False):
            if record["file"] != item.file:
                raise self._other_inputs(f"'{record['file']}' was where '{item.file}' is now")
            # The current record has the present size and time of the file.
            current_record = {**record, **asdict(item)}
            if record == current_record:
                continue
            if "error" not in record:
                raise InputError(
                    f"'{item.file}' has changed since its results in '{self.folder}' were computed",
                    hint="give another folder to --out, or compute its part again: remove "
                    f"{self._path(part, 'jsonl')}",
                )
            has_changed_failure = True
        has_new_items = len(records) < len(items)
        return has_changed_failure or has_new_items

    def _read(self, part: int) -> list[dict[str, Any]] | None:
        """Return the records of the items of a part, or None if the part is damaged."""
        try:
            with (
                protected_files.without_noting(),
                files.open_regular(self._path(part, "jsonl"), DataError) as file,
            ):
                records = [json.loads(line) for line in file]
            checksum = records[-1].pop(_CHECKSUM)
            return records if checksum == self._checksum(part, records) else None
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            # The file is no JSON, or it is JSON of another structure.
            return None

    def _checksum(self, part: int, records: Sequence[dict[str, Any]]) -> str:
        """Return one sha256 over a part's .npz file and then the lines of the part's records."""
        with (
            protected_files.without_noting(),
            files.open_regular(self._path(part, "npz"), DataError) as file,
        ):
            digest = hashlib.file_digest(cast(Any, file), "sha256")
        for line in _encoded(records):
            digest.update(line)
        return digest.hexdigest()

    def _other_inputs(self, difference: str) -> InputError:
        """Return the error for a folder with results of other items than the current items."""
        return InputError(
            f"'{self.folder}' has results for other inputs: {difference}",
            hint="give another folder to --out, or the inputs in their former order",
        )

    def _path(self, part: int, suffix: str) -> str:
        """Return a path such as FOLDER/part-00012.npz."""
        return str(self.folder / f"part-{part:05}.{suffix}")


def _read_settings(path: str) -> dict[str, Any] | None:
    """Return the settings of an earlier run, or None if there was none.

    Raises DataError if the file at `path` is damaged.
    """
    try:
        with protected_files.without_noting(), files.open_regular(path, DataError) as file:
            settings = json.loads(file.read())
        size = settings[_PART_SIZE]
        is_valid = type(size) is int and size >= 1
        if not is_valid:
            raise ValueError
        return settings
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError, RecursionError):
        # The file is no JSON, or it is JSON without a valid size of parts.
        raise DataError(f"{path}: damaged", hint=_OTHER_FOLDER) from None


def reason(error: Exception) -> str:
    """Return the reason why an item failed, as one or more lines of text."""
    if isinstance(error, OSError):
        return message_of(error)
    lines = error.lines() if isinstance(error, NnefError) else [str(error)]
    return "\n".join(map(printable, lines))


def _encoded(records: Sequence[dict[str, Any]]) -> list[bytes]:
    """Return a line of JSON for each record."""
    return [f"{json.dumps(record)}\n".encode() for record in records]


def _shown(setting: object) -> str:
    """Return a setting for an error message: a string without quotes, anything else as JSON."""
    return setting if isinstance(setting, str) else json.dumps(setting)
