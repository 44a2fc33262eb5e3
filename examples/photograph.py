"""Draw which parts of a photograph speak for the digit that a network reads in it.

    python examples/photograph.py [--out out/photograph.png]

A digit is painted at a random position into a photograph. The network of `examples/scenes` names
the digit. During its training by `scenes.py`, on other parts of the photographs and other digits,
it was never told where the digit is. Grad-CAM and integrated gradients show where the network
looks. The script prints how much of each lies in the box around the digit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import nnef_jax
from common import GREEN, RED, Options, picture, positive
from nnef_jax import analysis
from scenes import NETWORK, paint, photographs
from train import load_digits

EXTENTS = 208, 160
SHOWN = 4


def explanations(model: nnef_jax.Model, scenes: Any) -> dict[str, np.ndarray]:
    """Return non-negative attributions (n, height, width) for n scenes, by method."""
    path = analysis.integrated_gradients(model, scenes, baseline=127.5, steps=20)
    return {
        "Grad-CAM": np.asarray(analysis.grad_cam(model, scenes, layer="relu5").values),
        "integrated\ngradients": np.abs(np.asarray(path.values).sum(axis=1)),
    }


def within(values: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Return the share of each scene's values (n, height, width) that lies in its box (n, 4)."""
    down, right = (np.arange(n) + 0.5 for n in values.shape[1:])
    top, left, bottom, end = boxes.T[..., None]
    rows, columns = (top < down) & (down < bottom), (left < right) & (right < end)
    inside = rows[:, :, None] & columns[:, None]
    return (values * inside).sum((1, 2)) / values.sum((1, 2))


def draw(path: Path, scenes: Any, boxes: Any, titles: Any, found: dict[str, Any]) -> None:
    """Draw each scene with a box around its digit, and below it the attributions of each method."""
    rows = ["scene", *found]
    mosaic = [[f"{row} {i}" for i in range(len(scenes))] for row in rows]
    with picture(path, 5.6, 5.1, mosaic) as axes:
        for i, (scene, box) in enumerate(zip(scenes, boxes, strict=True)):
            photograph = scene.transpose(1, 2, 0).clip(0, 255) / 255
            axes[f"scene {i}"].imshow(photograph)
            axes[f"scene {i}"].set_title(*titles[i], loc="center", fontsize=10)
            for name, values in found.items():
                axis = axes[f"{name} {i}"]
                axis.imshow(photograph.mean(2) / 3, cmap="gray", vmin=0, vmax=1)
                share = np.sqrt(values[i] / values[i].max())  # so that small values are visible too
                axis.imshow(values[i], cmap="inferno", alpha=share)
            for name in rows:
                (top, left, bottom, right), axis = box, axes[f"{name} {i}"]
                across, down = [left, right, right, left, left], [top, top, bottom, bottom, top]
                axis.plot(across, down, color="white", linewidth=0.8)
                axis.set(xticks=[], yticks=[])
                axis.spines[:].set_visible(False)
        for name in rows:
            axes[f"{name} 0"].set_ylabel(name, rotation=0, ha="right", va="center")


def main(argv: Sequence[str] | None = None) -> None:
    options = Options(__doc__, ["matplotlib", "pillow", "scikit-learn"], out="photograph.png")
    options.add_argument("--scenes", type=positive, default=40, help="how many (%(default)s)")
    args = options.read(argv)
    _, _, test = load_digits()
    labels = test.labels[: args.scenes]
    made = paint(jax.random.key(1), photographs()[1], test.images[: args.scenes], EXTENTS)
    scenes, boxes = map(np.asarray, made)
    model = nnef_jax.load(NETWORK).cut(outputs=["logits"])
    seen = np.argmax(model(scenes), axis=1)
    right = seen == labels
    found = explanations(model, scenes)
    area = within(np.ones((len(scenes), *EXTENTS)), boxes).mean()
    print(f"it reads {right.mean():.0%} of {len(scenes)} scenes; boxes are {area:.1%} of the area")
    for name, values in found.items():
        share = within(values, boxes)[right].mean()
        peaks = within(values == values.max(axis=(1, 2), keepdims=True), boxes)[right].mean()
        name = name.replace("\n", " ")
        print(f"{name:21}  {share:.0%} within the box, its peak in {peaks:.0%} of scenes")
    titles = [
        (f"{label}" if good else f"{label}, seen as {other}", {"color": GREEN if good else RED})
        for label, other, good in zip(labels, seen, right, strict=True)
    ]
    few = slice(SHOWN)
    draw(args.out, scenes[few], boxes[few], titles, {k: v[few] for k, v in found.items()})


if __name__ == "__main__":
    main()
