"""Measures the time of networks in OpenVX's Q7.8, and of the same networks in real numbers.

    python -m benchmarks.fixed_point [--rounds 5]

All variants of a network run alternately in one process. "optimised" is the network as `load`
returns it, and "as written" is the network with `load(..., optimize=False)`. A ratio is the time of
a variant divided by that of one of these two.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.builders.nnef_builder import NnefBuilder
from benchmarks.networks.convolutional import mobilenet_v2, resnet
from benchmarks.timing import measure

BATCH = 4
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 2, 2))
NETWORKS: dict[str, Callable[[NnefBuilder], str]] = {
    "ResNet, 2 stages, 64x64": lambda b: resnet(b, BATCH, (1, 1), bottleneck=False, extent=64),
    "MobileNetV2, 3 stages, 64x64": lambda b: mobilenet_v2(
        b, BATCH, extent=64, stages=_STAGES, last=128, classes=10
    ),
}


def calls_of(describe: Callable[[NnefBuilder], str]) -> dict[str, Callable[[], Any]]:
    """Return the variants of a network as functions that run them once, by name."""
    import jax

    import nnef_jax
    from nnef_jax import openvx

    builder = NnefBuilder()
    output = describe(builder)
    with tempfile.TemporaryDirectory() as folder:
        builder.write(f"{folder}/network.tar", output)
        models = {
            name: nnef_jax.load(f"{folder}/network.tar", optimize=name == "optimised")
            for name in ("as written", "optimised")
        }
        jax.block_until_ready([model.params for model in models.values()])
    (spec,) = models["as written"].inputs
    image = np.random.default_rng(0).uniform(-1, 1, spec.shape).astype(np.float32)  # pyright: ignore[reportArgumentType]
    calls: dict[str, Callable[[], Any]] = {
        name: lambda model=model: jax.block_until_ready(model(image))
        for name, model in models.items()
    }
    tensor = openvx.Tensor.quantize(image)
    for semantics in ("spec", "khronos"):
        fixed = openvx.lower(models["as written"], semantics=semantics)  # pyright: ignore[reportArgumentType]
        calls[semantics] = lambda fixed=fixed: jax.block_until_ready(fixed(tensor))
    return calls


def main() -> None:
    """Print the time of each variant, and its ratios to the variants in real numbers."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each")
    rounds = parser.parse_args().rounds
    for title, describe in NETWORKS.items():
        found = measure(calls_of(describe), rounds)
        times = found.medians
        print(f"{title}, batch {BATCH} (others used {found.elsewhere:.1f} cores)")
        for name, seconds in times.items():
            ratios = ", ".join(
                f"{seconds / times[other]:.1f} of {other}" for other in ("as written", "optimised")
            )
            print(f"  {name:10} {1e3 * seconds:8.2f} ms  {ratios}")


if __name__ == "__main__":
    main()
