"""What clients of an application can ask for at most."""

from __future__ import annotations

from dataclasses import dataclass, fields

from nnef_jax.errors import InputError
from nnef_jax.options import require


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """Bounds of what clients can ask for. A request beyond one is answered with an HTTP error.

    Args:
        body: bytes of a request.
        json: bytes of a request that are not binary tensors: they take twenty times the memory.
        memory: bytes of all requests that are being read or answered.
        queue: requests that wait for a network.
        timeout: seconds that reading a request, and answering it, may take.
        delay: seconds that a request waits for others, to be computed with them.
        shapes: shapes that a network with open extents, other than the batch, is compiled for.
        sequences: sequences of a network with a state that are open.
        idle: seconds after which a sequence that is not used is gone.
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
        for field in fields(self):
            value = getattr(self, field.name)
            require(field.name, value, int if field.type == "int" else int | float, "a number")
            if not (value > 0 or (value == 0 and field.name == "delay")):
                raise InputError(f"{field.name} must be more than 0, it is {value}")
