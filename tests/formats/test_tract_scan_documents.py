"""`tract_core_scan` in documents: how bodies are bound, in all the forms that writers have."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from tests.helpers import model_of
from tests.tract_text import error, graph, model, run

X = np.random.default_rng(5).uniform(-1, 1, (2, 5, 3)).astype(np.float32)
INPUT = {"x": "[2,5,3] f32"}
SUM = "fragment sum( a: T, s: T ) -> ( t: T ) { t = s + a; }\n"
START = "zero = tile([[[0.0]]], repeats = [2, 1, 3]);"


def scan(arguments: str) -> str:
    return f"tract_core_scan({arguments})"


def running(x: np.ndarray, axis: int, step: int = 1) -> np.ndarray:
    """The running sum along an axis, from its end where step is below 0."""
    return np.flip(np.flip(x, axis).cumsum(axis), axis) if step < 0 else x.cumsum(axis)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (
            "body = 'sum', scan = [('a', x, 1, 1)], full = [], state = [('s', zero, 't')],"
            " output = [('t', 'full', 1, 1)]",
            running(X, 1),
        ),
        (
            "'sum', [('a', x, 1, 1)], [], [('s', zero, 't')], [('t', 'full', 1, 1)], 0, 0, 0",
            running(X, 1),
        ),
        (
            'body="sum", scan=[("a", x, 1, 1)], full=[], state=[("s", zero, "t")],'
            ' output=[("t", "full", 1)], skip=0, reset_every_turn=false, external_state=0',
            running(X, 1),
        ),
        (
            "body = 'sum', scan = [('a', x, -2, 1)], full = [], state = [('s', zero, 't')],"
            " output = [('t', 'full', -2, 1)], reset_every_turn = 0",
            running(X, 1),
        ),
        (
            "body = 'sum', scan = [('a', x, 1, -1)], full = [], state = [('s', zero, 't')],"
            " output = [('t', 'full', 1, -1)]",
            running(X, 1, -1),
        ),
        (
            "body = 'sum', scan = [('a', x, 1, -1)], full = [], state = [('s', zero, 't')],"
            " output = [('t', 'full', 1, 1)]",
            np.flip(X, 1).cumsum(1),
        ),
        (
            "body = 'sum', scan = [('a', x, 1, 1)], full = [], state = [('s', zero, 't')],"
            " output = [('t', 'last', 0, 1)]",
            X.sum(1, keepdims=True),
        ),
        (
            "body = 'sum', scan = [('a', x, 1, 1)], full = [], state = [('s', zero, 't')],"
            " output = [('t', 'full', 2, 1)]",
            running(X, 1).transpose(0, 2, 1).reshape(2, 3, 5).transpose(0, 2, 1).reshape(2, 1, 15),
        ),
        (
            "body = 'sum', scan = [('a', x, 1, 1)], full = [('s', zero)], state = [],"
            " output = [('t', 'full', 1, 1)]",
            X,
        ),
        (
            "body = 'sum', scan = [('a', x, 1, 1)], full = [('s', 10)], state = [],"
            " output = [('t', 'full', 1, 1)]",
            X + 10,
        ),
        (
            "body = 'sum', scan = ('a', x, 1, 1), full = [], state = ('s', zero, 't'),"
            " output = ('t', 'full', 1, 1)",
            running(X, 1),
        ),
    ],
)
def test_forms(arguments: str, wanted: np.ndarray) -> None:
    got = run(graph(f"{START} y = {scan(arguments)};", SUM, **INPUT), X)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_chunks_of_several_items() -> None:
    body = "fragment pair( a: T ) -> ( y: T, n: T ) { y = sum_reduce(a, axes = [1]); n = a * 2.0; }"
    text = graph(
        "y, n = tract_core_scan(body = 'pair', scan = [('a', x, 1, 2)], full = [], state = [],"
        " output = [('y', 'full', 1, 1), ('n', 'full', 1, 2)]);",
        body,
        results="y, n",
        x="[2,6,3] f32",
    )
    x = np.concatenate([X, X[:, :1]], 1)
    y, n = run(text, x)
    np.testing.assert_allclose(y, x.reshape(2, 3, 2, 3).sum(2), rtol=1e-5)
    np.testing.assert_allclose(n, x * 2, rtol=1e-5)


# An LSTM as torch_to_nnef writes it, with escaped names, variables and fragments in the body.

LSTM = """
fragment gate( a: T, w: T ) -> ( y: T ) { y = sigmoid(matmul(a, w)); }
fragment i"lstm.1/body"( i"x.t": T, i"h/1": T, c: T, forget: T ) -> ( i"h.next": T, i"c:next": T )
{
    w = variable<scalar>(label = 'w', shape = [1, 7, 4]);
    b = variable<scalar>(label = 'b', shape = [1, 1, 4]);
    joined = concat([i"x.t", i"h/1"], axis = 2);
    g = tanh(matmul(joined, w) + b);
    f = gate(joined, forget);
    i"c:next" = f * c + (1.0 - f) * g;
    i"h.next" = tanh(i"c:next");
}
"""
LSTM_GRAPH = graph(
    """
    h0 = tile([[[0.0]]], repeats = [2, 1, 4]);
    forget = variable<scalar>(label = 'forget', shape = [1, 7, 4]);
    (hs, h, c) = tract_core_scan(
        body = "lstm.1/body",
        scan = [("x_t", x, 1, 1)],
        full = [("forget", forget)],
        state = [("h_1", h0, "h_next"), ("c", h0, "c_next")],
        output = [("h_next", "full", 1, 1), ("h.next", "last", 1, 1), ("c:next", "last", 1, 1)],
        skip = 0);
    """,
    LSTM,
    results="hs, h, c",
    **INPUT,
)
WEIGHTS = {
    "w": np.random.default_rng(1).uniform(-1, 1, (1, 7, 4)).astype(np.float32),
    "b": np.random.default_rng(2).uniform(-1, 1, (1, 1, 4)).astype(np.float32),
    "forget": np.random.default_rng(3).uniform(-1, 1, (1, 7, 4)).astype(np.float32),
}


def lstm(params: Any, x: Any) -> list[Any]:
    h = c = np.zeros((2, 1, 4))
    hs = []
    for t in range(x.shape[1]):
        joined = np.concatenate([x[:, t : t + 1], h], 2)
        f = 1 / (1 + np.exp(-(joined @ params["forget"])))
        c = f * c + (1 - f) * np.tanh(joined @ params["w"] + params["b"])
        h = np.tanh(c)
        hs.append(h)
    return [np.concatenate(hs, 1), h, c]


def test_lstm() -> None:
    found = model_of(LSTM_GRAPH, data=WEIGHTS)
    assert sorted(found.params) == ["b", "forget", "w"]
    for got, wanted in zip(found(X), lstm(WEIGHTS, X), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_gradients_through_a_scan() -> None:
    found = model_of(LSTM_GRAPH, data=WEIGHTS)
    random = np.random.default_rng(8)

    def loss(outputs: Any) -> Any:
        return sum((y**2).sum() for y in outputs)

    gradient = jax.jit(jax.grad(lambda p, x: loss(found.apply(p, x)), (0, 1)))(found.params, X)
    leaves, tree = jax.tree.flatten((WEIGHTS, X))
    for k, slope in enumerate(jax.tree.leaves(gradient)):
        step = 1e-5 * random.uniform(-1, 1, slope.shape)
        sides = [[*leaves[:k], leaves[k] + s * step, *leaves[k + 1 :]] for s in (1, -1)]
        one, two = (loss(lstm(*tree.unflatten(side))) for side in sides)
        np.testing.assert_allclose(np.vdot(slope, step), (one - two) / 2, rtol=1e-4)


def test_vmap_over_a_scan() -> None:
    xs = np.stack([X, X[::-1], -X])
    wanted = [np.stack(each) for each in zip(*(lstm(WEIGHTS, x) for x in xs), strict=True)]
    for got, due in zip(jax.vmap(model_of(LSTM_GRAPH, data=WEIGHTS))(xs), wanted, strict=True):
        np.testing.assert_allclose(got, due, rtol=1e-5, atol=1e-6)


# What bodies may be given


def test_known_values_stay_known_in_the_body() -> None:
    body = (
        "fragment f( a: T, n: integer, shape: integer[], s: T ) -> ( y: T, t: T )\n"
        "{ y = tile(reshape(a, shape = shape), repeats = [n, 1]); t = s + n; }"
    )
    text = graph(
        "n = tract_core_shape_of(x)[0]; y, t = tract_core_scan(body = 'f',"
        " scan = [('a', x, 1, 1)], full = [('n', n + 1), ('shape', [1, 6])],"
        " state = [('s', n, 't')], output = [('y', 'full', 0, 1), ('t', 'last', 0, 1)]);",
        body,
        results="y, t",
        **INPUT,
    )
    y, t = run(text, X)
    np.testing.assert_allclose(
        y, np.concatenate([np.tile(X[:, i].reshape(1, 6), (3, 1)) for i in range(5)])
    )
    assert t.dtype == np.int32 and t == 2 + 5 * 3


@pytest.mark.parametrize(
    ("start", "after", "dtype"),
    [
        ("0", "t = s + sum_reduce(a, axes = [0, 1, 2]);", "float32"),
        ("0.5", "t = s * 0.5 + 1.0;", "float32"),
        ("0", "t = s + 1;", "int32"),
        ("false", "t = or(s, any_reduce(a > 0.0, axes = [0, 1, 2]));", "bool"),
        ("h", "t = s + tract_core_cast(1, to = 'f16');", "float16"),
    ],
)
def test_states_that_start_as_literals(start: str, after: str, dtype: str) -> None:
    body = f"fragment f( a: T, s: T ) -> ( t: T ) {{ {after} }}"
    shape = "[[[" + start + "]]]" if start != "h" else start
    text = graph(
        f"y = tract_core_scan(body = 'f', scan = [('a', x, 1, 1)], full = [],"
        f" state = [('s', {shape}, 't')], output = [('t', 'last', 0, 1)]);",
        body,
        **INPUT,
        h="[1,1,1] f16",
    )
    assert run(text, X, np.zeros((1, 1, 1), np.float16)).dtype == dtype


def test_a_scan_in_the_body_of_a_scan() -> None:
    bodies = """
    fragment inner( v: T, s: T, k: T ) -> ( t: T )
    { w = variable<scalar>(label = 'w', shape = [1, 1, 1]); t = s + v * w * k; }
    fragment outer( a: T, total: T ) -> ( next: T, row: T )
    {
        row = tract_core_scan(body = 'inner', scan = [('v', a, 2, 1)], full = [('k', [[[2.0]]])],
            state = [('s', tile([[[0.0]]], repeats = [2, 1, 1]), 't')],
            output = [('t', 'full', 2, 1)]);
        next = total + row;
    }
    """
    text = graph(
        f"{START} (y, rows) = tract_core_scan(body = 'outer', scan = [('a', x, 1, 1)], full = [],"
        " state = [('total', zero, 'next')],"
        " output = [('next', 'last', 1, 1), ('row', 'full', 1, 1)]);",
        bodies,
        results="y, rows",
        **INPUT,
    )
    found = model_of(text, data={"w": np.full((1, 1, 1), 0.5, np.float32)})
    y, rows = found(X)
    np.testing.assert_allclose(rows, X.cumsum(2), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(y, X.cumsum(2).sum(1, keepdims=True), rtol=1e-5, atol=1e-6)
    assert list(found.params) == ["w"]


def test_a_scan_in_a_fragment_twice() -> None:
    fragments = SUM + (
        "fragment total( v: T ) -> ( r: T )\n"
        "{ z = tile([[[0.0]]], repeats = [2, 1, 3]); r = tract_core_scan(body = 'sum',"
        " scan = [('a', v, 1, 1)], full = [], state = [('s', z, 't')],"
        " output = [('t', 'full', 1, 1)]); }"
    )
    got = run(graph("y = total(total(x));", fragments, **INPUT), X)
    np.testing.assert_allclose(got, X.cumsum(1).cumsum(1), rtol=1e-5, atol=1e-5)


def test_a_length_that_each_call_chooses() -> None:
    text = graph(
        f"{START} y = tract_core_scan(body = 'sum', scan = [('a', x, 1, 1)], full = [],"
        " state = [('s', zero, 't')], output = [('t', 'full', 1, 1)]);",
        SUM,
        x="[2,S,3] f32",
    )
    found = model(text)
    assert found.outputs[0].shape == (2, None, 3)
    for length in (5, 1, 3):
        np.testing.assert_allclose(found(X[:, :length]), X[:, :length].cumsum(1), rtol=1e-5)


def test_results_that_are_parameters_of_the_body() -> None:
    body = "fragment swap( a: T, s: T, w: T ) -> ( y: T ) { y = a; }"
    text = graph(
        "y, s, w = tract_core_scan(body = 'swap', scan = [('a', x, 1, 1)], full = [('w', 7)],"
        " state = [('s', slice(x, axes=[1], begin=[0], end=[1]), 'a')],"
        " output = [('s', 'full', 1, 1), ('s', 'last', 1, 1), ('w', 'last', 0, 1)]);",
        body,
        results="y, s, w",
        **INPUT,
    )
    y, s, w = run(text, X)
    np.testing.assert_array_equal(y, np.concatenate([X[:, :1], X[:, :-1]], 1))
    np.testing.assert_array_equal(s, X[:, -2:-1])
    assert w == 7


# What is wrong

CALL = {
    "body": "'sum'",
    "scan": "[('a', x, 1, 1)]",
    "full": "[]",
    "state": "[('s', zero, 't')]",
    "output": "[('t', 'full', 1, 1)]",
}


@pytest.mark.parametrize(
    ("changed", "message", "hint"),
    [
        ({"body": "'nothing'"}, "the document has no fragment 'nothing' for 'body'", ""),
        ({"body": "3"}, "a string is due, this is 3", ""),
        ({"state": "[]"}, "the body's 's' has no value", "must be in 'scan', 'full' or"),
        ({"scan": "[('b', x, 1, 1)]"}, "fragment 'sum' has no parameter 'b'", "are a, s"),
        (
            {"scan": "[('a', x, 3, 1)]"},
            "cannot cut a tensor float32[2,5,3] along axis 3 by 1",
            "",
        ),
        ({"scan": "[('a', x, 1, 0)]"}, "along axis 1 by 0", ""),
        ({"scan": "[('a', x, 1)]"}, "'scan' is a list of tuples of 4 values", ""),
        ({"scan": "[(x, 'a', 1, 1)]"}, "must name parameters and results of the body", ""),
        ({"scan": "[('a', x, x, 1)]"}, "'x' must be known when the network is compiled", ""),
        ({"scan": "[('a', x, 1.5, 1)]"}, "a whole number is due, this is 1.5", ""),
        ({"scan": "x"}, "'scan' is a list of tuples of 4 values", ""),
        ({"scan": "[]", "full": "[('a', x)]"}, "must name at least one tensor", "how often"),
        ({"full": "[('a', x)]"}, "parameter 'a' of the body is given twice", ""),
        ({"state": "[('s', zero, 'u')]"}, "'u' is not defined here", ""),
        ({"state": "[('s', [[[0.0]]], 't')]"}, "state 's' has shape [1,1,1] at first and", ""),
        ({"output": "[('t', 'fully', 1, 1)]"}, 'must ask for "full" or "last"', ""),
        ({"output": "[('t', 'full', 5, 1)]"}, "must lie in", ""),
        ({"output": "[('v', 'full', 1, 1)]"}, "'v' is not defined here", ""),
        ({"output": "[('t', 'full')]"}, "'output' is a list of tuples of 4 values", ""),
        ({"skip": "-1"}, "'skip' must not be negative, it is -1", ""),
        ({"skip": "x"}, "'x' must be known", ""),
        ({"more": "1"}, "'tract_core_scan' has no parameter 'more'", "its parameters are body"),
    ],
)
def test_wrong_scans(changed: dict[str, str], message: str, hint: str) -> None:
    arguments = ", ".join(f"{name} = {value}" for name, value in (CALL | changed).items())
    mark = "§tract_core_scan(" if "more" not in changed else "tract_core_scan("
    arguments = arguments.replace("more =", "§more =")
    found = error(graph(f"{START} y = {mark}{arguments});", SUM, **INPUT))
    assert message in found.message and hint in found.hint


def test_errors_in_the_body_say_where_it_is_called() -> None:
    body = "fragment sum( a: T, s: T ) -> ( t: T ) { t = §concat([a, s], axis = 7); }"
    arguments = ", ".join(f"{name} = {value}" for name, value in CALL.items())
    found = error(graph(f"{START} y = tract_core_scan({arguments});", body, **INPUT))
    assert "'axis' must lie in" in found.message
    assert [call.fragment for call in found.calls] == ["sum"]
    assert found.calls[0].span is not None and found.calls[0].span.line == 7
