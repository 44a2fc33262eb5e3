"""Runs a network on a folder of pictures by Ray Data, on one machine or on several machines.

    python predict.py NETWORK PICTURES --out RESULTS --workers 2

There is one actor with the network for each device. The weights are stored once in the object store
of each node, from where the actors read them. If the script runs again with the same folder for
results, it continues where it ended.
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
    """A network in an actor, which maps a batch of pictures to a batch of outputs.

    Pictures and outputs come with the paths of the pictures.

    Args:
        model: the reference that `ray.put` returned for the model.
        batch_size: the size of batches for which the network is compiled. Smaller batches are
            filled up, and their results are cut.
        mean, scale: the network gets (pixel - mean) * scale for pixels from 0 to 255.
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
    """Write the outputs for all pictures below a folder to Parquet files, a row for each picture.

    `out` also has the paths of the pictures that are done. If there are several machines, it must
    be a folder or a bucket that all of them can reach.
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
    shared = ray.put(model)  # kept until the end, since restarted actors read it again
    gpus = ray.cluster_resources().get("GPU", 0)
    results = images.map_batches(
        predictor,
        fn_constructor_args=(shared, batch_size, mean, scale),
        batch_size=batch_size,
        compute=ray.data.ActorPoolStrategy(size=workers),
        **({"num_gpus": 1} if gpus else {"num_cpus": 0.5}),  # other cores read pictures
    )
    results.write_parquet(f"{out}/rows")


def main() -> None:
    """Run `predict` with the options of the command line."""
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
        if "://" not in options[name]:  # the address of a bucket is not changed
            options[name] = str(Path(options[name]).absolute())
    ray.init()  # connects to the cluster of RAY_ADDRESS, or starts one here
    predict(**options)


if __name__ == "__main__":
    main()
