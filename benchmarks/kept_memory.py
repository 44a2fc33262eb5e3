"""Measures the memory that models keep, after calls of many lengths and while they decode.

    python -m benchmarks.kept_memory [--networks encoder llama] [--width 1024] [--lengths 64]

Prints the memory of all jax arrays and of the process. The memory of the arrays is also printed as
a multiple: for the encoder as a multiple of their memory after calls of two lengths, and for the
Llama as a multiple of the size of its weights. Both networks are ONNX models of about 300 MB with
open lengths, and each runs in a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import math
import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.builders.onnx_builder import OnnxBuilder
from benchmarks.networks.transformers import bert

HEAD = 64  # items of a head
LETTERS = 8192
LONGEST = 512
EDGES = 1, 31, 32, 160, 161, LONGEST  # lengths at which other kernels are chosen
PREFILL, DECODED = 32, 4  # tokens


class _Onnx(OnnxBuilder):
    """Builds ONNX models as exporters do: matrices have the shape (inputs, outputs).

    An extent of 0 is an open extent.
    """

    outputs: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.outputs = []

    def dense_layer(self, name: str, x: str, inputs: int, outputs: int) -> str:
        """Add a dense layer with a bias."""
        return self.add(self.matrix(name, x, inputs, outputs), self._bias(name, outputs))

    def matrix(self, name: str, x: str, inputs: int, outputs: int) -> str:
        """Add a product with a random matrix. The variance of the result is that of `x`."""
        values = self.normal(inputs, outputs, deviation=math.sqrt(1 / inputs))
        return self.matmul(x, self.parameter(f"{name}.weight", values))

    def node(self, kind: str, *inputs: str, rank: int | None = None, **attributes: Any) -> str:
        """Add a node with one result, and return the name of the result."""
        return self._add(kind, inputs, rank=rank, **attributes)

    def number(self, value: float) -> str:
        """Add a constant that is a scalar."""
        return self._scalar(value)

    def integers(self, *values: int) -> str:
        """Add a constant that is a list of integers."""
        return self._list(*values)

    def write(self, path: Path) -> None:
        """Write the model."""
        typed = helper.make_tensor_value_info
        inputs = [
            typed(
                name,
                TensorProto.INT64 if name == "tokens" else TensorProto.FLOAT,
                [n or None for n in shape],
            )
            for name, shape in self.inputs.items()
        ]
        outputs = [typed(x, TensorProto.FLOAT, [None] * self._ranks[x]) for x in self.outputs]
        graph = helper.make_graph(self._nodes, "network", inputs, outputs, self._initialisers)
        opset = helper.make_opsetid("", 20)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
        path.write_bytes(model.SerializeToString())


def encoder(width: int, layers: int) -> _Onnx:
    """Describe an encoder of sequences of any length.

    The gains at its end are stored as logarithms. Their exponential is computed once by XLA, and
    not by numpy.
    """
    b = _Onnx()
    y = bert(b, 0, tokens=0, width=width, layers=layers, heads=width // HEAD)
    gain = b.node("Exp", b.parameter("gain", b.normal(width, deviation=0.1)))
    b.outputs.append(b.multiply(y, gain))
    return b


def llama(width: int, layers: int) -> _Onnx:
    """Describe a Llama that takes past keys and values and returns them extended."""
    b, heads = _Onnx(), width // HEAD
    few, hidden = max(heads // 4, 1), width * 11 // 4

    def norm(name: str, x: str) -> str:
        mean = b.node("ReduceMean", b.multiply(x, x), b.integers(-1))
        scale = b.parameter(f"{name}.scale", b.uniform(width, low=0.8, high=1.2))
        return b.multiply(b.node("Div", x, b.node("Sqrt", b.add(mean, b.number(1e-6)))), scale)

    def split(x: str, count: int) -> str:
        return b.transpose(b.reshape(x, (0, 0, count, HEAD)), (0, 2, 1, 3))

    def turned(x: str) -> str:
        first, second = b.slice(x, 3, 0, HEAD // 2), b.slice(x, 3, HEAD // 2, HEAD)
        other = b.concat([b.node("Neg", second), first], 3)
        return b.add(b.multiply(x, cosines), b.multiply(other, sines))

    def repeated(x: str) -> str:
        x = b.node("Unsqueeze", x, b.integers(2), rank=5)
        x = b.node("Expand", x, b.integers(1, 1, heads // few, 1, 1))
        return b.reshape(x, (1, heads, -1, HEAD))

    tokens = b.input("tokens", 1, 0)
    pasts = [b.input(f"past{i}.{n}", 1, few, 0, HEAD) for i in range(layers) for n in "kv"]
    table = b.parameter("tokens.table", b.normal(LETTERS, width))
    x = b.node("Gather", table, tokens, rank=3)

    before = b.node("Gather", b.node("Shape", pasts[0]), b.integers(2), rank=1)
    after = b.add(before, b.node("Gather", b.node("Shape", tokens), b.integers(1), rank=1))
    start, stop = (b.node("Squeeze", v, rank=0) for v in (before, after))
    zero, one = (b.node("Squeeze", b.integers(v), rank=0) for v in (0, 1))
    places = b.node("Unsqueeze", b.node("Range", start, stop, one), b.integers(1), rank=2)
    seen = b.node("LessOrEqual", b.node("Range", zero, stop, one), places, rank=2)
    mask = b.node("Where", seen, b.number(0), b.number(-1e4))
    speeds = 10000.0 ** -(np.arange(HEAD) % (HEAD // 2) / (HEAD / 2))
    angles = b.node("Cast", places, to=TensorProto.FLOAT)
    angles = b.multiply(angles, b.parameter("speeds", speeds.astype(np.float32)[None]))
    cosines, sines = b.node("Cos", angles), b.node("Sin", angles)

    for i in range(layers):
        y = norm(f"{i}.norm1", x)
        q, k, v = (
            split(b.matrix(f"{i}.{name}", y, width, count * HEAD), count)
            for name, count in (("q", heads), ("k", few), ("v", few))
        )
        pairs = zip(pasts[2 * i :][:2], (turned(k), v), strict=True)
        joined = [b.concat([past, new], 2) for past, new in pairs]
        b.outputs += joined
        keys, values = map(repeated, joined)
        scores = b.matmul(turned(q), b.transpose(keys, (0, 1, 3, 2)))
        scores = b.add(b.scale(scores, HEAD**-0.5), mask)
        y = b.transpose(b.matmul(b.softmax(scores), values), (0, 2, 1, 3))
        x = b.add(x, b.matrix(f"{i}.output", b.reshape(y, (0, 0, width)), width, width))
        y = norm(f"{i}.norm2", x)
        gate, up = (b.matrix(f"{i}.{name}", y, width, hidden) for name in ("gate", "up"))
        x = b.add(x, b.matrix(f"{i}.down", b.multiply(b.silu(gate), up), hidden, width))
    b.outputs.insert(0, b.matmul(norm("norm", x), b.transpose(table, (1, 0))))
    return b


class _Rows:
    """A table with a row for each moment: the bytes of all jax arrays, and of the process."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, int]] = []

    def add(self, moment: str) -> None:
        """Measure the memory, and add a row with the name of the moment."""
        import jax

        gc.collect()
        arrays = sum(x.nbytes for x in jax.live_arrays())
        self.rows.append((moment, arrays, _resident()))

    def print(self, title: str, unit: int) -> None:
        """Print the table. The column `title` has the arrays' memory divided by `unit` bytes."""
        table = Table("", "arrays, MB", title, "process, MB", box=box.SIMPLE)
        for moment, arrays, resident in self.rows:
            mb = [f"{n / 1e6:.0f}" for n in (arrays, resident)]
            table.add_row(moment, mb[0], f"{arrays / unit:.3f}", mb[1])
        Console(width=None if sys.stdout.isatty() else 100).print(table)


