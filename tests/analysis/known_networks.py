"""Networks of a few operations, whose derivatives are known."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import nnef_jax
from tests.helpers import model_of
from tests.tract_text import graph


def normal(*shape: int) -> Any:
    """Numbers that depend on the shape alone, in whatever order tests are collected."""
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def document(body: str, inputs: str = "x", outputs: str = "y") -> str:
    return f"version 1.0;\ngraph net({inputs}) -> ({outputs})\n{{\n{body}}}\n"


W, B = normal(3, 4), normal(1, 3)  # of y = x W' + b, 4 features to 3 classes
C = normal(1, 4)

_LINEAR = """
    w = variable<scalar>(shape = [3,4], label = 'w');
    b = variable<scalar>(shape = [1,3], label = 'b');
    y = linear(h, w, b);
"""


@cache
def linear() -> nnef_jax.Model:
    """W x + b."""
    body = "x = external<scalar>(shape = [0,4]);\nh = copy(x);\n" + _LINEAR
    return model_of(document(body), data={"w": W, "b": B})


@cache
def quadratic() -> nnef_jax.Model:
    """W (x * x) + b."""
    body = "x = external<scalar>(shape = [0,4]);\nh = sqr(x);\n" + _LINEAR
    return model_of(document(body), data={"w": W, "b": B})


@cache
def classifier() -> nnef_jax.Model:
    """softmax(logits) of logits = W tanh(x) + b, beside sum(x * c)."""
    body = "x = external<scalar>(shape = [0,4]);\nh = tanh(x);\n"
    body += _LINEAR.replace("y =", "logits =") + "y = softmax(logits);\n"
    body += "c = variable<scalar>(shape = [1,4], label = 'c');\n"
    body += "xc = mul(x, c);\nz = sum_reduce(xc, axes = [1]);\n"
    return model_of(document(body, outputs="y, z"), data={"w": W, "b": B, "c": C})


V = normal(3, 2)  # of 2 channels to 3 classes


@cache
def pooled() -> nnef_jax.Model:
    """The classes of pictures [batch,2,5,6]: V times the mean of each channel."""
    body = """
    x = external<scalar>(shape = [0,2,5,6]);
    maps = sub(x, 0.5);
    pool = mean_reduce(maps, axes = [2,3]);
    flat = squeeze(pool, axes = [2,3]);
    v = variable<scalar>(shape = [3,2], label = 'v');
    y = linear(flat, v, 0.0);
"""
    return model_of(document(body), data={"v": V})


TABLE = normal(5, 4)


@cache
def recurrent() -> nnef_jax.Model:
    """y = (x + s) * (x + s), which is the next s; s is 2 before the first cycle."""
    body = """
    x = external<scalar>(shape = [1,4]);
    s = variable<scalar>(shape = [1,4], label = 's');
    h = add(x, s);
    y = sqr(h);
    next = update(s, y);
"""
    return model_of(document(body), data={"s": np.full((1, 4), 2, np.float32)})


@cache
def looked_up() -> nnef_jax.Model:
    """y[i,k] = the sum over j of table[ids[i,j], k] squared; in tract's dialect."""
    body = """t = variable<scalar>(shape = [5,4], label = 't');
    e = tract_core_gather(t, ids, axis = 0);
    q = sqr(e);
    p = sum_reduce(q, axes = [1]);
    y = squeeze(p, axes = [1]);"""
    return model_of(graph(body, ids="[2,3] i64"), data={"t": TABLE})
