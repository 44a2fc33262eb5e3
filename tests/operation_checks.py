"""What the tests of operation tables check of each row, whichever dialect its document is in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

import nnef_jax
from tests.op_cases.case import OpCase

Case = TypeVar("Case", bound=OpCase)
Evaluate = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


def results(outputs: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in (outputs if isinstance(outputs, tuple) else (outputs,))]


def assert_close(actual: Any, wanted: Sequence[np.ndarray], tolerance: float) -> None:
    outputs = results(actual)
    assert len(outputs) == len(wanted)
    for got, want in zip(outputs, wanted, strict=True):
        assert got.shape == want.shape
        assert got.dtype.kind == want.dtype.kind
        if want.dtype.kind in "fc":
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(got, want)


def assert_vmap_equals_loop(
    model: nnef_jax.Model, arrays: Sequence[np.ndarray], tolerance: float
) -> None:
    other = [np.roll(x, 1, axis=-1) if x.ndim else x for x in arrays]
    stacked = [np.stack(pair) for pair in zip(arrays, other, strict=True)]
    together = jax.jit(jax.vmap(lambda *xs: model.apply({}, *xs)))(*stacked)
    alone = [results(model(*xs)) for xs in (arrays, other)]
    assert_close(together, [np.stack(pair) for pair in zip(*alone, strict=True)], tolerance)


def assert_gradient(
    model: nnef_jax.Model, arrays: Sequence[np.ndarray], evaluate: Evaluate, tolerance: float
) -> None:
    """Forward and reverse mode against central differences of the reference in 64 bits."""
    random = np.random.default_rng(7)
    real = [i for i, x in enumerate(arrays) if x.dtype.kind == "f"]
    directions = [random.uniform(-1, 1, arrays[i].shape) for i in real]
    expected = evaluate([wide(x) for x in arrays])
    weights = [random.uniform(-1, 1, y.shape) for y in expected]
    kept = [k for k, y in enumerate(expected) if y.dtype.kind == "f"]

    def moved(step: float) -> float:
        xs = [wide(x) for x in arrays]
        for i, direction in zip(real, directions, strict=True):
            xs[i] = xs[i] + step * direction
        ys = evaluate(xs)
        return float(sum((ys[k] * weights[k]).sum() for k in kept))

    step = 1e-5
    wanted = (moved(step) - moved(-step)) / (2 * step)

    def weighted(*xs: Any) -> jax.Array:
        full = list(arrays)
        for i, x in zip(real, xs, strict=True):
            full[i] = x
        ys = model.apply({}, *full)
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
    allowed = 20 * tolerance * max(1.0, sum(np.abs(p).sum() for p in products))
    assert abs(float(forward) - wanted) <= allowed
    assert abs(sum(p.sum() for p in products) - wanted) <= allowed


def wide(x: np.ndarray) -> np.ndarray:
    """The array in 64 bits, as the reference takes it."""
    return x if x.dtype == bool else x.astype(f"{x.dtype.kind}8")


def few(cases: Iterable[Case], most: int = 2) -> list[Case]:
    """The first rows of each operation, for properties that hold or fail for most of its rows."""
    seen = Counter[str]()
    found: list[Case] = []
    for case in cases:
        seen[case.operation] += 1
        if seen[case.operation] <= most:
            found.append(case)
    return found
