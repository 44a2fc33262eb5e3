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

Sampled = tuple[Array, int] | None  # This is a key of `jax.random`, and the number of samples.
# Exact Shapley values need the scores of 2^n coalitions of n features. 16 features have 65536
# coalitions.
_MOST_FEATURES = 16
_SWEEPS = 200  # Coordinate descent visits each coefficient 200 times.


class FeatureOptions(QuestionOptions, total=False):
    """The keyword arguments of `feature_ablation`."""

    mask: ArrayLike | None
    baseline: ArrayLike


class _LineAndScore(NamedTuple):
    """The fields of a `Line`, and a function `score_of(coalition)` that returns scores [batch].

    A coalition is a mask, bool [feature]. Features in the mask keep their values. All other
    features have the values of the baseline.
    """

    x: Array
    question: Question
    x0: Array
    score_of: Callable[[Array], Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Features:
    """A question, and the features into which an item of the tensor is divided.

    Args:
        question: the question.
        baseline: the values of removed features.
        groups: for each entry of an item, the index of the feature to which the entry belongs. The
            array has the shape of an item.
        count: the number of features.
    """

    question: Question
    baseline: Array
    groups: Array
    count: int = field(metadata={"static": True})

    def line_and_score(self) -> _LineAndScore:
        """Return the line from the baseline, and the score as a function of a coalition."""
        x, question, x0 = line_from(self.question, self.baseline)

        def score_of(coalition: Array) -> Array:
            keeps_value = coalition[self.groups]
            return question.scores_at(jnp.where(keeps_value[None], x, x0))

        return _LineAndScore(x, question, x0, score_of)

    def attribution_of(
        self, values: Array, question: Question, method: str, scores: Array, x: Array
    ) -> Attribution:
        """Return the attribution in which each entry has the value of its feature.

        `values` are the attributions of the features, [batch, feature]. All other arguments are as
        in the function `attributed`.
        """
        values_of_entries = values[:, self.groups]
        return attributed(question, method, values_of_entries, scores=scores, x=x)


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

    All other arguments, and the errors, are as in `saliency`.
    """
    keywords = {"mask": mask, "baseline": baseline, **options}
    features = _features("feature_ablation", model, inputs, keywords)
    return _ablation(features, key=None)


def feature_permutation(
    model: Model,
    *inputs: Input,
    key: Array,
    mask: ArrayLike | None = None,
    **options: Unpack[QuestionOptions],
) -> Attribution:
    """Compute how much a score falls if a feature is permuted among the items of the batch.

    After the permutation, each item has the feature's values from another item.

    Args:
        key: a key of `jax.random`; each feature gets a separate permutation.
        mask: the feature of each entry, as in `feature_ablation`.

    All other arguments, and the errors, are as in `saliency`.
    """
    require_key(key)
    keywords = {"mask": mask, **options}
    features = _features("feature_permutation", model, inputs, keywords)
    return _ablation(features, key=key)


def shapley_values(
    model: Model, *inputs: Input, sampled: Sampled = None, **options: Unpack[FeatureOptions]
) -> Attribution:
    """Compute the mean rise of a score when a feature is added, over all orders (Shapley 1953).

    >>> nnef_jax.analysis.shapley_values(model, images, mask=rows, sampled=(key, 25))

    Args:
        sampled: a key of `jax.random`, and the number of random orders (Castro et al. 2009). All
            items use the same orders. By default the values are exact; this is possible for at most
            16 features.

    All other arguments, and the errors, are as in `feature_ablation`.
    """
    features = _features("shapley_values", model, inputs, options)
    if sampled is not None:
        key, samples = _key_and_count(sampled)
        return _sampled_shapley_values(features, key, samples=samples)
    if features.count > _MOST_FEATURES:
        message = f"{features.count} features have too many coalitions to compute all"
        hint = "give sampled=(jax.random.key(0), 25), or a mask with fewer features"
        raise InputError(message, hint=hint)
    return _exact_shapley_values(features)


def kernel_shap(
    model: Model, *inputs: Input, sampled: Sampled, **options: Unpack[FeatureOptions]
) -> Attribution:
    """Estimate Shapley values by a regression (Lundberg and Lee 2017, arXiv:1705.07874).

    Coalitions are drawn with the probabilities of the kernel in the paper. The values of an item
    add up to the change of its score from the baseline.

    Args:
        sampled: a key of `jax.random`, and the number of coalitions (sets of features that keep
            their values). All items use the same coalitions.

    All other arguments, and the errors, are as in `feature_ablation`.
    """
    key, samples = _key_and_count(sampled)
    features = _features("kernel_shap", model, inputs, options)
    return _kernel_shap(features, key, samples=samples)


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
        penalty: a factor in the loss, which is (weighted mean of squared errors) / 2 + penalty *
            (sum of absolute coefficients).

    All other arguments, and the errors, are as in `feature_ablation`.
    """
    key, samples = _key_and_count(sampled)
    penalty = require_real("penalty", penalty)
    features = _features("lime", model, inputs, options)
    coalitions = jax.random.bernoulli(key, 0.5, (samples, features.count))
    return _lime(features, coalitions, np.float32(penalty))


def _features(
    function: str, model: Model, inputs: tuple[Input, ...], options: Mapping[str, Any]
) -> _Features:
    """Check the arguments of an attribution function, and return the features that they describe.

    `function` is the name of the attribution function, and `options` are its keyword arguments.
    """
    keywords = {**options}
    mask = keywords.pop("mask", None)
    baseline = array_of("baseline", keywords.pop("baseline", 0.0))
    question = ask(function, model, inputs, keywords)
    shape = [int(extent) for extent in question.graph.values[question.wrt].type.shape[1:]]
    if mask is None:
        # Each entry is a feature.
        count = int(np.prod(shape))
        return _Features(question, baseline, jnp.arange(count).reshape(shape), count)
    mask_array = np.asarray(array_of("mask", mask))
    try:
        # A user's mask may have a batch axis of extent 1 in front. Masks with and without this axis
        # broadcast to the shape of a batch of one item.
        batch_of_one = np.broadcast_to(mask_array, (1, *shape))
    except ValueError:
        message = f"mask is {show(mask_array.shape)}, an item of '{question.wrt}' is {show(shape)}"
        raise InputError(message, hint="give an array that broadcasts") from None
    if mask_array.dtype.kind not in "iu":
        raise InputError(f"mask must be of integers, it is {mask_array.dtype}")
    # A mask may have any integers, such as 10, 20 and 10. In `flat_groups` they are replaced by
    # numbers from 0 on: 0, 1 and 0 in this example.
    different, flat_groups = np.unique(batch_of_one[0], return_inverse=True)
    groups = jnp.asarray(flat_groups.reshape(shape))
    return _Features(question, baseline, groups, count=len(different))


def _key_and_count(sampled: Any) -> tuple[Array, int]:
    """Return the key and the number of samples in the argument `sampled`, after checking both."""
    is_pair = isinstance(sampled, tuple | list) and len(sampled) == 2  # pyright: ignore[reportUnknownArgumentType]
    if not is_pair:
        raise TypeError("sampled must be a pair of a key of jax.random and a number")
    key, samples = sampled
    require_key(key)
    return key, require_count("samples", samples)


@jax.jit
def _ablation(features: _Features, key: Array | None) -> Attribution:
    """Return how much the score falls without each feature.

    Without a key, a feature is replaced by the baseline. With a key, it is permuted among the items
    of the batch.
    """
    x, question, x0, _ = features.line_and_score()
    scores = question.scores_at(x)

    def score_without(feature: Array) -> Array:
        """Return the score after a feature is replaced or permuted."""
        replacement = x0
        if key is not None:
            feature_key = jax.random.fold_in(key, feature)
            replacement = jax.random.permutation(feature_key, x)
        is_replaced = features.groups == feature
        return question.scores_at(jnp.where(is_replaced[None], replacement, x))

    scores_without = lax.map(score_without, jnp.arange(features.count))  # [feature, batch]
    falls = scores[None] - scores_without
    method = "feature ablation" if key is None else "feature permutation"
    return features.attribution_of(falls.T, question, method, scores=scores, x=x)


@jax.jit
def _exact_shapley_values(features: _Features) -> Attribution:
    """Return exact Shapley values, computed from the scores of all coalitions.

    The value of a feature is a weighted sum of these scores. If a coalition has s of n features,
    the weight of its score is

        (s - 1)! (n - s)! / n!      for a feature in the coalition,
        -s! (n - s - 1)! / n!       for any other feature.
    """
    x, question, _x0, score_of = features.line_and_score()
    count = features.count
    # Row i of the coalitions has the features whose bits are set in i. Row 5 has the features 0 and
    # 2, because 5 = 2^0 + 2^2.
    rows = np.arange(2**count)[:, None]
    bits = (rows >> np.arange(count)) & 1
    coalitions = bits.astype(bool)  # [coalition, feature]
    sizes = coalitions.sum(1)
    factorials = np.cumprod([1.0, *range(1, count + 1)])
    # The empty coalition has no features inside, and the full coalition has none outside. In these
    # two cases an index in the next two lines is -1, and `where` does not select the weight.
    weight_inside = factorials[sizes - 1] * factorials[count - sizes] / factorials[count]
    weight_outside = -factorials[sizes] * factorials[count - sizes - 1] / factorials[count]
    weights = np.where(coalitions, weight_inside[:, None], weight_outside[:, None])
    scores = lax.map(score_of, jnp.asarray(coalitions))  # [coalition, batch]
    # The letters stand for coalition, feature and batch.
    values = jnp.einsum("cf,cb->bf", weights.astype(x.dtype), scores, precision="highest")
    full_scores = scores[-1]
    return features.attribution_of(values, question, "Shapley values", scores=full_scores, x=x)


@partial(jax.jit, static_argnames="samples")
def _sampled_shapley_values(features: _Features, key: Array, *, samples: int) -> Attribution:
    """Estimate Shapley values by the mean gain of each feature over random orders."""
    x, question, _x0, score_of = features.line_and_score()
    empty_coalition = jnp.zeros(features.count, bool)
    empty_score = score_of(empty_coalition)

    def add_order(gains: Array, order_key: Array) -> tuple[Array, None]:
        """Return `gains`, [batch, feature], after the gains in one random order are added.

        The features join the coalition one after the other. The gain of a feature is the rise of
        the score when it joins.
        """

        def add_feature(state: tuple[Array, Array, Array], feature: Array) -> Any:
            coalition, score_without, gains = state
            larger_coalition = coalition.at[feature].set(True)
            score_with = score_of(larger_coalition)
            gains = gains.at[:, feature].add(score_with - score_without)
            return (larger_coalition, score_with, gains), None

        order = jax.random.permutation(order_key, features.count)
        initial_state = (empty_coalition, empty_score, gains)
        (_coalition, _score, gains), _ = lax.scan(add_feature, initial_state, order)
        return gains, None

    no_gains = jnp.zeros((x.shape[0], features.count), empty_score.dtype)
    gains, _ = lax.scan(add_order, no_gains, jax.random.split(key, samples))
    values = gains / samples
    scores = question.scores_at(x)
    return features.attribution_of(values, question, "Shapley sampling", scores=scores, x=x)


@partial(jax.jit, static_argnames="samples")
def _kernel_shap(features: _Features, key: Array, *, samples: int) -> Attribution:
    """Estimate Shapley values by a regression on the scores of random coalitions."""
    x, question, _x0, score_of = features.line_and_score()
    count = features.count
    full_score = score_of(jnp.full(count, True))
    empty_score = score_of(jnp.full(count, False))
    change = full_score - empty_score
    if count <= 1:
        # The value of a single feature is the whole change of the score.
        values = change[:, None]
    else:
        coalitions = _random_coalitions(key, samples, count)
        gains = lax.map(score_of, coalitions) - empty_score[None]  # [sample, batch]
        values = _values_from_gains(coalitions.astype(x.dtype), gains, change)
    return features.attribution_of(values, question, "kernel SHAP", scores=full_score, x=x)


def _random_coalitions(key: Array, samples: int, count: int) -> Array:
    """Return random coalitions of `count` features, bool [sample, feature].

    The probability of each size s is proportional to 1 / (s * (n - s)), where n is `count`, as in
    the kernel of the paper on SHAP. All coalitions of the same size are equally probable.
    """
    size_key, rank_key = jax.random.split(key)
    all_sizes = np.arange(1, count)
    # The numbers need not add up to 1, because `choice` divides them by their sum.
    probabilities = jnp.asarray(1 / (all_sizes * (count - all_sizes)))
    sizes = jax.random.choice(size_key, all_sizes, (samples,), p=probabilities)
    # Each row of `ranks` is a random permutation of the ranks. A coalition of 3 features has the
    # features with the ranks 0, 1 and 2.
    ranks = jax.random.uniform(rank_key, (samples, count)).argsort(1).argsort(1)
    return ranks < sizes[:, None]


def _values_from_gains(rows: Array, gains: Array, change: Array) -> Array:
    """Return the values of features, [batch, feature], by a least-squares regression.

    The gain of a coalition is about the sum of its features' values. With c_i = 1 for a feature in
    the coalition, and c_i = 0 for any other feature,

        c_1 v_1 + ... + c_n v_n = gain

    The values v_1 to v_n add up to `change`, so v_n = change - (v_1 + ... + v_(n-1)). With this v_n
    the equation becomes

        (c_1 - c_n) v_1 + ... + (c_(n-1) - c_n) v_(n-1) = gain - c_n change

    Args:
        rows: 1 for each feature in a coalition and 0 for all others, [sample, feature].
        gains: the score of each coalition minus the score of the empty coalition, [sample, batch].
        change: the gain of the coalition of all features, [batch].
    """
    last_column = rows[:, -1:]
    coefficients = rows[:, :-1] - last_column
    solution, *_ = jnp.linalg.lstsq(coefficients, gains - last_column * change[None])
    last_values = change - solution.sum(0)
    return jnp.concatenate([solution.T, last_values[:, None]], axis=1)


@jax.jit
def _lime(features: _Features, coalitions: Array, penalty: Array) -> Attribution:
    """Fit a lasso regression to the scores of coalitions, [sample, feature]."""
    x, question, x0, _score_of = features.line_and_score()

    def score_and_weight(coalition: Array) -> tuple[Array, Array]:
        """Return the scores of a sample, and its weight for each item, both [batch]."""
        keeps_value = coalition[features.groups]
        sample = jnp.where(keeps_value[None], x, x0)
        product_of_norms = jnp.sqrt(sums(sample * sample) * sums(x * x))
        cosine = sums(sample * x) / jnp.maximum(product_of_norms, 1e-8)
        distance = 1 - cosine
        return question.scores_at(sample), jnp.exp(-(distance**2) / 2)

    scores, weights = lax.map(score_and_weight, coalitions)  # Both are [sample, batch].
    rows = coalitions.astype(x.dtype)
    # Each item of the batch has a separate regression, with its scores and weights.
    fit_items = jax.vmap(partial(_lasso, rows, penalty), in_axes=1)
    values = fit_items(scores, weights)  # [batch, feature]
    full_scores = question.scores_at(x)
    return features.attribution_of(values, question, "LIME", scores=full_scores, x=x)


def _lasso(rows: Array, penalty: Array, y: Array, weights: Array) -> Array:
    """Return the coefficients of a weighted lasso regression, computed by coordinate descent.

    The coefficients c minimise

        mean of (y - rows @ c - constant)^2 / 2 + penalty * sum(|c|)

    where the mean has the weights of the samples.

    Args:
        rows: the features of each sample, [sample, feature].
        penalty: the weight of the sum of absolute coefficients.
        y: the number that the regression predicts for each sample, [sample].
        weights: the weight of each sample, [sample].
    """
    shares = weights / weights.sum()
    # The weighted means are subtracted. The regression then needs no constant.
    centred_rows = rows - (shares @ rows)[None]
    centred_y = y - shares @ y
    weighted_rows = centred_rows.T * shares[None]
    covariances = weighted_rows @ centred_rows  # [feature, feature]
    covariances_with_y = weighted_rows @ centred_y  # [feature]

    def improve(step: Array, coefficients: Array) -> Array:
        """Replace one coefficient by its best value, while all other coefficients stay fixed."""
        i = step % len(coefficients)
        variance = covariances[i, i]
        # The last term takes coefficient i out of the prediction. `residual` is therefore the
        # covariance of feature i with the part of y that the other coefficients do not explain.
        prediction = covariances[i] @ coefficients
        residual = covariances_with_y[i] - prediction + variance * coefficients[i]
        # The penalty moves the best coefficient towards 0.
        magnitude = jnp.maximum(jnp.abs(residual) - penalty, 0)
        divisor = jnp.where(variance > 0, variance, 1)
        return coefficients.at[i].set(jnp.sign(residual) * magnitude / divisor)

    steps = _SWEEPS * rows.shape[1]
    zero_coefficients = jnp.zeros_like(covariances_with_y)
    return lax.fori_loop(0, steps, improve, zero_coefficients)
