"""A network in a traced function is one operation, whose kernels are chosen where it is lowered."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import nnef_jax
from lowering.emit import network
from lowering.extents import UNKNOWN, at_least
from tests.helpers import model_of
from tests.op_cases import NNEF, TRACT, OpCase, document, inputs
from tests.operation_checks import Together
from tests.programs import random

NET = """
version 1.0;
graph net( x ) -> ( y, index )
{
    x = external(shape = [8, 3, 12, 12]);
    f = variable(shape = [48, 3, 3, 3], label = 'first');
    d = variable(shape = [48, 1, 3, 3], label = 'depthwise');
    s = variable(shape = [1, 48], label = 'scale');
    p = variable(shape = [48, 48, 3, 3], label = 'last');
    c1 = conv(x, f, stride = [2, 2], padding = [(1,1),(1,1)]);
    c2 = conv(c1, d, groups = 0, padding = [(1,1),(1,1)]);
    scaled = mul(c2, s);
    r = clamp(scaled, 0.0, 6.0);
    c3 = conv(r, p, padding = [(1,1),(1,1)]);
    m = max_pool(c3, size = [1,1,2,2], stride = [1,1,2,2], border = 'ignore');
    y = tanh(m);
    index = argmax_reduce(y, axes = [1]);
}
"""
RNG = np.random.default_rng(0)
SHAPES = {"first": (48, 3, 3, 3), "depthwise": (48, 1, 3, 3), "scale": (1, 48)}
SHAPES["last"] = (48, 48, 3, 3)
DATA = {k: (RNG.normal(size=s) / 6).astype(np.float32) for k, s in SHAPES.items()}
X = RNG.normal(size=(8, 3, 12, 12)).astype(np.float32)
CONVOLUTIONS = NET.count("conv(")


@pytest.fixture(scope="module")
def model() -> nnef_jax.Model:
    return model_of(NET, data=DATA)


def operations(jaxpr: Any) -> list[str]:
    """The primitives of a jaxpr, and of those in it."""
    found: list[str] = []
    for equation in jaxpr.eqns:
        found.append(equation.primitive.name)
        for value in equation.params.values():
            closed = getattr(value, "closed", value)
            if hasattr(closed, "jaxpr"):
                found += operations(closed.jaxpr)
    return found


def loss(model: nnef_jax.Model) -> Callable[[Any, Any], Any]:
    return lambda params, x: jnp.sum(jnp.sin(model.apply(params, x).y))


def test_a_trace_holds_the_network_once_as_it_is_written(model: nnef_jax.Model) -> None:
    value = jax.make_jaxpr(model.apply)(model.params, X)
    names = operations(value.jaxpr)
    assert names.count("conv_general_dilated") == CONVOLUTIONS and "transpose" not in names
    gradient = jax.make_jaxpr(jax.grad(loss(model)))(model.params, X)
    # Each convolution, and its derivatives in filter and input, but for the first one's in x.
    count = operations(gradient.jaxpr).count("conv_general_dilated")
    assert count == 3 * CONVOLUTIONS - 1


@pytest.mark.parametrize("batch", (8, "b"))
@pytest.mark.parametrize("platform", ("cuda", "rocm", "tpu"))
def test_other_platforms_get_what_is_written(platform: str, batch: Any) -> None:
    model = model_of(NET, data=DATA, input_shapes={"x": (None, 3, 12, 12)})
    extent = jax.export.symbolic_shape(batch)[0] if batch == "b" else batch
    x = jax.ShapeDtypeStruct((extent, 3, 12, 12), jnp.float32)
    exported = jax.export.export(jax.jit(model.apply), platforms=[platform])(model.params, x)
    text = exported.mlir_module()
    assert len(re.findall(r"stablehlo\.convolution\(", text)) == CONVOLUTIONS
    assert "stablehlo.transpose" not in text and "stablehlo.while" not in text


def test_a_cpu_gets_its_kernels(model: nnef_jax.Model) -> None:
    text = jax.jit(model.apply).lower(model.params, X).as_text()
    assert text.count("stablehlo.convolution") < CONVOLUTIONS  # others are products and sums
    assert "stablehlo.while" not in text  # over a batch that may be sharded
    text = jax.jit(jax.grad(loss(model))).lower(model.params, X).as_text()
    assert not re.search(r"(batch|feature)_group_count = (?!1 )", text)
    assert "select_and_scatter" not in text


def test_a_backward_pass_turns_what_convolutions_read_alone() -> None:
    """What lies between transpositions to channels last and back, as in ConvNeXt, is so already."""

    def block(w: Any, x: Any) -> Any:
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME").transpose(0, 2, 3, 1)
        y = jnp.exp(jnp.sin(y) * jnp.tanh(y)).transpose(0, 3, 1, 2)
        return lax.conv_general_dilated(y, w, (1, 1), "SAME")

    arguments = jnp.ones((8, 8, 3, 3)), jnp.ones((2, 8, 5, 6))
    gradient = jax.grad(lambda w, x: jnp.sum(jnp.sin(network(block)(w, x))))
    text = jax.jit(gradient).lower(*arguments).as_text()
    turned = set(re.findall(r"stablehlo.transpose .*-> tensor<(2x\w+)xf32>", text))
    assert turned <= {"2x8x5x6", "2x5x6x8"}


def test_several_platforms_get_theirs(model: nnef_jax.Model) -> None:
    exported = jax.export.export(jax.jit(model.apply), platforms=["cpu", "tpu"])(model.params, X)
    text = exported.mlir_module()
    assert CONVOLUTIONS <= len(re.findall(r"stablehlo\.convolution\(", text)) < 2 * CONVOLUTIONS
    assert "stablehlo.case" in text and "stablehlo.transpose" in text


# Transformations


def function(p: Any, x: Any) -> Any:
    y = lax.conv_general_dilated(x, p["w"], (1, 1), "SAME") * p["s"].reshape(1, -1, 1, 1)
    index = jnp.argmax(y, 1)
    y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    def turn(state: Any, item: Any) -> tuple[Any, Any]:
        state = jnp.tanh(item @ p["m"] + state @ p["u"])
        return state, state

    state, states = lax.scan(turn, jnp.zeros((2, 4)), jnp.stack([y.mean((2, 3))] * 3))
    return {"y": states, "index": index, "state": state}


P = {"w": random(8, 3, 3, 3) / 3, "s": random(8, seed=1), "m": random(8, 4, seed=2) / 3}
P["u"] = random(4, 4, seed=3)
INPUT = random(2, 3, 8, 8, seed=4)


def total(f: Any) -> Any:
    return lambda p, x: jnp.sum(jnp.sin(f(p, x)["y"]))


def over_steps(f: Any) -> Any:
    def run(p: Any, x: Any) -> Any:
        xs = jnp.stack([x, 2 * x])
        return lax.scan(lambda sum, x: (sum + total(f)(p, x), None), 0.0, xs)[0]

    return jax.grad(run, (0, 1))


def by_closure(f: Any) -> Any:
    """An array of an outer derivative is read within."""

    def outer(p: Any, x: Any) -> Any:
        def inner(d: Any) -> Any:
            return total(lambda p, x: f({**p, "s": p["s"] + d}, x))(p, x)

        return jax.grad(inner)(jnp.float32(0.1))

    return jax.grad(outer)


def transposed(f: Any) -> Any:
    def run(p: Any, x: Any) -> Any:
        def push(change: Any) -> Any:
            return jax.jvp(lambda x: f(p, x)["y"], (x,), (change,))[1]

        return jax.linear_transpose(push, x)(f(p, x)["y"])

    return run


TRANSFORMED: dict[str, Callable[[Any], Any]] = {
    "value": lambda f: f,
    "gradient": lambda f: jax.grad(total(f), (0, 1)),
    "gradient of the input": lambda f: jax.grad(total(f), 1),
    "tangent": lambda f: lambda p, x: jax.jvp(total(f), (p, x), (p, x)),
    "vmap": lambda f: lambda p, x: jax.vmap(f, (None, 0))(p, jnp.stack([x, 2 * x])),
    "gradient of each": lambda f: (
        lambda p, x: jax.vmap(jax.grad(total(f)), (None, 0))(p, jnp.stack([x, 2 * x]))
    ),
    "gradient twice": lambda f: jax.grad(lambda p, x: jnp.sum(jax.grad(total(f), 1)(p, x) ** 2)),
    "forward over reverse": lambda f: (
        lambda p, x: jax.jvp(lambda x: jax.grad(total(f), 1)(p, x), (x,), (x,))
    ),
    "reverse over forward": lambda f: jax.grad(
        lambda p, x: jax.jvp(lambda x: total(f)(p, x), (x,), (x,))[1]
    ),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(total(f))),
    "transposed": transposed,
    "closure": by_closure,
    "steps": over_steps,
}


def both(name: str) -> tuple[Any, Any]:
    def run(p: Any, x: Any) -> Any:
        return [TRANSFORMED[name](f)(p, x) for f in (function, network(function))]

    return run, (P, INPUT)


# Those that are made of what others are made of.
SLOW = ("gradient of the input", "forward over reverse", "reverse over forward", "checkpoint")
QUICK = [name for name in TRANSFORMED if name not in SLOW]
transformed, more_transformed = Together(QUICK, both), Together(SLOW, both)


def assert_transformed(wanted: Any, got: Any) -> None:
    assert jax.tree.structure(wanted) == jax.tree.structure(got)
    for x, y in zip(*map(jax.tree.leaves, (wanted, got)), strict=True):
        scale = max(float(np.max(np.abs(x))), 1e-3)
        np.testing.assert_allclose(y, x, rtol=0, atol=2e-5 * scale)


@pytest.mark.parametrize("name", QUICK)
def test_it_transforms_as_what_is_written(name: str) -> None:
    assert_transformed(*transformed(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_more_transforms_as_what_is_written(name: str) -> None:
    assert_transformed(*more_transformed(name))


def linear(w: Any, x: Any) -> Any:
    return lax.conv_general_dilated(x, w, (1, 1), "SAME")


def nonlinear(w: Any, x: Any) -> Any:
    return jnp.sum(jnp.tanh(linear(w, x)) ** 2)


def turned(f: Any) -> Any:
    """The transpose of a linear function, with no derivative before, and its derivative."""

    def run(w: Any, y: Any) -> Any:
        (x,) = jax.linear_transpose(lambda x: f(w, x), INPUT)(y)
        return jnp.sum(jnp.sin(x)), x

    return lambda w: jax.value_and_grad(run, (0, 1), has_aux=True)(w, linear(w, INPUT))


def test_what_is_linear_is_transposed() -> None:
    wanted, got = (jax.jit(turned(f))(P["w"]) for f in (linear, network(linear)))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), got, wanted)
    with pytest.raises(NotImplementedError, match="Transpose rule"):
        jax.linear_transpose(lambda x: network(nonlinear)(P["w"], x), INPUT)(1.0)


def over_a_mesh(f: Any) -> Any:
    """The gradient of a shard_map, and in one the derivative of a gradient."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
    over = partial(jax.shard_map, mesh=mesh, in_specs=(PartitionSpec(), PartitionSpec("d")))

    def second(w: Any, x: Any) -> Any:
        return jax.jvp(lambda x: jax.grad(f)(w, x), (x,), (x,))[1]  # summed over the mesh by jax

    def run(w: Any, x: Any) -> Any:
        total = over(lambda w, x: lax.psum(f(w, x), "d"), out_specs=PartitionSpec())
        return jax.grad(total, (0, 1))(w, x), over(second, out_specs=PartitionSpec())(w, x)

    return run


