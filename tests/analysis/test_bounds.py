"""Certified bounds: equal to those of the papers, and never passed."""

from __future__ import annotations

import math
from functools import cache, partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from lowering import jaxpr_evaluation, jaxprs
from lowering.graph import is_float
from nnef_jax import InputError, UnsupportedError, analysis
from nnef_jax.analysis import (
    affine_equations,
    interval_rules,
    intervals,
    linear_bounds,
    relaxations,
)
from nnef_jax.analysis.intervals import Interval, epsilon, interval
from nnef_jax.analysis.linear_bounds import Walk
from tests import op_cases
from tests.analysis import networks
from tests.analysis.known_networks import B, W, document, linear, looked_up, normal
from tests.helpers import model_of
from tests.op_cases import NNEF
from tests.operation_checks import Together
from tests.reference import crown
from tests.tract_text import graph

METHODS = ("interval", "crown-ibp", "crown")
X = normal(3, 4)
close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)

DENSE = {"w1": normal(7, 4), "b1": normal(1, 7), "w2": normal(6, 7), "b2": normal(1, 6)}
DENSE |= {"w3": normal(3, 6), "b3": normal(1, 3)}


TOLERANCES: dict[str, Any] = {
    "float32": {"rtol": 2e-5, "atol": 6e-4},  # rounding is counted in, at its worst
    "float64": {"rtol": 1e-9, "atol": 1e-9},
}


@cache
def dense(
    activation: str,
    dtype: str = "float32",
    end: str = "copy(z)",
    second: str = "",
    layers: int = 3,
) -> nnef_jax.Model:
    """Layers with an activation of § after all but the last, another after the second."""
    body, x = "x = external<scalar>(shape = [0,4]);\n", "x"
    for i in range(1, layers + 1):
        w, b = DENSE[f"w{i}"].shape, DENSE[f"b{i}"].shape
        body += f"w{i} = variable<scalar>(shape = {[*w]}, label = 'w{i}');\n"
        body += f"b{i} = variable<scalar>(shape = {[*b]}, label = 'b{i}');\n"
        result = f"h{i}" if i < layers else "z"
        body += f"{result} = linear({x}, w{i}, b{i});\n"
        if i < layers:
            curve = second or activation if i == 2 else activation
            body, x = body + f"a{i} = {curve.replace('§', f'h{i}')};\n", f"a{i}"
    data = {k: x for k, x in DENSE.items() if int(k[1]) <= layers}
    return model_of(document(body + f"y = {end};\n"), data=data, dtype=dtype)


def dense_layers(count: int) -> list[tuple[Any, Any]]:
    """Return the weight and bias of each layer, in 64 bits."""
    numbers = range(1, count + 1)
    return [(np.float64(DENSE[f"w{i}"]), np.float64(DENSE[f"b{i}"])[0]) for i in numbers]


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def leaky(alpha: float) -> tuple[Any, Any]:
    return lambda x: np.where(x < 0, alpha * x, x), crown.leaky_relu(alpha)


# Of the first layer and of the second: curves that are one, however they are written.
CURVES = {
    "max(§, 0.0); relu(§)": leaky(0),
    "leaky_relu(§, alpha = 0.125); prelu(§, 0.125)": leaky(0.125),
    "sigmoid(§)": (sigmoid, crown.sigmoidal(sigmoid, lambda x: sigmoid(x) * sigmoid(-x))),
    "tanh(§)": (np.tanh, crown.sigmoidal(np.tanh, lambda x: 1 - np.tanh(x) ** 2)),
}


