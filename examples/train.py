"""Train the network for handwritten digits from random parameters, and save it as NNEF.

    python examples/train.py [--save out/digits.nnef.tgz] [--scans FOLDER]

The network is the document `examples/digits/model/graph.nnef`. The data are scikit-learn's 1797
scans of 8x8 pixels. They are split by scan and not by writer, so the printed accuracy is that for
writers who also occur in the training data. `examples/digits` has parameters and ten test scans
that this script has made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import nnef_jax
from common import DIGITS, Options, positive

BATCH = 64


class Digits(NamedTuple):
    """Scans of digits.

    `images` (n, 1, 8, 8) has grey values from 0 to 255, `labels` (n) the digits, and `places` (n)
    the positions in the data set.
    """

    images: np.ndarray
    labels: np.ndarray
    places: np.ndarray


def load_digits() -> tuple[Digits, Digits, Digits]:
    """Return 1257 scans for training, 180 for validation and 360 for testing.

    The split is always the same.
    """
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    data = datasets.load_digits()
    images = np.round(data.images * (255 / 16)).astype(np.float32)[:, None]
    labels = data.target.astype(np.int32)

    def split(places: np.ndarray, size: int) -> list[np.ndarray]:
        return train_test_split(places, test_size=size, random_state=0, stratify=labels[places])

    rest, test = split(np.arange(len(labels)), 360)
    train, validation = split(rest, 180)
    one, two, three = (
        Digits(images[i], labels[i], i) for i in map(np.sort, (train, validation, test))
    )
    return one, two, three


def shifted(key: jax.Array, params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Shift each image by -1, 0 or 1 pixels along both axes. New pixels at its border are blank."""
    padded = jnp.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    corners = jax.random.randint(key, (len(images), 2), 0, 3)

    def crop(image: jax.Array, corner: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(image, (0, corner[0], corner[1]), (1, 8, 8))

    return jax.vmap(crop)(padded, corners)


def cross_entropy(logits: nnef_jax.Model, params: Any, images: Any, labels: Any) -> jax.Array:
    """Return the mean of -log(p), where p is the probability of the correct digit."""
    log = jax.nn.log_softmax(logits.apply(params, images))
    return -jnp.take_along_axis(log, labels[:, None], axis=1).mean()


def accuracy(model: nnef_jax.Model, images: Any, labels: Any) -> float:
    """Return the share of scans whose most probable digit is the correct digit."""
    return float(np.mean(np.argmax(model(images), axis=1) == labels))


def fit(
    model: nnef_jax.Model,
    digits: Digits,
    vary: Callable[[jax.Array, Any, jax.Array, jax.Array], jax.Array],
    *,
    epochs: int,
    rate: float = 3e-3,
    loss: Callable[..., jax.Array] | None = None,
) -> Iterator[tuple[Any, float]]:
    """Train the parameters of a model. After each epoch, yield the parameters and its mean loss.

    Each step computes the loss of the images that `vary(key, params, images, labels)` returns for a
    batch. The loss is `loss(logits, params, seen, labels, done)`, where `done` is the share of the
    training that is over. By default it is the cross-entropy.
    """
    import optax

    images, labels = jnp.asarray(digits.images), jnp.asarray(digits.labels)
    batches = len(labels) // BATCH
    logits = model.cut(outputs=["logits"])  # before the softmax
    adam = optax.adam(optax.cosine_decay_schedule(rate, epochs * batches))

    def step(params: Any, state: Any, key: jax.Array, i: jax.Array, done: Any) -> tuple[Any, ...]:
        seen = vary(key, params, images[i], labels[i])
        rest = () if loss is None else (done,)
        slopes = jax.value_and_grad(loss or cross_entropy, 1)
        found, slope = slopes(logits, params, seen, labels[i], *rest)
        updates, state = adam.update(slope, state)
        return optax.apply_updates(params, updates), state, found

    step = model.jit(step)
    params, state = model.params, adam.init(model.params)
    for count, epoch in enumerate(jax.random.split(jax.random.key(0), epochs)):
        order, *keys = jax.random.split(epoch, 1 + batches)
        shuffled = jax.random.permutation(order, len(labels))[: batches * BATCH]
        losses = []
        for key, i in zip(keys, shuffled.reshape(batches, BATCH), strict=True):
            params, state, value = step(params, state, key, i, np.float32(count / epochs))
            losses.append(value)
        yield params, float(jnp.stack(losses).mean())


def untrained(network: Path = DIGITS / "model", seed: int = 0) -> nnef_jax.Model:
    """Return a network with random parameters (He et al. 2015).

    The filters keep the variance of activations through a relu.
    """
    model, random = nnef_jax.load(network), np.random.default_rng(seed)
    scales = {
        label: (2 / array[0].size) ** 0.5 if label.endswith("filter") else 0.0
        for label, array in model.params.items()
    }
    return model.with_params(
        {
            label: np.float32(scales[label] * random.standard_normal(array.shape))
            for label, array in model.params.items()
        }
    )


def write_scans(folder: Path, test: Digits) -> None:
    """Write the first test scan of each digit as a PNG, named after its digit and its position."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for digit in range(10):
        first = int(np.argmax(test.labels == digit))
        scan = Image.fromarray(test.images[first, 0].astype(np.uint8))
        scan.save(folder / f"{digit}_scan{test.places[first]:04d}.png")


def main(argv: Sequence[str] | None = None) -> None:
    options = Options(__doc__, ["optax", "pillow", "scikit-learn"], save="digits.nnef.tgz")
    options.add_argument("--scans", type=Path, help="a folder to write ten test scans to")
    options.add_argument("--epochs", type=positive, default=60)
    args = options.read(argv)
    if args.scans and args.scans.exists() and not args.overwrite:
        options.error(f"{args.scans} exists: give --overwrite, or another --scans")

    train, validation, test = load_digits()
    model, best = untrained(), (float("inf"), None)
    logits = model.cut(outputs=["logits"])
    for epoch, (params, loss) in enumerate(fit(model, train, shifted, epochs=args.epochs), 1):
        validated = float(cross_entropy(logits, params, validation.images, validation.labels))
        best = min(best, (validated, params), key=lambda pair: pair[0])
        if epoch % 10 == 0 or epoch == args.epochs:
            print(f"epoch {epoch:3}  loss {loss:.4f}  validation {validated:.4f}")
    model.save(args.save, params=best[1], overwrite=args.overwrite)
    if args.scans:
        write_scans(args.scans, test)
    share = accuracy(nnef_jax.load(args.save), test.images, test.labels)
    print(f"wrote {args.save}: it knows {share:.1%} of {len(test.labels)} test scans")


if __name__ == "__main__":
    main()
