"""Train the network of `photograph.py`, which names the digit that is painted into a photograph.

    python examples/scenes.py [--save out/scenes.nnef.tgz]

The network is the document `examples/scenes/graph.nnef`. Beside it are parameters that this script
has trained. The two photographs and the scans of digits are those of scikit-learn. The scenes for
training show only the left halves of the photographs. The scenes for the test show the right
halves, and other scans. The training takes two minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from common import Options, positive
from train import accuracy, fit, load_digits, untrained

NETWORK = Path(__file__).parent / "scenes"
SIZES = 22.0, 36.0  # the smallest and the largest size of digits
# The extent of the scenes and the number of epochs of each stage. Small scenes come first.
STAGES = ((40, 40), (64, 30), (96, 8))


def photographs() -> tuple[np.ndarray, np.ndarray]:
    """Return the left and the right halves of the photographs.

    Each array has the shape (photographs, colours, height, width), (2, 3, 213, 160), with values
    from 0 to 255.
    """
    from sklearn.datasets import load_sample_images

    images = np.stack(load_sample_images().images)[:, :426].astype(np.float32)
    small = images.reshape(2, 213, 2, 320, 2, 3).mean((2, 4)).transpose(0, 3, 1, 2)
    return small[..., :160], small[..., 160:]


@partial(jax.jit, static_argnums=3)
def paint(
    key: jax.Array, images: Any, scans: Any, extents: tuple[int, int]
) -> tuple[jax.Array, jax.Array]:
    """Paint each scan (n, 1, 8, 8) into a random part of a photograph.

    Return the scenes (n, 3, height, width), whose height and width are `extents`, and the boxes
    around the digits (n, 4): top, left, bottom, right. The paint is light on dark parts of the
    photograph, and dark on light parts.
    """

    def one(key: jax.Array, scan: jax.Array) -> tuple[jax.Array, jax.Array]:
        flip, first, size, place, light = jax.random.split(key, 5)
        shape = 1, 3, *extents
        limits = jnp.array(images.shape) - jnp.array(shape) + 1
        start = jax.random.randint(first, (4,), 0, limits)
        part = jax.lax.dynamic_slice(images, start, shape)[0]
        part = jnp.where(jax.random.bernoulli(flip), part[..., ::-1], part)
        extent = jax.random.uniform(size, (), minval=SIZES[0], maxval=SIZES[1])
        corner = jax.random.uniform(place, (2,)) * (jnp.array(extents) - extent)
        scale = jnp.full(2, extent / 8)
        ink = jax.image.scale_and_translate(
            scan[0] / 255, extents, (0, 1), scale, corner, method="linear"
        )
        is_dark = (part * ink).sum() / (3 * ink.sum()) < 128
        color = jax.random.uniform(light, (3, 1, 1), maxval=64) + jnp.where(is_dark, 192, 0)
        return part * (1 - ink) + color * ink, jnp.concatenate([corner, corner + extent])

    return jax.vmap(one)(jax.random.split(key, len(scans)), jnp.asarray(scans))


def main(argv: Sequence[str] | None = None) -> None:
    options = Options(__doc__, ["optax", "pillow", "scikit-learn"], save="scenes.nnef.tgz")
    options.add_argument("--epochs", type=positive, default=40, help="at most, of each extent")
    args = options.read(argv)
    (train, _, test), (left, right) = load_digits(), photographs()
    images, model = jnp.asarray(left), untrained(NETWORK)
    for side, most in STAGES:

        def painted(key: jax.Array, params: Any, scans: Any, labels: Any, side: int = side) -> Any:
            return paint(key, images, scans, (side, side))[0]

        *_, (params, loss) = fit(model, train, painted, epochs=min(most, args.epochs))
        model = model.with_params(params)
        scenes, _ = paint(jax.random.key(1), right, test.images, (side, side))
        share = accuracy(model, scenes, test.labels)
        print(f"{side}x{side}  loss {loss:.3f}  test accuracy {share:.1%}", flush=True)
    model.save(args.save, overwrite=args.overwrite)
    print(f"wrote {args.save}")


if __name__ == "__main__":
    main()
