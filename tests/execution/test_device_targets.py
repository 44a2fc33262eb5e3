"""What TPUs and GPUs of CUDA get: the same numbers, in the forms that their compilers fuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from lowering import jaxprs, network
from lowering.pipeline import lower
from lowering.split import split
from lowering.targets import target_of
from tests.programs import program_of, random

B = jnp.bfloat16
NUMBERS = ("NCHW", "OIHW", "NCHW")


def convolution(p: Any, x: Any, dtype: Any = None) -> Any:
    return lax.conv_general_dilated(
        x, p["w"], (1, 1), "SAME", dimension_numbers=NUMBERS, preferred_element_type=dtype
    )


def relu(x: Any) -> Any:
    return jnp.where(x <= 0, 0, x)


def normed(p: Any, x: Any) -> Any:
    return relu(convolution(p, x) * p["scale"] + p["offset"])


def normed_in_bfloat16(p: Any, x: Any) -> Any:
    """As a document's rules write it: products and norms in 32 bits, rounded to 16 after each."""
    y = convolution(p, x, jnp.float32).astype(B)
    y = y.astype(jnp.float32) * p["scale"].astype(jnp.float32) + p["offset"].astype(jnp.float32)
    return relu(y.astype(B))


def residual(p: Any, x: Any) -> Any:
    return relu(convolution(p, x) + p["offset"] + x)


def lstm(p: Any, x: Any, gates: int = 4) -> Any:
    """Separate matrices and vectors for each gate."""
    parts = [x @ p["inputs"][i] + p["bias"][i] for i in range(gates)]

    def step(state: Any, items: Any) -> Any:
        h, c = state
        i, f, g, o = (y + (h @ p["states"][n])[None] for n, y in enumerate(items))
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h[0], c), h[0]

    zeros = jnp.zeros((x.shape[1], 3), x.dtype)
    items = [y[:, None] for y in parts]
    return lax.scan(step, (zeros, zeros[None]), items, reverse=True)[1]


def gru(p: Any, x: Any) -> Any:
    """The bias of the last gate is added to the product with the state alone."""
    parts = [x @ p["inputs"][i] + p["bias"][i] for i in range(3)]

    def step(h: Any, items: Any) -> Any:
        of_h = [h @ p["states"][i] for i in range(3)]
        r, z = (jax.nn.sigmoid(items[i] + of_h[i]) for i in range(2))
        n = jnp.tanh(items[2] + r * (of_h[2] + p["bias"][3, 0]))
        h = (1 - z) * n + z * h
        return h, (h, items[0])

    return lax.scan(step, jnp.zeros((x.shape[1], 3), x.dtype), parts)[1]


def projections(p: Any, x: Any) -> Any:
    """Products of one input, which no loop reads."""
    return tuple(jax.nn.relu(x @ p["inputs"][i] + p["bias"][i]) for i in range(3))


