"""Compiles a network in parts: what it prepares of its own arrays once, and a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import Sharding

from lowering.devices import Place, computing_at, default_device, is_traced
from lowering.extents import MAX_RANK
from lowering.fallback import named, or_else
from lowering.graph import Graph
from lowering.machine import using
from lowering.prepare import Split, split, whole
from nnef_jax.execution.cache_key import key_of
from nnef_jax.execution.functions import Arrays, Entry
from nnef_jax.execution.host_profile import Host
from nnef_jax.execution.run_options import RunOptions
from nnef_jax.execution.threads import Once
from nnef_jax.garbage import uncollected

if TYPE_CHECKING:
    from nnef_jax.execution.disk_cache import DiskCache

# Bytes of an array that may become a constant of a compiled function, and of all of them: more
# would make it slow to compile.
_SMALL = 8 << 10
_CONSTANTS = 1 << 20

Lists = Sequence[Sequence[Any]]
Jit = Callable[[Callable[..., Any]], Any]


class Compiler:
    """Compiles a network for places and shapes, or finds what is compiled in a folder."""

    def __init__(
        self,
        graph: Graph,
        options: RunOptions,
        cache: DiskCache | None,
        host: Host,
    ) -> None:
        self._graph = graph
        self._options = options
        self._cache = cache
        self._host = host

    def executable(
        self,
        entry: Entry,
        own: Arrays,
        arguments: Lists,
        place: Place,
        made: Once,
        *,
        is_shared: bool,
    ) -> partial[Any]:
        """Return an entry's executable on its own arrays and the lists of a call, for all threads.

        It is a function that is compiled for a place and for shapes, applied to what is prepared of
        the own arrays. It is kept among what is `made`. What `is_shared` there is for other own
        arrays too, and nothing is kept that is prepared. Otherwise what is prepared alike for
        several shapes is prepared once.
        """
        shapes = tuple([x.shape for each in arguments for x in each])
        first: list[Any] = []  # what is prepared of these arrays

        def make() -> tuple[Any, Any]:
            known = None if is_shared else made.get(("prepared", place.where), dict)
            run, prepared, prepare = self.compile(entry, own, arguments, place, known)
            if not is_shared:
                return partial(run, prepared), None
            first.append(prepared)
            return run, prepare

        # A jitted function is the same whether or not its arguments are committed. What jax
        # compiles of it is not, and is compiled here, since jax would do it for each thread.
        where = place.where if self._cache is None else place
        run, prepare = made.get((entry.name, where, shapes), make)
        if is_shared:
            run = partial(run, first[0] if first else prepare([*own.values()]))
        if not is_traced():
            made.get(("run", entry.name, place, shapes), lambda: compiled(run, arguments))
        return run

    def compile(
        self,
        entry: Entry,
        own: Arrays,
        arguments: Lists,
        place: Place,
        known: dict[str, jax.Array] | None,
    ) -> tuple[Callable[..., Any], tuple[Any, ...], Callable[[Sequence[Any]], Any]]:
        """Return a compiled function, what is prepared for it of own arrays, and what prepares.

        What is `known` is what was prepared of these arrays before; None if it is for others too.
        What is kept in a folder takes arrays that are committed as `place` says. What is not takes
        all, since it is jitted.
        """
        graph, values = entry.specialised(own, *arguments), [*own.values()]
        with uncollected(), computing_at(place.where), named(entry.functions.about):
            make = partial(self._in_parts, entry, graph, own, arguments, place)
            if cache := self._cache_for(place):
                key, result = self._key(entry, graph, own, arguments, place), entry.result(graph)
                keeps = known is not None
                return cache.get(key, place.where, values, arguments, result, make, keeps=keeps)
            parts, jit = make()
            prepare = parts.preparing(values, known)
            run, prepared = parts.run, prepare(values)
            if known is not None:
                run, prepared = with_constants(run, prepared)
            return jit(run), prepared, prepare

    def is_kept(self, entry: Entry, own: Arrays, arguments: Lists, place: Place) -> bool:
        """Tell whether the folder has what would be compiled for a place."""
        cache, graph = self._cache_for(place), entry.specialised(own, *arguments)
        return cache is not None and cache.has(self._key(entry, graph, own, arguments, place))

    def _cache_for(self, place: Place) -> DiskCache | None:
        return None if isinstance(place.where, Sharding) else self._cache

    def _key(self, entry: Entry, graph: Graph, own: Arrays, arguments: Lists, place: Place) -> str:
        types = [str(jax.typeof(x)) for x in (*own.values(), *jax.tree.leaves(arguments))]
        chosen = self._host.known_profile().decisions() if self._options.for_cpu else {}
        told = place.is_committed, entry.name, types, self._options, chosen
        return key_of(graph, place.where, *told)

    def _in_parts(
        self, entry: Entry, graph: Graph, own: Arrays, arguments: Lists, place: Place
    ) -> tuple[Split, Jit]:
        """Return a function in parts, and `jax.jit` for the second of these.

        It has the options of XLA that suit the network, or are tried to be the best.
        """
        values = [*own.values()]
        # Over several devices the batch is divided already: a loop would gather it first.
        is_alone = not isinstance(place.where, Sharding)
        parts = self._split(entry.of_lists([*own]), values, arguments, is_alone=is_alone)
        in_place = self._is_in_place(graph, parts, values, arguments)
        options = self.xla_options(graph, in_place=in_place)
        if self._options.autotune and self._options.for_cpu:
            from lowering.cpu.xla_options import candidates, fastest

            prepared = parts.prepare_now(values)

            def trial(options: dict[str, str]) -> Callable[[], Any]:
                run: Any = jax.jit(parts.run, compiler_options=options)
                return partial(run.lower(prepared, *arguments).compile(), prepared, *arguments)

            options = candidates()[fastest([trial(choice) for choice in candidates()])]
        donated = (2,) if entry.donates else ()  # the states

        def jit(run: Callable[..., Any]) -> Any:
            named = _traced_alone(run, entry.title)
            return jax.jit(named, donate_argnums=donated, compiler_options=options)

        return parts, jit

    def _split(
        self, function: Callable[..., Any], own: Sequence[Any], arguments: Lists, *, is_alone: bool
    ) -> Split:
        """Return a function in parts, by the passes for the default device if it is optimised."""
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(own, *arguments)

        def by_passes() -> Split:
            from lowering.pipeline import compiled, written
            from lowering.targets import UNCHANGED, target_of

            if self._options.optimize:
                program = written(closed, len(own))
                target = target_of(default_device().platform)
            else:
                program, target = written(closed, len(own), UNCHANGED), UNCHANGED
            program = replace(program, is_alone=is_alone, prepares=True)
            parts = split(compiled(program, target))

            def run(prepared: Sequence[Any], *arguments: Any) -> Any:
                found = parts.run(prepared, jax.tree.leaves(arguments))
                return jax.tree.unflatten(jax.tree.structure(shapes), found)

            return replace(parts, run=run)

        return or_else(by_passes, lambda: whole(function, len(own)))

    def xla_options(self, graph: Graph, *, in_place: bool = False) -> dict[str, str]:
        """Return the options of XLA that suit a graph of the network on the default device."""
        if not self._options.for_cpu:
            return {}
        from lowering.cpu.xla_options import compiler_options
        from lowering.multiply_adds import total

        in_bytes, bfloat16 = bool(self.in_integers(graph)), self._is_bfloat16
        with using(self._host.profile()):
            return compiler_options(
                total(graph), bfloat16=bfloat16, in_bytes=in_bytes, in_place=in_place
            )

    def in_integers(self, graph: Graph) -> frozenset[str]:
        """Return the names of operations that the default device computes in integers."""
        if not self._options.for_cpu:
            return frozenset()
        from lowering.cpu.graphs import products_of_bytes

        gains = self._host.profile().multiplies_bytes
        return products_of_bytes(graph) | (self._of_codes(graph) if gains else frozenset())

    def _of_codes(self, graph: Graph) -> frozenset[str]:
        from lowering.cpu.graphs import in_integers

        return in_integers(graph) if self._options.for_cpu else frozenset()

    def remarks(self, graph: Graph) -> list[str]:
        """Tell which products the default device computes in more bits than the network has."""
        if not self._options.for_cpu:
            return []
        profile = self._host.profile()
        bfloat16 = self._is_bfloat16 and not profile.multiplies_bfloat16
        codes = not profile.multiplies_bytes and self._of_codes(graph)
        kinds = [name for name, is_so in (("bfloat16", bfloat16), ("8 bits", codes)) if is_so]
        remarks = [
            f"products of {kind} are computed in float32: by this machine's profile they gain"
            " nothing"
            for kind in kinds
        ]
        if bfloat16 and self._options.precision is None:
            remarks.append("weights are kept in bfloat16, and widened in each call")
        return remarks

    def _is_in_place(
        self, graph: Graph, parts: Split, own: Sequence[Any], arguments: Lists
    ) -> bool:
        """Tell whether a function writes into arrays of bfloat16, and computes nothing in them."""
        from lowering.multiply_adds import writes_bfloat16

        if not (self._options.for_cpu and self._is_bfloat16 and writes_bfloat16(graph)):
            return False
        from lowering.cpu.widening import computes_narrow

        traced = jax.make_jaxpr(parts.run)(jax.eval_shape(parts.prepare, own), *arguments)
        return not computes_narrow(traced.jaxpr)

    @cached_property
    def _is_bfloat16(self) -> bool:
        from lowering.multiply_adds import is_mostly_bfloat16

        return is_mostly_bfloat16(self._graph, self._options.precision)


def compiled(executable: partial[Any], arguments: Lists) -> jax.stages.Compiled:
    """Return the compiled program of an executable for such arguments; jax has it after a run."""
    run: Any = executable.func
    if isinstance(run, jax.stages.Compiled):
        return run
    with uncollected():
        return run.lower(*executable.args, *arguments).compile()


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
    small = {
        i: np.asarray(x)
        for i, x in enumerate(prepared)
        if x.nbytes <= _SMALL and x.ndim <= MAX_RANK
    }
    if sum(x.nbytes for x in small.values()) > _CONSTANTS:
        return run, prepared

    def rest(large: Sequence[Any], *arguments: Any) -> Any:
        others = iter(large)
        whole = [small[i] if i in small else next(others) for i in range(len(prepared))]
        return run(whole, *arguments)

    return rest, tuple(x for i, x in enumerate(prepared) if i not in small)
