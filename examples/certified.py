"""Train the digit classifier so that it can be proven to withstand any attack.

    python examples/certified.py [--out out/certified.png] [--save out/certified.nnef.tgz]

The loss is a weighted sum of the cross-entropy of the scores, and of the cross-entropy of the worst
scores that interval bounds allow (Gowal et al. 2018, arXiv:1810.12715). Epsilon and the weight of
the worst scores grow during training. The trained network is compared with the original network,
and with a network that was trained on attacks (Madry et al. 2017, arXiv:1706.06083). The number of
scans that withstand any change lies between the number that CROWN proves and the number that PGD
does not mislead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import nnef_jax
from common import BLUE, DIGITS, GREEN, GREY, RED, Options, picture, positive
from nnef_jax import analysis
from train import cross_entropy, fit, load_digits, untrained

ENDS: Any = {"bounds": (0.0, 255.0)}
EPSILON = 16.0  # the largest change of a grey value
EPSILONS = np.arange(0.0, 33, 4)


def certified_loss(
    logits: nnef_jax.Model, params: Any, images: Any, labels: Any, done: Any
) -> jax.Array:
    """Return the cross-entropy, mixed with that of the worst scores that interval bounds allow.

    `done` is the share of the training that is over, from 0 to 1.
    """
    grown = jnp.clip(1.25 * done - 0.05, 0, 1)
    options = {"target": labels, "method": "interval", "params": params, **ENDS}
    margins = analysis.bounds(logits, images, epsilon=EPSILON * grown, **options).margins
    worst = jax.nn.logsumexp(-margins, axis=1).mean()
    share = grown / 2
    return (1 - share) * cross_entropy(logits, params, images, labels) + share * worst


def trained(model: nnef_jax.Model, digits: Any, epochs: int) -> dict[str, nnef_jax.Model]:
    """Return models of the logits of three networks, by the way in which they were trained."""
    logits = model.cut(outputs=["logits"])

    def attacked(key: jax.Array, params: Any, images: Any, labels: Any) -> jax.Array:
        options: Any = {"epsilon": EPSILON, "steps": 5, "key": key, "params": params, **ENDS}
        return analysis.pgd(logits, images, target=labels, **options).x

    def untouched(key: jax.Array, params: Any, images: jax.Array, labels: Any) -> jax.Array:
        return images

    *_, (robust, _) = fit(model, digits, attacked, epochs=epochs)
    *_, (proven, _) = fit(untrained(), digits, untouched, epochs=epochs, loss=certified_loss)
    found = {"as it was": model.params, "on attacks": robust, "on bounds": proven}
    return {name: logits.with_params(params) for name, params in found.items()}


def misled(logits: nnef_jax.Model, images: Any, labels: Any, epsilon: float) -> np.ndarray:
    """Tell which scans are read wrongly after an attack by PGD, or already before it."""
    options: Any = {"target": labels, "steps": 10, **ENDS}
    return np.asarray(analysis.pgd(logits, images, epsilon=epsilon, **options).after) != labels


def proven(
    logits: nnef_jax.Model, images: Any, labels: Any, epsilon: float, method: Any = "crown-ibp"
) -> np.ndarray:
    """Tell for which scans it is proven that no change of size `epsilon` misleads the network."""
    options: Any = {"target": labels, "method": method, **ENDS}
    return np.array(analysis.bounds(logits, images, epsilon=epsilon, **options).certified)


def main(argv: Sequence[str] | None = None) -> None:
    files = {"out": "certified.png", "save": "certified.nnef.tgz"}
    options = Options(__doc__, ["matplotlib", "optax", "scikit-learn"], **files)
    options.add_argument("--epochs", type=positive, default=40)
    options.add_argument("--crown", type=positive, default=40, help="scans that CROWN looks at")
    args = options.read(argv)

    train, _, (images, labels, _) = load_digits()
    model = nnef_jax.load(DIGITS / "model")
    networks = trained(model, train, args.epochs)
    model.save(args.save, params=networks["on bounds"].params, overwrite=args.overwrite)

    names = ("trained", "read right", f"withstand PGD, {EPSILON:g}", "proven by CROWN-IBP")
    table = Table(*names, f"by CROWN, of {args.crown}", box=None)
    with picture(args.out, 8, 4.2, "P") as axes:
        plot = axes["P"]
        for (name, logits), color in zip(networks.items(), (RED, GREEN, BLUE), strict=True):
            most = np.array([1 - misled(logits, images, labels, e).mean() for e in EPSILONS])
            least = np.array([proven(logits, images, labels, e).mean() for e in EPSILONS])
            plot.plot(EPSILONS, 100 * most, color=color, label=name)
            plot.plot(EPSILONS, 100 * least, "--", color=color)
            if color == BLUE:
                plot.fill_between(EPSILONS, 100 * least, 100 * most, color=color, alpha=0.12)
            few, right = images[: args.crown], labels[: args.crown]
            sure, lost = proven(logits, few, right, EPSILON), misled(logits, few, right, EPSILON)
            for i in np.flatnonzero(~sure & ~lost):  # one at a time: only a few are left
                one = slice(i, i + 1)
                sure[one] = proven(logits, few[one], right[one], EPSILON, "crown")
            (at,) = np.flatnonzero(EPSILONS == EPSILON)
            shares = (most[0], most[at], least[at], sure.mean())
            table.add_row(name, *(f"{share:.1%}" for share in shares))
        plot.axvline(EPSILON, color=GREY, linewidth=0.8)
        plot.text(EPSILON + 0.5, 97, "trained for", color=GREY)
        plot.set(xlabel="epsilon: largest change of a grey value, of 255", xlim=(0, EPSILONS[-1]))
        plot.set(ylabel="test scans (%)", ylim=(0, 102))
        plot.set_title(
            "Scans that withstand PGD (lines) and that are proven to withstand all (dashes)"
        )
        plot.legend(loc="upper right", title="trained", alignment="left")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
