"""Compiles functions of a network's own arrays and of those of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from lowering.cpu import looped
from lowering.devices import Place, computing_at
from lowering.graph import Graph
from lowering.prepare import Split, split
from lowering.trace import Context
from nnef_jax.execution.cache_key import key_of
from nnef_jax.execution.options import RunOptions
from nnef_jax.execution.own_arrays import OwnArrays

# Bytes of an array that may become a constant of a compiled function, and of all of them: more
# would make it slow to compile.
_SMALL = 8 << 10
_CONSTANTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Program:
    """A function to compile, and what it is compiled for."""

    name: str
    graph: Graph
    function: Callable[[Sequence[Any], Sequence[Any]], Any]  # of own arrays and those of a call
    result: Any  # the tree structure of what it returns
    own: list[jax.Array]
    arrays: Sequence[Any]  # of a call, as an example
    donated: int = 0  # arrays, the first, whose memory it may take for its results


@dataclass(frozen=True, slots=True)
class Executable:
    """A compiled function, and what is prepared for it of the network's own arrays."""

    run: Callable[..., Any]
    prepared: tuple[Any, ...]
    donated: int = 0

    def __call__(self, arrays: list[Any]) -> Any:
        """Run it."""
        if self.donated:
            return self.run(self.prepared, *_given(arrays, self.donated))
        return self.run(self.prepared, arrays)


def _given(arrays: Sequence[Any], donated: int) -> tuple[list[Any], ...]:
    """Return the arguments that hold the arrays, those that are donated apart."""
    return (list(arrays[donated:]), list(arrays[:donated])) if donated else (list(arrays),)


class Compiler:
    """Compiles for a place, or finds what is compiled in a folder."""

    def __init__(self, run_options: RunOptions, context: Context, own: OwnArrays) -> None:
        self._run_options = run_options
        self._context = context
        self._own = own

    @property
    def keeps(self) -> bool:
        """Whether what is compiled for a single device is kept in a folder."""
        return self._run_options.cache is not None

    @property
    def xla_options(self) -> dict[str, str]:
        """The options of XLA that suit the network on the default device."""
        if not self._run_options.for_cpu:
            return {}
        from lowering.cpu.options import compiler_options

        return compiler_options(self._own.nbytes)

    def compile(self, program: Program, place: Place) -> Executable:
        """Compile for a place and for shapes.

        What is kept in a folder takes arrays that are committed as `place` says. What is not takes
        all, since it is jitted.
        """
        with computing_at(place.where):
            cache = self._run_options.cache
            if cache is None or isinstance(place.where, Sharding):
                run, prepared = self._jitted(program)
            else:
                run, prepared = cache.get(
                    self._key(program, place),
                    place.where,
                    lambda: self._to_keep(program),
                    program.own,
                    _given(program.arrays, program.donated),
                    program.result,
                )
        return Executable(run, prepared, program.donated)

    def _jitted(self, program: Program) -> tuple[Callable[..., Any], tuple[jax.Array, ...]]:
        parts = self._in_parts(program)
        run, prepared = with_constants(parts.run, parts.prepare_now(program.own))
        return self._jit_for(program, parts)(run), prepared

    def _to_keep(self, program: Program) -> tuple[Split, Any]:
        """Return a function in parts, and the second of these jitted."""
        parts = self._in_parts(program)
        return parts, self._jit_for(program, parts)(parts.run)

    def _in_parts(self, program: Program) -> Split:
        rewrite = looped if self._run_options.for_cpu else None
        return split(program.function, program.own, list(program.arrays), rewrite=rewrite)

    def _jit_for(self, program: Program, parts: Split) -> Callable[[Callable[..., Any]], Any]:
        """Return `jax.jit` for a `run`, with the options of XLA that are tried to be the best."""
        options = self.xla_options
        if self._run_options.autotune and self._run_options.for_cpu:
            from lowering.cpu.options import candidates, fastest

            arguments = parts.prepare_now(program.own), list(program.arrays)

            def trial(options: dict[str, str]) -> Callable[[], Any]:
                run: Any = jax.jit(parts.run, compiler_options=options)
                return partial(run.lower(*arguments).compile(), *arguments)

            options = candidates()[fastest([trial(choice) for choice in candidates()])]
        donated = (2,) if program.donated else ()
        return partial(jax.jit, donate_argnums=donated, compiler_options=options)

    def _key(self, program: Program, place: Place) -> str:
        """Return the name of an executable in the folder."""
        types = [str(jax.typeof(x)) for x in (*program.own, *program.arrays)]
        context = _fields(self._context, without=("fold",))
        options = _fields(self._run_options, without=("cache",))
        where, is_committed = place
        return key_of(program.graph, where, is_committed, program.name, types, context, options)


def _fields(record: Any, without: Sequence[str]) -> list[tuple[str, Any]]:
    names = [field.name for field in fields(record) if field.name not in without]
    return [(name, getattr(record, name)) for name in names]


def with_constants(
    run: Callable[..., Any], prepared: tuple[jax.Array, ...]
) -> tuple[Callable[..., Any], tuple[jax.Array, ...]]:
    """Return the `run` of a split with small arrays as constants, and the others, which it takes.

    Each argument costs 0.5 microseconds of a call: 200 of them more than a small network computes.
    """
    small = {i: np.asarray(x) for i, x in enumerate(prepared) if x.nbytes <= _SMALL}
    if sum(x.nbytes for x in small.values()) > _CONSTANTS:
        return run, prepared

    def rest(large: Sequence[Any], values: Sequence[Any], given: Sequence[Any] = ()) -> Any:
        others = iter(large)
        whole = [small[i] if i in small else next(others) for i in range(len(prepared))]
        return run(whole, values, given)

    return rest, tuple(x for i, x in enumerate(prepared) if i not in small)
