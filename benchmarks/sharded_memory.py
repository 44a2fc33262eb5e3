"""Measures the memory of a network whose weights are sharded over eight host devices.

    python -m benchmarks.sharded_memory [--megabytes 2048] [--width 4096] [--train]

The weights are gathered when an operation reads them. The program prints the anonymous memory that
the process has taken since before `shard`: after the weights are sharded, and the maximum during a
call, or with `--train` during the computation of a gradient.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEVICES, BATCH = 8, 64


def write(folder: Path, width: int, layers: int) -> None:
    """Write a network of square layers into a folder, one layer at a time."""
    import numpy as np

    from nnef_jax import write_tensor

    lines = [f"x = external(shape = [{BATCH},{width}]);"]
    random = np.random.default_rng(0)
    folder.mkdir()
    for i in range(layers):
        before = f"y{i - 1}" if i else "x"
        lines.append(f"w{i} = variable(shape = [{width},{width}], label = 'w{i}');")
        lines.append(f"p{i} = matmul({before}, w{i});")
        lines.append(f"y{i} = tanh(p{i});")
        weight = random.standard_normal((width, width), np.float32) / np.float32(width**0.5)
        write_tensor(folder / f"w{i}.dat", weight)
    text = "\n".join(lines)
    graph = f"version 1.0;\ngraph net(x) -> (y{layers - 1})\n{{\n{text}\n}}\n"
    (folder / "graph.nnef").write_text(graph)


def anonymous() -> int:
    """Return the bytes of this process's memory that are not mapped from files."""
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10


def peak(run: Callable[[], Any]) -> int:
    """Run a function, and return the largest anonymous memory in bytes while it runs."""
    most, done = [anonymous()], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            most[0] = max(most[0], anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    run()
    done.set()
    watcher.join()
    return max(most[0], anonymous())


def main() -> None:
    """Measure the memory, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2048)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--train", action="store_true")
    told = parser.parse_args()
    layers = (told.megabytes << 20) // (4 * told.width**2)
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
    import jax
    import jax.numpy as jnp
    import numpy as np

    import nnef_jax

    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        path = Path(folder) / "net"
        write(path, told.width, layers)
        x = np.random.default_rng(1).standard_normal((BATCH, told.width)).astype(np.float32)
        mesh = jax.make_mesh((DEVICES,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        whole = nnef_jax.load(path)
        jax.block_until_ready(jnp.ones(8) + 1)
        before = anonymous()
        model = whole.shard(mesh, batch="data", params="data")
        divided = anonymous()

        def loss(params: Any) -> Any:
            return jnp.square(model.apply(params, x)).mean()

        gradient = model.jit(jax.grad(loss))
        start = time.perf_counter()
        call = (lambda: gradient(model.params)) if told.train else (lambda: model(x))
        most = peak(lambda: jax.block_until_ready(call()))
        seconds = time.perf_counter() - start
    print(f"{layers} layers of {told.width}x{told.width}, {told.megabytes} MB, {DEVICES} devices")
    for name, size in (("weights divided", divided), ("most in a call", most)):
        print(f"{name:16} {(size - before) / 2**20:8.0f} MB")
    print(f"{'first call':16} {seconds:8.1f} s")


if __name__ == "__main__":
    main()