# One activation of each kind, and in 32 bits the one that has a corner, say what all would.
@pytest.mark.parametrize(
    ("activation", "dtype", "count"),
    [
        ("max(§, 0.0); relu(§)", "float32", 3),
        ("sigmoid(§)", "float64", 2),
        *(
            pytest.param(*row, 3, marks=pytest.mark.slow)
            for row in (
                ("max(§, 0.0); relu(§)", "float64"),
                ("leaky_relu(§, alpha = 0.125); prelu(§, 0.125)", "float64"),
                *product(["sigmoid(§)", "tanh(§)"], TOLERANCES),
            )
        ),
    ],
)
def test_linear_bounds_of_dense_layers_are_those_of_the_paper(
    activation: str, dtype: str, count: int
) -> None:
    layers = dense_layers(count)
    curve, sizes = CURVES[activation], (0.0625, 0.25, 0.5)
    first, _, second = activation.partition("; ")
    with jax.enable_x64(dtype == "float64"):
        x = np.asarray(X, dtype)
        model = dense(first, dtype, second=second, layers=count)
        found = analysis.bounds(model, x, epsilon=sizes, target=1)
        lower, upper, margins = map(np.asarray, (found.lower, found.upper, found.margins))
        close = partial(np.testing.assert_allclose, **TOLERANCES[dtype])
        for item, epsilon in enumerate(sizes):
            ends = np.float64(X[item]) - epsilon, np.float64(X[item]) + epsilon
            (low, high), (least, most) = crown.bounds(layers, *curve, *ends)
            low, high = np.maximum(low, least), np.minimum(high, most)
            close(lower[item], low)
            close(upper[item], high)
            assert (lower[item] <= low).all()  # what rounding takes is outside
            assert (upper[item] >= high).all()
            # Margins are of the last layer, less the row of the class.
            weight, bias = layers[-1]
            last = weight[1] - weight, bias[1] - bias
            (low, _), _ = crown.bounds([*layers[:-1], last], *curve, *ends)
            close(margins[item], np.maximum(low, least[1] - most))
            assert margins[item, 1] == 0


def test_what_float32_is_beside_the_paper_is_the_allowance_for_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rounding is counted in at its worst; without that, bounds are as near as 32 bits can be."""
    for module in (affine_equations, interval_rules, intervals, linear_bounds, relaxations):
        monkeypatch.setattr(module, "epsilon", lambda x: 1e-30 * epsilon(x))
    layers = dense_layers(2)
    # No other test has this network, nor its program. The first layer is bounded by an interval.
    model = dense("relu(§)", end="add(z, 0.0)", layers=2)
    found = analysis.bounds(model, X, epsilon=0.25, target=1, method="crown-ibp")
    ends = [crown.bounds(layers, *leaky(0), np.float64(x) - 0.25, np.float64(x) + 0.25) for x in X]
    low, high = np.array(
        [(np.maximum(a, c), np.minimum(b, d)) for (a, b), (c, d) in ends]
    ).swapaxes(0, 1)
    close = partial(np.testing.assert_allclose, rtol=0, atol=1e-6 * np.abs([low, high]).max())
    close(found.lower, low)
    close(found.upper, high)


CONVOLVED = {"f": normal(3, 2, 3, 3), "m": normal(1, 3), "v": np.abs(normal(1, 3)) + 0.5}
CONVOLVED |= {"w": normal(4, 18) / 3}


@cache
def convolved(pool: str = "avg_pool", activation: str = "leaky_relu(n, alpha = 0.2)") -> Any:
    """Convolution, batch normalisation, an activation, pooling and a dense layer."""
    body = f"""
    x = external<scalar>(shape = [0,2,6,5]);
    f = variable<scalar>(shape = [3,2,3,3], label = 'f');
    m = variable<scalar>(shape = [1,3], label = 'm');
    v = variable<scalar>(shape = [1,3], label = 'v');
    c = conv(x, f, 0.25, padding = [(1,1), (1,1)]);
    n = batch_normalization(c, m, v, offset = 0.5, scale = 1.5, epsilon = 0.01);
    r = {activation};
    p = {pool}(r, size = [1,1,2,2], stride = [1,1,2,2], padding = [(0,0),(0,0),(0,0),(0,1)]);
    s = slice(p, axes = [3], begin = [0], end = [2]);
    t = transpose(s, axes = [0,2,3,1]);
    w = variable<scalar>(shape = [4,18], label = 'w');
    q = reshape(t, shape = [0,18]);
    y = linear(q, w, 0.0);