def test_it_transforms_where_shard_map_checks_types() -> None:
    functions = nonlinear, network(nonlinear)
    wanted, got = (jax.jit(over_a_mesh(f))(P["w"], INPUT) for f in functions)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), got, wanted)


def test_it_is_evaluated_without_jit() -> None:
    with jax.disable_jit():
        results = [f(P, INPUT) for f in (function, network(function))]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), *results)


# What is prepared


def transpositions(model: nnef_jax.Model, params: Any, x: Any) -> int:
    return jax.jit(model.apply).lower(params, x).as_text().count("stablehlo.transpose")


def test_what_is_prepared_is_not_computed_again(model: nnef_jax.Model) -> None:
    prepared = model.prepare(model.params)
    run = jax.jit(model.apply)
    np.testing.assert_allclose(run(prepared, X).y, model(X).y, atol=1e-5)
    assert transpositions(model, prepared, X) < transpositions(model, model.params, X)
    for label, x in model.params.items():
        assert prepared.params[label] is x
    # Not for these shapes: computed from the parameters.
    other = model_of(NET, data=DATA, input_shapes={"x": (None, 3, 12, 12)})
    several = other.prepare(other.params, jax.ShapeDtypeStruct(X.shape, X.dtype))
    np.testing.assert_allclose(jax.jit(other.apply)(several, X[:2]).y, model(X).y[:2], atol=1e-5)


