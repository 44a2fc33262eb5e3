"""Describes a decoding step of a language model like GPT-2, with a cache of keys and values."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.builders.jax_builder import JaxBuilder, Tensor
from benchmarks.builders.nnef_builder import NnefBuilder
from benchmarks.networks.transformers import feed_forward

WIDTH, HEADS, PLACES, LETTERS = 768, 12, 1024, 50257
SIZE = WIDTH // HEADS


def network(b: Any, layers: int) -> Any:
    """Describe the model for a builder that also has `read`, `attend` and `logits`."""
    tokens = b.parameter("tokens", b.normal(LETTERS, WIDTH, deviation=0.02))
    places = b.parameter("places", b.normal(PLACES, WIDTH, deviation=0.02))
    x = b.add(b.read(tokens, "token"), b.read(places, "place"))
    for layer in range(layers):
        name = f"layer{layer}"
        y = b.layer_norm_layer(f"{name}.norm1", x, WIDTH)
        y = b.dense_layer(f"{name}.qkv", y, WIDTH, 3 * WIDTH)
        parts = [b.slice(y, 2, i * WIDTH, (i + 1) * WIDTH) for i in range(3)]
        q, k, v = (b.transpose(b.reshape(p, (1, 1, HEADS, SIZE)), (0, 2, 1, 3)) for p in parts)
        y = b.reshape(b.transpose(b.attend(name, q, k, v), (0, 2, 1, 3)), (1, 1, WIDTH))
        x = b.add(x, b.dense_layer(f"{name}.output", y, WIDTH, WIDTH))
        y = b.layer_norm_layer(f"{name}.norm2", x, WIDTH)
        x = b.add(x, feed_forward(b, name, y, WIDTH))
    return b.logits(b.layer_norm_layer("norm", x, WIDTH), tokens)


class GptNnefBuilder(NnefBuilder):
    """Builds the NNEF archive, with keys and values as states of 1024 positions.

    `states` maps the name of each input to the output that is its next value.
    """

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[str, str] = {}

    def read(self, table: str, name: str) -> str:
        """Look up the row of a table whose index is an input."""
        self._need("tract_core")
        self.inputs[name] = (1, 1)
        self._ranks[name] = 2
        self._statements.append(f"{name} = external<integer>(shape = [1, 1])")
        return self._add(f"tract_core_gather({table}, {name}, axis = 0)", 3)

    def attend(self, name: str, q: str, k: str, v: str) -> str:
        """Write the token's key and value to its position, and attend to all positions up to it."""
        self._need("tract_transformers")
        if name == "layer0":
            self._shared()
        joined = [self._kept(f"{name}.{kind}", x) for kind, x in (("keys", k), ("values", v))]
        call = f"tract_transformers_sdpa({q}, {', '.join(joined)}, seen, datum_type = 'f32', "
        return self._same(q, call + "acc_datum_type = 'f32', is_causal = false)")

    def logits(self, x: str, tokens: str) -> str:
        """Return the logit of each token as the next token."""
        return self._add(f"matmul({x}, unsqueeze({tokens}, axes = [0]), transposeB = true)", 3)

    def _shared(self) -> None:
        self.parameter("range", np.arange(PLACES, dtype=np.float32))
        heads = ", ".join(f"{i}.0" for i in range(HEADS))
        self._statements += [
            "seen = le(unsqueeze(range, axes = [0]), tract_core_cast(place, to = 'f32'))",
            f"row = tile(unsqueeze(place, axes = [0]), repeats = [{HEADS}, 1, 1])",
            f"heads = constant<scalar>(shape = [{HEADS}, 1, 1], value = [{heads}])",
            "head = tract_core_cast(heads, to = 'i64')",
            "at = concat([head, tract_core_cast(row, to = 'i64')], axis = 2)",
        ]

    def _kept(self, label: str, x: str) -> str:
        past = self.input(label.replace(".", "_"), HEADS, PLACES, SIZE)
        kept = self._add(f"tract_core_scatter_nd({past}, at, squeeze({x}, axes = [0]))", 3)
        self.states[past] = kept
        return self._add(f"unsqueeze({kept}, axes = [0])", 4)


class GptJaxBuilder(JaxBuilder):
    """Builds the function in plain jax, which updates the caches and collects them in `caches`.

    A cache is an input of the shape (1, heads, positions, size). Its name is the layer's name with
    ".keys" or ".values".
    """

    def __init__(self, dtype: str, parameters: Any = None, inputs: Any = None) -> None:
        super().__init__(dtype, parameters, inputs)
        self.caches: dict[str, Any] = {}

    def read(self, table: Tensor, name: str) -> Tensor:
        """Look up the row of a table whose index is an input."""
        return Tensor(lambda: table.array[self.input_array(name, (1, 1), "int32")])

    def attend(self, name: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write the token's key and value to its position, and attend to all positions up to it."""

        def make() -> Any:
            place = self.input_array("place", (1, 1), "int32")[0, 0]
            parts: list[Any] = []
            for kind, x in (("keys", k), ("values", v)):
                label = f"{name}.{kind}"
                cache = self.input_array(label, (1, HEADS, PLACES, SIZE), self.dtype)
                cache = lax.dynamic_update_slice(cache, x.array, (0, 0, place, 0))
                self.caches[label] = cache
                parts.append(jnp.swapaxes(cache, 1, 2))
            seen = (jnp.arange(PLACES) <= place)[None, None, None]
            query = jnp.swapaxes(q.array, 1, 2)
            return jnp.swapaxes(jax.nn.dot_product_attention(query, *parts, mask=seen), 1, 2)

        return Tensor(make)

    def logits(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Return the logit of each token as the next token."""
        return Tensor(lambda: x.array @ tokens.array.T)
