"""Values that are known before a network runs: what is computed of them, what they are used for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nnef_jax.flattening import hostvalues
from tests.tract_text import error, graph, model, run

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
INPUT = {"x": "[2,3,4] f32"}

# Expressions that make known values, and the same in numpy. `a` and `b` are arrays of integers,
# `r` one of real numbers, `t` one of truth values.
KNOWN = {
    "a": np.array([3, -7, 5, 0]),
    "b": np.array([2, 2, -2, 1]),
    "r": np.array([0.5, -1.5, 2.5, -0.5]),
    "t": np.array([True, False, True, True]),
    "m": np.arange(6).reshape(2, 3),
}
A, B, R, T, M = KNOWN.values()
FOLDED: dict[str, Any] = {
    "a + b": A + B,
    "a - b": A - B,
    "a * b": A * B,
    "a / b": np.trunc(A / B).astype(int),
    "a / 2": [1, -3, 2, 0],
    "a / 2.0": A / 2,
    "r / 2": R / 2,
    "7 / 2": 3,
    "-7 / 2": -3,
    "7 / 2.0": 3.5,
    "b ^ 3": B**3,
    "a ^ 2.0": A**2,
    "r ^ 2": R**2,
    "a * 0.5": A * 0.5,
    "a * 2.0": A * 2,
    "min(a, b)": np.minimum(A, B),
    "max(a, 0)": np.maximum(A, 0),
    "max(r, 0.0)": np.maximum(R, 0),
    "a < b": A < B,
    "a <= 3": A <= 3,
    "a > 0": A > 0,
    "a >= b": A >= B,
    "a == b": A == B,
    "a != 0": A != 0,
    "r < 0": R < 0,
    "r == 0.5": R == 0.5,
    "t == true": T,
    "and(t, a > 0)": T & (A > 0),
    "or(t, a > 0)": T | (A > 0),
    "not(t)": ~T,
    "-a": -A,
    "-r": -R,
    "abs(a)": np.abs(A),
    "abs(r)": np.abs(R),
    "sign(a)": np.sign(A),
    "sign(r)": np.sign(R),
    "sqr(a)": A**2,
    "square(r)": R**2,
    "floor(r)": np.floor(R),
    "ceil(r)": np.ceil(R),
    "round(r)": [1.0, -2.0, 3.0, -1.0],
    "tract_core_round_even(r)": np.rint(R),
    "floor(a)": A,
    "copy(a)": A,
    "copy(t)": T,
    "sqrt(abs(r))": np.sqrt(np.abs(R)),
    "rsqrt(abs(r))": 1 / np.sqrt(np.abs(R)),
    "recip(r)": 1 / R,
    "exp(r)": np.exp(R),
    "log(abs(r))": np.log(np.abs(R)),
    "sin(r)": np.sin(R),
    "cos(a)": np.cos(A),
    "select(t, a, b)": np.where(T, A, B),
    "select(a > 0, 1, 0)": np.where(A > 0, 1, 0),
    "select(t, r, 0)": np.where(T, R, 0),
    "select(t, a, 2.0)": np.where(T, A, 2),
    "slice(a, axes = [0], begin = [1], end = [3])": A[1:3],
    "slice(a, axes = [0], begin = [1], end = [0])": A[1:],
    "slice(a, axes = [0], begin = [-3], end = [-1])": A[1:3],
    "slice(a, axes = [0], begin = [0], end = [99])": A,
    "slice(a, axes = [0], begin = [0], end = [4], stride = [3])": A[::3],
    "slice(a, axes = [0], begin = [0], end = [0], stride = [-1])": A[::-1],
    "slice(a, axes = [0], begin = [1], end = [3], stride = [-1])": A[2:0:-1],
    "tract_core_downsample(a, axis = 0, stride = 2, modulo = 1)": A[1::2],
    "slice(m, axes = [1, 0], begin = [1, 0], end = [3, 1])": M[:1, 1:],
    "tract_core_gather(a, 2, axis = 0)": 5,
    "tract_core_gather(a, [-1, 1], axis = 0)": A[[-1, 1]],
    "tract_core_gather(m, [[0, 2]], axis = 1)": M[:, [[0, 2]]],
    "concat([a, b], axis = 0)": np.concatenate([A, B]),
    "concat([a, [0.5]], axis = 0)": np.append(A, 0.5),
    "concat([m, m], axis = 1)": np.concatenate([M, M], 1),
    "stack([a, b], axis = 1)": np.stack([A, B], 1),
    "unstack(m, axis = 0)[1]": M[1],
    "squeeze([[3]], axes = [0, 1])": 3,
    "squeeze([3], axes = [-1])": 3,
    "unsqueeze(a, axes = [0, 2])": A[None, :, None],
    "unsqueeze(a, axes = [0, 0])": A[None, None],
    "transpose(m, axes = [1, 0])": M.T,
    "reshape(m, shape = [3, -1])": M.reshape(3, 2),
    "reshape(m, shape = [0, 3, 1])": M.reshape(2, 3, 1),
    "reshape(m, shape = [3, 1], axis_start = 1, axis_count = 1)": M.reshape(2, 3, 1),
    "tile(a, repeats = [2])": np.tile(A, 2),
    "tract_core_broadcast(a, shape = [3, 4])": np.broadcast_to(A, (3, 4)),
    "sum_reduce(a, axes = [0])": [A.sum()],
    "sum_reduce(m, axes = [0, 1])": [[M.sum()]],
    "max_reduce(m, axes = [1])": M.max(1, keepdims=True),
    "min_reduce(a, axes = [0])": [A.min()],
    "tract_core_product_reduce(b, axes = [0])": [B.prod()],
    "tract_core_cast(r, to = 'i64')": [0, -1, 2, 0],
    "tract_core_cast(a, to = 'f32')": A.astype(float),
    "tract_core_cast(a, to = 'bool')": A != 0,
    "tract_core_cast(t, to = 'tdim')": T.astype(int),
    "tract_core_cast(inf, to = 'bool')": True,
    "tract_core_range(2, 9, 3)": [2, 5, 8],
    "tract_core_range(3, -2, -2)": [3, 1, -1],
    "tract_core_range(0, 0, 1)": np.array([], int),
    "tract_core_shape_of(m)": [2, 3],
    "a[1]": -7,
    "a[-1]": 0,
    "m[1][2]": 5,
    "m + [10, 20]": M + np.array([[10], [20]]),
}


def kind(value: Any) -> str:
    return {"i": "i", "O": "i", "f": "f", "b": "b"}[np.asarray(value).dtype.kind]


def written(value: np.ndarray) -> str:
    return str(value.tolist()).replace("True", "true").replace("False", "false")


SETUP = " ".join(f"{name} = {written(value)};" for name, value in KNOWN.items())


@pytest.fixture(scope="module")
def results() -> dict[str, np.ndarray]:
    """All expressions as outputs of one network, where nothing is left to compute."""
    names = [f"y{i}" for i in range(len(FOLDED))]
    lines = " ".join(f"{n} = {e};\n" for n, e in zip(names, FOLDED, strict=True))
    found = model(graph(SETUP + lines, results=", ".join(names), **INPUT))
    assert {o.kind for o in found.graph.operations} <= {"constant", "values"}
    outputs = found(X)
    return {e: np.asarray(y) for e, y in zip(FOLDED, outputs, strict=True)}


@pytest.mark.parametrize("expression", FOLDED)
def test_known_values(expression: str, results: dict[str, np.ndarray]) -> None:
    got, wanted = results[expression], np.asarray(FOLDED[expression])
    assert got.shape == wanted.shape and kind(got) == kind(wanted)
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


IN_NETWORK = [e for e in FOLDED if "shape_of" not in e and "[1][2]" not in e and "a[" not in e]


def test_every_operation_gives_the_same_in_the_network(results: dict[str, np.ndarray]) -> None:
    """With arrays from outside in the place of the known ones."""
    types = {"i": "i64", "f": "f32", "b": "bool"}
    inputs = {n: f"{list(v.shape)} {types[kind(v)]}" for n, v in KNOWN.items()}
    names = [f"y{i}" for i in range(len(IN_NETWORK))]
    lines = " ".join(f"{n} = {e};\n" for n, e in zip(names, IN_NETWORK, strict=True))
    arrays = [v.astype("f4") if v.dtype.kind == "f" else v for v in KNOWN.values()]
    outputs = run(graph(lines, results=", ".join(names), **inputs), *arrays)
    for expression, got in zip(IN_NETWORK, outputs, strict=True):
        wanted = results[expression]
        assert got.dtype == wanted.dtype and got.shape == wanted.shape, expression
        np.testing.assert_allclose(got, wanted, rtol=1e-5, err_msg=expression)


# Shapes


SHAPE = (
    "s = tract_core_shape_of(x); "
    "d = squeeze(slice(s, axes = [0], begin = [1], end = [2]), axes = [0]);"
)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("y = s;", np.array([2, 3, 4])),
        ("y = d;", 3),
        ("y = reshape(x, shape = [s[0] * d, -1]);", X.reshape(6, 4)),
        ("y = reshape(x, shape = concat([[-1], slice(s, axes=[0], begin=[2], end=[3])], axis=0));",
         X.reshape(6, 4)),
        ("y = reshape(x, shape = [s[0], d / 2 + 2, -1, 2]);", X.reshape(2, 3, 2, 2)),
        ("y = reshape(x, shape = [-1, tract_core_cast(d * 2.0, to = 'i64')]);", X.reshape(4, 6)),
        ("y = tile(x, repeats = [1, d, 1]);", np.tile(X, (1, 3, 1))),
        ("y = slice(x, axes = [1], begin = [d - 2], end = [d]);", X[:, 1:]),
        ("y = slice(x, axes = [-1], begin = [0], end = [d - 1]);", X[..., :2]),
        ("y = x + tract_core_cast(tract_core_range(0, s[2], 1), to = 'f32')[1];", X + 1),
        ("y = tract_core_broadcast([[[1.0]]], shape = s) * x;", X),
        ("y = tract_core_broadcast(1.0, shape = [d, s[2]]);", np.ones((3, 4))),
        ("n = tract_core_cast(d, to = 'f32'); y = x / sqrt(n);", X / np.sqrt(3)),
        ("y = sum_reduce(x, axes = [1]) / d;", X.sum(1, keepdims=True) / 3),
        ("y = pad(x, padding = [(0, 0), (0, 4 - d), (0, 0)]);",
         np.pad(X, [(0, 0), (0, 1), (0, 0)])),
        ("y = tract_core_gather(x, tract_core_range(d - 1, -1, -1), axis = 1);", X[:, ::-1]),
        ("p = tract_core_range(0, d, 1); y = unsqueeze(p, axes = [1]) >= unsqueeze(p, axes = [0]);",
         np.tri(3, dtype=bool)),
        ("y = unsqueeze(x, axes = [select(d == 3, 0, 1)]);", X[None]),
        ("y = tract_core_shape_of(transpose(x, axes = [2, 0, 1]))[0];", 4),
        ("y = squeeze(concat([s, [d]], axis = 0)[3] + x, axes = []);", X + 3),
    ],
)  # fmt: skip
def test_chains_from_shapes(body: str, wanted: Any) -> None:
    got = run(graph(f"{SHAPE} {body}", **INPUT), X)
    assert got.shape == np.shape(wanted) and kind(got) == kind(wanted)
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_parameters_as_attributes() -> None:
    data = {
        "eps": np.array(0.5, np.float64),
        "shape": np.array([4, 6]),
        "k": np.array([1], np.int32),
        "flag": np.array(True),
        "half": np.array(2.75, np.float16),
    }
    variables = "".join(
        f"{n} = variable<scalar>(label = '{n}', shape = {list(v.shape)}); " for n, v in data.items()
    )
    for body, wanted in (
        ("y = reshape(x, shape = shape);", X.reshape(4, 6)),
        ("y = reshape(x, shape = [shape[0], shape[1]]);", X.reshape(4, 6)),
        ("y = tract_core_topk(x, k, axis = 2, largest = flag)[0];", X[..., -1:]),
        ("y = slice(x, axes = [0], begin = k, end = [2]);", X[1:]),
        ("y = leaky_relu(-x, alpha = eps);", -X * 0.5),
        ("y = reshape(x, shape = [tract_core_cast(half, to = 'i64'), -1]);", X.reshape(2, 12)),
        ("y = x * eps;", X * 0.5),
    ):
        got = run(graph(variables + body, **INPUT), X, data=data)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y = §reshape(x, shape = [2.5, -1]);", "'shape': a whole number is due, this is 2.5"),
        ("y = §reshape(x, shape = [inf]);", "'shape': a whole number is due, this is inf"),
        ("y = §reshape(x, shape = [0.0 / 0.0]);", "a whole number is due, but this is none"),
        ("y = §reshape(x, shape = 'ab');", "'shape': a number is due, this is 'ab'"),
        ("y = §reshape(x, shape = x);", "'x' must be known when the network is compiled"),
        ("n = argmax_reduce(x, axes = [1]); y = §reshape(x, shape = [n]);", "'n' must be known"),
        ("y = 1 §/ 0;", "'/': division by 0"),
        ("y = 3 §^ 64;", "'^': the result is no integer of 64 bits"),
        ("y = x + 3000000000 * 3000000000 §* 3000000000;", "no integer of 64 bits"),
        ("y = [[1], [2, 3]] §+ x;", "different lengths"),
        ("y = §tract_core_gather([1, 2], 2, axis = 0);", "index 2 is not in the 2 items of axis 0"),
        ("y = §x[0];", "only arrays and known values have items"),
        ("s = [1, 2]; y = §s[2];", "there is no item 2 among 2"),
        ("s = [1, 2]; y = §s[0.5];", "a whole number is due, this is 0.5"),
        ("y = §pad(x, padding = 1);", "'padding': an array is due, this is 1"),
        ("y = §pad(x, padding = [1]);", "'padding': an array is due, this is 1"),
        ("y = §pad(x, padding = [(1, 2, 3)]);", "2 values are due, these are 3"),
        ("y = §concat([x, 'a'], axis = 0);", "'values[1]': a number is due, this is 'a'"),
        ("y = §tract_core_range(0, 5, 0);", "'step' must not be 0"),
        ("y = §tract_core_range(x, 5, 1);", "'start' must be known"),
        ("y = §tract_core_range([1, 2], 5, 1);", "'start' must be one number, these are 2"),
    ],
)
def test_wrong_values(body: str, message: str) -> None:
    assert message in error(graph(body, **INPUT)).message


# What is too large to be kept on the host


def test_large_values_are_left_to_the_network() -> None:
    size = hostvalues.LARGEST + 1
    for body, wanted in (
        (f"y = tract_core_range(0, {size}, 1);", np.arange(size)),
        (f"y = tract_core_range(1.0, {size}, 1) - 1.0;", np.arange(size - 1).astype("f4")),
        (f"y = tract_core_broadcast(2, shape = [{size}]) + 1;", np.full(size, 3)),
        ("r = tract_core_range(0, 300, 1); y = r + unsqueeze(r, axes = [0]);",
         np.arange(300)[:, None] + np.arange(300)),
        ("r = tract_core_range(0, 60000, 1); y = concat([r, r], axis = 0);",
         np.tile(np.arange(60000), 2)),
        ("r = tract_core_range(0, 60000, 1); y = max_reduce(tile(r, repeats = [2]), axes=[0]);",
         [59999]),
    ):  # fmt: skip
        got = run(graph(body, **INPUT), X)
        assert got.shape == np.shape(wanted)
        np.testing.assert_array_equal(got, wanted)


def test_integers_do_not_wrap() -> None:
    for body, wanted in (
        ("y = 3000000000 * 4 / 4000000000;", 3),
        ("y = sum_reduce([2000000000, 2000000000, -3999999999], axes = [0]);", [1]),
        ("y = 9223372036854775807 - 9223372036854775800;", 7),
        ("y = 2 ^ 62 / 2 ^ 60;", 4),
    ):
        np.testing.assert_array_equal(run(graph(body, **INPUT), X), wanted)
    found = error(graph("y = 3000000000;", results="§y", **INPUT))
    assert "3000000000 does not fit int32" in found.message and "x64" in found.hint
