"""The process that `startup` measures: `python -m benchmarks.probe TASK PATH [CACHE]`.

Prints a JSON object with the times when the stages of the task were done (in seconds since the
epoch), the seconds of the parts of a first call, and the largest memory of the process. The process
imports nothing that the task does not need.
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
    """Do a task, and return its times and memory.

    The task "jax" imports jax and makes an array. Other tasks load a network with an engine. Tasks
    that end in " run" also run the network once.
    """
    times: dict[str, Any] = {}
    if task == "jax":
        importlib.import_module("jax")
        import numpy as np

        times["loaded"] = time.time()
        importlib.import_module("jax").device_put(np.ones(3, np.float32)).block_until_ready()
    elif task.startswith(("nnef_jax", "literal")):
        import nnef_jax

        load = nnef_jax.load  # imports the modules that it needs
        times["imported"] = time.time()
        options: dict[str, Any] = {"cache_dir": cache} if cache else {}
        model = load(path, optimize=task.startswith("nnef_jax"), **options)
        if task == "nnef_jax load":
            model.params  # noqa: B018 - reads the parameters, which load does not
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
    """Return the seconds that each part of a first call takes, by name.

    jax reports how long XLA compiles. The functions of nnef_jax are replaced by functions that
    measure their time. A function that the measured commit lacks counts as 0 s.
    """
    import jax.monitoring

    from nnef_jax.execution import executables

    spent: Counter[str] = Counter()
    inside: Counter[str] = Counter()  # the time of XLA's compiler within `Executables.get`

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
    """Return the class `Recipe`, which prepares parameters by numpy. None in commits without it."""
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
    """Return the largest number of bytes of this process that were in memory.

    On Linux it is VmHWM, which counts only this program. getrusage would also count the memory of
    the parent process between the fork and the start of this program.
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
