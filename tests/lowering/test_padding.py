"""Programs with symbolic extents compute on padded arrays what they compute on the items alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from lowering.jaxpr_evaluation import make_jaxpr
from lowering.padding import NotPaddableError, padded
from lowering.padding_state import neutral
from lowering.program import Program
from lowering.symbol_values import SymbolValues

MOST = 9
P = "P"  # stands for the symbolic extent in a shape
Shapes = Sequence[tuple[Any, ...]]


def with_extent(shape: tuple[Any, ...], extent: Any) -> tuple[Any, ...]:
    return tuple(extent if n == P else n for n in shape)


def traced(function: Callable[..., Any], shapes: Shapes) -> Program:
    (extent,) = jax.export.symbolic_shape(P, constraints=[f"{P} <= {MOST}"])
    types = [jax.ShapeDtypeStruct(with_extent(x, extent), "float32") for x in shapes]
    return Program(make_jaxpr(function, *types)).low_level()


def attend(q: Any, k: Any, v: Any) -> Any:
    """Causal attention of the last two tokens, by softmax, as exporters spell it."""
    positions = jnp.arange(k.shape[0])
    seen = positions[None] <= k.shape[0] - 2 + jnp.arange(2)[:, None]
    return jax.nn.softmax(jnp.where(seen, q @ k.T, -1e9)) @ v


FUNCTIONS: dict[str, tuple[Callable[..., Any], Shapes]] = {
    "softmax": (lambda x: jax.nn.softmax(x, -1) @ jnp.ones((x.shape[-1], 3)), [(4, P)]),
    "attention": (attend, [(2, 3), (P, 3), (P, 2)]),
    "concatenate": (lambda x, y: jnp.concatenate([x, y], 0).mean(0), [(P, 3), (2, 3)]),
    "three parts": (lambda x, y: jnp.concatenate([y, x, y, x], 0), [(P, 3), (2, 3)]),
    "reshape": (lambda x: x.reshape(-1).max(), [(P, 3)]),
    "reshape of rows with padding": (lambda x: x.reshape(-1), [(3, P)]),
    "reshape to rows with padding": (lambda x: x.reshape(2, x.shape[0], 2), [(P, 4)]),
    "reshape of two padded axes": (lambda x: x.reshape(-1, 3), [(P, 3, P)]),
    "repetitions": (lambda x: jnp.tile(x, (2, 1)), [(P, 3)]),
    "repetitions by an extent": (lambda x, y: jnp.tile(y, (x.shape[0], 2)), [(P, 3), (2, 1)]),
    "scatter": (
        lambda x, y: jnp.zeros((20, 3)).at[2 * jnp.arange(x.shape[0])].set(x) + y,
        [(P, 3), (20, 3)],
    ),
    "scatter to rows of a list": (lambda x: x.at[jnp.array([0, -1])].set(5.0), [(P, 3)]),
    "sums by index": (
        lambda x, y: y.at[jnp.arange(x.shape[0]) % 2].add(x),
        [(P, 3), (2, 3)],
    ),
    "maxima by index": (
        lambda x, y: y.at[jnp.arange(x.shape[0]) % 2].max(x),
        [(P, 3), (2, 3)],
    ),
    "scan along a list": (
        lambda x, y: lax.scan(lambda carry, row: (carry * row, carry.max()), y, x),
        [(P, 3), (3,)],
    ),
    "scan from the end of a list": (
        lambda x, y: lax.scan(lambda carry, row: (carry * row, carry), y, x, reverse=True),
        [(P, 3), (3,)],
    ),
    "last item": (lambda x: x[-1], [(P, 3)]),
    "first items": (lambda x, y: jnp.concatenate([x, y], 0)[: x.shape[0]], [(P, 3), (2, 3)]),
    "items after": (lambda x, y: jnp.concatenate([x, y], 0)[x.shape[0] :], [(P, 3), (2, 3)]),
    "reverse": (lambda x: x[::-1].argmin(0), [(P, 3)]),
    "sort": (lambda x: jnp.sort(x, 0), [(P, 3)]),
    "order": (lambda x: jnp.argsort(x, 0), [(P, 3)]),
    "cumsum": (lambda x: jnp.cumsum(x, 0), [(P, 3)]),
    "cumsum from the end": (lambda x: lax.cumsum(x, 0, reverse=True), [(P, 3)]),
    "arange": (lambda x: jnp.arange(x.shape[0], dtype="float32") * 2 + x.sum(), [(P, 3)]),
    "extent": (lambda x: x / x.shape[0], [(P, 3)]),
    "pad": (lambda x: jnp.pad(x, ((1, 2), (0, 0)), constant_values=7.0), [(P, 3)]),
    "top_k": (lambda x: lax.top_k(x.T, 1), [(P, 3)]),
    "gather": (lambda x: x[jnp.array([0, -1])], [(P, 3)]),
    "einsum": (lambda x: jnp.einsum("pd,pe->de", x, x), [(P, 3)]),
    "outer product": (lambda x: (x @ x.T).sum(), [(P, 3)]),
    "variance": (lambda x: jnp.var(x, 0), [(P, 3)]),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, 0), [(P, 3)]),
    "product": (lambda x: x.prod(0), [(P, 3)]),
    "any": (lambda x: ((x > 1).any(0), (x > 1).all(0)), [(P, 3)]),
    "split": (lambda x: jnp.split(x, [1], 0), [(P, 3)]),
    "roll": (lambda x: jnp.roll(x, 1, 0), [(P, 3)]),
    "tile": (lambda x, y: jnp.tile(y, (x.shape[0], 1)) + x[:, :1], [(P, 3), (1, 3)]),
    "where": (lambda x: jnp.where(x > 0, x, 0).sum(0), [(P, 3)]),
    "convolution": (
        lambda x, f: lax.conv(x.T[None], f, (1,), "SAME"),
        [(P, 3), (2, 3, 3)],
    ),
    "scan": (
        lambda x, y: lax.scan(lambda carry, row: (carry + row[None], carry.max()), x, y),
        [(P, 3), (4, 3)],
    ),
    "branches": (
        lambda x: lax.cond(jnp.asarray(x.shape[0]) > 2, lambda x: x.sum(0), lambda x: x.max(0), x),
        [(P, 3)],
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_padding_is_not_read(name: str) -> None:
    function, shapes = FUNCTIONS[name]
    program = traced(function, shapes)
    random = np.random.default_rng(0)

    @jax.jit
    def run(count: jax.Array, *arrays: jax.Array) -> list[jax.Array]:
        return padded(program, arrays, SymbolValues({P: MOST}, {P: count}))

    for count in (1, 2, 5, MOST):
        arrays = [random.standard_normal(with_extent(x, count), np.float32) for x in shapes]
        expected = jax.tree.leaves(function(*map(jnp.asarray, arrays)))
        results = run(jnp.int32(count), *map(with_padding, arrays, shapes))
        for x, y in zip(results, expected, strict=True):
            items = x[tuple(slice(0, n) for n in y.shape)]
            np.testing.assert_allclose(items, y, rtol=1e-5, atol=1e-5)


def with_padding(x: np.ndarray, shape: tuple[Any, ...]) -> np.ndarray:
    """Return an array with NaN behind its items."""
    y = np.full(with_extent(shape, MOST), np.nan, np.float32)
    y[tuple(slice(0, n) for n in x.shape)] = x
    return y


def test_derivatives_and_batches() -> None:
    """Derivatives of padded arrays are those of the items, and 0 for padding; rows have counts."""
    function, shapes = FUNCTIONS["attention"]
    program = traced(function, shapes)
    random = np.random.default_rng(0)

    def run(count: jax.Array, *arrays: jax.Array) -> jax.Array:
        return padded(program, arrays, SymbolValues({P: MOST}, {P: count}), range(3))[0].sum()

    counts = (2, 6)
    rows = [[random.standard_normal(with_extent(x, n), np.float32) for x in shapes] for n in counts]
    stacked = [
        jnp.stack([np.nan_to_num(with_padding(row[i], shapes[i])) for row in rows])
        for i in range(3)
    ]
    gradients = jax.vmap(jax.grad(run, (1, 2, 3)))(jnp.asarray(counts), *stacked)
    for k, row in enumerate(rows):
        expected = jax.grad(lambda *x: function(*x).sum(), (0, 1, 2))(*map(jnp.asarray, row))
        for gradient, y in zip(gradients, expected, strict=True):
            items = tuple(slice(0, n) for n in y.shape)
            np.testing.assert_allclose(gradient[k][items], y, rtol=1e-4, atol=1e-5)
            assert not np.asarray(gradient[k]).copy()[y.shape[0] :].any()


def test_calls_of_one_function_with_other_padding() -> None:
    """A product hides padding that may be NaN, although an earlier call of it needed not."""

    @jax.jit
    def multiply(x: Any, y: Any) -> Any:
        return x @ y

    def both(x: Any, y: Any) -> Any:
        return multiply(x, y) + multiply(jnp.sqrt(x), jnp.sqrt(y))

    program = traced(both, [(2, P), (P, 2)])
    x, y = jnp.full((2, MOST), 4.0), jnp.full((MOST, 2), 9.0)
    x, y = x.at[:, 3:].set(-1), y.at[3:].set(-1)  # finite padding, whose root is NaN
    (result,) = padded(program, [x, y], SymbolValues({P: MOST}, {P: jnp.int32(3)}), finite=(0, 1))
    np.testing.assert_allclose(result, np.full((2, 2), 3 * 36.0 + 3 * 6.0))


def test_lists_without_items() -> None:
    """Sums are 0, scatters write nothing, and loops have no iterations."""
    for name in ("scatter", "sums by index", "scan along a list", "repetitions", "concatenate"):
        function, shapes = FUNCTIONS[name]
        program = traced(function, shapes)
        arrays = [np.ones(with_extent(x, 0), np.float32) for x in shapes]
        expected = jax.tree.leaves(function(*map(jnp.asarray, arrays)))
        padded_arrays = [jnp.asarray(with_padding(*x)) for x in zip(arrays, shapes, strict=True)]
        results = padded(program, padded_arrays, SymbolValues({P: MOST}, {P: jnp.int32(0)}))
        for x, y in zip(results, expected, strict=True):
            items = x[tuple(slice(0, n) for n in y.shape)]
            np.testing.assert_allclose(items, y, err_msg=name)


def test_derivatives_that_a_function_defines() -> None:
    """The derivative of max(x, 0) is 1/2 at 0, and that of `relu` is 0."""

    def total(x: Any) -> Any:
        return jax.nn.relu(x).sum()

    program = traced(total, [(P,)])
    symbols = SymbolValues({P: MOST}, {P: jnp.int32(3)})
    x = jnp.array([0.0, 2.0, -1.0, 5.0, *[0.0] * 5])
    slope = jax.jit(jax.grad(lambda x: padded(program, [x], symbols)[0]))(x)
    np.testing.assert_array_equal(slope, [0, 1, 0, *[0] * 6])
    slopes = jax.vmap(jax.grad(lambda x: padded(program, [x], symbols)[0]))(jnp.stack([x, -x]))
    np.testing.assert_array_equal(slopes[:, :3], [[0, 1, 0], [0, 0, 1]])
    second = jax.grad(lambda x: jax.jvp(lambda x: padded(program, [x], symbols)[0], [x], [x])[1])
    np.testing.assert_array_equal(second(x)[:3], [0, 1, 0])


def test_padding_has_no_derivatives() -> None:
    """The root of what is looked up has an infinite derivative at 0, where padding is 0."""

    def total(table: Any, x: Any) -> Any:
        return jnp.sqrt(table[jnp.arange(x.shape[0])]).sum()

    program = traced(total, [(MOST,), (P,)])
    symbols = SymbolValues({P: MOST}, {P: jnp.int32(2)})
    table = jnp.array([1.0, 4.0, *[0.0] * 7])
    slope = jax.grad(lambda table: padded(program, [table, table], symbols)[0])(table)
    np.testing.assert_allclose(slope, [0.5, 0.25, *[0] * 7])


@pytest.mark.parametrize(
    ("function", "shapes", "argument"),
    [
        (lambda x, y: x @ y, [(P, 3), (3, 2)], 1),
        (lambda x, y: y @ x, [(3, P), (2, 3)], 1),
        (lambda x, y: jax.vmap(jnp.dot)(x, y), [(4, P), (4, P)], 0),
        (lambda x, y: lax.conv(x, y, (1, 1), "SAME"), [(P, 2, 4, 4), (3, 2, 3, 3)], 1),
        (*FUNCTIONS["scan along a list"], 1),
        (*FUNCTIONS["scan from the end of a list"], 1),
    ],
)
def test_derivatives_beside_lists_without_items(
    function: Callable[..., Any], shapes: Shapes, argument: int
) -> None:
    """The padding of a list without items may be NaN, and is multiplied by derivatives of 0."""
    program = traced(function, shapes)
    arrays = [np.random.default_rng(0).uniform(1, 2, with_extent(x, 0)) for x in shapes]
    arrays = [jnp.asarray(x, jnp.float32) for x in arrays]
    places = [jnp.asarray(with_padding(*x)) for x in zip(arrays, shapes, strict=True)]
    results = jax.eval_shape(function, *arrays)
    items = [tuple(slice(0, n) for n in x.shape) for x in jax.tree.leaves(results)]

    def total(x: Any) -> Any:
        operands = [*places[:argument], x, *places[argument + 1 :]]
        values = padded(program, operands, SymbolValues({P: MOST}, {P: jnp.int32(0)}))
        return sum(jnp.sin(y[part]).sum() for y, part in zip(values, items, strict=True))

    def expected(x: Any) -> Any:
        values = function(*arrays[:argument], x, *arrays[argument + 1 :])
        return sum(jnp.sin(y).sum() for y in jax.tree.leaves(values))

    slope = jax.grad(total)(places[argument])
    part = tuple(slice(0, n) for n in arrays[argument].shape)
    np.testing.assert_allclose(slope[part], jax.grad(expected)(arrays[argument]), rtol=1e-6)


def differences(carry: Any, x: Any) -> tuple[Any, Any]:
    return x, 1 / (x - carry)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("function", "shapes", "argument"),
    [
        (lambda x, y: x * y, [(P, 3), (1, 3)], 1),
        (lambda x, y: x + y, [(P, 3), (1, 3)], 1),
        (lambda x, y: lax.mul(x, y), [(P, 3), ()], 1),
        (lambda x, y: jnp.clip(x, y, 9.0), [(P, 3), ()], 1),
        (lambda x, y: y / x + x**y, [(P, 3), (P, 1)], 1),
        (lambda x: x - x.mean(0, keepdims=True), [(P, 3)], 0),
        (lambda x: lax.cumsum(x), [(P, 3)], 0),
        (lambda x: lax.cumsum(x, reverse=True), [(P, 3)], 0),
        (lambda x: lax.cumprod(x), [(P, 3)], 0),
        (lambda x: lax.cumprod(x, reverse=True), [(P, 3)], 0),
        (lambda x: lax.cummax(x), [(P, 3)], 0),
        (lambda x: lax.cummin(x), [(P, 3)], 0),
        (lambda x: jnp.tile(x, (2, 1)), [(P, 3)], 0),
        (lambda x: x.reshape(-1), [(3, P)], 0),
        (lambda x, y: jnp.concatenate([x, y])[: x.shape[0]], [(P, 3), (2, 3)], 1),
        (lambda x, y: lax.split(jnp.concatenate([x, y]), (x.shape[0], 2))[0], [(P, 3), (2, 3)], 1),
        (lambda x: lax.scan(differences, 0.5, x)[1], [(P,)], 0),
        (lambda x, y: lax.scan(lambda c, row: (c + row, c * row * y), y, x)[1], [(P, 3), (3,)], 1),
    ],
)
def test_derivatives_by_items_do_not_depend_on_padding(
    function: Callable[..., Any], shapes: Shapes, argument: int, count: int
) -> None:
    """The padding of x is NaN, and the derivative by the first padding of the result is 0/0."""

    def total(*arrays: Any) -> Any:
        y = function(*arrays)
        places_after = y.shape[0] - jnp.arange(y.shape[0], dtype="float32")
        return (jnp.sin(y) / jnp.expand_dims(places_after, range(1, y.ndim))).sum()

    program = traced(total, shapes)
    draw = np.random.default_rng(0)
    arrays = [draw.uniform(1, 2, with_extent(x, count)).astype(np.float32) for x in shapes]
    places = [jnp.asarray(with_padding(*x)) for x in zip(arrays, shapes, strict=True)]

    def on_places(x: Any, count: Any) -> Any:
        operands = [*places[:argument], x, *places[argument + 1 :]]
        return padded(program, operands, SymbolValues({P: MOST}, {P: count}))[0]

    items = tuple(slice(0, n) for n in arrays[argument].shape)
    expected = jax.grad(total, argument)(*map(jnp.asarray, arrays))
    slope = jax.jit(jax.grad(on_places))(places[argument], jnp.int32(count))
    np.testing.assert_allclose(slope[items], expected, rtol=1e-4, atol=1e-5)
    direction = jnp.ones_like(expected)
    padded_direction = jnp.zeros_like(slope).at[items].set(direction)
    at_count = partial(on_places, count=jnp.int32(count))
    _, change = jax.jvp(at_count, [places[argument]], [padded_direction])
    np.testing.assert_allclose(change, expected.sum(), rtol=1e-4, atol=1e-5)


def test_a_program_without_derivatives_is_not_changed() -> None:
    """Only derivatives distinguish items of a row that is added to each item of a list."""
    program = traced(lambda x, y: jnp.exp(x + y), [(P, 3), (1, 3)])

    def run(x: Any, y: Any) -> Any:
        return padded(program, [x, y], SymbolValues({P: MOST}, {P: jnp.int32(2)}))[0]

    text = jax.jit(run).lower(jnp.ones((MOST, 3)), jnp.ones((1, 3))).compile().as_text()
    assert text is not None and "select" not in text and "iota" not in text


@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool", "uint32"])
def test_neutral_numbers_change_nothing(dtype: str) -> None:
    items = np.array([0, 1, 77], np.uint8).astype(dtype)
    for name, function in (
        ("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor),
        ("max", np.maximum), ("min", np.minimum),
    ):  # fmt: skip
        number = np.asarray(neutral(f"reduce_{name}", dtype)).astype(dtype)
        np.testing.assert_array_equal(function(items, number), items, err_msg=name)


def test_what_has_no_rule_is_refused() -> None:
    program = traced(lambda x: jnp.linalg.qr(x)[0], [(P, 3)])
    with pytest.raises(NotPaddableError):
        padded(program, [jnp.ones((MOST, 3))], SymbolValues({P: MOST}, {P: jnp.int32(2)}))


def test_bounds_and_values_of_expressions() -> None:
    a, b = jax.export.symbolic_shape("a, b")
    extents = SymbolValues({"a": 5, "b": 3}, {"a": jnp.int32(4), "b": jnp.int32(2)})
    for extent, bound, value in (
        (2 * a + b + 1, 14, 11),
        (a * a + b, 28, 18),
        (a // 2, 2, 2),
        (a % 3, 2, 1),
        (jax.numpy.int32(7), 7, 7),
        (a - b + 3, 8, 5),
    ):
        assert (extents.bound(extent), int(extents.value(extent))) == (bound, value)
