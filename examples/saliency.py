"""Draw which pixels of a scan speak for the digit that the network sees in it, and which against.

    python examples/saliency.py [SCAN.png] [--out saliency.png]

What is drawn is the gradient of the score of that digit with respect to the grey values of the
scan: `jax.grad` through the loaded network. Beside it is its mean over noisy copies of the scan, by
`jax.vmap` (SmoothGrad, Smilkov et al. 2017). Needs matplotlib and pillow:
`pip install -e ".[examples]"`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import nnef_jax

DIGITS = Path(__file__).parent / "digits"


def score(model: nnef_jax.Model, image: jax.Array, digit: Any) -> jax.Array:
    """How far the logit of a digit is above the mean logit: the softmax keeps that difference.

    The gradient of the probability itself would all but vanish where the network is certain.
    """
    logits = jnp.log(model.apply(model.params, image[None])[0] + 1e-30)
    return logits[digit] - logits.mean()


def gradient(model: nnef_jax.Model, image: jax.Array, digit: Any) -> jax.Array:
    """How the score of a digit changes with each pixel of an image [1,8,8]."""
    return jax.grad(score, argnums=1)(model, image, digit)


def smooth_gradient(
    model: nnef_jax.Model, image: jax.Array, digit: Any, *, copies: int = 200, noise: float = 40.0
) -> jax.Array:
    """The mean gradient over copies with normal noise, whose deviation is given in grey values."""
    noisy = image[None] + noise * jax.random.normal(jax.random.key(0), (copies, *image.shape))
    return jax.vmap(lambda copy: gradient(model, copy, digit))(noisy).mean(axis=0)


def read_scan(path: Path) -> jax.Array:
    """The grey values of a picture as [1,8,8]."""
    from PIL import Image

    with Image.open(path) as picture:
        return jnp.asarray(np.asarray(picture.convert("L"), np.float32)[None])


def draw(path: Path, scan: Any, maps: dict[str, Any], title: str) -> None:
    """The scan and the maps side by side; the dots on a map are the ink of the scan.

    Each map has a scale of its own, symmetric about zero.
    """
    from matplotlib.figure import Figure

    scan = np.asarray(scan)
    rows, columns = np.nonzero(scan)
    figure = Figure(figsize=(3.3 * (1 + len(maps)), 3.6), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
    axes = figure.subplots(1, 1 + len(maps))
    axes[0].imshow(scan, cmap="gray_r", vmin=0, vmax=255)
    axes[0].set_title(title)
    for axis, (name, values) in zip(axes[1:], maps.items(), strict=True):
        limit = float(np.abs(values).max())
        shown = axis.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit)
        axis.scatter(
            columns, rows, scan[rows, columns] / 5, "black", edgecolors="white", linewidths=0.5
        )
        axis.set_title(name)
    bar = figure.colorbar(shown, ax=axes[1:], ticks=[-limit, 0, limit], shrink=0.8)
    bar.ax.set_yticklabels(["more ink\nspeaks\nagainst", "no effect", "more ink\nspeaks for"])
    for axis in axes:
        axis.set(xticks=[], yticks=[])
    figure.savefig(path, dpi=130)


def needs(*packages: str) -> None:
    """End with what to install where one of the packages is missing."""
    for package in packages:
        try:
            import_module(package)
        except ImportError:
            raise SystemExit(f'{package} is missing: pip install -e ".[examples]"') from None


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Draw the input gradient of the digit classifier.")
    parser.add_argument("scan", type=Path, nargs="?", default=DIGITS / "scans" / "3_scan0045.png")
    parser.add_argument(
        "--out", type=Path, default="saliency.png", help="the picture to write (%(default)s)"
    )
    args = parser.parse_args(argv)
    needs("matplotlib", "PIL")

    model = nnef_jax.load(DIGITS / "model")
    scan = read_scan(args.scan)
    probabilities = model(scan[None])[0]
    digit = int(probabilities.argmax())
    maps = {
        "gradient": gradient(model, scan, digit)[0],
        "SmoothGrad": smooth_gradient(model, scan, digit)[0],
    }
    draw(args.out, scan[0], maps, f"seen as {digit} (p = {float(probabilities[digit]):.4f})")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
