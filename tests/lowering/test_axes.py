"""The table of axes: what it claims of each primitive is what jax computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.export
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import primitives
from jax.sharding import Mesh

from lowering import jaxpr_evaluation, jaxprs
from lowering.axes import axes_of, is_listed
from lowering.axis_links import UNLINKED, AxisPart, axis_number
from lowering.batches import NotSeparableError, batch_axes
from lowering.bodies import inner_functions
from lowering.cpu.layouts import evaluated
from lowering.cpu.pending_view import View, plain, tensor
from lowering.fallback import About, named
from lowering.parallel import Along, Divided, Division, divisions
from lowering.pipeline import rewrite
from lowering.program import Program
from lowering.targets import mesh_target

# Primitives of no row: they communicate, have state, or are functions of whole matrices. Whoever
# asks for their axes replicates, batches nothing, keeps the layout, refuses.
UNLISTED = {
    "after_all", "all_gather", "all_to_all", "approx_top_k", "axis_index", "bitcast_convert_type",
    "call", "closed_call", "create_token", "custom_lin", "custom_linear_solve", "device_put", "eig",
    "empty2", "eq_to", "get", "hessenberg", "le_to", "lt_to", "pmax", "pmin", "ppermute", "psum",
    "qr", "ragged_all_to_all", "random_bits", "random_fold_in", "random_gamma", "random_seed",
    "random_split", "reduce_window", "rng_bit_generator", "rng_uniform", "schur",
    "select_and_scatter", "swap", "threefry2x32", "tridiagonal", "tridiagonal_solve",
}  # fmt: skip
# Those that evaluate functions, whose bodies are followed instead.
WITHIN = {
    "cond",
    "custom_jvp_call",
    "custom_vjp_call",
    "eval_jaxpr",
    "jit",
    "remat2",
    "scan",
    "while",
}

Draw = Callable[[np.random.Generator, Any], Any]


def test_primitives_without_a_row_are_these() -> None:
    """A later jax may add primitives: each needs a row, or a place in the list above."""
    names = {vars(primitives)[x].name for x in dir(primitives) if x.endswith("_p")}
    unlisted = {name for name in names if not is_listed(name)}
    assert unlisted <= UNLISTED | WITHIN


def _axis(rng: np.random.Generator, x: Any) -> int:
    return int(rng.integers(x.ndim))


def _transposed(rng: np.random.Generator, x: Any) -> Any:
    return jnp.transpose(x, rng.permutation(x.ndim))


def _merged(rng: np.random.Generator, x: Any) -> Any:
    if x.ndim < 2:
        return x[:, None]
    i = int(rng.integers(x.ndim - 1))
    return x.reshape(*x.shape[:i], x.shape[i] * x.shape[i + 1], *x.shape[i + 2 :])


def _parted(rng: np.random.Generator, x: Any) -> Any:
    axis = _axis(rng, x)
    factor = next((n for n in (2, 3) if x.shape[axis] % n == 0), 1)
    pair = (factor, x.shape[axis] // factor)
    return x.reshape(*x.shape[:axis], *pair, *x.shape[axis + 1 :])


def _multiplied(rng: np.random.Generator, x: Any) -> Any:
    axis = _axis(rng, x)
    matrix = jnp.asarray(rng.integers(-2, 3, (x.shape[axis], 4)), x.dtype)
    return jnp.tensordot(x, matrix, (axis, 0))


def _by_itself(rng: np.random.Generator, x: Any) -> Any:
    """Multiply by another view of the same array, along a batch."""
    if x.ndim < 2:
        return x * 2
    return (
        jnp.einsum("b...,b...->b...", x, x + 1)
        if rng.random() < 0.5
        else jnp.einsum(
            "ba,bc->bac", x.reshape(x.shape[0], -1)[:, :6], x.reshape(x.shape[0], -1)[:, :4]
        )
    )


def _convolved(rng: np.random.Generator, x: Any) -> Any:
    groups = 2 if x.shape[0] % 2 == 0 else 1
    rows = x.reshape(1, x.shape[0], -1)
    filters = rng.integers(-2, 3, (2 * groups, x.shape[0] // groups, 2))
    return lax.conv_general_dilated(
        rows, jnp.asarray(filters, x.dtype), (1,), [(0, 1)], feature_group_count=groups
    )


def _looked_up(rng: np.random.Generator, x: Any) -> Any:
    axis = _axis(rng, x)
    return jnp.take(x, jnp.asarray(rng.integers(0, x.shape[axis], (2, 3))), axis)


def _windows(rng: np.random.Generator, x: Any) -> Any:
    def window(start: Any) -> Any:
        return lax.dynamic_slice_in_dim(x, start, 1, x.ndim - 1)

    return jax.vmap(window)(jnp.asarray(rng.integers(0, x.shape[-1], 3)))


def _written(rng: np.random.Generator, x: Any) -> Any:
    axis = _axis(rng, x)
    x = x if x.ndim > 1 else x[:, None]
    x = jnp.moveaxis(x, axis, 0)
    rows = jnp.asarray(rng.integers(0, x.shape[0], 2))
    x = x.at[rows].add(1)
    return x if x.ndim < 2 else x.at[rows, ..., :1].add(1)


def _cut(rng: np.random.Generator, x: Any) -> Any:
    axis = _axis(rng, x)
    half = max(x.shape[axis] // 2, 1)
    start = int(rng.integers(2)) * (x.shape[axis] - half)
    return lax.slice_in_dim(x, start, start + half, axis=axis)


def _split(rng: np.random.Generator, x: Any) -> Any:
    axis = _axis(rng, x)
    parts = jnp.split(x, 2 if x.shape[axis] % 2 == 0 else 1, axis)
    return parts[0] - parts[-1]


def _looped(rng: np.random.Generator, x: Any) -> Any:
    def turn(carry: Any, item: Any) -> tuple[Any, Any]:
        return carry + item, carry * 2

    return lax.scan(turn, jnp.zeros_like(x[0]), x)[1]


def _of_experts(rng: np.random.Generator, x: Any) -> Any:
    """Multiply rows by one of two matrices each, as a mixture of experts does."""
    rows = x.reshape(-1, x.shape[-1])
    matrices = jnp.asarray(rng.integers(-2, 3, (2, x.shape[-1], 4)), x.dtype)
    return lax.ragged_dot(rows, matrices, jnp.array([1, rows.shape[0] - 1]))


def _pooled(rng: np.random.Generator, x: Any) -> Any:
    window = [2, *[1] * (x.ndim - 1)]
    return lax.reduce_window(x, -jnp.inf, lax.max, window, [1] * x.ndim, "SAME")


STEPS: list[Draw] = [
    _transposed, _merged, _parted, _multiplied, _by_itself, _convolved, _looked_up, _written,
    _windows, _cut, _split, _looped, _of_experts,
    lambda rng, x: x + jnp.asarray(rng.integers(-3, 4, (*x.shape[:-1], 1)), x.dtype),
    lambda rng, x: x * jnp.asarray(rng.integers(-3, 4, (1, *x.shape[1:])), x.dtype),
    lambda rng, x: jnp.where(x > 0, x, -x),
    lambda rng, x: jnp.sum(x, _axis(rng, x), keepdims=True),
    lambda rng, x: jnp.max(x, _axis(rng, x), keepdims=x.ndim < 2),
    lambda rng, x: jnp.argmax(x, _axis(rng, x), keepdims=True).astype(x.dtype),
    lambda rng, x: jnp.cumsum(x, _axis(rng, x)),
    lambda rng, x: jnp.sort(x, _axis(rng, x)),
    lambda rng, x: jnp.flip(x, _axis(rng, x)),
    lambda rng, x: jnp.concatenate([x, x + 1], _axis(rng, x)),
    lambda rng, x: jnp.stack([x, -x], _axis(rng, x)),
    lambda rng, x: jnp.tile(x, [2 if i == _axis(rng, x) else 1 for i in range(x.ndim)]),
    lambda rng, x: jnp.pad(x, [(1, 0), *[(0, 0)] * (x.ndim - 1)]),
    _pooled,
    lambda rng, x: lax.dynamic_slice_in_dim(x, jnp.int32(rng.integers(2)), 1, _axis(rng, x)),
    lambda rng, x: lax.dynamic_update_slice_in_dim(x, x[:1], jnp.int32(1), 0),
    lambda rng, x: lax.top_k(x, 1)[0],
    lambda rng, x: lax.cond(x.sum() > 0, jnp.negative, lambda y: y + 1, x),
]  # fmt: skip


def drawn(seed: int) -> tuple[Program, list[Any]]:
    """A program of an array and of matrices, its parameters; whole numbers, so that it is exact."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-4, 5, rng.choice([2, 3, 4, 6], rng.integers(2, 4))).astype(np.float32)
    steps = [STEPS[int(i)] for i in rng.integers(len(STEPS), size=rng.integers(2, 6))]
    if seed < len(STEPS):  # each once, between products, whose columns are divided
        steps = [_multiplied, STEPS[seed], _multiplied]

    def function(x: Any) -> Any:
        for step in steps:
            x = jnp.resize(x, (2, 12)) if x.size > 2000 or x.ndim > 4 else x
            x = step(rng, x)
        return x

    closed = jax.make_jaxpr(function)(x)
    constants = closed.jaxpr.constvars
    jaxpr = closed.jaxpr.replace(constvars=[], invars=[*constants, *closed.jaxpr.invars])
    lifted = jax.extend.core.ClosedJaxpr(jaxpr, [])
    return Program(lifted, len(constants), prepares=False), [*closed.consts, x]


