"""Find digits in a picture by a detector, in OpenVINO's format of 2019 and in that of today.

    python examples/detect.py [--seed 1] [--out out/detect.png]

The networks are `examples/detector/v5.xml` and `v11.xml`. Both are the same SSD (single shot
detector, arXiv:1512.02325) with prior boxes and the suppression of overlapping boxes. They share
their weights in float16, `digits.bin`. Today's OpenVINO cannot read the first network. In jax both
networks are differentiable functions. The gradient of the scores shows which pixels they depend on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import nnef_jax
from common import BLUE, DIGITS, RED, Options, picture

DETECTOR = Path(__file__).parent / "detector"
SIDE = 64


class Box(NamedTuple):
    """A detected digit, with its score (the network's probability) and its box in pixels."""

    digit: int
    score: float
    left: float
    top: float
    right: float
    bottom: float


def page(seed: int) -> np.ndarray:
    """Return a picture (1, 1, 64, 64) with the scans of `examples/digits` in several sizes."""
    from PIL import Image

    random, image = np.random.default_rng(seed), np.zeros((SIDE, SIDE), np.float32)
    taken = np.zeros((SIDE, SIDE), bool)
    for path in sorted((DIGITS / "scans").glob("*.png")):
        for _ in range(200):
            size = int(random.integers(10, 17))
            left, top = (int(n) for n in random.integers(1, SIDE - size, 2))
            place = slice(top, top + size), slice(left, left + size)
            around = slice(top - 1, top + size + 1), slice(left - 1, left + size + 1)
            if not taken[around].any():
                with Image.open(path) as scan:
                    ink = scan.convert("L").resize((size, size), Image.Resampling.BILINEAR)
                image[place], taken[place] = np.asarray(ink), True
                break
    image += 30 * random.uniform(0, 1, image.shape)  # the grain of the paper
    return np.clip(image, 0, 255).astype(np.float32)[None, None]


def boxes_of(found: Any) -> list[Box]:
    """Return the boxes in an output (1, 1, n, 7) of DetectionOutput.

    Its rows end before the first row that begins with -1.
    """
    rows = np.asarray(found)[0, 0]
    count = int(np.argmax(rows[:, 0] < 0)) if (rows[:, 0] < 0).any() else len(rows)
    return [Box(int(row[1]) - 1, float(row[2]), *(SIDE * row[3:])) for row in rows[:count]]


def draw(path: Path, image: np.ndarray, found: Sequence[Box], slope: np.ndarray) -> None:
    """Draw the picture with its boxes, and the gradient of the scores for each pixel."""
    from matplotlib.patches import Rectangle

    limit = np.abs(slope).max()
    with picture(path, 8, 4.2, [["boxes", "slope"]]) as axes:
        axes["boxes"].imshow(image, cmap="gray_r", vmin=0, vmax=255)
        axes["boxes"].set_title("What version 5 and version 11 find")
        axes["slope"].imshow(slope, cmap="RdBu_r", vmin=-limit, vmax=limit)
        axes["slope"].set_title("The gradient of its scores")
        for box in found:
            corner, wide, high = (box.left - 0.5, box.top - 0.5), *(
                box.right - box.left, box.bottom - box.top
            )  # fmt: skip
            for name, color in (("boxes", BLUE), ("slope", "black")):
                width = 1.6 if name == "boxes" else 0.6
                axes[name].add_patch(
                    Rectangle(corner, wide, high, fill=False, edgecolor=color, linewidth=width)
                )
            axes["boxes"].annotate(
                f"{box.digit}", corner, (2, -2), textcoords="offset points", color=RED,
                fontweight="bold", ha="left", va="top",
            )  # fmt: skip
        for axis in axes.values():
            axis.set(xticks=[], yticks=[], xlim=(-0.5, SIDE - 0.5), ylim=(SIDE - 0.5, -0.5))
            axis.spines[:].set(visible=True, color="#d5d8dc")


def main(argv: Sequence[str] | None = None) -> None:
    options = Options(__doc__, ["matplotlib", "pillow"], out="detect.png")
    options.add_argument("--seed", type=int, default=1, help="of the picture (%(default)s)")
    args = options.read(argv)
    image = page(args.seed)
    old, new = (
        nnef_jax.load(DETECTOR / f"{name}.xml", weights=DETECTOR / "digits.bin")
        for name in ("v5", "v11")
    )
    found = boxes_of(old(image))
    gap = np.abs(np.asarray(old(image)) - np.asarray(new(image))).max()
    slope = jax.grad(lambda x: old.apply(old.params, x)[..., 2].sum())(image)
    for box in found:
        print(f"{box.digit} at {box.left:.0f}, {box.top:.0f}: {box.score:.0%}")
    print(f"the two networks differ by {gap:.1e}")
    draw(args.out, image[0, 0], found, np.asarray(slope)[0, 0])


if __name__ == "__main__":
    main()
