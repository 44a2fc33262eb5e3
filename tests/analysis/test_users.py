"""Analyses as users of captum and of quantised networks call them first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pytest

import nnef_jax
from nnef_jax import InputError, analysis
from tests.analysis.captum_rows import ROWS
from tests.analysis.known_networks import W, document, linear
from tests.analysis.networks import random, two_layers
from tests.helpers import model_of

KEY = jax.random.key(0)
IMAGES = np.random.default_rng(0).uniform(0, 255, (3, 1, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def digits() -> nnef_jax.Model:
    return nnef_jax.load("examples/digits/model")


@pytest.fixture(scope="module")
def quantized(digits: nnef_jax.Model, tmp_path_factory: Any) -> Path:
    path = tmp_path_factory.mktemp("quantized") / "model"
    digits.save(path, quantize=[IMAGES])
    return path


def total(outputs: Any, answer: Any) -> Any:
    return (outputs * answer).sum()


def square(outputs: Any) -> Any:
    return (outputs**2).sum()


def test_derivatives_of_a_rounded_network_are_refused(quantized: Path) -> None:
    rounded = nnef_jax.load(quantized)
    pair = IMAGES, np.ones((3, 10), np.float32)
    layer: Any = {"layer": "relu2"}
    for call in (
        lambda: analysis.saliency(rounded, IMAGES),
        lambda: analysis.saliency(rounded, IMAGES, target=lambda y: y[:, 3]),
        lambda: analysis.grad_cam(rounded, IMAGES, **layer),
        lambda: analysis.guided_backprop(rounded, IMAGES),
        lambda: analysis.fgsm(rounded, IMAGES, epsilon=1),
        lambda: analysis.jacobian_spectrum(rounded, IMAGES, k=1),
        lambda: analysis.activation_maximisation(rounded, target=3, key=KEY),
        lambda: analysis.tracin(rounded, pair, pair, loss=total),
        lambda: analysis.hessian_trace(rounded, IMAGES, loss=square),
        lambda: analysis.hessian_eigenvalues(rounded, IMAGES, loss=square),
        lambda: analysis.sensitivity(rounded, IMAGES, loss=square),
        lambda: analysis.gradient_statistics(rounded, [IMAGES], loss=square),
    ):
        with pytest.raises(InputError, match=r"0: '\w+_quantized' is rounded") as caught:
            call()
        assert 'quantization="ste"' in caught.value.hint
        assert caught.value.span is not None and "graph.quant" in str(caught.value)
    covered = analysis.occlusion(rounded, IMAGES, window=4, stride=4)  # which needs no derivatives
    assert covered.output == "logits_quantized" and np.abs(covered.values).max() > 1
    same = analysis.saliency(rounded, IMAGES, wrt="logits", output="logits", target=1)
    np.testing.assert_array_equal(same.values, np.eye(10)[[1, 1, 1]])
    half = two_layers(random(3, 4), random(4, 5), "round(h1) + h1")
    x = random(2, 3)  # one path of two is rounded
    assert np.abs(analysis.saliency(half, x, target=0).values).max() > 1e-3
    trained = nnef_jax.load(quantized, quantization="ste")
    assert np.abs(analysis.saliency(trained, IMAGES).values).max() > 1e-3
    inside: Any = {"loss": square, "names": ["logits"]}
    assert analysis.gradient_statistics(trained, [IMAGES], **inside).tensors["logits"].rms > 0
    ends: Any = {"loss": square, "names": ["probabilities_quantized"], "labels": []}
    assert len(analysis.gradient_statistics(rounded, [IMAGES], **ends).tensors) == 1


def test_attributions_that_stay_0_do_not_move() -> None:
    net = two_layers(-np.abs(random(3, 4)), random(4, 5))  # all units are off
    x = np.abs(random(2, 3)) + 1
    moved = analysis.max_sensitivity(net, analysis.saliency, x, key=KEY, target=0)
    np.testing.assert_array_equal(moved.values, [0, 0])


def test_noise_counts_as_it_arrives() -> None:
    text = document("x = external<scalar>(shape = [0,1]);\ny = copy(x);\n")
    net = model_of(text, dtype="bfloat16")
    x = np.arange(160, 224, dtype=np.float32)[:, None]  # bfloat16 has steps of 1 there
    options: Any = {"key": KEY, "noise": 0.5, "target": 0}
    exact = analysis.infidelity(net, x, values=np.ones((64, 1)), **options)
    np.testing.assert_array_equal(exact.values, np.zeros(64))
    none = analysis.infidelity(net, x, values=np.zeros((64, 1)), samples=1, **options).values
    assert set(np.asarray(none)) == {0, 1}  # squares of whole steps


def test_lost_noise_is_a_warning() -> None:
    x = random(5, 4) + np.float32(1e9)  # in steps of 64
    gradient: Any = {"values": analysis.saliency(linear(), x).values}
    for call in (
        lambda: analysis.noise_tunnel(linear(), analysis.saliency, x, key=KEY),
        lambda: analysis.max_sensitivity(linear(), analysis.saliency, x, key=KEY),
        lambda: analysis.infidelity(linear(), x, key=KEY, **gradient),
    ):
        with pytest.warns(UserWarning, match="lost to rounding: a copy did not move"):
            call()


def test_noise_on_the_input_of_a_tensor_inside() -> None:
    w1, w2, x = random(3, 4), random(4, 5), random(2, 3)
    net = two_layers(w1, w2, "h1 * h1")
    options: Any = {"key": KEY, "wrt": "h1", "target": 1}
    found = analysis.noise_tunnel(net, analysis.saliency, x, noise=0.1, samples=1, **options)
    normal = jax.random.normal(jax.random.split(KEY, 1)[0], x.shape)
    near = x + np.float32(0.1) * np.asarray(normal)
    np.testing.assert_allclose(found.values, 2 * (near @ w1) * w2[:, 1], rtol=1e-4)
    assert found.of == "h1"
    still = analysis.max_sensitivity(
        two_layers(w1, w2, "copy(h1)"), analysis.saliency, x, **options
    )
    np.testing.assert_array_equal(still.values, [0, 0])


def test_methods_that_take_a_key_and_those_that_do_not_attribute() -> None:
    x, fgsm = random(5, 4), cast(Any, analysis.fgsm)
    options: Any = {"key": KEY, "target": 0}
    zeros: Any = {"baselines": np.zeros((2, 4), np.float32)}
    found = analysis.noise_tunnel(
        linear(), analysis.gradient_shap, x, noise=0, samples=2, **options, **zeros
    )
    np.testing.assert_allclose(found.values, x * W[0], rtol=1e-5)
    with pytest.raises(TypeError, match="must be an Attribution, it is of type Adversarial"):
        analysis.noise_tunnel(linear(), fgsm, x, epsilon=1, **options)


def test_names_of_captum_are_hints() -> None:
    for row, (call, *_) in ROWS.items():
        name, function = row.split(",")[0], call.split("(")[0]
        if name not in analysis.__all__:
            with pytest.raises(AttributeError, match=f"'{name}', it is {function}\\(") as missing:
                getattr(analysis, name)
            assert ("wrt=" in call) == ("wrt=" in str(missing.value))
    x, noisy = random(5, 4), partial(analysis.noise_tunnel, linear(), key=KEY)
    lifted, integrated = cast(Any, analysis.deep_lift), cast(Any, analysis.integrated_gradients)
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: integrated(linear(), x, n_steps=5), r"^integrated_.*'n_steps', it is steps= here"),
        (lambda: lifted(linear(), x, layer="h"), "'layer', it is wrt= here"),
        (lambda: lifted(linear(), x, baselines=0), "'baselines', it is baseline= here"),
        (lambda: noisy(analysis.saliency, x, stdevs=1), r"^noise_.*'stdevs', it is noise= here"),
        (lambda: noisy(analysis.deep_lift, x, nt_samples=1), "'nt_samples', it is samples= here"),
    ]
    for run, message in cases:
        with pytest.raises(TypeError, match=message):
            run()
    with pytest.raises(InputError, match="kind 'vargrad' is none of mean") as caught:
        noisy(analysis.saliency, x, kind="vargrad")
    assert caught.value.hint == "it is kind='variance' here"
    for option in (3, "h"):
        with pytest.raises(InputError, match=f"^{option!r} is among the inputs") as caught:
            analysis.saliency(linear(), x, option)
        assert "target=3, wrt='conv1'" in caught.value.hint
    with pytest.raises(InputError, match=r"or a function; it is int64\[2\]") as caught:
        analysis.saliency(linear(), x, target=(1, 2))
    assert "target=lambda y: y[:, 3, 1]" in caught.value.hint
