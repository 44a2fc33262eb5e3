"""Tells whether this process was forked after jax had run: threads of its runtime are not in it.

A computation may wait for them for ever. The package imports this at once, to see the fork.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

is_without_threads = False


def _note() -> None:
    global is_without_threads
    # There is no public name for it, and asking by one would begin to run what has not.
    bridge = sys.modules.get("jax._src.xla_bridge")
    is_without_threads = bool(getattr(bridge, "_backends", None))


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_note)


def refuse() -> NoReturn:
    """Raise UnsupportedError, where a computation may wait for ever."""
    from nnef_jax.errors import UnsupportedError

    raise UnsupportedError(
        "this process was forked after jax had run: a call in it may never end",
        hint="start processes by multiprocessing.get_context('spawn') or 'forkserver', or fork "
        "before jax runs",
    )
