"""Draws the pictures of docs/.

python docs/pictures.py              all of them
python docs/pictures.py NAME ...     these

A function here draws the picture of its name, docs/pictures/NAME.png, and returns it as a figure of
matplotlib. Pictures of examples are theirs, by `--out`; those of pages are screenshots.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

PICTURES: dict[str, Callable[[], Any]] = {}


def picture(draw: Callable[[], Any]) -> Callable[[], Any]:
    """Add what draws a picture."""
    PICTURES[draw.__name__] = draw
    return draw


def main(argv: Sequence[str]) -> int:
    """Draw the pictures of these names, all of them if there are none."""
    import matplotlib

    matplotlib.use("agg")
    (ROOT / "docs" / "pictures").mkdir(exist_ok=True)
    for name in argv or PICTURES:
        PICTURES[name]().savefig(ROOT / "docs" / "pictures" / f"{name}.png", dpi=130)
        print(f"wrote docs/pictures/{name}.png")
    return 0


@picture
def profile() -> Any:
    """Draw where the time of 256 digits goes."""
    import numpy as np

    import nnef_jax

    model = nnef_jax.load(ROOT / "examples/digits/model")
    return nnef_jax.profile(model, np.ones((256, 1, 8, 8), np.float32)).plot().figure


@picture
def bench() -> Any:
    """Draw how long calls of the digits take by batch."""
    import nnef_jax

    model = nnef_jax.load(ROOT / "examples/digits/model")
    return nnef_jax.benchmark(model, batches=(1, 4, 16, 64, 256)).plot().figure


@picture
def weights() -> Any:
    """Draw the ranges of the weights of the digits."""
    import nnef_jax

    model = nnef_jax.load(ROOT / "examples/digits/model")
    return nnef_jax.weight_statistics(model).plot().figure


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
