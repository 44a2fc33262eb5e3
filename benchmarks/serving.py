"""Measures the requests a second of `nnef_jax.serving`, with nnef_jax and with onnxruntime.

    python -m benchmarks.serving --clients 64 --seconds 20

Many clients send requests at the same time. They run on the same cores as the server. Each answer
is compared with the result that the engine computes for the single item. At the end, the server is
stopped while the clients still send requests, and requests without an answer are counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engines import example, onnx_session, write_nnef, write_onnx
from nnef_jax import TensorSpec
from nnef_jax.serving import Servable

_ITEMS = 16  # different items that clients send
_TOLERANCE = 1e-4  # relative to the largest entry of a row
_ENGINES = ("nnef_jax", "onnxruntime")


class OnnxBatches(Servable):
    """Runs batches of a network in onnxruntime, with a session for each size."""

    def __init__(self, network: str, sizes: Sequence[int], folder: Path) -> None:
        self.sizes = tuple(sizes)
        self._sessions = {n: onnx_session(write_onnx(network, n, folder)) for n in sizes}
        session = next(iter(self._sessions.values()))
        (x,), (y,) = session.get_inputs(), session.get_outputs()
        self.inputs = (TensorSpec(x.name, (None, *x.shape[1:]), "float32"),)
        self.outputs = (TensorSpec(y.name, (None, *y.shape[1:]), "float32"),)

    def compile(self, progress: Any = None) -> None:
        for size in self.sizes:
            self.compute([np.zeros((size, *self.inputs[0].shape[1:]), np.float32)])

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        return [*args, *kwargs.values()]

    def compute(self, arrays: Sequence[Any]) -> list[Any]:
        (x,) = arrays
        size = next(n for n in self.sizes if n >= len(x))
        x = np.concatenate([x, np.repeat(x[-1:], size - len(x), axis=0)]) if size > len(x) else x
        return [self._sessions[size].run(None, {self.inputs[0].name: x})[0][: len(arrays[0])]]


def servable(engine: str, network: str, sizes: Sequence[int], folder: Path) -> Any:
    """Return an object that computes batches of a network by an engine, for `serving.app`."""
    if engine == "onnxruntime":
        return OnnxBatches(network, sizes, folder)
    import nnef_jax

    return nnef_jax.load(write_nnef(network, 1, folder)).batcher(sizes)


def alone(engine: str, network: str, sizes: Sequence[int], folder: Path) -> None:
    """Print the items a second for each batch size, without a server."""
    batches = servable(engine, network, sizes, folder)
    batches.compile()
    for size in sizes:
        x = np.repeat(items(network)[:1], size, axis=0)
        times: list[float] = []
        end = time.perf_counter() + 2
        while time.perf_counter() < end or len(times) < 5:
            start = time.perf_counter()
            batches.compute([x])
            times.append(time.perf_counter() - start)
        print(f"{engine} alone: batch {size}: {size / np.median(times):.1f} items/s", flush=True)


def items(network: str) -> Any:
    """Return the items that clients send. They are the same in each process."""
    (x,) = example(network, 1).values()
    return np.random.default_rng(0).standard_normal((_ITEMS, *x.shape[1:])).astype(np.float32)


def serve(engine: str, network: str, sizes: Sequence[int], folder: Path) -> None:
    """Write the expected row of each item to a file, and serve a network until a signal arrives."""
    from nnef_jax.serving import ServingLimits, app
    from nnef_jax.serving.server import Server

    batches = servable(engine, network, sizes, folder)
    rows = np.concatenate([batches.compute([x[None]])[0] for x in items(network)])
    np.save(folder / f"{engine}.npy", rows)
    limits = ServingLimits()
    application = app(
        {network: batches}, limits=limits, progress=lambda done, total: print("ready", flush=True)
    )
    listening: Any = lambda url: print(url, flush=True)  # noqa: E731
    Server(application, "127.0.0.1", 0, limits.timeout, listening).run()


@dataclass
class Seen:
    """The answers that the clients got: their times and the number of each outcome."""

    rows: Any
    seconds: list[float] = field(default_factory=list[float])
    counts: Counter[str] = field(default_factory=Counter[str])
    is_stopping: bool = False


async def client(port: int, requests: Sequence[bytes], seen: Seen, first: int) -> None:
    """Send one request after the other. A connection is used until the server closes it."""
    number, reader, writer = first, None, None
    while True:
        index, number = number % _ITEMS, number + 1
        start = time.perf_counter()
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            seen.counts["refused after the stop" if seen.is_stopping else "refused"] += 1
            return
        try:
            writer.write(requests[index])
            await writer.drain()
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
            body = await reader.readexactly(int(headers["content-length"]))
        except (OSError, asyncio.IncompleteReadError):
            seen.counts["lost"] += 1
            return
        seen.seconds.append(time.perf_counter() - start)
        status = head.split(" ", 2)[1]
        if status != "200":
            seen.counts[f"status {status}"] += 1
        else:
            row = np.frombuffer(body[int(headers["inference-header-content-length"]) :], np.float32)
            wanted = seen.rows[index].ravel()
            is_right = np.abs(row - wanted).max() <= _TOLERANCE * np.abs(wanted).max()
            seen.counts["right" if is_right else "wrong"] += 1
        if headers.get("connection") == "close":
            writer.close()
            writer = None


async def load(port: int, network: str, name: str, seen: Seen, options: Any, stop: Any) -> None:
    """Run the clients, stop the server while they run, and print the results."""
    requests: list[bytes] = []
    for item in items(network):
        data = item.tobytes()
        tensor = {"name": name, "datatype": "FP32", "shape": [1, *item.shape]}
        tensor["parameters"] = {"binary_data_size": len(data)}
        document = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
        text = json.dumps(document).encode()
        head = (
            f"POST /v2/models/{network}/infer HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Content-Length: {len(text) + len(data)}\r\n"
            f"Inference-Header-Content-Length: {len(text)}\r\n\r\n"
        )
        requests.append(head.encode() + text + data)
    clients = [
        asyncio.create_task(client(port, requests, seen, first)) for first in range(options.clients)
    ]
    await asyncio.sleep(options.seconds / 4)
    seen.seconds.clear()
    start, before = time.perf_counter(), seen.counts["right"]
    await asyncio.sleep(options.seconds)
    count, seconds = seen.counts["right"] - before, time.perf_counter() - start
    latencies = np.array(seen.seconds)
    seen.is_stopping = True
    stop()
    await asyncio.gather(*clients)
    p50, p99 = np.percentile(latencies, [50, 99])
    print(f"  {count / seconds:.1f} requests/s, p50 {p50:.3f} s, p99 {p99:.3f} s")
    print(f"  {dict(seen.counts)}, lost {seen.counts['lost']}, wrong {seen.counts['wrong']}")


def measure(engine: str, options: Any, folder: Path) -> None:
    """Start a server with an engine, and send requests to it."""
    told = [sys.executable, "-m", "benchmarks.serving", "--serve", engine, "--folder", str(folder)]
    told += ["--network", options.network, "--sizes", options.sizes]
    with subprocess.Popen(told, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        port = int(server.stdout.readline().rpartition(":")[2])
        assert server.stdout.readline() == "ready\n"
        seen = Seen(np.load(folder / f"{engine}.npy"))
        (name,) = example(options.network, 1)
        print(f"{engine} served, {options.clients} clients", flush=True)
        stop = lambda: server.send_signal(signal.SIGTERM)  # noqa: E731
        asyncio.run(load(port, options.network, name, seen, options, stop))
        print(f"  ended by {server.wait(30)}", flush=True)


def main() -> None:
    """Measure the engines that the command line selects."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--sizes", default="1,2,4,8,16,32")
    parser.add_argument("--engines", default=",".join(_ENGINES))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "serving")
    parser.add_argument("--no-alone", action="store_true")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    sizes = [int(size) for size in options.sizes.split(",")]
    if options.serve:
        return serve(options.serve, options.network, sizes, options.folder)
    for engine in options.engines.split(","):
        if not options.no_alone:
            alone(engine, options.network, sizes, options.folder)
        measure(engine, options, options.folder)


if __name__ == "__main__":
    main()
