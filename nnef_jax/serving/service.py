"""One network of an application: requests that wait, and a thread that computes them in batches."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from nnef_jax.errors import InputError
from nnef_jax.model import Model
from nnef_jax.serving.bounds import ServingLimits
from nnef_jax.serving.metrics import Metrics
from nnef_jax.serving.protocol import described
from nnef_jax.serving.servables import (
    Arrays,
    FewShapes,
    Full,
    Sequences,
    SequenceStep,
    Servable,
    SingleCalls,
)

_log = logging.getLogger("nnef_jax.serving")
_FILLED = 0.75  # of a batch, from which on it is computed instead of a smaller one, and the rest


@dataclass(frozen=True, slots=True)
class _Waiting:
    arrays: Arrays
    count: int
    alike: Any
    step: SequenceStep | None
    since: float
    result: asyncio.Future[Arrays]


class Service:
    """A network that answers requests. `state` is "loading", "ready", or why it is neither.

    Requests are computed in the order of arrival, those that go together at once. One waits until
    the thread is free, and then until so many wait as the largest batch has, or the first has
    waited for the limits' `delay`.
    """

    def __init__(
        self,
        name: str,
        model: Model | Servable,
        sizes: Sequence[int],
        limits: ServingLimits,
        metrics: Metrics,
    ) -> None:
        self.name, self._limits, self.state = name, limits, "loading"
        self._shapes = FewShapes(limits.shapes)
        if isinstance(model, Model):
            model = _servable(name, model, sizes, limits)
        self.servable = servable = model
        inputs, outputs = described(servable.inputs), described(servable.outputs)
        told = {"name": name, "versions": ["1"], "platform": "nnef_jax"}
        self.metadata = {**told, "inputs": inputs, "outputs": outputs}
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "nnef-jax-serving")
        self._count = metrics.items.labels(name).observe
        metrics.watch("waiting", name, lambda: len(self._waiting))
        if isinstance(servable, Sequences):
            metrics.watch("sequences", name, lambda: len(servable))

    async def run(self, told: Callable[[], None]) -> None:
        """Compile the network, tell that it is ready, then answer what is submitted, for ever."""
        try:
            if not any(None in spec.shape[1:] for spec in self.servable.inputs):
                await self._in_thread(self.servable.compile)
            self.state = "ready"
            told()
        except Exception as error:
            _log.exception("%s cannot be served", self.name)
            self.state = f"cannot be served: {error}"
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._answer())
            if isinstance(self.servable, Sequences):
                tasks.create_task(self._expire(self.servable))

    def close(self) -> None:
        """Let go of the thread."""
        with suppress(RuntimeError):
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def infer(self, parameters: Mapping[str, Any], arrays: Arrays, timeout: float) -> Arrays:
        """Return the outputs for the parameters of a request, and arrays that `bind` returned.

        Raises InputError, Full, TimeoutError.
        """
        step = SequenceStep.of(parameters)
        sizes = self.servable.sizes
        if step and not isinstance(self.servable, Sequences):
            raise InputError(f"'{self.name}' has no state: sequence_id is for networks that have")
        if sizes and len(arrays[0]) > max(sizes):
            raise InputError(f"a request has at most {max(sizes)} items, this has {len(arrays[0])}")
        alike = tuple(x.shape[1:] if sizes else x.shape for x in arrays)
        self._shapes.require(alike)
        if len(self._waiting) >= self._limits.queue:
            raise Full(f"{self._limits.queue} requests wait for the network, which is the limit")
        loop, count = asyncio.get_running_loop(), len(arrays[0]) if sizes else 1
        waiting = _Waiting(arrays, count, alike, step, loop.time(), loop.create_future())
        self._waiting.append(waiting)
        self._arrived.set()
        return await asyncio.wait_for(waiting.result, timeout)

    def _in_thread(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    async def _expire(self, sequences: Sequences) -> None:
        while True:
            await asyncio.sleep(self._limits.idle / 4)
            await self._in_thread(sequences.expire)

    async def _answer(self) -> None:
        while True:
            await self._first()
            chosen = self._taken()
            if not chosen:
                continue
            try:
                results = await self._in_thread(partial(_computed, self.servable, chosen))
            except Exception as error:
                for each in chosen:
                    if not each.result.done():
                        each.result.set_exception(error)
                continue
            self._count(sum(each.count for each in chosen))
            for each, result in zip(chosen, results, strict=True):
                if not each.result.done():
                    each.result.set_result(result)
                elif each.step and isinstance(self.servable, Sequences):
                    # Who waited for it does not know whether the state has changed.
                    await self._in_thread(self.servable.end, each.step)

    async def _first(self) -> None:
        """Wait until what waits is to be computed."""
        now = asyncio.get_running_loop().time
        while True:
            self._arrived.clear()
            left = None
            if self._waiting:
                most = max(self.servable.sizes, default=0)
                left = self._waiting[0].since + self._limits.delay - now()
                if left <= 0 or sum(each.count for each in self._waiting) >= most:
                    return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), left)

    def _taken(self) -> list[_Waiting]:
        """Take the first request and others that are alike, as many as fill a batch well."""
        alive = [each for each in self._waiting if not each.result.done()]
        taken, total = alive[:1], sum(each.count for each in alive[:1])
        if alive and self.servable.sizes:
            alike = [each for each in alive[1:] if each.alike == alive[0].alike]
            size = batch_size(self.servable.sizes, total + sum(each.count for each in alike))
            for each in alike:
                if total + each.count > size:
                    break
                taken.append(each)
                total += each.count
        gone = set(map(id, taken))
        self._waiting = deque(each for each in alive if id(each) not in gone)
        return taken


def _servable(name: str, model: Model, sizes: Sequence[int], limits: ServingLimits) -> Servable:
    if model.graph.states:
        return Sequences(model, limits.sequences, limits.idle, FewShapes(limits.shapes))
    try:
        return model.batcher(sizes)
    except InputError as error:
        _log.warning("%s is served one request at a time: %s", name, error.message)
        return SingleCalls(model)


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
