"""Makes for several threads once what each of them asks for."""

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
    """Keeps values by key. The first thread that asks for one makes it, others wait meanwhile.

    A limit is how many values are kept: the last ones that were asked for, in this order.

    Values of different keys are made at the same time. What fails, or is interrupted, is not kept:
    those that wait make it anew, one after the other.

    A thread that makes something waits for nobody: what it asks for meanwhile it makes by itself,
    for a second time at worst. So no two threads wait for each other, and none for itself. Nor does
    a thread that Python did not start: it runs a callback for a computation that may be awaited.
    A process that is forked waits for no thread of its parent.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self.values: OrderedDict[Hashable, Any] = OrderedDict()
        self._locks: dict[Hashable, threading.Lock] = {}  # by process too

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the value of a key, or what `make` returns, which is kept."""
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
        self._locks.pop(place, None)  # those that wait have it
        return value

    def keep(self, key: Hashable, made: Any) -> Any:
        """Return the value of a key that has one, or what is made, which is kept then."""
        value = self.values.setdefault(key, made)
        if self._limit is not None:
            with suppress(KeyError):  # another thread has let it go
                self.values.move_to_end(key)
                while len(self.values) > self._limit:
                    self.values.popitem(last=False)
        return value


def _is_foreign() -> bool:
    # So Python names threads that it did not start, which are of no public class of their own.
    return threading.current_thread().name.startswith("Dummy-")
