"""The table of operation cases: that it is complete, and that its rows are what they say."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.op_cases import NNEF, OpCase, bind, document, evaluate, expected, inputs, tensors
from tests.reference import OPERATIONS
from tests.rows import failures

ROOT = Path(__file__).resolve().parents[2]
BY_NAME = {case.name: case for case in NNEF}
GRAPH_ONLY = {"external", "constant", "variable", "update"}


@cache
def declarations() -> dict[str, dict[str, Any]]:
    """The parameters of the standard's declarations, with their defaults where they have one."""
    text = (ROOT / "nnef_jax/formats/syntax/stdlib.nnef").read_text()
    found = {}
    for name, parameters in re.findall(
        r"^fragment (\w+)(?:<[^>]*>)?\((.*?)\)\s*->", text, re.DOTALL | re.MULTILINE
    ):
        found[name] = {}
        for item in parameters.replace("(integer,integer)[]", "pairs").split(","):
            match = re.fullmatch(r"(\w+):[^=]+(?:= (.*))?", item.strip())
            assert match
            default = {"true": "True", "false": "False", None: "None"}.get(match[2], match[2])
            found[name][match[1]] = ast.literal_eval(default)
    return found


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_parameters_are_those_of_the_declaration(name: str) -> None:
    found = {}
    for parameter in inspect.signature(OPERATIONS[name]).parameters.values():
        default = None if parameter.default is parameter.empty else parameter.default
        found[parameter.name.rstrip("_")] = list(default) if isinstance(default, tuple) else default
    if name == "cast":
        del found["dtype"]
    declared = declarations()[name]
    assert list(found.items()) == list(declared.items())


def test_every_operation_has_a_reference_and_a_row() -> None:
    declared = set(declarations()) - GRAPH_ONLY
    assert len(declared) == 119 - len(GRAPH_ONLY)
    assert set(OPERATIONS) == declared
    assert {case.operation for case in NNEF} == declared


def test_rows_are_well_formed() -> None:
    assert failures(well_formed, BY_NAME) == {}


def well_formed(case: OpCase) -> None:
    names = list(declarations()[case.operation])
    assert list(case.operands) == names[: len(case.operands)]
    assert set(case.attributes) <= set(names[len(case.operands) :])
    for array, again in zip(inputs(case), inputs(case), strict=True):
        assert array.dtype in (np.float32, np.int32, np.bool_)
        assert_array_equal(array, again)
    for result in expected(case):
        assert result.dtype in (np.float64, np.int64, np.bool_)
        assert np.isfinite(result).all()
    assert bool(case.generic) == (case.operation == "cast")


def test_differentiable_rows_have_no_kink() -> None:
    rows = {name: case for name, case in BY_NAME.items() if not case.not_differentiable}
    assert failures(smooth, rows) == {}


def smooth(case: OpCase) -> None:
    # A jump of the slope shows in f(x+h) - 2 f(x) + f(x-h) as h, a smooth function as h squared.
    step = 1e-6
    random = np.random.default_rng(0)
    arrays = [x.astype(np.float64) if x.dtype == np.float32 else x for x in inputs(case)]
    directions = [
        random.choice([-1.0, 1.0], x.shape) if x.dtype == np.float64 else None for x in arrays
    ]
    assert any(d is not None for d in directions)

    def moved(h: float) -> list[np.ndarray]:
        pairs = zip(arrays, directions, strict=True)
        return evaluate(case, [x if d is None else x + h * d for x, d in pairs])

    for before, here, after in zip(moved(-step), moved(0.0), moved(step), strict=True):
        if here.dtype == np.float64:
            assert_allclose((after - here) / step, (here - before) / step, rtol=1e-3, atol=1e-3)
        else:
            assert_array_equal(before, after)


def test_documents() -> None:
    assert document(BY_NAME["conv_2d_reflect"]) == (
        "version 1.0;\n\n"
        "graph G( input, filter ) -> ( result )\n"
        "{\n"
        "    input = external<scalar>(shape = [2, 2, 5, 6]);\n"
        "    filter = external<scalar>(shape = [3, 2, 3, 3]);\n"
        "    result = conv(input, filter, border = 'reflect', padding = [(2, 2), (1, 2)]);\n"
        "}\n"
    )
    body = {name: document(BY_NAME[name]).splitlines()[-2].strip() for name in BY_NAME}
    assert body["split_ratios"] == (
        "[result0, result1, result2] = split(value, axis = 1, ratios = [1, 3, 2]);"
    )
    assert body["moments_batch"] == "result0, result1 = moments(input, axes = [0]);"
    assert body["cast_logical_to_integer"] == "result = cast<integer>(input);"
    assert body["add_n_2"] == "result = add_n([x0, x1]);"
    assert body["and_literal"] == "result = and(x, true);"
    assert body["sub_literal_left"] == "result = sub(1.5, y);"
    assert body["selu_both"] == "result = selu(x, alpha = 1.2, lambda = 0.9);"
    assert "x = external<logical>(shape = [2, 4]);" in document(BY_NAME["and_literal"])
    assert "indices = external<integer>(shape = []);" in document(BY_NAME["gather_rank0"])


def test_tensors_are_bound_in_order() -> None:
    case = BY_NAME["add_n_2"]
    assert list(tensors(case)) == ["x0", "x1"]
    assert bind(case, ["first", "second"]) == {"x": ["first", "second"]}
