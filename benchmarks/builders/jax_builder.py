"""Builds a function in plain jax, as an expert would write inference by hand.

Channels are the last axis, norms after convolutions are folded into filters, weights have the dtype
of the computation, and attention is computed by `jax.nn.dot_product_attention`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.builders.base import Array, Builder
from benchmarks.networks import Describe


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of the traced function, or a parameter.

    Args:
        make: computes and returns the array. It is called only if the tensor is read.
        is_last: whether channels are the last axis of the array. They are the second axis in the
            description of the network.
        value: the value of a parameter. None for other tensors.
        convolution: the operands of the convolution that computes this tensor. None for other
            tensors.
    """

    make: Callable[[], Any]
    is_last: bool = False
    value: Array | None = None
    convolution: _Convolution | None = None

    @cached_property
    def array(self) -> Any:
        """Return the array. Channels are its last axis if `is_last` is true."""
        return self.make()

    @property
    def described(self) -> Any:
        """Return the array with its axes in the order of the network's description."""
        return jnp.moveaxis(self.array, -1, 1) if self.is_last else self.array

    @property
    def last(self) -> Any:
        """Return the array with channels last."""
        return self.array if self.is_last else jnp.moveaxis(self.array, 1, -1)


@dataclass(frozen=True, eq=False)
class _Convolution:
    name: str
    x: Tensor
    filter: Array  # (outputs, inputs / groups, size...)
    bias: Array
    settings: Mapping[str, Any]


