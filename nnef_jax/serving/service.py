"""One network of an application: from a request's arrays to outputs, within limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from nnef_jax.errors import InputError
from nnef_jax.model import Model
from nnef_jax.serving.bounds import ServingLimits
from nnef_jax.serving.metrics import Metrics
from nnef_jax.serving.protocol import InferenceRequest, described
from nnef_jax.serving.request_queue import RequestQueue
from nnef_jax.serving.servables import (
    Arrays,
    FewShapes,
    Sequences,
    SequenceStep,
    Servable,
    SingleCalls,
    compiled_for,
)

_log = logging.getLogger("nnef_jax.serving")


class Service:
    """A network that answers requests. `state` is "loading", "ready", or why it is neither."""

    def __init__(
        self,
        name: str,
        model: Model | Servable,
        sizes: Sequence[int],
        limits: ServingLimits,
        metrics: Metrics,
    ) -> None:
        self.name, self._limits = name, limits
        self.state = "loading"
        self._shapes = FewShapes(limits.shapes)
        self.servable = servable = (
            self._servable(model, sizes) if isinstance(model, Model) else model
        )
        self.metadata = {
            "name": name,
            "versions": ["1"],
            "platform": "nnef_jax",
            "inputs": described(servable.inputs),
            "outputs": described(servable.outputs),
        }
        computed = metrics.items.labels(name).observe
        self.queue = RequestQueue(servable, limits.queue, limits.delay, computed)
        metrics.watch("waiting", name, lambda: len(self.queue))
        if isinstance(servable, Sequences):
            metrics.watch("sequences", name, lambda: len(servable))

    def _servable(self, model: Model, sizes: Sequence[int]) -> Servable:
        limits = self._limits
        if model.graph.states:
            return Sequences(model, limits.sequences, limits.idle, FewShapes(limits.shapes))
        try:
            return model.batcher(sizes)
        except InputError as error:
            _log.warning("%s is served one request at a time: %s", self.name, error.message)
            return SingleCalls(model)

    async def run(self, told: Callable[[], None]) -> None:
        """Compile the network, tell that it is ready, then answer what is submitted, for ever."""
        loop = asyncio.get_running_loop()
        try:
            open_extents = any(None in spec.shape[1:] for spec in self.servable.inputs)
            if not open_extents:
                await loop.run_in_executor(self.queue.thread, self.servable.compile)
            self.state = "ready"
            told()
        except Exception as error:
            _log.exception("%s cannot be served", self.name)
            self.state = f"cannot be served: {error}"
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.queue.run())
            if isinstance(self.servable, Sequences):
                tasks.create_task(self._expire(self.servable))

    async def _expire(self, sequences: Sequences) -> None:
        while True:
            await asyncio.sleep(self._limits.idle / 4)
            await asyncio.get_running_loop().run_in_executor(self.queue.thread, sequences.expire)

    async def infer(self, request: InferenceRequest, timeout: float) -> Arrays:
        """Return the outputs for a request. Raises InputError, Full, TimeoutError."""
        step = SequenceStep.of(request.parameters)
        sizes = self.servable.sizes
        if step and not isinstance(self.servable, Sequences):
            raise InputError(f"'{self.name}' has no state: sequence_id is for networks that have")
        arrays = self.servable.bind((), request.arrays)
        if sizes and len(arrays[0]) > max(sizes):
            raise InputError(f"a request has at most {max(sizes)} items, this has {len(arrays[0])}")
        self._shapes.require(compiled_for(arrays, sizes))
        return await self.queue.submit(arrays, step, timeout)

    def close(self) -> None:
        """Let go of the thread."""
        with suppress(RuntimeError):
            self.queue.thread.shutdown(wait=False, cancel_futures=True)
