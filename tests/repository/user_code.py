"""Code of a user: pyright checks it strictly, as it does the packages, and a test runs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_type

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

import nnef_jax
from nnef_jax import analysis, openvx


def load(path: Path) -> nnef_jax.Model:
    model = nnef_jax.load(path, dtype=jnp.float32, input_shapes={"image": (None, 1, 8, 8)})
    assert_type(model.params, dict[str, Array])
    assert_type(model.inputs[0].shape, tuple[int | None, ...])
    return model


def call(model: nnef_jax.Model, images: NDArray[Any]) -> Array:
    probabilities: Array = model(images)  # of one output; several are a named tuple
    by_name: Array = model(image=images)
    outputs, inside = model(
        images, capture=["conv1"], edit={"relu1": jnp.abs, "conv2": lambda v: v}
    )
    assert_type(inside, dict[str, Array])
    assert_type(model.intermediates(images, names=["conv1"]), dict[str, Array])
    return probabilities + by_name + outputs


def differentiate(model: nnef_jax.Model, images: Array) -> dict[str, Array]:
    def loss(params: Mapping[str, Array]) -> Array:
        logits: Array = model.apply(params, images)
        return -jnp.log(logits[:, 3]).mean()

    gradients = jax.grad(loss)(model.params)
    tuned = {label: x - 0.1 * gradients[label] for label, x in model.params.items()}
    assert_type(model.with_params(tuned), nnef_jax.Model)
    compiled = model.jit(model.apply)
    compiled(model.prepare(model.params, jax.ShapeDtypeStruct(images.shape, images.dtype)), images)
    return tuned


def recur(model: nnef_jax.Model, xs: NDArray[Any]) -> tuple[Array, dict[str, Array]]:
    state = model.init_state()
    y, state = model.step(state, xs[0])
    assert_type(state, dict[str, Array])
    ys, after, inside = model.scan(xs, state=state, capture=["*"])
    assert_type((after, inside), tuple[dict[str, Array], dict[str, Array]])
    first: Array = y[0]
    return first[None] + ys[0], after


def explain(model: nnef_jax.Model, images: NDArray[Any]) -> Array:
    found = analysis.saliency(model, images, target=[3] * len(images))
    assert_type(found, analysis.Attribution)
    margin = analysis.pgd(
        model, images, epsilon=8, bounds=(0, 255), key=jax.random.key(0), target=lambda y: y[:, 3]
    )
    assert_type(analysis.compare(model, model, images).first, analysis.TensorDifference | None)
    assert_type(found.to_dict(), dict[str, object])
    return found.values + margin.perturbation


def fixed_point(model: nnef_jax.Model, images: NDArray[Any]) -> Array:
    fixed = openvx.lower(model, "openvx-16bit", on_unfit="float")
    raw: openvx.Tensor = fixed(*fixed.quantize(images))
    return raw.data


def write(model: nnef_jax.Model, folder: Path) -> str:
    model.save(folder / "net.nnef.tgz", overwrite=True, quantize=None)
    nnef_jax.write_tensor(folder / "x.dat", np.ones((2, 3), np.float32))
    assert_type(nnef_jax.read_tensor(folder / "x.dat"), NDArray[Any])
    return nnef_jax.convert(folder / "net.nnef.tgz", flat=True, values=None)


def add_a_rule() -> nnef_jax.Registry:
    rules = nnef_jax.Registry()

    @rules.rule("double", lambda x: x)
    def double(x: Array) -> Array:
        return 2 * x

    assert_type(double(jnp.ones(1)), Array)
    return rules
