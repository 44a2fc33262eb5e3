"""Makes for several threads once what each of them asks for."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import Any


class _Thread(threading.local):
    makes = False


_thread = _Thread()


class Once:
    """Keeps values by key. The first thread that asks for one makes it, others wait meanwhile.

    Values of different keys are made at the same time. What fails, or is interrupted, is not kept:
    those that wait make it anew, one after the other.

    A thread that makes something waits for nobody: what it asks for meanwhile it makes by itself,
    for a second time at worst. So no two threads wait for each other, and none for itself. Nor does
    a thread that Python did not start: it runs a callback for a computation that may be awaited.
    A process that is forked waits for no thread of its parent.
    """

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}
        self._locks: dict[Hashable, threading.Lock] = {}  # by process too

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the value of a key, or what `make` returns, which is kept."""
        if key in self._values:
            return self._values[key]
        if _thread.makes or _is_foreign():
            return self._values.setdefault(key, make())
        place = os.getpid(), key
        with self._locks.setdefault(place, threading.Lock()):
            if key not in self._values:
                _thread.makes = True
                try:
                    self._values.setdefault(key, make())
                finally:
                    _thread.makes = False
        self._locks.pop(place, None)  # those that wait have it
        return self._values[key]


def _is_foreign() -> bool:
    # So Python names threads that it did not start, which are of no public class of their own.
    return threading.current_thread().name.startswith("Dummy-")
