"""Runs a network on a folder of pictures by Ray Data, on one machine or on many.

    python predict.py NETWORK PICTURES --out RESULTS --workers 2

An actor a device holds the network. The weights are in the object store of each node once: actors
read them there. Run again with the same folder for results, it goes on where it ended.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import nnef_jax

try:
    from ray.data.checkpoint import CheckpointConfig

    import ray
except ImportError:
    raise SystemExit('needs ray: pip install -e ".[ray]"') from None


class Predictor:
    """A network in an actor: batches of pictures and their paths to outputs and paths.

    Args:
        model: what `ray.put` made of it.
        batch_size: of the one shape that is compiled; smaller batches are filled, and cut again.
        mean, scale: pixels of 0 to 255 become (pixel - mean) * scale.
    """

    def __init__(self, model: ray.ObjectRef, batch_size: int, mean: float, scale: float) -> None:
        self.model: nnef_jax.Model = ray.get(model)
        self.batch_size, self.mean, self.scale = batch_size, mean, scale

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        pixels = batch["image"].astype(np.float32)
        pixels = pixels[..., np.newaxis] if pixels.ndim == 3 else pixels
        images = (pixels.transpose(0, 3, 1, 2) - self.mean) * self.scale
        count = len(images)
        filled = np.resize(images, (self.batch_size, *images.shape[1:]))
        found = self.model(filled)
        arrays = [found] if len(self.model.outputs) == 1 else found
        outputs = {
            spec.name: np.asarray(array)[:count]
            for spec, array in zip(self.model.outputs, arrays, strict=True)
        }
        return {"path": batch["path"], **outputs}


def predict(
    network: str,
    pictures: str,
    out: str,
    workers: int = 1,
    batch_size: int = 32,
    mean: float = 0.0,
    scale: float = 1.0,
    predictor: type[Predictor] = Predictor,
) -> None:
    """Write the outputs for all pictures below a folder to Parquet files: a row each.

    `out` also has the paths that are done: on many machines it is a folder, or a bucket, that all
    of them reach.
    """
    model = nnef_jax.load(network)
    (spec,) = model.inputs
    shape = batch_size, *spec.shape[1:]
    model = nnef_jax.load(network, input_shapes={spec.name: shape})
    _, channels, height, width = shape
    context = ray.data.DataContext.get_current()
    context.checkpoint_config = CheckpointConfig(
        "path", f"{out}/done", delete_checkpoint_on_success=False
    )
    images = ray.data.read_images(
        pictures,
        mode="L" if channels == 1 else "RGB",
        size=(height, width),
        include_paths=True,
    )
    shared = ray.put(model)  # kept until the end, as actors that start again read it again
    gpus = ray.cluster_resources().get("GPU", 0)
    results = images.map_batches(
        predictor,
        fn_constructor_args=(shared, batch_size, mean, scale),
        batch_size=batch_size,
        compute=ray.data.ActorPoolStrategy(size=workers),
        **({"num_gpus": 1} if gpus else {"num_cpus": 0.5}),  # the rest is for what reads
    )
    results.write_parquet(f"{out}/rows")


def main() -> None:
    """Run it by the options of a command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("network")
    parser.add_argument("pictures")
    parser.add_argument("--out", required=True)
    parser.add_argument("--workers", type=int, default=1, help="devices of all machines")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--mean", type=float, default=0.0)
    parser.add_argument("--scale", type=float, default=1.0)
    options = vars(parser.parse_args())
    for name in ("pictures", "out"):
        if "://" not in options[name]:  # a bucket's address stays as it is
            options[name] = str(Path(options[name]).absolute())
    ray.init()  # the cluster of RAY_ADDRESS, or this machine
    predict(**options)


if __name__ == "__main__":
    main()