class JaxBuilder(Builder[Tensor]):
    """Computes a network while it is described. The description runs in a function that jax traces.

    Args:
        dtype: the dtype of weights and of most computations.
        parameters: arrays by name. None makes zeros, and collects the values of parameters in
            `values`.
        inputs: arrays by name. None makes zeros, and collects the types of inputs in `input_types`.
    """

    def __init__(
        self,
        dtype: str,
        parameters: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.dtype = jnp.dtype(dtype)
        self.values: dict[str, Array] = {}
        self.input_types: dict[str, jax.ShapeDtypeStruct] = {}
        self._parameters = parameters
        self._arrays = inputs

    def weight(self, name: str, value: Array) -> Any:
        """Return the array of a weight, or collect its value."""
        if self._parameters is not None:
            return self._parameters[name]
        self.values[name] = value
        return jnp.zeros(value.shape, self.dtype)

    def input_array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return the array of an input, or collect its type."""
        if self._arrays is not None:
            return self._arrays[name]
        self.input_types[name] = jax.ShapeDtypeStruct(shape, dtype)
        return jnp.zeros(shape, dtype)

    def declare(self, name: str, shape: tuple[int, ...]) -> Tensor:
        is_last = name in ("image", "features", "volume")
        stored = (shape[0], *shape[2:], shape[1]) if is_last else shape
        array = self.input_array(name, stored, self.dtype)
        return Tensor(lambda: array, is_last)

    def parameter(self, name: str, value: Array, *, trainable: bool = True) -> Tensor:
        return Tensor(lambda: self.weight(name, value), value=value)

    def conv(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *,
        stride: int,
        padding: int,
        dilation: int,
        groups: int,
    ) -> Tensor:
        filter = _value(weight)
        offsets = np.zeros(len(filter), np.float32) if bias is None else _value(bias)
        axes = filter.ndim - 2
        settings = {
            "window_strides": (stride,) * axes,
            "padding": ((padding, padding),) * axes,
            "rhs_dilation": (dilation,) * axes,
            "feature_group_count": groups,
        }
        name = f"conv{len(self._names)}"
        self._names.append(name)
        return self._convolved(_Convolution(name, x, filter, offsets, settings))

    @cached_property
    def _names(self) -> list[str]:
        return []

    def _convolved(self, of: _Convolution) -> Tensor:
        def make() -> Any:
            x = of.x.last
            filter = self.weight(f"{of.name}.filter", np.moveaxis(of.filter, (0, 1), (-1, -2)))
            letters = "DHW"[-(x.ndim - 2) :]
            numbers = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
            y = lax.conv_general_dilated(x, filter, dimension_numbers=numbers, **of.settings)
            return y + self.weight(f"{of.name}.bias", of.bias)

        return Tensor(make, True, convolution=of)

    def deconv(self, x: Tensor, weight: Tensor, bias: Tensor, *, stride: int) -> Tensor:
        def make() -> Any:
            filter = weight.array.transpose(2, 3, 0, 1)
            numbers = ("NHWC", "HWIO", "NHWC")
            y = lax.conv_transpose(
                x.last, filter[::-1, ::-1], (stride,) * 2, "VALID", dimension_numbers=numbers
            )
            return y + bias.array

        return Tensor(make, True)

    def batch_norm(
        self,
        x: Tensor,
        mean: Tensor,
        variance: Tensor,
        scale: Tensor,
        offset: Tensor,
        epsilon: float,
    ) -> Tensor:
        factor = _value(scale) / np.sqrt(_value(variance) + np.float32(epsilon))
        shift = _value(offset) - _value(mean) * factor
        of = x.convolution
        if of is None:
            name = f"norm{len(self._names)}"
            self._names.append(name)
            return Tensor(
                lambda: (
                    x.last * self.weight(f"{name}.scale", factor)
                    + self.weight(f"{name}.offset", shift)
                ),
                True,
            )
        filter = of.filter * factor.reshape(-1, *(1,) * (of.filter.ndim - 1))
        folded = _Convolution(of.name, of.x, filter, of.bias * factor + shift, of.settings)
        return self._convolved(folded)

    def layer_norm(self, x: Tensor, scale: Tensor, offset: Tensor, epsilon: float) -> Tensor:
        def make() -> Any:
            wide = x.array.astype(jnp.float32)
            centred = wide - wide.mean(-1, keepdims=True)
            variance = jnp.square(centred).mean(-1, keepdims=True)
            y = (centred * lax.rsqrt(variance + epsilon)).astype(x.array.dtype)
            return y * scale.array + offset.array

        return Tensor(make)

    def relu(self, x: Tensor) -> Tensor:
        return self._map(jax.nn.relu, x)

    def relu6(self, x: Tensor) -> Tensor:
        return self._map(jax.nn.relu6, x)

    def gelu(self, x: Tensor) -> Tensor:
        return self._map(lambda y: jax.nn.gelu(y, approximate=False), x)

    def sigmoid(self, x: Tensor) -> Tensor:
        return self._map(jax.nn.sigmoid, x)

    def silu(self, x: Tensor) -> Tensor:
        return self._map(jax.nn.silu, x)

    def softmax(self, x: Tensor) -> Tensor:
        return Tensor(lambda: jax.nn.softmax(x.described, -1))

    def max_pool(self, x: Tensor, *, size: int, stride: int, padding: int) -> Tensor:
        def make() -> Any:
            axes = x.last.ndim - 2
            window, steps = (1, *(size,) * axes, 1), (1, *(stride,) * axes, 1)
            padded = ((0, 0), *((padding, padding),) * axes, (0, 0))
            return lax.reduce_window(x.last, -jnp.inf, lax.max, window, steps, padded)

        return Tensor(make, True)

    def average_pool(self, x: Tensor, *, size: int) -> Tensor:
        def make() -> Any:
            axes = x.last.ndim - 2
            window = (1, *(size,) * axes, 1)
            return lax.reduce_window(x.last, 0.0, lax.add, window, window, "VALID") / size**axes

        return Tensor(make, True)

    def global_average(self, x: Tensor) -> Tensor:
        return Tensor(lambda: x.last.mean(range(1, x.last.ndim - 1)))

    def dense(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return Tensor(lambda: x.described @ weight.array.T + bias.array)

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        return Tensor(lambda: a.described @ b.described)

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return self._map(lambda y: y * factor, x)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, size: int, *, whole: bool, bias: Tensor | None = None
    ) -> Tensor:
        def make() -> Any:
            parts = [jnp.swapaxes(x.described, 1, 2) for x in (q, k, v)]
            y = jax.nn.dot_product_attention(*parts, bias=bias and bias.described)
            return jnp.swapaxes(y, 1, 2)

        return Tensor(make)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return self._joined(jnp.add, a, b)

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        return self._joined(jnp.multiply, a, b)

    def concat(self, values: Sequence[Tensor], axis: int) -> Tensor:
        if any(x.is_last for x in values) and axis == 1:
            return Tensor(lambda: jnp.concatenate([x.last for x in values], -1), True)
        return Tensor(lambda: jnp.concatenate([x.described for x in values], axis))

    def reshape(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        return Tensor(lambda: x.described.reshape(shape))

    def transpose(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        return Tensor(lambda: x.described.transpose(axes))

    def slice(self, x: Tensor, axis: int, begin: int, end: int) -> Tensor:
        return Tensor(lambda: lax.slice_in_dim(x.described, begin, end, axis=axis))

    def repeat(self, x: Tensor, count: int) -> Tensor:
        return Tensor(lambda: jnp.broadcast_to(x.array, (count, *x.array.shape[1:])))

    def lstm(self, x: Tensor, name: str, w: Array, r: Array, b: Array, start: Array) -> Tensor:
        def make() -> Any:
            gates = x.array @ self.weight(f"{name}.w", w.T) + self.weight(f"{name}.b", b)
            recurrent = self.weight(f"{name}.r", r.T)

            def step(state: Any, parts: Any) -> Any:
                hidden, cell = state
                i, f, g, o = jnp.split(parts + hidden @ recurrent, 4, axis=-1)
                cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
                hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
                return (hidden, cell), hidden

            zeros = jnp.zeros(start.shape[1:], gates.dtype)
            return lax.scan(step, (zeros, zeros), gates)[1]

        return Tensor(make)

    def gru(
        self, x: Tensor, name: str, w: Array, r: Array, b: Array, n: Array, start: Array
    ) -> Tensor:
        def make() -> Any:
            gates = x.array @ self.weight(f"{name}.w", w.T) + self.weight(f"{name}.b", b)
            recurrent, offset = self.weight(f"{name}.r", r.T), self.weight(f"{name}.n", n)

            def step(hidden: Any, parts: Any) -> Any:
                of_reset, of_update, of_new = jnp.split(parts, 3, axis=-1)
                reset, update, new = jnp.split(hidden @ recurrent, 3, axis=-1)
                reset = jax.nn.sigmoid(of_reset + reset)
                update = jax.nn.sigmoid(of_update + update)
                new = jnp.tanh(of_new + reset * (new + offset))
                hidden = (1 - update) * new + update * hidden
                return hidden, hidden

            return lax.scan(step, jnp.zeros(start.shape[1:], gates.dtype), gates)[1]

        return Tensor(make)

    def _map(self, function: Callable[[Any], Any], x: Tensor) -> Tensor:
        return Tensor(lambda: function(x.array), x.is_last)

    def _joined(self, function: Callable[[Any, Any], Any], a: Tensor, b: Tensor) -> Tensor:
        if a.is_last or b.is_last:
            return Tensor(lambda: function(a.last, b.last), True)
        return Tensor(lambda: function(a.array, b.array))


def _value(x: Tensor) -> Array:
    assert x.value is not None, "a parameter is needed here"
    return x.value


def function_of(
    describe: Describe, batch: int, dtype: str, builder: type[JaxBuilder] = JaxBuilder
) -> tuple[Callable[..., Any], dict[str, Array], dict[str, jax.ShapeDtypeStruct]]:
    """Return a network as a function in plain jax, its parameters, and the types of its inputs.

    The function takes dicts of parameters and of inputs by name.
    """
    collected = builder(dtype)
    jax.eval_shape(lambda: describe(collected, batch).described)

    def network(parameters: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        return describe(builder(dtype, parameters, inputs), batch).described

    return network, collected.values, collected.input_types
