"""Modules of torch whose shapes depend on values, by both exporters, against torch."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax

pytest.importorskip("onnx")

from tests.onnx.count_modules import CASES, FOLDER, RESULTS, draw, weights

FILES = sorted(path.stem for path in FOLDER.glob("*.onnx"))
# torch's old exporter adds at repeated indices only once; onnxruntime agrees with the file.
DIFFERENT_FILES = {"messages-script"}
QUICK = {"mask_values-dynamo", "nested-script", "softmax-dynamo", "tail-dynamo"}


@cache
def expected() -> dict[str, np.ndarray]:
    """Return the results of torch, by MODULE.CASE.OUTPUT and MODULE.CASE.gradient.INPUT."""
    with np.load(RESULTS) as arrays:
        return dict(arrays)


def cases_of(stem: str) -> list[int]:
    """Return the numbers of the draws for which torch and the file compute the same."""
    name = stem.rsplit("-", 1)[0]
    cases = [i for i in range(CASES) if f"{name}.{i}.0" in expected()]
    return [i for i in cases if not (stem in DIFFERENT_FILES and i == 0)]


def check(stem: str, case: int, outputs: Any) -> None:
    """Compare the trimmed outputs of a call with those of torch."""
    name = stem.rsplit("-", 1)[0]
    for i, output in enumerate(outputs if isinstance(outputs, tuple) else (outputs,)):
        array = expected()[f"{name}.{case}.{i}"]
        assert np.shape(output) == array.shape
        np.testing.assert_allclose(output, array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "stem", [pytest.param(x, marks=() if x in QUICK else pytest.mark.slow) for x in FILES]
)
def test_modules_whose_shapes_depend_on_values(stem: str) -> None:
    """Each draw by itself, a batch of all draws by `jax.jit` of `jax.vmap`, and gradients."""
    model = nnef_jax.load(FOLDER / f"{stem}.onnx")
    cases = cases_of(stem)
    inputs = [[draw(i)[x.name] for x in model.inputs] for i in cases]
    for case, arrays in zip(cases, inputs, strict=True):
        results = model(*arrays, capture=model.lengths)
        check(stem, case, nnef_jax.trim(*results))
        check_gradients(model, stem, case, arrays)
    run = jax.jit(jax.vmap(lambda *x: model.apply(model.params, *x, capture=model.lengths)))
    rows, lengths = run(*map(np.stack, zip(*inputs, strict=True)))
    batch: Any = [jax.tree.map(lambda x, i=i: x[i], rows) for i in range(len(cases))]
    if lengths:
        batch = nnef_jax.trim(rows, lengths)
    for case, row in zip(cases, batch, strict=True):
        check(stem, case, row)


def check_gradients(model: Any, stem: str, case: int, arrays: Any) -> None:
    """Compare the gradients of the weighted sum of the outputs with those of torch."""
    prefix = f"{stem.rsplit('-', 1)[0]}.{case}."
    numbers = [i for i, x in enumerate(model.inputs) if f"{prefix}gradient.{x.name}" in expected()]
    if not numbers:
        return

    def total(*arrays: Any) -> Any:
        outputs = model.apply(model.params, *arrays)
        sums: list[Any] = []
        for i, y in enumerate(outputs if isinstance(outputs, tuple) else (outputs,)):
            shape = expected()[f"{prefix}{i}"].shape
            items = y[tuple(map(slice, shape))]
            sums.append((items * weights(shape)).sum())
        return sum(sums, jnp.zeros(()))

    gradients = jax.grad(total, numbers)(*map(jnp.asarray, arrays))
    for i, gradient in zip(numbers, gradients, strict=True):
        array = expected()[f"{prefix}gradient.{model.inputs[i].name}"]
        np.testing.assert_allclose(gradient, array, rtol=1e-3, atol=1e-4)
