"""What a network is described in: abstract operations, and layers that draw their weights."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
T = TypeVar("T")  # what stands for a tensor while a network is built


class Builder(ABC, Generic[T]):
    """Builds one network; builders of one seed draw the same weights for the same description.

    Pictures are (batch, channels, height, width), signals (batch, channels, times), volumes (batch,
    channels, depth, height, width), sequences of an `lstm` (steps, batch, features), all others
    (batch, tokens, features). Everything is float32.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self.inputs: dict[str, tuple[int, ...]] = {}

    # Operations

    @abstractmethod
    def declare(self, name: str, shape: tuple[int, ...]) -> T:
        """An input; use `input`."""

    @abstractmethod
    def parameter(self, name: str, value: Array, *, trainable: bool = True) -> T:
        """A parameter. Names are dotted, and unique in a network."""

    @abstractmethod
    def conv(
        self,
        x: T,
        weight: T,
        bias: T | None,
        *,
        stride: int,
        padding: int,
        dilation: int,
        groups: int,
    ) -> T:
        """Convolution; the weight is (outputs, inputs / groups, size...)."""

    @abstractmethod
    def deconv(self, x: T, weight: T, bias: T, *, stride: int) -> T:
        """Transposed convolution without padding; the weight is (inputs, outputs, size, size)."""

    @abstractmethod
    def batch_norm(self, x: T, mean: T, variance: T, scale: T, offset: T, epsilon: float) -> T:
        """Normalisation of channels by stored statistics, all of shape (channels,)."""

    @abstractmethod
    def layer_norm(self, x: T, scale: T, offset: T, epsilon: float) -> T:
        """Normalisation over the last axis."""

    @abstractmethod
    def relu(self, x: T) -> T:
        """max(x, 0). What it reads must have no other reader: torch overwrites it."""

    @abstractmethod
    def relu6(self, x: T) -> T:
        """min(max(x, 0), 6). What it reads must have no other reader: torch overwrites it."""

    @abstractmethod
    def gelu(self, x: T) -> T:
        """x / 2 * (1 + erf(x / sqrt(2)))."""

    @abstractmethod
    def sigmoid(self, x: T) -> T:
        """1 / (1 + exp(-x))."""

    def silu(self, x: T) -> T:
        """x * sigmoid(x)."""
        return self.multiply(x, self.sigmoid(x))

    @abstractmethod
    def softmax(self, x: T) -> T:
        """Softmax over the last axis."""

    @abstractmethod
    def max_pool(self, x: T, *, size: int, stride: int, padding: int) -> T:
        """Largest value of each window; padding never wins."""

    @abstractmethod
    def average_pool(self, x: T, *, size: int) -> T:
        """Mean of each window; windows lie side by side."""

    @abstractmethod
    def global_average(self, x: T) -> T:
        """Mean over all positions, as (batch, channels)."""

    @abstractmethod
    def dense(self, x: T, weight: T, bias: T) -> T:
        """Product of the last axis with a weight of (outputs, inputs), plus the bias."""

    @abstractmethod
    def matmul(self, a: T, b: T) -> T:
        """Matrix product over the last two axes."""

    @abstractmethod
    def scale(self, x: T, factor: float) -> T:
        """Product with a number."""

    @abstractmethod
    def attention(self, q: T, k: T, v: T, size: int, *, whole: bool, bias: T | None = None) -> T:
        """softmax(q k' / sqrt(size) + bias) v of (batch, heads, tokens, size).

        Exporters to NNEF either keep it whole or spell it out; the other builders take the form
        that is best for their engines.
        """

    @abstractmethod
    def add(self, a: T, b: T) -> T:
        """Sum of tensors of one rank, extents of 1 broadcast."""

    @abstractmethod
    def multiply(self, a: T, b: T) -> T:
        """Product of tensors of one rank, extents of 1 broadcast."""

    @abstractmethod
    def concat(self, values: Sequence[T], axis: int) -> T:
        """Tensors joined along an axis."""

    @abstractmethod
    def reshape(self, x: T, shape: tuple[int, ...]) -> T:
        """The same items in another shape."""

    @abstractmethod
    def transpose(self, x: T, axes: tuple[int, ...]) -> T:
        """Axes in another order."""

    @abstractmethod
    def slice(self, x: T, axis: int, begin: int, end: int) -> T:
        """Part of an axis."""

    @abstractmethod
    def repeat(self, x: T, count: int) -> T:
        """`count` copies along the first axis, of extent 1."""

    @abstractmethod
    def lstm(self, x: T, name: str, w: Array, r: Array, b: Array, start: Array) -> T:
        """All hidden states of an LSTM, whose hidden state and cell begin as `start`.

        The weights of inputs (4 hidden, inputs) and of states (4 hidden, hidden), and the bias
        (4 hidden), hold the gates in the order input, forget, cell, output. `start` is (1, batch,
        hidden).
        """

    @abstractmethod
    def gru(self, x: T, name: str, w: Array, r: Array, b: Array, n: Array, start: Array) -> T:
        """All hidden states of a GRU, whose reset gate acts on the product with the state.

        As for an LSTM; the gates are reset, update, new. `n` is the bias of the new state's product
        with the state before.
        """

    # Layers

    def input(self, name: str, *shape: int) -> T:
        """An input of the network."""
        self.inputs[name] = shape
        return self.declare(name, shape)

    def normal(self, *shape: int, deviation: float = 1.0) -> Array:
        """Normally distributed values around 0."""
        return self._random.standard_normal(shape, np.float32) * np.float32(deviation)

    def uniform(self, *shape: int, low: float, high: float) -> Array:
        """Uniformly distributed values."""
        return self._random.uniform(low, high, shape).astype(np.float32)

    def conv_layer(
        self,
        name: str,
        x: T,
        inputs: int,
        outputs: int,
        size: int = 3,
        *,
        stride: int = 1,
        padding: int | None = None,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = False,
        axes: int = 2,
    ) -> T:
        """Convolution with He's initialisation; without `padding` its output is not smaller."""
        shape = (outputs, inputs // groups, *(size,) * axes)
        deviation = math.sqrt(2 / math.prod(shape[1:]))
        weight = self.parameter(f"{name}.weight", self.normal(*shape, deviation=deviation))
        offsets = self._bias(name, outputs) if bias else None
        padding = size // 2 * dilation if padding is None else padding
        return self.conv(
            x, weight, offsets, stride=stride, padding=padding, dilation=dilation, groups=groups
        )

    def deconv_layer(self, name: str, x: T, inputs: int, outputs: int, size: int) -> T:
        """Transposed convolution whose windows do not overlap."""
        values = self.normal(inputs, outputs, size, size, deviation=math.sqrt(1 / inputs))
        weight = self.parameter(f"{name}.weight", values)
        return self.deconv(x, weight, self._bias(name, outputs), stride=size)

    def batch_norm_layer(self, name: str, x: T, channels: int, gain: float = 1.0) -> T:
        """Batch normalisation with statistics and scales that a mistake would not survive."""

        def stored(kind: str, value: Array, trainable: bool) -> T:
            return self.parameter(f"{name}.{kind}", value, trainable=trainable)

        return self.batch_norm(
            x,
            stored("mean", self.normal(channels, deviation=0.1), False),
            stored("variance", self.uniform(channels, low=0.7, high=1.4), False),
            stored("scale", self.uniform(channels, low=0.8, high=1.2) * np.float32(gain), True),
            stored("offset", self.normal(channels, deviation=0.1), True),
            1e-5,
        )

    def dense_layer(self, name: str, x: T, inputs: int, outputs: int) -> T:
        """A dense layer that keeps the variance."""
        values = self.normal(outputs, inputs, deviation=math.sqrt(1 / inputs))
        return self.dense(x, self.parameter(f"{name}.weight", values), self._bias(name, outputs))

    def layer_norm_layer(self, name: str, x: T, features: int) -> T:
        """Layer normalisation with an affine map."""
        scale = self.parameter(f"{name}.scale", self.uniform(features, low=0.8, high=1.2))
        offset = self.parameter(f"{name}.offset", self.normal(features, deviation=0.1))
        return self.layer_norm(x, scale, offset, 1e-5)

    def spelled_attention(self, q: T, k: T, v: T, size: int, bias: T | None) -> T:
        """`attention` by its definition."""
        scores = self.scale(self.matmul(q, self.transpose(k, (0, 1, 3, 2))), 1 / math.sqrt(size))
        scores = scores if bias is None else self.add(scores, bias)
        return self.matmul(self.softmax(scores), v)

    def lstm_layer(self, name: str, x: T, batch: int, inputs: int, hidden: int) -> T:
        """An LSTM with torch's initialisation, which starts with zeros."""
        weights = self._recurrent(4 * hidden, inputs, hidden)
        return self.lstm(x, name, *weights, np.zeros((1, batch, hidden), np.float32))

    def gru_layer(self, name: str, x: T, batch: int, inputs: int, hidden: int) -> T:
        """A GRU with torch's initialisation, which starts with zeros."""
        w, r, b = self._recurrent(3 * hidden, inputs, hidden)
        start = np.zeros((1, batch, hidden), np.float32)
        return self.gru(x, name, w, r, b, self._recurrent(hidden, inputs, hidden)[2], start)

    def _recurrent(self, gates: int, inputs: int, hidden: int) -> tuple[Array, Array, Array]:
        bound = 1 / math.sqrt(hidden)
        w, r, b = (
            self.uniform(*shape, low=-bound, high=bound)
            for shape in ((gates, inputs), (gates, hidden), (gates,))
        )
        return w, r, b

    def _bias(self, name: str, size: int) -> T:
        return self.parameter(f"{name}.bias", self.normal(size, deviation=0.1))

    def arguments(self) -> dict[str, Array]:
        """Random inputs by name."""
        return {name: self.normal(*shape) for name, shape in self.inputs.items()}
