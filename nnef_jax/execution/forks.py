"""Records whether this process was forked after jax had run; if so, refuses computations.

The forked process lacks the threads of jax's runtime, and a computation that waits for them never
ends. The package imports this module first, to observe every fork.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

is_without_threads: bool = False


def _note() -> None:
    global is_without_threads
    # The private attribute `_backends` has the backends of jax's runtime, if the runtime has
    # started. A public function that returns the backends would start the runtime.
    bridge = sys.modules.get("jax._src.xla_bridge")
    is_without_threads = bool(getattr(bridge, "_backends", None))


# Windows has no forks, and no such function.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note)


def refuse() -> NoReturn:
    """Raise UnsupportedError: without jax's threads, a computation might never end."""
    from nnef_jax.errors import UnsupportedError

    hint = "start processes by multiprocessing.get_context('spawn') or 'forkserver'"
    raise UnsupportedError(
        "this process was forked after jax had run: a call in it may never end",
        hint=f"{hint}, or fork before jax runs",
    )
