"""Splits a program: what depends on its parameters alone, and the rest.

    prepared = parts.prepare(parameters)          # once for each set of parameters
    outputs = parts.run(prepared, inputs)         # once for each call

So a weight that a rule flips, transposes or scales is stored as the kernel wants it, and no
constant of any size is part of `run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from lowering.devices import are_on_cpu, on_cpu

if TYPE_CHECKING:
    from lowering.host import HostProgram
    from lowering.program import Program


@dataclass(frozen=True, slots=True)
class Split:
    """A function in two parts, neither of them compiled.

    `sources` has an item for each prepared value: the index of a parameter, or None for the next
    result of `compute`, which reads the parameters of the indices `reads`. `run` takes prepared
    values, inputs, and those of the inputs that come first, if they are given apart.
    `program` gives `compute` in steps of numpy where these can be its own.
    """

    sources: tuple[int | None, ...]
    reads: tuple[int, ...]
    compute: Callable[[Sequence[Any]], tuple[Any, ...]]
    run: Callable[..., Any]
    program: Callable[[], HostProgram | None]

    def prepare(self, parameters: Sequence[Any]) -> tuple[Any, ...]:
        """Return what `run` takes for these parameters."""
        return assemble(self.sources, parameters, self.compute(parameters))

    def prepare_now(self, parameters: Sequence[Any]) -> tuple[Any, ...]:
        """Return the same as arrays to keep, given arrays, also within a traced function."""
        return self.preparing(parameters)(parameters)

    def preparing(self, example: Sequence[Any]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
        """Return `prepare_now` for all parameters of these types; it compiles once.

        `jax.ensure_compile_time_eval` would turn what is traced within into constants: each ReLU
        then reads its zeros from memory.
        """
        if None not in self.sources:
            return self.prepare
        compute = self.on_host(example) or self.lowered(example).compile()
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
    """Return what is prepared; parameters pass by the compiled function, which would copy them."""
    rest = iter(computed)
    return tuple(next(rest) if source is None else parameters[source] for source in sources)


def split(program: Program) -> Split:
    """Split a program by what its parameters alone give."""
    from lowering.jaxprs import inlined
    from lowering.partition import divided

    traced = inlined(program.closed)
    found = divided(traced, program.parameters)

    def compute(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(found.compute(*values, *traced.consts)) if None in found.sources else ()

    def run(own: Sequence[Any], values: Sequence[Any], given: Sequence[Any] = ()) -> list[Any]:
        return list(found.run(*own, *given, *values))

    return Split(found.sources, found.reads, compute, run, found.program)


def whole(run: Callable[..., Any], count: int) -> Split:
    """Return a function of parameters, so many, and inputs as a split that prepares nothing."""
    return Split(tuple(range(count)), (), lambda _: (), run, lambda: None)
