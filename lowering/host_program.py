"""Computes on the host, by numpy, what a network needs of its parameters alone.

That is computed once, and XLA takes longer to compile it: for ResNet-18 0.75 s, then 0.11 to run,
where numpy takes 0.09 in all. What numpy may compute otherwise (functions, integers, numbers of 16
bits) is left to XLA.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from lowering.facts import named
from lowering.host import ALIGNMENT, aligned
from lowering.kernels.broadcast import broadcast_shapes

Array = NDArray[Any]


def _copied(x: Array) -> Array:
    copy = aligned(x.shape, x.dtype)
    np.copyto(copy, x)
    return copy


def _for_device(x: Array) -> Array:
    """Return an array that a device takes without a copy.

    It is no view of an array of jax's, which cannot be written to, but may be donated.
    """
    fits = x.flags.c_contiguous and x.flags.writeable and x.ctypes.data % ALIGNMENT == 0
    return x if fits else _copied(x)


@dataclass(frozen=True, slots=True)
class Step:
    """Computes the value of a place from those of others; of these nothing later reads `last`."""

    name: str
    operands: tuple[int, ...]
    params: tuple[Any, ...]
    place: int
    is_result: bool
    last: tuple[int, ...]

    def run(self, values: dict[int, Array]) -> None:
        """Put the value at its place."""
        operands, known = [values[place] for place in self.operands], named(self.name)
        if known.moves:
            moved = known.numpy(operands, *self.params)
            # What reads 16 parts of a 3x3x512x512 filter takes 14 ms so, 26 by strides.
            if self.name == "transpose" and not moved.flags.c_contiguous:
                moved = _copied(moved)
            values[self.place] = _for_device(moved) if self.is_result else moved
        else:
            shape = broadcast_shapes(*(x.shape for x in operands))
            out = aligned(shape, operands[0].dtype) if self.is_result else None
            values[self.place] = known.numpy(*operands, out=out)
        for place in self.last:
            del values[place]


@dataclass(frozen=True, slots=True)
class HostProgram:
    """Computes arrays from others in steps of numpy; it pickles.

    The first places are those of arguments, then come `constants` and the values of steps. Groups
    of steps read nothing of one another, so that threads take one at a time.
    """

    constants: Mapping[int, Array]
    groups: tuple[tuple[Step, ...], ...]
    results: tuple[int, ...]

    def __call__(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """Compute from arrays on one CPU others there."""
        with jax.ensure_compile_time_eval():  # also where a function is traced
            values = {**dict(enumerate(map(np.asarray, arrays))), **self.constants}
            with ThreadPoolExecutor() as pool:
                computed = list(pool.map(lambda group: _run(group, dict(values)), self.groups))
            for part in computed:
                values |= part
            # A sharding over a mesh of one device would name axes that results may not have.
            (where,) = {x for array in arrays if array.committed for x in array.devices()} or {None}
            return jax.device_put([_for_device(values[place]) for place in self.results], where)

    def only(self, chosen: Sequence[int]) -> HostProgram:
        """Return the program of some of the results, by index."""
        results = tuple(self.results[i] for i in chosen)
        wanted, groups = set(results), [list[Step]() for _ in self.groups]
        for group, kept in zip(self.groups, groups, strict=True):
            for step in reversed(group):
                if step.place in wanted:
                    wanted.update(step.operands)
                    kept.append(step)
        return HostProgram(self.constants, tuple(tuple(x[::-1]) for x in groups), results)


def _run(group: Sequence[Step], values: dict[int, Array]) -> dict[int, Array]:
    """Return the values at places that results are read from, and those that are there."""
    with np.errstate(all="ignore"):
        for step in group:
            step.run(values)
    return values
