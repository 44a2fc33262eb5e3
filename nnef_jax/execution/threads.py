"""Caches values that several threads need. Each value is made once."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any


class _Thread(threading.local):
    is_making = False


_thread = _Thread()
_ABSENT = object()


class Once:
    """A cache of values by key. The first thread that needs a value makes it. Other threads wait.

    If there is a limit, the cache holds at most that many values, and drops the least recently
    used ones. The values are in the order of their last use.

    Values of different keys may be made at the same time. If making a value raises an error,
    nothing is cached, and the waiting threads try again, one after the other.

    A thread that is making a value never waits. If it asks for a second value that another
    thread is making, it makes the second value too. If it waited, two threads might wait for
    each other, or a thread for itself. A thread that Python did not start never waits either:
    the thread that is making the value may wait for a callback that runs in this thread. A forked
    process does not wait for threads of its parent.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self.values: OrderedDict[Hashable, Any] = OrderedDict()
        # The locks of values that are being made. A key has the number of the process and the key
        # of the value.
        self._locks: dict[Hashable, threading.Lock] = {}

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the value of a key. If there is none, cache and return `make()`."""
        value = self.values.get(key, _ABSENT)
        if value is not _ABSENT:
            return self.keep(key, value)
        if _thread.is_making or _is_foreign():
            return self.keep(key, make())  # without waiting
        lock_key = os.getpid(), key
        with self._locks.setdefault(lock_key, threading.Lock()):
            # Another thread may have made the value while this thread waited for the lock.
            value = self.values.get(key, _ABSENT)
            if value is _ABSENT:
                _thread.is_making = True
                try:
                    value = self.keep(key, make())
                finally:
                    _thread.is_making = False
        # Threads that wait for the lock have references to it, so it can be removed from the dict.
        self._locks.pop(lock_key, None)
        return value

    def keep(self, key: Hashable, candidate: Any) -> Any:
        """Return the value of a key. If there is none, cache and return `candidate`."""
        value = self.values.setdefault(key, candidate)
        if self._limit is not None:
            # Another thread may have removed the value, and then there is nothing to move.
            with suppress(KeyError):
                self.values.move_to_end(key)
                while len(self.values) > self._limit:
                    self.values.popitem(last=False)
        return value


def _is_foreign() -> bool:
    """Tell whether Python did not start the current thread."""
    # If Python did not start a thread, it names the thread "Dummy-1" or "Dummy-2" and so on. The
    # class of such threads is private, so the name is tested.
    return threading.current_thread().name.startswith("Dummy-")
