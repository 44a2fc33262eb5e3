"""What is served: batches of a network, single calls of one, or sequences of one with a state."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nnef_jax.batcher import zeros
from nnef_jax.errors import InputError
from nnef_jax.formats.base import Progress
from nnef_jax.model import Model
from nnef_jax.tensor_spec import TensorSpec
from nnef_jax.workings import bind

Arrays = Sequence[NDArray[Any]]
_LONGEST_ID = 256  # characters of the name of a sequence, which is kept as long as its state


class Full(Exception):
    """A limit is reached for now: the request may be sent again."""


class Servable(Protocol):
    """What an application serves: a `Batcher`, or what has the same attributes."""

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        """Return the inputs of a call, in order."""
        ...

    @property
    def outputs(self) -> Sequence[TensorSpec]:
        """Return the outputs of a call, in order."""
        ...

    @property
    def sizes(self) -> Sequence[int]:
        """Return the sizes of batches; none where each call is by itself."""
        ...

    def compile(self, progress: Progress | None = None) -> None:
        """Make ready for calls, where it is known which."""
        ...

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arrays:
        """Return the arrays of a call in order; InputError where they do not fit."""
        ...

    def compute(self, arrays: Arrays) -> Arrays:
        """Return the outputs for what `bind` returned, items of calls one after another."""
        ...


class FewShapes:
    """Limits the number of shapes that a network is compiled for: each stays in memory."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[Hashable] = set()

    def require(self, shapes: Hashable) -> None:
        """Raise InputError for shapes that are one too many."""
        if shapes not in self._known and len(self._known) >= self._most:
            raise InputError(
                f"inputs of {self._most} shapes were served, which is the limit",
                hint="load the network with known shapes, or allow more",
            )
        self._known.add(shapes)


class SingleCalls:
    """A network each of whose calls is by itself, as items of a batch are not apart in it."""

    sizes = ()

    def __init__(self, model: Model) -> None:
        self.model, self.inputs, self.outputs = model, model.inputs, model.outputs

    def compile(self, progress: Progress | None = None) -> None:
        """Compile for the declared shapes, if they are known."""
        try:
            example = zeros(self.inputs)
        except InputError:
            return
        self.compute(example)
        if self.model.graph.states:
            self.model.step(self.model.init_state(*example), *example)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arrays:
        """Return the arrays of a call in order."""
        return bind(self.model, args, kwargs)

    def compute(self, arrays: Arrays) -> Arrays:
        """Return the outputs of a call."""
        return self._on_host(self.model(*arrays))

    def _on_host(self, results: Any) -> Arrays:
        return [np.asarray(x) for x in (results if len(self.outputs) > 1 else [results])]


class SequenceStep(NamedTuple):
    """Which sequence a request is a cycle of, and whether it is the first or the last."""

    id: int | str
    starts: bool
    ends: bool

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> SequenceStep | None:
        """Return the step of a sequence that a request is, None if its parameters name none."""
        id = parameters.get("sequence_id", 0)
        flags = [parameters.get(f"sequence_{name}", False) for name in ("start", "end")]
        if type(id) not in (int, str) or any(type(flag) is not bool for flag in flags):
            raise InputError(
                "sequence_id must be a number or a string, sequence_start and sequence_end must be "
                "true or false"
            )
        if len(id) > _LONGEST_ID if isinstance(id, str) else id.bit_length() > 64:
            raise InputError(f"sequence_id has at most {_LONGEST_ID} characters, or 64 bits")
        return cls(id, *flags) if id else None


class Sequences(SingleCalls):
    """A network with a state, one for each sequence of requests.

    States stay on the device. One that was not used for so many seconds is gone. So is one whose
    cycle failed. All is called by one thread.
    """

    def __init__(self, model: Model, most: int, idle: float, shapes: FewShapes) -> None:
        super().__init__(model)
        self._most, self._idle, self._shapes = most, idle, shapes
        self._states: dict[int | str, tuple[float, Any]] = {}  # when they were used: oldest first

    def __len__(self) -> int:
        return len(self._states)

    def step(self, step: SequenceStep, arrays: Arrays) -> Arrays:
        """Run a cycle of a sequence. Raises InputError if there is none, Full for one too many."""
        self.expire()
        if step.starts:
            if len(self._states) >= self._most and step.id not in self._states:
                raise Full(f"{self._most} sequences are open, which is the limit")
            state = self.model.init_state(*arrays)
            self.end(step)
        elif step.id in self._states:
            _, state = self._states.pop(step.id)
        else:
            raise InputError(
                f"there is no sequence {step.id!r:.60}",
                hint=f"sequence_start begins one; it is gone {self._idle:g} s after its last use",
            )
        self._shapes.require(("state", *((name, x.shape) for name, x in state.items())))
        results, state = self.model.step(state, *arrays)
        found = self._on_host(results)
        if not step.ends:
            self._states[step.id] = time.monotonic(), state
        return found

    def end(self, step: SequenceStep) -> None:
        """Forget the state of a sequence, if there is one."""
        self._states.pop(step.id, None)

    def expire(self) -> None:
        """Forget states that were not used for long."""
        before = time.monotonic() - self._idle
        for id, (used, _) in [*self._states.items()]:
            if used > before:
                break
            del self._states[id]
