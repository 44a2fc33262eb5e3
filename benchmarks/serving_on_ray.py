"""Sends requests to `examples/ray/serve_networks.py` on two nodes, while replicas are killed.

    python -m benchmarks.serving_on_ray --seconds 40 --every 5

Both nodes are processes of this machine. Each answer is compared with the row that a direct call
computes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from ray.cluster_utils import Cluster

import nnef_jax
import ray
from examples.ray.serve_networks import protocol
from ray import serve

_DIGITS = str(Path("examples/digits/model").resolve())
_TIMEOUT = 10.0


async def client(port: int, items: Any, wanted: Any, end: float, seen: Any) -> None:
    """Send one item after the other until the time `end`. Put outcomes and times into `seen`."""
    counts, seconds = seen
    number = 0
    while time.monotonic() < end:
        number = (number + 1) % len(items)
        start = time.monotonic()
        try:
            ending = await asyncio.wait_for(ask(port, items[number], wanted[number]), _TIMEOUT)
        except TimeoutError:
            ending = "nothing within its timeout"
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            ending = f"error: {type(error).__name__}"
        counts[ending] += 1
        seconds.append(time.monotonic() - start)
        await asyncio.sleep(0.01)


async def ask(port: int, item: Any, wanted: Any) -> str:
    """Send a request for an item, and return its outcome: "right", "wrong", or an error."""
    tensor = {"name": "image", "shape": [1, *item.shape], "datatype": "FP32"}
    tensor["data"] = item.ravel().tolist()
    text = json.dumps({"inputs": [tensor]})
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = "POST /v2/models/digits/infer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode())
        answer, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    status = answer.split(b" ", 2)[1:2]
    if status != [b"200"]:
        return f"error: {status[0].decode() if status else 'closed'}"
    row = json.loads(body[body.index(b"{") : body.rindex(b"}") + 1])["outputs"][0]["data"]
    return "right" if np.allclose(row, wanted, rtol=1e-4, atol=1e-5) else "wrong"


def replicas() -> list[int]:
    """Return the process ids of the replicas."""
    from ray.util.state import list_actors

    found = list_actors(filters=[("state", "=", "ALIVE")], limit=100)
    return [x.pid for x in found if "Protocol" in x.class_name and x.pid]


async def kill(every: float, end: float, killed: list[int]) -> None:
    """Kill a replica every `every` seconds, until the time `end`."""
    while time.monotonic() + every < end:
        await asyncio.sleep(every)
        pids = await asyncio.to_thread(replicas)
        if pids:
            os.kill(pids[len(killed) % len(pids)], signal.SIGKILL)
            killed.append(pids[0])


async def run(port: int, options: Any) -> tuple[Counter[str], list[float], list[int]]:
    """Run clients while replicas are killed."""
    items = np.random.default_rng(0).random((16, 1, 8, 8)).astype(np.float32)
    wanted = np.asarray(nnef_jax.load(_DIGITS, input_shapes={"image": items.shape})(items))
    seen: tuple[Counter[str], list[float]] = Counter(), []
    killed: list[int] = []
    end = time.monotonic() + options.seconds
    clients = [client(port, items, wanted, end, seen) for _ in range(options.clients)]
    await asyncio.gather(kill(options.every, end, killed), *clients)
    return *seen, killed


def measure(options: Any) -> Counter[str]:
    """Start two nodes, serve on both, and print and return the outcomes of requests."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        cluster.add_node(num_cpus=2)
        ray.init(address=cluster.address, log_to_driver=False)
        serve.start(http_options={"port": options.port, "location": "HeadOnly"})
        application = protocol(
            {"digits": _DIGITS},
            autoscaling_config=None,
            num_replicas=2,
            max_replicas_per_node=1,
            health_check_period_s=1,
        )
        serve.run(application, name="protocol")
        counts, seconds, killed = asyncio.run(run(options.port, options))
        p50, p99 = np.percentile(seconds, [50, 99])
        print(f"{sum(counts.values())} requests, {len(killed)} replicas killed: {dict(counts)}")
        print(f"p50 {p50:.3f} s, p99 {p99:.3f} s, longest {max(seconds):.3f} s")
        return counts
    finally:
        serve.shutdown()
        ray.shutdown()
        cluster.shutdown()


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--every", type=float, default=5)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--port", type=int, default=8123)
    return parser


if __name__ == "__main__":
    measure(arguments().parse_args())