def test_what_is_prepared_may_be_traced_edited_and_differentiated(model: nnef_jax.Model) -> None:
    @jax.jit
    def results(params: Any, x: Any) -> Any:
        prepared = model.prepare(params)
        edited = model.apply(prepared, x, edit={"r": lambda r: 0 * r}, capture=["c1"])
        batch = jax.vmap(model.apply, (None, 0))(prepared, x[None]).y[0]
        gradient = jax.grad(lambda p: loss(model)(model.prepare(p), x))(params)
        return batch, edited, gradient, jax.grad(loss(model))(params, x)

    batch, (edited, seen), gradient, wanted = results(model.params, X)
    np.testing.assert_allclose(batch, model(X).y, atol=1e-5)
    assert not np.any(edited.y) and seen["c1"].shape == (8, 48, 6, 6)
    for label, x in wanted.items():
        np.testing.assert_allclose(gradient[label], x, atol=1e-4 * float(np.max(np.abs(x))))


RECURRENT = """
version 1.0;
graph net( x ) -> ( y )
{
    x = external(shape = [2, 4]);
    h = variable(shape = [2, 6], label = 'h');
    w = variable(shape = [6, 10], label = 'w');
    b = variable(shape = [1, 6], label = 'b');
    both = concat([x, h], axis = 1);
    next = linear(both, w, b);
    y = tanh(next);
    done = update(h, y);
}
"""


