"""What a fresh process does for `startup`: `python -m benchmarks.probe TASK PATH [CACHE]`.

Prints as JSON when it was done, in seconds since the epoch, how many of them the parts of it took,
and the most memory it held. It imports nothing beside what the task needs.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main(task: str, path: str, cache: str | None = None) -> dict[str, Any]:
    """Do the task: "jax" imports it, the others load a network and perhaps run it once."""
    times: dict[str, Any] = {}
    if task == "jax":
        importlib.import_module("jax")
        import numpy as np

        times["loaded"] = time.time()
        importlib.import_module("jax").device_put(np.ones(3, np.float32)).block_until_ready()
    elif task.startswith(("nnef_jax", "literal")):
        import nnef_jax

        load = nnef_jax.load  # imports what it is made of
        times["imported"] = time.time()
        options: dict[str, Any] = {"cache_dir": cache} if cache else {}
        model = load(path, optimize=task.startswith("nnef_jax"), **options)
        if task == "nnef_jax load":
            model.params  # noqa: B018 - what is lazy is done too
        times["loaded"] = time.time()
        if task.endswith(" run"):
            times["parts"] = _parts(lambda: model(_ones(model.inputs[0].shape)).block_until_ready())
    else:
        from benchmarks.engines import onnx_session

        session: Any = onnx_session(Path(path))
        times["loaded"] = time.time()
        if task == "onnxruntime run":
            taken = session.get_inputs()[0]
            session.run(None, {taken.name: _ones(taken.shape)})
    return {**times, "done": time.time(), "peak": float(_peak())}


def _parts(call: Callable[[], Any]) -> dict[str, float]:
    """Return the seconds that parts of a first call take.

    jax tells how long XLA compiles. Our own functions are timed where they are looked up, those
    that a commit lacks are none.
    """
    import jax.monitoring

    from nnef_jax.execution import executables

    spent: Counter[str] = Counter()
    inside: Counter[str] = Counter()  # of `Executables.get`, XLA's compiling within

    def told(event: str, seconds: float, **_: Any) -> None:
        if event.endswith("backend_compile_duration"):
            spent["compile"] += seconds

    jax.monitoring.register_event_duration_secs_listener(told)
    for owner, name, part in (
        (executables, "key_of", "key"),
        (_recipe(), "computed", "prepare"),
        (executables.Executables, "get", "all"),
    ):
        _time(owner, name, part, spent, inside)
    start = time.perf_counter()
    call()
    total = time.perf_counter() - start
    known = spent["key"] + spent["prepare"]
    before = spent["all"] - known - inside["compile"]
    if not spent["compile"]:
        return {
            "key": spent["key"],
            "read": before + spent["prepare"],
            "call": total - spent["all"],
        }
    return {
        "key": spent["key"],
        "trace": before,
        "prepare": spent["prepare"],
        "compile": spent["compile"],
        "lower and call": total - known - before - spent["compile"],
    }


def _recipe() -> Any:
    """Return the class by which numpy prepares; None in commits before it."""
    found = importlib.util.find_spec("lowering.recipe")
    return None if found is None else importlib.import_module("lowering.recipe").Recipe


def _time(owner: Any, name: str, part: str, spent: Counter[str], inside: Counter[str]) -> None:
    function = getattr(owner, name, None)
    if function is None:
        return

    def timed(*arguments: Any, **options: Any) -> Any:
        start, compiled = time.perf_counter(), spent["compile"]
        try:
            return function(*arguments, **options)
        finally:
            spent[part] += time.perf_counter() - start
            if part == "all":
                inside["compile"] += spent["compile"] - compiled

    setattr(owner, name, timed)


def _ones(shape: Any) -> Any:
    import numpy as np

    return np.ones(shape, np.float32)


def _peak() -> int:
    """The most bytes that were resident.

    Linux counts them for this program in VmHWM; getrusage would count those of the process that
    started it, too, as long as it had not been replaced.
    """
    try:
        with open("/proc/self/status") as status:
            line = next(line for line in status if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    except OSError:
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
