"""Train the network in examples/digits/model: random numbers in, an NNEF archive out.

    python examples/digits/train.py [--model digits.nnef.tgz] [--scans FOLDER]

The data are scikit-learn's 1797 scans of handwritten digits, 8x8 pixels each. The network is
written below as an NNEF document; what trains it is `jax.grad` through `model.apply`. A run takes
well under a minute on two cores and needs scikit-learn and pillow: `pip install -e ".[examples]"`.
The folders `model` and `scans` beside this file were made by
`--model examples/digits/model --scans examples/digits/scans`.

The split is by scan, not by writer, so the accuracy printed is that for hands seen in training.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nnef_jax import Model, load, save

GRAPH = """\
version 1.0;

# Handwritten digits: any number of 8x8 scans, grey values 0 to 255, to the probabilities of 0 to 9.
graph digits(image) -> (probabilities)
{
    image = external<scalar>(shape = [0,1,8,8]);
    ink = div(image, 255.0);

    filter1 = variable<scalar>(shape = [16,1,3,3], label = 'conv1_filter');
    bias1 = variable<scalar>(shape = [1,16], label = 'conv1_bias');
    conv1 = conv(ink, filter1, bias1, padding = [(1,1), (1,1)]);
    relu1 = relu(conv1);

    filter2 = variable<scalar>(shape = [32,16,3,3], label = 'conv2_filter');
    bias2 = variable<scalar>(shape = [1,32], label = 'conv2_bias');
    conv2 = conv(relu1, filter2, bias2, padding = [(1,1), (1,1)]);
    relu2 = relu(conv2);
    pool = max_pool(relu2, size = [1,1,2,2], stride = [1,1,2,2],
                    padding = [(0,0), (0,0), (0,0), (0,0)]);

    filter3 = variable<scalar>(shape = [10,512], label = 'linear_filter');
    bias3 = variable<scalar>(shape = [1,10], label = 'linear_bias');
    features = reshape(pool, shape = [0,512]);
    logits = linear(features, filter3, bias3);
    probabilities = softmax(logits);
}
"""

SHAPES = {
    "conv1_filter": (16, 1, 3, 3),
    "conv1_bias": (1, 16),
    "conv2_filter": (32, 16, 3, 3),
    "conv2_bias": (1, 32),
    "linear_filter": (10, 512),
    "linear_bias": (1, 10),
}

BATCH = 64
LEARNING_RATE = 3e-3


# Data


class Digits(NamedTuple):
    """Scans [n,1,8,8] with grey values 0 to 255, their digits, and their places in the data set."""

    images: np.ndarray
    labels: np.ndarray
    index: np.ndarray

    def take(self, places: np.ndarray) -> Digits:
        return Digits(self.images[places], self.labels[places], self.index[places])


def load_digits() -> Digits:
    """All scans, their 17 grey levels spread over those of an 8-bit picture."""
    from sklearn import datasets

    data = datasets.load_digits()
    images = np.round(data.images * (255 / 16)).astype(np.float32)
    return Digits(images[:, None], data.target.astype(np.int32), np.arange(len(images)))


def split(digits: Digits) -> tuple[Digits, Digits, Digits]:
    """Training, validation and test scans: 1257, 180 and 360 of them, always the same."""
    from sklearn.model_selection import train_test_split

    places = np.arange(len(digits.labels))
    rest, test = train_test_split(places, test_size=360, random_state=0, stratify=digits.labels)
    train, validation = train_test_split(
        rest, test_size=180, random_state=0, stratify=digits.labels[rest]
    )
    return digits.take(np.sort(train)), digits.take(np.sort(validation)), digits.take(np.sort(test))


def write_scans(folder: Path, test: Digits) -> None:
    """The first scan of each digit in the test split as a PNG, named by its digit and place."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for digit in range(10):
        first = int(np.argmax(test.labels == digit))
        picture = Image.fromarray(test.images[first, 0].astype(np.uint8))
        picture.save(folder / f"{digit}_scan{test.index[first]:04d}.png")


# Network


def random_params(seed: int) -> dict[str, np.ndarray]:
    """Filters that keep the variance of what a relu lets through (He et al. 2015), and no bias."""
    rng = np.random.default_rng(seed)
    params = {}
    for label, shape in SHAPES.items():
        scale = np.sqrt(2 / np.prod(shape[1:])) if label.endswith("filter") else 0.0
        params[label] = (scale * rng.standard_normal(shape)).astype(np.float32)
    return params


