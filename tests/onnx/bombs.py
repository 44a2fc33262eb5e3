"""Models of ONNX whose messages and numbers take few bytes each, but far more memory once read.

`python -m tests.onnx.bombs` loads each kind at 3, 20 and 100 MB in a process of its own, within the
default limits, and prints what it took.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nnef_jax

SIZES = (3_000_000, 20_000_000, 100_000_000)
SECONDS = 10.0  # of the processor
GIGABYTES = 2.0
_SMALL = 1000  # bytes of a message


def field(number: int, content: bytes = b"") -> bytes:
    """Return a field of bytes, of a message or a text."""
    return _number(number << 3 | 2) + _number(len(content)) + content


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def filled(part: bytes, size: int) -> bytes:
    """Repeat a part up to a size."""
    return part * max(1, size // len(part))


def model(content: bytes) -> bytes:
    """Return a model with a version and these fields."""
    return b"\x08\x0a" + field(7) + content


def graph(content: bytes) -> bytes:
    """Return a model whose graph has these fields."""
    return model(field(7, content))


def node(content: bytes) -> bytes:
    """Return a model with one node, which has these fields."""
    return graph(field(1, field(4, b"Relu") + content))


def attribute(content: bytes) -> bytes:
    """Return a model with one attribute, which has these fields."""
    return node(field(5, field(1, b"a") + content))


def small_nodes(part: bytes, size: int) -> bytes:
    """Return a model of many small nodes, full of a part."""
    return graph(filled(field(1, filled(part, _SMALL)), size))


def nested(size: int) -> bytes:
    """Return graphs within graphs, nearly as deep as they may be, with nodes in the last."""
    content = filled(field(1), size)
    for _ in range(18):
        content = field(1, field(5, field(6, content)))
    return graph(content)


_TENSOR = field(5, b"\x08\x00\x10\x01")  # of a graph: one of no items
_NUMBERS = b"\xc8\x01"  # 200
KINDS: dict[str, Callable[[int], bytes]] = {
    "attributes": lambda n: node(filled(field(5), n)),
    "attributes of small nodes": lambda n: small_nodes(field(5), n),
    "graphs in attributes": lambda n: attribute(filled(field(11), n)),
    "graphs within graphs": nested,
    "tensors": lambda n: graph(filled(_TENSOR, n)),
    "tensors in attributes": lambda n: attribute(filled(field(10), n)),
    "functions": lambda n: model(filled(field(25), n)),
    "training": lambda n: model(filled(field(20), n)),
    "nodes": lambda n: graph(filled(field(1), n)),
    "inputs": lambda n: graph(filled(field(11), n)),
    "types of tensors inside": lambda n: graph(filled(field(13, field(2, field(1))), n)),
    "names": lambda n: small_nodes(field(1), n),
    "numbers of an attribute": lambda n: attribute(filled(b"\x40" + _NUMBERS, n)),
    "numbers of a tensor": lambda n: graph(field(5, b"\x10\x07" + field(7, filled(_NUMBERS, n)))),
    "floats of a tensor": lambda n: graph(field(5, b"\x10\x01" + field(4, bytes(n // 4 * 4)))),
    "extents of a tensor": lambda n: graph(field(5, b"\x10\x01" + filled(b"\x08" + _NUMBERS, n))),
    "places of external data": lambda n: graph(field(5, b"\x70\x01" + filled(field(13), n))),
    "sparse tensors": lambda n: graph(filled(field(15), n)),
    "unknown fields": lambda n: graph(filled(b"\xa0\x06\x01", n)),
    "one message in many parts": lambda n: model(filled(field(7), n)),
    "operator sets": lambda n: model(filled(field(8), n)),
    "texts": lambda n: attribute(filled(field(9), n)),
    "a long name": lambda n: node(field(3, b"n" * (n // 2)) + filled(field(5), n // 2)),
    "a text": lambda n: attribute(field(4, b"\xff" * n)),
    "items of two bits": lambda n: graph(
        field(5, b"\x08" + _number(4 * n) + b"\x10\x19" + field(9, bytes(n)))
    ),
}  # fmt: skip


def outcome(source: bytes, limits: nnef_jax.Limits | None = None) -> str:
    """Return the outcome of loading a model: "model", or the name of the NnefError."""
    try:
        str(nnef_jax.load(source, limits=limits).summary())
    except nnef_jax.NnefError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
    return "model"


def measured(kind: str, size: int) -> tuple[str, float, float]:
    """Load a bomb in a new process; return its outcome, seconds of the processor, and gigabytes."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_measure, args=(kind, size, results))
    process.start()
    try:
        return results.get(timeout=120)
    except Exception:  # the queue's own, which no module names
        return "no end", 120.0, 0.0
    finally:
        process.kill()
        process.join()


def _measure(kind: str, size: int, results: Any) -> None:
    source = KINDS[kind](size)
    outcome(KINDS["attributes"](2))  # which imports all that it needs
    status = Path("/proc/self/status")
    Path("/proc/self/clear_refs").write_text("5")
    start = time.process_time()
    found = outcome(source)
    seconds = time.process_time() - start
    peak = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
    results.put((found, seconds, int(peak.split()[1]) / 1e6))


def main() -> int:
    """Load bombs of the kinds whose name contains the argument; return 1 if one costs too much."""
    parser = argparse.ArgumentParser("python -m tests.onnx.bombs", description=__doc__)
    parser.add_argument("name", nargs="?", default="")
    name, failed = parser.parse_args().name, 0
    for kind in KINDS:
        if name not in kind:
            continue
        for size in SIZES:
            found, seconds, gigabytes = measured(kind, size)
            wrong = seconds > SECONDS or gigabytes > GIGABYTES
            failed += wrong
            print(
                f"{'FAILED ' if wrong else ''}{kind}, {size / 1e6:.0f} MB: {found}, "
                f"{seconds:.1f} s of the processor, {gigabytes:.2f} GB",
                flush=True,
            )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
