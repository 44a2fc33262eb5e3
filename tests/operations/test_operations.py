"""Every row of the operation table: values, expansion, jit, vmap, gradients, bfloat16."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from lowering.ops import rules
from nnef_jax.formats.syntax.standard import standard
from tests.helpers import model_of
from tests.op_cases import ALL_CASES, OpCase, document, evaluate, expected, inputs
from tests.operation_checks import (
    Gradients,
    Together,
    assert_captured,
    assert_close,
    assert_vmap_equals_loop,
    few,
    probed,
    results,
    vmap_and_loop,
)

cases = pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.name)

COMPOUND = [
    c for c in ALL_CASES if standard()[c.operation].body is not None and c.operation in rules
]
DIFFERENTIABLE = [c for c in ALL_CASES if not c.not_differentiable]


@cache
def model(case: OpCase) -> nnef_jax.Model:
    return model_of(document(case))


def test_every_operation_has_a_case() -> None:
    in_documents = {"external", "variable", "constant", "update"}
    assert set(standard()) - in_documents == {case.operation for case in ALL_CASES} - in_documents


FIRST = list({case.operation: case for case in reversed(ALL_CASES)}.values())


values = Together(ALL_CASES, lambda case: (partial(probed, model(case)), inputs(case)))


@cases
def test_value(case: OpCase) -> None:
    got = assert_captured(values(case))  # with edits that change nothing
    assert_close(got, expected(case), case.tolerance)
    for output, spec in zip(results(got), model(case).outputs, strict=True):
        assert output.shape == spec.shape and output.dtype == spec.dtype


@cache
def expanded(case: OpCase) -> nnef_jax.Model:
    return model_of(document(case), expand="all")


def rule_and_expansion(case: OpCase) -> tuple[Any, Any]:
    whole, parts = model(case), expanded(case)
    return lambda *xs: (whole.apply({}, *xs), parts.apply({}, *xs)), inputs(case)


expansions = Together(few(COMPOUND, 3), rule_and_expansion)


@pytest.mark.parametrize("case", few(COMPOUND, 3), ids=lambda case: case.name)
def test_rule_equals_expansion(case: OpCase) -> None:
    assert [op.kind for op in expanded(case).graph.operations] != [case.operation]
    by_rule, outputs = expansions(case)
    if not all(np.isfinite(y).all() for y in results(outputs)):
        pytest.skip("the definition overflows in 32 bits, the rule does not")
    assert_close(outputs, results(by_rule), case.tolerance)


@pytest.mark.parametrize("case", FIRST, ids=lambda case: case.name)
def test_call(case: OpCase) -> None:
    assert_close(model(case)(*inputs(case)), expected(case), case.tolerance)


# Without `jit` each primitive is compiled by itself, so one row for each operation has to do, and
# for every fourth operation where the tests are not to be slow.
EAGER = [
    pytest.param(case, id=case.name, marks=[pytest.mark.slow] if number % 4 else [])
    for number, case in enumerate(FIRST)
]


@pytest.mark.parametrize("case", EAGER)
def test_jit_equals_eager(case: OpCase) -> None:
    with jax.disable_jit():
        eager = model(case).apply(model(case).params, *inputs(case))
    assert_close(eager, results(model(case)(*inputs(case))), case.tolerance)


BATCHED = [case for case in few(ALL_CASES) if inputs(case)]
batches = Together(BATCHED, lambda case: vmap_and_loop(model(case), inputs(case)))


@pytest.mark.parametrize("case", BATCHED, ids=lambda case: case.name)
def test_vmap_equals_loop(case: OpCase) -> None:
    assert_vmap_equals_loop(batches(case), case.tolerance)


@cache
def gradients(case: OpCase) -> Gradients:
    return Gradients(model(case), inputs(case), partial(evaluate, case))


derived = Together(few(DIFFERENTIABLE, 3), lambda case: gradients(case).traced())


@pytest.mark.parametrize("case", few(DIFFERENTIABLE, 3), ids=lambda case: case.name)
def test_gradient(case: OpCase) -> None:
    """Forward and reverse mode against central differences of the reference in 64 bits."""
    gradients(case).check(derived(case), case.tolerance)


def as_bfloat16(case: OpCase) -> list[np.ndarray]:
    return [
        x.astype(jnp.bfloat16).astype(np.float32) if x.dtype.kind == "f" else x
        for x in inputs(case)
    ]


def applied_in_bfloat16(case: OpCase) -> tuple[Any, Any]:
    return partial(model_of(document(case), dtype="bfloat16").apply, {}), as_bfloat16(case)


ROUNDED = few(c for c in DIFFERENTIABLE if c.operation != "pow")
rounded_values = Together(ROUNDED, applied_in_bfloat16)


@pytest.mark.parametrize("case", ROUNDED, ids=lambda case: case.name)
def test_bfloat16(case: OpCase) -> None:
    """Eight bits of precision: close to the exact result on the inputs as bfloat16 has them."""
    rounded, got = as_bfloat16(case), rounded_values(case)
    for output, want in zip(
        got if isinstance(got, tuple) else (got,), evaluate(case, rounded), strict=True
    ):
        if want.dtype.kind == "f":
            assert output.dtype == jnp.bfloat16
            scale = max(1.0, float(np.abs(want).max()))
            assert np.abs(np.asarray(output, np.float64) - want).max() <= 0.05 * scale
