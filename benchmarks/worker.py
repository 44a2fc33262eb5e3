"""The part of one checkout in `--against`: `python -m benchmarks.worker`, in the checkout's folder.

The first line of standard input names a task, each later one asks for a turn. A line answers each:
numbers by name, or an "error". All lines are objects in JSON.
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

_LONG = 1.0  # seconds, after which a call needs neither others to warm it nor a second sample


def main() -> None:
    """Answer until the input ends, which it also does when the process at its other end dies."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print must not come between the answers
    turn: Turn | None = None
    for line in sys.stdin:
        answer: dict[str, Any] = {}
        try:
            if turn is None:
                turn = prepare(**json.loads(line))
            else:
                answer = turn()
        except Exception as error:  # a checkout that cannot do this may do the other tasks
            message = str(error).splitlines() or [""]
            answer = {"error": f"{type(error).__name__}: {message[0]}"}
        print(json.dumps(answer), file=answers, flush=True)


def prepare(kind: str, output: str, **arguments: str) -> Turn:
    """What takes a turn at a task; results of the network, if it has any, go to the output file.

    Raises RuntimeError where the package is not that of the current folder.
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

    return _timed(lambda: nnef_jax.load(path).params)  # what is lazy is done too


def _process(output: str, task: str, path: str, cache: str = "") -> Turn:
    arguments = [task, path, *([cache] if cache else [])]
    if cache:
        startup.probe(arguments)  # fills it
    return lambda: startup.probe(arguments)


_KINDS: dict[str, Callable[..., Turn]] = {
    "call": _call,
    "step": _step,
    "load": _load,
    "process": _process,
}


def _timed(call: Callable[[], Any]) -> Turn:
    """Turns at a call: the lesser of their samples, since what disturbs a call only adds to it."""
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
