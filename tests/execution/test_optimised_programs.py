"""Programs after the passes for a CPU compute what is written, and what they are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from lowering import jaxprs
from lowering.contexts import disabled
from lowering.cpu import layouts
from lowering.cpu.pending_view import plain
from lowering.emit import network
from lowering.jaxprs import CONVOLUTION
from lowering.kernels.broadcast import maximum, minimum
from lowering.program import Program
from tests.operation_checks import Together
from tests.programs import (
    Function,
    assert_both_ways,
    assert_same,
    both_ways,
    equations,
    made_of,
    names_of,
    optimised,
    random,
    split_of,
)

Arguments = tuple[Function, Any, list[Any]]  # a function, its parameters, and inputs


def conv(x: Any, filter: Any, **options: Any) -> Any:
    options = {"window_strides": (1, 1), "padding": [(1, 1), (1, 1)]} | options
    return lax.conv_general_dilated(x, filter, **options)


# What follows a convolution finds its result channels last
AFTER: dict[str, Callable[[Any], Any]] = {
    "unary": lambda y: jnp.exp(-jnp.abs(y)),
    "scalar": lambda y: 2.0 * y + 1.0,
    "per_channel": lambda y: y * random(1, 6, 1, 1, seed=3),
    "per_row": lambda y: y + random(1, 1, 7, 1, seed=3),
    "two": lambda y: y * jnp.tanh(y),
    "select": lambda y: jnp.where(y > 0, y, 0.1 * y),
    "clamp": lambda y: jnp.clip(y, -0.5, 0.5),
    "transpose": lambda y: jnp.transpose(y, (2, 0, 3, 1)) * 2.0,
    "flatten": lambda y: y.reshape(2, -1),
    "merge_spatial": lambda y: jnp.swapaxes(y.reshape(2, 6, 56), 1, 2),
    "split_channels": lambda y: y.reshape(2, 2, 3, 7, 8).sum(1),
    "shuffle_channels": lambda y: jnp.swapaxes(y.reshape(2, 2, 3, 7, 8), 1, 2).reshape(y.shape),
    "mean": lambda y: jnp.mean(y, (2, 3)),
    "softmax_over_channels": lambda y: jax.nn.softmax(y, axis=1),
    "argmax": lambda y: jnp.argmax(y, 1),
    "cumsum": lambda y: jnp.cumsum(y, 2),
    "squeeze": lambda y: y[:, :1].squeeze(1),
    "slice": lambda y: y[:, 1:5:2, 2:, ::3],
    "flip": lambda y: y[:, ::-1, :, ::-1] * y,
    "pad": lambda y: jnp.pad(y, ((0, 0), (1, 0), (2, 3), (0, 1)), constant_values=0.5),
    "concat": lambda y: jnp.concatenate([y, y * 2.0, random(2, 1, 7, 8, seed=4)], 1),
    "broadcast": lambda y: y + jnp.broadcast_to(jnp.max(y, (2, 3), keepdims=True), y.shape),
    "gate": lambda y: y * jax.nn.sigmoid(jnp.mean(y, (2, 3), keepdims=True)),
    "silu": lambda y: jnp.sin(y) * jax.nn.sigmoid(2.0 * y),
    "gates": lambda y: jax.nn.sigmoid(y) * jax.nn.sigmoid(-y) * y,
    "gate_read_twice": lambda y: (lambda z: z * y + z)(jax.nn.sigmoid(y)),
    "turned_gate": lambda y: jnp.swapaxes(y, 2, 1) * jax.nn.sigmoid(random(2, 7, 6, 8, seed=6)),
    "product": lambda y: jnp.einsum("bchw,bdhw->bcd", y, jnp.sin(y)),
    "product_of_channels": lambda y: jnp.einsum("bchw,cd->bhwd", y, random(6, 5, seed=4)),
    "max_pool": lambda y: lax.reduce_window(
        y, -jnp.inf, lax.max, (1, 1, 3, 2), (1, 1, 2, 2), ((0, 0), (0, 0), (1, 1), (0, 1))
    ),
    "sum_pool": lambda y: lax.reduce_window(
        y, 0.0, lax.add, (1, 2, 3, 3), (1, 1, 1, 2), "SAME", window_dilation=(1, 1, 2, 1)
    ),
    "large_pool": lambda y: lax.reduce_window(
        jnp.pad(y, ((0, 0), (0, 0), (9, 9), (9, 9))), 0.0, lax.add, (1, 1, 9, 9), (1,) * 4, "VALID"
    ),
    "gather": lambda y: jnp.take(y, jnp.array([3, 0, 3]), axis=1),
    "scan": lambda y: lax.scan(lambda c, x: (c + x, c * x), y[:, 0], jnp.moveaxis(y, 1, 0)),
    "twice": lambda y: conv(jnp.tanh(conv(y, random(6, 6, 3, 3, seed=5))), random(4, 6, 1, 1)),
}


def after(*names: str) -> Arguments:
    def function(parameters: Any, inputs: Any) -> Any:
        y = conv(inputs[0], parameters[0], padding=[(0, 0)] * 2)
        return {name: AFTER[name](y) for name in names}

    # One cell, which is quick to compile. Results around 1: the sine of larger ones magnifies
    # errors.
    return function, [random(6, 3, 1, 1) / np.sqrt(3)], [random(2, 3, 7, 8, seed=2)]


def means(items: int, kept: int) -> Arguments:
    def function(parameters: Any, inputs: Any) -> Any:
        y = conv(inputs[0], parameters[0], padding=[(0, 0)] * 2)
        return jnp.mean(y / 6, (0, 2, 3)[kept:])

    return function, [random(48, 3, 1, 1)], [random(items, 3, 20, 24, seed=2)]


def read_by_a_product_and_others() -> Arguments:
    def function(parameters: Any, inputs: Any) -> Any:
        y = jnp.tanh(inputs[0] + 1.0)
        return jnp.sin(y @ parameters[0]) + y

    return function, [random(64, 64, seed=1) / 8], [random(1024, 64)]


def stretch() -> Arguments:
    def function(parameters: Any, inputs: Any) -> Any:
        (x,) = inputs
        for filter, bias in parameters:
            x = jnp.maximum(conv(x, filter) + bias, 0.0) + x
        return x

    layers = [(random(8, 8, 3, 3, seed=i) / 9, random(1, 8, 1, 1, seed=i)) for i in range(4)]
    return function, layers, [random(1, 8, 6, 6)]


def scaled() -> Arguments:
    def function(parameters: Any, inputs: Any) -> Any:
        filter, mean, scale, offset = parameters
        return (conv(inputs[0], filter) - mean) * scale / 3.0 + offset

    channels = [random(1, 8, 1, 1, seed=i) for i in range(3)]
    return function, [random(8, 4, 5, 5), *channels], [random(2, 4, 12, 12, seed=5)]


def read_twice() -> Arguments:
    def function(parameters: Any, inputs: Any) -> Any:
        y = conv(inputs[0], parameters[0])
        return y * parameters[1] + jnp.sin(y)

    return function, [random(8, 4, 3, 3), random(1, 8, 1, 1)], [random(2, 4, 9, 9)]


def scaled_by_an_input() -> Arguments:
    def function(parameters: Any, inputs: Any) -> Any:
        return conv(inputs[0], parameters[0]) * inputs[1]

    return function, [random(8, 4, 3, 3)], [random(2, 4, 9, 9), random(1, 8, 1, 1)]


def maxima(size: Sequence[int], stride: Sequence[int], padding: str) -> Arguments:
    def function(parameters: Any, inputs: Any) -> Any:
        x = inputs[0] * parameters[0]
        return lax.reduce_window(x, -np.inf, lax.max, (1, 1, *size), (1, 1, *stride), padding)

    # Many items are equal.
    x = np.float32(np.random.default_rng(0).integers(-1, 2, (2, 3, 9, 8)))
    return function, [np.float32(2)], [x]


def normalised(length: int) -> Arguments:
    def function(parameters: Any, inputs: Any) -> Any:
        x = inputs[0] + 5  # a mean that squares must not meet
        apart = x - x.mean(-1, keepdims=True)
        return apart / jnp.sqrt((apart**2).mean(-1, keepdims=True)) * parameters

    return function, random(1, 1, length), [random(8, 128, length, seed=1)]


def products_of_one_input() -> Arguments:
    def function(parameters: Any, inputs: Any) -> Any:
        query, key, value = parameters
        (x,) = inputs
        return x @ query, jnp.swapaxes(x @ key.T, 1, 2), (x @ value) @ value[:, :4]

    return function, [random(4, n, seed=n) for n in (6, 4, 4)], [random(2, 3, 4)]


def product(rows: int) -> Arguments:
    def function(parameters: Any, inputs: Any) -> Any:
        return jnp.tanh(inputs[0] @ parameters[0] + parameters[1])[..., None]

    parameters = [random(300, 512) / 20, random(1, 512)]
    return function, parameters, [random(rows, 300, seed=1)]


def product_without_terms() -> Arguments:
    def function(parameters: Any, inputs: Any) -> Any:
        return inputs[0][:, :0] @ parameters[0][:0] + 1

    return function, [random(3, 5)], [random(4, 3)]


def one_row(transposed: bool) -> Arguments:
    def function(parameters: Any, inputs: Any) -> Any:
        return jnp.tanh(inputs[0] @ (parameters[0].T if transposed else parameters[0]))

    shape = (4096, 256) if transposed else (256, 4096)
    return function, [random(*shape) / 20], [random(1, 1, 256, seed=1)]


def loop_of_parameters() -> Arguments:
    def function(parameters: Any, inputs: Any) -> Any:
        def turn(state: Any, x: Any) -> tuple[Any, Any]:
            state = jnp.tanh(x @ parameters[0].T + state @ jnp.flip(parameters[1], 0))
            return state, state

        return lax.scan(turn, jnp.zeros((1, 4)), inputs[0], reverse=True)

    return function, [random(4, 3), random(4, 4, seed=1)], [random(5, 1, 3)]


def some_rows(rows: int) -> Arguments:
    def function(parameters: Any, inputs: Any) -> Any:
        return jax.nn.relu(inputs[0] @ parameters[0])

    return function, [random(400, 336)], [random(rows, 400)]


def gated_loop(rows: int, width: int) -> Arguments:
    def function(parameters: Any, inputs: Any) -> Any:
        def turn(state: Any, x: Any) -> tuple[Any, Any]:
            a, b = (jax.nn.sigmoid(x + state @ matrix) for matrix in parameters)
            return a * state + b, a

        return lax.scan(turn, jnp.zeros((rows, width)), inputs[0])

    matrices = [random(width, width, seed=seed) / width for seed in range(2)]
    return function, matrices, [random(5, rows, width)]


def loop_over_parts(reverse: bool) -> Arguments:
    def function(parameters: Any, inputs: Any) -> Any:
        def turn(state: Any, items: tuple[Any, Any]) -> tuple[Any, Any]:
            a, b = jnp.split(items[0] + state @ parameters[0], 2, axis=-1)
            state = jax.nn.sigmoid(a) * state + jnp.tanh(b) * items[1]
            return state, state

        return lax.scan(turn, jnp.zeros((4, 3)), (inputs[0], inputs[1]), reverse=reverse)

    return function, [random(3, 6)], [random(5, 4, 6), random(5, 4, 3, seed=1)]


def loop_of_no_steps() -> Arguments:
    def function(_: Any, inputs: Any) -> Any:
        return lax.scan(lambda y, z: (y * z[:4] + z[4:], y), inputs[0], inputs[1][:0])

    return function, [], [random(4), random(3, 8)]


def chosen(branch: int) -> Arguments:
    def function(parameters: Any, inputs: Any) -> Any:
        x, factor = inputs
        wide, narrow = (partial(conv, filter=f, padding=[(2, 2), (2, 2)]) for f in parameters)
        is_first = jnp.sum(factor) > 0
        return lax.cond(is_first, lambda y: jnp.tanh(wide(y)), lambda y: narrow(y * factor), x)

    filters = [random(16, 16, 5, 5) / 9, random(16, 16, 5, 5, seed=1) / 9]
    return function, filters, [random(2, 16, 9, 8, seed=2), jnp.float32(1 - 2 * branch)]


def repeated_while(count: Any) -> Arguments:
    """Return a loop for a batch, or for each of its items if there are several counts."""

    def function(parameters: Any, inputs: Any) -> Any:
        def turn(state: Any) -> Any:
            i, y = state
            return i + 1, jnp.tanh(conv(y, parameters[0], padding=[(2, 2), (2, 2)]))

        def loop(x: Any, count: Any) -> Any:
            return lax.while_loop(lambda state: state[0] < count, turn, (0, x))

        return jax.vmap(loop)(*inputs) if np.ndim(count) else loop(*inputs)

    x = random(2, 16, 9, 8, seed=2)
    x = x[:, None] if np.ndim(count) else x
    return function, [random(16, 16, 5, 5) / 9], [x, jnp.asarray(count, jnp.int32)]


def varying_filter(**options: Any) -> Arguments:
    filter, x = random(64, 6, 3, 3), random(2, 6, 5, 4, seed=1)
    return lambda p, x: conv(x[0], p[0], **options), [filter], [x]


def varying_matrices(count: int) -> Arguments:
    def function(parameters: Any, inputs: Any) -> Any:
        filter, matrix = parameters
        y = conv(inputs[0], filter, padding=[(0, 0)] * 2)
        return jnp.tanh(y).reshape(-1, y.shape[1]) @ matrix.T

    parameters = [random(40, 8, 1, 1), random(48, 40, seed=1)]
    return function, parameters, [random(1, 8, count, 1, seed=2)]


POOLS = [
    (size, stride, padding)
    for size, stride in (((3, 3), (2, 2)), ((2, 3), (1, 2)), ((1, 2), (3, 1)))
    for padding in ("VALID", "SAME")
]
# What is folded into a filter is all that reads the result; most else may read it together.
ALONE = ("scalar", "per_channel", "gate", "product", "twice")
SEVERAL = [name for name in AFTER if name not in ALONE]
PROGRAMS: dict[str, Callable[[], Arguments]] = {
    **{name: partial(after, name) for name in ALONE},
    **{
        f"{SEVERAL[i]} and others": partial(after, *SEVERAL[i : i + 6])
        for i in range(0, len(SEVERAL), 6)
    },
    "mean of one item": partial(means, 1, 1),
    "mean of all": partial(means, 3, 0),
    **{f"maxima {row}": partial(maxima, *row) for row in (POOLS[1], POOLS[-2])},
    **{f"normalised rows of {n}": partial(normalised, n) for n in (96, 100)},
    **{f"product of {rows} rows": partial(product, rows) for rows in (1, 5, 200)},
    "one row by rows": partial(one_row, True),
    "one row by columns": partial(one_row, False),
    **{f"{rows} rows": partial(some_rows, rows) for rows in (2, 32)},
    "loop, rows last": partial(gated_loop, 32, 256),
    "loop, rows first": partial(gated_loop, 8, 24),
    "loop over parts": partial(loop_over_parts, False),
    "loop over parts from the end": partial(loop_over_parts, True),
    "first branch": partial(chosen, 0),
    "second branch": partial(chosen, 1),
    "strided filter that varies": partial(varying_filter, window_strides=(2, 1)),
    "dilated filter that varies": partial(varying_filter, rhs_dilation=(1, 2)),
    **{f"matrices that vary, {n}": partial(varying_matrices, n) for n in (3, 300)},
    **{
        make.__name__: make
        for make in (
            read_by_a_product_and_others, stretch, scaled, read_twice, scaled_by_an_input,
            products_of_one_input, product_without_terms, loop_of_parameters, loop_of_no_steps,
        )
    },
}  # fmt: skip
MORE = {
    **{name: partial(after, name) for name in SEVERAL},
    "means of items": partial(means, 3, 1),
    **{f"maxima {row}": partial(maxima, *row) for row in (POOLS[0], *POOLS[2:4], POOLS[-1])},
    "filter that varies": varying_filter,
    **{f"normalised rows of {n}": partial(normalised, n) for n in (64, 3072)},
    **{f"{rows} rows": partial(some_rows, rows) for rows in (31, 161)},
    "loop, many rows first": partial(gated_loop, 24, 256),
}
# Programs whose derivatives are made of what those of others are made of.
VALUES = {
    "scalar", "per_channel", "gate", "mean of one item", "product of 5 rows", "one row by rows",
    "2 rows", "32 rows", "loop, rows first", "loop over parts from the end",
    "dilated filter that varies", "matrices that vary, 3", "stretch", "scaled", "read_twice",
    "scaled_by_an_input", "unary and others",
}  # fmt: skip
MORE |= {name: PROGRAMS[name] for name in VALUES}


def to_compute(name: str) -> tuple[Any, Any]:
    function, *arguments = PROGRAMS[name]()
    return both_ways(function, gradients=name not in VALUES), arguments


computed = Together(list(PROGRAMS), to_compute)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_compute_what_is_written(name: str) -> None:
    assert_both_ways(computed(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MORE))
def test_more_programs_compute_what_is_written(name: str) -> None:
    function, *arguments = MORE[name]()
    assert_both_ways(jax.jit(both_ways(function))(*arguments))


# What they are made of


def shape_of(equation: Any) -> tuple[int, ...]:
    return equation.outvars[0].aval.shape


def moved(program: Arguments) -> set[tuple[int, ...]]:
    """The shapes that transpositions have where parameters vary."""
    made = made_of(*program, prepares=False)
    return {shape_of(e) for e in made if "transpose" in str(e)}


def loop_of(program: Arguments) -> Any:
    (loop,) = (e for e in made_of(*program) if e.primitive.name == "scan")
    return loop.params["jaxpr"].jaxpr


def test_few_windows_take_a_filter_that_varies_as_it_lies() -> None:
    for options in ({}, {"window_strides": (2, 1)}, {"rhs_dilation": (1, 2)}):
        assert (3, 3, 6, 64) not in moved(varying_filter(**options))


def test_many_windows_lay_a_filter_out() -> None:
    filter, x = random(64, 12, 3, 3), random(1, 12, 9, 9, seed=1)
    assert (3, 3, 12, 64) in moved((lambda p, x: conv(x[0], p[0]), [filter], [x]))


def test_matrices_that_vary_are_taken_as_they_lie() -> None:
    for count in (3, 300):
        assert not {(1, 1, 8, 40), (8, 40), (40, 48)} & moved(varying_matrices(count))


def test_many_sums_of_few_positions_are_reductions() -> None:
    def names(*shape: int) -> list[str]:
        return names_of(made_of(lambda p, x: jnp.sum(x[0], 1), [], [random(*shape)]))

    assert names(128, 16, 32)[-1] != "reduce_sum"
    assert names(4096, 2, 8) == ["reduce_sum"]


def test_means_of_positions_are_no_reductions() -> None:
    for items, kept in ((1, 1), (3, 1), (3, 0)):
        assert "reduce_sum" not in names_of(made_of(*means(items, kept)))


@pytest.mark.parametrize(
    "make", [partial(chosen, 0), partial(repeated_while, 3), partial(repeated_while, [3, 1])]
)
def test_convolutions_of_branches_and_loops_have_channels_last(make: Any) -> None:
    function, *arguments = make()
    compute = optimised(function)
    assert_same(jax.jit(function)(*arguments), jax.jit(compute)(*arguments))
    made = jaxprs.innermost(jax.make_jaxpr(compute)(*arguments).jaxpr)
    numbers = [e.params["dimension_numbers"] for e in made if jaxprs.primitive(e) == CONVOLUTION]
    assert numbers
    # XLA brings only the convolutions outside of branches and loops to this form.
    assert {(n.lhs_spec, n.rhs_spec, n.out_spec) for n in numbers} == {
        ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
    }


def test_what_a_product_and_others_read_is_kept() -> None:
    kept = names_of(made_of(*read_by_a_product_and_others())).count("div")
    with disabled("in_memory"):
        assert names_of(made_of(*read_by_a_product_and_others())).count("div") < kept


def test_a_stretch_of_convolutions_is_transposed_at_its_borders_alone() -> None:
    with disabled("stacked"):  # which lays out filters in its own way
        made = made_of(*stretch())
    images = [
        e for e in made if e.primitive.name == "transpose" and e.invars[0].aval.shape[-2:] != (3, 3)
    ]
    assert len(images) <= 2 + 4  # in and out, and each bias, which is a reshape


def test_scale_and_offset_are_folded_into_the_filter() -> None:
    names = ("add", "sub", "mul", "div")
    large = [e for e in made_of(*scaled()) if e.outvars[0].aval.size > 1000]  # the filter has 800
    assert [name for name in names_of(large) if name in names] == ["add"]


@pytest.mark.parametrize("row", POOLS)
def test_maxima_have_the_gradient_of_the_first_without_a_scatter(row: Any) -> None:
    function, parameters, inputs = maxima(*row)
    optimal = network(function)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(optimal(parameters, [x]))))
    assert "select_and_scatter" not in gradient.lower(*inputs).as_text()


@pytest.mark.parametrize("kernel, plain", ((maximum, jnp.maximum), (minimum, jnp.minimum)))
def test_a_bound_has_half_the_gradient_where_it_is_met(kernel: Any, plain: Any) -> None:
    def results(function: Any, x: Any) -> Any:
        def total(x: Any) -> Any:
            return jnp.sum(function(x, 1.0) + function(np.float32(2), x))

        return function(x, 1.0), jax.grad(total)(x), jax.jvp(total, (x,), (x,))[1]

    x = np.float32([-np.inf, -1.0, 0.5, 1.0, 2.0, np.inf, np.nan])
    both = jax.jit(lambda x: (results(plain, x), results(kernel, x)))
    for wanted, got in zip(*both(x), strict=True):
        np.testing.assert_array_equal(wanted, got)


def test_rows_are_summed_by_parts() -> None:
    for length, count in {64: 4, 96: 6, 100: 0, 3072: 48}.items():
        assert names_of(made_of(*normalised(length))).count("slice") == count, length


def test_products_of_one_input_become_one() -> None:
    assert names_of(made_of(*products_of_one_input())).count("dot_general") == 2


def test_one_row_of_parameters_does_not_make_a_matrix_one() -> None:
    row, matrix = plain(random(1, 1024), True), plain(random(1024, 1024))
    program = Program(jax.make_jaxpr(jnp.matmul)(row.array, matrix.array))
    (product,) = layouts.evaluated(program, [row, matrix])
    assert not product.is_early


def test_one_row_by_a_large_matrix_reads_its_rows_as_they_are() -> None:
    for transposed, sources in ((True, (0,)), (False, (None,))):
        assert split_of(*one_row(transposed)).sources == sources


def test_a_loop_computes_nothing_of_parameters() -> None:
    inside = set(names_of(loop_of(loop_of_parameters()).eqns))
    assert not inside & {"rev", "transpose", "concatenate"}


@pytest.mark.parametrize(("rows", "turned"), [(2, False), (31, False), (32, True), (161, False)])
def test_some_rows_are_transposed(rows: int, turned: bool) -> None:
    made = made_of(*some_rows(rows))
    (product,) = (e for e in made if e.primitive.name == "dot_general")
    assert shape_of(product) == ((336, rows) if turned else (rows, 336))


@pytest.mark.parametrize(("rows", "width", "turned"), [(8, 24, 0), (24, 256, 0), (32, 256, 1)])
def test_a_loop_keeps_the_layout_of_its_state(rows: int, width: int, turned: int) -> None:
    body = equations(loop_of(gated_loop(rows, width)))
    gates = [e for e in body if e.primitive.name in ("add", "mul", "logistic")]
    assert {shape_of(e) for e in gates} == {(rows, width)}
    (product,) = (e for e in body if e.primitive.name == "dot_general")
    assert shape_of(product) == ((2 * width, rows) if turned else (rows, 2 * width))


@pytest.mark.parametrize("reverse", (False, True))
def test_a_loop_reads_items_first_whose_parts_are_read(reverse: bool) -> None:
    function, *arguments = loop_over_parts(reverse)
    read = [e for e in loop_of((function, *arguments)).eqns if e.params.get("name") == "_item"]
    assert [shape_of(e) for e in read] == [(4, 6)]
    assert " call(" in jax.jit(optimised(function)).lower(*arguments).compile().as_text()
