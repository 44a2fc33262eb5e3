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
# Exact Shapley values are computed for at most 16 features, which have 65536 coalitions.
_MOST_FEATURES = 16
_SWEEPS = 200  # Coordinate descent visits each coefficient 200 times.


class FeatureOptions(QuestionOptions, total=False):
    """The keyword arguments of `feature_ablation`."""

    mask: ArrayLike | None
    baseline: ArrayLike


class _Start(NamedTuple):
    """The start of an attribution: the fields of a `Line`, and the score of a coalition.

    A coalition is a mask of the features that keep their values, bool [count]. All other features
    have the values of the baseline. The field `score` is a function from a coalition to the scores
    [batch].
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
            keeps_value = coalition[self.groups]
            return question.scores_at(jnp.where(keeps_value[None], x, x0))

        return _Start(x, question, x0, score)

    def attributed(
        self, question: Question, method: str, values: Array, scores: Array, x: Array
    ) -> Attribution:
        """Return the attribution in which each entry has the value of its feature.

        `values` are the values of features, [batch, feature]. `question`, `method`, `scores` and
        `x` are as in the function `attributed`.
        """
        return attributed(question, method, values[:, self.groups], scores=scores, x=x)


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
    return _ablation(_features("feature_ablation", model, inputs, keywords), key=None)


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

    All other arguments, and the errors, are as in `saliency`.
    """
    require_key(key)
    keywords = {"mask": mask, **options}
    return _ablation(_features("feature_permutation", model, inputs, keywords), key=key)


def shapley_values(
    model: Model, *inputs: Input, sampled: Sampled = None, **options: Unpack[FeatureOptions]
) -> Attribution:
    """Compute how much each added feature raises a score, averaged over all orders (Shapley 1953).

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

    All other arguments, and the errors, are as in `feature_ablation`.
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

    `function` is the name of the attribution function, and `options` are its keyword arguments.
    """
    keywords = {**options}
    mask = keywords.pop("mask", None)
    baseline = array_of("baseline", keywords.pop("baseline", 0.0))
    question = ask(function, model, inputs, keywords)
    shape = [int(extent) for extent in question.graph.values[question.wrt].type.shape[1:]]
    if mask is None:
        count = int(np.prod(shape))
        return _Features(question, baseline, jnp.arange(count).reshape(shape), count)
    mask_array = np.asarray(array_of("mask", mask))
    try:
        # A user's mask may have a first axis of extent 1, the batch. The shape with a batch of one
        # item accepts masks with and without this axis.
        batch_of_one = np.broadcast_to(mask_array, (1, *shape))
    except ValueError:
        message = f"mask is {show(mask_array.shape)}, an item of '{question.wrt}' is {show(shape)}"
        raise InputError(message, hint="give an array that broadcasts") from None
    if mask_array.dtype.kind not in "iu":
        raise InputError(f"mask must be of integers, it is {mask_array.dtype}")
    features, flat_groups = np.unique(batch_of_one[0], return_inverse=True)
    groups = jnp.asarray(flat_groups.reshape(shape))
    return _Features(question, baseline, groups, len(features))


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

    A feature is replaced by the baseline; with a key it is permuted among the items instead.
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

    falls = scores[None] - lax.map(score_without, jnp.arange(features.count))
    method = "feature ablation" if key is None else "feature permutation"
    return features.attributed(question, method, falls.T, scores=scores, x=x)


@jax.jit
def _exact_shapley_values(features: _Features) -> Attribution:
    """Return exact Shapley values, computed from the scores of all coalitions."""
    x, question, _, score = features.line_and_score()
    count = features.count
    # `coalitions` has the axes [coalition, feature]. In row 5, the features 0 and 2 are True,
    # because 5 has the bits 0 and 2.
    rows = np.arange(2**count)[:, None]
    bits = (rows >> np.arange(count)) & 1
    coalitions = bits.astype(bool)
    sizes = coalitions.sum(1)
    # The features join one after the other, in any order. `share_last` is the share of all orders
    # in which the features of the coalition come first, and a certain one of them comes last among
    # them. `share_next` is the share of all orders in which the features of the coalition come
    # first, and a certain feature outside the coalition comes next.
    factorials = np.cumprod([1.0, *range(1, count + 1)])
    # In rows where an index below is -1, `where` selects the share in which it does not occur.
    share_last = factorials[sizes - 1] * factorials[count - sizes] / factorials[count]
    share_next = factorials[sizes] * factorials[count - sizes - 1] / factorials[count]
    weights = np.where(coalitions, share_last[:, None], -share_next[:, None]).astype(x.dtype)
    scores = lax.map(score, jnp.asarray(coalitions))
    # The weights are (coalition, feature), the scores (coalition, batch), and the values
    # (batch, feature).
    values = jnp.einsum("cf,cb->bf", weights, scores, precision="highest")
    full_scores = scores[-1]
    return features.attributed(question, "Shapley values", values, scores=full_scores, x=x)


