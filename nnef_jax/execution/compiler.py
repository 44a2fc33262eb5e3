"""Compiles functions of a network's own arrays and of those of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import Sharding

from lowering.devices import Place, computing_at, default_device
from lowering.fallback import About, named, or_else
from lowering.graph import Graph
from lowering.prepare import Split, whole
from nnef_jax.execution.cache_key import key_of
from nnef_jax.execution.options import Jit, Program, RunOptions, parted, title
from nnef_jax.garbage import uncollected

if TYPE_CHECKING:
    from nnef_jax.execution.disk_cache import DiskCache

# Bytes of an array that may become a constant of a compiled function, and of all of them: more
# would make it slow to compile.
_SMALL = 8 << 10
_CONSTANTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Executable:
    """A compiled function, and what is prepared for it of the network's own arrays."""

    run: Callable[..., Any]
    prepared: tuple[Any, ...]
    donated: int = 0
    prepare: Callable[[Sequence[Any]], tuple[Any, ...]] | None = None  # where it is for any arrays

    def __call__(self, arrays: list[Any]) -> Any:
        """Run it."""
        if self.donated:
            return self.run(self.prepared, *parted(arrays, self.donated))
        return self.run(self.prepared, arrays)

    def compiled(self, arrays: Sequence[Any]) -> jax.stages.Compiled:
        """Return what a call of such arrays runs, which jax has at hand once it ran."""
        run: Any = self.run
        if isinstance(run, jax.stages.Compiled):
            return run
        return run.lower(self.prepared, *parted(arrays, self.donated)).compile()

    def on(self, own: Sequence[Any] | None) -> Executable:
        """Return the same for a network's other arrays of the same types, or for none yet."""
        assert self.prepare is not None
        return replace(self, prepared=() if own is None else self.prepare(own))


