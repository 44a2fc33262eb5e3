"""What is computed of parameters alone, by numpy: as XLA computes it, and nothing is compiled."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lowering import jaxprs
from lowering.prepare import Split, prepared
from lowering.program import Program
from lowering.recipe import Recipe
from lowering.split import recipe_of, split
from lowering.targets import target_of
from tests import torch_networks
from tests.helpers import model_of

Function = Callable[..., Any]


def parts_of(function: Function, *parameters: Any) -> Split:
    """Split a function whose result is added to an input."""
    result = jax.eval_shape(function, *parameters)
    inputs = [jax.ShapeDtypeStruct(result.shape, result.dtype)]
    closed = jax.make_jaxpr(lambda p, x: jnp.add(function(*p), x[0]))(parameters, inputs)
    return split(Program(closed, len(parameters)), target_of("cpu"))


def check(function: Function, *parameters: Any, exact: bool = True) -> None:
    """Compare what numpy and XLA prepare, and that numpy does."""
    parts = parts_of(function, *parameters)
    assert parts.is_by_numpy(parameters)
    every = range(len(parts.recipe.results))
    expected = jax.jit(parts.first)(*parameters)
    assert expected
    for recipe in (parts.recipe, pickle.loads(pickle.dumps(parts.recipe))):
        for a, b in zip(recipe.computed(every, parameters), expected, strict=True):
            assert (a.shape, a.dtype, a.committed) == (b.shape, b.dtype, b.committed)
            if a.dtype == jnp.bfloat16:  # numpy takes a NaN of it for a number
                a, b = a.astype(jnp.float32), b.astype(jnp.float32)
            if exact:
                np.testing.assert_array_equal(a, b)
            else:
                np.testing.assert_allclose(a, b, rtol=1e-6)


def check_bits(function: Function, x: jax.Array) -> None:
    """Compare what numpy and XLA compute, bit by bit, and that numpy does."""
    recipe = recipe_of(Program(jaxprs.inlined(jax.make_jaxpr(function)(x)), 1))
    assert recipe.is_for_numpy
    (result,) = recipe.computed([0], [x])
    np.testing.assert_array_equal(result, jax.jit(function)(x), strict=True)


def draw(*shape: int, dtype: Any = jnp.float32, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).uniform(0.5, 2, shape)).astype(dtype)


MOVES: dict[str, Function] = {
    "transpose": lambda x: x.transpose(2, 0, 1),
    "reshape": lambda x: x.transpose(2, 0, 1).reshape(-1, 3),
    "slice": lambda x: jax.lax.slice(x, (0, 1, 2), (2, 3, 6)),
    "slice by strides": lambda x: jax.lax.slice(x, (0, 0, 1), (2, 3, 6), (1, 2, 3)),
    "reverse": lambda x: jax.lax.rev(x, (0, 2)),
    "concatenate": lambda x: jnp.concatenate([x, x.transpose(1, 0, 2).reshape(2, 3, 6)], 1),
    "stack": lambda x: jnp.stack([x, jax.lax.rev(x, (0,))], 1),
    "tile": lambda x: jnp.tile(x, (1, 2, 1)),
    "broadcast": lambda x: jnp.broadcast_to(x[:, None, :2], (2, 2, 2, 6)),
    "squeeze": lambda x: jax.lax.slice(x, (0, 1, 0), (2, 2, 6)).squeeze(1),
}


@pytest.mark.parametrize("name", MOVES)
def test_items_are_moved(name: str) -> None:
    for dtype in ("float32", "bfloat16", "int8", "bool", "complex64"):
        check(MOVES[name], jnp.asarray(np.arange(36).reshape(2, 3, 6) % 7).astype(dtype))


def test_numbers_are_computed() -> None:
    def function(weight: Any, mean: Any, variance: Any) -> Any:
        scale = jax.lax.rsqrt(variance + 1e-5)
        return jnp.concatenate([weight * scale[:, None] / 3, (mean * scale)[None] + 2 - weight])

    for x64 in (False, True):
        with jax.enable_x64(x64):
            dtype = jnp.float64 if x64 else jnp.float32
            parameters = (draw(*s, dtype=dtype, seed=i) for i, s in enumerate([(4, 4), (4,), (4,)]))
            check(function, *parameters, exact=False)


WIDTHS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
WHOLE: dict[str, Function] = {
    "add": lambda x: x + x,
    "sub": lambda x: x[::-1] - x,
    "mul": lambda x: x * x,
    "max": lambda x: jnp.maximum(x, x[::-1]),
    "min": lambda x: jnp.minimum(x, x[::-1]),
    "neg": lambda x: -x,
    "sum": lambda x: jax.lax.reduce_sum_p.bind(x, axes=(0,), out_sharding=None),
    "sum of nothing": lambda x: jax.lax.reduce_sum_p.bind(x[:0], axes=(0,), out_sharding=None),
    "place": lambda x: jax.lax.broadcasted_iota(x.dtype, (*x.shape, 300), 2) + x[..., None],
}
BITS: dict[str, Function] = {
    "and": lambda x: x & x[::-1],
    "or": lambda x: x | x[::-1],
    "xor": lambda x: x ^ x[::-1],
    "not": lambda x: ~x,
    **{
        name: lambda x, compare=compare: compare(x, x[::-1])
        for name, compare in {
            "eq": jax.lax.eq,
            "ge": jax.lax.ge,
            "gt": jax.lax.gt,
            "le": jax.lax.le,
            "lt": jax.lax.lt,
            "ne": jax.lax.ne,
        }.items()
    },
    "select": lambda x: jnp.where(x == x[::-1], x, x.T),
    "select all": lambda x: jax.lax.select(x[0, 0] == x[0, 1], x, x.T),
}


def extremes(dtype: str) -> jax.Array:
    """Return 5 x 5 items, among them the least and the greatest."""
    if dtype == "bool":
        return jnp.asarray(np.arange(25).reshape(5, 5) % 3 == 0)
    limits = jnp.iinfo(dtype)
    ends = [int(limits.min), int(limits.min) + 1, 0, 1, int(limits.max)]
    middle = np.random.default_rng(0).integers(limits.min, limits.max, 20, np.dtype(dtype))
    return jnp.asarray(np.array([*ends, *middle.tolist()], dtype).reshape(5, 5))


@pytest.mark.parametrize("dtype", WIDTHS)
def test_integers_wrap_around(dtype: str) -> None:
    with jax.enable_x64(True):
        for function in (*WHOLE.values(), *BITS.values()):
            check_bits(function, extremes(dtype))


def test_truth_values_are_computed() -> None:
    for function in BITS.values():
        check_bits(function, extremes("bool"))


@pytest.mark.parametrize("source", ["bool", *WIDTHS])
def test_integers_are_converted(source: str) -> None:
    targets = {*WIDTHS, "bool", "float32", "float64"}
    if source in ("bool", "int8", "uint8"):
        targets |= {"float16", "bfloat16"}
    with jax.enable_x64(True):
        for target in targets - {source}:
            check_bits(lambda x, target=target: x.astype(target).T, extremes(source))


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_items_of_4_bits_are_moved_and_widened(dtype: str) -> None:
    x = jnp.asarray(np.arange(36).reshape(2, 3, 6) % 8).astype(dtype)
    for name in ("transpose", "slice", "reshape", "concatenate"):
        for target in ("int8", "int32", "float32", "bfloat16", "bool"):
            check_bits(lambda x, move=MOVES[name], target=target: move(x).astype(target), x)


def test_bits_are_read_as_another_type() -> None:
    for target in ("int32", "uint32"):
        check_bits(lambda x, target=target: jax.lax.bitcast_convert_type(x, target), draw(3, 4).T)
        check_bits(lambda x: jax.lax.bitcast_convert_type(x, jnp.float32), extremes(target) >> 2)


def test_numbers_that_are_none() -> None:
    """A variance of 0 or less than 0 warns nobody, and gives what XLA gives."""
    check(lambda x: jax.lax.rsqrt(x) / x, jnp.asarray([0.0, -1, np.inf, np.nan, 1e10]), exact=False)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_numbers_are_converted(dtype: str) -> None:
    large = jnp.asarray([[1e-6, 1.0009765, 70000, -np.inf, np.nan]]).repeat(3, 0)
    check(lambda x: x.astype(dtype).T, large)
    check(lambda x: x.astype(jnp.float32).T * 3, draw(3, 5, dtype=dtype))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.exp(x),
        lambda x: x.astype(jnp.int32) + 1,
        lambda x: (jax.lax.bitcast_convert_type(x, jnp.int32) + 1).astype(jnp.bfloat16),
        lambda x: jnp.where(x > 1, x, 0),
        lambda x: jnp.maximum(x, x.T),
        lambda x: -x,
        lambda x: (x.astype(jnp.bfloat16) * 3).T,
        lambda x: jax.lax.reshape(x, (25,), (1, 0)),
        lambda x: jnp.zeros_like(x).at[jnp.arange(3)].set(x[:3]),
    ],
)
def test_what_else_there_is_stays_with_xla(function: Function) -> None:
    x = draw(5, 5)
    parts = parts_of(function, x)
    assert not parts.is_by_numpy([x])
    (whole,) = parts.call(prepared(parts, [x]), [jnp.zeros(function(x).shape, function(x).dtype)])
    np.testing.assert_allclose(whole, function(x), rtol=1e-2)


def test_what_is_read_together_is_computed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread computes a group, and lets go of what nothing reads any more."""
    groups: list[set[int]] = []
    run = Recipe._run

    def spy(recipe: Recipe, *arguments: Any) -> Any:
        values = run(recipe, *arguments)
        groups.append({*values})
        return values

    monkeypatch.setattr(Recipe, "_run", spy)
    x = draw(4, 4)
    parts = parts_of(lambda x, y: jnp.stack([(x.T * 2) * 3, y.T * 4]), x, x)
    prepared(parts, [x, draw(4, 4, seed=1)])
    assert groups == [set(parts.recipe.results)]  # they meet in the end
    groups.clear()
    closed = jax.make_jaxpr(lambda p, q, x: (p.T + x, q.T + x))(*[draw(4, 4)] * 3)
    parts = split(Program(closed, 2), target_of("cpu"))
    prepared(parts, [draw(4, 4), draw(4, 4)])
    assert sorted(groups) == [{x} for x in sorted(parts.recipe.results)]


