"""What other platforms than CPUs get: the same numbers, without steps that undo each other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import nnef_jax
from lowering import jaxpr_evaluation, jaxprs
from lowering.passes import detours
from lowering.program import Program
from lowering.targets.portable import PLAIN
from tests.helpers import model_of

RNG = np.random.default_rng(0)


def array(*shape: int, dtype: Any = np.float32) -> Any:
    return jax.device_put(np.asarray(RNG.normal(size=shape), dtype))


def scanned(x: Any) -> Any:
    def turn(state: Any, item: Any) -> tuple[Any, Any]:
        state = jnp.tanh(state.reshape(1, 4)[None].reshape(4) @ item.T.reshape(4, 4))
        return state, state.T.T

    return lax.scan(turn, jnp.ones(4), x)


def called_twice(x: Any) -> Any:
    again = jax.jit(lambda x: x.reshape(2, 8).reshape(16) * 2)
    return again(x) + again(x + 1)


def converted_between(x: Any) -> Any:
    return x.T.astype(jnp.bfloat16).T, x.T.astype(jnp.bfloat16).reshape(2, 2, 3).T


def platforms(x: Any) -> Any:
    found = lax.platform_dependent(x, cpu=lambda x: x, default=lambda x: x)
    others = lax.platform_dependent(x, tpu=lambda x: x - 1, default=lambda x: x)
    return found, others, lax.platform_dependent(x, cpu=lambda x: x - 1, tpu=lambda x: x - 1)


def products(x: Any, y: Any) -> Any:
    return [
        x @ y.swapaxes(1, 2),
        jnp.einsum("bij,bkj->kbi", x, y),
        lax.dot_general(x.transpose(2, 0, 1), y.transpose(2, 1, 0), (((0,), (0,)), ((1,), (2,)))),
        lax.dot_general(x.transpose(1, 0, 2), y, (((2,), (2,)), ((), ()))),  # in another order
        lax.dot_general(x.T, y.T, (((0, 2), (0, 2)), ((), ()))),
    ]


B = jnp.bfloat16
WIDENED = "bij,bkj->bik"
# Functions, arguments, and how often primitives are left in them.
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, int]]] = {
    "reshapes": (
        lambda x: jnp.sin(x[None, :, None].reshape(3, 4).reshape(2, 6)),
        (array(12),),
        {"reshape": 1, "sin": 1},
    ),
    "and back": (lambda x: x[None, ..., None].squeeze(0)[..., 0] + x, (array(2, 3),), {"add": 1}),
    "what is both": (
        lambda x: (x[None, None], x[None, None].reshape(12)),
        (array(3, 4),),
        {"broadcast_in_dim": 1, "reshape": 1},
    ),
    "sums of one": (
        lambda x: x[None].sum(0) + x.reshape(1, 3, 1, 4).sum((0, 2)),
        (array(3, 4),),
        {"add": 1},
    ),
    "a channel": (
        lambda x, y: x + y[None].reshape(1, 3, 1, 1),
        (array(2, 3, 4, 5), array(3)),
        {"reshape": 1, "add": 1},
    ),
    "rows of a vector": (
        lambda x, y: x + jnp.broadcast_to(y.reshape(1, 1, 3), (2, 4, 3)),
        (array(2, 4, 3), array(1, 3)),
        {"broadcast_in_dim": 1, "add": 1},
    ),
    "rows without a place": (
        lambda x, y: x + jnp.broadcast_to(y.reshape(3, 1, 1), (3, 4, 5)),
        (array(3, 4, 5), array(1, 3)),
        {"reshape": 1, "broadcast_in_dim": 1, "add": 1},
    ),
    "other axes": (
        lambda x: jnp.broadcast_to(x.reshape(3, 2, 1), (3, 2, 2)),
        (array(2, 3),),
        {"reshape": 1, "broadcast_in_dim": 1},
    ),
    "a permutation": (
        lambda x: lax.reshape(x, (6,), (1, 0)).reshape(2, 3),
        (array(2, 3),),
        {"reshape": 2, "transpose": 0},
    ),
    "empty": (lambda x: jnp.broadcast_to(x.reshape(1, 0), (5, 0)), (array(0),), {}),
    "one number": (lambda x: jnp.broadcast_to(x.reshape(1, 1), (2, 3)), (array(),), {}),
    "transposed twice": (lambda x: x.T.T + x.transpose(1, 0).T, (array(2, 3),), {"add": 1}),
    "converted between": (
        converted_between,
        (array(3, 4),),
        {"convert_element_type": 2, "transpose": 2, "reshape": 1},
    ),
    "widened": (
        lambda x: x + x.astype(jnp.float32).astype(jnp.float32).astype(B),
        (array(4, dtype=B),),
        {"add": 1},
    ),
    "rounded": (
        lambda x: x.astype(B).astype(jnp.float32),
        (array(4),),
        {"convert_element_type": 2},
    ),
    "products": (products, (array(2, 3, 4), array(2, 5, 4)), {"dot_general": 5, "transpose": 2}),
    "products of what is widened": (
        lambda x, y: jnp.einsum(WIDENED, x.astype(jnp.float32), y.astype(jnp.float32)),
        (array(2, 3, 4, dtype=B), array(2, 5, 4, dtype=B)),
        {"dot_general": 1},
    ),
    "products of what is not": (
        lambda x, y: jnp.einsum(WIDENED, x.astype(jnp.float32), y),
        (array(2, 3, 4, dtype=B), array(2, 5, 4)),
        {"dot_general": 1, "convert_element_type": 1},
    ),
    "a loop": (scanned, (array(3, 4, 4),), {"dot_general": 1, "tanh": 1, "scan": 1, "reshape": 0}),
    "a function": (called_twice, (array(16),), {"jit": 2, "mul": 2, "add": 2}),
    "platforms": (platforms, (array(3),), {"cond": 2, "platform_index": 2, "sub": 3}),
}  # fmt: skip


def names(closed: Any) -> Counter[str]:
    found = Counter(map(jaxprs.primitive, closed.jaxpr.eqns))
    for equation in closed.jaxpr.eqns:
        for function in jaxprs.function_params(equation):
            found += names(function)
    return found


@pytest.mark.parametrize("name", CASES)
def test_it_computes_the_same_in_fewer_steps(name: str) -> None:
    function, arguments, wanted = CASES[name]
    closed = jax.make_jaxpr(function)(*arguments)
    found = detours.run(Program(closed), PLAIN).closed
    left = names(found)
    for primitive, count in wanted.items():
        assert left[primitive] == count, left
    assert sum(left.values()) <= sum(names(closed).values())
    for x, y in zip(
        jaxpr_evaluation.as_function(closed)(*arguments),
        jaxpr_evaluation.as_function(found)(*arguments),
        strict=True,
    ):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(np.float64(x), np.float64(y), rtol=2e-6, atol=1e-6)


def test_what_has_an_effect_stays() -> None:
    def run(x: Any) -> Any:
        jax.debug.callback(lambda _: None, x[None].reshape(3))
        return x * 2

    assert (
        names(detours.run(Program(jax.make_jaxpr(run)(array(3))), PLAIN).closed)["debug_callback"]
        == 1
    )


def test_extents_may_be_open() -> None:
    def run(x: Any) -> Any:
        return jnp.sin(x[None].reshape(x.shape) + x[0][None, None].reshape(1, 4))

    extent = jax.export.symbolic_shape("b")[0]
    x = jax.ShapeDtypeStruct((extent, 4), np.float32)
    found = detours.run(Program(jax.make_jaxpr(run)(x)), PLAIN).closed
    assert found.out_avals[0].shape == (extent, 4)


CONVOLUTIONS = """
version 1.0;
graph net( x ) -> ( y )
{
    x = external(shape = [4, 8, 6, 6]);
    w = variable(shape = [8, 8, 3, 3], label = 'w');
    scale = variable(shape = [8], label = 'scale');
    mean = variable(shape = [8], label = 'mean');
    scales = unsqueeze(scale, axes = [0]);
    means = unsqueeze(mean, axes = [0]);
    c = conv(x, w, padding = [(1, 1), (1, 1)]);
    n = batch_normalization(c, means, 1.0, 0.0, scales, epsilon = 1e-3);
    r = relu(n);
    p = mean_reduce(r, axes = [2, 3]);
    flat = reshape(p, shape = [4, 8]);
    m = variable(shape = [5, 8], label = 'm');
    y = linear(flat, m);
}
"""
WEIGHTS = {
    "w": RNG.normal(size=(8, 8, 3, 3)).astype(np.float32),
    "scale": np.ones(8, np.float32),
    "mean": np.ones(8, np.float32),
    "m": RNG.normal(size=(5, 8)).astype(np.float32),
}
X = jax.ShapeDtypeStruct((4, 8, 6, 6), np.float32)


def text_for(function: Any, *arguments: Any, platform: str = "cuda") -> str:
    return jax.export.export(jax.jit(function), platforms=[platform])(*arguments).mlir_module()


def total(model: nnef_jax.Model, params: Any, x: Any) -> Any:
    return jnp.sum(model.apply(params, x).astype(jnp.float32))


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_a_network_is_read_as_it_would_be_written(platform: str) -> None:
    model = model_of(CONVOLUTIONS, data=WEIGHTS)
    text = text_for(model.apply, model.params, X, platform=platform)
    found = Counter(re.findall(r"stablehlo\.(\w+)", text))
    assert found["convolution"] == found["dot_general"] == 1 and not found["transpose"]
    # The two vectors beside a picture, the factor beside the filter, and the pool as rows.
    assert found["reshape"] == 4
    # What depends on parameters stands where it is read.
    assert text.index("stablehlo.convolution") < text.index("stablehlo.dot_general")
    gradient = text_for(jax.grad(partial(total, model)), model.params, X, platform=platform)
    found = Counter(re.findall(r"stablehlo\.(\w+)", gradient))
    # Of a filter and its input, of the factor and the term; of the rows, and of the total.
    assert found["convolution"] == 2 and found["reduce"] <= 6


def test_derivatives_of_16_bits_are_products_of_16_bits() -> None:
    model = model_of(CONVOLUTIONS, data=WEIGHTS, dtype="bfloat16")
    x = jax.ShapeDtypeStruct(X.shape, B)
    text = text_for(jax.grad(partial(total, model), (0, 1)), model.params, x)
    found = re.findall(r"stablehlo\.(?:convolution|dot_general).*: \((.*?)\) ->", text)
    assert len(found) == 5 and all("f32" not in operands.replace("bf16", "") for operands in found)
    assert "stablehlo.case" not in text
