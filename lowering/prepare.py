"""Splits a program: what depends on its parameters alone, and the rest.

    prepared = parts.prepare(parameters)          # once for each set of parameters
    outputs = parts.run(prepared, inputs)         # once for each call

So a weight that a rule flips, transposes or scales is stored as the kernel wants it, and no
constant of any size is part of `run`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from lowering.devices import are_on_cpu, on_cpu

if TYPE_CHECKING:
    from lowering.host_program import HostProgram
    from lowering.program import Program


# Beyond this growth a prepared value is a broadcast, cheaper to repeat than to read.
_GROWTH = 4
# Weights of few bits stay so: a prepared value has at most so many times the bits of an item, of 8
# bits if it is large. A language model would take eight times its memory otherwise.
_WIDTH = 4
_LARGE = 32 << 20  # bytes
# What a call does without moving an item: kept, it is a copy of a weight of 16 bits.
_FREE = ("optimization_barrier", "reshape")
# Items of what a network of bfloat16 has in 32 bits, from which on it is kept in 16, and widened in
# each call: it would take twice the memory of the parameters, beside them.
_WIDE = 2 << 10


@dataclass(frozen=True, slots=True)
class Split:
    """A function in two parts, neither of them compiled.

    `sources` has an item for each prepared value: the index of a parameter, or None for the next
    result of `compute`, which reads the parameters of the indices `reads`. `run` takes prepared
    values and inputs.
    `program` gives `compute` in steps of numpy where these can be its own.
    """

    sources: tuple[int | None, ...]
    reads: tuple[int, ...]
    compute: Callable[[Sequence[Any]], tuple[Any, ...]]
    run: Callable[..., Any]
    program: Callable[[], HostProgram | None]

    def prepare(self, parameters: Sequence[Any]) -> tuple[Any, ...]:
        """Return the prepared operands of `run` for these parameters."""
        return assemble(self.sources, parameters, self.compute(parameters))

    def prepare_now(self, parameters: Sequence[Any]) -> tuple[Any, ...]:
        """Return the same as arrays to keep, given arrays, also within a traced function."""
        return self.preparing(parameters)(parameters)

    def preparing(
        self, example: Sequence[Any], known: MutableMapping[str, jax.Array] | None = None
    ) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
        """Return `prepare_now` for all parameters of these types; it compiles once.

        With what is `known` of certain parameters it is for those: what numpy computed of them for
        another program is not computed again.
        `jax.ensure_compile_time_eval` would turn what is traced within into constants: each ReLU
        then reads its zeros from memory.
        """
        if None not in self.sources:
            return self.prepare
        host = self.on_host(example)
        compute = host or self.lowered(example).compile()
        if host is not None and known is not None:
            compute = partial(host.sharing, known)
        return lambda parameters: assemble(self.sources, parameters, compute(parameters))

    def on_host(self, example: Sequence[Any]) -> HostProgram | None:
        """Return `compute` in steps of numpy, for all parameters of these types, if it can be."""
        return self.program() if are_on_cpu(example) else None

    def lowered(self, parameters: Sequence[Any]) -> jax.stages.Lowered:
        """Return `compute` for these parameters, to be compiled and run once.

        On CPUs compiling takes longer: ResNet-50 2.9 s, then 0.17 to run; unoptimised 1.7 and 0.3.
        """
        options = {"xla_backend_optimization_level": 0} if on_cpu() else {}
        return jax.jit(self.compute, compiler_options=options).lower(parameters)


def assemble(
    sources: Sequence[int | None], parameters: Sequence[Any], computed: Iterable[Any]
) -> tuple[Any, ...]:
    """Join computed arrays and parameters, which a compiled function would have copied."""
    rest = iter(computed)
    return tuple(next(rest) if source is None else parameters[source] for source in sources)


def split(program: Program) -> Split:
    """Split a program by what its parameters alone give."""
    from lowering import jaxprs
    from lowering.host_writer import host_program

    program = program.with_closed(jaxprs.inlined(program.closed))
    closed, parameters = program.closed, program.arguments[: program.parameters]
    kept, later = _parted(program)
    narrow = _narrow(program, kept)
    stored = [narrow.get(variable, variable) for variable in kept]
    places = {variable: i for i, variable in enumerate(parameters)}
    computed = [variable for variable in stored if variable not in places]
    early = [e for e in program.equations if not program.is_late(e)]
    first = program.with_closed(jaxprs.of_equations(closed, early, computed, arguments=parameters))
    if any(variable in narrow for variable in computed):
        first = first.retraced(partial(_rounded, first, [v in narrow for v in computed]))
    arguments = [*kept, *program.arguments[len(parameters) :]]
    rest = jaxprs.of_equations(closed, later, program.results, {}, arguments)
    compute, last = jaxprs.as_function(first.closed), jaxprs.as_call(rest)

    def run(own: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        pairs = zip(own, kept, strict=True)
        own = [x.astype(v.aval.dtype) if v in narrow else x for x, v in pairs]
        return last(*own, *values)

    return Split(
        sources=tuple(map(places.get, stored)),
        reads=tuple(place for variable, place in places.items() if first.uses[variable]),
        compute=lambda values: tuple(compute(*values)),
        run=run,
        program=lambda: host_program(first),
    )


def _parted(program: Program) -> tuple[list[Any], list[Any]]:
    """Return variables to prepare, and the equations that a call evaluates."""
    from lowering.jaxprs import primitive, variables

    sources, free = _sources(program), _FREE if _is_narrow(program) else ()
    kept: dict[Any, None] = {}
    later: list[Any] = []
    wanted = set(variables(program.results))
    for equation in reversed(program.equations):
        own = [v for v in equation.outvars if v in wanted]
        if not program.is_late(equation) and primitive(equation) not in free:
            kept |= dict.fromkeys(v for v in own if _is_worth_keeping(v, *sources[v]))
        if any(v not in kept for v in own) or program.is_late(equation):
            later.append(equation)
            wanted.update(variables(equation.invars))
    return [*(v for v in _roots(program) if v in wanted), *kept], later[::-1]


def _roots(program: Program) -> list[Any]:
    return [*program.arguments[: program.parameters], *program.constants]


def _sources(program: Program) -> dict[Any, tuple[int, int]]:
    """Return the items of the largest of parameters that each known variable is computed of.

    And the bits of an item of it. Joined parts add their items.
    """
    from lowering.jaxprs import primitive, variables

    sources = {variable: (_size(variable), _bits(variable)) for variable in _roots(program)}
    for equation in program.equations:
        if not program.is_late(equation):
            own = [sources[v] for v in variables(equation.invars)]
            items, bits = max(own, default=(0, 1))
            if primitive(equation) in ("concatenate", "stack"):
                items = sum(size for size, _ in own)
            sources.update(dict.fromkeys(equation.outvars, (items, bits)))
    return sources


def _is_narrow(program: Program) -> bool:
    """Tell whether all real arguments are of bfloat16."""
    real = {v.aval.dtype for v in program.arguments if jnp.issubdtype(v.aval.dtype, jnp.floating)}
    return real == {jnp.dtype(jnp.bfloat16)}


def _narrow(program: Program, kept: Iterable[Any]) -> dict[Any, Any]:
    """Map variables kept in 16 bits to those stored for them: sources, or rounded themselves."""
    from lowering.jaxprs import primitive

    if not _is_narrow(program):
        return {}
    narrow = {v: v for v in kept if v.aval.dtype == jnp.float32 and _size(v) >= _WIDE}
    for equation in program.equations:
        if primitive(equation) == "convert_element_type" and equation.outvars[0] in narrow:
            (source,) = equation.invars
            narrow |= {equation.outvars[0]: source} if source.aval.dtype == jnp.bfloat16 else {}
    return narrow


def _rounded(program: Program, chosen: Sequence[bool], *arguments: Any) -> list[Any]:
    pairs = zip(program(*arguments), chosen, strict=True)
    return [x.astype(jnp.bfloat16) if is_chosen else x for x, is_chosen in pairs]


def _is_worth_keeping(variable: Any, items: int, bits: int) -> bool:
    """Tell whether a value of parameters, with so many items of so many bits, is to be prepared."""
    size, width = _size(variable), _bits(variable) / bits
    if size > _GROWTH * items or width > _WIDTH:
        return False
    return width < _WIDTH or size * _bits(variable) // 8 <= _LARGE


def _bits(variable: Any) -> int:
    """Return the bits of an item, 8 of a truth value; numpy has bytes alone for those of 4."""
    found = re.search("[0-9]+", variable.aval.dtype.name)
    return max(int(found[0]), 1) if found else 8


def _size(variable: Any) -> int:
    return math.prod(variable.aval.shape)


def whole(run: Callable[..., Any], count: int) -> Split:
    """Return a function of parameters, so many, and inputs as a split that prepares nothing."""
    return Split(tuple(range(count)), (), lambda _: (), run, lambda: None)