def test_step_and_scan_take_what_is_prepared() -> None:
    shapes = {"h": (2, 6), "w": (6, 10), "b": (1, 6)}
    data = {k: RNG.normal(size=s).astype(np.float32) for k, s in shapes.items()}
    model = model_of(RECURRENT, data=data)
    prepared, state = model.prepare(model.params), model.init_state()
    xs = RNG.normal(size=(5, 2, 4)).astype(np.float32)
    y, after = jax.jit(lambda p, s, x: model.step(s, x, params=p))(prepared, state, xs[0])
    wanted, wanted_after = model.step(state, xs[0])
    np.testing.assert_allclose(y, wanted, atol=1e-6)
    np.testing.assert_allclose(after["h"], wanted_after["h"], atol=1e-6)
    ys, _ = jax.jit(lambda p, x: model.scan(x, params=p))(prepared, xs)
    np.testing.assert_allclose(ys, model.scan(xs)[0], atol=1e-6)


# A call by itself, in a function that the caller compiles


def closed(model: nnef_jax.Model, **options: Any) -> Callable[[Any], Any]:
    return lambda x: model(x, **options).y


def test_own_parameters_are_prepared_where_a_caller_compiles(model: nnef_jax.Model) -> None:
    run = jax.jit(closed(model))
    np.testing.assert_allclose(run(X), model(X).y, atol=1e-5)
    text = run.lower(X).as_text()
    prepared = jax.jit(model.apply).lower(model.prepare(model.params), X).as_text()
    assert text.count("stablehlo.transpose") == prepared.count("stablehlo.transpose")
    # What they are prepared of is no constant, of what is traced and of what is compiled.
    sizes = [x.size for x in jax.tree.leaves(run.trace(X).jaxpr.consts)]
    assert max(sizes, default=0) < DATA["first"].size
    assert "tensor<48x48x3x3xf32>" not in text and "tensor<48x3x3x3xf32>" not in text


def test_other_platforms_get_own_parameters_as_they_are(model: nnef_jax.Model) -> None:
    text = jax.jit(closed(model)).trace(X).lower(lowering_platforms=("tpu",)).as_text()
    assert len(re.findall(r"stablehlo\.convolution\(", text)) == CONVOLUTIONS
    assert "stablehlo.transpose" not in text and "tensor<48x48x3x3xf32>" in text


@pytest.mark.parametrize("batch", (8, "b"))
def test_several_platforms_get_own_parameters(batch: Any) -> None:
    model = model_of(NET, data=DATA, input_shapes={"x": (None, 3, 12, 12)})
    extent = jax.export.symbolic_shape(batch)[0] if batch == "b" else batch
    x = jax.ShapeDtypeStruct((extent, 3, 12, 12), jnp.float32)
    exported = jax.export.export(jax.jit(closed(model)), platforms=["cpu", "tpu"])(x)
    np.testing.assert_allclose(jax.jit(exported.call)(X), model(X).y, atol=1e-5)
    stored = sum(x.nbytes for x in DATA.values())  # the platforms share them
    assert stored < len(exported.mlir_module_serialized) < 1.5 * stored


