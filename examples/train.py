"""Train the network of handwritten digits from scratch, and write it as NNEF.

    python examples/train.py [--save out/digits.nnef.tgz] [--scans FOLDER]

The network is the document `examples/digits/model/graph.nnef`. The data are scikit-learn's 1797
scans, 8x8 pixels each. The split is by scan, not by writer, so that the accuracy printed is that
for hands seen in training. `examples/digits` holds parameters and ten test scans that were made so.
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
    """Scans [n,1,8,8] with grey values 0 to 255, their digits, and their places in the data set."""

    images: np.ndarray
    labels: np.ndarray
    places: np.ndarray


def load_digits() -> tuple[Digits, Digits, Digits]:
    """Return 1257 scans to train on, 180 to validate on and 360 to test on, always the same."""
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
    """Return each image moved by -1, 0 or 1 pixels either way, blank where it has come from."""
    padded = jnp.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    corners = jax.random.randint(key, (len(images), 2), 0, 3)

    def crop(image: jax.Array, corner: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(image, (0, corner[0], corner[1]), (1, 8, 8))

    return jax.vmap(crop)(padded, corners)


def cross_entropy(logits: nnef_jax.Model, params: Any, images: Any, labels: Any) -> jax.Array:
    """Return the mean of -log p(the right digit)."""
    log = jax.nn.log_softmax(logits.apply(params, images))
    return -jnp.take_along_axis(log, labels[:, None], axis=1).mean()


def accuracy(model: nnef_jax.Model, images: Any, labels: Any) -> float:
    """Return the share of scans whose most probable digit is the right one."""
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
    """Train from a model's parameters; after each epoch, give them and the mean loss over it.

    Each step sees `vary(key, params, images, labels)` of a batch. The loss is `loss(logits, params,
    seen, labels, done)`, the last being the share of the training that is over, or cross-entropy.
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
    """Return a network with filters that keep the variance through a relu (He et al. 2015)."""
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
    """Write the first test scan of each digit as a PNG, named by its digit and place."""
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
