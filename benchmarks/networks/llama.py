"""Describes layers like those of Llama: RMS norms, rotary embeddings, and grouped queries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.builders.jax_builder import JaxBuilder, Tensor
from benchmarks.builders.nnef_builder import NnefBuilder

EPSILON = 1e-5


def llama(
    b: Any,
    batch: int,
    *,
    tokens: int = 128,
    width: int = 1024,
    layers: int = 4,
    heads: int = 16,
    groups: int = 4,
    hidden: int = 2816,
) -> Any:
    """Describe the layers for a builder that also has `product`, `rms_norm` and `attend`.

    There are `groups` heads of keys and values. Each of them is read by `heads / groups` heads of
    queries. The input is embedded tokens. Each token attends to itself and to the tokens before it.
    """
    size = width // heads
    angles = np.outer(np.arange(tokens), 10000.0 ** (-np.arange(0, size, 2) / size))
    angles = np.concatenate([angles, angles], 1).astype(np.float32)[None, None]
    cos, sin = (b.parameter(f.__name__, f(angles)) for f in (np.cos, np.sin))

    def split(x: Any, count: int) -> Any:
        return b.transpose(b.reshape(x, (batch, tokens, count, size)), (0, 2, 1, 3))

    def turned(x: Any) -> Any:
        first, second = (b.slice(x, 3, i, i + size // 2) for i in (0, size // 2))
        swapped = b.concat([b.scale(second, -1.0), first], axis=3)
        return b.add(b.multiply(x, cos), b.multiply(swapped, sin))

    def norm(name: str, x: Any) -> Any:
        return b.rms_norm(x, b.parameter(name, b.uniform(width, low=0.8, high=1.2)))

    def product(name: str, x: Any, inputs: int, outputs: int) -> Any:
        weight = b.normal(outputs, inputs, deviation=math.sqrt(1 / inputs))
        return b.product(x, b.parameter(f"{name}.weight", weight))

    x = b.input("embeddings", batch, tokens, width)
    for layer in range(layers):
        name = f"layer{layer}"
        y = norm(f"{name}.norm1", x)
        q = turned(split(product(f"{name}.q", y, width, width), heads))
        k = turned(split(product(f"{name}.k", y, width, groups * size), groups))
        v = split(product(f"{name}.v", y, width, groups * size), groups)
        y = b.transpose(b.attend([q, k, v], (batch, heads, groups, tokens, size)), (0, 2, 1, 3))
        y = b.reshape(y, (batch, tokens, width))
        x = b.add(x, product(f"{name}.output", y, width, width))
        y = norm(f"{name}.norm2", x)
        gate = b.silu(product(f"{name}.gate", y, width, hidden))
        y = b.multiply(gate, product(f"{name}.up", y, width, hidden))
        x = b.add(x, product(f"{name}.down", y, hidden, width))
    return norm("norm", x)


class LlamaNnefBuilder(NnefBuilder):
    """Builds the NNEF archive, in which keys and values are repeated, as exporters do."""

    def product(self, x: str, weight: str) -> str:
        """Multiply the last axis by a weight of shape (outputs, inputs)."""
        rank = self._ranks[x]
        return self._add(f"linear({x}, {self._expanded(weight, rank)})", rank)

    def rms_norm(self, x: str, scale: str) -> str:
        """Divide by the root mean square over the last axis."""
        self._need("tract_core")
        axis = self._ranks[x] - 1
        square = f"mean_reduce(sqr({x}), axes = [{axis}])"
        root = self._same(x, f"rsqrt(add({square}, {EPSILON}))")
        return self._same(x, f"mul(mul({x}, {root}), {self._expanded(scale, axis + 1)})")

    def attend(self, parts: Sequence[str], shape: tuple[int, int, int, int, int]) -> str:
        """Compute attention in which each token attends to itself and the tokens before it."""
        batch, heads, groups, tokens, size = shape
        mask = self.parameter(
            f"mask{len(self._ranks)}", np.triu(np.full((1, 1, tokens, tokens), -1e9, np.float32), 1)
        )
        query, *others = parts
        repeats = f"repeats = [1, 1, {heads // groups}, 1, 1]"
        repeated = [self._add(f"tile(unsqueeze({x}, axes = [2]), {repeats})", 5) for x in others]
        key, value = (self.reshape(x, (batch, heads, tokens, size)) for x in repeated)
        return self.spelled_attention(query, key, value, size, mask)


class LlamaJaxBuilder(JaxBuilder):
    """Builds the function in plain jax, in which keys and values are not repeated."""

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """Multiply the last axis by a weight of shape (outputs, inputs)."""
        return Tensor(lambda: x.described @ weight.array.T)

    def rms_norm(self, x: Tensor, scale: Tensor) -> Tensor:
        """Divide by the root mean square over the last axis."""

        def make() -> Any:
            wide = x.array.astype(jnp.float32)
            root = lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + EPSILON)
            return (wide * root).astype(x.array.dtype) * scale.array

        return Tensor(make)

    def attend(self, parts: Sequence[Tensor], shape: tuple[int, int, int, int, int]) -> Tensor:
        """Compute attention in which each token attends to itself and the tokens before it."""

        def make() -> Any:
            arrays = [jnp.swapaxes(x.array, 1, 2) for x in parts]
            scale = 1 / math.sqrt(shape[-1])
            y = jax.nn.dot_product_attention(*arrays, is_causal=True, scale=scale)
            return jnp.swapaxes(y, 1, 2)

        return Tensor(make)