# Functions of a model and an input, which a caller compiles.
WITHIN: dict[str, Callable[[nnef_jax.Model, Any], Any]] = {
    "vmap": lambda model, x: jax.vmap(closed(model))(x[None])[0],
    "nested": lambda model, x: jax.jit(closed(model))(x) + jax.jit(closed(model))(2 * x),
    "grad": lambda model, x: jax.grad(lambda x: jnp.sum(jnp.sin(closed(model)(x))))(x),
    "forward": lambda model, x: jax.jvp(closed(model), (x,), (jnp.cos(x),)),
    "remat": lambda model, x: jax.grad(lambda x: jnp.sum(jax.checkpoint(closed(model))(x)))(x),
    "edit": lambda model, x: closed(model, edit={"r": lambda r: 0.5 * r})(x),
    "given": lambda model, x: closed(model.with_params(model.params))(x),
    "traced": lambda model, x: closed(
        model.with_params(jax.tree.map(lambda p: p * x.mean(), model.params))
    )(x),
    "scan": lambda model, x: lax.map(closed(model), x[None])[0],
}


def within(name: str) -> tuple[Any, Any]:
    models = [model_of(NET, data=DATA, optimize=optimize) for optimize in (True, False)]
    return lambda x: [WITHIN[name](model, x) for model in models], (X,)


called = Together(list(WITHIN), within)


@pytest.mark.parametrize("name", WITHIN)
def test_a_call_within_is_that_of_what_is_written(name: str) -> None:
    found, wanted = called(name)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-4 * float(np.max(np.abs(y))))


@pytest.mark.parametrize("kind", (AxisType.Auto, AxisType.Explicit))
def test_a_call_within_on_a_mesh(kind: AxisType, model: nnef_jax.Model) -> None:
    mesh = jax.make_mesh((2,), ("data",), axis_types=(kind,))
    place = NamedSharding(mesh, PartitionSpec("data"))
    wanted = model(X).y
    with jax.set_mesh(mesh):
        x = jax.device_put(X, place)
        for each in (model, model.shard(mesh, batch="data")):
            y = jax.jit(closed(each))(x)
            np.testing.assert_allclose(y, wanted, atol=1e-5)
            assert y.sharding.is_equivalent_to(place, y.ndim)


def test_a_step_and_a_scan_within() -> None:
    shapes = {"h": (2, 6), "w": (6, 10), "b": (1, 6)}
    model = model_of(RECURRENT, data={k: RNG.normal(size=s) for k, s in shapes.items()})
    xs = RNG.normal(size=(5, 2, 4)).astype(np.float32)
    for found, wanted in (
        (jax.jit(model)(xs[0]), model(xs[0])),
        (jax.jit(model.step)(model.init_state(), xs[0]), model.step(model.init_state(), xs[0])),
        (jax.jit(lambda x: model.scan(x))(xs), model.scan(xs)),
    ):
        jax.tree.map(partial(np.testing.assert_allclose, atol=1e-6), found, wanted)


def test_a_caller_who_looks_for_nan_finds_it() -> None:
    model = model_of(
        NET.replace(
            "max_pool(c3, size = [1,1,2,2], stride = [1,1,2,2], border = 'ignore')", "relu(c3)"
        ),
        data=DATA,
    )
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        jax.jit(closed(model))(np.full_like(X, np.nan))
    # The network is computed as written only while jax looks for NaN.
    assert "stablehlo.transpose" in jax.jit(closed(model)).lower(X).as_text()


def test_what_is_prepared_is_of_one_network(model: nnef_jax.Model) -> None:
    prepared = model.prepare(model.params)
    again = model_of(NET, data=DATA)
    assert again.apply(prepared, X).y.shape == (8, 48, 3, 3)  # of the same content
    other = model_of(NET.replace("tanh", "sigmoid"), data=DATA)
    with pytest.raises(nnef_jax.InputError, match="prepared for another network"):
        other.apply(prepared, X)
    with pytest.raises(nnef_jax.InputError, match="lacks last"):
        model.prepare({k: v for k, v in model.params.items() if k != "last"})
    opened = model_of(NET, data=DATA, input_shapes={"x": (None, 3, 12, 12)})
    with pytest.raises(nnef_jax.InputError, match="shape of input 'x' is not known"):
        opened.prepare(opened.params)


SMALL = """
version 1.0;
graph net( x ) -> ( y )
{
    x = external(shape = [3, 4]);
    w = variable(shape = [5, 4], label = 'w');
    h = linear(x, w);
    y = reshape(h, shape = [15]);
}
"""


