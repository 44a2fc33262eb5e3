"""Products of 16-bit operands run, and sum in 32 bits, in every layout that they may come to have.

XLA's CPU backend refuses some layouts of bfloat16 operands, when the product runs. Which layout a
product has depends on the rule, on transpositions around it, on `jax.vmap` and on `jax.grad`: all
are combined here. Items are small integers, for which 16 bits are exact: results equal those of
float32.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from tests.helpers import model_of
from tests.tract_text import graph

Shape = tuple[int, ...]

# A call with the shapes of its operands; products of less than 8 columns XLA computes itself.
_STANDARD: dict[str, tuple[str, Shape, Shape]] = {
    "matmul": ("matmul(a, b)", (4, 5), (5, 12)),
    "one_for_all": ("matmul(a, b, transposeA = true)", (1, 5, 4), (3, 5, 6)),
    "both": ("matmul(a, b, transposeA = true, transposeB = true)", (5, 4), (12, 5)),
    "transposed_before": ("matmul(transpose(a, axes = [1,0]), b)", (5, 4), (5, 12)),
    "linear": ("linear(a, b)", (4, 5), (12, 5)),
}
_TRACT: dict[str, tuple[str, Shape, Shape]] = {
    "einsum": (
        'tract_core_einsum([a, b], expr = "km,bkn->bmn", acc = "f32", output = "")',
        (5, 4),
        (3, 5, 6),
    ),
    "einsum_turned": (
        'tract_core_einsum([a, b], expr = "mbk,kn->nmb", acc = "f32", output = "")',
        (2, 3, 5),
        (5, 9),
    ),
    "legacy": ("tract_core_matmul(a, b, axes = [1,0,0,1,0,1])", (5, 4), (5, 12)),
    "conv_1x1": ("conv(a, b, 0.0)", (1, 3, 4, 4), (9, 3, 1, 1)),
    "conv_planes": ("conv(a, b, 0.0, groups = 0)", (1, 3, 4, 4), (3, 1, 3, 3)),
}


def load(name: str, **options: Any) -> nnef_jax.Model:
    """The model of one product; the filter of `linear` is a parameter."""
    if name in _TRACT:
        call, a, b = _TRACT[name]
        return model_of(graph(f"y = {call};", a=f"{list(a)} f32", b=f"{list(b)} f32"), **options)
    call, a, b = _STANDARD[name]
    stored = name == "linear"
    inputs, kind = ("a", "variable(label = 'b', ") if stored else ("a, b", "external(")
    text = (
        f"version 1.0;\ngraph g({inputs}) -> (y)\n{{\n    a = external(shape = {list(a)});\n"
        f"    b = {kind}shape = {list(b)});\n    y = {call};\n}}\n"
    )
    return model_of(text, data={"b": np.zeros(b, np.float32)} if stored else {}, **options)


Call = tuple[Any, ...]  # a function, and its arguments


class Forms:
    """The product of two operands, batches of it and their gradients."""

    def __init__(self, name: str, dtype: str, **options: Any) -> None:
        model = load(name, dtype=dtype, **options)
        shapes = (_STANDARD | _TRACT)[name][1:]
        rng = np.random.default_rng(0)
        self.operands = tuple(
            rng.integers(-2, 3, shape).astype(jnp.dtype(dtype)) for shape in shapes
        )

        def run(a: Any, b: Any) -> Any:
            return model.apply({"b": b}, a) if model.params else model.apply({}, a, b)

        def loss(a: Any, b: Any) -> Any:
            return jnp.sum(run(a, b).astype(jnp.float32))

        self.run, self.gradient = run, jax.grad(loss, argnums=(0, 1))

    def single(self) -> dict[str, Call]:
        """The product and its gradients."""
        return {"product": (self.run, *self.operands), "slopes": (self.gradient, *self.operands)}

    def batched(self) -> dict[str, Call]:
        """The same of batches, whose items are the operands, and twice these."""
        a, b = self.operands
        first, last = np.stack([b, b + b]), np.stack([b, b + b], axis=-1)

        def turned(a: Any, b: Any) -> Any:
            return self.run(jnp.swapaxes(a, 0, 1), b)

        return {
            "first": (jax.vmap(self.run, (None, 0)), a, first),
            "turned": (jax.vmap(turned, (None, 0)), np.swapaxes(a, 0, 1), first),
            "both": (jax.vmap(self.run, (0, -1)), np.stack([a, a]), last),
        }


def computed(calls: dict[Any, Call]) -> dict[Any, Any]:
    """Compute calls that share no operand by one program: each by itself where that fails."""

    def together(operands: list[tuple[Any, ...]]) -> list[Any]:
        functions = (function for function, *_ in calls.values())
        return [f(*args) for f, args in zip(functions, operands, strict=True)]

    try:
        found = jax.block_until_ready(jax.jit(together)([x for _, *x in calls.values()]))
    except Exception as error:
        for name, (function, *args) in calls.items():
            try:
                jax.block_until_ready(jax.jit(function)(*args))
            except Exception as alone:
                raise AssertionError(f"{name} by itself: {alone}") from error
        raise
    return dict(zip(calls, found, strict=True))


# Rows that lower to the products of others.
_SLOW = {
    *(("bfloat16", name) for name in ("transposed_before", "einsum_turned", "legacy")),
    ("float16", "both"),
}
_ROWS = [*product(["bfloat16"], [*_STANDARD, *_TRACT]), *product(["float16"], ["both", "linear"])]


@pytest.mark.parametrize(
    ("dtype", "name"),
    [pytest.param(*row, marks=[pytest.mark.slow] if row in _SLOW else []) for row in _ROWS],
)
def test_any_layout(dtype: str, name: str) -> None:
    wanted = computed(Forms(name, "float32", optimize=False).single())
    right = jax.tree.map(np.asarray, wanted)
    twice = np.stack([right["product"], 2 * right["product"]])
    calls: dict[Any, Call] = {}
    for optimize in (True, False):
        forms = Forms(name, dtype, optimize=optimize)
        calls |= {(optimize, form): x for form, x in (forms.single() | forms.batched()).items()}
    for (optimize, form), found in computed(calls).items():
        wanted = jax.tree.leaves(right.get(form, twice))
        for x, y in zip(jax.tree.leaves(found), wanted, strict=True):
            assert form not in right or x.dtype == dtype
            where = f"{optimize=}, {form}"
            np.testing.assert_array_equal(np.asarray(x, np.float32), y, where)
