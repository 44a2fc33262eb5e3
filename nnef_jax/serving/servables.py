"""Offers a network to a service: in batches, in single calls, or in sequences with a state."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nnef_jax.errors import InputError
from nnef_jax.formats.base import Progress
from nnef_jax.model import Model
from nnef_jax.tensor_spec import TensorSpec
from nnef_jax.workings import bind, types_of

Arrays = Sequence[NDArray[Any]]
# The id of a sequence has at most this many characters, because it is stored with the state.
_LONGEST_ID = 256
_MOST_ID_BITS = 64


class Full(Exception):
    """Raised if a limit is reached now. The client may send the request again later."""


class Servable(Protocol):
    """The interface of a network to a service. A `Batcher` implements this interface.

    A subclass needs the attributes, `compile`, `bind` and `compute`.

    Attributes:
        inputs: the inputs of a call, in order.
        outputs: the outputs of a call, in order.
        sizes: the batch sizes. There are none if calls cannot be batched.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    sizes: tuple[int, ...]

    @abstractmethod
    def compile(self, progress: Progress | None = None) -> None:
        """Compile the network for all calls whose shapes are known."""

    @abstractmethod
    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Arrays:
        """Return the arrays of a call in the order of the inputs.

        Raises InputError if the arrays do not fit the inputs.
        """

    @abstractmethod
    def compute(self, arrays: Arrays) -> Arrays:
        """Return the outputs for arrays that `bind` returned.

        Arrays of several calls may be concatenated along the axis of the batch.
        """

    @property
    def is_open(self) -> bool:
        """Tell whether extents other than the batch are open.

        Then programs are compiled at the first call for a shape, and `compile` is not called.
        """
        return any(None in spec.shape[1:] for spec in self.inputs)

    def padded_shapes(self, arrays: Arrays) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of a request's inputs after padding.

        If there are `sizes`, the shapes do not have the batch axis. `arrays` is the result of
        `bind`. Requests with equal shapes can be computed together.
        """
        has_batch = bool(self.sizes)
        return tuple(x.shape[1:] if has_batch else x.shape for x in arrays)

    def compute_each(self, requests: Sequence[Arrays]) -> Sequence[Arrays]:
        """Return the outputs of each request. A request is a result of `bind`.

        The requests have equal `padded_shapes`. There is only one request if there are no `sizes`.
        """
        if len(requests) == 1:
            return [self.compute(requests[0])]
        outputs = self.compute([np.concatenate(arrays) for arrays in zip(*requests, strict=True)])
        outputs_by_request: list[Arrays] = []
        start = 0
        for arrays in requests:
            end = start + len(arrays[0])
            outputs_by_request.append([output[start:end] for output in outputs])
            start = end
        return outputs_by_request


class FewShapes:
    """A limit on the number of input shapes for which a network is compiled.

    Each compiled executable stays in memory, so the number must be limited.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._served: set[Hashable] = set()

    def require(self, shapes: Hashable) -> None:
        """Raise InputError if the shapes of a request are new, and the limit is reached.

        `shapes` stands for the shapes of all inputs of the request. Allowed shapes are stored.
        """
        is_new = shapes not in self._served
        if is_new and len(self._served) >= self._most:
            message = f"inputs of {self._most} shapes were served, which is the limit"
            raise InputError(message, hint="load the network with known shapes, or allow more")
        self._served.add(shapes)


class SingleCalls(Servable):
    """A network whose requests are computed singly, since items of a batch are not independent."""

    sizes = ()

    def __init__(self, model: Model) -> None:
        self.model: Model = model
        self.inputs = model.inputs
        self.outputs = model.outputs

    def compile(self, progress: Progress | None = None) -> None:
        """Compile the network for the declared shapes. If an extent is open, do nothing."""
        try:
            types = types_of(self.model, (), {})
        except InputError:
            return
        example = [np.zeros(type.shape, type.dtype) for type in types]
        self.compute(example)
        if self.model.graph.states:
            self.model.step(self.model.init_state(*example), *example)

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Arrays:
        """Return the arrays of a call in the order of the inputs."""
        return bind(self.model, args, kwargs)

    def compute(self, arrays: Arrays) -> Arrays:
        """Return the outputs of a call."""
        return self._on_host(self.model(*arrays))

    def _on_host(self, results: Any) -> Arrays:
        outputs = results if len(self.outputs) > 1 else [results]
        return [np.asarray(x) for x in outputs]


