"""Measures time and memory to load two OpenVINO networks: `python -m benchmarks.openvino_reading`.

One network has 100 MB of weights, and the other has 5,000 layers.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

import nnef_jax
from tests.openvino.documents import Writer

_SIDE, _MATRICES, _LAYERS, _ROUNDS = 1600, 10, 5_000, 5


def _heavy(matrices: int = _MATRICES) -> Writer:
    """Return a network of products with matrices of 10 MB."""
    net = Writer()
    x = net.input("x", (1, _SIDE))
    for i in range(matrices):
        matrix = net.constant(np.ones((_SIDE, _SIDE), np.float32), f"w{i}")
        x = net.layer("MatMul", [x, matrix], [(1, _SIDE)])
    return net.result(x)


def _long() -> Writer:
    """Return a network that is a chain of small layers."""
    net = Writer()
    x, c = net.input("x", (1, 8)), net.constant(np.ones((1, 8), np.float32), "c")
    for i in range(_LAYERS):
        type = ("ReLU", "Add", "Tanh", "Multiply")[i % 4]
        inputs = [x, c] if i % 2 else [x]
        x = net.layer(type, inputs, [(1, 8)], name=f"block{i // 10}/layer{i}")
    return net.result(x)


def _own_memory() -> float:
    """Return the megabytes of this process's memory that are not mapped from files (on Linux)."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1e3


def main() -> None:
    """Print the time and the memory that loading each network takes."""
    for net in (_heavy(1), _long()):  # so that all modules are imported before the measurement
        with tempfile.TemporaryDirectory() as folder:
            assert nnef_jax.load(net.write(Path(folder))).params
    for name, net in (("100 MB", _heavy()), (f"{_LAYERS} layers", _long())):
        with tempfile.TemporaryDirectory() as folder:
            path = net.write(Path(folder))
            before, seconds = _own_memory(), list[float]()
            for _ in range(_ROUNDS):
                start = time.perf_counter()
                model = nnef_jax.load(path)
                seconds.append(time.perf_counter() - start)
                if len(seconds) == 1:
                    loaded = _own_memory() - before
                    assert model.params
                    taken = _own_memory() - before
        print(
            f"{name}: load {np.median(seconds):.3f} s; memory beside the file: "
            f"{loaded:.0f} MB, with params {taken:.0f} MB"
        )


if __name__ == "__main__":
    main()