"""
    return model_of(document(body), data=CONVOLVED)


def matrix_of(function: Any, count: int) -> tuple[Any, Any]:
    """The layer that an affine function of flat items is, from what it makes of units."""
    constant = function(np.zeros((1, count)))[0]
    return (function(np.eye(count)) - constant).T, constant


def test_linear_bounds_of_a_convolutional_network_are_those_of_its_matrices() -> None:
    model = convolved()

    def first(x: Any) -> Any:
        x = np.float32(x).reshape(-1, 2, 6, 5)
        return np.float64(model.intermediates(x, names=["n"])["n"]).reshape(len(x), -1)

    head = model.cut(inputs=["r"])

    def second(r: Any) -> Any:
        return np.float64(head(np.float32(r).reshape(-1, 3, 6, 5)))

    layers = [matrix_of(first, 60), matrix_of(second, 90)]
    x = normal(1, 2, 6, 5)
    found = analysis.bounds(model, x, epsilon=0.1)
    flat = np.float64(x).reshape(-1)
    (low, high), (least, most) = crown.bounds(layers, *leaky(0.2), flat - 0.1, flat + 0.1)
    low, high = np.maximum(low, least), np.minimum(high, most)
    close(found.lower[0], low, rtol=1e-5, atol=6e-4)
    close(found.upper[0], high, rtol=1e-5, atol=6e-4)


def test_intervals_are_of_centres_and_radii() -> None:
    low, high = X - 0.1, X + 0.1
    for i in (1, 2, 3):
        w, b = DENSE[f"w{i}"], DENSE[f"b{i}"]
        centre, radius = (low + high) / 2 @ w.T + b, (high - low) / 2 @ np.abs(w).T
        low, high = centre - radius, centre + radius
        if i < 3:
            low, high = np.maximum(low, 0), np.maximum(high, 0)
    found = analysis.bounds(dense("relu(§)"), X, epsilon=0.1, method="interval")
    close(found.lower, low, atol=2e-4)
    close(found.upper, high, atol=2e-4)


def residual(
    bent: str = "elu(sub(gelu(b), x))",
    scaled: str = "div(e, sqrt(add(sqr(e), 0.1)))",
    end: str = "softmax(z)",
) -> nnef_jax.Model:
    """A gate, a residual, a maximum of several and a softmax of what is added up."""
    body = f"""
    x = external<scalar>(shape = [0,2,6]);
    a = silu(x);
    b = add(mul(x, 0.5), a);
    c = concat([b, {bent}], axis = 2);
    d = clamp(c, -0.5, 0.75);
    e = max_reduce(d, axes = [1]);
    z = squeeze({scaled}, axes = [1]);
    y = {end};
