"""A function of parameters and inputs in two halves, as `prepare.split` makes them.

It is apart from `prepare` because importing what makes them takes jax 40 ms, which a process that
finds its executables in a folder does not need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True, slots=True)
class Split:
    """The two halves; both are compiled when they are first called.

    What is prepared is, in the order of `sources`, the parameter of an index as it is, or where
    that is None the next result of `compute`, which reads the parameters of the indices `reads`.
    """

    sources: tuple[int | None, ...]
    reads: tuple[int, ...]
    compute: Callable[[Sequence[Any]], tuple[Any, ...]]
    run: Any  # a jitted function of what is prepared, of the inputs, and of those it may overwrite

    def prepare(self, parameters: Sequence[Any]) -> tuple[Any, ...]:
        """What `run` takes for these parameters."""
        return assemble(self.sources, parameters, self.compute(parameters))

    def prepare_now(self, parameters: Sequence[Any]) -> tuple[Any, ...]:
        """The same as arrays to keep, given arrays, also from inside a function that is traced.

        `jax.ensure_compile_time_eval` would do it, but turns what is traced within it into
        constants: each ReLU then reads its zeros from memory.
        """
        if None not in self.sources:
            return self.prepare(parameters)
        return assemble(self.sources, parameters, self.lowered(parameters).compile()(parameters))

    def lowered(self, parameters: Sequence[Any]) -> jax.stages.Lowered:
        """`compute` for these parameters, to be compiled, and run once.

        Compiling is the longer part on CPUs: for ResNet-50 it takes 2.9 s, and then 0.17 to run;
        without optimisation 1.7 and 0.3.
        """
        on_cpu = jax.default_backend() == "cpu"
        options = {"xla_backend_optimization_level": 0} if on_cpu else {}
        return jax.jit(self.compute, compiler_options=options).lower(parameters)


def assemble(
    sources: Sequence[int | None], parameters: Sequence[Any], computed: Iterable[Any]
) -> tuple[Any, ...]:
    """What is prepared, from the parameters and what was computed of them.

    Parameters are passed on here and not by the compiled function, which would copy them.
    """
    rest = iter(computed)
    return tuple(next(rest) if source is None else parameters[source] for source in sources)
