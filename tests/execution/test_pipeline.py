"""Each pass can be left out, and then something else is traced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from lowering.contexts import disabled, is_enabled
from lowering.cpu import xla_options as options
from lowering.cpu.xla_options import compiler_options
from lowering.kernels.levels import noted
from lowering.machine import DEFAULT, using
from lowering.pipeline import name_of
from lowering.targets.cpu import CPU, KERNELS
from tests.machines import with_units
from tests.programs import optimised, rewritten, split_of

Shapes = tuple[tuple[int, ...], ...]


def conv(x: Any, filter: Any, padding: int = 0, **options: Any) -> Any:
    options = {"window_strides": (1, 1), "padding": [(padding, padding)] * 2} | options
    return lax.conv_general_dilated(x, filter, **options)


def scanned(p: Any, x: Any) -> Any:
    return lax.scan(lambda y, z: (jnp.tanh(y @ jnp.exp(p[0])), z), x[0], x[1])


def parted(p: Any, x: Any) -> Any:
    return lax.scan(lambda y, z: (y * z[:4] + z[4:], y), x[0], x[1])


def attending(p: Any, x: Any) -> Any:
    return jax.nn.softmax(x[0] @ x[0].mT) @ x[0]


def hiding(p: Any, x: Any) -> Any:
    query, keys, mask = x
    return jax.nn.softmax(query @ keys.mT + mask) @ keys


def pooled(p: Any, x: Any) -> Any:
    return lax.reduce_window(x[0], -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def updated(p: Any, x: Any) -> Any:
    y = lax.dynamic_update_slice(x[0], x[1], (1, 0))
    return y, y.sum()


def bytes_of(x: Any) -> Any:
    return noted(x, jnp.round(x), 1.0, 0.0, -128, 127)


# A function of parameters and inputs, and their shapes.
CASES: dict[str, tuple[Callable[[Any, Any], Any], Shapes, Shapes]] = {
    "chunks": (lambda p, x: jnp.sin(x[0]) @ p[0], ((8, 8),), ((8, 1 << 18, 8),)),
    "stages": (lambda p, x: x[0].sum((1, 2)) @ p[0], ((8, 8),), ((8, 512, 512, 8),)),
    "layouts": (lambda p, x: jnp.sin(x[0].T), (), ((4, 5),)),
    "folding": (
        lambda p, x: conv(x[0], p[0]) * p[1],
        ((8, 8, 1, 1), (1, 8, 1, 1)),
        ((1, 8, 4, 4),),
    ),
    "siblings": (lambda p, x: (x[0] @ p[0]) * (x[0] @ p[1]), ((8, 8), (8, 8)), ((4, 8),)),
    "shared_updates": (updated, (), ((4, 8), (1, 8))),
    "attention": (attending, (), ((2, 64, 8),)),
    "hidden": (hiding, (), ((2, 2048, 64), (2, 2048, 64), (1, 2048, 2048))),
    "scan": (scanned, ((8, 8),), ((4, 8), (3,))),
    "items": (parted, (), ((4,), (3, 8))),
    "turned": (lambda p, x: x[0] @ p[0], ((512, 256),), ((32, 512),)),
    "pairs": (lambda p, x: x[0] @ p[0], ((256, 1024),), ((1, 256),)),
    "pointwise": (lambda p, x: conv(x[0], p[0]), ((8, 8, 1, 1),), ((1, 8, 4, 4),)),
    "bordered": (
        lambda p, x: conv(x[0], p[0], 1, window_strides=(2, 2)),
        ((8, 8, 3, 3),),
        ((1, 8, 2, 2),),
    ),
    "patches": (lambda p, x: conv(x[0], p[0]), ((16, 4, 3, 3),), ((1, 4, 3, 3),)),
    "depthwise": (
        lambda p, x: conv(x[0], p[0], feature_group_count=8),
        ((8, 1, 3, 3),),
        ((1, 8, 4, 4),),
    ),
    "grouped": (
        lambda p, x: conv(x[0], p[0], feature_group_count=2),
        ((8, 4, 3, 3),),
        ((1, 8, 4, 4),),
    ),
    "rows": (
        lambda p, x: jnp.sin(conv(x[0], p[0], feature_group_count=8)),
        ((8, 1, 3, 3),),
        ((1, 8, 48, 48),),
    ),
    "tiled": (
        lambda p, x: conv(x[0], p[0], 1, lhs_dilation=(2, 2)),
        ((8, 8, 2, 2),),
        ((1, 8, 4, 4),),
    ),
    "widening": (
        lambda p, x: lax.dot(x[0], p[0], precision="BF16_BF16_F32"),
        ((32, 8),),
        ((4, 32),),
    ),
    "narrow": (
        lambda p, x: conv(
            *(y.astype(jnp.bfloat16) for y in (x[0], p[0])), preferred_element_type=jnp.float32
        ),
        ((16, 16, 3, 3),),
        ((1, 16, 8, 8),),
    ),
    "integers": (lambda p, x: bytes_of(x[0]) @ bytes_of(p[0]), ((32, 8),), ((4, 32),)),
    "winograd": (lambda p, x: conv(x[0], p[0]), ((96, 96, 3, 3),), ((1, 96, 32, 32),)),
    "summed": (lambda p, x: conv(x[0], p[0]), ((8, 3, 3, 3),), ((1, 3, 32, 32),)),
    "stacked": (lambda p, x: conv(x[0], p[0]), ((8, 24, 3, 3),), ((1, 24, 8, 8),)),
    "sliced": (
        lambda p, x: lax.conv(x[0], p[0], (1, 1, 1), "SAME"),
        ((8, 4, 3, 3, 3),),
        ((1, 4, 8, 8, 8),),
    ),
    "lanes": (lambda p, x: x[0].sum(-1), (), ((1024, 96),)),
    "gates": (lambda p, x: x[0] * jax.nn.sigmoid(x[0]), (), ((4, 8),)),
    "pooling": (pooled, (), ((1, 1, 4, 4),)),
    "gradients": (lambda p, x: conv(x[0], p[0]), ((8, 8, 1, 1),), ((1, 8, 4, 4),)),
    "sums": (
        lambda p, x: lax.scan(lambda y, z: (y + z.T @ z, z), p[0], x[0])[0],
        ((8, 8),),
        ((3, 4, 8),),
    ),
    "in_memory": (lambda p, x: conv(x[0], p[0]), ((8, 3, 3, 3),), ((1, 3, 8, 8),)),
}


def traced(name: str) -> str:
    function, *shapes = CASES[name]
    params, inputs = ([jax.ShapeDtypeStruct(s, jnp.float32) for s in group] for group in shapes)
    parts = split_of(function, params, inputs)

    def backward(params: Any, inputs: Any) -> Any:
        def total(params: Any) -> Any:
            return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(function(params, inputs)))

        closed = jax.make_jaxpr(jax.grad(total))(params)
        return rewritten(closed, params, "backward", alone=True)

    return "".join(
        (
            str(jax.make_jaxpr(optimised(function, alone=True))(params, inputs)),
            str(jax.make_jaxpr(optimised(function, prepares=False))(params, inputs)),
            str(jax.make_jaxpr(parts.call)(jax.eval_shape(parts.prepare, params), inputs)),
            str(jax.make_jaxpr(backward)(params, inputs)),
        )
    )


@pytest.mark.parametrize("name", [name for name in CASES])
def test_a_pass_can_be_left_out(name: str) -> None:
    with using(replace(with_units(True), row_pairs=2 * DEFAULT.row)):
        whole = traced(name)
        with disabled(name):
            assert traced(name) != whole


def test_a_pass_is_left_out_meanwhile_alone() -> None:
    with disabled("folding"):
        assert not is_enabled("folding")
        assert is_enabled("layouts")
    assert is_enabled("folding")


def test_each_has_a_case() -> None:
    named = {*map(name_of, CPU.passes), *KERNELS} - {"eigen", "inlining"}
    assert set(CASES) == named


def test_compiler_options_can_be_left_out() -> None:
    assert compiler_options(1 << 20)
    with disabled("eigen"):
        assert not compiler_options(1 << 20)


@pytest.mark.parametrize("gain", [2.0, 1.0, 0.5])
def test_vectors_of_512_bits_are_for_machines_that_do_not_lose(gain: float) -> None:
    with using(replace(DEFAULT, loop=1e9, wide_loop=gain * 1e9)):
        chosen = [compiler_options(1 << 20, in_bytes=x) for x in (True, False)]
        chosen.append(compiler_options(1 << 10))
        assert all((x.get("xla_cpu_prefer_vector_width") == "512") == (gain >= 1) for x in chosen)
        assert all(x in options.candidates() for x in chosen)
