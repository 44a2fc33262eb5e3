"""Networks of a few operations, whose analyses are known on paper."""

from __future__ import annotations

from typing import Any

import numpy as np

import nnef_jax
from tests.helpers import model_of

_HEADER = "version 1.0;\nextension KHR_enable_operator_expressions;\n"


def linear(w: Any, batch: int = 2) -> nnef_jax.Model:
    """y = x w^T, with w of [outputs, inputs]."""
    rows, columns = w.shape
    text = f"""{_HEADER} graph net(x) -> (y) {{
        x = external<scalar>(shape = [{batch},{columns}]);
        w = variable<scalar>(shape = [{rows},{columns}], label = 'w');
        y = matmul(x, w, transposeB = true); }}"""
    return model_of(text, data={"w": np.float32(w)})


def two_layers(
    w1: Any, w2: Any, activation: str = "relu(h1)", batch: int = 2, **options: Any
) -> nnef_jax.Model:
    """h1 = x w1, r1 = relu(h1), h2 = r1 w2, y = h2 + 1; weights are of [inputs, outputs]."""
    text = f"""{_HEADER} graph net(x) -> (y) {{
        x = external<scalar>(shape = [{batch},{w1.shape[0]}]);
        w1 = variable<scalar>(shape = {list(w1.shape)}, label = 'first/w');
        w2 = variable<scalar>(shape = {list(w2.shape)}, label = 'second/w');
        h1 = matmul(x, w1);
        r1 = {activation};
        h2 = matmul(r1, w2);
        y = h2 + 1.0; }}"""
    data = {"first/w": np.float32(w1), "second/w": np.float32(w2)}
    return model_of(text, data=data, **options)


def random(*shape: int, seed: int = 0) -> Any:
    """Normally distributed numbers of 32 bits."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)
