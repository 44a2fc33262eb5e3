"""Every row of the table of tract's operations: as test_operations.py has it of NNEF's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

import nnef_jax
from lowering.extents import UNKNOWN
from lowering.graph import Graph
from nnef_jax.formats.tract import declarations
from nnef_jax.formats.tract.intrinsics import INTRINSICS
from nnef_jax.formats.tract.operations import defined, has_meaning
from tests.helpers import model_of
from tests.op_cases import NNEF, TRACT, OpCase, document, expected, in_tract, inputs
from tests.operation_checks import (
    Checks,
    Together,
    assert_close,
    assert_definition,
    checked,
    few,
    read_graph,
    results,
)
from tests.rows import failures


@pytest.mark.parametrize(("checks", "case"), checked(TRACT))
def test_row(checks: Checks, case: OpCase) -> None:
    checks(case)


# Operations that tract reads in another way than NNEF does: they have rows here.
DIFFERENT = {
    *("avg_roi_align", "cast", "clamp", "conv", "copy_n", "deconv", "linear_quantize"),
    *("max_pool", "max_pool_with_index", "max_roi_align", "min_max_linear_quantize"),
    *("multilinear_upsample", "or", "round", "separable_conv", "separable_deconv", "slice"),
    *("split", "zero_point_linear_quantize"),
}
NAMES = {"silu": "tract_core_silu", "sqr": "square"}  # that tract also has for one of NNEF
NAMES_WITHOUT_DEFAULTS = {"gather": "tract_core_gather", "softmax": "tract_core_softmax"}
_SAME = [case for case in NNEF if case.operation not in DIFFERENT]
ALIKE = [
    *_SAME,
    *(
        replace(case, operation=names[case.operation], means=case)
        for names in (NAMES, NAMES_WITHOUT_DEFAULTS)
        for case in _SAME
        if case.operation in names and (case.attributes or names is NAMES)
    ),
]


def test_other_operations_are_read_as_nnef_does() -> None:
    """Rows of NNEF's table reach the same kinds, attributes and types: they are not said twice."""
    assert failures(read_alike, {f"{case.name} by {case.operation}": case for case in ALIKE}) == {}


def read_alike(case: OpCase) -> None:
    nnef, tract = read_graph(document(case.means or case)), read_graph(in_tract(case))
    assert said(tract) == said(nnef)


def said(graph: Graph) -> str:
    operations = [(x.kind, dict(x.attributes)) for x in graph.operations]
    return str((operations, [x.type for x in graph.inputs], [x.type for x in graph.outputs]))


def test_every_declared_operation_has_a_meaning_and_a_case() -> None:
    tested = {case.operation for case in (*TRACT, *ALIKE)}
    for name in declarations.REGISTRIES:
        for operation in declarations.registry(name):
            if INTRINSICS.get(operation):
                continue  # tested by the documents around them
            if operation == "tract_core_complex_to_inner_dim":
                continue  # no row has complex operands: tests/formats/test_tract_complex.py
            assert has_meaning(operation), f"{operation} has no meaning"
            assert operation in tested, f"{operation} has no case"


FIRST = [
    pytest.param(case, id=case.name, marks=[pytest.mark.slow] if number % 8 else [])
    for number, case in enumerate(few(TRACT, 1))
]


@pytest.mark.parametrize("case", FIRST)
def test_call_and_eager(case: OpCase) -> None:
    model = model_of(document(case))
    assert_close(model(*inputs(case)), expected(case), case.tolerance)
    with jax.disable_jit():
        eager = model.apply({}, *inputs(case))
    assert_close(eager, results(model(*inputs(case))), case.tolerance)


EXPANDED = defined("all") - defined("auto")
DEFINED = few((case for case in NNEF if case.operation in EXPANDED), 3)


def by_definition(case: OpCase) -> tuple[Any, Any]:
    whole = read_graph(in_tract(case))
    assert case.operation in {operation.kind for operation in whole.operations}
    model = model_of(in_tract(case), expand="all")
    assert case.operation not in {operation.kind for operation in model.graph.operations}
    return partial(model.apply, {}), inputs(case)


DEFINITIONS = Together(DEFINED, by_definition)


@pytest.mark.parametrize("case", DEFINED, ids=lambda case: case.name)
def test_the_definition_gives_what_the_kind_does(case: OpCase) -> None:
    assert_definition(case, DEFINITIONS(case))


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


@pytest.mark.parametrize(
    "cases", [few(TRACT), pytest.param(TRACT, marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_open_extents_are_inferred_as_fixed_ones_are(cases: list[OpCase]) -> None:
    """A case with an open first extent has the same ranks and dtypes, and no wrong extent."""
    for case in cases:
        arrays = inputs(case)
        if not arrays or not arrays[0].ndim:
            continue
        fixed = read_graph(document(case))
        first = fixed.inputs[0]
        shapes = {first.name: [None, *first.type.shape[1:]]}
        try:
            opened = read_graph(document(case), input_shapes=shapes)
        except nnef_jax.NnefError as error:
            assert "known" in str(error), case.name
            continue
        for x, y in zip(opened.outputs, fixed.outputs, strict=True):
            x, y = x.type, y.type
            assert len(x.shape) == len(y.shape) and x.dtype == y.dtype, case.name
            pairs = zip(x.shape, y.shape, strict=True)
            assert all(a is UNKNOWN or a == b for a, b in pairs), case.name
