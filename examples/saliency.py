"""Draw which pixels of a scan speak for the digit that the network sees, and which against it.

    python examples/saliency.py [SCAN.png ...] [--out out/saliency.png]

Each row of the picture shows a method of `nnef_jax.analysis`, which is called once for all scans.
The network is cut before its softmax, because the gradients of probabilities that are close to 1
almost vanish.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import nnef_jax
from common import DIGITS, Options, picture, read_scan, show_scan
from nnef_jax import analysis


def explanations(model: nnef_jax.Model, scans: np.ndarray) -> dict[str, Any]:
    """Return the attributions of each method for the digits that the network sees in the scans.

    The scans have the shape (n, 1, 8, 8).
    """
    # The standard deviation of the noise is 0.15 of the range of a scan.
    noise: Any = {"key": jax.random.key(0), "noise": 0.15 * np.ptp(scans, (1, 2, 3)), "samples": 50}
    return {
        "gradient": analysis.saliency(model, scans),
        "SmoothGrad": analysis.noise_tunnel(model, analysis.saliency, scans, **noise),
        "integrated\ngradients": analysis.integrated_gradients(model, scans),
        "occlusion": analysis.occlusion(model, scans, window=2),
        "Grad-CAM": analysis.grad_cam(model, scans, layer="relu2"),
    }


def draw(path: Path, scans: np.ndarray, seen: Any, found: dict[str, Any]) -> None:
    """Draw the scans, and below each scan its attributions, each with a scale of its own.

    Lines show where the ink of the digit begins.
    """
    rows = ["scan", *found]
    mosaic = [[f"{row} {i}" for i in range(len(scans))] for row in rows]
    title = "Ink speaks for the digit that is seen (red) or against it (blue)"
    width, height = max(6, 0.9 * len(scans) + 1.2), 1.02 * len(rows) + 0.3
    with picture(path, width, height, mosaic, title) as axes:
        for i, scan in enumerate(scans[:, 0]):
            show_scan(axes[f"scan {i}"], scan, f"{seen[i]}")
            for name, attribution in found.items():
                values = np.asarray(attribution.values[i]).reshape(scan.shape)
                limit = np.abs(values).max()
                axis = axes[f"{name} {i}"]
                axis.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit)
                around = np.arange(-1, 9)
                axis.contour(around, around, np.pad(scan, 1), [100], colors="black", linewidths=0.8)
                axis.set(xticks=[], yticks=[], xlim=(-0.5, 7.5), ylim=(7.5, -0.5))
                axis.spines[:].set_visible(False)
        for row in rows:
            axes[f"{row} 0"].set_ylabel(row, rotation=0, ha="right", va="center")


def main(argv: Sequence[str] | None = None) -> None:
    options = Options(__doc__, ["matplotlib", "pillow"], out="saliency.png")
    shipped = sorted((DIGITS / "scans").glob("*.png"))
    options.add_argument("scans", nargs="*", default=shipped, type=Path)
    args = options.read(argv)
    scans = np.stack([read_scan(path) for path in args.scans])
    model = nnef_jax.load(DIGITS / "model").cut(outputs=["logits"])
    found = explanations(model, scans)
    seen = np.argmax(model(scans), axis=1)
    gap = np.abs(found["integrated\ngradients"].gap).max()
    print("it sees", ", ".join(map(str, seen)))
    print(f"integrated gradients add up to the score, but for {gap:.1e}")
    draw(args.out, scans, seen, found)


if __name__ == "__main__":
    main()
