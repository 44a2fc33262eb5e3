"""Computes the waiting requests for one network in batches, on one thread."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

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

_Result = TypeVar("_Result")
_log = logging.getLogger("nnef_jax.serving")
# A batch is computed only if requests fill at least three quarters of it. Otherwise the requests
# are split into smaller batches.
_LEAST_FILLED_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A waiting request. Requests with equal `shapes` can be computed in one batch.

    Args:
        arrays: the inputs.
        count: the number of items in the request.
        shapes: the shapes of the inputs; see `Servable.padded_shapes`.
        step: the step of a sequence, or None.
        since: the time of arrival in seconds, by the clock of the event loop.
        result: the future outputs.
    """

    arrays: Arrays
    count: int
    shapes: tuple[tuple[int, ...], ...]
    step: SequenceStep | None
    since: float
    result: asyncio.Future[Arrays]


class Service:
    """A network that answers requests. `state` is "loading", "ready" or the text of an error.

    Requests are computed in the order of arrival, and requests with equal shapes are computed
    together. The next batch starts when the thread is free and one of two conditions holds: enough
    requests for the largest batch wait, or the first request has waited for `limits.delay` seconds.
    """

    def __init__(
        self,
        name: str,
        model: Model | Servable,
        sizes: Sequence[int],
        limits: ServingLimits,
        metrics: Metrics,
    ) -> None:
        self.name: str = name
        self._limits = limits
        self.state: str = "loading"
        self._shape_limit = FewShapes(limits.shapes)
        is_model = isinstance(model, Model)
        servable = _servable(name, model, sizes, limits) if is_model else model
        self.servable: Servable = servable
        self.metadata: dict[str, Any] = {
            "name": name,
            "versions": ["1"],
            "platform": "nnef_jax",
            "inputs": described(servable.inputs),
            "outputs": described(servable.outputs),
        }
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "nnef-jax-serving")
        self._observe_item_count = metrics.items.labels(name).observe
        metrics.watch("waiting", name, lambda: len(self._waiting))
        if isinstance(servable, Sequences):
            metrics.watch("sequences", name, lambda: len(servable))

    async def run(self, is_ready: Callable[[], None]) -> None:
        """Compile the network, call `is_ready`, and answer requests until cancelled."""
        try:
            if not self.servable.is_open:
                await self._in_thread(self.servable.compile)
            self.state = "ready"
            is_ready()
        except Exception as error:
            _log.exception("%s cannot be served", self.name)
            self.state = f"cannot be served: {error}"
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._answer())
            if isinstance(self.servable, Sequences):
                tasks.create_task(self._expire(self.servable))

    def close(self) -> None:
        """Release the thread on which requests are computed."""
        with suppress(RuntimeError):
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def infer(self, parameters: Mapping[str, Any], arrays: Arrays, timeout: float) -> Arrays:
        """Return the outputs for the parameters and the bound arrays of a request.

        Raises InputError for wrong parameters, Full if the queue is full, and TimeoutError after
        `timeout` seconds.
        """
        step = SequenceStep.of(parameters)
        if step and not isinstance(self.servable, Sequences):
            raise InputError(f"'{self.name}' has no state: it takes no sequence_id")
        sizes = self.servable.sizes  # empty if requests are computed singly
        count = len(arrays[0]) if sizes else 1
        if sizes and count > max(sizes):
            raise InputError(f"a request has at most {max(sizes)} items, this has {count}")
        shapes = self.servable.padded_shapes(arrays)
        self._shape_limit.require(shapes)
        if len(self._waiting) >= self._limits.queue:
            raise Full(f"{self._limits.queue} requests wait for the network, which is the limit")
        loop = asyncio.get_running_loop()
        waiting = _Waiting(
            arrays=arrays,
            count=count,
            shapes=shapes,
            step=step,
            since=loop.time(),
            result=loop.create_future(),
        )
        self._waiting.append(waiting)
        self._arrived.set()
        return await asyncio.wait_for(waiting.result, timeout)

    def _in_thread(self, work: Callable[..., _Result], *args: object) -> asyncio.Future[_Result]:
        """Call a function on the service's thread, and return its future result."""
        return asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    async def _expire(self, sequences: Sequences) -> None:
        """Drop unused states again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._limits.idle / 4)
            await self._in_thread(sequences.expire)

    async def _answer(self) -> None:
        """Compute batch after batch of waiting requests, until cancelled."""
        while True:
            await self._wait_for_batch()
            requests = self._take_batch()
            if requests:
                await self._answer_batch(requests)

    async def _answer_batch(self, requests: Sequence[_Waiting]) -> None:
        """Compute requests in one batch, and set the result or the error of each request."""
        try:
            results = await self._in_thread(partial(_compute, self.servable, requests))
        except Exception as error:
            for request in requests:
                # The future of a request that has timed out is done already.
                if not request.result.done():
                    request.result.set_exception(error)
            return
        self._observe_item_count(sum(request.count for request in requests))
        for request, result in zip(requests, results, strict=True):
            has_timed_out = request.result.done()
            if not has_timed_out:
                request.result.set_result(result)
            elif request.step and isinstance(self.servable, Sequences):
                # The client got no answer, and cannot know whether the state has changed. So the
                # sequence ends.
                await self._in_thread(self.servable.end, request.step)

    async def _wait_for_batch(self) -> None:
        """Wait until enough requests wait for a batch, or the first one has waited long enough."""
        loop = asyncio.get_running_loop()
        largest_batch = max(self.servable.sizes, default=0)
        while True:
            self._arrived.clear()
            # Without requests, the wait for the first one is not limited.
            remaining_delay = None
            if self._waiting:
                first = self._waiting[0]
                item_count = sum(request.count for request in self._waiting)
                remaining_delay = first.since + self._limits.delay - loop.time()
                if remaining_delay <= 0 or item_count >= largest_batch:
                    return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), remaining_delay)

    def _take_batch(self) -> list[_Waiting]:
        """Remove the requests of the next batch from the queue, and return them.

        The batch has the first request, and later requests with the same shapes that fit into the
        batch. Requests that have timed out are removed, too.
        """
        pending = [request for request in self._waiting if not request.result.done()]
        batch = pending[:1]
        if pending and self.servable.sizes:
            first, *later = pending
            item_count = first.count
            matches = [request for request in later if request.shapes == first.shapes]
            waiting_count = item_count + sum(request.count for request in matches)
            size = batch_size(self.servable.sizes, waiting_count)
            for request in matches:
                if item_count + request.count > size:
                    # Later requests might fit, but would be answered before earlier ones.
                    break
                batch.append(request)
                item_count += request.count
        # Requests are compared by identity, since arrays cannot be compared by ==.
        ids_in_batch = set(map(id, batch))
        self._waiting = deque(request for request in pending if id(request) not in ids_in_batch)
        return batch


def _servable(name: str, model: Model, sizes: Sequence[int], limits: ServingLimits) -> Servable:
    """Return the servable that runs a model in sequences, batches or single calls."""
    if model.graph.states:
        return Sequences(model, limits.sequences, limits.idle, FewShapes(limits.shapes))
    try:
        return model.batcher(sizes)
    except InputError as error:
        _log.warning("%s is served one request at a time: %s", name, error.message)
        return SingleCalls(model)


def batch_size(sizes: Sequence[int], waiting: int) -> int:
    """Return the size of the next batch if `waiting` items wait.

    This is the largest size that the items fill to at least three quarters. If they fill none, it
    is the smallest size. Of the sizes 1, 4 and 8, it is 8 for 6 items, and 4 for 5 items.
    """
    filled_sizes = [size for size in sizes if size * _LEAST_FILLED_SHARE <= waiting]
    return max(filled_sizes, default=min(sizes))


def _compute(servable: Servable, requests: Sequence[_Waiting]) -> Sequence[Arrays]:
    """Compute requests in one batch, and return the outputs of each request."""
    first = requests[0]
    if first.step and isinstance(servable, Sequences):
        return [servable.step(first.step, first.arrays)]
    return servable.compute_each([request.arrays for request in requests])
