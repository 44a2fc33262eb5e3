"""Attribution by taking features away: ablation, permutation, Shapley values, local models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike

from lowering.extents import show
from nnef_jax.analysis.attribution import Attribution, array_of, attributed, line_from, sums
from nnef_jax.analysis.question import (
    Question,
    Target,
    ask,
    require_count,
    require_key,
    require_real,
)
from nnef_jax.call_arguments import Input
from nnef_jax.errors import InputError
from nnef_jax.model import Model, Params

Sampled = tuple[Array, int] | None  # a key of `jax.random`, and how many samples
_MANY = 16  # features whose 65536 coalitions are computed
_SWEEPS = 200  # of a lasso over its coefficients


def feature_ablation(
    model: Model,
    *inputs: Input,
    mask: ArrayLike | None = None,
    target: Target = None,
    output: str | None = None,
    wrt: str | None = None,
    params: Params | None = None,
    baseline: ArrayLike = 0.0,
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
    question, groups, count = _asked(ask(model, inputs, target, output, wrt, params), mask)
    return _ablation(question, array_of("baseline", baseline), groups, None, count=count)


def feature_permutation(
    model: Model,
    *inputs: Input,
    key: Array,
    mask: ArrayLike | None = None,
    target: Target = None,
    output: str | None = None,
    wrt: str | None = None,
    params: Params | None = None,
) -> Attribution:
    """Compute how far a score falls where items of a batch get a feature of one another.

    Args:
        key: of `jax.random`: each feature has a permutation of its own.
        mask: as that of `feature_ablation`.

    The other arguments, and errors, are those of `saliency`.
    """
    require_key(key)
    question, groups, count = _asked(ask(model, inputs, target, output, wrt, params), mask)
    return _ablation(question, np.float32(0), groups, key, count=count)


def shapley_values(
    model: Model,
    *inputs: Input,
    mask: ArrayLike | None = None,
    sampled: Sampled = None,
    target: Target = None,
    output: str | None = None,
    wrt: str | None = None,
    params: Params | None = None,
    baseline: ArrayLike = 0.0,
) -> Attribution:
    """Compute the gain of a score by each feature, the mean over all orders (Shapley 1953).

    >>> nnef_jax.analysis.shapley_values(model, images, mask=rows, sampled=(key, 25))

    Args:
        mask: as that of `feature_ablation`.
        sampled: a key of `jax.random` and a number of orders that are drawn (Castro et al. 2009),
            the same for all items. By default the values are exact, of at most 16 features.
        baseline: as that of `feature_ablation`.

    The other arguments, and errors, are those of `saliency`.
    """
    question, groups, count = _asked(ask(model, inputs, target, output, wrt, params), mask)
    baseline = array_of("baseline", baseline)
    if sampled is None:
        if count > _MANY:
            message = f"{count} features have too many coalitions to compute all"
            hint = "give sampled=(jax.random.key(0), 25), or a mask with fewer features"
            raise InputError(message, hint=hint)
        return _exact(question, baseline, groups, count=count)
    key, samples = _drawn(sampled)
    return _orders(question, baseline, groups, key, samples=samples, count=count)


def kernel_shap(
    model: Model,
    *inputs: Input,
    sampled: Sampled,
    mask: ArrayLike | None = None,
    target: Target = None,
    output: str | None = None,
    wrt: str | None = None,
    params: Params | None = None,
    baseline: ArrayLike = 0.0,
) -> Attribution:
    """Estimate Shapley values by a regression (Lundberg and Lee 2017, arXiv:1705.07874).

    Coalitions are drawn by the weights of that paper. The values of features add up to the change
    of the score from the baseline.

    Args:
        sampled: a key of `jax.random` and a number of coalitions, the same for all items.
        mask: as that of `feature_ablation`.
        baseline: as that of `feature_ablation`.

    The other arguments, and errors, are those of `saliency`.
    """
    key, samples = _drawn(sampled)
    question, groups, count = _asked(ask(model, inputs, target, output, wrt, params), mask)
    baseline = array_of("baseline", baseline)
    return _kernel_shap(question, baseline, groups, key, samples=samples, count=count)


def lime(
    model: Model,
    *inputs: Input,
    sampled: Sampled,
    mask: ArrayLike | None = None,
    target: Target = None,
    output: str | None = None,
    wrt: str | None = None,
    baseline: ArrayLike = 0.0,
    penalty: float = 0.01,
) -> Attribution:
    """Fit a sparse linear model to a score near each item (Ribeiro et al. 2016, arXiv:1602.04938).

    A feature is there in half of the samples. Samples count by exp(-d^2 / 2), where d is 1 less the
    cosine between them and the item.

    Args:
        sampled: a key of `jax.random` and a number of samples, the same for all items.
        mask: as that of `feature_ablation`.
        baseline: as that of `feature_ablation`.
        penalty: of the sum of absolute coefficients, beside half the mean square of errors.

    The other arguments, and errors, are those of `saliency`.
    """
    key, samples = _drawn(sampled)
    penalty = require_real("penalty", penalty)
    question, groups, count = _asked(ask(model, inputs, target, output, wrt, None), mask)
    drawn = jax.random.bernoulli(key, 0.5, (samples, count))
    return _lime(question, array_of("baseline", baseline), groups, drawn, np.float32(penalty))


def _asked(question: Question, mask: Any) -> tuple[Question, Any, int]:
    """Return the question, the feature of each entry of an item, and how many there are."""
    shape = [int(n) for n in question.graph.values[question.wrt].type.shape[1:]]
    if mask is None:
        count = int(np.prod(shape))
        return question, np.arange(count).reshape(shape), count
    given = np.asarray(array_of("mask", mask))
    try:
        given = np.broadcast_to(given, (1, *shape))[0]
    except ValueError:
        message = f"mask is {show(given.shape)}, an item of '{question.wrt}' is {show(shape)}"
        raise InputError(message, hint="give an array that broadcasts") from None
    if given.dtype.kind not in "iu":
        raise InputError(f"mask must be of integers, it is {given.dtype}")
    found, groups = np.unique(given, return_inverse=True)
    return question, groups.reshape(shape), len(found)


def _drawn(sampled: Any) -> tuple[Array, int]:
    if not isinstance(sampled, tuple | list) or len(sampled) != 2:  # pyright: ignore[reportUnknownArgumentType]
        raise TypeError("sampled must be a pair of a key of jax.random and a number")
    key, samples = sampled
    require_key(key)
    return key, require_count("samples", samples)


def _worth(question: Question, x: Array, x0: Array, groups: Array) -> Callable[[Array], Array]:
    """Return a function that scores each item with some features left, bool [feature]."""
    return lambda there: question.at(jnp.where(there[groups][None], x, x0))


@partial(jax.jit, static_argnames="count")
def _ablation(
    question: Question, baseline: Array, groups: Array, key: Array | None, *, count: int
) -> Attribution:
    x, question, x0 = line_from(question, baseline)
    scores = question.at(x)

    def without(feature: Array) -> Array:
        other = x0
        if key is not None:
            other = jax.random.permutation(jax.random.fold_in(key, feature), x)
        return question.at(jnp.where((groups == feature)[None], other, x))

    falls = scores[None] - lax.map(without, jnp.arange(count))
    method = "feature ablation" if key is None else "feature permutation"
    return attributed(question, method, falls.T[:, groups], scores, x)


@partial(jax.jit, static_argnames="count")
def _exact(question: Question, baseline: Array, groups: Array, *, count: int) -> Attribution:
    x, question, x0 = line_from(question, baseline)
    there = np.arange(2**count)[:, None] >> np.arange(count) & 1 > 0
    sizes = there.sum(1)
    # Of the orders in which a feature comes after some others, and before the rest.
    orders = np.cumprod([1.0, *range(1, count + 1)])
    after = orders[sizes - 1] * orders[count - sizes] / orders[count]
    before = orders[sizes] * orders[count - sizes - 1] / orders[count]
    weights = np.where(there, after[:, None], -before[:, None]).astype(x.dtype)
    worth = lax.map(_worth(question, x, x0, groups), jnp.asarray(there))
    values = jnp.einsum("cf,cb->bf", weights, worth, precision="highest")
    return attributed(question, "Shapley values", values[:, groups], worth[-1], x)


@partial(jax.jit, static_argnames=("samples", "count"))
def _orders(
    question: Question, baseline: Array, groups: Array, key: Array, *, samples: int, count: int
) -> Attribution:
    x, question, x0 = line_from(question, baseline)
    worth, none = _worth(question, x, x0, groups), jnp.zeros(count, bool)
    empty = worth(none)

    def follow(total: Array, key: Array) -> tuple[Array, None]:
        def join(found: tuple[Array, Array, Array], feature: Array) -> Any:
            there, before, total = found
            there = there.at[feature].set(True)
            after = worth(there)
            return (there, after, total.at[:, feature].add(after - before)), None

        order = jax.random.permutation(key, count)
        return lax.scan(join, (none, empty, total), order)[0][2], None

    start = jnp.zeros((x.shape[0], count), empty.dtype)
    values = lax.scan(follow, start, jax.random.split(key, samples))[0] / samples
    return attributed(question, "Shapley sampling", values[:, groups], question.at(x), x)


@partial(jax.jit, static_argnames=("samples", "count"))
def _kernel_shap(
    question: Question, baseline: Array, groups: Array, key: Array, *, samples: int, count: int
) -> Attribution:
    x, question, x0 = line_from(question, baseline)
    worth = _worth(question, x, x0, groups)
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
    return attributed(question, "kernel SHAP", values[:, groups], full, x)


@jax.jit
def _lime(
    question: Question, baseline: Array, groups: Array, drawn: Array, penalty: Array
) -> Attribution:
    x, question, x0 = line_from(question, baseline)

    def sample(there: Array) -> tuple[Array, Array]:
        near = jnp.where(there[groups][None], x, x0)
        size = jnp.sqrt(sums(near * near) * sums(x * x))
        distance = 1 - sums(near * x) / jnp.maximum(size, 1e-8)
        return question.at(near), jnp.exp(-(distance**2) / 2)

    scores, weights = lax.map(sample, drawn)
    fit = jax.vmap(partial(_lasso, drawn.astype(x.dtype), penalty), in_axes=1)
    return attributed(question, "LIME", fit(scores, weights)[:, groups], question.at(x), x)


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
