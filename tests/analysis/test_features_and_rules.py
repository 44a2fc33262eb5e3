"""Methods of captum against its recorded values, and against what is known on paper."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nnef_jax import InputError, analysis
from tests.analysis.captum_networks import convolutional, dense, residual
from tests.analysis.captum_rows import RECORDED, VALUES, close, found
from tests.analysis.known_networks import B, W, document, linear, normal, pooled
from tests.analysis.networks import two_layers
from tests.helpers import model_of

X, KEY = normal(5, 4), jax.random.key(3)
CLASSES = np.array([2, 0, 1, 1, 2])


@pytest.mark.parametrize(("row", "network"), RECORDED)
def test_recorded_values_of_captum(row: str, network: str) -> None:
    with np.load(VALUES) as values:
        close(row, found(row, network), values[f"{row} {network}"])


def test_all_methods_agree_on_a_linear_network() -> None:
    question: Any = {"target": CLASSES}
    wanted = W[CLASSES] * X
    for method, options in {
        analysis.deep_lift: {},
        analysis.deep_lift_shap: {"baselines": np.zeros((2, 4), np.float32)},
        analysis.gradient_shap: {"baselines": np.zeros((2, 4), np.float32), "key": KEY},
        analysis.feature_ablation: {},
        analysis.shapley_values: {},
        analysis.kernel_shap: {"sampled": (KEY, 40)},
    }.items():
        values = method(linear(), X, **options, **question).values
        np.testing.assert_allclose(values, wanted, rtol=1e-4, atol=1e-5)
    sampled = analysis.shapley_values(linear(), X, sampled=(KEY, 2), **question).values
    np.testing.assert_allclose(sampled, wanted, rtol=1e-4, atol=1e-5)
    # All but what the bias keeps is shared out.
    scores = (X @ W.T + B)[range(5), CLASSES]
    shared = analysis.lrp(linear(), X, **question)
    np.testing.assert_allclose(shared.values, wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(shared.gap, wanted.sum(1) - scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [dense, convolutional, residual])
def test_deep_lift_shares_out_the_whole_change(make: Any) -> None:
    network = make()
    lifted = analysis.deep_lift(network.model, network.x, target=network.classes, baseline=0.3)
    np.testing.assert_allclose(lifted.gap, np.zeros(3), atol=1e-5)


def test_products_of_what_changes_are_shared_out_too() -> None:
    body = "x = external<scalar>(shape = [0,4]);\ng = gelu(x);\nz = mul(g, x);\ns = exp(z);\n"
    body += "t = mul(s, g);\nr = linear_quantize(t, -1.0, 4.0, bits = 3);\n"
    body += "u = max(r, x);\ny = matmul(u, w, transposeB = true);\n"
    body = body.replace("g =", "w = variable<scalar>(shape = [3,4], label = 'w');\ng =", 1)
    model = model_of(document(body), data={"w": W})
    lifted = analysis.deep_lift(model, X, target=CLASSES, baseline=0.2)
    np.testing.assert_allclose(lifted.gap, np.zeros(5), atol=1e-4)


def test_shapley_values_of_groups_add_up_to_the_change() -> None:
    network = dense()
    question: Any = {"target": network.classes, "mask": network.mask, "baseline": 0.1}
    exact = analysis.shapley_values(network.model, network.x, **question).values
    lifted = analysis.deep_lift(network.model, network.x, target=network.classes, baseline=0.1)
    first = [list(network.mask).index(i) for i in range(4)]  # an entry of each
    np.testing.assert_allclose(exact[:, first].sum(1), lifted.values.sum(1), rtol=1e-4)
    drawn = analysis.kernel_shap(network.model, network.x, sampled=(KEY, 2000), **question).values
    assert np.abs(drawn - exact).max() < 0.1 * np.abs(exact).max()


def test_rules_are_chosen_by_patterns() -> None:
    network = convolutional()
    question: Any = {"target": network.classes}
    mixed = analysis.lrp(
        network.model, network.x, rule={"h1": "gamma", "conv": "gamma"}, **question
    )
    assert not np.allclose(mixed.values, analysis.lrp(network.model, network.x, **question).values)
    with pytest.raises(InputError, match="no tensor or operation has the name 'dense'"):
        analysis.lrp(network.model, network.x, rule={"dense": "gamma"}, **question)
    with pytest.raises(InputError, match="rule 'zplus' is none of epsilon"):
        analysis.lrp(network.model, network.x, rule="zplus", **question)


def test_the_tunnel_averages_any_method() -> None:
    options: Any = {"key": KEY, "samples": 3, "target": CLASSES}
    mean = analysis.noise_tunnel(linear(), analysis.saliency, X, **options)
    np.testing.assert_allclose(mean.values, W[CLASSES], rtol=1e-5)
    spread = analysis.noise_tunnel(linear(), analysis.saliency, X, kind="variance", **options)
    np.testing.assert_allclose(spread.values, np.zeros((5, 4)), atol=1e-5)
    assert str(mean).startswith("mean of noisy saliency of x")
    for function in (analysis.noise_tunnel, analysis.max_sensitivity):
        call = re.escape(f"{function.__name__}(model, saliency, ...)")
        for first in ([analysis.saliency, linear()], [linear(), X], [linear(), linear()]):
            with pytest.raises(TypeError, match=call):
                function(*first, X, **options)
    moved = analysis.max_sensitivity(linear(), analysis.saliency, X, **options)
    np.testing.assert_allclose(moved.values, np.zeros(5), atol=1e-6)
    gradient = analysis.saliency(linear(), X, target=CLASSES)
    assert np.asarray(gradient).dtype == np.float32
    np.testing.assert_array_equal(gradient, W[CLASSES])
    wrong = analysis.infidelity(linear(), X, values=gradient.values, **options)
    np.testing.assert_allclose(wrong.values, np.zeros(5), atol=1e-8)


def test_values_of_infidelity_broadcast() -> None:
    options: Any = {"key": KEY, "samples": 3}
    gradient = analysis.saliency(linear(), X, target=CLASSES)
    exact = analysis.infidelity(linear(), X, values=gradient, **options)  # of the same classes
    np.testing.assert_allclose(exact.values, np.zeros(5), atol=1e-8)
    each = analysis.infidelity(linear(), X, values=W[2], target=2, **options)
    np.testing.assert_allclose(each.values, np.zeros(5), atol=1e-8)
    zero, ones = (
        analysis.infidelity(linear(), X, values=x, target=2, **options).values
        for x in (0, np.zeros((5, 4)))
    )
    np.testing.assert_array_equal(zero, ones)
    assert min(zero) > 0
    inside = analysis.saliency(linear(), X, target=1, wrt="h")
    assert analysis.infidelity(linear(), X, values=inside, **options).of == "h"
    covered = analysis.occlusion(pooled(), normal(2, 2, 5, 6), window=2)
    function = analysis.saliency(linear(), X, target=lambda y: y[:, 0])
    mistakes: Any = [
        (X, np.ones((4, 5)), InputError, r"values is \[4,5\], 'x' is \[5,4\]"),
        (X, "saliency", InputError, "values must be a number or an array"),
        (X, covered, InputError, r"values: occlusion is \[2,5,6\], the tensor is \[2,2,5,6\]"),
        (X, function, InputError, "values explain a function of the outputs"),
    ]
    for x, values, error, message in mistakes:
        with pytest.raises(error, match=message):
            analysis.infidelity(linear(), x, values=values, **options)


def test_methods_are_jitted_and_mapped() -> None:
    network = dense()

    @jax.jit
    def lifted(params: Any, x: Any) -> Any:
        return analysis.deep_lift(network.model, x, params=params, target=1).values

    alone = analysis.deep_lift(network.model, network.x, target=1).values
    np.testing.assert_allclose(lifted(network.model.params, network.x), alone, atol=1e-5)
    each = jax.vmap(lambda x: lifted(network.model.params, x[None])[0])(jnp.asarray(network.x))
    np.testing.assert_allclose(each, alone, atol=1e-5)


def test_what_trained_on_an_item_does_for_another() -> None:
    answers = normal(5, 3)

    def squares(outputs: Any, answer: Any) -> Any:
        return ((outputs - answer) ** 2).sum() / 2

    pair = X, answers
    found = analysis.tracin(linear(), pair, (X[:2], answers[:2]), loss=squares, rates=0.1)
    errors = X @ W.T + B - answers
    wanted = 0.1 * (errors @ errors.T) * (X @ X.T + 1)  # of weights, and of the bias
    np.testing.assert_allclose(found.values, wanted[:2], rtol=1e-4, atol=1e-5)
    halved = {k: x / 2 for k, x in linear().params.items()}
    options: Any = {"loss": squares, "checkpoints": [linear().params, halved], "rates": [1, 0.5]}
    both = analysis.tracin(linear(), pair, pair, labels=["w"], **options)
    errors = errors @ errors.T, (errors - (X @ W.T + B) / 2) @ (errors - (X @ W.T + B) / 2).T
    wanted = (errors[0] + errors[1] / 2) * (X @ X.T)
    np.testing.assert_allclose(both.values, wanted, rtol=1e-4, atol=1e-4)
    models = [linear(), linear().with_params(halved)]
    options |= {"checkpoints": models, "loss": lambda y, a: squares(y, a)[None]}  # [1]
    again = analysis.tracin(linear(), pair, pair, labels=["w"], **options)
    np.testing.assert_allclose(again.values, wanted, rtol=1e-4, atol=1e-4)
    mistakes: Any = [
        ({"labels": "w*"}, TypeError, "labels must be a list of labels of parameters, it is 'w"),
        ({"checkpoints": halved}, TypeError, "must be a list of params or models, it is of type d"),
        ({"checkpoints": []}, InputError, "checkpoints is empty"),
    ]
    for wrong, error, message in mistakes:
        with pytest.raises(error, match=message):
            analysis.tracin(linear(), pair, pair, loss=squares, **wrong)
    with pytest.raises(InputError, match="1 checkpoints have 2 rates"):
        analysis.tracin(linear(), pair, pair, loss=squares, rates=[1, 2])
    with pytest.raises(InputError, match="data has 2, 5 items"):
        analysis.tracin(linear(), (X, answers[:2]), pair, loss=squares)
    fixed = two_layers(normal(4, 5), normal(5, 3), batch=5)
    with pytest.raises(InputError, match=r"'x' has .* \[5,4\], tracin needs a batch of 1"):
        analysis.tracin(fixed, pair, pair, loss=squares)


def test_a_score_follows_a_concept() -> None:
    shift = np.float32([1, -2, 0, 3])
    noise = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32) / 1000
    found = analysis.tcav(
        linear(),
        X,
        layer="h",
        concept=noise[:20] + shift,
        counterexamples=noise[20:] - shift,
        target=CLASSES,
    )
    direction = shift / np.linalg.norm(shift)
    np.testing.assert_allclose(found.vector, direction, atol=0.01)
    np.testing.assert_allclose(found.derivatives, W[CLASSES] @ direction, atol=0.05)
    np.testing.assert_allclose(found.share, np.mean(W[CLASSES] @ direction > 0), rtol=1e-6)
    assert str(found).startswith("a concept in h")
    with pytest.raises(InputError, match="layer: 'x' is an input"):
        analysis.tcav(linear(), X, layer="x", concept=X, counterexamples=X)


def test_wrong_arguments() -> None:
    network = dense()
    cases: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        (analysis.feature_ablation, {"mask": np.zeros(5, int)}, InputError, "mask is"),
        (analysis.feature_ablation, {"mask": np.zeros(6)}, InputError, "mask must be of integers"),
        (analysis.kernel_shap, {"sampled": 5}, TypeError, "sampled must be a pair"),
        (analysis.lime, {"sampled": (3, 5)}, TypeError, "key must be one of"),
        (
            analysis.deep_lift_shap,
            {"baselines": 0.0},
            InputError,
            "needs a first axis",
        ),
        (analysis.neuron_conductance, {"neuron": ("r", 8)}, InputError, "is no unit of 'r'"),
        (analysis.integrated_gradients, {"method": "simpson"}, InputError, "none of riemann_left"),
    ]
    for method, options, error, message in cases:
        with pytest.raises(error, match=message):
            method(network.model, network.x, **options)
    with pytest.raises(InputError, match="no relu or clamp"):
        analysis.guided_backprop(linear(), X)
    many = model_of(document("x = external<scalar>(shape = [0,20]);\ny = copy(x);\n"))
    with pytest.raises(InputError, match="20 features have too many coalitions"):
        analysis.shapley_values(many, np.ones((1, 20), np.float32))
    with pytest.raises(InputError, match="kind 'best' is none of mean"):
        analysis.noise_tunnel(linear(), analysis.saliency, X, key=KEY, kind="best")