@partial(jax.jit, static_argnames="samples")
def _sampled_shapley_values(features: _Features, key: Array, *, samples: int) -> Attribution:
    """Return mean gains over random orders of the features, an estimate of Shapley values."""
    x, question, _, score = features.line_and_score()
    empty_coalition = jnp.zeros(features.count, bool)
    empty_score = score(empty_coalition)

    def add_order(gains: Array, order_key: Array) -> tuple[Array, None]:
        """Add to `gains` how much the score rises when features join in a random order."""

        def add_feature(carry: tuple[Array, Array, Array], feature: Array) -> Any:
            coalition, score_without, gains = carry
            larger_coalition = coalition.at[feature].set(True)
            score_with = score(larger_coalition)
            gains = gains.at[:, feature].add(score_with - score_without)
            return (larger_coalition, score_with, gains), None

        order = jax.random.permutation(order_key, features.count)
        start = empty_coalition, empty_score, gains
        (_, _, gains), _ = lax.scan(add_feature, start, order)
        return gains, None

    no_gains = jnp.zeros((x.shape[0], features.count), empty_score.dtype)
    gains, _ = lax.scan(add_order, no_gains, jax.random.split(key, samples))
    values = gains / samples
    scores = question.scores_at(x)
    return features.attributed(question, "Shapley sampling", values, scores=scores, x=x)


@partial(jax.jit, static_argnames="samples")
def _kernel_shap(features: _Features, key: Array, *, samples: int) -> Attribution:
    """Estimate Shapley values by a regression on the scores of random coalitions."""
    x, question, _, score = features.line_and_score()
    count = features.count
    full_score = score(jnp.full(count, True))
    empty_score = score(jnp.full(count, False))
    change = full_score - empty_score
    if count <= 1:
        # A single feature has the change of the score as its value.
        values = change[:, None]
        return features.attributed(question, "kernel SHAP", values, scores=full_score, x=x)
    size_key, rank_key = jax.random.split(key)
    all_sizes = np.arange(1, count)
    # In the kernel of the paper, a coalition has s of n features with a probability proportional to
    # 1 / (s * (n - s)). `choice` divides the numbers by their sum.
    probabilities = jnp.asarray(1 / (all_sizes * (count - all_sizes)))
    sizes = jax.random.choice(size_key, all_sizes, (samples,), p=probabilities)
    # Each row of `ranks` is a random permutation. The features of the lowest ranks form the
    # coalition.
    ranks = jax.random.uniform(rank_key, (samples, count)).argsort(1).argsort(1)
    coalitions = ranks < sizes[:, None]
    # `gains` is an array (sample, batch).
    gains = lax.map(score, coalitions) - empty_score[None]
    rows = coalitions.astype(x.dtype)
    # All values together are the change of the score. The last value is therefore the change minus
    # all other values, and the regression is solved for the other values only.
    has_last = rows[:, -1:]
    coefficients = rows[:, :-1] - has_last
    solution, *_ = jnp.linalg.lstsq(coefficients, gains - has_last * change[None])
    last_values = change - solution.sum(0)
    values = jnp.concatenate([solution.T, last_values[:, None]], 1)
    return features.attributed(question, "kernel SHAP", values, scores=full_score, x=x)


@jax.jit
def _lime(features: _Features, drawn: Array, penalty: Array) -> Attribution:
    """Fit a lasso regression to the scores of the coalitions `drawn`, [sample, feature]."""
    x, question, x0, _ = features.line_and_score()

    def score_and_weight(coalition: Array) -> tuple[Array, Array]:
        """Return the scores of a sample, and its weight for each item, both [batch]."""
        keeps_value = coalition[features.groups]
        sample = jnp.where(keeps_value[None], x, x0)
        norms = jnp.sqrt(sums(sample * sample) * sums(x * x))
        cosine = sums(sample * x) / jnp.maximum(norms, 1e-8)
        distance = 1 - cosine
        return question.scores_at(sample), jnp.exp(-(distance**2) / 2)

    # Both arrays are (sample, batch).
    scores, weights = lax.map(score_and_weight, drawn)
    rows = drawn.astype(x.dtype)
    fit_items = jax.vmap(partial(_lasso, rows, penalty), in_axes=1)
    values = fit_items(scores, weights)
    full_scores = question.scores_at(x)
    return features.attributed(question, "LIME", values, scores=full_scores, x=x)


def _lasso(rows: Array, penalty: Array, y: Array, weights: Array) -> Array:
    """Return the coefficients of a weighted lasso regression, computed by coordinate descent.

    Args:
        rows: the features of each sample, [sample, feature].
        penalty: the weight of the sum of absolute coefficients.
        y: the number that the regression predicts for each sample, [sample].
        weights: the weight of each sample, [sample].
    """
    shares = weights / weights.sum()
    # The weighted means are subtracted, so that the regression needs no constant.
    centred_rows = rows - (shares @ rows)[None]
    centred_y = y - shares @ y
    weighted = centred_rows.T * shares[None]
    squares = weighted @ centred_rows
    products = weighted @ centred_y

    def improve(step: Array, coefficients: Array) -> Array:
        """Replace one coefficient by its best value for the present other coefficients."""
        i = step % len(coefficients)
        square = squares[i, i]
        # `residual` is the covariance of feature i with the part of y that the other coefficients
        # do not explain. The last term leaves coefficient i out of the prediction.
        residual = products[i] - squares[i] @ coefficients + square * coefficients[i]
        # The penalty moves the best coefficient towards 0.
        magnitude = jnp.maximum(jnp.abs(residual) - penalty, 0)
        divisor = jnp.where(square > 0, square, 1)
        return coefficients.at[i].set(jnp.sign(residual) * magnitude / divisor)

    steps = _SWEEPS * rows.shape[1]
    return lax.fori_loop(0, steps, improve, jnp.zeros_like(products))
