"""Attributions of networks whose derivatives are known."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import nnef_jax
from nnef_jax import InputError, analysis
from tests.analysis.known_networks import (
    TABLE,
    B,
    C,
    V,
    W,
    classifier,
    document,
    linear,
    looked_up,
    normal,
    pooled,
    quadratic,
    recurrent,
)
from tests.helpers import model_of
from tests.tract_text import graph

DIGITS = Path(__file__).parents[2] / "examples" / "digits"
X = normal(5, 4)
CLASSES = np.array([2, 0, 1, 1, 2])
CLOSE: Any = {"rtol": 1e-5, "atol": 1e-6}
close = partial(np.testing.assert_allclose, **CLOSE)


def test_the_gradient_of_a_linear_network_is_its_weight() -> None:
    found = analysis.saliency(linear(), X, target=CLASSES)
    close(found.values, W[CLASSES])
    close(found.scores, (X @ W.T + B)[range(5), CLASSES])
    close(analysis.saliency(linear(), X, target=1).values, np.tile(W[1], (5, 1)))
    close(analysis.saliency(linear(), X, target=1, times_input=True).values, W[1] * X)


def test_by_default_the_class_with_the_highest_score_is_explained() -> None:
    best = (X @ W.T + B).argmax(1)
    found = analysis.saliency(linear(), X)
    assert np.asarray(found.classes).tolist() == best.tolist()
    close(found.values, W[best])


def test_a_function_says_the_score() -> None:
    def difference(y: jax.Array) -> jax.Array:
        return y[:, 0] - y[:, 2]

    found = analysis.saliency(linear(), X, target=difference)
    close(found.values, np.tile(W[0] - W[2], (5, 1)))
    assert found.classes is None and "class" not in str(found)


def test_outputs_are_named_and_tensors_inside_too() -> None:
    model = classifier()
    slopes = (1 - np.tanh(X) ** 2) * W[1]
    close(analysis.saliency(model, X, target=1, output="logits").values, slopes)
    close(analysis.saliency(model, X, output="z").values, np.tile(C, (5, 1)))
    both = analysis.saliency(model, X, target=lambda outputs: outputs.z[:, 0] + outputs.y.sum(1))
    close(both.values, np.tile(C, (5, 1)))
    cut = model.cut(outputs=["logits"])
    close(analysis.saliency(cut, X, target=1).values, slopes)
    inside = analysis.saliency(model, X, target=1, output="logits", wrt="h")
    close(inside.values, np.tile(W[1], (5, 1)))
    close(inside.x, np.tanh(X))


def test_embeddings_are_explained_where_inputs_are_integers() -> None:
    model, ids = looked_up(), np.array([[0, 4, 1], [2, 2, 3]])
    found = analysis.saliency(model, ids, target=[3, 1], wrt="e")
    wanted = np.zeros((2, 3, 4), np.float32)
    wanted[0, :, 3], wanted[1, :, 1] = 2 * TABLE[ids[0], 3], 2 * TABLE[ids[1], 1]
    close(found.values, wanted)
    flow = analysis.integrated_gradients(model, ids, target=[3, 1], wrt="e")
    close(flow.values, wanted**2 / 4)
    with pytest.raises(InputError, match="no input is real: 'ids' of int32") as caught:
        analysis.saliency(model, ids)
    assert caught.value.hint == "explain a tensor inside: wrt='e'"


def test_integrated_gradients_of_a_linear_network_are_exact() -> None:
    start = normal(1, 4)
    found = analysis.integrated_gradients(linear(), X, target=CLASSES, baseline=start, steps=3)
    close(found.values, W[CLASSES] * (X - start))
    close(found.gap, np.zeros(5), atol=1e-5)


def test_integrated_gradients_of_a_quadratic_network_are_exact() -> None:
    found = analysis.integrated_gradients(quadratic(), X, target=CLASSES, baseline=0.5, steps=4)
    close(found.values, W[CLASSES] * (X**2 - 0.25), rtol=1e-4)


def test_the_gap_is_what_a_path_of_few_steps_leaves() -> None:
    question: Any = {"target": 1, "output": "logits"}
    gaps = []
    for steps in (4, 8):
        found = analysis.integrated_gradients(classifier(), 2 * X, steps=steps, **question)
        middles = (np.arange(steps) + 0.5) / steps
        slopes = np.mean([1 - np.tanh(2 * X * m) ** 2 for m in middles], axis=0)
        values = W[1] * 2 * X * slopes
        close(found.values, values)
        close(found.gap, values.sum(1) - np.tanh(2 * X) @ W[1], rtol=1e-4, atol=1e-5)
        gaps.append(np.abs(found.gap).max())
    assert gaps[0] > 3 * gaps[1] > 0  # of the second order


def test_a_noise_tunnel_averages_the_gradients_of_noisy_copies() -> None:
    key, samples = jax.random.key(3), 400
    smooth = partial(analysis.noise_tunnel, quadratic(), analysis.saliency, X, key=key)
    none = smooth(target=CLASSES, noise=0, samples=2)
    close(none.values, 2 * X * W[CLASSES])
    noise = 0.2 * np.ptp(X, axis=1)  # one for each item
    found = smooth(target=CLASSES, noise=noise, samples=samples)
    deviation = noise[:, None] * 2 * np.abs(W[CLASSES]) / samples**0.5
    errors = (found.values - 2 * X * W[CLASSES]) / deviation
    assert np.abs(errors).max() < 4 and 0.5 < np.std(errors) < 1.5
    again = smooth(target=CLASSES, noise=noise, samples=samples)
    np.testing.assert_array_equal(found.values, again.values)


PICTURES = normal(3, 2, 5, 6)


def test_grad_cam_weighs_maps_by_their_mean_gradients() -> None:
    found = analysis.grad_cam(pooled(), PICTURES, layer="maps", target=[2, 0, 1])
    maps = np.einsum("bc,bchw->bhw", V[[2, 0, 1]] / 30, PICTURES - 0.5)
    close(found.values, np.maximum(maps, 0))
    assert found.of == "maps" and str(found).startswith("Grad-CAM of maps")


def test_grad_cam_scales_maps_to_the_input() -> None:
    text = document("""
    x = external<scalar>(shape = [0,1,4,8]);
    maps = box(x, size = [1,1,2,4], stride = [1,1,2,4], padding = [(0,0),(0,0),(0,0),(0,0)]);
    s = sum_reduce(maps, axes = [1,2,3]);
    y = squeeze(s, axes = [1,2,3]);
