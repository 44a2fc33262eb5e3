"""Parameters that an optimizer is to change: `model.trainable`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nnef_jax
from nnef_jax.execution.runnable import execution_of
from tests.helpers import model_of

HEAD = """version 1.0;
graph net( x ) -> ( y )
{
    x = external(shape = [2, 3, 4]);
    filter = variable(label = 'filter', shape = [3, 3, 1]);
    h = conv(x, filter, 0.0);
    mean = variable(label = 'mean', shape = [1, 3]);
    variance = variable(label = 'variance', shape = [1, 3]);
    offset = variable(label = 'offset', shape = [1, 3]);
    scale = variable(label = 'scale', shape = [1, 3]);
"""
NORM = "y = batch_normalization(h, {mean}, {variance}, {offset}, {scale}, epsilon = 1e-5);\n}}\n"
SHAPES = {"filter": (3, 3, 1)} | dict.fromkeys(("mean", "variance", "offset", "scale"), (1, 3))


def net(before: str = "", expand: str = "auto", **operands: str) -> nnef_jax.Model:
    """Return a network with a batch normalisation of these operands behind a convolution."""
    names = {name: name for name in ("mean", "variance", "offset", "scale")} | operands
    arrays = {label: np.ones(shape, np.float32) for label, shape in SHAPES.items()}
    return model_of(HEAD + before + NORM.format(**names), data=arrays, expand=expand)


def chosen(model: nnef_jax.Model) -> set[str]:
    found = model.trainable
    assert jax.tree.structure(found) == jax.tree.structure(model)
    assert {type(x) for x in jax.tree.leaves(found)} == {bool}
    assert not any(execution_of(found).arrays.leaves()[1].values())
    return {label for label, trains in found.params.items() if trains}


AFFINE = {"filter", "offset", "scale"}


@pytest.mark.parametrize(
    ("before", "operands", "wanted"),
    [
        ("", {}, AFFINE),
        ("v = unsqueeze(squeeze(variance, axes = [0]), axes = [0]);", {"variance": "v"}, AFFINE),
        ("m = sub(mul(mean, 2.0), scale); v = sqr(variance);", {"mean": "m", "variance": "v"},
         {"filter", "offset"}),
        # Of a batch: they depend on the input, and so does what is before them.
        ("(a, b) = moments(h, axes = [0, 2]);"
         "m = squeeze(a, axes = [2]); v = squeeze(b, axes = [2]);",
         {"mean": "m", "variance": "v"}, AFFINE),
        ("", {"offset": "mean"}, AFFINE - {"offset"}),  # one array for both
        ("", {"mean": "0.0", "variance": "1.0"}, AFFINE),
    ],
)  # fmt: skip
def test_statistics_are_found_by_use(before: str, operands: Any, wanted: set[str]) -> None:
    assert chosen(net(before, **operands)) == wanted


def test_labels_do_not_count() -> None:
    text = """version 1.0;
graph net( x ) -> ( y )
{
    x = external(shape = [2, 3]);
    w = variable(label = 'running_var', shape = [1, 3]);
    y = mul(x, w);
}
"""
    model = model_of(text, data={"running_var": np.ones((1, 3), np.float32)})
    assert chosen(model) == {"running_var"}


def test_a_norm_that_is_written_out_has_no_statistics() -> None:
    assert chosen(net(expand="all")) == {*SHAPES}


def test_states_and_integers_are_not_trained() -> None:
    text = """version 1.0;
graph net( x ) -> ( y )
{
    x = external(shape = [1, 2]);
    w = variable(label = 'w', shape = [1, 2]);
    n = variable<integer>(label = 'n', shape = [1, 2]);
    h = variable(label = 'h', shape = [1, 2]);
    m = cast<scalar>(n);
    p = mul(x, w);
    q = add(p, m);
    y = add(q, h);
    new = update(h, y);
}
"""
    arrays = {"w": np.float32([[1, 2]]), "h": np.float32([[0, 0]]), "n": np.int32([[3, 4]])}
    model = model_of(text, data=arrays)
    assert model.trainable.params == {"w": True, "n": False}
    assert chosen(model) == {"w"}
    assert execution_of(model.trainable).arrays.leaves()[1] == {"h": False}


def test_statistics_in_the_bodies_of_loops_and_branches() -> None:
    onnx = pytest.importorskip("onnx")
    from tests.onnx import models

    norm = models.node("BatchNormalization", "c s b m v", "d")
    body = onnx.helper.make_graph(
        [models.node("Identity", "on", "go"), norm],
        "body",
        [models.tensor("i", (), 7), models.tensor("on", (), 9), models.tensor("c", (2, 3))],
        [models.tensor("go", (), 9), models.tensor("d", (2, 3))],
    )
    then, other = (
        onnx.helper.make_graph([models.node(*call)], name, [], [models.tensor("e", (2, 3))])
        for name, call in {
            "then": ("BatchNormalization", "z s b m v", "e"), "else": ("Mul", "z w", "e"),
        }.items()
    )  # fmt: skip
    nodes = [
        models.node("Loop", "n _ x", "z", body=body),
        models.node("If", "on", "y", then_branch=then, else_branch=other),
    ]
    random = np.random.default_rng(0)
    weights: dict[str, Any] = {k: random.uniform(1, 2, 3).astype(np.float32) for k in "sbmvw"}
    inputs = [models.tensor("x", (2, 3)), models.tensor("n", (), 7), models.tensor("on", (), 9)]
    model = nnef_jax.load(models.model(nodes, inputs, weights=weights))
    assert {operation.kind for operation in model.graph.operations} >= {"loop", "branch"}
    assert chosen(model) == {"s", "b", "w"}


def test_masks_of_optax() -> None:
    model = net()
    masked = optax.masked(optax.scale(0.0), model.trainable.params)
    ones = jax.tree.map(jnp.ones_like, model.params)
    updates, _ = masked.update(ones, masked.init(model.params))
    kept = {label for label, x in updates.items() if np.asarray(x).all()}
    assert kept == {"mean", "variance"}


def test_partitions_of_equinox() -> None:
    eqx = pytest.importorskip("equinox")
    model = net()
    trained, fixed = eqx.partition(model, model.trainable)
    assert {k for k, x in trained.params.items() if x is not None} == AFFINE
    x = np.ones((2, 3, 4), np.float32)
    gradient = eqx.filter_grad(lambda part: eqx.combine(part, fixed)(x).sum())(trained)
    assert {k for k, g in gradient.params.items() if g is not None} == AFFINE
