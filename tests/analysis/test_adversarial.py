"""Attacks on networks whose boundaries are known, and what excites units of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from nnef_jax import InputError, analysis
from tests.analysis.known_networks import B, W, classifier, document, linear, normal, pooled
from tests.helpers import model_of

X = normal(6, 4)
close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
KEY = jax.random.key(0)


def margin(y: Any) -> Any:
    """Of class 0 over class 2: below 0 where 2 is higher."""
    return y[:, 0] - y[:, 2]


D = W[0] - W[2]
MARGINS = X @ D + B[0, 0] - B[0, 2]


def test_fgsm_moves_each_entry_by_epsilon_against_the_margin() -> None:
    found = analysis.fgsm(linear(), X, target=margin, epsilon=0.3)
    close(found.perturbation, np.tile(-0.3 * np.sign(D), (6, 1)))
    close(found.margin, MARGINS - 0.3 * np.abs(D).sum())
    assert found.before is None
    rises = analysis.fgsm(linear(), X, target=margin, epsilon=0.3, targeted=True)
    close(rises.x, X + 0.3 * np.sign(D))


def test_fgsm_follows_the_gradient_of_the_cross_entropy() -> None:
    classes = np.array([0, 1, 2, 2, 1, 0])
    p = np.exp(X @ W.T + B)
    p /= p.sum(1, keepdims=True)
    gradient = (p - np.eye(3)[classes]) @ W  # of -log p of the class
    found = analysis.fgsm(linear(), X, target=classes, epsilon=0.1)
    close(found.perturbation, 0.1 * np.sign(gradient))
    towards = analysis.fgsm(linear(), X, target=classes, epsilon=0.1, targeted=True)
    close(towards.perturbation, -0.1 * np.sign(gradient))
    sizes = np.linspace(0, 0.5, 6, dtype=np.float32)
    each = analysis.fgsm(linear(), X, target=classes, epsilon=sizes)
    close(each.distance, sizes)


def test_a_network_that_is_certain_has_a_gradient_too() -> None:
    x = 1e4 * X  # where the softmax of the scores is 0 and 1 in 32 bits
    found = analysis.fgsm(linear(), x, epsilon=1.0)
    assert (np.abs(np.asarray(found.perturbation)) == 1).all()


def test_before_and_after_are_the_classes_that_have_the_highest_scores() -> None:
    sizes = np.float32([1e-3, 1e-3, 1e-3, 9, 9, 9])
    found = analysis.pgd(linear(), X, epsilon=sizes, norm="l2")
    for classes, x in ((found.before, X), (found.after, np.asarray(found.x))):
        np.testing.assert_array_equal(classes, (x @ W.T + B).argmax(1))
    np.testing.assert_array_equal(found.found, np.asarray(found.before) != found.after)
    assert found.found.tolist() == [False] * 3 + [True] * 3
    scores = np.sort(X @ W.T + B)
    untouched = analysis.pgd(linear(), X, epsilon=0.0)
    close(untouched.margin, scores[:, 2] - scores[:, 1])


@pytest.mark.parametrize(("norm", "key"), [("linf", None), ("l2", KEY)])
def test_pgd_reaches_the_optimum_of_a_linear_margin(norm: str, key: Any) -> None:
    wanted = np.sign(D) if norm == "linf" else D / np.linalg.norm(D)
    found = analysis.pgd(linear(), X, epsilon=0.5, norm=norm, key=key, step_size=0.5, target=margin)
    # Margins that are 1e-7 higher in 32 bits lie 3e-4 beside the optimum on the sphere.
    close(found.x, X - 0.5 * wanted, atol=1e-3)
    close(found.distance, np.full(6, 0.5))
    close(found.margin, MARGINS - 0.5 * wanted @ D)


def test_steps_of_pgd_are_as_long_as_they_are_said_to_be() -> None:
    attack = partial(analysis.pgd, linear(), X, epsilon=0.1, target=margin)
    close(attack(step_size=0.03, steps=1).distance, np.full(6, 0.03))
    close(attack(step_size=0.03, steps=3).x, X - 0.09 * np.sign(D))
    close(attack(step_size=0.03, steps=5).x, X - 0.1 * np.sign(D))
    each = np.linspace(0.01, 0.06, 6, dtype=np.float32)
    close(attack(step_size=each, steps=1).distance, each)
    close(attack(steps=50).distance, np.full(6, 0.1))  # steps of 0.005
    close(attack(epsilon=4 * each, steps=5).distance, 4 * each)


def test_attacks_keep_the_bounds() -> None:
    x = np.clip(X, -1, 1)
    attack = partial(analysis.pgd, linear(), x, epsilon=3.0, target=margin, bounds=(-1, 1))
    close(attack().x, np.tile(-np.sign(D), (6, 1)))  # the corner
    found = attack(norm="l2", key=KEY)
    assert np.abs(found.x).max() <= 1 and (np.asarray(found.distance) <= 3 + 1e-5).all()


def test_a_targeted_attack_leads_to_a_class() -> None:
    found = analysis.pgd(classifier(), X, epsilon=9.0, target=1, targeted=True, output="logits")
    reached = np.asarray(found.after) == 1
    np.testing.assert_array_equal(found.found, reached)
    assert reached.sum() > (np.asarray(found.before) == 1).sum()


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_the_smallest_perturbation_of_a_linear_classifier_is_the_margin_over_the_norm(
    norm: str,
) -> None:
    scores = X @ W.T + B
    best = scores.argmax(1)
    margins = scores[range(6), best][:, None] - scores
    duals = np.linalg.norm(W[best][:, None] - W[None], {"l2": 2, "linf": 1}[norm], axis=2)
    distances = margins / np.where(duals > 0, duals, 1) + np.where(duals > 0, 0, np.inf)
    found = analysis.smallest_perturbation(linear(), X, norm=norm, steps=3)
    np.testing.assert_allclose(found.distance, distances.min(1), rtol=1e-3)
    np.testing.assert_array_equal(found.after, distances.argmin(1))
    assert np.all(found.found) and (np.abs(found.margin) < 1e-3).all()


def test_what_is_not_found_is_told() -> None:
    wanted = np.abs(MARGINS) / np.linalg.norm(D)
    near = analysis.smallest_perturbation(linear(), X, target=margin)
    close(near.distance, np.where(MARGINS > 0, wanted, 0), rtol=1e-3)  # others began beyond
    x = np.clip(X, -0.5, 0.5)
    bounded = analysis.smallest_perturbation(linear(), x, target=margin, bounds=(-0.5, 0.5))
    least = B[0, 0] - B[0, 2] - 0.5 * np.abs(D).sum()
    assert least < 0 and np.all(bounded.found)
    with_offset = partial(analysis.smallest_perturbation, linear(), x, bounds=(-0.5, 0.5))
    never = with_offset(target=lambda y: y[:, 0] - y[:, 2] - least + 0.1)
    assert not np.any(never.found)
    np.testing.assert_array_equal(never.x, x)
    assert never.to_dict()["distance"] == ["Infinity"] * 6


def test_lengths_do_not_overflow_in_16_bits() -> None:
    text = document("x = external<scalar>(shape = [0,3]);\ny = mul(x, 0.5);\n")
    x = np.array([[1, 2, 3]], np.float16)
    found = analysis.pgd(model_of(text, dtype="float16"), x, epsilon=600, norm="l2", target=2)
    assert found.x.dtype == np.float16
    np.testing.assert_allclose(found.distance, [600], rtol=1e-2)


def test_attacks_are_functions_of_jax() -> None:
    model = pooled()
    x, classes = normal(3, 2, 5, 6), np.array([2, 0, 1])
    attack = partial(analysis.smallest_perturbation, model, steps=4)
    eager = attack(x, target=classes)

    def one(params: Any, x: Any, target: Any) -> Any:
        return attack(x[None], target=target, params=params).distance[0]

    close(jax.jit(jax.vmap(one, (None, 0, 0)))(model.params, x, classes), eager.distance)
    order = np.array([1, 2, 0])
    close(attack(x[order], target=classes[order]).distance, eager.distance[order])


def test_a_linear_unit_with_a_penalty_is_highest_at_weight_over_penalty() -> None:
    found = analysis.activation_maximisation(
        linear(), target=[0, 2], key=KEY, l2=0.5, steps=300, step=0.1
    )
    np.testing.assert_allclose(found.x, 2 * W[[0, 2]], atol=5e-3)
    close(found.scores, (np.asarray(found.x) @ W.T + B)[[0, 1], [0, 2]])
    assert found.history.shape == (300, 2)
    again = analysis.activation_maximisation(
        linear(), target=[0, 2], key=KEY, l2=0.5, steps=300, step=0.1
    )
    np.testing.assert_array_equal(found.x, again.x)


def test_a_channel_is_excited_within_bounds() -> None:
    find = partial(analysis.activation_maximisation, pooled(), output="maps", key=KEY, steps=40)
    found = find(target=1, bounds=(0, 3))
    assert found.x.shape == (1, 2, 5, 6)
    close(found.x[:, 1], np.full((1, 5, 6), 3))  # the channel itself, to the upper bound
    close(found.scores, [2.5])
    flat = find(target=lambda maps: maps[:, 1, 2, 2], bounds=(0, 3), total_variation=10.0)
    assert np.abs(np.diff(flat.x[0, 1])).mean() < 0.05  # neighbours are as high


def test_it_starts_from_what_is_given() -> None:
    start = np.full((2, 4), 5, np.float32)
    options: Any = {"target": 1, "key": KEY, "steps": 1}
    found = analysis.activation_maximisation(linear(), start, step=0.0, **options)
    close(found.x, start)
    moved = analysis.activation_maximisation(linear(), start, step=1e-3, **options)
    assert 0 < np.abs(moved.x - start).max() < 0.01


def test_wrong_arguments_are_told() -> None:
    model, key = linear(), jax.random.key(0)
    fgsm = partial(analysis.fgsm, model, X, epsilon=0.1)
    pgd = partial(analysis.pgd, model, X, epsilon=0.1)
    climb = partial(analysis.activation_maximisation, model, key=key)
    cases: list[tuple[Any, type[Exception], str]] = [
        (lambda: fgsm(epsilon=-1), ValueError, "epsilon must be at least 0"),
        (lambda: fgsm(epsilon=float("nan")), ValueError, "finite"),
        (lambda: fgsm(epsilon="1"), InputError, "epsilon"),
        (lambda: fgsm(epsilon=np.float32(-1)), ValueError, "epsilon must be at least 0"),
        (lambda: fgsm(epsilon=[1, 1, 1, 1, 1, np.nan]), ValueError, "finite"),
        (lambda: fgsm(epsilon=np.ones(5)), InputError, r"epsilon is \[5\], 'x' has 6 items"),
        (lambda: fgsm(bounds=(0, 1)), InputError, r"has values from -\d.*, bounds are 0 to 1"),
        (lambda: fgsm(bounds=(1, 0)), ValueError, "bounds must rise"),
        (lambda: fgsm(bounds=3), TypeError, "a pair of numbers"),
        (lambda: fgsm(targeted=True), InputError, "a targeted attack needs a target"),
        (lambda: fgsm(targeted=1), TypeError, "True or False"),
        (lambda: fgsm(target=3), InputError, "target 3 is no class"),
        (lambda: pgd(norm="l1"), ValueError, "'linf' or 'l2'"),
        (lambda: pgd(steps=0), ValueError, "steps must be at least 1"),
        (lambda: pgd(step_size=-1), ValueError, "step_size must be at least 0"),
        (lambda: pgd(step_size=np.ones(5)), InputError, r"step_size is \[5\], 'x' has 6 items"),
        (lambda: pgd(stepsize=1), TypeError, r"pgd\(\) got an unexpected keyword argument"),
        (lambda: climb(target=1, outputs="y"), TypeError, "unexpected keyword argument 'outputs'"),
        (lambda: pgd(key=1), TypeError, "key must be one of"),
        (lambda: analysis.pgd(classifier(), X, epsilon=1, output="z"), InputError, "one score"),
        (lambda: climb(target=None), InputError, "target is missing"),
        (lambda: climb(target=5), InputError, "target 5 is no class"),
        (lambda: climb(target=1, l2=-1), ValueError, "l2 must be at least 0"),
        (lambda: climb(target=1, key=3), TypeError, "key must be one of"),
    ]
    for run, error, message in cases:
        with pytest.raises(error, match=message):
            run()