"""
    return model_of(document(body))


NETWORKS: dict[str, Any] = {
    "relu, softplus": (lambda: dense("relu(§)", second="softplus(§)"), X, 0.3, None),
    "gelu, tanh": (lambda: dense("gelu(§)", second="tanh(§)"), X, 0.3, None),
    "average": (convolved, normal(3, 2, 6, 5), 0.05, None),
    "maximum": (lambda: convolved("max_pool", "relu(n)"), normal(3, 2, 6, 5), 0.05, None),
    "residual": (residual, normal(3, 2, 6), 0.2, None),
    "short residual": (lambda: residual("sub(b, x)", "e", "copy(z)"), normal(3, 2, 6), 0.2, None),
    "softmax": (lambda: dense("relu(§)", end="softmax(z)"), X, 2.0, (-2, 2)),
    "one layer": (
        lambda: dense("add(relu(§), softplus(§))", end="softmax(z)", layers=2), X, 2.0, (-2, 2)
    ),
}  # fmt: skip
# Methods by networks; what follows back through several layers is compared with the paper above.
QUICK = {"one layer": METHODS[1:2], "short residual": METHODS[::2]}
POINTS = 100_000


@pytest.mark.parametrize(
    ("name", "methods"),
    [*QUICK.items(), *(pytest.param(name, METHODS, marks=pytest.mark.slow) for name in NETWORKS)],
)
def test_no_point_of_many_passes_a_bound(name: str, methods: Any) -> None:
    made, x, epsilon, ends = NETWORKS[name]
    model, random = made(), np.random.default_rng(1)
    x = x if ends is None else x.clip(*ends)
    options: Any = {"epsilon": epsilon, "bounds": ends, "output": "y"}
    found: dict[str, Any] = {}
    for method in methods:
        each = analysis.bounds(model, x, method=method, **options)
        found[method] = np.asarray(each.lower), np.asarray(each.upper)
        assert np.isfinite(found[method]).all()
    (low, high), (narrow_low, narrow_high) = (found[methods[i]] for i in (0, -1))
    assert (narrow_low >= low).all() and (narrow_high <= high).all()
    run, left = jax.jit(partial(model.apply, model.params)), POINTS
    while left > 0:
        count = min(left, 5_000)
        for moved in (random.uniform(-1, 1, (count, *x.shape)), random.choice([-1, 1], x.shape)):
            points = np.float32(x + epsilon * moved).reshape(-1, *x.shape[1:])
            points = points if ends is None else points.clip(*ends)
            y = np.asarray(run(points)).reshape(-1, *low.shape)
            for method, (low, high) in found.items():
                assert (y >= low).all() and (y <= high).all(), method
        left -= count * len(x)


ROWS = "s = {}_reduce({}, axes = [2]); t = transpose(s, axes = [0,2,1])"
QUOTIENTS = {
    # The sum of the exponentials has tighter bounds by lines than by intervals.
    "softmax of x and -x": (
        [1, 1],
        "l = concat([x, neg(x)], axis = 1); y = softmax(l, axes = [1]);",
    ),
    "sums of rows by columns": (
        [1, 2, 2], f"e = exp(x); {ROWS.format('sum', 'e')}; y = div(e, t);",
    ),
    "maxima of rows by columns": ([1, 2, 2], f"{ROWS.format('max', 'x')}; y = sub(x, t);"),
    "sums of numbers of both signs": ([1, 3], "s = sum_reduce(x, axes = [1]); y = div(x, s);"),
    "sums of columns": ([1, 2, 2], "e = exp(x); s = sum_reduce(e, axes = [1]); y = div(e, s);"),
}  # fmt: skip


@pytest.mark.parametrize("name", QUOTIENTS)
@pytest.mark.parametrize("method", METHODS)
def test_quotients_by_sums_stay_within_bounds(name: str, method: Any) -> None:
    shape, body = QUOTIENTS[name]
    model = model_of(document(f"x = external<scalar>(shape = {shape});\n{body}"))
    centre = np.zeros(shape, np.float32)
    if name == "sums of numbers of both signs":
        centre = np.float32([[5, -2, 2]])
    bounds = analysis.bounds(model, centre, epsilon=1.0, method=method, output="y")
    random = np.random.default_rng(0)
    corners = [np.reshape(signs, shape) for signs in product((-1, 1), repeat=math.prod(shape))]
    for x in (*corners, *random.uniform(-1, 1, (200, *shape))):
        y = np.asarray(model(np.float32(centre + x)))
        assert (y >= bounds.lower).all() and (y <= bounds.upper).all()
    if name == "sums of columns":
        assert np.asarray(bounds.upper).max() < 1


def first_of_each_operation() -> list[Any]:
    """A case of each operation that has real results, with what no rule bounds left out."""
    refused = {"logarithmic_quantize"}  # which computes with the bits of numbers
    found: dict[str, Any] = {}
    for case in NNEF:
        if case.operation not in refused:
            found.setdefault(case.operation, case)
    return list(found.values())


def test_a_selection_with_a_long_case_is_bounded() -> None:
    def function(x: Any) -> Any:
        y = x
        for _ in range(7):  # 14 equations: more than are followed to x
            y = y * np.float32(1.25) - np.float32(0.5)
        return jnp.where(x > 0, y, x)

    x = jnp.linspace(-1, 1, 9)
    closed = jaxprs.inlined(jax.make_jaxpr(function)(x))
    (result,) = Walk(closed, [Interval(x - 0.5, x + 0.5)], linear=True, sharp=True).results
    for change in (-0.5, 0.1, 0.5):
        y = function(x + change)
        assert jnp.all((result.low <= y) & (y <= result.high))
    assert jnp.all(jnp.isfinite(result.high - result.low))


def moved(case: Any) -> tuple[list[Any], list[Any]] | None:
    """The inputs of a case with an interval around the first of real numbers, and points in it."""
    given = [np.asarray(x) for x in op_cases.inputs(case)]
    varies = next((i for i, x in enumerate(given) if is_float(str(x.dtype))), None)
    if varies is None:
        return None
    x, random = given[varies], np.random.default_rng(0)
    shape, around = (5, *x.shape), list[Any](given)
    around[varies] = Interval(x - np.float32(0.05), x + np.float32(0.05))
    changes = random.uniform(-0.05, 0.05, shape), random.choice([-0.05, 0.05], shape)
    points = [np.broadcast_to(y, (10, *y.shape)) for y in given]
    points[varies] = np.float32(x + np.concatenate(changes))
    return around, points


def bounds_and_values(name: str) -> tuple[Any, Any]:
    case = BOUNDED[name]
    model = model_of(op_cases.document(case)).with_options(optimize=False)
    closed = jaxprs.inlined(jax.make_jaxpr(lambda *x: model(*x))(*op_cases.inputs(case)))

    def run(around: Any, points: Any) -> Any:
        found = Walk(closed, [*map(array, around)], linear=True, sharp=True).results
        values = jax.lax.map(lambda xs: jaxpr_evaluation.as_function(closed)(*xs), points)
        return values, [(x.low, x.high) for x in map(interval, found)]

    def array(x: Any) -> Any:
        return x if isinstance(x, Interval) else jnp.asarray(x)

    return run, moved(case)


BOUNDED = {x.operation: x for x in first_of_each_operation() if moved(x) is not None}
# Operations that take long to compile, of equations that others have too.
LONG = [
    "area_downsample", "avg_pool", "avg_roi_align", "avg_roi_pool", "batch_normalization", "debox",
    "deconv", "gelu", "l1_normalization", "l2_normalization", "linear",
    "local_contrast_normalization", "local_mean_normalization", "local_response_normalization",
    "local_variance_normalization", "max_roi_align", "mean_reduce", "min_max_linear_quantize",
    "moments", "multilinear_upsample", "prelu", "rms_pool", "roi_resample", "round", "selu",
    "separable_conv", "separable_deconv", "sigmoid", "softabs", "softmax", "softplus", "sum_reduce",
    "linear_quantize",
]  # fmt: skip
OTHERS = [name for name in BOUNDED if name not in LONG]


@pytest.mark.parametrize(
    "names", [OTHERS, pytest.param(LONG, marks=pytest.mark.slow)], ids=["others", "long"]
)
def test_operations_are_bounded(names: list[str]) -> None:
    assert len(OTHERS) > 70
    each = Together(names, bounds_and_values)
    passed: dict[str, str] = {}
    for name in names:
        for y, (low, high) in zip(*jax.tree.map(np.asarray, each(name)), strict=True):
            # Weights that are known are rounded otherwise in another program.
            near = 1e-6 * (1 + np.abs(y)) if y.dtype == np.float32 else 0
            if not ((low <= y + near) & (y <= high + near) | (y != y)).all():
                passed[name] = f"{y} {low} {high}"
    assert not passed


@pytest.mark.parametrize(
    ("method", "layers"),
    [
        ("interval", 2),
        ("crown-ibp", 1),
        *(pytest.param(x, 2, marks=pytest.mark.slow) for x in ("crown-ibp", "crown")),
    ],
)
def test_bounds_have_gradients(method: Any, layers: int) -> None:
    with jax.enable_x64(True):
        end = "copy(z)" if layers > 1 else "tanh(z)"
        model, x = dense("tanh(§)", "float64", end=end, layers=layers), np.float64(X)

        def loss(params: Any) -> Any:
            found = analysis.bounds(model, x, epsilon=0.2, target=1, method=method, params=params)
            return jax.nn.logsumexp(-found.margins, axis=1).sum()

        params = dict(model.params)
        run, change = jax.jit(jax.value_and_grad(loss)), np.float64(normal(7, 4)) / 1e6
        gradient = jax.device_get(run(params)[1])
        weight = np.asarray(params["w1"])
        there, back = (float(run({**params, "w1": weight + c})[0]) for c in (change, -change))
        assert all(np.isfinite(x).all() for x in gradient.values())
        slope = (gradient["w1"] * change).sum()
        np.testing.assert_allclose(slope, (there - back) / 2, rtol=1e-4)


def test_bounds_are_functions_of_jax() -> None:
    def one(params: Any, x: Any, epsilon: Any) -> Any:
        found = analysis.bounds(linear(), x[None], epsilon=epsilon, method="crown", params=params)
        return found.lower[0]

    sizes = np.float32([0.1, 0.2, 0.3])
    found = jax.jit(jax.vmap(one, (None, 0, 0)))(linear().params, X, sizes)
    close(found, X @ W.T + B - sizes[:, None] * np.abs(W).sum(1), atol=2e-5)


def test_networks_of_one_batch_and_tensors_inside_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w = normal(3, 4)
    found = analysis.bounds(networks.linear(w), X[:2], epsilon=0.5, method="interval")
    close(found.lower, X[:2] @ w.T - 0.5 * np.abs(w).sum(1), atol=2e-5)
    ids = np.array([[0, 1, 2], [4, 4, 3]])
    table = analysis.bounds(looked_up(), ids, wrt="e", epsilon=0.0, method="interval")
    close(table.lower, looked_up()(ids), atol=2e-5)
    # both ends of a margin, a third of all outputs'
    monkeypatch.setattr(linear_bounds, "_PASSES", 2)
    margin = analysis.bounds(linear(), X, epsilon=0.5, target=lambda y: y[:, 0] - y[:, 2])
    close(margin.lower, X @ W.T + B - 0.5 * np.abs(W).sum(1), atol=2e-5)
    row = W[0] - W[2]
    close(margin.margin, X @ row + B[0, 0] - B[0, 2] - 0.5 * np.abs(row).sum(), atol=2e-5)
    assert margin.classes is None


def test_what_is_not_bounded_is_told() -> None:
    body = "x = external<scalar>(shape = [0,4]);\nh = mul(x, 2.0);\n"
    text = document(body + "y = logarithmic_quantize(h, max = 1.0, bits = 8);\n")
    with pytest.raises(UnsupportedError, match="no rule bounds 'logarithmic_quantize'") as caught:
        analysis.bounds(model_of(text), X, epsilon=0.1)
    assert caught.value.span is not None and caught.value.span.line == 6
    assert caught.value.hint == "bound its operand: output='h'"
    half = model_of(document(body + "y = copy(h);\n"), dtype="bfloat16")
    with pytest.raises(UnsupportedError, match="is of bfloat16, bounds are computed in 32 bits"):
        analysis.bounds(half, jnp.asarray(X, jnp.bfloat16), epsilon=0.1)
    with pytest.raises(ValueError, match="method must be one of interval, crown-ibp, crown"):
        analysis.bounds(linear(), X, epsilon=0.1, method="ibp")
    with pytest.raises(InputError, match=r"epsilon is \[5\], 'x' has 3 items"):
        analysis.bounds(linear(), X, epsilon=np.ones(5))
    with pytest.raises(ValueError, match="epsilon must be at least 0"):
        analysis.bounds(linear(), X, epsilon=-1)


def test_a_document_of_tract_is_bounded_too() -> None:
    text = graph("h = leaky_relu(x, alpha = 0.5);\ny = h;", x="[2,3] f32")
    found = analysis.bounds(model_of(text), X[:2, :3], epsilon=0.1, method="interval")
    low = X[:2, :3] - 0.1
    close(found.lower, np.where(low < 0, low / 2, low))
