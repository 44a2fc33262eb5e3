"""Attack the digit classifier, and train it to withstand the attacks.

    python examples/adversarial.py [--out out/adversarial.png] [--save out/robust.nnef.tgz]

The attacks change each grey value of the test scans by at most epsilon, in one step (FGSM) or in
ten steps (PGD). Then the network is trained further, on batches that PGD has attacked (Madry et al.
2017, arXiv:1706.06083). The jitted training step attacks its batch with the current parameters. At
the end the smallest changes that mislead the two networks are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import nnef_jax
from common import BLUE, DIGITS, GREY, RED, Options, picture, positive, show_scan
from nnef_jax import analysis
from train import fit, load_digits

BOUNDS = (0.0, 255.0)
EPSILONS = np.arange(0.0, 65, 4)
TRAINED_ON = 32.0
SHOWN = 5
BEFORE, AFTER = "as it was", "trained on attacks"


def accuracies(logits: nnef_jax.Model, images: Any, labels: Any) -> dict[str, Any]:
    """Return the shares of scans that are read correctly after an attack, for each of EPSILONS.

    The keys of the dict are the names of the attacks.
    """

    def shares(attack: Any, **options: Any) -> np.ndarray:
        options |= {"target": labels, "bounds": BOUNDS}
        found = [attack(logits, images, epsilon=e, **options).after for e in EPSILONS.tolist()]
        return np.mean(np.array(found) == labels, axis=1)

    return {"FGSM": shares(analysis.fgsm), "PGD": shares(analysis.pgd, steps=10)}


def draw(path: Path, curves: dict[str, Any], smallest: dict[str, Any], labels: Any) -> None:
    """Draw accuracies by epsilon, and scans with the smallest changes that mislead a network."""
    mosaic = ["PPPPPPabcde", "PPPPPPfghij", "PPPPPPklmno"]
    with picture(path, 10, 4.6, "\n".join(mosaic), "Digits under attack") as axes:
        plot = axes["P"]
        for name, color in ((BEFORE, RED), (AFTER, BLUE)):
            for attack, line in (("FGSM", "--"), ("PGD", "-")):
                values = 100 * curves[name][attack]
                plot.plot(EPSILONS, values, line, color=color, label=f"{name}, {attack}")
        plot.axvline(TRAINED_ON, color=GREY, linewidth=0.8)
        plot.text(TRAINED_ON + 1, 97, "trained on", color=GREY)
        plot.set(xlabel="epsilon: largest change of a grey value, of 255", xlim=(0, EPSILONS[-1]))
        plot.set(ylabel="test accuracy (%)", ylim=(0, 102))
        plot.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        found = smallest[BEFORE]
        rows = [("scan", found.original, labels, "black")]
        for name, color in ((BEFORE, RED), (AFTER, BLUE)):
            text = f"smallest change\nthat misleads\nthe network\n{name}"
            rows.append((text, smallest[name].x, smallest[name].after, color))
        for cells, (text, scans, seen, color) in zip(mosaic, rows, strict=True):
            for cell, scan, digit in zip(cells[-SHOWN:], scans, seen, strict=False):
                show_scan(axes[cell], scan[0], f"{digit}", color)
            axes[cells[-SHOWN]].set_ylabel(text, rotation=0, ha="right", va="center")


def main(argv: Sequence[str] | None = None) -> None:
    files = {"out": "adversarial.png", "save": "robust.nnef.tgz"}
    options = Options(__doc__, ["matplotlib", "optax", "scikit-learn"], **files)
    options.add_argument("--epochs", type=positive, default=40)
    args = options.read(argv)

    train, _, test = load_digits()
    model = nnef_jax.load(DIGITS / "model")
    logits = model.cut(outputs=["logits"])  # attacks follow the gradients of the logits

    def attacked(key: jax.Array, params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
        options = {"epsilon": TRAINED_ON, "bounds": BOUNDS, "steps": 5, "key": key}
        return analysis.pgd(logits, images, target=labels, params=params, **options).x

    *_, (params, _) = fit(model, train, attacked, epochs=args.epochs)
    model.save(args.save, params=params, overwrite=args.overwrite)
    robust = nnef_jax.load(args.save).cut(outputs=["logits"])

    curves, smallest = {}, {}
    few = {"target": test.labels[:100], "bounds": BOUNDS}
    for name, network in ((BEFORE, logits), (AFTER, robust)):
        curves[name] = accuracies(network, test.images, test.labels)
        smallest[name] = analysis.smallest_perturbation(network, test.images[:100], **few)
        (hard,) = curves[name]["PGD"][EPSILONS == TRAINED_ON]
        print(
            f"{name:18}  untouched {curves[name]['PGD'][0]:.1%}"
            f"  attacked by {TRAINED_ON:g} grey values {hard:.1%}"
            f"  smallest change that misleads {np.median(smallest[name].distance):.0f}"
        )
    draw(args.out, curves, smallest, test.labels)


if __name__ == "__main__":
    main()