def deconvolution(p: Any, x: Any) -> Any:
    filter = p["w"][:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
    padding = ((2, 2), (2, 2))
    return lax.conv_general_dilated(
        x, filter, (1, 1), padding, lhs_dilation=(2, 2), dimension_numbers=NUMBERS
    )


def relu6(p: Any, x: Any) -> Any:
    bound = np.full((1, 1, 1, 1), 6, np.float32)
    x = relu(convolution(p, x))
    return jnp.where(x > bound, bound, x)


def cut(p: Any, x: Any) -> Any:
    """Slices that overlap, leave out items, or are read by two sums."""
    y = x @ p["m"]
    left, right, middle = y[..., :3], y[..., 3:], y[..., 2:5]
    return left + p["v"], right + p["v"], middle + p["v"], left + right, right[..., :2] + 1


def of_two_dtypes(p: Any, x: Any) -> Any:
    """One half of a product is added in 32 bits, the other in 16."""
    y = x @ p["m"]
    narrow = y[..., 3:].astype(B) + p["v"].astype(B)
    return y[..., :3] + p["v"], narrow


IMAGES = {"w": random(4, 3, 3, 3), "scale": random(1, 4, 1, 1, seed=1)}
IMAGES["offset"] = random(1, 4, 1, 1, seed=2)
SQUARE = {"w": random(3, 3, 3, 3), "offset": random(1, 3, 1, 1, seed=2)}
GATES = {
    "inputs": random(4, 5, 3),
    "states": random(4, 3, 3, seed=1),
    "bias": random(4, 1, 1, 3, seed=2),
}
IMAGE, SEQUENCE = random(2, 3, 8, 8, seed=3), random(7, 2, 5, seed=3)


def narrow(arrays: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(B), arrays)


# Functions, parameters, inputs, and how often primitives are in the call on a platform.
CASES: dict[str, tuple[Callable[..., Any], Any, Any, dict[str, dict[str, int]]]] = {
    "norm": (normed, IMAGES, IMAGE, {"cuda": {"max": 1, "select_n": 0, "mul": 0, "add": 1}}),
    "norm in bfloat16": (
        normed_in_bfloat16,
        narrow(IMAGES),
        narrow(IMAGE),
        {"cuda": {"max": 1, "mul": 0, "convert_element_type": 1}, "tpu": {"mul": 0}},
    ),
    "residual": (
        residual,
        SQUARE,
        IMAGE,
        {"cuda": {"max": 1, "add": 2}, "tpu": {"max": 1, "select_n": 0}},
    ),
    "relu6": (relu6, IMAGES, IMAGE, {"cuda": {"min": 1}, "tpu": {"max": 1, "min": 1}}),
    "projections": (
        projections,
        GATES,
        SEQUENCE,
        {"cuda": {"dot_general": 1}, "tpu": {"dot_general": 3}},
    ),
    "deconvolution": (deconvolution, SQUARE, IMAGE, {"cuda": {"rev": 1}, "tpu": {"rev": 0}}),
    "lstm": (lstm, GATES, SEQUENCE, {"tpu": {"dot_general": 2, "concatenate": 0, "add": 3}}),
    "lstm in bfloat16": (lstm, narrow(GATES), narrow(SEQUENCE), {"tpu": {"dot_general": 2}}),
    "gru": (gru, GATES, SEQUENCE, {"tpu": {"dot_general": 2, "concatenate": 0}}),
    "two dtypes": (of_two_dtypes, {"m": random(5, 6), "v": random(1, 1, 3)}, SEQUENCE, {}),
    "cut": (cut, {"m": random(5, 6), "v": random(1, 1, 3)}, SEQUENCE, {"tpu": {"dot_general": 1}}),
}


def run(function: Any, parameters: Any, inputs: Any, platform: str) -> tuple[Any, Counter[str]]:
    """Return the results of the call that a platform gets, and the number of its primitives."""
    program, leaves, tree = program_of(function, parameters, inputs)
    parts = lower(program, target_of(platform))
    arrays, arguments = leaves[: program.parameters], leaves[program.parameters :]
    assert parts.later is not None
    names = Counter(jaxprs.primitive(e) for e in jaxprs.innermost(parts.later.jaxpr))
    return jax.tree.unflatten(tree, jax.jit(parts.call)(parts.prepare(arrays), arguments)), names


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_calls_compute_what_is_written(name: str, platform: str) -> None:
    function, parameters, inputs, counts = CASES[name]
    results, names = run(function, parameters, inputs, platform)
    expected = jax.jit(function)(parameters, inputs)
    for y, reference in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        assert (y.shape, y.dtype) == (reference.shape, reference.dtype)
        tolerance = 2**-6 if B in (inputs.dtype, y.dtype) else 1e-5
        y, reference = (np.asarray(v, np.float32) for v in (y, reference))
        np.testing.assert_allclose(y, reference, rtol=tolerance, atol=tolerance)
    assert {x: names[x] for x in counts.get(platform, {})} == counts.get(platform, {})


def stored_shapes(function: Any, parameters: Any, inputs: Any, platform: str) -> list[Any]:
    """Return the shapes of the values that a platform prepares, without any other pass."""
    program, leaves, _ = program_of(function, parameters, inputs)
    parts = split(program, target_of(platform))
    return [x.shape for x in parts.prepare(leaves[: program.parameters])]


def test_a_tpu_stores_vectors_without_unit_axes() -> None:
    """A matrix is stored as it is in the document."""
    parameters = {"m": random(1, 4, 5), "v": random(1, 1, 4)}

    def function(p: Any, x: Any) -> Any:
        return x @ p["m"][0].T + p["v"]

    assert stored_shapes(function, parameters, SEQUENCE, "tpu") == [(1, 4, 5), (4,)]
    assert stored_shapes(function, parameters, SEQUENCE, "cuda") == [(1, 1, 4), (5, 4)]


def test_numbers_are_no_arguments_of_a_call() -> None:
    """A constant of one item stays in the call, and one of several items is stored."""
    half, vector = np.full((1, 1, 1), 0.5, np.float32), np.asarray(random(1, 1, 3))

    def function(p: Any, x: Any) -> Any:
        return jnp.sin(x * half) * p["v"] + vector

    shapes = stored_shapes(function, {"v": random(1, 1, 3)}, SEQUENCE[..., :3], "cuda")
    assert shapes == [(1, 1, 3), (1, 1, 3)]


def written(p: Any, x: Any, place: Any) -> Any:
    """A row of each head at one place, as `scatter_nd` and as `scatter_elements` write it."""
    heads, count = x.shape[0], x.shape[1]
    rows = jnp.broadcast_to(place.reshape(1, 1), (heads, 1))
    indices = jnp.stack([jnp.arange(heads)[:, None], rows], -1)
    by_place = x.at[indices[..., 0], indices[..., 1]].set(p["row"], mode="drop")
    last = x.swapaxes(0, 1).at[place.reshape(1)].set(p["row"].swapaxes(0, 1), mode="drop")
    return by_place, last, count


@pytest.mark.parametrize("place", [0, 3, 6, 7, 100, -1, -7, -8, -100])
def test_rows_of_one_place_are_a_slice(place: int) -> None:
    parameters, caches = {"row": random(3, 1, 4)}, random(3, 7, 4, seed=1)
    inputs = (caches, jnp.array([place]))
    function: Any = lambda p, xs: written(p, *xs)  # noqa: E731
    results, names = run(function, parameters, inputs, "tpu")
    assert (names["scatter"], names["dynamic_update_slice"]) == (0, 2)
    for y, reference in zip(results, function(parameters, inputs), strict=True):
        np.testing.assert_array_equal(y, reference)


def test_rows_of_several_places_are_scattered() -> None:
    def scattered(p: Any, xs: Any) -> Any:
        x, places = xs
        heads = jnp.arange(3)
        return (
            x.at[heads, places].set(p["row"]),  # a place for each head
            x.at[heads[::-1], places[:1]].set(p["row"]),  # heads in another order
            x.at[heads[:2], places[:1]].set(p["row"][:2]),  # some heads
            x.at[heads, places[:1]].add(p["row"]),
        )

    inputs = (random(3, 7, 4), jnp.array([2, 0, 2]))
    parameters = {"row": random(3, 4)}
    results, names = run(scattered, parameters, inputs, "tpu")
    assert names["dynamic_update_slice"] == 0
    for y, reference in zip(results, scattered(parameters, inputs), strict=True):
        np.testing.assert_array_equal(y, reference)


def in_function(function: Any, parameters: Any, inputs: Any, platform: str) -> str:
    """Return the text of a network within a user's function, as a platform lowers it."""

    def compute(parameters: Any, inputs: Any) -> Any:
        return jax.tree.map(jnp.sin, network(function)(parameters, inputs))

    lowered = jax.jit(compute).trace(parameters, inputs).lower(lowering_platforms=(platform,))
    return lowered.as_text()


def test_users_functions_have_the_forms_that_compilers_fuse() -> None:
    for platform, maxima in {"cuda": 1, "tpu": 1, "rocm": 0}.items():
        text = in_function(residual, SQUARE, IMAGE, platform)
        assert text.count("stablehlo.maximum") == maxima
    inputs = (random(3, 7, 4, seed=1), jnp.array([2]))
    function: Any = lambda p, xs: written(p, *xs)  # noqa: E731
    text = in_function(function, {"row": random(3, 1, 4)}, inputs, "tpu")
    assert text.count("stablehlo.dynamic_update_slice") == 2


def test_users_functions_join_no_matrices() -> None:
    for platform in ("cuda", "tpu"):
        text = in_function(projections, GATES, SEQUENCE, platform)
        assert text.count("stablehlo.dot_general") == 3


def test_gradients_of_patch_embeddings_are_products_on_tpus() -> None:
    def embedding(p: Any, x: Any) -> Any:
        return lax.conv_general_dilated(x, p["w"], (4, 4), "VALID", dimension_numbers=NUMBERS)

    def gradient(p: Any, x: Any) -> Any:
        return jax.grad(lambda p: jnp.sum(jnp.sin(network(embedding)(p, x))))(p)

    parameters = {"w": random(5, 3, 4, 4)}
    for platform, convolutions in {"tpu": 1, "cuda": 2}.items():
        traced = jax.jit(gradient).trace(parameters, IMAGE)
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert text.count("stablehlo.convolution") == convolutions


@pytest.mark.parametrize("function", [lstm, gru, normed])
def test_open_batches(function: Any) -> None:
    """An exported function has the passes' programs for any batch."""
    (batch,) = jax.export.symbolic_shape("b")
    parameters, shape = (IMAGES, (batch, 3, 8, 8)) if function is normed else (GATES, (7, batch, 5))
    types = jax.ShapeDtypeStruct(shape, jnp.float32)
    for platform in ("tpu", "cuda"):
        exported = jax.export.export(jax.jit(network(function)), platforms=[platform])
        exported(parameters, types)


def test_relu_of_special_numbers() -> None:
    x = jnp.array([-np.inf, -1.0, -0.0, 0.0, 1.0, np.inf, np.nan])
    results, names = run(lambda _, x: relu(x), {}, x, "cuda")
    assert names["max"] == 1
    np.testing.assert_array_equal(results, [0, 0, 0, 0, 1, np.inf, np.nan])


def test_other_choices_stay() -> None:
    def choices(_: Any, x: Any) -> Any:
        return jnp.where(x <= 1, 0, x), jnp.where(x <= 0, 1, x), jnp.where(x <= 0, x, 0)

    _, names = run(choices, {}, random(3), "cuda")
    assert names["max"] == 0