def equations_of(program: Program) -> list[Any]:
    """The equations of a program and of the bodies within it that evaluate no functions."""
    found: list[Any] = []
    for equation in program.equations:
        within = inner_functions(equation)
        found += [e for body in within for e in equations_of(Program(body.closed))]
        found += [] if within else [equation]
    return found


def run_of(x: Any, run: Sequence[int | AxisPart]) -> tuple[int, int, int]:
    """Items before, along and behind a run of axes, or a part of an axis."""
    shape, first, last = np.shape(x), axis_number(run[0]), axis_number(run[-1])
    before, along = math.prod(shape[:first]), math.prod(shape[first : last + 1])
    behind = math.prod(shape[last + 1 :])
    if isinstance(part := run[0], AxisPart):
        return before * part.before, part.extent, behind * (along // part.before // part.extent)
    return before, along, behind


def permuted(x: Any, run: Sequence[int | AxisPart], order: Any) -> np.ndarray[Any, Any]:
    items = np.asarray(x).reshape(run_of(x, run))
    return items[:, order].reshape(np.shape(x))


def operands_of(equation: Any, rng: np.random.Generator) -> list[Any]:
    """Operands of an equation, indices within the axis of a lookup."""
    limit = 2
    for link in (axes_of(equation) or UNLINKED).links:
        if link.kind == "lookup":
            limit = equation.invars[0].aval.shape[axis_number(link.operands[0][0])]
    values: list[Any] = []
    for v in equation.invars:
        if isinstance(v, jax.extend.core.Literal):
            values.append(np.asarray(v.val, v.aval.dtype))
        else:
            low, high = (-4, 5) if v.aval.dtype == np.float32 else (0, limit)
            values.append(rng.integers(low, high, v.aval.shape).astype(v.aval.dtype))
    return values


class Claims:
    """Operands of equations, permuted along each link, and what the table claims of the results."""

    def __init__(self, program: Program, rng: np.random.Generator) -> None:
        self.calls: list[tuple[Any, list[Any]]] = []
        self.checks: list[Callable[[Sequence[Any]], None]] = []
        for equation in equations_of(program):
            table = axes_of(equation)
            if table is None or not equation.outvars:
                continue
            values, base = operands_of(equation, rng), len(self.calls)
            self.calls.append((equation, values))
            for axis in table.constant_axes:
                self.checks.append(partial(require_alike, base, axis))
            for link in table.links:
                self._claim(equation, link, values, base, rng)

    def _claim(self, equation: Any, link: Any, values: Any, base: int, rng: Any) -> None:
        runs = [(values[i], run) for i, run in link.operands.items() if run]
        if not runs:
            return
        sizes = {run_of(x, run)[1] for x, run in runs}
        assert len(sizes) == 1, (equation, link)
        order = rng.permutation(sizes.pop())
        changed = list(values)
        for i, run in link.operands.items():
            changed[i] = permuted(values[i], run, order)
        if link.kind == "lookup":
            changed[1] = np.argsort(order)[values[1]].astype(values[1].dtype)
        place = len(self.calls)
        self.calls.append((equation, changed))

        def check(results: Sequence[Any]) -> None:
            before, after = results[base], results[place]
            ends = link.results if link.kind == "apart" else dict.fromkeys(range(len(before)), ())
            for i, run in ends.items():
                wanted = permuted(before[i], run, order) if run else before[i]
                np.testing.assert_array_equal(after[i], wanted, f"{link} of {equation}")

        self.checks.append(check)

    def results(self, values: Sequence[Sequence[Any]]) -> list[Any]:
        pairs = zip(self.calls, values, strict=True)
        return [list(jaxpr_evaluation.bind(equation, x)) for (equation, _), x in pairs]


def require_alike(base: int, axis: int, results: Sequence[Any]) -> None:
    x = results[base][0]
    first = np.take(x, [0], axis)
    np.testing.assert_array_equal(x, np.broadcast_to(first, np.shape(x)))


def require(seed: int) -> None:
    """What the table, batches, layouts and a mesh say of a drawn program is what jax computes."""
    rng = np.random.default_rng(seed)
    program, arguments = drawn(seed)
    *parameters, x = arguments
    claims = Claims(program, rng)
    batches: list[tuple[int, Any, Any]] = []
    for axis in range(x.ndim):
        try:
            axes = batch_axes(program, {program.arguments[-1]: axis}, resizes=False)
        except NotSeparableError:
            continue
        batches.append((axis, axes.get(program.results[0]), rng.permutation(x.shape[axis])))
    layout = tuple(map(int, rng.permutation(x.ndim)))
    divided = Along(("model",), divisions(program, 2))
    mesh = Mesh(np.array(jax.devices()[:2]), ("model",))
    target = mesh_target("cpu", Divided(mesh, divided, Along((), {})))
    over = rewrite(program, target) if divided.divisions else program

    def everything(parameters: Any, xs: Sequence[Any], values: Any) -> Any:
        view = View(jnp.transpose(xs[0], layout), layout, x.shape)
        laid_out = evaluated(program, [*map(plain, parameters), view])
        results = [program(*parameters, x) for x in xs]
        spread = over(*parameters, xs[0]) if divided.divisions else results[0]
        return results, list(map(tensor, laid_out)), spread, claims.results(values)

    xs = [x, *(permuted(x, (axis,), order) for axis, _, order in batches)]
    values = [values for _, values in claims.calls]
    results, laid_out, spread, computed = jax.device_get(
        jax.jit(everything)(parameters, xs, values)
    )
    for check in claims.checks:
        check(computed)
    (wanted,), *others = results
    for found in (laid_out, spread):
        np.testing.assert_array_equal(found[0], wanted)
    for (_, axis, order), (found,) in zip(batches, others, strict=True):
        expected = wanted if axis is None else permuted(wanted, (axis,), order)
        np.testing.assert_array_equal(found, expected)


def test_a_row_is_all_that_a_primitive_needs() -> None:
    """Matrices of experts are divided as those of any product; rows know their groups by number."""

    def experts(up: Any, down: Any, rows: Any, sizes: Any) -> Any:
        return lax.ragged_dot(jnp.maximum(lax.ragged_dot(rows, up, sizes), 0), down, sizes)

    shapes = (2, 8, 64), (2, 64, 8), (6, 8)
    types = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    closed = jax.make_jaxpr(experts)(*types, jax.ShapeDtypeStruct((2,), np.int32))
    program = Program(jaxprs.inlined(closed), 2, prepares=False)
    columns, rows = divisions(program, 2).values()
    assert columns == Division(2, 1, 2, True, "columns")
    assert rows == Division(1, 1, 1, True, "rows", "1 all-reduce")
    with pytest.raises(NotSeparableError):
        batch_axes(program, {program.arguments[2]: 0}, resizes=False)


def _pairs(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "SAME")


MATRIX = np.arange(36, dtype=np.float32).reshape(3, 12)
DIVIDED: list[Callable[[Any, Any], Any]] = [
    lambda w, x: jnp.concatenate([x, x @ w], 1),
    lambda w, x: lax.sort((x @ w[:, :1] * jnp.ones((1, 12)), x @ w), dimension=1)[1],
    lambda w, x: jax.grad(lambda y: _pairs(y).sum())(x @ w),
    lambda w, x: lax.scan(lambda c, row: (c, row @ x), 0.0, w.T)[1],
]


@pytest.mark.parametrize("function", DIVIDED)
def test_axes_that_are_to_be_whole_may_be_divided(function: Any) -> None:
    """As they are where another network has chosen what is divided."""
    x = np.arange(9, dtype=np.float32).reshape(3, 3)
    program = Program(jaxprs.inlined(jax.make_jaxpr(function)(MATRIX, x)), 1, prepares=False)
    mesh = Mesh(np.array(jax.devices()[:2]), ("model",))
    divided = Along(("model",), {0: Division(1, 3)})
    with named(About(is_strict=True)):
        over = rewrite(program, mesh_target("cpu", Divided(mesh, divided, Along((), {}))))
    wanted, found = (jax.jit(f)(MATRIX, x)[0] for f in (program, over))
    np.testing.assert_array_equal(found, wanted)


def axis_in_result(function: Any, x: Any, axis: int = 0) -> int | None:
    """The axis of the result that has the items along an axis of the argument."""
    program = Program(jaxprs.inlined(jax.make_jaxpr(function)(x)))
    axes = batch_axes(program, {program.arguments[0]: axis}, resizes=False)
    return axes.get(program.results[0])


def test_groups_of_rows_may_be_an_items_own() -> None:
    """Rows of an item stay with its numbers of rows, as `jax.vmap` makes them."""
    rows, matrices = np.ones((3, 4, 5), np.float32), np.ones((3, 2, 5, 6), np.float32)
    experts = jax.vmap(lax.ragged_dot)
    (equation,) = jax.make_jaxpr(experts)(rows, matrices, np.full((3, 2), 2, np.int32)).eqns
    assert axes_of(equation) == UNLINKED


def test_a_loop_in_a_loop_starts_with_items_that_are_alike() -> None:
    """The inner loop starts with the carry of the outer one, which differs by item."""

    def function(x: Any) -> Any:
        def outer(carry: Any, row: Any) -> Any:
            last, _ = lax.scan(lambda c, _: (c + row, None), carry, None, length=2)
            return jnp.zeros(3), last

        return lax.scan(outer, jnp.arange(3.0), x)[1]

    with pytest.raises(NotSeparableError):
        axis_in_result(function, np.ones((4, 3), np.float32), axis=1)


def test_functions_without_results_have_no_axes() -> None:
    def function(x: Any) -> Any:
        lax.scan(lambda c, row: (c, jax.debug.callback(lambda _: None, row)), (), x.T)
        return 2 * x

    assert axis_in_result(function, np.ones((3, 2), np.float32)) == 0


def test_open_extents_may_repeat() -> None:
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("a,b"), np.float32)
    assert axis_in_result(lambda x: lax.tile(x, (1, 2)), x) == 0


@pytest.mark.parametrize("part", range(5))
def test_claims_hold_for_drawn_programs(part: int) -> None:
    for seed in range(10 * part, 10 * part + 10):
        require(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(40))
def test_claims_hold_for_many_programs(part: int) -> None:
    for seed in range(50 + 50 * part, 100 + 50 * part):
        require(seed)
