"""Empty tensors: computed where an operation means something for them, else a located error."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from lowering.registry import Registry
from tests.helpers import model_of
from tests.op_cases import NNEF, TRACT, OpCase, document
from tests.operation_checks import few
from tests.rows import failures


@pytest.mark.parametrize("table", [NNEF, TRACT], ids=["nnef", "tract"])
def test_an_axis_without_items(table: Sequence[OpCase]) -> None:
    """Of the first case of each operation."""
    texts = {case.name: document(case) for case in few(table, 1)}
    assert len(texts) > 80
    assert failures(require_any_axis_without_items, texts) == {}


def require_any_axis_without_items(text: str) -> None:
    """Of the first input, each axis in turn: traced, or refused with the operation's place."""
    shapes = {spec.name: list(spec.shape) for spec in model_of(text).inputs}
    name = next(iter(shapes), "")
    for axis in range(len(shapes.get(name, ()))):
        shape = [*shapes[name][:axis], None, *shapes[name][axis + 1 :]]
        try:
            model = model_of(text, input_shapes={name: shape})
            inputs = [
                np.zeros([extent or 0 for extent in spec.shape], spec.dtype)
                for spec in model.inputs
            ]
            jax.eval_shape(lambda *xs, model=model: model.apply({}, *xs), *inputs)
        except nnef_jax.NnefError as error:
            assert error.span is not None or isinstance(error, nnef_jax.InputError)


NET = """version 1.0;
graph net(x) -> (y)
{
    x = external(shape = [1,3,8,8]);
    f = variable(label = 'f', shape = [4,3,3,3]);
    c = conv(x, f);
    p = max_pool(c, size = [1,1,2,2], stride = [1,1,2,2], padding = [(0,0),(0,0),(0,0),(0,0)]);
    r = reshape(p, shape = [0,-1]);
    y = softmax(r);
}
"""


@pytest.mark.parametrize("optimize", [True, False])
def test_a_network(optimize: bool) -> None:
    data = {"f": np.ones((4, 3, 3, 3), np.float32)}
    open_shapes = {"x": (None, 3, None, None)}
    model = model_of(NET, data=data, input_shapes=open_shapes, optimize=optimize)
    assert model(np.ones((0, 3, 8, 8), np.float32)).shape == (0, 64)
    for shape in ((1, 3, 0, 8), (2, 3, 8, 0)):
        with pytest.raises(nnef_jax.ShapeError, match="'conv': the window spans 3 items"):
            model(np.ones(shape, np.float32))


def test_what_has_no_items_to_compute_from() -> None:
    text = """version 1.0; graph net(x) -> (y) {
        x = external(shape = [0,3]); y = max_reduce(x, axes = [0]); }"""
    with pytest.raises(nnef_jax.ShapeError, match="it is empty") as caught:
        model_of(text)(np.ones((0, 3), np.float32))
    assert caught.value.span is not None


def test_a_rule_that_cannot_take_an_empty_tensor() -> None:
    text = """version 1.0; extension KHR_enable_fragment_definitions;
    fragment own( x: tensor<scalar> ) -> ( y: tensor<scalar> );
    graph net(x) -> (y) { x = external(shape = [0,3]); y = own(x); }"""
    rules = Registry()
    rules.rule("own", lambda x: x)(lambda x: x + jnp.max(x))
    with pytest.raises(nnef_jax.SemanticError) as caught:
        model_of(text, rules=rules)(np.ones((0, 3), np.float32))
    assert caught.value.message == "'own' cannot be computed: 'x' is empty, it is [0,3]"
    assert caught.value.span is not None
