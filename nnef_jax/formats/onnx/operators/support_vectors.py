"""Support vector machines: sums of kernels between rows and stored vectors."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation, InvalidShape
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.estimators import (
    DOMAIN,
    best,
    classes,
    labelled,
    parameter,
    rows,
    transformed,
)
from nnef_jax.formats.onnx.operators.registry import operator


def _matrix(site: NodeSite, name: str, count: int) -> Any:
    items = np.array(site.numbers(name), np.float32)
    if count < 1 or items.size % count:
        raise InvalidShape(f"'{name}' has {items.size} items, they make no {count} rows")
    return items.reshape(count, -1)


def _products(site: NodeSite, x: Any, filter: Any, bias: Any, name: str) -> Any:
    bias = parameter(site, f"{name}.bias", [bias])
    return site.step.linear(x, parameter(site, name, filter), bias)


def _kernels(site: NodeSite, count: int) -> Any:
    """Return the kernel of each row with each support vector."""
    x, vectors, step = rows(site), _matrix(site, "support_vectors", count), site.step
    gamma, offset, degree = site.numbers("kernel_params", (0.0, 0.0, 0.0))
    kind = site.choice("kernel_type", "LINEAR", "POLY", "RBF", "SIGMOID", default="LINEAR")
    if kind == "RBF":
        vectors = parameter(site, "support_vectors", vectors[None])
        distance = step.sub(site.unsqueezed(x, (1,)), vectors)
        square = site.squeezed(site.total(step.sqr(distance), (2,)), 2)
        return step.exp(step.mul(square, -gamma))
    if kind == "LINEAR":
        return _products(site, x, vectors, [0.0] * count, "support_vectors")
    found = _products(site, x, vectors * np.float32(gamma), [offset] * count, "support_vectors")
    return step.tanh(found) if kind == "SIGMOID" else step.pow(found, float(degree))


@operator("SVMRegressor", domain=DOMAIN)
def _regressor(site: NodeSite) -> Any:
    """Return sums for rows; with `one_class` 1 above 0, else -1."""
    count = site.int("n_supports", 0)
    x = _kernels(site, count) if count else rows(site)
    bias = [site.numbers("rho")[0]]
    found = _products(site, x, _matrix(site, "coefficients", 1), bias, "coefficients")
    if site.flag("one_class"):
        one = site.constant(1, site.dtype_of(found))
        return site.step.select(site.step.gt(found, 0.0), one, -1.0)
    return transformed(site, found)


@operator("SVMClassifier", domain=DOMAIN)
def _classifier(site: NodeSite) -> Any:
    """Return the label that most pairs of classes vote for, and scores of pairs, or probabilities.

    Without support vectors each class has a score.
    """
    labels, sizes = classes(site, "classlabels_ints"), site.ints("vectors_per_class", ())
    count, rho = len(labels), site.numbers("rho")
    coefficients = np.array(site.numbers("coefficients"))
    if count == 2 and coefficients.min(initial=0) >= 0 and not site.numbers("prob_a", ()):
        raise InvalidOperation("no coefficient is below 0: the label is not defined")
    if not sum(sizes):
        coefficients = _matrix(site, "coefficients", max(count, 1))
        scores = _products(site, rows(site), coefficients, [rho[0]] * count, "coefficients")
        return labelled(site, labels, best(site, scores)), transformed(site, scores)
    if len(sizes) != count:
        raise InvalidShape(f"it has {count} labels and vectors of {len(sizes)} classes")
    site.spend(count**2 * (sum(sizes) + count))
    pairs, ends = list(combinations(range(count), 2)), np.cumsum([0, *sizes])
    weights = coefficients.astype(np.float32).reshape(count - 1, ends[-1])
    filter = np.zeros((len(pairs), ends[-1]), np.float32)
    for p, (i, j) in enumerate(pairs):
        filter[p, ends[i] : ends[i + 1]] = weights[j - 1, ends[i] : ends[i + 1]]
        filter[p, ends[j] : ends[j + 1]] = weights[i, ends[j] : ends[j + 1]]
    kernels = _kernels(site, int(ends[-1]))
    scores = _products(site, kernels, filter, rho[: len(pairs)], "coefficients")
    wins = np.zeros((count, len(pairs)), np.float32)
    wins[[i for i, _ in pairs], range(len(pairs))] = 1
    losses = np.zeros_like(wins)
    losses[[j for _, j in pairs], range(len(pairs))] = 1
    is_first = site.cast(site.step.gt(scores, 0.0), site.dtype_of(scores))
    votes = _products(site, is_first, wins - losses, losses.sum(1).tolist(), "votes")
    label = labelled(site, labels, best(site, votes))
    if site.numbers("prob_a", ()):
        scores = _probabilities(site, scores, count)
    elif count <= 2:
        scores = site.step.concat([site.step.neg(scores), scores], axis=1)
    return label, transformed(site, scores)


def _probabilities(site: NodeSite, scores: Any, count: int) -> Any:
    """Return probabilities of classes by those of pairs."""
    step = site.step
    slopes, offsets = (parameter(site, n, [site.numbers(n)]) for n in ("prob_a", "prob_b"))
    shares = step.sigmoid(step.neg(step.add(step.mul(scores, slopes), offsets)))
    return step.pairwise_coupling(step.clamp(shares, 1e-7, 1 - 1e-7), count=count)
