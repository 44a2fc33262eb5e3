"""Queues requests for a network, and computes them in batches on one thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from nnef_jax.serving.servables import Arrays, Full, Sequences, SequenceStep, Servable, compiled_for

_FILLED = 0.75  # of a batch, from which on it is computed instead of a smaller one, and the rest


@dataclass(frozen=True, slots=True)
class _Waiting:
    arrays: Arrays
    count: int
    alike: Hashable
    step: SequenceStep | None
    since: float
    result: asyncio.Future[Arrays]


class RequestQueue:
    """Computes requests in the order of arrival, those that go together at once.

    A request waits until the thread is free, and then until so many wait as the largest batch has,
    or the first has waited for `delay` seconds. `computed` is told how many items were.
    """

    def __init__(
        self, servable: Servable, limit: int, delay: float, computed: Callable[[int], None]
    ) -> None:
        self._servable, self._limit, self._delay = servable, limit, delay
        self._computed = computed
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self.thread = ThreadPoolExecutor(1, "nnef-jax-serving")

    def __len__(self) -> int:
        return len(self._waiting)

    async def submit(self, arrays: Arrays, step: SequenceStep | None, timeout: float) -> Arrays:
        """Return the outputs for the arrays of a request.

        Raises Full where too many wait, TimeoutError, and what computing raises.
        """
        if len(self._waiting) >= self._limit:
            raise Full(f"{self._limit} requests wait for the network, which is the limit")
        loop = asyncio.get_running_loop()
        sizes = self._servable.sizes
        count = len(arrays[0]) if sizes else 1
        alike = compiled_for(arrays, sizes)
        waiting = _Waiting(arrays, count, alike, step, loop.time(), loop.create_future())
        self._waiting.append(waiting)
        self._arrived.set()
        return await asyncio.wait_for(waiting.result, timeout)

    async def run(self) -> None:
        """Compute submitted requests, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await self._first()
            chosen = self._taken()
            if not chosen:
                continue
            try:
                compute = partial(_computed, self._servable, chosen)
                results = await loop.run_in_executor(self.thread, compute)
            except Exception as error:
                for each in chosen:
                    if not each.result.done():
                        each.result.set_exception(error)
                continue
            self._computed(sum(each.count for each in chosen))
            for each, result in zip(chosen, results, strict=True):
                if not each.result.done():
                    each.result.set_result(result)
                elif each.step and isinstance(self._servable, Sequences):
                    # Who waited for it does not know whether the state has changed.
                    await loop.run_in_executor(self.thread, self._servable.end, each.step)

    async def _first(self) -> None:
        """Wait until what waits is to be computed."""
        loop = asyncio.get_running_loop()
        while True:
            self._arrived.clear()
            left = None
            if self._waiting:
                most = max(self._servable.sizes, default=0)
                left = self._waiting[0].since + self._delay - loop.time()
                if left <= 0 or sum(each.count for each in self._waiting) >= most:
                    return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), left)

    def _taken(self) -> list[_Waiting]:
        """Take the first request and others that are alike, as many as fill a batch well."""
        alive = [each for each in self._waiting if not each.result.done()]
        if not alive:
            self._waiting.clear()
            return []
        first, *others = alive
        taken, total = [first], first.count
        if self._servable.sizes:
            alike = [each for each in others if each.alike == first.alike]
            size = batch_size(self._servable.sizes, total + sum(each.count for each in alike))
            for each in alike:
                if total + each.count > size:
                    break
                taken.append(each)
                total += each.count
        gone = {id(each) for each in taken}
        self._waiting = deque(each for each in alive if id(each) not in gone)
        return taken


def batch_size(sizes: Sequence[int], waiting: int) -> int:
    """Return the size of the batch to compute, where so many items wait."""
    filled = [size for size in sizes if size * _FILLED <= waiting]
    return max(filled, default=min(sizes))


def _computed(servable: Servable, chosen: Sequence[_Waiting]) -> list[Arrays]:
    """Return the outputs of each request, which are computed together."""
    (first, *others) = chosen
    if first.step and isinstance(servable, Sequences):
        return [servable.step(first.step, first.arrays)]
    if not others:
        return [servable.compute(first.arrays)]
    columns = zip(*(each.arrays for each in chosen), strict=True)
    outputs = servable.compute([np.concatenate(column) for column in columns])
    stops = np.cumsum([each.count for each in chosen])[:-1]
    rows: list[Any] = [np.split(x, stops) for x in outputs]
    return [list(parts) for parts in zip(*rows, strict=True)]