def test_what_is_prepared_is_checked() -> None:
    model = model_of(SMALL, data={"w": DATA["scale"][0, :20].reshape(5, 4)})
    prepared, x = model.prepare(model.params), X[0, 0, :3, :4]
    with pytest.raises(TypeError, match="no derivatives: differentiate in parameters"):
        jax.grad(lambda p: model.apply(p, x).sum())(prepared)
    with pytest.raises(nnef_jax.InputError, match="'w' must be an array, it is None"):
        model.apply(jax.tree.map(lambda x: None, prepared), x)
    with pytest.raises(nnef_jax.InputError, match=r"'w' has shape \[1,5,4\]"):
        model.apply(jax.tree.map(lambda x: x[None], prepared), x)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), prepared)
    np.testing.assert_allclose(model.apply(half, x), model(x), atol=0.05)
    assert model.prepare(prepared).params["w"] is model.params["w"]  # for other shapes, say


def test_errors_of_the_network_are_told_where_it_is_prepared() -> None:
    weights = {"w": DATA["scale"][0, :20].reshape(5, 4)}
    model = model_of(SMALL, data=weights, input_shapes={"x": (None, 4)})
    with pytest.raises(nnef_jax.ShapeError, match="cannot be reshaped"):
        model.prepare(model.params, jax.ShapeDtypeStruct((2, 4), jnp.float32))


def test_a_large_batch_is_divided_on_one_device_alone() -> None:
    """What is prepared is as fast as a call, which takes a few items at a time."""
    text = NET.replace("[8, 3, 12, 12]", "[8, 3, 256, 256]")
    model = model_of(text, data=DATA)
    prepared = model.prepare(model.params)
    x = jax.ShapeDtypeStruct((8, 3, 256, 256), jnp.float32)
    assert "stablehlo.while" in jax.jit(model.apply).lower(prepared, x).as_text()
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = jax.make_mesh((2,), ("data",), axis_types=(kind,))
        sharded = NamedSharding(mesh, PartitionSpec("data"))
        x = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharded)
        assert "stablehlo.while" not in jax.jit(model.apply).lower(prepared, x).as_text()


def test_passes_leave_open_sizes_that_they_cannot_compare() -> None:
    def function(p: Any, x: Any) -> Any:
        """Compute of parameters alone what has the open batch: it meets rules of all kinds."""
        items = jnp.arange(x.shape[0], dtype=jnp.float32)[:, None] * p
        many = jnp.broadcast_to(items[:, None], (x.shape[0], 64, 96)) + p[:, None]
        first, last = jnp.swapaxes(many, 0, 1), jnp.swapaxes(many, 1, 2)
        sums = [jnp.sum(many, axes) for axes in ((0, 1), (1,), (2,), (0, 1, 2))]
        flat = [jnp.sum(x, -1) for x in (first, first.reshape(64, -1), last.reshape(-1, 64))]
        over_rows = lax.dot_general(many, many, (((0, 1), (0, 1)), ((), ())))
        return x + sum(jnp.sum(y) for y in (*sums, *flat, over_rows)) / 1e6

    p = np.linspace(0, 1, 96, dtype=np.float32)[None]
    open_batch = jax.ShapeDtypeStruct((*jax.export.symbolic_shape("b"), 96), jnp.float32)
    run = jax.jit(network(function))
    exported = jax.export.export(run, platforms=["cpu", "tpu"])(p, open_batch)
    x = np.ones((3, 96), np.float32)
    np.testing.assert_allclose(exported.call(p, x), jax.jit(function)(p, x), rtol=1e-5)
    (b,) = jax.export.symbolic_shape("b")
    known = [at_least(3, 2), at_least(2, 2), at_least(b, 1), at_least(2 * b, b)]
    assert all(known) and not any(map(at_least, (2, 1, b, 8 * b, UNKNOWN), (3, b, 2, 9, 1)))


def lower_elsewhere(cases: Sequence[OpCase]) -> None:
    models = [model_of(document(case)) for case in cases]
    run = jax.jit(lambda xs: [model(*x) for model, x in zip(models, xs, strict=True)])
    run.trace([inputs(case) for case in cases]).lower(lowering_platforms=("cuda", "tpu"))


@pytest.mark.parametrize("table", [NNEF, TRACT], ids=["nnef", "tract"])
def test_an_operation_of_every_kind_lowers_for_devices_that_are_not_attached(
    table: Sequence[OpCase],
) -> None:
    cases = [*{case.operation: case for case in reversed(table)}.values()]
    try:
        lower_elsewhere(cases)
    except Exception as joined:
        errors: dict[str, Exception] = {}
        for case in cases:
            try:
                lower_elsewhere([case])
            except Exception as error:
                errors[case.name] = error
        raise AssertionError(errors) from joined
