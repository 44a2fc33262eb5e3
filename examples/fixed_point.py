"""Run the digit classifier in OpenVX's fixed-point format Q7.8, and train it for this format.

    python examples/fixed_point.py [--semantics spec] [--save out/q78.nnef.tgz]

The largest number in Q7.8 is 127.996, but grey values go up to 255. A third of the pixels is
therefore cut off before the first layer. Moreover, Khronos's released C routines round each
product. This script continues the training of the network from its own parameters, by `jax.grad`
through this arithmetic (straight-through estimation). It saves an ordinary network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

import nnef_jax
from common import BLUE, DIGITS, GREY, RED, Options, picture, positive
from nnef_jax import openvx
from train import BATCH, Digits, accuracy, load_digits, shifted


def tuned(fixed: openvx.Lowered, digits: Digits, epochs: int) -> Any:
    """Train a network in fixed point, whose output is logits, and return its parameters."""
    import optax

    images, labels = jnp.asarray(digits.images), jnp.asarray(digits.labels)
    batches = len(labels) // BATCH
    adam = optax.adam(optax.cosine_decay_schedule(1e-3, epochs * batches))

    def loss(params: Any, seen: Any, right: Any) -> jax.Array:
        log = jax.nn.log_softmax(fixed.apply(params, seen))
        return -jnp.take_along_axis(log, right[:, None], axis=1).mean()

    @jax.jit
    def step(params: Any, state: Any, key: jax.Array, i: jax.Array) -> Any:
        seen = shifted(key, params, images[i], labels[i])
        updates, state = adam.update(jax.grad(loss)(params, seen, labels[i]), state)
        return optax.apply_updates(params, updates), state

    params = fixed.model.params
    state = adam.init(params)
    for epoch in jax.random.split(jax.random.key(0), epochs):
        order, *keys = jax.random.split(epoch, 1 + batches)
        shuffled = jax.random.permutation(order, len(labels))[: batches * BATCH]
        for key, i in zip(keys, shuffled.reshape(batches, BATCH), strict=True):
            params, state = step(params, state, key, i)
    return params


def main(argv: Sequence[str] | None = None) -> None:
    files = {"out": "fixed_point.png", "save": "q78.nnef.tgz"}
    options = Options(__doc__, ["matplotlib", "optax", "scikit-learn"], **files)
    options.add_argument("--semantics", choices=["spec", "khronos"], default="khronos")
    options.add_argument("--epochs", type=positive, default=15)
    args = options.read(argv)

    train, _, test = load_digits()
    model = nnef_jax.load(DIGITS / "model")
    choices: Any = {"rounding_policy": "nearest_even", "semantics": args.semantics}
    logits = openvx.lower(model.cut(outputs=["logits"]), **choices)
    better = model.with_params(tuned(logits, train, args.epochs))
    better.save(args.save, overwrite=args.overwrite)

    networks = {"as it is": model, "trained for Q7.8": nnef_jax.load(args.save)}
    stats: dict[str, openvx.Stats] = {}
    for name, network in networks.items():
        fixed = openvx.lower(network, **choices)
        found = [accuracy(run, test.images, test.labels) for run in (network, fixed.float)]
        print(f"{name:18} real numbers {found[0]:.1%}  Q7.8, {args.semantics} {found[1]:.1%}")
        stats[name] = fixed.stats(test.images)
    with picture(args.out, 8, 4, "P") as axes:
        for (name, found), color in zip(stats.items(), (RED, BLUE), strict=True):
            heights = [x.snr for x in found.tensors.values()]
            axes["P"].plot(list(found.tensors), heights, color=color, marker="o", label=name)
        axes["P"].axhline(0, color=GREY, linewidth=0.8)
        axes["P"].set(ylabel="SNR of Q7.8 (dB)", title="What is left of each tensor")
        axes["P"].tick_params(axis="x", rotation=40)
        axes["P"].legend()


if __name__ == "__main__":
    main()