""")
    x = np.zeros((1, 1, 4, 8), np.float32)
    x[0, 0, 0, 0], x[0, 0, 3, 7] = 1, 2
    small = analysis.grad_cam(model_of(text), x, layer="maps", upsample=False)
    close(small.values, [[[1, 0], [0, 2]]])
    large = analysis.grad_cam(model_of(text), x, layer="maps").values[0]
    # Positions of maps are the centres of what they cover.
    down = np.interp(np.arange(4), (0.5, 2.5), (0, 1))
    right = np.interp(np.arange(8), (1.5, 5.5), (0, 1))
    close(large, np.outer(1 - down, 1 - right) + 2 * np.outer(down, right))


def test_occlusion_is_the_mean_fall_over_the_windows_that_cover_a_position() -> None:
    def covered(windows: tuple[int, int], strides: tuple[int, int]) -> Any:
        weights = np.broadcast_to(V[1][:, None, None] / 30, (2, 5, 6))
        total, count = np.zeros((3, 5, 6)), np.zeros((5, 6))
        for top in range(0, 5 - windows[0] + strides[0], strides[0]):
            for left in range(0, 6 - windows[1] + strides[1], strides[1]):
                at = np.s_[top : top + windows[0], left : left + windows[1]]
                fall = ((PICTURES - 2) * weights)[:, :, *at].sum((1, 2, 3))
                total[:, *at] += fall[:, None, None]
                count[at] += 1
        return total / count

    occlude = partial(analysis.occlusion, pooled(), PICTURES, target=1, baseline=2.0)
    close(occlude(window=(2, 3), stride=(2, 1)).values, covered((2, 3), (2, 1)), rtol=1e-3)
    close(occlude(window=3).values, covered((3, 3), (2, 2)), rtol=1e-3)
    close(
        analysis.occlusion(linear(), X, window=1, target=1).values, W[1] * X, rtol=1e-3, atol=1e-5
    )


def test_the_baseline_of_a_tensor_inside_is_that_of_the_inputs_it_follows_from() -> None:
    find = partial(analysis.integrated_gradients, output="logits", wrt="h", target=CLASSES)
    found = find(classifier(), X, baseline=0.5)
    close(found.values, W[CLASSES] * (np.tanh(X) - np.tanh(0.5)))
    close(found.gap, np.zeros(5), atol=1e-5)
    found = find(classifier(), X, baseline=C)
    close(found.values, W[CLASSES] * (np.tanh(X) - np.tanh(C)))
    covered = analysis.occlusion(quadratic(), X, wrt="h", window=1, target=1, baseline=0.5)
    close(covered.values, W[1] * (X**2 - 0.25), rtol=1e-3, atol=1e-5)
    # What follows from ids alone has a baseline of its own.
    ids = np.array([[0, 1, 2], [4, 4, 3]])
    table = analysis.integrated_gradients(looked_up(), ids, wrt="e", target=2)
    close(table.values[..., 2], TABLE[ids][..., 2] ** 2)


@pytest.mark.parametrize(
    "end", ["softmax(h)", "sigmoid(h)", "log(softmax(h))", "reshape(softmax(h), shape = [0,3,1])"]
)
def test_scores_are_of_logits_where_they_are_known(end: str) -> None:
    body = "x = external<scalar>(shape = [0,3]);\nh = mul(x, 9.0);\n"
    if "(softmax" in end:
        body, end = body + "p = softmax(h);\n", end.replace("softmax(h)", "p")
    model = model_of(document(f"{body}y = {end};\n"))
    x = X[:, :3]
    found = analysis.saliency(model, x, target=1)
    close(found.values, np.tile(9 * np.eye(3)[1], (5, 1)))
    assert found.output == "h" and str(found).startswith("saliency of x for h")
    assert analysis.fgsm(model, x, epsilon=0.1).output == "h"
    kept = analysis.saliency(model, x, target=1, output="y")
    assert kept.output == "y" and not np.allclose(kept.values, found.values)


def test_scores_of_single_operations_are_of_logits_too() -> None:
    body = "x = external<scalar>(shape = [0,3]);\nh = mul(x, 9.0);\ny = softmax(h);\n"
    model = model_of(document(body), expand="all")
    close(analysis.saliency(model, X[:, :3], target=1).values, np.tile([0, 9, 0], (5, 1)))


def test_logits_are_found_in_each_format() -> None:
    text = graph("h = mul(x, 9.0);\ny = tract_core_softmax(h, axes = [1]);", x="[2,3] f32")
    assert analysis.saliency(model_of(text), X[:2, :3]).output == "h"
    scans, found = 20 * np.abs(normal(1, 1, 8, 8)), {}
    for format in ("model", "ir"):
        model = nnef_jax.load(DIGITS / format)
        found[format] = analysis.saliency(model, scans, target=3)
    values = found["model"].values
    assert np.abs(values).max() > 0.005
    close(found["ir"].values, values, atol=1e-6)
    logits = nnef_jax.load(DIGITS / "model").cut(outputs=["logits"])
    close(values, analysis.saliency(logits, scans, target=3).values)


def test_what_saturates_without_logits_is_warned_of() -> None:
    body = "x = external<scalar>(shape = [0,4]);\ns = softmax(x);\n"
    model = model_of(document(body + "y = reshape(s, shape = [0,2,2]);\n"))
    with pytest.warns(UserWarning, match="'y' saturates by 's'.*name a tensor before it"):
        found = analysis.saliency(model, X, target=1)
    assert found.output == "y"


def test_conductance_adds_up_by_unit() -> None:
    found = analysis.layer_conductance(
        quadratic(), X, layer="h", target=CLASSES, baseline=0.5, steps=3
    )
    close(found.values, W[CLASSES] * (X**2 - 0.25))
    close(found.gap, np.zeros(5), atol=1e-5)
    close(found.x, X**2)
    # Of the layer that is integrated over, it is the integrated gradient itself.
    through = analysis.layer_conductance(classifier(), X, layer="x", target=1, output="logits")
    whole = analysis.integrated_gradients(classifier(), X, target=1, output="logits")
    close(through.values, whole.values, rtol=1e-3)


def test_a_network_with_state_is_explained_from_its_first_cycle() -> None:
    found = analysis.saliency(recurrent(), X[:1], target=2)
    close(found.values[0], np.where(np.arange(4) == 2, 2 * (X[0] + 2), 0))


METHODS = {
    "saliency": {},
    "integrated_gradients": {"steps": 3},
    "grad_cam": {"layer": "maps"},
    "occlusion": {"window": 3},
    "layer_conductance": {"layer": "pool", "steps": 2},
}


SLOW = ("layer_conductance",)  # what they are made of is in others


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow) if x in SLOW else x for x in METHODS]
)
def test_methods_are_functions_of_jax(name: str) -> None:
    """Under jit and vmap, with parameters and classes traced; items do not depend on others."""
    model, classes = pooled(), np.array([2, 0, 1])
    method = partial(getattr(analysis, name), model, **METHODS[name])
    eager = method(PICTURES, target=classes).values

    def one(params: Any, x: Any, target: Any) -> Any:
        return method(x[None], target=target, params=params).values[0]

    mapped = jax.jit(jax.vmap(one, (None, 0, 0)))(model.params, PICTURES, classes)
    close(mapped, eager, atol=1e-5)
    order = np.array([2, 0, 1])
    close(method(PICTURES[order], target=classes[order]).values, eager[order], atol=1e-5)


def test_attributions_have_gradients() -> None:
    model = pooled()

    def total(params: Any) -> Any:
        find = partial(analysis.integrated_gradients, steps=2)
        return (find(model, PICTURES, target=1, params=params).values ** 2).sum()

    # Values are linear in the parameters, their squares of the second degree (Euler's theorem).
    value, gradient = jax.value_and_grad(total)(model.params)
    close((gradient["v"] * model.params["v"]).sum(), 2 * value, rtol=1e-3)


def test_items_of_a_batch_are_on_several_devices() -> None:
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))
    x = np.concatenate([X[:4], X[:2]])
    wanted = analysis.saliency(classifier(), x, output="logits").values
    placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
    for model, inputs in ((classifier().shard(mesh, batch="data"), x), (classifier(), placed)):
        found = analysis.saliency(model, inputs, output="logits").values
        assert found.sharding.shard_shape(found.shape) == (3, 4)
        close(found, wanted)


def test_nothing_is_compiled_again_for_another_class_or_other_parameters() -> None:
    from nnef_jax.analysis import gradients

    model = pooled()
    analysis.saliency(model, PICTURES, target=1)
    count = gradients._saliency._cache_size()
    analysis.saliency(model, PICTURES + 1, target=2)
    analysis.saliency(model, PICTURES, target=[1, 2, 0], params={"v": jnp.asarray(V + 1)})
    assert gradients._saliency._cache_size() == count


def test_in_16_bits_sums_are_of_32() -> None:
    text = document("x = external<scalar>(shape = [0,4]);\ny = mul(x, 0.5);\n")
    model = model_of(text, dtype="bfloat16")
    found = analysis.integrated_gradients(model, jnp.ones((1, 4), jnp.bfloat16), target=0)
    assert found.values.dtype == jnp.float32 and found.x.dtype == jnp.bfloat16
    close(found.values, [[0.5, 0, 0, 0]])


WRONG = {
    "unknown input": ({"wrt": "xx"}, "wrt: the graph has no tensor 'xx'", "did you mean 'x'"),
    "unknown output": ({"output": "logit"}, "output: the graph has no tensor 'logit'", "'logits'"),
    "parameter": ({"wrt": "w"}, "wrt: 'w' is a variable", "name an input"),
    "no output": ({}, "the network has outputs y, z", "name one by output="),
    "class": ({"output": "y", "target": [0, 1, 2, 3, 0]}, "target 3 is no class of 'y'", "0 to 2"),
    "negative": ({"output": "y", "target": -1}, "target -1 is no class", "0 to 2"),
    "real class": ({"output": "y", "target": 1.5}, "target must be an integer", ""),
    "count": (
        {"output": "y", "target": [0, 1]},
        r"integers \[5\] or a function; it is int64\[2\]",
        "",
    ),
    "text": ({"output": "y", "target": "cat"}, "target must be an integer", ""),
    "score": ({"target": lambda o: o.y}, r"target returns float32\[5,3\]", r"\[5\]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_questions_are_told(case: str) -> None:
    arguments, message, hint = WRONG[case]
    with pytest.raises(InputError, match=message) as caught:
        analysis.saliency(classifier(), X, **arguments)
    assert hint.replace("\\", "") in caught.value.hint


def test_wrong_arguments_are_told() -> None:
    model = pooled()
    x = PICTURES
    one: Any = (jax.random.key(0), 1)
    noisy: Any = partial(analysis.noise_tunnel, model, analysis.saliency, x)
    cases: list[tuple[Any, type[Exception], str]] = [
        (lambda: analysis.saliency("net", x), TypeError, "model must be a nnef_jax.Model"),
        (lambda: analysis.saliency(model), InputError, "input 'x' is missing"),
        (lambda: analysis.saliency(model, x[0]), InputError, "declares"),
        (lambda: analysis.saliency(model, x, wrt=3), TypeError, "wrt must be a name"),
        (lambda: analysis.saliency(model, x, target=lambda y: None), TypeError, "returns None"),
        (lambda: analysis.saliency(model, x, times_input=1), TypeError, "True or False"),
        (lambda: analysis.saliency(model, x, params={}), InputError, "params lacks v"),
        (lambda: analysis.integrated_gradients(model, x, steps=0), ValueError, "at least 1"),
        (lambda: analysis.integrated_gradients(model, x, baseline="0"), InputError, "baseline"),
        (lambda: analysis.integrated_gradients(model, x, baseline=X), InputError, r"\[5,4\]"),
        (lambda: noisy(key=0), TypeError, "key must be one of jax.random"),
        (lambda: noisy(key=jax.random.key(0), noise=-1), ValueError, "noise"),
        (lambda: noisy(key=jax.random.key(0), noise=[1, 2]), InputError, "noise is"),
        (lambda: analysis.deep_lift(model, x, sign=1), TypeError, r"^deep_lift\(\) got an unexp"),
        (lambda: analysis.lime(model, x, sampled=one, sign=1), TypeError, r"^lime\(\) got"),
        (lambda: analysis.grad_cam(model, x, layer="map"), InputError, "no tensor 'map'"),
        (lambda: analysis.grad_cam(model, x, layer="flat"), InputError, r"'flat' is \[3,2\]"),
        (lambda: analysis.occlusion(model, x, window=(1, 1, 1, 1)), InputError, "4 extents"),
        (lambda: analysis.occlusion(model, x, window=0), ValueError, "at least 1"),
        (lambda: analysis.occlusion(model, x, window=2, stride=3), InputError, "leave gaps"),
        (lambda: analysis.occlusion(model, x, window=2, stride=(1,)), InputError, "1 extents"),
    ]
    for run, error, message in cases:
        with pytest.raises(error, match=message):
            run()


def test_inputs_may_be_given_by_name() -> None:
    by_name = analysis.saliency(linear(), {"x": X}, target=1)
    np.testing.assert_array_equal(by_name.values, analysis.saliency(linear(), X, target=1).values)
    window: Any = np.int64(1)
    found = analysis.occlusion(linear(), {"x": X}, target=1, window=window)
    assert found.values.shape == X.shape


def test_an_empty_batch_has_empty_results() -> None:
    found = analysis.saliency(linear(), X[:0], target=1)
    assert found.values.shape == (0, 4) and found.to_dict()["scores"] == []
    assert str(found) == "saliency of x for y"
