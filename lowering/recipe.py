"""Recipes: how values are computed from parameters. Digests compare them, numpy runs them.

Equal digests are equal values, for programs of any shape and in any process. Numpy needs no
compiler: for ResNet-18 XLA takes 0.75 s, then 0.11 to run, numpy 0.09 in all. XLA computes what is
not in the table of `by_numpy`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from lowering.by_numpy import function_of
from lowering.host import ALIGNMENT, aligned
from lowering.kernels.broadcast import broadcast_shapes

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Step:
    """One value: a constant, or a result of an equation.

    Args:
        text: tells the step from others, but for its operands.
        operands: the places of operands.
        constant: its value, if it is one.
        primitive: the name of the primitive; "" where numpy does not compute it.
        params: what numpy's function takes beside the operands.
    """

    text: str
    operands: tuple[int, ...] = ()
    constant: Array | None = None
    primitive: str = ""
    params: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """Says how each result of a program is computed from its arguments. Recipes pickle.

    A place numbers a value: arguments have 0 to `count` - 1, then come those of `steps`.
    """

    count: int
    steps: tuple[Step, ...]
    results: tuple[int, ...]

    def digests(self, arguments: Sequence[str]) -> list[str]:
        """Return a digest of each result, given texts that tell the arguments apart."""
        texts = list(arguments)
        for step in self.steps:
            operands = map(texts.__getitem__, step.operands)
            texts.append(_digest("\0".join((step.text, *operands))))
        return list(map(texts.__getitem__, self.results))

    @cached_property
    def digest(self) -> str:
        """Return a digest that other recipes do not have."""
        return _digest("\0".join(self.digests([f"argument {i}" for i in range(self.count)])))

    @cached_property
    def is_numpys(self) -> bool:
        """Tell whether numpy computes all of it."""
        return all(step.constant is not None or step.primitive for step in self.steps)

    def reads(self, chosen: Sequence[int]) -> list[int]:
        """Return the indices of the arguments that some of the results are computed of."""
        return sorted(x for x in self._dependencies(chosen) if x < self.count)

    def computed(self, chosen: Sequence[int], arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """Compute some of the results, by index, of arrays on one CPU.

        Steps that read nothing of one another are computed by several threads.
        """
        results = list(map(self.results.__getitem__, chosen))
        with jax.ensure_compile_time_eval():  # also where a function is traced
            values: dict[int, Any] = dict(enumerate(map(np.asarray, arrays)))
            values |= {self.count + i: x.constant for i, x in enumerate(self.steps)}
            groups = self._groups(sorted(self._dependencies(chosen)))
            with ThreadPoolExecutor() as pool:
                computed = list(pool.map(partial(self._run, values, {*results}), groups))
            for part in computed:
                values |= part
            # A sharding over a mesh of one device would name axes that results may not have.
            (where,) = {x for array in arrays if array.committed for x in array.devices()} or {None}
            taken = map(_for_device, map(values.__getitem__, results))
            return jax.device_put(list(taken), where)

    def _dependencies(self, chosen: Sequence[int]) -> set[int]:
        """Return the places that some results depend on, and their own."""
        places = {*map(self.results.__getitem__, chosen)}
        for place in range(self.count + len(self.steps) - 1, self.count - 1, -1):
            if place in places:
                places.update(self.steps[place - self.count].operands)
        return places

    def _groups(self, places: Iterable[int]) -> list[list[int]]:
        """Return the steps at places in groups: those that read one another are in one."""
        groups: dict[int, list[int]] = {}  # by place
        for place in places:
            step = self.steps[place - self.count] if place >= self.count else None
            if step is None or step.constant is not None:
                continue
            group = groups[place] = [place]
            for x in step.operands:
                if x in groups and groups[x] is not group:
                    small, group = sorted((group, groups[x]), key=len)
                    group += small
                    groups.update(dict.fromkeys(small, group))
        apart = dict(zip(map(id, groups.values()), groups.values(), strict=True))
        return list(map(sorted, apart.values()))

    def _run(
        self, shared: Mapping[int, Array], results: set[int], group: Sequence[int]
    ) -> dict[int, Array]:
        """Return the results in a group of steps, by place, of values that groups share.

        What nothing reads any more is let go.
        """
        values: dict[int, Array] = {}
        readers = Counter(x for place in group for x in self.steps[place - self.count].operands)
        with np.errstate(all="ignore"):
            for place in group:
                step = self.steps[place - self.count]
                operands = [values[x] if x in values else shared[x] for x in step.operands]
                values[place] = _value(step, operands, is_result=place in results)
                for x in step.operands:
                    readers[x] -= 1
                    if not readers[x] and x not in results:
                        values.pop(x, None)
        return values


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _value(step: Step, operands: Sequence[Array], *, is_result: bool) -> Array:
    function = function_of(step.primitive)
    if isinstance(function, np.ufunc):
        shape = broadcast_shapes(*(x.shape for x in operands))
        out = aligned(shape, operands[0].dtype) if is_result else None
        return function(*operands, out=out)
    value = np.asarray(function(operands, *step.params))
    # What reads 16 parts of a 3x3x512x512 filter takes 14 ms so, 26 by strides.
    if step.primitive == "transpose" and not value.flags.c_contiguous:
        value = _copied(value)
    return _for_device(value) if is_result else value


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