def untrained(seed: int) -> Model:
    """The network with random parameters."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digits"
        save(path, GRAPH, random_params(seed))
        return load(path)


def cross_entropy(model: Model, params: Any, images: Any, labels: Any) -> jax.Array:
    """Mean of -log p(the right digit)."""
    right = jnp.take_along_axis(model.apply(params, images), labels[:, None], axis=1)
    return -jnp.mean(jnp.log(right + 1e-12))  # a probability can round to 0


def accuracy(model: Model, params: Any, digits: Digits) -> float:
    """The share of scans whose most probable digit is the right one."""
    found = model.apply(params, digits.images).argmax(axis=1)
    return float(np.mean(np.asarray(found) == digits.labels))


# Training


class Adam(NamedTuple):
    """Parameters, and the running means of their gradients and of the squares of these."""

    params: Any
    mean: Any
    square: Any
    count: jax.Array

    @classmethod
    def start(cls, params: Any) -> Adam:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return cls(params, zeros, zeros, jnp.zeros((), jnp.float32))

    def step(self, gradient: Any, rate: Any) -> Adam:
        count = self.count + 1
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, self.mean, gradient)
        square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, self.square, gradient)

        def move(p: Any, m: Any, s: Any) -> Any:
            return p - rate * (m / (1 - 0.9**count)) / (jnp.sqrt(s / (1 - 0.999**count)) + 1e-8)

        return Adam(jax.tree.map(move, self.params, mean, square), mean, square, count)


def shifted(key: jax.Array, images: jax.Array) -> jax.Array:
    """Each image moved by -1, 0 or 1 pixels either way, blank where it has come from."""
    padded = jnp.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    corners = jax.random.randint(key, (len(images), 2), 0, 3)

    def crop(image: jax.Array, corner: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(image, (0, corner[0], corner[1]), (1, 8, 8))

    return jax.vmap(crop)(padded, corners)


def fit(model: Model, digits: Digits, *, epochs: int, seed: int) -> Iterator[tuple[Any, float]]:
    """Train; after each epoch, the parameters and the mean loss over it."""
    images, labels = jnp.asarray(digits.images), jnp.asarray(digits.labels)
    batches = len(labels) // BATCH
    loss_and_gradient = jax.value_and_grad(cross_entropy, argnums=1)

    # A jitted step, not a scan over the epoch: on a CPU, XLA's convolutions are ten times slower
    # inside a loop.
    @jax.jit
    def step(state: Adam, key: jax.Array, places: jax.Array) -> tuple[Adam, jax.Array]:
        moved = shifted(key, images[places])
        loss, gradient = loss_and_gradient(model, state.params, moved, labels[places])
        done = state.count / (epochs * batches)
        return state.step(gradient, LEARNING_RATE * 0.5 * (1 + jnp.cos(jnp.pi * done))), loss

    state = Adam.start(model.params)
    for epoch_key in jax.random.split(jax.random.key(seed), epochs):
        order_key, *keys = jax.random.split(epoch_key, 1 + batches)
        order = jax.random.permutation(order_key, len(labels))[: batches * BATCH]
        losses = []
        for key, places in zip(keys, order.reshape(batches, BATCH), strict=True):
            state, loss = step(state, key, places)
            losses.append(loss)
        yield state.params, float(jnp.stack(losses).mean())


def train(model: Model, digits: Digits, validation: Digits, *, epochs: int, seed: int) -> Any:
    """The parameters of the epoch that has the lowest loss on the validation scans."""
    validate = jax.jit(
        lambda params: cross_entropy(model, params, validation.images, validation.labels)
    )
    best, lowest = model.params, float("inf")
    for epoch, (params, loss) in enumerate(fit(model, digits, epochs=epochs, seed=seed), start=1):
        validated = float(validate(params))
        if validated < lowest:
            best, lowest = params, validated
        if epoch % 10 == 0 or epoch == epochs:
            print(f"epoch {epoch:3}  loss {loss:.4f}  validation {validated:.4f}")
    return best


def needs(*packages: str) -> None:
    """End with what to install where one of the packages is missing."""
    for package in packages:
        try:
            import_module(package)
        except ImportError:
            raise SystemExit(f'{package} is missing: pip install -e ".[examples]"') from None


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train the digit classifier and save it as NNEF.")
    parser.add_argument(
        "--model", type=Path, default="digits.nnef.tgz", help="where to save it (%(default)s)"
    )
    parser.add_argument("--scans", type=Path, help="a folder to write ten test scans to")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    needs("sklearn", "PIL")

    training, validation, test = split(load_digits())
    model = untrained(args.seed)
    params = train(model, training, validation, epochs=args.epochs, seed=args.seed)
    model.save(args.model, params=params, overwrite=True)
    if args.scans:
        write_scans(args.scans, test)

    saved = load(args.model)
    share = accuracy(saved, saved.params, test)
    print(
        f"test accuracy {share:.2%} ({round(share * len(test.labels))} of {len(test.labels)} scans)"
    )


if __name__ == "__main__":
    main()
