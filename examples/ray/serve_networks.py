"""Serves networks by Ray Serve, on one or several machines, in replicas that follow the load.

    python serve_networks.py digits=examples/digits/model

The URL `http://127.0.0.1:8000/v2/models/digits/infer` answers requests of the Open Inference
Protocol, like `nnef-jax serve`. Within Ray, `serve.get_app_handle("rows").remote(image)` returns
the output row for an image.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

import nnef_jax
from ray import serve

SCALING = {"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 32}


def protocol(sources: dict[str, str], **options: Any) -> Any:
    """Return the application for the protocol. Each replica compiles all networks."""

    def build() -> Any:
        batchers = {name: nnef_jax.load(x).batcher() for name, x in sources.items()}
        for batcher in batchers.values():
            batcher.compile()  # a replica gets no requests before `build` returns
        return nnef_jax.serving.app(batchers)

    options = {"autoscaling_config": SCALING, "max_ongoing_requests": 128, **options}
    return serve.deployment(**options)(serve.ingress(build)()).options(name="Protocol").bind()


@serve.deployment(autoscaling_config=SCALING, max_ongoing_requests=128)
class Rows:
    """One network for callers within Ray. `serve.batch` joins their items to batches."""

    def __init__(self, source: str) -> None:
        self.batcher = nnef_jax.load(source).batcher()
        self.batcher.compile()

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.002)
    async def __call__(self, items: list[np.ndarray]) -> list[np.ndarray]:
        return list(self.batcher(np.stack(items)))


if __name__ == "__main__":
    named = dict(text.split("=", 1) for text in sys.argv[1:])
    serve.run(Rows.bind(next(iter(named.values()))), name="rows", route_prefix=None)
    serve.run(protocol(named), name="protocol")
    while True:
        time.sleep(60)
