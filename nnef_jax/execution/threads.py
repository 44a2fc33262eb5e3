"""Caches values that several threads ask for, so that each is made once."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any


class _Thread(threading.local):
    makes = False


_thread = _Thread()
_ABSENT = object()


class Once:
    """Caches values by key. The first thread that asks for a value makes it; the others wait.

    With a limit, only the most recently used values are kept, in the order of their last use.

    Values of different keys may be made at the same time. If making a value raises an error, it is
    not cached: each waiting thread tries again, one after the other.

    A thread that is making a value never waits. If it asks for a second value that another thread
    is making, it makes that value, too. This excludes deadlocks between threads, and of a thread
    with itself. A thread that Python did not start never waits either: it may run a callback of the
    computation that the maker waits for. A forked process does not wait for its parent's threads.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self.values: OrderedDict[Hashable, Any] = OrderedDict()
        self._locks: dict[Hashable, threading.Lock] = {}  # by process and key

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the value of a key; cache `make()` if there is none."""
        value = self.values.get(key, _ABSENT)
        if value is not _ABSENT:
            return self.keep(key, value)
        if _thread.makes or _is_foreign():
            return self.keep(key, make())
        place = os.getpid(), key
        with self._locks.setdefault(place, threading.Lock()):
            value = self.values.get(key, _ABSENT)
            if value is _ABSENT:
                _thread.makes = True
                try:
                    value = self.keep(key, make())
                finally:
                    _thread.makes = False
        self._locks.pop(place, None)  # Waiting threads hold a reference.
        return value

    def keep(self, key: Hashable, candidate: Any) -> Any:
        """Return the value of a key; cache the candidate if there is none."""
        value = self.values.setdefault(key, candidate)
        if self._limit is not None:
            with suppress(KeyError):  # Another thread may have removed the value.
                self.values.move_to_end(key)
                while len(self.values) > self._limit:
                    self.values.popitem(last=False)
        return value


def _is_foreign() -> bool:
    # Python gives these names to threads that it did not start. Their class is private.
    return threading.current_thread().name.startswith("Dummy-")
