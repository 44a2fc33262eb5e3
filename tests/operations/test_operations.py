"""Every row of NNEF's table: values, batches, derivatives, 16 bits, expansion, call and eager."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import pytest

from lowering.ops import rules
from nnef_jax.formats.syntax.standard import standard
from tests.helpers import model_of
from tests.op_cases import NNEF, OpCase, document, expected, inputs
from tests.operation_checks import (
    Checks,
    Together,
    assert_close,
    assert_definition,
    checked,
    few,
    results,
)


@pytest.mark.parametrize(("checks", "case"), checked(NNEF))
def test_row(checks: Checks, case: OpCase) -> None:
    checks(case)


def test_every_operation_has_a_case() -> None:
    in_documents = {"external", "variable", "constant", "update"}
    assert set(standard()) - in_documents == {case.operation for case in NNEF} - in_documents


COMPOUND = few(
    (c for c in NNEF if standard()[c.operation].body is not None and c.operation in rules), 3
)


def expanded(case: OpCase) -> tuple[Any, Any]:
    model = model_of(document(case), expand="all")
    assert [operation.kind for operation in model.graph.operations] != [case.operation]
    return partial(model.apply, {}), inputs(case)


EXPANSIONS = Together(COMPOUND, expanded)


@pytest.mark.parametrize("case", COMPOUND, ids=lambda case: case.name)
def test_the_definition_gives_what_the_rule_does(case: OpCase) -> None:
    assert_definition(case, EXPANSIONS(case))


# Without `jit` each primitive is compiled by itself: every fourth operation has to do, where the
# tests are not to be slow.
FIRST = [
    pytest.param(case, id=case.name, marks=[pytest.mark.slow] if number % 4 else [])
    for number, case in enumerate(few(NNEF, 1))
]


@pytest.mark.parametrize("case", FIRST)
def test_call_and_eager(case: OpCase) -> None:
    model = model_of(document(case))
    assert_close(model(*inputs(case)), expected(case), case.tolerance)
    with jax.disable_jit():
        eager = model.apply(model.params, *inputs(case))
    assert_close(eager, results(model(*inputs(case))), case.tolerance)
