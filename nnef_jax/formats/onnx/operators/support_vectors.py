"""Functions for support vector machines, which sum kernels of rows and support vectors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowering.errors import InvalidOperation, InvalidShape
from nnef_jax.flattening.operators.attributes import flag, integer, integers, numbers
from nnef_jax.flattening.site import Tensor
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.estimators import (
    DOMAIN,
    TRANSFORM,
    best_class,
    classes,
    feature_rows,
    labelled,
    parameter,
    transformed,
)
from nnef_jax.formats.onnx.operators.registry import operator

_SUMS: dict[str, Any] = {"rho": numbers("rho"), "coefficients": numbers("coefficients")}


def _matrix(name: str, numbers: Sequence[float], count: int) -> Any:
    """Return numbers as a matrix with `count` rows.

    `name` is the name of the attribute that has the numbers, for errors.
    """
    if count < 1 or len(numbers) % count != 0:
        raise InvalidShape(
            f"'{name}' has {len(numbers)} items, which do not divide into {count} rows"
        )
    return np.array(numbers, np.float32).reshape(count, -1)


def _linear_function(
    site: NodeSite, x: Tensor, filter: ArrayLike, bias: Sequence[float], name: str
) -> Any:
    """Multiply x by each row of `filter`, and add `bias`, which has an item for each row.

    The filter and the bias become weights. If the name of the node is "svm" and `name` is "votes",
    the labels of the weights are "svm.votes" and "svm.votes.bias".
    """
    biases = parameter(site, f"{name}.bias", [bias])
    return site.step.linear(x, parameter(site, name, filter), biases)


def _kernels(site: NodeSite, count: int) -> Any:
    """Compute the kernel of each row and each of `count` support vectors.

    The result has shape (samples, count). A row x and a vector v, with the inner product x v, have
    one of these kernels:

    - "LINEAR": x v
    - "POLY": (gamma * x v + offset)^degree
    - "SIGMOID": tanh(gamma * x v + offset)
    - "RBF": exp(-gamma * sum((x - v)^2))
    """
    step = site.step
    x = feature_rows(site)
    vectors = _matrix("support_vectors", site.numbers("support_vectors"), count)
    gamma, offset, degree = site.numbers("kernel_params", (0.0, 0.0, 0.0))
    kind = site.choice("kernel_type", "LINEAR", "POLY", "RBF", "SIGMOID", default="LINEAR")
    if kind == "RBF":
        # Differences of rows and vectors have shape (samples, count, features).
        weights = parameter(site, "support_vectors", vectors[None])
        difference = step.sub(site.unsqueezed(x, (1,)), weights)
        square = site.squeezed(site.total(step.sqr(difference), (2,)), 2)
        return step.exp(step.mul(square, -gamma))
    if kind == "LINEAR":
        return _linear_function(site, x, vectors, [0.0] * count, "support_vectors")
    scaled_vectors = vectors * np.float32(gamma)
    sums = _linear_function(site, x, scaled_vectors, [offset] * count, "support_vectors")
    return step.tanh(sums) if kind == "SIGMOID" else step.pow(sums, float(degree))


@operator("SVMRegressor", domain=DOMAIN, **_SUMS)
def _regressor(
    site: NodeSite,
    *,
    count: int = integer("n_supports", 0),
    one_class: bool = flag("one_class"),
    rho: Sequence[float],
    coefficients: Sequence[float],
) -> Any:
    """Return a sum for each row: kernels times the coefficients of support vectors, plus `rho`.

    `count` is the number of support vectors. If it is 0, features take the place of kernels. If
    `one_class`, the result is 1 for a sum above 0, and -1 for any other sum.
    """
    x = _kernels(site, count) if count > 0 else feature_rows(site)
    weights = _matrix("coefficients", coefficients, count=1)
    sums = _linear_function(site, x, weights, [rho[0]], "coefficients")
    if one_class:
        one = site.constant(1, site.dtype_of(sums))
        is_positive = site.step.gt(sums, 0.0)
        return site.step.select(is_positive, one, -1.0)
    return transformed(site, sums, TRANSFORM(site))


@operator("SVMClassifier", domain=DOMAIN, **_SUMS)
def _classifier(
    site: NodeSite,
    *,
    names: Sequence[int] = integers("classlabels_ints", ()),
    sizes: Sequence[int] = integers("vectors_per_class", ()),
    slopes: Sequence[float] = numbers("prob_a", ()),
    transform: str = TRANSFORM,
    rho: Sequence[float],
    coefficients: Sequence[float],
) -> Any:
    """Return, for each row, the label that most votes are for, and scores.

    Each pair of classes has a score, which is a sum of kernels times `coefficients`, plus an item
    of `rho`. Each pair votes for one of its classes. The returned scores are the scores of the
    pairs, or the probabilities of the classes if `slopes` is not empty. `sizes` has the number of
    support vectors of each class. If there are no support vectors, the features decide; see
    `_classified_by_features`.
    """
    labels = classes(site, names)
    count = len(labels)
    has_probabilities = len(slopes) > 0
    has_negative = np.min(coefficients, initial=0) < 0
    if count == 2 and not has_probabilities and not has_negative:
        raise InvalidOperation("a coefficient must be below 0, else the label is not defined")
    vector_count = sum(sizes)
    if vector_count == 0:
        label, scores = _classified_by_features(site, labels, coefficients, rho[0])
        return label, transformed(site, scores, transform)
    if len(sizes) != count:
        raise InvalidShape(f"it has {count} labels and vectors of {len(sizes)} classes")
    site.spend(count**2 * (vector_count + count))
    pairs = list(combinations(range(count), 2))
    weights = _weights_of_pairs(coefficients, sizes, pairs)
    kernels = _kernels(site, vector_count)
    scores = _linear_function(site, kernels, weights, rho[: len(pairs)], "coefficients")
    votes = _votes(site, scores, count, pairs)
    label = labelled(site, labels, best_class(site, votes))
    if has_probabilities:
        scores = _probabilities(site, scores, count, slopes, site.numbers("prob_b"))
    elif count <= 2:
        # A single pair has a single score, which becomes a score for each of the two classes.
        scores = site.step.concat([site.step.neg(scores), scores], axis=1)
    return label, transformed(site, scores, transform)


def _classified_by_features(
    site: NodeSite, labels: NDArray[np.int64], coefficients: Sequence[float], bias: float
) -> tuple[Any, Any]:
    """Return the label with the highest score for each row, and the scores of all classes.

    The score of a class is the product of the features and the coefficients of the class, plus
    `bias`.
    """
    count = len(labels)
    weights = _matrix("coefficients", coefficients, max(count, 1))
    biases = [bias] * count
    scores = _linear_function(site, feature_rows(site), weights, biases, "coefficients")
    label = labelled(site, labels, best_class(site, scores))
    return label, scores


def _weights_of_pairs(
    coefficients: Sequence[float], sizes: Sequence[int], pairs: Sequence[tuple[int, int]]
) -> NDArray[np.float32]:
    """Return the weight of each support vector in the score of each pair of classes.

    The result has shape (pairs, vectors). `sizes` has the number of vectors for each class.
    """
    bounds = np.cumsum([0, *sizes])  # The vectors of class i are bounds[i] : bounds[i + 1].
    vector_count = bounds[-1]
    # The coefficients have a column for each vector. A vector has a weight against each class but
    # its own class, in the order of the classes. For example, a vector of class 1 of 3 has the
    # weights against classes 0 and 2.
    stored_weights = np.array(coefficients, np.float32).reshape(len(sizes) - 1, vector_count)
    weights = np.zeros((len(pairs), vector_count), np.float32)
    for weights_of_pair, (i, j) in zip(weights, pairs, strict=True):  # i < j
        vectors_i = slice(bounds[i], bounds[i + 1])
        vectors_j = slice(bounds[j], bounds[j + 1])
        weights_of_pair[vectors_i] = stored_weights[j - 1, vectors_i]
        weights_of_pair[vectors_j] = stored_weights[i, vectors_j]
    return weights


def _votes(site: NodeSite, scores: Tensor, count: int, pairs: Sequence[tuple[int, int]]) -> Any:
    """Return the number of votes for each class, of shape (samples, count).

    `scores` has a score for each of `pairs`. If the score is above 0, the pair votes for its first
    class, otherwise for its second class.
    """
    # Rows are classes, and columns are pairs.
    is_first_of_pair = np.zeros((count, len(pairs)), np.float32)
    is_second_of_pair = np.zeros_like(is_first_of_pair)
    for column, (i, j) in enumerate(pairs):
        is_first_of_pair[i, column] = 1
        is_second_of_pair[j, column] = 1
    # At first all pairs vote for their second classes. For a pair that votes for its first class,
    # the pair's column of `changes` is added. The vote then goes to the first class instead.
    votes_for_second = is_second_of_pair.sum(1).tolist()
    changes = is_first_of_pair - is_second_of_pair
    first_wins = site.cast(site.step.gt(scores, 0.0), site.dtype_of(scores))
    return _linear_function(site, first_wins, changes, votes_for_second, "votes")


def _probabilities(
    site: NodeSite, scores: Tensor, count: int, slopes: Sequence[float], offsets: Sequence[float]
) -> Any:
    """Compute the probabilities of `count` classes from the scores of pairs of classes.

    The probability of the first class of a pair is sigmoid(-(slope * score + offset)). `slopes` and
    `offsets` have an item for each pair.
    """
    step = site.step
    products = step.mul(scores, parameter(site, "prob_a", [slopes]))
    lines = step.add(products, parameter(site, "prob_b", [offsets]))
    # The operation `pairwise_coupling` cannot take probabilities of 0 or 1.
    least = 1e-7
    pair_probabilities = step.clamp(step.sigmoid(step.neg(lines)), least, 1 - least)
    return step.pairwise_coupling(pair_probabilities, count=count)
