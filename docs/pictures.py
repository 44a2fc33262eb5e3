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


def _digits() -> tuple[Any, Any, Any, Callable[[Any], Any]]:
    """Return the network, its part before the softmax, scans of 0 to 9, and a loss of logits."""
    import jax
    import numpy as np
    from PIL import Image

    import nnef_jax

    folder = ROOT / "examples/digits"
    scans = [Image.open(path).convert("L") for path in sorted(folder.glob("scans/*.png"))]
    images = np.stack([np.float32(scan) for scan in scans])[:, None]
    model = nnef_jax.load(folder / "model")

    def loss(logits: Any) -> Any:
        return -jax.nn.log_softmax(logits).diagonal().mean()

    return model, model.cut(outputs=["logits"]), images, loss


@picture
def comparison() -> Any:
    """Draw how a network in bfloat16, with a wrong bias, differs: docs/diagnosis.md."""
    import nnef_jax

    model, _, images, _ = _digits()
    half = nnef_jax.load(ROOT / "examples/digits/model", dtype="bfloat16")
    wrong = half.with_params({**half.params, "conv2_bias": half.params["conv2_bias"] + 0.25})
    found = nnef_jax.analysis.compare(model, wrong, images, rtol=0.05, isolate=True)
    return found.plot().figure


@picture
def activations() -> Any:
    """Statistics of the digits' network on ten scans."""
    import nnef_jax

    model, _, images, _ = _digits()
    return nnef_jax.analysis.activation_statistics(model, [images]).plot().figure


@picture
def sensitivity() -> Any:
    """What rounding of each layer costs."""
    import nnef_jax

    _, logits, images, loss = _digits()
    return nnef_jax.analysis.sensitivity(logits, images, loss=loss, bits=4).plot().figure


@picture
def tutorial() -> Any:
    """Draw what the page of that name draws."""
    from tests.pages import session

    *_, (_, names) = session("docs/tutorial.md")
    return names["figure"]


@picture
def spectrum() -> Any:
    """Singular values of the Jacobian to each of ten scans."""
    import nnef_jax

    _, logits, images, _ = _digits()
    return nnef_jax.analysis.jacobian_spectrum(logits, images, k=8).plot().figure


@picture
def integrated_gradients() -> Any:
    """What the score of each of ten digits comes from: docs/analysis.md."""
    import nnef_jax

    _, logits, images, _ = _digits()
    return nnef_jax.analysis.integrated_gradients(logits, images).plot().figure


@picture
def grad_cam() -> Any:
    """Where a layer sees a 3, and where a 5."""
    from matplotlib import pyplot

    import nnef_jax

    _, logits, images, _ = _digits()
    figure, rows = pyplot.subplots(2, figsize=(8, 3.6), layout="constrained")
    for digit, ax in zip((3, 5), rows, strict=True):
        found = nnef_jax.analysis.grad_cam(logits, images[2:7], layer="relu2", target=digit)
        found.plot(ax)
    return figure


@picture
def smallest_perturbation() -> Any:
    """The smallest changes found that make other digits of six."""
    import nnef_jax

    _, logits, images, _ = _digits()
    found = nnef_jax.analysis.smallest_perturbation(logits, images, bounds=(0, 255))
    return found.plot().figure


@picture
def activation_maximisation() -> Any:
    """What the network would most like to see for each digit."""
    import jax

    import nnef_jax

    _, logits, _, _ = _digits()
    found = nnef_jax.analysis.activation_maximisation(
        logits, target=range(10), key=jax.random.key(0), bounds=(0, 255), total_variation=0.3
    )
    return found.plot().figure


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


@picture
def openvx() -> Any:
    """Draw what is left of each tensor of the digits in Q7.8, by policies: docs/openvx.md."""
    from docs.fixed_point import digits
    from nnef_jax.openvx import lower
    from nnef_jax.results import axes

    model, images = digits()
    ax = axes(size=(8, 4))
    for semantics in ("spec", "khronos"):
        for rounding in ("nearest_even", "to_zero"):
            fixed = lower(model, semantics=semantics, rounding_policy=rounding)
            fixed.stats(images).plot(ax, label=f"{semantics}, {rounding.replace('_', ' ')}")
    ax.legend(frameon=False, fontsize=8)
    return ax.figure


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
