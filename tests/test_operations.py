"""Every row of the operation table: values, expansion, jit, vmap, gradients, bfloat16."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from lowering.ops import nnef
from nnef_jax.text.library import standard
from tests.helpers import model_of
from tests.op_cases import ALL_CASES, OpCase, document, evaluate, expected, inputs

cases = pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.name)

COMPOUND = [
    c for c in ALL_CASES if standard()[c.operation].body is not None and c.operation in nnef
]
DIFFERENTIABLE = [c for c in ALL_CASES if not c.not_differentiable]


@cache
def model(case: OpCase) -> nnef_jax.Model:
    return model_of(document(case))


def results(outputs: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in (outputs if isinstance(outputs, tuple) else (outputs,))]


def assert_close(actual: Any, wanted: list[np.ndarray], tolerance: float) -> None:
    outputs = results(actual)
    assert len(outputs) == len(wanted)
    for got, want in zip(outputs, wanted, strict=True):
        assert got.shape == want.shape
        assert got.dtype.kind == want.dtype.kind
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(got, want)


def test_every_operation_has_a_case() -> None:
    in_documents = {"external", "variable", "constant", "update"}
    assert set(standard()) - in_documents == {case.operation for case in ALL_CASES} - in_documents


@cases
def test_value(case: OpCase) -> None:
    got = model(case)(*inputs(case))
    assert_close(got, expected(case), case.tolerance)
    for output, spec in zip(results(got), model(case).outputs, strict=True):
        assert output.shape == spec.shape and output.dtype == spec.dtype


@pytest.mark.parametrize("case", COMPOUND, ids=lambda case: case.name)
def test_rule_equals_expansion(case: OpCase) -> None:
    expanded = model_of(document(case), expand="all")
    assert [op.kind for op in expanded.graph.operations] != [case.operation]
    outputs = expanded(*inputs(case))
    if not all(np.isfinite(y).all() for y in results(outputs)):
        pytest.skip("the definition overflows in 32 bits, the rule does not")
    assert_close(outputs, results(model(case)(*inputs(case))), case.tolerance)


# Eager execution compiles each primitive by itself, so one row for each operation has to do.
FIRST = list({case.operation: case for case in reversed(ALL_CASES)}.values())


@pytest.mark.parametrize("case", FIRST, ids=lambda case: case.name)
def test_jit_equals_eager(case: OpCase) -> None:
    eager = model(case).apply(model(case).params, *inputs(case))
    assert_close(eager, results(model(case)(*inputs(case))), case.tolerance)


@cases
def test_vmap_equals_loop(case: OpCase) -> None:
    arrays = inputs(case)
    if not arrays:
        pytest.skip("takes no tensors")
    other = [np.roll(x, 1, axis=-1) if x.ndim else x for x in arrays]
    apply = model(case).apply
    stacked = [np.stack(pair) for pair in zip(arrays, other, strict=True)]
    together = jax.jit(jax.vmap(lambda *xs: apply({}, *xs)))(*stacked)
    alone = [results(model(case)(*xs)) for xs in (arrays, other)]
    assert_close(together, [np.stack(pair) for pair in zip(*alone, strict=True)], case.tolerance)


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=lambda case: case.name)
def test_gradient(case: OpCase) -> None:
    """Forward and reverse mode against central differences of the reference in 64 bits."""
    random = np.random.default_rng(7)
    arrays = inputs(case)
    real = [i for i, x in enumerate(arrays) if x.dtype.kind == "f"]
    directions = [random.uniform(-1, 1, arrays[i].shape) for i in real]
    weights = [random.uniform(-1, 1, y.shape) for y in expected(case)]
    kept = [k for k, y in enumerate(expected(case)) if y.dtype.kind == "f"]

    def moved(step: float) -> float:
        xs = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in arrays]
        for i, direction in zip(real, directions, strict=True):
            xs[i] = xs[i] + step * direction
        ys = evaluate(case, xs)
        return float(sum((ys[k] * weights[k]).sum() for k in kept))

    step = 1e-5
    wanted = (moved(step) - moved(-step)) / (2 * step)

    def weighted(*xs: Any) -> jax.Array:
        full = list(arrays)
        for i, x in zip(real, xs, strict=True):
            full[i] = x
        ys = model(case).apply({}, *full)
        ys = ys if isinstance(ys, tuple) else (ys,)
        return sum(jnp.sum(ys[k] * weights[k].astype(np.float32)) for k in kept)  # type: ignore

    @jax.jit
    def derivatives(primals: Any, tangents: Any) -> tuple[Any, Any]:
        return (
            jax.jvp(weighted, primals, tangents)[1],
            jax.grad(weighted, argnums=tuple(range(len(real))))(*primals),
        )

    tangents = tuple(d.astype(np.float32) for d in directions)
    forward, gradients = derivatives(tuple(arrays[i] for i in real), tangents)
    products = [np.asarray(g, np.float64) * t for g, t in zip(gradients, tangents, strict=True)]
    tolerance = 20 * case.tolerance * max(1.0, sum(np.abs(p).sum() for p in products))
    assert abs(float(forward) - wanted) <= tolerance
    assert abs(sum(p.sum() for p in products) - wanted) <= tolerance


@pytest.mark.parametrize(
    "case", [c for c in DIFFERENTIABLE if c.operation != "pow"], ids=lambda case: case.name
)
def test_bfloat16(case: OpCase) -> None:
    """Eight bits of precision: close to the exact result on the inputs as bfloat16 has them."""
    rounded = [
        x.astype(jnp.bfloat16).astype(np.float32) if x.dtype.kind == "f" else x
        for x in inputs(case)
    ]
    got = model_of(document(case), dtype="bfloat16")(*rounded)
    for output, want in zip(
        got if isinstance(got, tuple) else (got,), evaluate(case, rounded), strict=True
    ):
        if want.dtype.kind == "f":
            assert output.dtype == jnp.bfloat16
            scale = max(1.0, float(np.abs(want).max()))
            assert np.abs(np.asarray(output, np.float64) - want).max() <= 0.05 * scale
