"""Every row of the table of tract's operations: values, jit, vmap, gradients, float16."""

from __future__ import annotations

from functools import cache, lru_cache, partial
from typing import Any

import jax
import numpy as np
import pytest

import nnef_jax
from lowering.extents import UNKNOWN
from nnef_jax.formats.tract import declarations
from nnef_jax.formats.tract.intrinsics import INTRINSICS
from nnef_jax.formats.tract.operations import defined, meanings
from tests import op_cases
from tests.helpers import model_of
from tests.op_cases.case import OpCase, inputs
from tests.operation_checks import (
    Gradients,
    Together,
    assert_close,
    assert_vmap_equals_loop,
    few,
    read_graph,
    results,
    vmap_and_loop,
    wide,
)
from tests.tract_cases import ALL_CASES, document, evaluate, expected, written

cases = pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.name)
DIFFERENTIABLE = [
    c for c in ALL_CASES if not c.not_differentiable and any(x.dtype.kind == "f" for x in inputs(c))
]


@lru_cache(maxsize=32)  # all of them would take gigabytes
def model(case: OpCase) -> nnef_jax.Model:
    return model_of(document(case))


def test_every_declared_operation_has_a_rule_and_a_case() -> None:
    tested = {case.operation for case in ALL_CASES}
    for name in declarations.REGISTRIES:
        for operation in declarations.registry(name):
            if operation in INTRINSICS:
                continue  # tested by the documents around them
            if operation == "tract_core_complex_to_inner_dim":
                continue  # no row has complex operands: tests/formats/test_tract_complex.py
            assert operation in meanings(), f"{operation} has no rule"
            assert operation in tested, f"{operation} has no case"


FIRST = list({case.operation: case for case in reversed(ALL_CASES)}.values())


values = Together(ALL_CASES, lambda case: (partial(model(case).apply, {}), inputs(case)))


@cases
def test_value(case: OpCase) -> None:
    got = values(case)
    assert_close(got, expected(case), case.tolerance)
    for output, spec in zip(results(got), model(case).outputs, strict=True):
        assert output.shape == spec.shape and output.dtype == spec.dtype


@pytest.mark.parametrize("case", FIRST, ids=lambda case: case.name)
def test_call(case: OpCase) -> None:
    assert_close(model(case)(*inputs(case)), expected(case), case.tolerance)


@pytest.mark.parametrize("case", FIRST[::4], ids=lambda case: case.name)
def test_jit_equals_eager(case: OpCase) -> None:
    with jax.disable_jit():
        eager = model(case).apply({}, *inputs(case))
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


def half(case: OpCase) -> list[Any]:
    return [x.astype(np.float16) if x.dtype.kind == "f" else x for x in inputs(case)]


def applied_in_half(case: OpCase) -> tuple[Any, Any]:
    return partial(model_of(document(case, real="f16")).apply, {}), half(case)


halves = Together(few(DIFFERENTIABLE), applied_in_half)


@pytest.mark.parametrize("case", few(DIFFERENTIABLE), ids=lambda case: case.name)
def test_float16(case: OpCase) -> None:
    """Eleven bits of precision: close to the exact result on the inputs as float16 has them."""
    rounded, got = half(case), halves(case)
    for output, want in zip(results(got), evaluate(case, [wide(x) for x in rounded]), strict=True):
        if want.dtype.kind == "f":
            scale = max(1.0, float(np.abs(want).max(initial=0)))
            assert np.abs(output.astype(np.float64) - want).max(initial=0) <= 0.01 * scale


EXPANDED = defined("all") - defined("auto")
DEFINED = few([c for c in op_cases.ALL_CASES if c.operation in EXPANDED], 3)


def kind_and_definition(case: OpCase) -> tuple[Any, Any]:
    text = written(case, len(op_cases.expected(case)))
    whole, parts = model_of(text), model_of(text, expand="all")
    assert case.operation in {operation.kind for operation in whole.graph.operations}
    assert case.operation not in {operation.kind for operation in parts.graph.operations}
    return lambda *xs: (whole.apply({}, *xs), parts.apply({}, *xs)), inputs(case)


expansions = Together(DEFINED, kind_and_definition)


@pytest.mark.parametrize("case", DEFINED, ids=lambda case: case.name)
def test_kind_equals_definition(case: OpCase) -> None:
    whole, parts = expansions(case)
    if not all(np.isfinite(y).all() for y in results(parts)):
        pytest.skip("the definition overflows in 32 bits, the rule does not")
    assert_close(parts, results(whole), case.tolerance)


def test_operations_with_arrays_of_results_stay_whole() -> None:
    text = """version 1.0;
extension tract_registry tract_core;
graph g(x) -> (y)
{
    x = tract_core_external(shape = [2], datum_type = 'f32');
    [y, z] = copy_n(x, times = 2);
}
"""
    assert [o.kind for o in model_of(text, expand="all").graph.operations] == ["copy_n"]


def test_expansion_replaces_rules_of_a_users() -> None:
    text = """version 1.0;
extension tract_registry tract_nnef;
fragment double(x: tensor<scalar>) -> (y: tensor<scalar>) { y = x + x; }
graph g(x) -> (y, z)
{
    x = tract_core_external(shape = [2], datum_type = 'f32');
    y = double(x);
    z = silu(x);
}
"""
    own = nnef_jax.Registry()
    own.rule("double", lambda x: x)(lambda x: 3 * x)
    own.rule("silu", lambda x: x)(lambda x: 4 * x)
    x = np.array([1.0, 2.0], np.float32)
    y, z = model_of(text, rules=own)(x)
    assert [*y, *z] == [3, 6, 4, 8]
    y, z = model_of(text, rules=own, expand="all")(x)
    np.testing.assert_allclose([y, z], [2 * x, x / (1 + np.exp(-x))], rtol=1e-6)


def test_open_extents_are_inferred_as_the_known_ones_are() -> None:
    """A case with an open first extent has the same ranks and dtypes, and no wrong extent."""
    for case in ALL_CASES:
        arrays = inputs(case)
        if not arrays or not arrays[0].ndim:
            continue
        known = read_graph(document(case))
        first = known.inputs[0]
        opened = {first.name: [None, *first.type.shape[1:]]}
        try:
            found = read_graph(document(case), input_shapes=opened)
        except nnef_jax.NnefError as error:
            assert "known" in str(error), case.name
            continue
        for x, y in zip(found.outputs, known.outputs, strict=True):
            x, y = x.type, y.type
            assert len(x.shape) == len(y.shape) and x.dtype == y.dtype, case.name
            pairs = zip(x.shape, y.shape, strict=True)
            assert all(a is UNKNOWN or a == b for a, b in pairs), case.name
