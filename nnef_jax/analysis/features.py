"""Attribution by taking features away: ablation, permutation, Shapley values, local models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike

from lowering.extents import show
from nnef_jax.analysis.attribution import Attribution, array_of, attributed, line_from, sums
from nnef_jax.analysis.question import (
    Question,
    QuestionOptions,
    ask,
    require_count,
    require_key,
    require_real,
)
from nnef_jax.calls.arguments import Input
from nnef_jax.errors import InputError
from nnef_jax.model import Model

Sampled = tuple[Array, int] | None  # a key of `jax.random`, and how many samples
_MANY = 16  # features whose 65536 coalitions are computed
_SWEEPS = 200  # of a lasso over its coefficients


class FeatureOptions(QuestionOptions, total=False):
    """Keywords of `feature_ablation`."""

    mask: ArrayLike | None
    baseline: ArrayLike


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Features:
    """A question, and the feature that each entry of the tensor belongs to."""

    question: Question
    baseline: Array
    groups: Array
    count: int = field(metadata={"static": True})

    def begun(self) -> tuple[Array, Question, Array, Callable[[Array], Array]]:
        """Return the line of `line_from`, and a function of features left, bool [count].

        The function scores items.
        """
        x, question, x0 = line_from(self.question, self.baseline)
        return (
            x,
            question,
            x0,
            lambda there: question.at(jnp.where(there[self.groups][None], x, x0)),
        )

    def attributed(
        self, question: Question, method: str, values: Array, scores: Array, x: Array
    ) -> Attribution:
        """Return the attribution of values, [batch, feature]."""
        return attributed(question, method, values[:, self.groups], scores, x)


def feature_ablation(
    model: Model,
    *inputs: Input,
    mask: ArrayLike | None = None,
    baseline: ArrayLike = 0.0,
    **options: Unpack[QuestionOptions],
) -> Attribution:
    """Compute how far a score falls where a feature is at the baseline.

    >>> quarters = np.kron([[0, 1], [2, 3]], np.ones((4, 4), int))
    >>> nnef_jax.analysis.feature_ablation(model, images, mask=quarters)

    Args:
        mask: which feature each entry of an item belongs to: an array of integers that broadcasts
            to an item. By default each entry is one of its own.
        baseline: what a feature is without its value, as that of `integrated_gradients`.

    The other arguments, and errors, are those of `saliency`.
    """
    given = {"mask": mask, "baseline": baseline, **options}
    return _ablation(_features("feature_ablation", model, inputs, given), None)


def feature_permutation(
    model: Model,
    *inputs: Input,
    key: Array,
    mask: ArrayLike | None = None,
    **options: Unpack[QuestionOptions],
) -> Attribution:
    """Compute how far a score falls where items of a batch get a feature of one another.

    Args:
        key: of `jax.random`: each feature has a permutation of its own.
        mask: as that of `feature_ablation`.

    The other arguments, and errors, are those of `saliency`.
    """
    require_key(key)
    given = {"mask": mask, **options}
    return _ablation(_features("feature_permutation", model, inputs, given), key)


def shapley_values(
    model: Model, *inputs: Input, sampled: Sampled = None, **options: Unpack[FeatureOptions]
) -> Attribution:
    """Compute the gain of a score by each feature, the mean over all orders (Shapley 1953).

    >>> nnef_jax.analysis.shapley_values(model, images, mask=rows, sampled=(key, 25))

    Args:
        sampled: a key of `jax.random` and a number of orders that are drawn (Castro et al. 2009),
            the same for all items. By default the values are exact, of at most 16 features.

    The other arguments, and errors, are those of `feature_ablation`.
    """
    features = _features("shapley_values", model, inputs, options)
    if sampled is not None:
        key, samples = _drawn(sampled)
        return _orders(features, key, samples=samples)
    if features.count > _MANY:
        message = f"{features.count} features have too many coalitions to compute all"
        hint = "give sampled=(jax.random.key(0), 25), or a mask with fewer features"
        raise InputError(message, hint=hint)
    return _exact(features)


def kernel_shap(
    model: Model, *inputs: Input, sampled: Sampled, **options: Unpack[FeatureOptions]
) -> Attribution:
    """Estimate Shapley values by a regression (Lundberg and Lee 2017, arXiv:1705.07874).

    Coalitions are drawn by the weights of that paper. The values of features add up to the change
    of the score from the baseline.

    Args:
        sampled: a key of `jax.random` and a number of coalitions, the same for all items.

    The other arguments, and errors, are those of `feature_ablation`.
    """
    key, samples = _drawn(sampled)
    return _kernel_shap(_features("kernel_shap", model, inputs, options), key, samples=samples)


def lime(
    model: Model,
    *inputs: Input,
    sampled: Sampled,
    penalty: float = 0.01,
    **options: Unpack[FeatureOptions],
) -> Attribution:
    """Fit a sparse linear model to a score near each item (Ribeiro et al. 2016, arXiv:1602.04938).

    A feature is there in half of the samples. Samples count by exp(-d^2 / 2), where d is 1 less the
    cosine between them and the item.

    Args:
        sampled: a key of `jax.random` and a number of samples, the same for all items.
        penalty: of the sum of absolute coefficients, beside half the mean square of errors.

    The other arguments, and errors, are those of `feature_ablation`.
    """
    key, samples = _drawn(sampled)
    penalty = require_real("penalty", penalty)
    features = _features("lime", model, inputs, options)
    drawn = jax.random.bernoulli(key, 0.5, (samples, features.count))
    return _lime(features, drawn, np.float32(penalty))


def _features(
    function: str, model: Model, inputs: tuple[Any, ...], options: Mapping[str, Any]
) -> _Features:
    """Return the features that the arguments of a function ask about."""
    given = {**options}
    mask, baseline = given.pop("mask", None), array_of("baseline", given.pop("baseline", 0.0))
    question = ask(function, model, inputs, given)
    shape = [int(n) for n in question.graph.values[question.wrt].type.shape[1:]]
    if mask is None:
        count = int(np.prod(shape))
        return _Features(question, baseline, jnp.arange(count).reshape(shape), count)
    given = np.asarray(array_of("mask", mask))
    try:
        given = np.broadcast_to(given, (1, *shape))[0]
    except ValueError:
        message = f"mask is {show(given.shape)}, an item of '{question.wrt}' is {show(shape)}"
        raise InputError(message, hint="give an array that broadcasts") from None
    if given.dtype.kind not in "iu":
        raise InputError(f"mask must be of integers, it is {given.dtype}")
    found, groups = np.unique(given, return_inverse=True)
    return _Features(question, baseline, jnp.asarray(groups.reshape(shape)), len(found))


def _drawn(sampled: Any) -> tuple[Array, int]:
    if not isinstance(sampled, tuple | list) or len(sampled) != 2:  # pyright: ignore[reportUnknownArgumentType]
        raise TypeError("sampled must be a pair of a key of jax.random and a number")
    key, samples = sampled
    require_key(key)
    return key, require_count("samples", samples)


@jax.jit
def _ablation(features: _Features, key: Array | None) -> Attribution:
    x, question, x0, _ = features.begun()
    scores = question.at(x)

    def without(feature: Array) -> Array:
        other = x0
        if key is not None:
            other = jax.random.permutation(jax.random.fold_in(key, feature), x)
        return question.at(jnp.where((features.groups == feature)[None], other, x))

    falls = scores[None] - lax.map(without, jnp.arange(features.count))
    method = "feature ablation" if key is None else "feature permutation"
    return features.attributed(question, method, falls.T, scores, x)


@jax.jit
def _exact(features: _Features) -> Attribution:
    x, question, _, score = features.begun()
    count = features.count
    there = np.arange(2**count)[:, None] >> np.arange(count) & 1 > 0
    sizes = there.sum(1)
    # Of the orders in which a feature comes after some others, and before the rest.
    orders = np.cumprod([1.0, *range(1, count + 1)])
    after = orders[sizes - 1] * orders[count - sizes] / orders[count]
    before = orders[sizes] * orders[count - sizes - 1] / orders[count]
    weights = np.where(there, after[:, None], -before[:, None]).astype(x.dtype)
    worth = lax.map(score, jnp.asarray(there))
    values = jnp.einsum("cf,cb->bf", weights, worth, precision="highest")
    return features.attributed(question, "Shapley values", values, worth[-1], x)


@partial(jax.jit, static_argnames="samples")
def _orders(features: _Features, key: Array, *, samples: int) -> Attribution:
    x, question, _, worth = features.begun()
    none = jnp.zeros(features.count, bool)
    empty = worth(none)

    def follow(total: Array, key: Array) -> tuple[Array, None]:
        def join(found: tuple[Array, Array, Array], feature: Array) -> Any:
            there, before, total = found
            there = there.at[feature].set(True)
            after = worth(there)
            return (there, after, total.at[:, feature].add(after - before)), None

        order = jax.random.permutation(key, features.count)
        return lax.scan(join, (none, empty, total), order)[0][2], None

    start = jnp.zeros((x.shape[0], features.count), empty.dtype)
    values = lax.scan(follow, start, jax.random.split(key, samples))[0] / samples
    return features.attributed(question, "Shapley sampling", values, question.at(x), x)


@partial(jax.jit, static_argnames="samples")
def _kernel_shap(features: _Features, key: Array, *, samples: int) -> Attribution:
    x, question, _, worth = features.begun()
    count = features.count
    full, empty = (worth(jnp.full(count, there)) for there in (True, False))
    values = (full - empty)[:, None]
    if count > 1:
        sizes, places = jax.random.split(key)
        k = np.arange(1, count)
        chosen = jax.random.choice(sizes, k, (samples,), p=jnp.asarray(1 / (k * (count - k))))
        ranks = jax.random.uniform(places, (samples, count)).argsort(1).argsort(1)
        there = ranks < chosen[:, None]
        known, rows = lax.map(worth, there) - empty[None], there.astype(x.dtype)
        # The last feature has what the others leave of the change.
        last = rows[:, -1:]
        rest = jnp.linalg.lstsq(rows[:, :-1] - last, known - last * (full - empty)[None])[0]
        values = jnp.concatenate([rest.T, (full - empty - rest.sum(0))[:, None]], 1)
    return features.attributed(question, "kernel SHAP", values, full, x)


@jax.jit
def _lime(features: _Features, drawn: Array, penalty: Array) -> Attribution:
    x, question, x0, _ = features.begun()

    def sample(there: Array) -> tuple[Array, Array]:
        near = jnp.where(there[features.groups][None], x, x0)
        size = jnp.sqrt(sums(near * near) * sums(x * x))
        distance = 1 - sums(near * x) / jnp.maximum(size, 1e-8)
        return question.at(near), jnp.exp(-(distance**2) / 2)

    scores, weights = lax.map(sample, drawn)
    fit = jax.vmap(partial(_lasso, drawn.astype(x.dtype), penalty), in_axes=1)
    return features.attributed(question, "LIME", fit(scores, weights), question.at(x), x)


def _lasso(rows: Array, penalty: Array, y: Array, weights: Array) -> Array:
    """Return the coefficients of weighted least squares with a penalty, found one by one."""
    weights = weights / weights.sum()
    rows, y = rows - (weights @ rows)[None], y - weights @ y
    weighted = rows.T * weights[None]
    squares, products = weighted @ rows, weighted @ y

    def improve(index: Array, found: Array) -> Array:
        i = index % len(found)
        left = products[i] - squares[i] @ found + squares[i, i] * found[i]
        size = jnp.maximum(jnp.abs(left) - penalty, 0)
        own = jnp.where(squares[i, i] > 0, squares[i, i], 1)
        return found.at[i].set(jnp.sign(left) * size / own)

    return lax.fori_loop(0, _SWEEPS * rows.shape[1], improve, jnp.zeros_like(products))
