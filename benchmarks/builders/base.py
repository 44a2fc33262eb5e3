"""The interface in which networks are described: operations, and layers with random weights."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
T = TypeVar("T")  # the type of a tensor while a network is built


class Builder(ABC, Generic[T]):
    """Builds one network.

    Builders with the same seed draw the same weights for the same description.

    Pictures have the shape (batch, channels, height, width), signals (batch, channels, time),
    volumes (batch, channels, depth, height, width), and sequences of `lstm` and `gru` (time, batch,
    features). All other tensors have the shape (batch, tokens, features). All tensors are float32.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self.inputs: dict[str, tuple[int, ...]] = {}

    # Operations

    @abstractmethod
    def declare(self, name: str, shape: tuple[int, ...]) -> T:
        """Declare an input in the engine's form. Networks use `input`, which calls this method."""

    @abstractmethod
    def parameter(self, name: str, value: Array, *, trainable: bool = True) -> T:
        """Add a parameter. Its name may have dots, and is unique in the network."""

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
        """Compute a convolution. The weight has the shape (outputs, inputs / groups, size...)."""

    @abstractmethod
    def deconv(self, x: T, weight: T, bias: T, *, stride: int) -> T:
        """Compute a transposed convolution without padding.

        The weight has the shape (inputs, outputs, size, size).
        """

    @abstractmethod
    def batch_norm(self, x: T, mean: T, variance: T, scale: T, offset: T, epsilon: float) -> T:
        """Normalise channels by stored statistics. All parameters have the shape (channels,)."""

    @abstractmethod
    def layer_norm(self, x: T, scale: T, offset: T, epsilon: float) -> T:
        """Normalise over the last axis."""

    @abstractmethod
    def relu(self, x: T) -> T:
        """Compute max(x, 0). No other operation may read `x`, since torch overwrites it."""

    @abstractmethod
    def relu6(self, x: T) -> T:
        """Compute min(max(x, 0), 6). No other operation may read `x`, since torch overwrites it."""

    @abstractmethod
    def gelu(self, x: T) -> T:
        """Compute x / 2 * (1 + erf(x / sqrt(2)))."""

    @abstractmethod
    def sigmoid(self, x: T) -> T:
        """Compute 1 / (1 + exp(-x))."""

    def silu(self, x: T) -> T:
        """Compute x * sigmoid(x)."""
        return self.multiply(x, self.sigmoid(x))

    @abstractmethod
    def softmax(self, x: T) -> T:
        """Compute softmax over the last axis."""

    @abstractmethod
    def max_pool(self, x: T, *, size: int, stride: int, padding: int) -> T:
        """Compute the maximum of each window, without the padding."""

    @abstractmethod
    def average_pool(self, x: T, *, size: int) -> T:
        """Compute the mean of each window. Windows do not overlap."""

    @abstractmethod
    def global_average(self, x: T) -> T:
        """Compute the mean over all positions, with the shape (batch, channels)."""

    @abstractmethod
    def dense(self, x: T, weight: T, bias: T) -> T:
        """Multiply the last axis by a weight of shape (outputs, inputs), and add the bias."""

    @abstractmethod
    def matmul(self, a: T, b: T) -> T:
        """Compute the matrix product over the last two axes."""

    @abstractmethod
    def scale(self, x: T, factor: float) -> T:
        """Multiply by a number."""

    @abstractmethod
    def attention(self, q: T, k: T, v: T, size: int, *, whole: bool, bias: T | None = None) -> T:
        """Compute softmax(q k' / sqrt(size) + bias) v for tensors (batch, heads, tokens, size).

        If `whole` is true, the NNEF builder writes attention as one operation, otherwise as several
        operations. Exporters to NNEF do both. The other builders use the form that is best for
        their engines.
        """

    @abstractmethod
    def add(self, a: T, b: T) -> T:
        """Add tensors of the same rank. Extents of 1 are broadcast."""

    @abstractmethod
    def multiply(self, a: T, b: T) -> T:
        """Multiply tensors of the same rank. Extents of 1 are broadcast."""

    @abstractmethod
    def concat(self, values: Sequence[T], axis: int) -> T:
        """Concatenate tensors along an axis."""

    @abstractmethod
    def reshape(self, x: T, shape: tuple[int, ...]) -> T:
        """Return the items of a tensor in another shape."""

    @abstractmethod
    def transpose(self, x: T, axes: tuple[int, ...]) -> T:
        """Put the axes of a tensor in another order."""

    @abstractmethod
    def slice(self, x: T, axis: int, begin: int, end: int) -> T:
        """Take the part of an axis from index `begin` to `end`."""

    @abstractmethod
    def repeat(self, x: T, count: int) -> T:
        """Repeat a tensor `count` times along its first axis, whose extent is 1."""

    @abstractmethod
    def lstm(self, x: T, name: str, w: Array, r: Array, b: Array, start: Array) -> T:
        """Compute all hidden states of an LSTM.

        The weights `w` for inputs have the shape (4 hidden, inputs), the weights `r` for states (4
        hidden, hidden), and the bias `b` (4 hidden). They have the gates in the order input,
        forget, cell, output. `start`, of shape (1, batch, hidden), is the first hidden state and
        the first cell state.
        """

    @abstractmethod
    def gru(self, x: T, name: str, w: Array, r: Array, b: Array, n: Array, start: Array) -> T:
        """Compute all hidden states of a GRU, whose reset gate scales the product with the state.

        The arguments are those of `lstm`, with the gates reset, update and new. `n` is the bias of
        the new gate's product with the previous state.
        """

    # Layers

    def input(self, name: str, *shape: int) -> T:
        """Add an input to the network."""
        self.inputs[name] = shape
        return self.declare(name, shape)

    def normal(self, *shape: int, deviation: float = 1.0) -> Array:
        """Return normally distributed values with the mean 0."""
        return self._random.standard_normal(shape, np.float32) * np.float32(deviation)

    def uniform(self, *shape: int, low: float, high: float) -> Array:
        """Return uniformly distributed values from `low` to `high`."""
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
        """Add a convolution with He's initialisation. The default padding keeps the extents."""
        shape = (outputs, inputs // groups, *(size,) * axes)
        deviation = math.sqrt(2 / math.prod(shape[1:]))
        weight = self.parameter(f"{name}.weight", self.normal(*shape, deviation=deviation))
        offsets = self._bias(name, outputs) if bias else None
        padding = size // 2 * dilation if padding is None else padding
        return self.conv(
            x, weight, offsets, stride=stride, padding=padding, dilation=dilation, groups=groups
        )

    def deconv_layer(self, name: str, x: T, inputs: int, outputs: int, size: int) -> T:
        """Add a transposed convolution whose windows do not overlap."""
        values = self.normal(inputs, outputs, size, size, deviation=math.sqrt(1 / inputs))
        weight = self.parameter(f"{name}.weight", values)
        return self.deconv(x, weight, self._bias(name, outputs), stride=size)

    def batch_norm_layer(self, name: str, x: T, channels: int, gain: float = 1.0) -> T:
        """Add a batch normalisation. Its random statistics and scales would reveal a mistake."""

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
        """Add a dense layer that keeps the variance of its input."""
        values = self.normal(outputs, inputs, deviation=math.sqrt(1 / inputs))
        return self.dense(x, self.parameter(f"{name}.weight", values), self._bias(name, outputs))

    def layer_norm_layer(self, name: str, x: T, features: int) -> T:
        """Add a layer normalisation with scales and offsets."""
        scale = self.parameter(f"{name}.scale", self.uniform(features, low=0.8, high=1.2))
        offset = self.parameter(f"{name}.offset", self.normal(features, deviation=0.1))
        return self.layer_norm(x, scale, offset, 1e-5)

    def spelled_attention(self, q: T, k: T, v: T, size: int, bias: T | None) -> T:
        """Compute `attention` by the operations of its definition."""
        scores = self.scale(self.matmul(q, self.transpose(k, (0, 1, 3, 2))), 1 / math.sqrt(size))
        scores = scores if bias is None else self.add(scores, bias)
        return self.matmul(self.softmax(scores), v)

    def lstm_layer(self, name: str, x: T, batch: int, inputs: int, hidden: int) -> T:
        """Add an LSTM with torch's initialisation, whose states start as zeros."""
        weights = self._recurrent(4 * hidden, inputs, hidden)
        return self.lstm(x, name, *weights, np.zeros((1, batch, hidden), np.float32))

    def gru_layer(self, name: str, x: T, batch: int, inputs: int, hidden: int) -> T:
        """Add a GRU with torch's initialisation, whose state starts as zeros."""
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
        """Return random inputs by name."""
        return {name: self.normal(*shape) for name, shape in self.inputs.items()}
