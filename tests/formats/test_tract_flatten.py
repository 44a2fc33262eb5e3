"""What documents of tract's dialect mean: names, fragments, arguments, literals, types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nnef_jax import NnefError
from tests.tract_text import error, graph, model, run

X = np.array([[1.0, -2.0, 3.0], [-4.0, 5.0, -6.0]], np.float32)
SCALE = "fragment scale( x: T, by: scalar = 2.0, plus: scalar = 1.0 ) -> ( y: T ) {\n" + (
    "    z = x * by;\n    y = z + plus;\n}\n"
)


def check(body: str, wanted: Any, fragments: str = "", *arrays: Any, **options: Any) -> None:
    """The only output y of a body for x, of the same type and shape too."""
    got = run(graph(body, fragments, **options), *(arrays or (X,)))
    wanted = np.asarray(wanted)
    assert got.dtype == wanted.dtype and got.shape == wanted.shape, (got, wanted)
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


# Names


def test_the_last_value_of_a_name_counts() -> None:
    text = graph("y = x + 1.0; z = y * 2.0; y = y + 10.0; y = y + 100.0;", results="y, z")
    y, z = run(text, X)
    np.testing.assert_array_equal(y, X + 111)
    np.testing.assert_array_equal(z, (X + 1) * 2)
    found = model(text).intermediates(X, names=["y", "z", "x"])
    np.testing.assert_array_equal(found["y"], y)
    np.testing.assert_array_equal(found["z"], z)


def test_an_input_may_be_assigned_again() -> None:
    text = graph("x = relu(x); y = x + 1.0;")
    np.testing.assert_array_equal(run(text, X), np.maximum(X, 0) + 1)
    np.testing.assert_array_equal(model(text).intermediates(X, names=["x"])["x"], np.maximum(X, 0))


def test_aliases() -> None:
    text = graph('i"/relu" = relu(x); i"4" = i"/relu"; y = i"4"; z = x;', results='i"4", y, z')
    four, y, z = run(text, X)
    np.testing.assert_array_equal(four, np.maximum(X, 0))
    np.testing.assert_array_equal(y, four)
    np.testing.assert_array_equal(z, X)
    assert [o.name for o in model(text).outputs] == ["4", "y", "z"]
    np.testing.assert_array_equal(model(text).intermediates(X, names=["4"])["4"], four)


@pytest.mark.parametrize(
    "targets", ["a, b", "(a, b)", "[a, b]", "( a, b, )", "(a), [b]", 'i"a", b', "a, (b)"]
)
def test_targets(targets: str) -> None:
    check(f"{targets} = unstack(x, axis = 0); y = a - b;", X[0] - X[1])


def test_a_list_under_one_name() -> None:
    check("parts = unstack(x, axis = 0); y = concat(parts, axis = 0);", np.concatenate(list(X)))
    check("parts = unstack(x, axis = 0); y = parts[1] - parts[-2];", X[1] - X[0])
    check("y = [x, x + 1.0];", np.stack([X, X + 1]))
    check("y = concat([[x, x], [x, 1.0 * x]], axis = 1);", np.concatenate([[X, X]] * 2, axis=1))


@pytest.mark.parametrize("name", ["2", "a/b", "a b", "class", "_1", "y.z"])
def test_names_of_outputs(name: str) -> None:
    found = model(graph(f'i"{name}" = neg(x);', results=f'i"{name}", x'))
    assert [o.name for o in found.outputs] == [name, "x"]
    first, second = found(X)
    np.testing.assert_array_equal(first, -X)
    np.testing.assert_array_equal(second, X)


def test_names_of_inputs() -> None:
    found = model(graph('y = i"a/b" - i"2";', **{'i"a/b"': "[2] f32", 'i"2"': "[2] f32"}))
    assert [i.name for i in found.inputs] == ["a/b", "2"]
    got = found(**{"2": np.ones(2, np.float32), "a/b": np.full(2, 3, np.float32)})
    np.testing.assert_array_equal(got, [2, 2])


def test_outputs_of_all_kinds() -> None:
    text = graph(
        "w = variable<scalar>(label = 'w', shape = [3]); n = 2 * 3; y = relu(x);",
        results="y, y, x, w, n, y",
    )
    data = {"w": np.arange(3, dtype=np.float32)}
    outputs = run(text, X, data=data)
    for got, wanted in zip(outputs, [np.maximum(X, 0)] * 2 + [X, data["w"], 6], strict=False):
        np.testing.assert_array_equal(got, wanted)
    assert len(outputs) == 6 and outputs[4].dtype == np.int32


# Fragments


def test_fragments_shadow_operations() -> None:
    own = "fragment relu( x: T ) -> ( y: T ) { y = x * 10.0; }"
    check("y = relu(x);", X * 10, own)
    inside = "fragment gelu( x: T ) -> ( y: T ) { y = x + 1.0; }"
    check("y = gelu(x);", X + 1, inside)


def test_the_standards_fragments_do_not_see_those_of_the_document() -> None:
    own = "fragment box( x: T ) -> ( y: T ) { y = x; }\n"
    body = "y = local_mean_normalization(x, size = [1, 3]);"
    np.testing.assert_array_equal(run(graph(body, own), X), run(graph(body), X))


def test_a_fragment_knows_its_parameters_only() -> None:
    fragment = "fragment f( a: T ) -> ( y: T ) { y = a + §x; }"
    found = error(graph("y = f(x);", fragment))
    assert found.message == "'x' is not defined here"
    assert [call.fragment for call in found.calls] == ["f"]


def test_a_fragment_does_not_change_its_caller() -> None:
    fragment = "fragment f( x: T ) -> ( y: T ) { x = x + 1.0; y = x; }"
    check("y = f(x) - x;", np.ones_like(X), fragment)


def test_assigned_again_in_a_fragment() -> None:
    check("y = f(x);", X + 3, "fragment f( x: T ) -> ( y: T ) { y = x + 1.0; y = y + 2.0; }")


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        ("scale(x)", X * 2 + 1),
        ("scale(x, 3.0)", X * 3 + 1),
        ("scale(x, 3.0, 4.0)", X * 3 + 4),
        ("scale(x, plus = 4.0)", X * 2 + 4),
        ("scale(plus = 4.0, x = x, by = 3.0)", X * 3 + 4),
        ("scale(plus = 4.0, x)", None),
        ("scale(x, plus = 4.0, by = -1)", -X + 4),
        ("scale(scale(x), plus = 0)", (X * 2 + 1) * 2),
    ],
)
def test_arguments_of_a_fragment(call: str, wanted: Any) -> None:
    if wanted is None:
        # The position counts, not what is left: the second argument is `by`.
        found = error(graph(f"y = §{call};", SCALE))
        assert found.message == "'scale' lacks its argument 'x'"
    else:
        check(f"y = {call};", wanted, SCALE)


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        ("§scale()", "'scale' lacks its argument 'x'", "write scale(..., x = ...)"),
        ("scale(x, 1.0, 2.0, §3.0)", "'scale' takes at most 3 arguments, this is number 4", ""),
        ("scale(x, §bye = 1.0)", "'scale' has no parameter 'bye'", "did you mean 'by'?"),
        ("scale(x, §axes = [1])", "'scale' has no parameter 'axes'", "its parameters are x, by"),
        ("scale(x, 2.0, §by = 1.0)", "argument 'by' is given by position and by name", ""),
        ("concat(x, §axs = 1)", "'concat' has no parameter 'axs'", "did you mean 'axis'?"),
        ("§softmax(x)", "'softmax' lacks its argument 'axes'", ""),
    ],
)
def test_wrong_arguments(call: str, message: str, hint: str) -> None:
    if call == "§softmax(x)":
        check("y = softmax(x);", run(graph("y = softmax(x, axes = [1]);"), X))
        return
    found = error(graph(f"y = {call};", SCALE))
    assert found.message == message and hint in found.hint


def test_element_wise_operations_ignore_what_they_do_not_know() -> None:
    check("y = relu(x, axes = [1], other = nothing_at_all);", np.maximum(X, 0))
    check("y = add(x, axis = 1, y = x);", 2 * X)
    found = error(graph("y = pad(x, [(0, 0), (0, 1)], §axes = [1]);"))
    assert found.message == "'pad' has no parameter 'axes'"


def test_defaults_are_computed_in_the_fragment() -> None:
    fragment = "fragment f( x: T, n: scalar = 2 * 3.0, m: scalar = inf ) -> ( y: T )\n" + (
        "{ y = min(x * n, m); }"
    )
    check("n = 100.0; m = 0.0; y = f(x);", X * 6, fragment)
    found = error(
        graph("z = 1.0; y = f(x);", "fragment f( x: T, n: T = §z ) -> ( y: T ) { y = x; }")
    )
    assert found.message == "'z' is not defined here"


def test_fragments_with_several_results() -> None:
    fragment = "fragment f( x: T ) -> ( a: T, b: T ) { b = x + 1.0; a = b + 1.0; }"
    check("a, b = f(x); y = a - b;", np.ones_like(X), fragment)
    check("all = f(x); y = all[0] - all[1];", np.ones_like(X), fragment)
    found = error(graph("§a, b, c = f(x); y = a;", fragment))
    assert found.message == "2 results cannot be assigned to 3 names"


@pytest.mark.parametrize(
    "fragments",
    [
        "fragment f( x: T ) -> ( y: T ) { y = §f(x); }",
        "fragment f( x: T ) -> ( y: T ) { y = g(x); }\n"
        "fragment g( x: T ) -> ( y: T ) { y = relu(§f(x)); }",
        "fragment f( x: T, z: T = §f(1.0) ) -> ( y: T ) { y = x; }",
        "fragment f( x: T ) -> ( y: T ) { y = §tract_core_scan(body = 'f', scan = [('x', x, 0, 1)],"
        " full = [], state = [], output = [('y', 'full', 0, 1)]); }",
    ],
)
def test_recursion(fragments: str) -> None:
    assert error(graph("y = f(x);", fragments)).message == "fragment 'f' calls itself"


def test_calls_are_nested_to_a_depth() -> None:
    steps = "".join(
        f"fragment f{i}( x: T ) -> ( y: T ) {{ y = f{i + 1}(x); }}\n" for i in range(60)
    )
    check("y = f0(x);", X + 1, steps + "fragment f60( x: T ) -> ( y: T ) { y = x + 1.0; }")
    more = "".join(
        f"fragment f{i}( x: T ) -> ( y: T ) {{ y = f{i + 1}(x); }}\n" for i in range(150)
    )
    last = "fragment f150( x: T ) -> ( y: T ) { y = x; }"
    with pytest.raises(NnefError, match="fragments call each other more than 100 deep"):
        model(graph("y = f0(x);", more + last))


def test_fragments_that_nobody_calls_may_have_anything() -> None:
    check("y = x;", X, "fragment f( x: T ) -> ( y: T ) { y = tract_core_nothing(a, b = c); }")


def test_variables_in_fragments() -> None:
    fragment = (
        "fragment layer( x: T, label: string ) -> ( y: T )\n"
        "{ w = variable<scalar>(label = label, shape = [1, 3]); y = x * w; }"
    )
    data = {"a": np.float32([[0, 1, 2]]), "b": np.full((1, 3), 2, np.float32)}
    text = graph("y = layer(layer(layer(x, 'a'), 'b'), label = 'a');", fragment)
    np.testing.assert_array_equal(run(text, X, data=data), X * data["a"] ** 2 * 2)


# Literals


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("x + 1", X + 1),
        ("x + [[1.0], [2.0]]", X + np.array([[1], [2]], np.float32)),
        ("x + [1, 2]", X + np.array([[1], [2]], np.float32)),
        ("max(x, 0.0)", np.maximum(X, 0)),
        ("max(0, x)", np.maximum(X, 0)),
        ("1.0 - x", 1 - X),
        ("-x", -X),
        ("min(x, inf)", X),
        ("max(x, -inf)", X),
        ("x ^ 2", X**2),
        ("2 * 3 + x", X + 6),
        ("x * (1.0 / 4)", X / 4),
        ("select(x > 0, x, 0.0)", np.maximum(X, 0)),
        ("select(true, x, 0)", X),
        ("linear(x, [[1.0, 2.0, 3.0]], 0.5)", X @ np.array([[1], [2], [3]], np.float32) + 0.5),
        ("concat([x, [[1.0, 2.0, 3.0]]], axis = 0)", np.vstack([X, [[1, 2, 3]]]).astype("f4")),
        ("tract_core_gather(x, 1, axis = 1)", X[:, 1]),
        ("tract_core_gather(x, [[2, 0]], axis = 1)", X[:, [[2, 0]]]),
        ("sum_reduce(x, axes = 1)", X.sum(1, keepdims=True)),
        ("pad(x, padding = [[0, 0], [1, 0]])", np.pad(X, [(0, 0), (1, 0)])),
        ("x < 0", X < 0),
        ("x == 3", X == 3),
        ("constant(shape = [2, 3], value = [2.0]) + x", X + 2),
        ("constant(shape = [1, 3], value = [1.0, 2.0, 3.0]) + x", X + np.float32([1, 2, 3])),
    ],
)
def test_literals_as_tensors(expression: str, wanted: Any) -> None:
    check(f"y = {expression};", wanted)


def test_literals_alone() -> None:
    check("y = 7;", np.int32(7))
    check("y = 1.5;", np.float32(1.5))
    check("y = true;", np.bool_(True))
    check("y = [[1, 2], [3, 4]];", np.array([[1, 2], [3, 4]], np.int32))
    check("y = [1, 2.5];", np.array([1, 2.5], np.float32))
    check("y = [];", np.array([], np.int32))
    check("y = -inf;", np.float32(-np.inf))
    check("y = nan;", np.float32(np.nan))
    check("y = (1, 2);", np.array([1, 2], np.int32))


# Standard fragments without a rule of their own


def test_compound_operations_of_the_standard() -> None:
    image = np.random.default_rng(0).uniform(-1, 1, (1, 2, 6, 6)).astype(np.float32)
    filters = {"plane": np.ones((2, 1, 3, 3), np.float32), "point": np.ones((4, 2, 1, 1), "f4")}
    variables = "".join(
        f"{name} = variable<scalar>(label = '{name}', shape = {list(array.shape)}); "
        for name, array in filters.items()
    )
    for expression in (
        "local_response_normalization(x, size = [1, 2, 1, 1], alpha = 0.5)",
        "local_contrast_normalization(x, size = [1, 1, 3, 3], epsilon = 0.1)",
        "separable_conv(x, plane, point, 0.5)",
        "clamp(x, -0.5, 0.5)",
        "moments(x, axes = [2, 3])[1]",
    ):
        body = f"{variables} y = {expression};"
        got = run(graph(body, x="[1,2,6,6] f32"), image, data=filters)
        if "moments" in expression:
            np.testing.assert_allclose(got, image.var((2, 3), keepdims=True), rtol=1e-5)
            continue
        strict = (
            f"version 1.0; graph net( x ) -> ( y ) {{ x = external(shape = [1,2,6,6]); {body} }}"
        )
        np.testing.assert_allclose(got, run(strict, image, data=filters), rtol=1e-5, atol=1e-6)
