"""Train the digit classifier to read rotated digits, and save it as NNEF.

    python examples/finetune.py [--out out/finetune.png] [--save out/rotated.nnef.tgz]

The network was trained on upright scans. This script continues the training from the network's own
parameters, by `jax.grad` through `model.apply`. In each step the scans are rotated by random angles
of up to 60 degrees in both directions. The picture shows the accuracy on test scans before and
after, by angle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.ndimage import map_coordinates

import nnef_jax
from common import BLUE, DIGITS, GREEN, GREY, RED, Options, picture, positive, show_scan
from train import accuracy, fit, load_digits

MOST = 60  # the largest angle in degrees
ANGLES = np.arange(-90, 91, 10)


@jax.jit
def rotated(images: Any, degrees: Any) -> jax.Array:
    """Rotate images (n, 1, 8, 8), each by its own angle in degrees (n)."""
    grid = jnp.stack(jnp.meshgrid(jnp.arange(8.0), jnp.arange(8.0), indexing="ij")) - 3.5

    def turn(image: jax.Array, angle: jax.Array) -> jax.Array:
        sine, cosine = jnp.sin(angle), jnp.cos(angle)
        rotation = jnp.array([[cosine, -sine], [sine, cosine]])
        places = jnp.tensordot(rotation, grid, axes=1) + 3.5
        return map_coordinates(image, list(places), order=1)[None]

    return jax.vmap(turn)(jnp.asarray(images)[:, 0], jnp.deg2rad(degrees))


def randomly(key: jax.Array, params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Rotate the images of a training step by random angles."""
    return rotated(images, jax.random.uniform(key, (len(images),), minval=-MOST, maxval=MOST))


def draw(
    path: Any, curves: dict[str, Any], scans: Any, before: Any, after: Any, right: Any
) -> None:
    """Draw the accuracy by angle, and eight scans with the digits read before and after."""
    with picture(path, 9, 4, "PPPPabcd;PPPPefgh") as axes:
        plot = axes.pop("P")
        for (name, values), color in zip(curves.items(), (RED, BLUE), strict=True):
            plot.plot(ANGLES, 100 * np.asarray(values), color=color, label=name)
        plot.axvspan(-MOST, MOST, color=GREY, alpha=0.12, linewidth=0, label="angles trained on")
        plot.set(xlabel="rotation (degrees)", ylabel="test accuracy (%)", ylim=(0, 102))
        plot.set(xticks=range(-90, 91, 30), title="Fine-tuned on rotated digits")
        plot.legend(loc="lower center")
        for i, axis in enumerate(axes.values()):
            color = GREEN if after[i] == right[i] else RED
            show_scan(axis, scans[i, 0], f"{right[i]}: {before[i]} → {after[i]}", color)


def main(argv: Sequence[str] | None = None) -> None:
    files = {"out": "finetune.png", "save": "rotated.nnef.tgz"}
    options = Options(__doc__, ["matplotlib", "optax", "scikit-learn"], **files)
    options.add_argument("--epochs", type=positive, default=40)
    args = options.read(argv)

    train, _, test = load_digits()
    model = nnef_jax.load(DIGITS / "model")
    *_, (params, _) = fit(model, train, randomly, epochs=args.epochs, rate=1e-3)
    tuned = model.with_params(params)
    tuned.save(args.save, overwrite=args.overwrite)
    again = nnef_jax.load(args.save)  # check that the saved file has the trained network
    np.testing.assert_array_equal(again(test.images), tuned(test.images))

    curves = {"before": [], "after": []}
    for angle in ANGLES:
        turned = rotated(test.images, np.full(len(test.images), angle, np.float32))
        curves["before"].append(accuracy(model, turned, test.labels))
        curves["after"].append(accuracy(again, turned, test.labels))
    trained_on = np.abs(ANGLES) <= MOST
    for name, values in curves.items():
        turned, upright = np.mean(np.array(values)[trained_on]), values[len(ANGLES) // 2]
        print(f"{name:6}  upright {upright:.1%}  turned by up to {MOST} degrees {turned:.1%}")
    shown = rotated(test.images[:8], np.float32([-60, -45, -30, -15, 15, 30, 45, 60]))
    before, after = (np.argmax(m(shown), axis=1) for m in (model, again))
    draw(args.out, curves, shown, before, after, test.labels)


if __name__ == "__main__":
    main()