SHARED: dict[str, Function] = {  # by numpy, and by XLA
    "moved": lambda x: x.T * 2,
    "computed": lambda x: jnp.exp(x.T),
}


@pytest.mark.parametrize("name", SHARED)
def test_programs_share_what_they_compute_alike(name: str) -> None:
    x, y = draw(4, 6), draw(4, 6, seed=1)

    def of(arrays: Sequence[Any], *functions: Function) -> list[jax.Array]:
        closed = jax.make_jaxpr(lambda x, y, z: [f(x, y) + z for f in functions])(x, y, 0.0)
        parts = split(Program(closed, 2), target_of("cpu"))
        values = prepared(parts, arrays)
        for a, b in zip(values, parts.prepare(arrays), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
        return [*values]

    def ids(values: list[jax.Array]) -> set[int]:
        return {*map(id, values)}

    changed = SHARED[name]
    first = of([x, y], lambda x, y: changed(x), lambda x, y: y[::-1], lambda x, y: x + y)
    again = of([x, y], lambda x, y: x + y, lambda x, y: changed(x), lambda x, y: changed(y))
    assert ids(first) & ids(again) == {id(first[0]), id(first[2])}
    others = of([x, y], lambda x, y: changed(x) * 3, lambda x, y: x[::-1], lambda x, y: y + x)
    assert not ids([*first, *again]) & ids(others)
    elsewhere = of([jnp.array(x, copy=True), y], lambda x, y: changed(x), lambda x, y: changed(y))
    (shared,) = [value for value in elsewhere if id(value) in ids([*first, *again])]
    np.testing.assert_allclose(shared, changed(y), rtol=1e-6)


def test_what_nobody_reads_is_let_go() -> None:
    x = draw(4, 6)
    parts = parts_of(lambda x: x.T * 2, x)
    (value,) = prepared(parts, [x])
    gone = weakref.ref(value)
    assert prepared(parts, [x])[0] is value
    del value
    assert gone() is None
    del x  # what comes next may have its place in memory
    (other,) = prepared(parts, [y := draw(4, 6, seed=1)])
    np.testing.assert_array_equal(other, y.T * 2)


def test_a_model_prepares_once_for_several_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    compute = Recipe.computed

    def counted(recipe: Recipe, chosen: Any, arrays: Any) -> Any:
        computed.append(len(chosen))
        return compute(recipe, chosen, arrays)

    monkeypatch.setattr(Recipe, "computed", counted)
    text = """version 1.0;
graph g(x) -> (y)
{
  x = external<scalar>(shape = [1, 3, 8, 8]);
  w = variable<scalar>(shape = [4, 3, 3, 3], label = "w");
  y = conv(x, w, stride = [2, 2]);
}
"""
    model = model_of(
        text, data={"w": np.asarray(draw(4, 3, 3, 3))}, input_shapes={"x": (None, 3, 8, 8)}
    )
    x = np.asarray(draw(2, 3, 8, 8))
    both = model(x)
    np.testing.assert_allclose(model(x[1:]), both[1:], rtol=1e-5)
    (count,) = computed
    assert count


def test_what_is_prepared_has_memory_of_its_own() -> None:
    """Parameters may be donated after it."""
    x = draw(64, 64)
    (found,) = prepared(parts_of(lambda x: x[::-1], x), [x])
    expected = np.array(found)
    jax.jit(lambda x: x * 0, donate_argnums=0)(x)
    np.testing.assert_array_equal(found, expected)


def test_on_the_device_of_parameters() -> None:
    x = jax.device_put(draw(4, 5), jax.devices()[0])
    assert x.committed
    check(lambda x: x.T, x)
    assert not parts_of(lambda x: x.T, x).is_by_numpy([np.ones((4, 5), np.float32)])


def test_parameters_on_a_mesh_of_one_device() -> None:
    mesh = Mesh(jax.devices()[:1], ("i",))
    x = jax.device_put(draw(4, 5), NamedSharding(mesh, PartitionSpec("i", None)))
    check(lambda x: x.T.reshape(-1), x)


def test_a_first_call_compiles_once() -> None:
    """What is prepared of the weights of a network takes no compiler."""
    compiled: list[str] = []

    def listener(event: str, duration_secs: float, **others: Any) -> None:
        del duration_secs
        if event.endswith("backend_compile_duration"):
            compiled.append(str(others.get("fun_name")))

    model = torch_networks.load("unet")
    (run,) = torch_networks.runs("unet")[:1]
    model.params  # noqa: B018
    _ = model.compiler_options  # which XLA is asked for once
    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        model(*run.input.values())
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    assert compiled == [f"jit({model.graph.name})"]
