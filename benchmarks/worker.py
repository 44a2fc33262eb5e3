"""The process that measures one checkout for `--against`. It runs in the checkout's folder.

The first line of standard input describes a task. Each later line asks for one measurement. The
process answers each line with one line: figures by name, or an "error". All lines are JSON objects.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import startup, timing

Turn = Callable[[], dict[str, float]]

_LONG = 1.0  # seconds; longer calls need no warm-up and no second sample


def main() -> None:
    """Answer lines until the input ends. It also ends when the parent process dies."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that nothing else is printed between the answers
    turn: Turn | None = None
    for line in sys.stdin:
        answer: dict[str, Any] = {}
        try:
            if turn is None:
                turn = prepare(**json.loads(line))
            else:
                answer = turn()
        except Exception as error:  # the checkout may still be able to do other tasks
            message = str(error).splitlines() or [""]
            answer = {"error": f"{type(error).__name__}: {message[0]}"}
        print(json.dumps(answer), file=answers, flush=True)


def prepare(kind: str, output: str, **arguments: str) -> Turn:
    """Prepare a task, and return a function that measures it once.

    If the task computes results of a network, they are saved in the file `output`.

    Raises RuntimeError if nnef_jax was not imported from the current folder.
    """
    import nnef_jax

    if not Path(nnef_jax.__file__).is_relative_to(Path.cwd()):
        raise RuntimeError(f"imports {nnef_jax.__file__} instead of its checkout's")
    return _KINDS[kind](output, **arguments)


def _call(output: str, path: str, inputs: str) -> Turn:
    import jax.numpy as jnp

    import nnef_jax

    model = nnef_jax.load(path)
    arrays = {name: jnp.asarray(value) for name, value in np.load(inputs).items()}
    np.save(output, np.asarray(model(**arrays)))
    return _timed(lambda: model(**arrays).block_until_ready())


def _step(output: str, path: str, inputs: str) -> Turn:
    import nnef_jax
    from benchmarks.training import jax_step

    model = nnef_jax.load(path)
    trained = {label for label in model.params if not label.endswith((".mean", ".variance"))}
    step = jax_step(model, np.load(inputs), trained)
    np.save(output, np.asarray(step()[0]))
    return _timed(step)


def _load(output: str, path: str) -> Turn:
    import nnef_jax

    return _timed(lambda: nnef_jax.load(path).params)  # reads the parameters, which load does not


def _process(output: str, task: str, path: str, cache: str = "") -> Turn:
    arguments = [task, path, *([cache] if cache else [])]
    if cache:
        startup.probe(arguments)  # so that the cache is filled
    return lambda: startup.probe(arguments)


_KINDS: dict[str, Callable[..., Turn]] = {
    "call": _call,
    "step": _step,
    "load": _load,
    "process": _process,
}


def _timed(call: Callable[[], Any]) -> Turn:
    """Return a function that measures a call, and returns the least of its samples.

    The least sample is the best estimate, since a disturbance only makes a call slower.
    """
    seconds = timing.settled(call)

    def turn() -> dict[str, float]:
        start, used = time.perf_counter(), timing.used_elsewhere()
        if seconds > _LONG:
            samples = [timing.sample(call, 1)]
        else:
            samples = timing.turn(call, timing.repetitions(seconds))
        elsewhere = (timing.used_elsewhere() - used) / (time.perf_counter() - start)
        return {"seconds": min(samples), "elsewhere": elsewhere}

    return turn


if __name__ == "__main__":
    main()
