"""Defines the bounds on the requests of clients."""

from __future__ import annotations

from dataclasses import dataclass, fields

from nnef_jax.errors import InputError
from nnef_jax.options import require


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """Bounds on the requests of clients. A request beyond a bound is answered by an HTTP error.

    Args:
        body: the largest number of bytes of a request.
        json: the largest number of bytes of JSON in a request. A JSON value takes twenty times as
            many bytes in memory as in the request.
        memory: the largest number of bytes of all requests that are being read or answered.
        queue: the largest number of requests that wait for one network.
        timeout: the time in seconds for reading a request, and the time for answering it.
        delay: the longest time in seconds that a request waits until its batch is full.
        shapes: the largest number of different input shapes for which a network is compiled. The
            extent of the batch counts only if requests are computed singly. The shapes of states
            count too.
        sequences: the largest number of open sequences of a network with a state.
        idle: the time in seconds without use after which a sequence is dropped.
    """

    body: int = 64 << 20
    json: int = 16 << 20
    memory: int = 1 << 30
    queue: int = 256
    timeout: float = 30.0
    delay: float = 0.002
    shapes: int = 32
    sequences: int = 1024
    idle: float = 300.0

    def __post_init__(self) -> None:
        """Raise TypeError or InputError unless bounds are positive numbers. `delay` may be 0."""
        for field in fields(self):
            value = getattr(self, field.name)
            types = int if field.type == "int" else int | float
            require(field.name, value, types, "a number")
            is_positive = value > 0  # For NaN this is False.
            may_be_zero = field.name == "delay"
            is_allowed = is_positive or (may_be_zero and value == 0)
            if not is_allowed:
                raise InputError(f"{field.name} must be more than 0, it is {value}")