class Compiler:
    """Compiles for a place, or finds what is compiled in a folder."""

    def __init__(
        self, graph: Graph, options: RunOptions, nbytes: int, cache: DiskCache | None
    ) -> None:
        self._graph = graph
        self._options = options
        self._nbytes = nbytes  # of the parameters
        self._cache = cache
        self.keeps = cache is not None  # what is compiled for a single device, in a folder

    @property
    def xla_options(self) -> dict[str, str]:
        """Return the options of XLA that suit the network on the default device."""
        return self._xla_options(self._graph)

    def _xla_options(self, graph: Graph, *, in_place: bool = False) -> dict[str, str]:
        if not self._options.for_cpu:
            return {}
        from lowering.cpu.graphs import in_integers
        from lowering.cpu.options import compiler_options

        return compiler_options(
            self._nbytes,
            bfloat16=self._is_bfloat16,
            in_bytes=bool(in_integers(graph)),
            in_place=in_place,
        )

    def _is_in_place(self, program: Program, parts: Split) -> bool:
        """Tell whether a function writes into arrays of bfloat16, and computes nothing in them."""
        from lowering.work import writes_bfloat16

        if not (self._options.for_cpu and self._is_bfloat16 and writes_bfloat16(program.graph)):
            return False
        from lowering.cpu.widening import computes_narrow

        prepared = jax.eval_shape(parts.prepare, list(program.own))
        traced = jax.make_jaxpr(parts.run)(prepared, list(program.arrays))
        return not computes_narrow(traced.jaxpr)

    @cached_property
    def _is_bfloat16(self) -> bool:
        from lowering.work import is_mostly_bfloat16

        return is_mostly_bfloat16(self._graph, self._options.precision)

    @property
    def in_integers(self) -> frozenset[str]:
        """Return the names of operations that the default device computes in integers."""
        if not self._options.for_cpu:
            return frozenset()
        from lowering.cpu.graphs import in_integers

        return in_integers(self._graph)

    def compile(self, program: Program, place: Place, *, is_shared: bool) -> Executable:
        """Compile for a place and for shapes; what `is_shared` is for other arrays of a network.

        What is kept in a folder takes arrays that are committed as `place` says. What is not takes
        all, since it is jitted.
        """
        prepare = None
        about = About(program.graph.name, self._options.optimize == "strict")
        with uncollected(), computing_at(place.where), named(about):
            if self._cache is not None and not isinstance(place.where, Sharding):
                key = self._key(program, place)
                make = partial(self._in_parts, program)
                found = self._cache.get(key, place.where, program, make, keeps=not is_shared)
                run, prepared, prepare = found
            else:
                parts, jit = self._in_parts(program)
                run, prepare = parts.run, parts.preparing(program.own)
                prepared = prepare(program.own)
                if not is_shared:
                    run, prepared = with_constants(run, prepared)
                run = jit(run)
        return Executable(run, prepared, program.donated, prepare if is_shared else None)

    def is_kept(self, program: Program, place: Place) -> bool:
        """Tell whether the folder has what would be compiled for a place."""
        if self._cache is None or isinstance(place.where, Sharding):
            return False
        return self._cache.has(self._key(program, place))

    def _key(self, program: Program, place: Place) -> str:
        types = [str(jax.typeof(x)) for x in (*program.own, *program.arrays)]
        others = place.is_committed, program.name, types, self._options
        return key_of(program.graph, place.where, *others)

    def _split(self, program: Program) -> Split:
        """Return a function in parts, by the passes for the default device if it is optimised."""
        trace = jax.make_jaxpr(program.function, return_shape=True)
        closed, shapes = trace(program.own, list(program.arrays))
        tree, count = jax.tree.structure(shapes), len(program.own)

        def by_passes() -> Split:
            from lowering.emit import in_parts, written
            from lowering.targets import UNCHANGED, target_of
            from lowering.targets.written import WRITTEN

            if self._options.optimize:
                start, target = WRITTEN, target_of(default_device().platform)
            else:
                start = target = UNCHANGED
            found = replace(written(closed, count, start), is_alone=program.is_alone)
            parts = in_parts(found, target)

            def run(own: Sequence[Any], rest: Sequence[Any], first: Sequence[Any] = ()) -> Any:
                return jax.tree.unflatten(tree, parts.run(own, rest, first))

            return replace(parts, run=run)

        def as_written(own: Sequence[Any], rest: Sequence[Any], first: Sequence[Any] = ()) -> Any:
            return program.function(own, [*first, *rest])

        return or_else(by_passes, lambda: whole(as_written, count))

    def _in_parts(self, program: Program) -> tuple[Split, Jit]:
        """Return a function in parts, and `jax.jit` for the second of these.

        It has the options of XLA that suit the network, or are tried to be the best.
        """
        own, arrays = program.own, list(program.arrays)
        parts = self._split(program)
        in_place = self._is_in_place(program, parts)
        options = self._xla_options(program.graph, in_place=in_place)
        if self._options.autotune and self._options.for_cpu:
            from lowering.cpu.options import candidates, fastest

            arguments = parts.prepare_now(own), arrays

            def trial(options: dict[str, str]) -> Callable[[], Any]:
                run: Any = jax.jit(parts.run, compiler_options=options)
                return partial(run.lower(*arguments).compile(), *arguments)

            options = candidates()[fastest([trial(choice) for choice in candidates()])]
        donated = (2,) if program.donated else ()

        def jit(run: Callable[..., Any]) -> Any:
            named = _traced_alone(run, title(program.graph, program.name))
            return jax.jit(named, donate_argnums=donated, compiler_options=options)

        return parts, jit


def _traced_alone(run: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function under a name, which is compiled or fails, but never computes.

    To find a NaN, or where `jax.disable_jit` holds, jax computes a jitted function by each of its
    primitives: it must then be the network as it is written, whose operations have names.
    """

    def traced(*arguments: Any) -> Any:
        leaves = jax.tree.leaves(arguments)
        if leaves and not any(isinstance(x, Tracer) for x in leaves):
            raise RuntimeError(f"{name} is for jax to trace")
        return run(*arguments)

    traced.__name__ = name
    return traced


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
