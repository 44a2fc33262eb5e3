"""Attribution by removing features: ablation, permutation, Shapley values, local models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike

from lowering.extents import show
from nnef_jax.analysis.argument_checks import require_count, require_key, require_real
from nnef_jax.analysis.attribution import Attribution, array_of, attributed, line_from, sums
from nnef_jax.analysis.question import Question, QuestionOptions, ask
from nnef_jax.calls.arguments import Input
from nnef_jax.errors import InputError
from nnef_jax.model import Model

Sampled = tuple[Array, int] | None  # a key of `jax.random`, and the number of samples
# the largest number of features whose coalitions are all computed; 16 features have 65536
_MOST_FEATURES = 16
_SWEEPS = 200  # the number of rounds of coordinate descent, each over all coefficients


class FeatureOptions(QuestionOptions, total=False):
    """The keyword arguments `mask`, `baseline` and others, as `feature_ablation` takes them."""

    mask: ArrayLike | None
    baseline: ArrayLike


class _Start(NamedTuple):
    """The line from the baseline to the inputs, and the score as a function of a coalition.

    A coalition is a mask of the features that keep their values, bool [count]. All other features
    have the values of the baseline. The score is an array [batch].
    """

    x: Array
    question: Question
    x0: Array
    score: Callable[[Array], Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Features:
    """A question, and the features into which an item of the tensor is divided.

    Args:
        question: the question.
        baseline: the values of removed features.
        groups: for each entry of an item, the index of the feature to which it belongs.
        count: the number of features.
    """

    question: Question
    baseline: Array
    groups: Array
    count: int = field(metadata={"static": True})

    def line_and_score(self) -> _Start:
        """Return the line from the baseline, and the score as a function of a coalition."""
        x, question, x0 = line_from(self.question, self.baseline)

        def score(coalition: Array) -> Array:
            return question.scores_at(jnp.where(coalition[self.groups][None], x, x0))

        return _Start(x, question, x0, score)

    def attributed(
        self, question: Question, method: str, values: Array, scores: Array, x: Array
    ) -> Attribution:
        """Return the attribution in which each entry has the value of its feature.

        `values` are the values of features, [batch, feature]. `question`, `method`, `scores` and
        `x` are as in the function `attributed`.
        """
        return attributed(question, method, values[:, self.groups], scores, x)


def feature_ablation(
    model: Model,
    *inputs: Input,
    mask: ArrayLike | None = None,
    baseline: ArrayLike = 0.0,
    **options: Unpack[QuestionOptions],
) -> Attribution:
    """Compute how much a score falls if a feature is replaced by the baseline.

    >>> quarters = np.kron([[0, 1], [2, 3]], np.ones((4, 4), int))
    >>> nnef_jax.analysis.feature_ablation(model, images, mask=quarters)

    Args:
        mask: the feature of each entry of an item: an array of integers that broadcasts to an item.
            By default each entry is a feature.
        baseline: the values of removed features, as in `integrated_gradients`.

    The other arguments, and the errors, are those of `saliency`.
    """
    keywords = {"mask": mask, "baseline": baseline, **options}
    return _ablation(_features("feature_ablation", model, inputs, keywords), None)


def feature_permutation(
    model: Model,
    *inputs: Input,
    key: Array,
    mask: ArrayLike | None = None,
    **options: Unpack[QuestionOptions],
) -> Attribution:
    """Compute how much a score falls if a feature is permuted among the items of the batch.

    Args:
        key: a key of `jax.random`; each feature gets a separate permutation.
        mask: the feature of each entry, as in `feature_ablation`.

    The other arguments, and the errors, are those of `saliency`.
    """
    require_key(key)
    keywords = {"mask": mask, **options}
    return _ablation(_features("feature_permutation", model, inputs, keywords), key)


def shapley_values(
    model: Model, *inputs: Input, sampled: Sampled = None, **options: Unpack[FeatureOptions]
) -> Attribution:
    """Compute the mean gain of a score when a feature is added, over all orders (Shapley 1953).

    >>> nnef_jax.analysis.shapley_values(model, images, mask=rows, sampled=(key, 25))

    Args:
        sampled: a key of `jax.random`, and the number of random orders (Castro et al. 2009). All
            items use the same orders. By default the values are exact; this is possible for at most
            16 features.

    The other arguments, and the errors, are those of `feature_ablation`.
    """
    features = _features("shapley_values", model, inputs, options)
    if sampled is not None:
        key, samples = _key_and_count(sampled)
        return _orders(features, key, samples=samples)
    if features.count > _MOST_FEATURES:
        message = f"{features.count} features have too many coalitions to compute all"
        hint = "give sampled=(jax.random.key(0), 25), or a mask with fewer features"
        raise InputError(message, hint=hint)
    return _exact(features)


def kernel_shap(
    model: Model, *inputs: Input, sampled: Sampled, **options: Unpack[FeatureOptions]
) -> Attribution:
    """Estimate Shapley values by a regression (Lundberg and Lee 2017, arXiv:1705.07874).

    Coalitions are drawn with the probabilities of the kernel in the paper. The values of an item
    add up to the change of its score from the baseline.

    Args:
        sampled: a key of `jax.random`, and the number of coalitions (sets of features that keep
            their values). All items use the same coalitions.

    The other arguments, and the errors, are those of `feature_ablation`.
    """
    key, samples = _key_and_count(sampled)
    return _kernel_shap(_features("kernel_shap", model, inputs, options), key, samples=samples)


def lime(
    model: Model,
    *inputs: Input,
    sampled: Sampled,
    penalty: float = 0.01,
    **options: Unpack[FeatureOptions],
) -> Attribution:
    """Fit a sparse linear model to a score near each item (Ribeiro et al. 2016, arXiv:1602.04938).

    A sample keeps each feature with probability 1/2. The weight of a sample is exp(-d^2 / 2), where
    d is 1 minus the cosine of the angle between sample and item.

    Args:
        sampled: a key of `jax.random`, and the number of samples. A sample keeps the same features
            in all items.
        penalty: the weight of the sum of absolute coefficients in the loss. The loss also contains
            half the weighted mean of squared errors.

    The other arguments, and the errors, are those of `feature_ablation`.
    """
    key, samples = _key_and_count(sampled)
    penalty = require_real("penalty", penalty)
    features = _features("lime", model, inputs, options)
    drawn = jax.random.bernoulli(key, 0.5, (samples, features.count))
    return _lime(features, drawn, np.float32(penalty))


def _features(
    function: str, model: Model, inputs: tuple[Input, ...], options: Mapping[str, Any]
) -> _Features:
    """Check the arguments of an attribution function, and return the features that they describe.

    `function` is its name, and `options` are its keyword arguments.
    """
    keywords = {**options}
    mask = keywords.pop("mask", None)
    baseline = array_of("baseline", keywords.pop("baseline", 0.0))
    question = ask(function, model, inputs, keywords)
    shape = [int(extent) for extent in question.graph.values[question.wrt].type.shape[1:]]
    if mask is None:
        count = int(np.prod(shape))
        return _Features(question, baseline, jnp.arange(count).reshape(shape), count)
    numbers = np.asarray(array_of("mask", mask))
    try:
        numbers = np.broadcast_to(numbers, (1, *shape))[0]
    except ValueError:
        message = f"mask is {show(numbers.shape)}, an item of '{question.wrt}' is {show(shape)}"
        raise InputError(message, hint="give an array that broadcasts") from None
    if numbers.dtype.kind not in "iu":
        raise InputError(f"mask must be of integers, it is {numbers.dtype}")
    features, groups = np.unique(numbers, return_inverse=True)
    return _Features(question, baseline, jnp.asarray(groups.reshape(shape)), len(features))


def _key_and_count(sampled: Any) -> tuple[Array, int]:
    is_pair = isinstance(sampled, tuple | list) and len(sampled) == 2  # pyright: ignore[reportUnknownArgumentType]
    if not is_pair:
        raise TypeError("sampled must be a pair of a key of jax.random and a number")
    key, samples = sampled
    require_key(key)
    return key, require_count("samples", samples)


@jax.jit
def _ablation(features: _Features, key: Array | None) -> Attribution:
    x, question, x0, _ = features.line_and_score()
    scores = question.scores_at(x)

    def score_without(feature: Array) -> Array:
        replacement = x0
        if key is not None:
            replacement = jax.random.permutation(jax.random.fold_in(key, feature), x)
        return question.scores_at(jnp.where((features.groups == feature)[None], replacement, x))

    falls = scores[None] - lax.map(score_without, jnp.arange(features.count))
    method = "feature ablation" if key is None else "feature permutation"
    return features.attributed(question, method, falls.T, scores, x)


@jax.jit
def _exact(features: _Features) -> Attribution:
    x, question, _, score = features.line_and_score()
    count = features.count
    # Row i is the coalition of the features whose bit is set in i.
    rows = np.arange(2**count)[:, None]
    bits = (rows >> np.arange(count)) & 1
    coalitions = bits.astype(bool)
    sizes = coalitions.sum(1)
    # The share of orders in which a feature is the last of its coalition, or the next feature to
    # join it.
    factorials = np.cumprod([1.0, *range(1, count + 1)])
    last = factorials[sizes - 1] * factorials[count - sizes] / factorials[count]
    following = factorials[sizes] * factorials[count - sizes - 1] / factorials[count]
    weights = np.where(coalitions, last[:, None], -following[:, None]).astype(x.dtype)
    scores = lax.map(score, jnp.asarray(coalitions))
    values = jnp.einsum("cf,cb->bf", weights, scores, precision="highest")
    return features.attributed(question, "Shapley values", values, scores[-1], x)


@partial(jax.jit, static_argnames="samples")
def _orders(features: _Features, key: Array, *, samples: int) -> Attribution:
    x, question, _, score = features.line_and_score()
    empty = jnp.zeros(features.count, bool)
    empty_score = score(empty)

    def add_order(total: Array, key: Array) -> tuple[Array, None]:
        """Add to `total` how the score changes when features are added in a random order."""

        def add_feature(carry: tuple[Array, Array, Array], feature: Array) -> Any:
            coalition, score_without, total = carry
            larger_coalition = coalition.at[feature].set(True)
            score_with = score(larger_coalition)
            total = total.at[:, feature].add(score_with - score_without)
            return (larger_coalition, score_with, total), None

        order = jax.random.permutation(key, features.count)
        (_, _, total), _ = lax.scan(add_feature, (empty, empty_score, total), order)
        return total, None

    start = jnp.zeros((x.shape[0], features.count), empty_score.dtype)
    total, _ = lax.scan(add_order, start, jax.random.split(key, samples))
    values = total / samples
    return features.attributed(question, "Shapley sampling", values, question.scores_at(x), x)


@partial(jax.jit, static_argnames="samples")
def _kernel_shap(features: _Features, key: Array, *, samples: int) -> Attribution:
    x, question, _, score = features.line_and_score()
    count = features.count
    full_score = score(jnp.full(count, True))
    empty_score = score(jnp.full(count, False))
    change = full_score - empty_score
    values = change[:, None]
    if count > 1:
        for_sizes, for_ranks = jax.random.split(key)
        all_sizes = np.arange(1, count)
        # `choice` normalises the probabilities.
        probabilities = jnp.asarray(1 / (all_sizes * (count - all_sizes)))
        sizes = jax.random.choice(for_sizes, all_sizes, (samples,), p=probabilities)
        ranks = jax.random.uniform(for_ranks, (samples, count)).argsort(1).argsort(1)
        coalitions = ranks < sizes[:, None]
        gains = lax.map(score, coalitions) - empty_score[None]
        rows = coalitions.astype(x.dtype)
        # The sum of all values is the change of the score. This equation eliminates the last
        # feature.
        last = rows[:, -1:]
        solution = jnp.linalg.lstsq(rows[:, :-1] - last, gains - last * change[None])[0]
        last_values = change - solution.sum(0)
        values = jnp.concatenate([solution.T, last_values[:, None]], 1)
    return features.attributed(question, "kernel SHAP", values, full_score, x)


@jax.jit
def _lime(features: _Features, drawn: Array, penalty: Array) -> Attribution:
    x, question, x0, _ = features.line_and_score()

    def sample(coalition: Array) -> tuple[Array, Array]:
        near = jnp.where(coalition[features.groups][None], x, x0)
        size = jnp.sqrt(sums(near * near) * sums(x * x))
        distance = 1 - sums(near * x) / jnp.maximum(size, 1e-8)
        return question.scores_at(near), jnp.exp(-(distance**2) / 2)

    scores, weights = lax.map(sample, drawn)
    fit = jax.vmap(partial(_lasso, drawn.astype(x.dtype), penalty), in_axes=1)
    return features.attributed(question, "LIME", fit(scores, weights), question.scores_at(x), x)


def _lasso(rows: Array, penalty: Array, y: Array, weights: Array) -> Array:
    """Return the coefficients of a weighted lasso regression, computed by coordinate descent.

    Args:
        rows: the features of each sample, [sample, feature].
        penalty: the weight of the sum of absolute coefficients.
        y: the predicted number of each sample, [sample].
        weights: the weight of each sample, [sample].
    """
    shares = weights / weights.sum()
    centred_rows = rows - (shares @ rows)[None]
    centred_y = y - shares @ y
    weighted = centred_rows.T * shares[None]
    squares = weighted @ centred_rows
    products = weighted @ centred_y

    def improve(step: Array, coefficients: Array) -> Array:
        i = step % len(coefficients)
        residual = products[i] - squares[i] @ coefficients + squares[i, i] * coefficients[i]
        size = jnp.maximum(jnp.abs(residual) - penalty, 0)
        square = jnp.where(squares[i, i] > 0, squares[i, i], 1)
        return coefficients.at[i].set(jnp.sign(residual) * size / square)

    return lax.fori_loop(0, _SWEEPS * rows.shape[1], improve, jnp.zeros_like(products))
