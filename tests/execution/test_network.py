"""Networks: open extents, input shapes given at load, what calls say about their arguments."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from lowering.extents import UNKNOWN
from nnef_jax import InputError, NnefError, SemanticError, ShapeError
from tests.helpers import model_of
from tests.text_support import error, graph, network

OPEN = "version 1.0;\ngraph net( x ) -> ( y )\n{{\n    x = external(shape = {});\n    {}\n}}\n"


def open_provisional(body: str, shape: str = "[0,3]") -> str:
    """A provisional document whose y = f(x), with this body of f, has an input of this shape."""
    return (
        f"version 1.0\nfragment f( x: tensor ) -> ( y: tensor ) {{ {body} }}\n"
        f"graph net( x ) -> ( y ) {{ x = external(shape = {shape}) y = f(x) }}\n"
    )


def ones(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.float32)


# Open extents


def test_open_extents_go_through_the_graph() -> None:
    found = network(OPEN.format("[0,3,0]", "a = neg(x); y = reshape(a, shape = [0,-1]);")).graph
    assert found.inputs[0].type.shape == (UNKNOWN, 3, UNKNOWN)
    assert found.outputs[0].type.shape == (UNKNOWN, UNKNOWN)
    model = model_of(OPEN.format("[0,3]", "y = sum_reduce(x, axes = [0]);"))
    assert [s.shape for s in (*model.inputs, *model.outputs)] == [(None, 3), (1, 3)]
    for batch in (1, 4):
        np.testing.assert_array_equal(model(ones(batch, 3)), np.full((1, 3), batch))


def test_shapes_are_checked_once_they_are_known() -> None:
    body = "y = add(x, constant(shape = [2], value = [1.0]));"
    model = model_of(OPEN.format("[0,3]", body))
    assert model(ones(2, 3)).shape == (2, 3)
    with pytest.raises(ShapeError) as caught:
        model(ones(5, 3))
    assert caught.value.span is not None and caught.value.span.line == 5
    assert "[5,3]" in caught.value.message


def test_known_shapes_are_used_at_once() -> None:
    body = "s = shape_of(x) y = reshape(x, shape = [s[1] * s[0] / 2, 2])"
    found = network(open_provisional(body, "[4,3]")).graph
    assert found.outputs[0].type.shape == (6, 2)


def test_open_extents_in_arithmetic_stay_open() -> None:
    found = network(
        open_provisional("s = shape_of(x) y = reshape(x, shape = [s[1], s[0] * 2 / 2])")
    )
    assert found.graph.outputs[0].type.shape == (3, UNKNOWN)
    model = model_of(
        open_provisional("s = shape_of(x) y = reshape(x, shape = [s[1], s[0] * 2 / 2])")
    )
    assert model(ones(5, 3)).shape == (3, 5)


# body -> what it makes of ones(n, 3), for a few n
STRUCTURE: dict[str, Any] = {
    "y = neg(x) if shape_of(x)[0] > 2 else x + x": lambda n: np.full((n, 3), -1 if n > 2 else 2),
    "y = x * shape_of(x)[0]": lambda n: np.full((n, 3), n),
    "y = x / scalar(shape_of(x)[0])": lambda n: np.full((n, 3), 1 / n),
    "y = add_n([x * i for i in range_of([0] * shape_of(x)[0])])": lambda n: np.full(
        (n, 3), n * (n - 1) / 2
    ),
    "y = add_n(unstack(x, axis = 0))": lambda n: np.full(3, n),
    "y = x * extent(string(shape_of(x)[0]) + '0')": lambda n: np.full((n, 3), 10 * n),
    "y = x if shape_of(x)[0] in [2, 4] else neg(x)": lambda n: np.full(
        (n, 3), 1 if n in (2, 4) else -1
    ),
    "y = x * ([3.0, 4.0, 5.0, 6.0] * 2)[shape_of(x)[0]]": lambda n: np.full((n, 3), 3 + n % 4),
}


@pytest.mark.parametrize("body", STRUCTURE)
def test_graphs_whose_structure_depends_on_an_open_extent(body: str) -> None:
    model = model_of(open_provisional(body))
    assert model.inputs[0].shape == (None, 3)
    assert all(extent is None for extent in model.outputs[0].shape)
    assert "?" in str(model.summary())
    for n in (1, 2, 4):
        np.testing.assert_allclose(model(ones(n, 3)), STRUCTURE[body](n), rtol=1e-6)


def test_variables_do_not_depend_on_open_extents() -> None:
    found = error(open_provisional("y = x * §variable(shape = shape_of(x), label = 'w')"))
    assert found.message == "'variable': 'shape' of a variable must be known, it is [?,3]"
    assert "load(..., input_shapes=...)" in found.hint
    text = open_provisional("y = x * variable(shape = shape_of(x), label = 'w')")
    model = model_of(text, data={"w": 2 * ones(4, 3)}, input_shapes={"x": (4, 3)})
    np.testing.assert_array_equal(model(ones(4, 3)), np.full((4, 3), 2))
    model = model_of(open_provisional(
        "y = x if shape_of(x)[0] == 1 else x * variable(shape = [1], label = 'w')"
    ))  # fmt: skip
    assert model(ones(1, 3)).shape == (1, 3)
    with pytest.raises(SemanticError, match="variable 'w' depends on an open extent"):
        model(ones(2, 3))


def test_a_structure_that_one_item_is_too_few_for() -> None:
    text = open_provisional("y = neg(x) if shape_of(x)[0] > 2 else reshape(x, shape = [7])")
    assert model_of(text)(ones(4, 3)).shape == (4, 3)


def test_what_fails_with_an_open_extent_works_where_it_is_given() -> None:
    text = open_provisional("y = neg(x) if shape_of(x)[0] == 4 else reshape(x, shape = [7])")
    found = error(text.replace("reshape(", "§reshape("))
    assert isinstance(found, ShapeError)
    assert "open extents of 1, and 64" in found.hint and "load(..., input_shapes=...)" in found.hint
    assert model_of(text, input_shapes={"x": (4, 3)})(ones(4, 3)).shape == (4, 3)
    text = OPEN.format("[0,3]", "[y, z] = unstack(x, axis = 0);")
    with pytest.raises(SemanticError, match="1 results cannot be assigned to 2 names"):
        network(text)
    assert network(text, input_shapes={"x": (2, 3)}).graph.outputs[0].type.shape == (3,)


def test_extents_that_are_computed_may_be_open() -> None:
    header = "version 1.0;\nextension KHR_enable_operator_expressions;\n"
    text = header + OPEN.format("[0] * 2 + [3]", "[y] = unstack(x, axis = 0);").split(";\n", 1)[1]
    model = model_of(text)
    assert model.inputs[0].shape == (None, None, 3)
    assert model(ones(1, 5, 3)).shape == (5, 3)


# Input shapes given at load


def test_input_shapes_replace_the_declared_ones() -> None:
    text = OPEN.format("[1,3,8]", "y = mean_reduce(x, axes = [2]);")
    model = model_of(text, input_shapes={"x": (5, 3, 4)})
    assert model.inputs[0].shape == (5, 3, 4) and model.outputs[0].shape == (5, 3, 1)
    model = model_of(text, input_shapes={"x": (None, 3, None)})
    assert model.inputs[0].shape == (None, 3, None)
    for shape in ((2, 3, 7), (1, 3, 8)):
        assert model(ones(*shape)).shape == (*shape[:2], 1)
    with pytest.raises(InputError, match=r"has shape \[2,4,7\], the graph declares \[\?,3,\?\]"):
        model(ones(2, 4, 7))


def test_wrong_input_shapes() -> None:
    text = OPEN.format("[1,3]", "y = neg(x);")
    with pytest.raises(InputError) as caught:
        network(text, input_shapes={"input": (1, 3), "z": (1,)})
    assert [e.message for e in caught.value.errors] == [
        "input_shapes names 'input', the graph's inputs are x",
        "input_shapes names 'z', the graph's inputs are x",
    ]
    with pytest.raises(
        InputError, match=r"input_shapes gives 'x' rank 3, the graph declares \[1,3\]"
    ):
        network(text, input_shapes={"x": (1, 3, 1)})
    with pytest.raises(SemanticError, match="must not be negative"):
        network(text, input_shapes={"x": (-1, 3)})


def test_a_reshape_that_bakes_the_batch_in_is_refused() -> None:
    text = OPEN.format("[1,2,3]", "a = neg(x); y = reshape(a, shape = [1,-1]);")
    assert network(text).graph.outputs[0].type.shape == (1, 6)
    with pytest.raises(ShapeError) as caught:
        network(text, input_shapes={"x": (4, 2, 3)})
    assert caught.value.span is not None and caught.value.span.line == 5
    assert "keeps the extent 1" in caught.value.message and "axis 0" in caught.value.message
    assert "write 0 there" in caught.value.hint
    model = model_of(text, input_shapes={"x": (None, 2, 3)})
    assert model(ones(1, 2, 3)).shape == (1, 6)
    with pytest.raises(ShapeError, match="keeps the extent 1"):
        model(ones(4, 2, 3))
    text = text.replace("[1,-1]", "[0,-1]")
    assert network(text, input_shapes={"x": (4, 2, 3)}).graph.outputs[0].type.shape == (4, 6)


# Arguments of calls


TWO = """version 1.0;
graph net( image, index, mask ) -> ( y )
{
    image = external(shape = [2,3]);
    index = external<integer>(shape = [2]);
    mask = external<logical>(shape = [1]);
    y = select(mask, gather(image, index, axis = 1), 0.0);
}
"""
IMAGE, INDEX, MASK = ones(2, 3), np.array([0, 2], np.int32), np.array([True])


def refused(*args: Any, **kwargs: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        model_of(TWO)(*args, **kwargs)
    return caught.value


def test_arguments_by_position_and_name() -> None:
    model = model_of(TWO)
    expected = np.ones((2, 2))
    np.testing.assert_array_equal(model(IMAGE, INDEX, MASK), expected)
    np.testing.assert_array_equal(model(IMAGE, mask=MASK, index=INDEX), expected)
    np.testing.assert_array_equal(model(mask=[True], index=[0, 2], image=[[1, 1, 1]] * 2), expected)
    wide = model(IMAGE.astype(np.float64), INDEX.astype(np.int64), jnp.array(MASK))
    assert wide.dtype == jnp.float32
    np.testing.assert_array_equal(wide, expected)


def test_wrong_numbers_and_names_of_arguments() -> None:
    assert "4 inputs are given, the graph takes 3: image, index, mask" in str(
        refused(IMAGE, INDEX, MASK, MASK)
    )
    missing = refused(IMAGE, mask=MASK)
    assert "input 'index' is missing" in missing.message and missing.span and missing.span.line == 5
    assert "inputs 'index', 'mask' are missing" in refused(IMAGE).message
    assert "the graph has no input 'imge', its inputs are image, index, mask" in str(
        refused(imge=IMAGE)
    )
    assert "input 'image' is given by position and by name" in str(refused(IMAGE, image=IMAGE))


def test_all_wrong_arguments_are_reported_at_once() -> None:
    found = refused(ones(5, 2), np.array([0.5, 1.5], np.float32), np.array([1], np.int32)).errors
    assert [e.message for e in found] == [
        "input 'image' has shape [5,2], the graph declares [2,3]",
        "input 'index' has dtype float32, the graph declares int32",
        "input 'mask' has dtype int32, the graph declares bool",
    ]
    assert [e.span and e.span.line for e in found] == [4, 5, 6]
    assert "x.astype('int32')" in found[1].hint and "input_shapes" in found[0].hint


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ([[1.0, 2.0, 3.0], [4.0]], "is not an array"),
        ("text", "must be an array, it is 'text'"),
        (None, "must be an array, it is None"),
        (np.array(["a"] * 6).reshape(2, 3), "dtype"),
        (ones(2, 3) > 0, "dtype bool"),
        (ones(2, 3).astype(np.complex64), "dtype complex64"),
    ],
)
def test_arguments_that_are_no_numbers(image: Any, message: str) -> None:
    assert message in refused(image, INDEX, MASK).message


def test_integers_that_do_not_fit_are_refused() -> None:
    found = refused(IMAGE, np.array([0, 2**40]), MASK)
    assert f"holds values from 0 to {2**40}, which do not fit int32" in found.message


def test_no_graph_is_made_of_wrong_documents() -> None:
    with pytest.raises(NnefError):
        network(graph("y = neg(z);"))
