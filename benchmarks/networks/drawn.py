"""Randomly drawn networks, which nobody has selected and to which nothing is tuned.

The families of networks alternate. For each network, the widths, windows, strides, dilations,
groups, activations, norms, pooling and extents are drawn. A network whose number of multiply-adds
is outside the bounds is drawn again.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any, Generic, NamedTuple, TypeVar

from benchmarks.builders.base import Builder
from benchmarks.networks.transformers import attend

T = TypeVar("T")

# The bounds of the multiply-adds for one item, which are 0.02 to 4 GFLOP. Dense networks of usual
# widths have fewer multiply-adds.
_FEWEST, _MOST = 10_000_000, 2_000_000_000
_FEWEST_OF_DENSE = 50_000

_BRANCH = 0.5  # scale of a residual branch


class Draw(Random):
    """A random generator for the properties of a network."""

    def between(self, low: int, high: int) -> int:
        """Return a number from `low` to `high`, whose logarithm is uniformly distributed."""
        return round(math.exp(self.uniform(math.log(low), math.log(high))))

    def width(self, low: int, high: int) -> int:
        """Return a number of channels, mostly a multiple of 8."""
        found = self.between(low, high)
        return found if self.random() < 0.15 else max(8, found // 8 * 8)

    def is_so(self, chance: float) -> bool:
        """Return True with the probability `chance`."""
        return self.random() < chance


class Field(NamedTuple, Generic[T]):
    """A tensor of the shape (batch, channels, extents...), with its channels and extents."""

    tensor: T
    channels: int
    extents: tuple[int, ...]


class Layers(Generic[T]):
    """Adds layers to a network. The kinds of norm and activation are drawn once for all layers."""

    def __init__(self, b: Builder[T], draw: Draw) -> None:
        self.b, self.draw = b, draw
        self._has_norms = draw.is_so(0.8)
        activations = [b.relu, b.relu, b.relu6, b.gelu, b.silu]
        self.activate: Callable[[T], T] = draw.choice(activations)
        self._names = iter(range(10_000))

    def name(self) -> str:
        """Return a name for the parameters of the next layer."""
        return f"layer{next(self._names)}"

    def field(self, batch: int, axes: int, low: int, high: int) -> Field[T]:
        """Declare an input with random channels and extents from `low` to `high`."""
        channels = self.draw.choice((1, 3, 3, 4, 16))
        extents = [self.draw.between(low, high)] * axes
        if self.draw.is_so(0.3):
            extents = [max(low, round(n * self.draw.uniform(0.6, 1.0))) for n in extents]
        return Field(self.b.input("x", batch, channels, *extents), channels, tuple(extents))

    def conv(
        self,
        x: Field[T],
        outputs: int,
        size: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        gain: float = 1.0,
    ) -> Field[T]:
        """Add a convolution with a window of an odd size, and its norm or bias."""
        name, axes = self.name(), len(x.extents)
        y = self.b.conv_layer(
            name,
            x.tensor,
            x.channels,
            outputs,
            size,
            stride=stride,
            dilation=dilation,
            groups=groups,
            bias=not self._has_norms,
            axes=axes,
        )
        if self._has_norms:
            y = self.b.batch_norm_layer(f"{name}.norm", y, outputs, gain)
        return Field(y, outputs, tuple(-(-n // stride) for n in x.extents))

    def active(self, x: Field[T]) -> Field[T]:
        """Add the network's activation."""
        return x._replace(tensor=self.activate(x.tensor))

    def pool(self, x: Field[T]) -> Field[T]:
        """Halve the extents by a randomly drawn kind of pooling."""
        size = self.draw.choice((2, 2, 3))
        if self.draw.is_so(0.3):
            y, extents = self.b.average_pool(x.tensor, size=2), [n // 2 for n in x.extents]
        else:
            y = self.b.max_pool(x.tensor, size=size, stride=2, padding=size // 2 * (size % 2))
            extents = [(n - size % 2) // 2 + size % 2 for n in x.extents]
        return Field(y, x.channels, tuple(extents))

    def head(self, x: Field[T]) -> T:
        """Add the mean over positions and a dense layer, or nothing, as drawn."""
        if self.draw.is_so(0.3):
            return x.tensor
        classes = self.draw.choice((10, 100, 1000))
        mean = self.b.global_average(x.tensor)
        return self.b.dense_layer("classifier", mean, x.channels, classes)

    def sum(self, x: Field[T], y: Field[T]) -> Field[T]:
        """Return the sum of a branch `y` and its input `x`."""
        return y._replace(tensor=self.b.add(x.tensor, y.tensor))


# The smallest and largest extents, and widths of first layers, by the number of axes.
_EXTENTS = {1: (200, 4000), 2: (28, 256), 3: (10, 40)}
_WIDTHS = {1: (8, 256), 2: (8, 96), 3: (8, 48)}


def chain(b: Builder[T], batch: int, draw: Draw, *, axes: int) -> T:
    """Describe a chain of convolutions."""
    layers = Layers(b, draw)
    x = layers.field(batch, axes, *_EXTENTS[axes])
    width = draw.width(*_WIDTHS[axes])
    for _ in range(draw.randint(3, 9)):
        size = draw.choice((1, 3, 3, 3, 5, 7) if axes < 3 else (1, 3, 3))
        halves = min(x.extents) >= 12 and draw.is_so(0.35)
        dilation = 1 if halves or size == 1 or not draw.is_so(0.15) else 2
        outputs = width = width * 2 if halves and draw.is_so(0.7) else width
        groups = _groups(draw, x.channels, width)
        strides = halves and draw.is_so(0.5)
        x = layers.conv(x, outputs, size, stride=1 + strides, dilation=dilation, groups=groups)
        x = layers.active(x)
        x = layers.pool(x) if halves and not strides else x
    return layers.head(x)


def _groups(draw: Draw, inputs: int, outputs: int) -> int:
    """Return a number of groups: mostly 1, otherwise a common divisor, more often the largest."""
    divisors = [n for n in range(2, inputs + 1) if inputs % n == outputs % n == 0]
    return draw.choice([*divisors, divisors[-1]]) if divisors and draw.is_so(0.25) else 1


def residual(b: Builder[T], batch: int, draw: Draw) -> T:
    """Describe a residual network."""
    layers = Layers(b, draw)
    axes = draw.choice((1, 2, 2, 2, 3))
    x = layers.field(batch, axes, *_EXTENTS[axes])
    width = draw.width(*_WIDTHS[axes])
    size = draw.choice((3, 3, 3, 5) if axes < 3 else (3,))
    x = layers.active(layers.conv(x, width, size, stride=draw.choice((1, 2))))
    is_narrowed = draw.is_so(0.4)
    for stage in range(draw.randint(1, 4)):
        stride = 2 if stage and min(x.extents) >= 8 else 1
        width = width * stride
        for index in range(draw.randint(1, 4)):
            step = stride if index == 0 else 1
            middle = max(4, width // 4) if is_narrowed else width
            y = layers.active(layers.conv(x, middle, 1)) if is_narrowed else x
            y = layers.active(layers.conv(y, middle, size, stride=step))
            y = layers.conv(y, width, 1 if is_narrowed else size, gain=_BRANCH)
            same = step == 1 and x.channels == width
            shortcut = x if same else layers.conv(x, width, 1, stride=step)
            x = layers.active(layers.sum(shortcut, y))
    return layers.head(x)


def inverted(b: Builder[T], batch: int, draw: Draw) -> T:
    """Describe a network of inverted residuals, with or without squeeze and excitation."""
    layers = Layers(b, draw)
    x = layers.field(batch, 2, *_EXTENTS[2])
    width, is_excited = draw.width(8, 48), draw.is_so(0.6)
    x = layers.active(layers.conv(x, width, 3, stride=2))
    for _ in range(draw.randint(2, 5)):
        stride = 2 if min(x.extents) >= 8 and draw.is_so(0.7) else 1
        width = draw.width(width, 2 * width)
        hidden, size = x.channels * draw.choice((2, 3, 4, 6)), draw.choice((3, 3, 5, 7))
        for index in range(draw.randint(1, 3)):
            step = stride if index == 0 else 1
            y = layers.active(layers.conv(x, hidden, 1))
            y = layers.active(layers.conv(y, hidden, size, stride=step, groups=hidden))
            y = _excited(layers, y, batch) if is_excited else y
            y = layers.conv(y, width, 1, gain=_BRANCH)
            x = layers.sum(x, y) if step == 1 and x.channels == width else y
    return layers.head(layers.active(layers.conv(x, 4 * width, 1)))


def _excited(layers: Layers[T], x: Field[T], batch: int) -> Field[T]:
    """Add squeeze and excitation: channels are weighted according to the means of all channels."""
    b, name, squeezed = layers.b, layers.name(), max(x.channels // 16, 4)
    y = b.dense_layer(f"{name}.squeeze", b.global_average(x.tensor), x.channels, squeezed)
    y = b.sigmoid(b.dense_layer(f"{name}.excite", b.relu(y), squeezed, x.channels))
    y = b.reshape(y, (batch, x.channels, *(1,) * len(x.extents)))
    return x._replace(tensor=b.multiply(x.tensor, y))


def decoder(b: Builder[T], batch: int, draw: Draw) -> T:
    """Describe an encoder with pooling, followed by a decoder with transposed convolutions."""
    layers = Layers(b, draw)
    depth = draw.randint(1, 4)
    unit = 2**depth
    extent = max(32, draw.between(32, 256)) // unit * unit
    x = Field(b.input("x", batch, 3, extent, extent), 3, (extent, extent))
    width, size = draw.width(8, 48), draw.choice((3, 3, 3, 5))

    def block(x: Field[T], outputs: int) -> Field[T]:
        for _ in range(1 + is_double):
            x = layers.active(layers.conv(x, outputs, size))
        return x

    is_double = draw.is_so(0.6)
    skipped: list[Field[T]] = []
    for level in range(depth):
        x = block(x, width * 2**level)
        skipped.append(x)
        x = x._replace(
            tensor=b.max_pool(x.tensor, size=2, stride=2, padding=0),
            extents=tuple(n // 2 for n in x.extents),
        )
    x = block(x, 2 * x.channels)
    for before in reversed(skipped):
        up = b.deconv_layer(layers.name(), x.tensor, x.channels, before.channels, 2)
        joined = b.concat([before.tensor, up], axis=1)
        x = block(Field(joined, 2 * before.channels, before.extents), before.channels)
    return layers.conv(x, draw.randint(1, 21), 1).tensor


def attention(b: Builder[T], batch: int, draw: Draw) -> T:
    """Describe a transformer's encoder, whose input is embedded tokens."""
    layers = Layers(b, draw)
    heads, size = draw.randint(1, 12), draw.choice((16, 24, 32, 40, 64, 64, 80))
    width, tokens = heads * size, draw.between(9, 500)
    is_joined, is_before, wider = draw.is_so(0.5), draw.is_so(0.5), draw.choice((2, 3, 4))
    x = b.input("x", batch, tokens, width)

    def attended(name: str, x: T) -> T:
        if is_joined:
            joined = b.dense_layer(f"{name}.qkv", x, width, 3 * width)
            parts = [b.slice(joined, 2, i * width, (i + 1) * width) for i in range(3)]
        else:
            parts = [b.dense_layer(f"{name}.{part}", x, width, width) for part in "qkv"]
        y = attend(b, parts, (batch, tokens, width), heads, whole=False)
        return b.dense_layer(f"{name}.output", y, width, width)

    def fed(name: str, x: T) -> T:
        y = layers.activate(b.dense_layer(f"{name}.up", x, width, wider * width))
        return b.dense_layer(f"{name}.down", y, wider * width, width)

    for _ in range(draw.randint(1, 8)):
        for part in (attended, fed):
            name = layers.name()
            norm = partial(b.layer_norm_layer, f"{name}.norm")
            x = (
                b.add(x, part(name, norm(x, width)))
                if is_before
                else norm(b.add(x, part(name, x)), width)
            )
    return x


def recurrent(b: Builder[T], batch: int, draw: Draw) -> T:
    """Describe one to three LSTMs or GRUs over a sequence."""
    layer = draw.choice((b.lstm_layer, b.gru_layer))
    steps, inputs, hidden = draw.between(20, 300), draw.width(16, 512), draw.width(32, 512)
    x = b.input("x", steps, batch, inputs)
    for index in range(draw.randint(1, 3)):
        x = layer(f"layer{index}", x, batch, inputs, hidden)
        inputs = hidden
    return x


def dense(b: Builder[T], batch: int, draw: Draw) -> T:
    """Describe a chain of dense layers."""
    layers = Layers(b, draw)
    inputs = draw.width(16, 2048)
    x = b.input("x", batch, inputs)
    width = draw.width(64, 2048)
    for _ in range(draw.randint(2, 8)):
        outputs = width if draw.is_so(0.7) else draw.width(64, 2048)
        x = layers.activate(b.dense_layer(layers.name(), x, inputs, outputs))
        inputs = outputs
    return b.dense_layer("last", x, inputs, draw.choice((1, 10, 100)))


FAMILIES: Sequence[tuple[str, Callable[..., Any]]] = (
    ("chain1d", partial(chain, axes=1)),
    ("chain2d", partial(chain, axes=2)),
    ("chain3d", partial(chain, axes=3)),
    ("residual", residual),
    ("inverted", inverted),
    ("decoder", decoder),
    ("attention", attention),
    ("residual", residual),
    ("recurrent", recurrent),
    ("dense", dense),
)


def names(seed: int, count: int) -> list[str]:
    """Return the names of the first `count` networks that a seed draws."""
    families = (FAMILIES[i % len(FAMILIES)][0] for i in range(count))
    return [f"{family}-{seed}-{i}" for i, family in enumerate(families)]


def described(name: str) -> Callable[[Builder[T], int], T]:
    """Return the function that describes the network of a name.

    Raises KeyError for a name that `names` does not return for any seed.
    """
    family, *numbers = name.split("-")
    if len(numbers) != 2 or not all(n.isdecimal() for n in numbers):
        raise KeyError(name)
    seed, index = map(int, numbers)
    kind, network = FAMILIES[index % len(FAMILIES)]
    if kind != family:
        raise KeyError(name)
    attempt = _attempt(network, kind, seed, index)

    def drawn(b: Builder[T], batch: int) -> T:
        return network(b, batch, Draw(f"{seed}-{index}-{attempt}"))

    return drawn


@lru_cache(1024)
def _attempt(network: Callable[..., Any], family: str, seed: int, index: int) -> int:
    """Return the number of the first draw whose multiply-adds are within the bounds."""
    least = _FEWEST_OF_DENSE if family == "dense" else _FEWEST

    def fits(attempt: int) -> bool:
        draw = Draw(f"{seed}-{index}-{attempt}")
        return least <= _work(lambda b: network(b, 1, draw)) <= _MOST

    return next(filter(fits, itertools.count()))


def _work(network: Callable[[Builder[str]], str]) -> int:
    """Return the multiply-adds of a network."""
    from benchmarks.builders.nnef_builder import NnefBuilder
    from lowering.work import total
    from nnef_jax.reading.read import read

    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        builder, path = NnefBuilder(), Path(folder) / "network"
        builder.write(path, network(builder))
        return total(read(path).graph)
