"""What a fresh process does for `startup`: `python -m benchmarks.probe TASK PATH [CACHE]`.

Prints as JSON when it was done, in seconds since the epoch, and the most memory it held. It imports
nothing beside what the task needs.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any


def main(task: str, path: str, cache: str | None = None) -> dict[str, float]:
    """Do the task: "jax" imports it, the others load a network and perhaps run it once."""
    times: dict[str, float] = {}
    if task == "jax":
        importlib.import_module("jax")
    elif task.startswith("nnef_jax"):
        import nnef_jax

        options: dict[str, Any] = {"cache_dir": cache} if cache else {}
        model = nnef_jax.load(path, **options)
        if task == "nnef_jax load":
            model.params  # noqa: B018 - what is lazy is done too
        times["loaded"] = time.time()
        if task == "nnef_jax run":
            model(_ones(model.inputs[0].shape)).block_until_ready()
    else:
        from benchmarks.engines import onnx_session

        session: Any = onnx_session(Path(path))
        times["loaded"] = time.time()
        if task == "onnxruntime run":
            taken = session.get_inputs()[0]
            session.run(None, {taken.name: _ones(taken.shape)})
    return {**times, "done": time.time(), "peak": float(_peak())}


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