class SequenceStep(NamedTuple):
    """A request of a sequence: the sequence's id, and whether the sequence starts or ends."""

    id: int | str
    starts: bool
    ends: bool

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> SequenceStep | None:
        """Return the step that the parameters of a request describe.

        Returns None if the request belongs to no sequence. Raises InputError for wrong parameters.
        """
        id = parameters.get("sequence_id", 0)
        starts = parameters.get("sequence_start", False)
        ends = parameters.get("sequence_end", False)
        is_id = type(id) in (int, str)
        are_flags = type(starts) is bool and type(ends) is bool
        if not is_id or not are_flags:
            message = "sequence_id must be a number or a string, sequence_start and sequence_end"
            raise InputError(f"{message} must be true or false")
        is_long_text = isinstance(id, str) and len(id) > _LONGEST_ID
        is_long_number = isinstance(id, int) and id.bit_length() > _MOST_ID_BITS
        if is_long_text or is_long_number:
            raise InputError(f"sequence_id has at most {_LONGEST_ID} characters, or 64 bits")
        # A request with the id 0 or "" belongs to no sequence.
        return cls(id, starts=starts, ends=ends) if id else None


class Sequences(SingleCalls):
    """A network with a state. A separate state is kept for each sequence of requests.

    States stay on the device. A state is dropped after `idle` seconds without use, and also if a
    cycle fails. A single thread makes all calls.
    """

    def __init__(self, model: Model, most: int, idle: float, shape_limit: FewShapes) -> None:
        super().__init__(model)
        self._most = most
        self._idle = idle
        self._shape_limit = shape_limit
        # Maps the id of a sequence to a pair: the time of the sequence's last use, in seconds by
        # the monotonic clock, and the state. The sequence used longest ago comes first.
        self._states: dict[int | str, tuple[float, Any]] = {}

    def __len__(self) -> int:
        return len(self._states)

    def step(self, step: SequenceStep, arrays: Arrays) -> Arrays:
        """Run a cycle of a sequence, and return the outputs.

        Raises InputError for an unknown sequence, and Full if there are too many sequences.
        """
        self.expire()
        if step.starts:
            is_new = step.id not in self._states
            if is_new and len(self._states) >= self._most:
                raise Full(f"{self._most} sequences are open, which is the limit")
            state = self.model.init_state(*arrays)
            self.end(step)  # drops the old state if the sequence is open already
        elif step.id in self._states:
            _, state = self._states.pop(step.id)
        else:
            raise InputError(
                f"there is no sequence {step.id!r:.60}",
                hint=f"sequence_start begins one; it ends {self._idle:g} s after its last use",
            )
        state_shapes = [(name, array.shape) for name, array in state.items()]
        self._shape_limit.require(("state", *state_shapes))
        results, next_state = self.model.step(state, *arrays)
        outputs = self._on_host(results)
        if not step.ends:
            self._states[step.id] = time.monotonic(), next_state
        return outputs

    def end(self, step: SequenceStep) -> None:
        """Drop the state of the sequence of `step`, if the sequence has a state."""
        self._states.pop(step.id, None)

    def expire(self) -> None:
        """Drop the states that have not been used for `idle` seconds."""
        earliest_use = time.monotonic() - self._idle
        for id, (last_use, _) in list(self._states.items()):
            if last_use > earliest_use:
                # The states are sorted by their last use: all later states were used recently too.
                break
            del self._states[id]
