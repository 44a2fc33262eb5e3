"""Measures the gain of each pass for CPUs, by leaving out one pass at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import timing, training
from benchmarks.engines import example, write_nnef
from benchmarks.timing import QUIET

ALL = "all passes"

# The program before XLA compiles it, as text, and a function that compiles it.
Lowered = tuple[str, Callable[[], Callable[[], Any]]]


@dataclass
class Earned:
    """The times of one call or training step, without each pass.

    If leaving out a pass does not change the program that XLA compiles, the program is not timed.
    """

    title: str
    timed: timing.Measurement  # by the pass that is left out; ALL is with all passes

    @property
    def ratios(self) -> dict[str, float]:
        """The time without a pass, divided by the time with all passes."""
        times = self.timed.medians
        return {name: time / times[ALL] for name, time in times.items() if name != ALL}

    def as_dict(self) -> dict[str, Any]:
        """Return the times as values for JSON."""
        found = {"title": self.title, "ratios": self.ratios, "samples": self.timed.samples}
        return {**found, "cores_used_elsewhere": self.timed.elsewhere}


def names() -> list[str]:
    """Return the names of the passes for a CPU in order, then those of the kernels they choose."""
    from lowering.pipeline import name_of
    from lowering.targets.cpu import CPU, KERNELS

    return list(dict.fromkeys([*map(name_of, CPU.passes), *KERNELS]))


def run(
    networks: Sequence[str], batches: Sequence[int], rounds: int, only: Sequence[str] = ()
) -> Iterator[Earned]:
    """Measure a call of each network at each batch size, and the training steps of some networks.

    Passes are left out one at a time: those in `only` if it is not empty, and all passes otherwise.
    Raises DisagreementError if the results without a pass differ from those with all passes.
    """
    for network in networks:
        with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
            for batch in batches:
                lower = partial(_call, network, batch, Path(folder))
                yield _measure(f"{network}, {batch}", lower, timing.check_agreement, rounds, only)
            if network in training.TRAINED:
                lower = partial(_step, network, Path(folder))
                check = partial(training.check, network=network)
                yield _measure(f"{network}, step", lower, check, rounds, only)


def _measure(
    title: str,
    lower: Callable[[], Lowered],
    check: Callable[[dict[str, Any]], Any],
    rounds: int,
    only: Sequence[str],
) -> Earned:
    from lowering.contexts import disabled

    text, compiled = lower()
    calls = {ALL: compiled()}
    for name in only or names():
        with disabled(name):
            other, compiled = lower()
            if other != text:
                calls[name] = compiled()
    check({name: call() for name, call in calls.items()})
    return Earned(title, timing.measure(calls, rounds))


def _call(network: str, batch: int, folder: Path) -> Lowered:
    """Lower the program of `model(x)`, in the same way as a call does."""
    import jax
    import jax.numpy as jnp

    import nnef_jax
    from lowering.cpu.xla_options import compiler_options
    from lowering.pipeline import differentiable, lower, traced
    from lowering.prepare import prepared
    from lowering.targets.cpu import CPU

    model = nnef_jax.load(write_nnef(network, batch, folder), optimize=False)
    arrays = [jnp.asarray(value) for value in example(network, batch).values()]
    params = list(model.params.values())

    def apply(params: Any, inputs: Any) -> Any:
        return model.apply(dict(zip(model.params, params, strict=True)), *inputs)

    options = compiler_options(sum(x.nbytes for x in params))
    jit = partial(jax.jit, compiler_options=options)
    program, _, tree = traced(apply, params, arrays)
    parts = lower(differentiable(program), CPU)
    values = jax.eval_shape(parts.prepare, params)
    texts = [parts.lower_first(params), jit(parts.call).lower(values, arrays)]

    def compiled() -> Callable[[], Any]:
        kept, run = prepared(parts, params), jit(parts.call)
        run(kept, arrays)
        return lambda: jax.tree.unflatten(tree, jax.block_until_ready(run(kept, arrays)))

    return "\n".join((str(options), *(text.as_text() for text in texts))), compiled


def _step(network: str, folder: Path) -> Lowered:
    """Lower a training step: the loss and its gradient with respect to all parameters."""
    import jax

    import nnef_jax

    model = nnef_jax.load(write_nnef(network, training.BATCH, folder))
    inputs = example(network, training.BATCH)
    step, arguments = training.jitted_step(model, inputs, set(model.params))
    lowered = step.lower(*arguments)

    def compiled() -> Callable[[], Any]:
        run = lowered.compile()
        return lambda: jax.block_until_ready(run(*arguments))

    return f"{model.compiler_options}\n{lowered.as_text()}", compiled


def print_earned(console: Console, results: Sequence[Earned]) -> None:
    """Print a table with the best and the worst ratio of each pass, and all other ratios."""
    table = Table(title="time without a pass, divided by that with all")
    for title in ("pass", "best", "worst", "all that it changes"):
        table.add_column(title)
    for name in names():
        found = {r.title: r.ratios[name] for r in results if name in r.ratios}
        ordered = sorted(found, key=found.__getitem__, reverse=True)
        cells = [f"{title} {found[title]:.2f}" for title in ordered]
        table.add_row(name, *(cells[:1] + cells[-1:] if cells else ["-", "-"]), "; ".join(cells))
    console.print(table)
    if busy := [r.title for r in results if r.timed.elsewhere > QUIET]:
        console.print(f"other processes were running: {', '.join(busy)}", style="red")
