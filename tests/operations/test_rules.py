"""A rule of one's own that returns something else than it inferred is named, with its place."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from lowering.graph import TensorType
from lowering.registry import Registry
from tests.helpers import model_of

_HEAD = "version 1.0; extension KHR_enable_fragment_definitions;\n"
_ONE = """fragment own( x: tensor<scalar> ) -> ( y: tensor<scalar> );
fragment around( x: tensor<scalar> ) -> ( y: tensor<scalar> )
{
    y = own(x);
}
graph g(x) -> (z)
{
    x = external(shape = [2,3]);
    y = CALL(x);
    z = relu(y);
}
"""
_TWO = """fragment own( x: tensor<scalar> ) -> ( a: tensor<scalar>, b: tensor<scalar>[] );
graph g(x) -> (z)
{
    x = external(shape = [2,3]);
    (y, [b0, b1]) = own(x);
    z = add(b0, b1);
}
"""
_RETURNS: dict[str, tuple[Any, str]] = {
    "shape": (lambda x: x[0], "float32[3] for"),
    "rank": (lambda x: x[None], "float32[1,2,3] for"),
    "dtype": (lambda x: x.astype(jnp.float16), "float16[2,3] for"),
    "logical": (lambda x: x > 0, "bool[2,3] for"),
    "constant": (lambda x: np.zeros((3, 2), np.float32), "float32[3,2] for"),
    "number": (lambda x: 1.0, "float32[] for"),
    "nothing": (lambda x: None, "no array but NoneType for"),
    "text": (lambda x: "x", "no array but str for"),
}


def rules(lower: Any, infer: Any = lambda x: x) -> Registry:
    registry = Registry()
    registry.rule("own", infer)(lower)
    return registry


@pytest.mark.parametrize("name", _RETURNS)
@pytest.mark.parametrize("call", ["own", "around"])
def test_one_result(name: str, call: str) -> None:
    returns, shown = _RETURNS[name]
    model = model_of(_HEAD + _ONE.replace("CALL", call), rules=rules(lambda x: returns(x)))
    x = np.ones((2, 3), np.float32)
    for run in (
        lambda: model(x),
        lambda: jax.grad(lambda x: model.apply({}, x).sum())(x),
        lambda: model.intermediates(x),
    ):
        with pytest.raises(nnef_jax.SemanticError) as caught:
            run()
        message = caught.value.message
        assert message.startswith(
            f"the rule of 'own' returns {shown} '{model.graph.operations[0].name}'"
        )
        assert message.endswith("it inferred float32[2,3]") or "no array" in message
        assert caught.value.span is not None
        assert "own(x)" in caught.value.span.excerpt()
        assert [c.fragment for c in caught.value.calls] == (["around"] if call == "around" else [])


@pytest.mark.parametrize(
    ("returns", "shown"),
    [
        (lambda x: x, "1 results, it inferred 2"),
        (lambda x: (x, [x, x], x), "3 results, it inferred 2"),
        (lambda x: (x, [x]), "1 tensors in a list, it inferred 2"),
        (lambda x: (x, x), "1 tensors in a list, it inferred 2"),
        (lambda x: (x, [x, x.T]), "float32[3,2] for 'b1', it inferred float32[2,3]"),
    ],
)
def test_several_results(returns: Any, shown: str) -> None:
    def infer(x: TensorType) -> Any:
        return x, [x, x]

    model = model_of(_HEAD + _TWO, rules=rules(lambda x: returns(x), infer))
    with pytest.raises(nnef_jax.SemanticError) as caught:
        model(np.ones((2, 3), np.float32))
    assert caught.value.message == f"the rule of 'own' returns {shown}"


def test_rules_may_take_all_arguments() -> None:
    own = nnef_jax.Registry()

    def work(**arguments: Any) -> int:
        assert sorted(arguments) == ["result", "x"]
        return 7

    @own.rule("own", lambda **types: types["x"], work=work)
    def lower(**arrays: Any) -> Any:
        return 2 * arrays["x"]

    model = model_of(_HEAD + _ONE.replace("CALL", "own"), rules=own)
    np.testing.assert_array_equal(model(np.ones((2, 3), np.float32)), np.full((2, 3), 2))
    assert "7 multiply-adds" in str(model.summary())


@pytest.mark.parametrize(
    ("lower", "message"),
    [
        (lambda x, z: x, "the rule needs 'z'"),
        (lambda x, z, a: x, "the rule needs 'a', 'z'"),
        (lambda: 1.0, "the rule takes no 'x'"),
    ],
)
def test_arguments_that_the_document_does_not_give(lower: Any, message: str) -> None:
    own = rules(lower, lambda **types: TensorType((2, 3), "float32"))
    with pytest.raises(nnef_jax.SemanticError, match=message) as caught:
        model_of(_HEAD + _ONE.replace("CALL", "own"), rules=own)
    assert caught.value.span is not None


def test_functions_that_libraries_wrap_and_any_defaults() -> None:
    some = np.arange(2)

    def lower(x: Any, g: Any = math.nan, array: Any = some) -> Any:
        return 2 * x

    for wrapped in (lower, jax.jit(lower), functools.partial(lower), jax.checkpoint(lower)):
        own = nnef_jax.Registry()
        own.rule("own", lambda x, g=math.nan, array=some: x, work=lambda x, g=1: 7)(wrapped)
        model = model_of(_HEAD + _ONE.replace("CALL", "own"), rules=own)
        np.testing.assert_array_equal(model(np.ones((2, 3), np.float32)), np.full((2, 3), 2))
        assert "7 multiply-adds" in str(model.summary())


def test_extents_that_a_rule_cannot_infer_are_free() -> None:
    text = _HEAD + _ONE.replace("CALL", "own")
    model = model_of(text, input_shapes={"x": (None, 3)}, rules=rules(lambda x: 2 * x))
    np.testing.assert_array_equal(model(np.ones((5, 3), np.float32)), np.full((5, 3), 2))
    rows = jax.ShapeDtypeStruct((*jax.export.symbolic_shape("n"), 3), jnp.float32)
    exported = jax.export.export(jax.jit(model.apply))({}, rows)
    assert str(exported.out_avals[0].shape) == "(n, 3)"


@pytest.mark.parametrize("condition", ["c", "true"])
def test_a_result_of_literals_alone_has_the_type_of_the_graph(condition: str) -> None:
    text = f"""version 1.0; extension KHR_enable_fragment_definitions;
    graph g(c) -> (z)
    {{
        c = external<logical>(shape = [3]);
        y = select({condition}, 1.0, 2.0);
        z = add(y, 0.5);
    }}"""
    result = model_of(text, dtype="bfloat16")(np.array([True, True, True]))
    assert result.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(result, np.float32), 1.5)