def _resident() -> int:
    """Return the resident memory of this process in bytes."""
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("VmRSS"))
    return int(line.split()[1]) << 10


def lengths(count: int) -> list[int]:
    """Return `count` lengths from 1 to 512 in a fixed random order. EDGES are among them."""
    random = np.random.default_rng(0)
    others = [n for n in range(1, LONGEST + 1) if n not in EDGES]
    drawn = random.permutation(others)[: max(count - len(EDGES), 0)]
    return [int(n) for n in random.permutation([*EDGES[:count], *drawn])]


def of_encoder(path: Path, told: Any) -> None:
    """Print the memory that an encoder keeps after calls of more and more lengths."""
    import jax

    import nnef_jax

    rows, random = _Rows(), np.random.default_rng(1)
    model = nnef_jax.load(path, dtype=told.dtype)
    rows.add("after load")
    several = lengths(told.lengths)
    for count, length in enumerate(several, 1):
        x = random.standard_normal((1, length, told.width)).astype(np.float32)
        jax.block_until_ready(model(x))
        del x
        if count & (count - 1) == 0 or count == len(several):
            rows.add(f"after {count} lengths" if count > 1 else "after the first call")
    unit = next(arrays for moment, arrays, _ in rows.rows if moment == "after 2 lengths")
    rows.print("to 2 lengths", unit)


def of_llama(path: Path, told: Any) -> None:
    """Print the memory that a Llama keeps after its prefill and after a few tokens."""
    import jax

    import nnef_jax

    rows = _Rows()
    model = nnef_jax.load(path, dtype=told.dtype)
    rows.add("after load")
    unit = sum(x.nbytes for x in model.params.values())
    heads = max(told.width // HEAD // 4, 1)
    cache: Sequence[Any] = [np.zeros((1, heads, 0, HEAD), np.float32)] * (2 * told.layers)
    tokens = np.arange(PREFILL)[None] % LETTERS
    for place in range(1 + DECODED):
        logits, *cache = jax.block_until_ready(model(tokens, *cache))
        tokens = np.asarray(logits)[:, -1:].argmax(-1)
        del logits
        rows.add(f"after {place} tokens" if place else "after prefill")
    rows.print("to weights", unit)


NETWORKS: dict[str, tuple[Callable[[int, int], _Onnx], Callable[[Path, Any], None]]] = {
    "encoder": (encoder, of_encoder),
    "llama": (llama, of_llama),
}


def _run(name: str, told: Any) -> None:
    build, measure = NETWORKS[name]
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        path = Path(folder, f"{name}.onnx")
        build(told.width, told.layers).write(path)
        measure(path, told)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the networks that the command line selects, each in a process of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=[*NETWORKS], default=[*NETWORKS])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--lengths", type=int, default=64)
    parser.add_argument("--dtype", default="float32")
    told = parser.parse_args(arguments)
    for name in told.networks:
        process = multiprocessing.get_context("spawn").Process(target=_run, args=(name, told))
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(process.exitcode)


if __name__ == "__main__":
    main()
