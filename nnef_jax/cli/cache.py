"""Finds, trims, shows and clears the user's folder of compiled networks, for commands."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Generator
from contextlib import contextmanager

from nnef_jax import InputError
from nnef_jax.execution import cache_folder

MOST = 2_000_000_000  # The user's folder is trimmed to this many bytes.


@contextmanager
def bounded_folder(cache_dir: str | None) -> Generator[str | None]:
    """Yield the folder for compiled networks: `cache_dir`, or by default the user's folder.

    After the block, the user's folder is trimmed to `MOST` bytes. If the user's folder cannot be
    used, yield None without a message.
    """
    if cache_dir is not None:
        yield cache_dir
        return
    folder = cache_folder.users_folder()
    reason_unusable = cache_folder.prepare(folder)
    if reason_unusable:
        yield None
        return
    # The user did not name this folder, and needs no warning if nothing can be stored in it.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "compiled code is not kept")
        yield folder
    cache_folder.trim(folder, MOST)


@contextmanager
def required_folder(cache_dir: str | None) -> Generator[str]:
    """Yield the folder for compiled networks, as `bounded_folder` does.

    Raises InputError if the folder cannot be used.
    """
    if cache_dir is None:
        users_folder = cache_folder.users_folder()
        _require_usable(users_folder, reason_unusable=cache_folder.prepare(users_folder))
    with bounded_folder(cache_dir) as folder:
        assert folder is not None
        yield folder


def cache_report(*, clear: bool, as_json: bool) -> str:
    """Return the user's folder, and the number and size of the files in it, as text or JSON.

    If `clear` is true, the files are removed, and the report is about the removed files.
    Raises InputError if the folder cannot be used.
    """
    folder = cache_folder.users_folder()
    # A folder that does not exist yet has no files, and is no error.
    if os.path.lexists(folder):
        _require_usable(folder, cache_folder.reason_unusable(folder))
    files = cache_folder.clear(folder) if clear else cache_folder.entries(folder)
    size = sum(file.size for file in files)
    if as_json:
        figures: dict[str, object] = {"folder": folder, "files": len(files), "bytes": size}
        if clear:
            figures["cleared"] = True
        else:
            figures["most_bytes"] = MOST
        return json.dumps(figures)
    megabytes = f"{size / 1e6:.1f} MB"
    if clear:
        return f"removed {len(files)} files, {megabytes}, from {folder}"
    facts = {
        "folder": folder,
        "files": len(files),
        "size": megabytes,
        "at most": f"{MOST / 1e6:.1f} MB",
    }
    return "\n".join(f"{name:<16}{fact}" for name, fact in facts.items())


def _require_usable(folder: str, reason_unusable: str) -> None:
    """Raise InputError for an unusable folder. `reason_unusable` is "" if the folder is usable."""
    if reason_unusable:
        raise InputError(
            f"the cache folder '{folder}' cannot be used: {reason_unusable}",
            hint="give another folder to --cache-dir",
        )
