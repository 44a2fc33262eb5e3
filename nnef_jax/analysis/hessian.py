"""Estimates the trace and the eigenvalues of the Hessian of a loss, taken at the parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from nnef_jax import Model
from nnef_jax.analysis.argument_checks import require_count, require_key, require_model
from nnef_jax.analysis.krylov import eigenpairs
from nnef_jax.analysis.layer_tensors import (
    Loss,
    chosen_params,
    loss_of,
    on_one_device,
    require_callable,
    require_gradients,
)
from nnef_jax.calls.arguments import Input, Params
from nnef_jax.results import Axes, Result, Table, axes, literally, result, table_of
from nnef_jax.workings import graph_for


@result
class HessianTrace(Result):
    """An estimate of the trace of a Hessian, and of the trace of each parameter's diagonal block.

    Args:
        samples: maps the label of each parameter to an array [samples]. The array has estimates of
            the trace of the parameter's block, one for each random vector. The mean of these
            estimates is the final estimate.
    """

    samples: Mapping[str, Array]

    @property
    def value(self) -> Array:
        """Return the estimate of the trace."""
        return jnp.mean(self._total)

    @property
    def error(self) -> Array:
        """Return the standard error of the estimate of the trace."""
        return _standard_error(self._total)

    @property
    def by_parameter(self) -> dict[str, Array]:
        """Return a dict from labels to the traces of the parameters' blocks."""
        return {label: jnp.mean(x) for label, x in self.samples.items()}

    @property
    def _total(self) -> Array:
        return sum(self.samples.values(), jnp.zeros(()))

    def to_dict(self) -> dict[str, object]:
        """Return a dict of numbers.

        `value` is the trace, and `error` is its standard error. `parameters` maps labels to the
        traces of the parameters' blocks, and `errors` maps labels to the standard errors of these
        traces.
        """
        return {
            "value": float(self.value),
            "error": float(self.error),
            "parameters": {label: float(trace) for label, trace in self.by_parameter.items()},
            "errors": {label: float(_standard_error(x)) for label, x in self.samples.items()},
        }

    def table(self) -> Table:
        """Return a table with a line for each parameter, and a line for all parameters together."""
        rows = [(label, jnp.mean(x), _standard_error(x)) for label, x in self.samples.items()]
        rows.append(("all", self.value, self.error))
        columns = ["parameter", "trace", "standard error"]
        return table_of("trace of the Hessian", columns, rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the trace of each parameter's block with its standard error. Return the axes."""
        figure_height = 1 + 0.25 * len(self.samples)
        ax = axes(ax, size=(6.4, figure_height))
        traces = [float(x) for x in self.by_parameter.values()]
        errors = [float(_standard_error(x)) for x in self.samples.values()]
        labels = [literally(label) for label in self.samples]
        ax.barh(labels, traces, xerr=errors, color="#1f4e79", height=0.7)
        ax.invert_yaxis()
        ax.set_xlabel("trace of the Hessian's block")
        return ax


@result
class HessianEigenvalues(Result):
    """Eigenvalues of a Hessian.

    Args:
        values: the k eigenvalues, [k], sorted by magnitude, the largest first.
        residuals: error bounds [k]. An exact eigenvalue is within residuals[i] of values[i].
        vectors: maps the label of each parameter to an array [k, ...]: the entries of the k
            eigenvectors for this parameter. The norm of an eigenvector over all parameters is 1.
    """

    values: Array
    residuals: Array
    vectors: Mapping[str, Array]

    def table(self) -> Table:
        """Return a table with a line for each eigenvalue.

        The line shows the parameter that has the largest share of the eigenvector's squared norm.
        """
        # For each label, this is the parameter's share of the squared norm of each eigenvector,
        # [k].
        shares: dict[str, Any] = {}
        for label, vectors in self.vectors.items():
            squares = np.square(np.asarray(vectors))
            shares[label] = squares.reshape(len(squares), -1).sum(axis=1)
        rows: list[tuple[Any, ...]] = []
        for index, value in enumerate(self.values):
            share_by_label = {label: shares[label][index] for label in shares}
            largest_label = max(share_by_label, key=share_by_label.__getitem__)
            text = f"{largest_label} ({share_by_label[largest_label]:.0%})"
            rows.append((value, self.residuals[index], text))
        columns = ["eigenvalue", "residual", "most of its direction"]
        return table_of("Hessian", columns, rows)


def hessian_trace(
    model: Model,
    *inputs: Input,
    loss: Loss,
    labels: Sequence[str] | None = None,
    params: Params | None = None,
    samples: int = 32,
    key: Array | None = None,
) -> HessianTrace:
    """Estimate the trace of the Hessian of a loss, and the traces of the Hessian's diagonal blocks.

    The entries of a random vector v are 1 or -1. The mean of v^T H v over many vectors is the trace
    of the Hessian H (Hutchinson 1990). The products H v also give the trace of the diagonal block
    of each parameter. A parameter whose block has a small trace can be rounded more coarsely (Dong
    et al. 2020, arXiv:1911.03852). For a diagonal Hessian the estimate is exact.

    Args:
        inputs: the inputs of a call, in order, or one dict from names to inputs.
        loss: a function from the outputs to a floating-point number. Each function object is traced
            once, as in `jax.jit`.
        labels: labels of parameters, or patterns of `fnmatch`; by default all floating-point
            parameters.
        params: the parameters at which the Hessian is taken, instead of `model.params`.
        samples: the number of random vectors, at least 2. The standard error is inversely
            proportional to the square root of this number.
        key: a key of `jax.random`; the default is a fixed key.

    Raises InputError for unknown labels, for a network without floating-point parameters, and if
    rounding makes a gradient 0. Raises TypeError for a loss that is not a floating-point number.

    >>> trace = nnef_jax.analysis.hessian_trace(logits, images, loss=cross_entropy)
    >>> trace.value, trace.error, trace.by_parameter
    """
    if require_count("samples", samples) < 2:
        raise ValueError(f"samples must be at least 2 for a standard error, it is {samples}")
    arguments = _arguments(model, inputs, loss, labels, params, key)
    return HessianTrace(samples=_trace(*arguments, loss=loss, samples=samples))


def hessian_eigenvalues(
    model: Model,
    *inputs: Input,
    loss: Loss,
    k: int = 1,
    labels: Sequence[str] | None = None,
    params: Params | None = None,
    steps: int = 16,
    key: Array | None = None,
) -> HessianEigenvalues:
    """Return the eigenvalues of largest magnitude of the Hessian of a loss.

    The derivatives are with respect to the parameters. The Hessian is never formed. Its products
    with vectors span a block Krylov space, and the basis of this space is fully reorthogonalised;
    for k = 1 this is Lanczos's method. Yao et al. 2020, arXiv:1912.07145, use power iteration
    instead. If the parameters have at most k * steps entries, the values are exact up to rounding.

    Args:
        k: the number of eigenvalues; at most the number of entries of the parameters.
        steps: the number of blocks of k vectors; more blocks make residuals smaller. The vectors
            take 2 * k * steps times the memory of the parameters.
        key: a key of `jax.random`, for the random first block; the default is a fixed key.

    All other arguments, and the errors, are as in `hessian_trace`.

    >>> nnef_jax.analysis.hessian_eigenvalues(logits, images, loss=cross_entropy).values
    """
    k = require_count("k", k)
    steps = require_count("steps", steps)
    arguments = _arguments(model, inputs, loss, labels, params, key)
    return _eigenvalues(*arguments, loss=loss, k=k, steps=steps)


def _arguments(
    model: Model,
    inputs: Sequence[Input],
    loss: Loss,
    labels: Sequence[str] | None,
    params: Params | None,
    key: Array | None,
) -> tuple[Model, dict[str, Array], list[Array], Array]:
    """Check the arguments; return the model, the chosen parameters, the inputs and the key."""
    require_model(model)
    require_callable("loss", loss, "a function of the outputs")
    if key is None:
        key = jax.random.key(0)
    require_key(key)
    model, values = on_one_device(model, inputs, params)
    chosen = chosen_params(model.params, labels)
    require_gradients(model, graph_for(model, values), layers={}, labels=chosen)
    return model, chosen, values, key


def _gradient(
    model: Model, inputs: Sequence[Array], loss: Loss
) -> Callable[[Params], dict[str, Array]]:
    """Return the function that computes the gradients of the loss at the chosen parameters.

    The function takes a dict from labels to parameters, and returns a dict from labels to
    gradients.
    """

    def loss_at(chosen: Params) -> Array:
        params = {**model.params, **chosen}
        value, _ = loss_of(model, params, inputs, loss, added={})
        return value

    return jax.grad(loss_at)


@partial(jax.jit, static_argnames=("loss", "samples"))
def _trace(
    model: Model,
    chosen: Mapping[str, Array],
    inputs: Sequence[Array],
    key: Array,
    *,
    loss: Loss,
    samples: int,
) -> dict[str, Array]:
    """Return a dict from labels to arrays [samples]: estimates of the traces of blocks."""
    _, hessian_product = jax.linearize(_gradient(model, inputs, loss), chosen)

    def estimate(sample_key: Array) -> dict[str, Array]:
        """Return an estimate for each block, v^T H v. The entries of v are random signs."""
        parameter_keys = jax.random.split(sample_key, len(chosen))
        signs: dict[str, Array] = {}
        for (label, x), parameter_key in zip(chosen.items(), parameter_keys, strict=True):
            signs[label] = jax.random.rademacher(parameter_key, x.shape, x.dtype)
        products = hessian_product(signs)
        estimates: dict[str, Array] = {}
        for label, sign in signs.items():
            terms = sign * products[label]
            estimates[label] = jnp.sum(terms.astype(jnp.float32))
        return estimates

    return jax.lax.map(estimate, jax.random.split(key, samples))


@partial(jax.jit, static_argnames=("loss", "k", "steps"))
def _eigenvalues(
    model: Model,
    chosen: Mapping[str, Array],
    inputs: Sequence[Array],
    key: Array,
    *,
    loss: Loss,
    k: int,
    steps: int,
) -> HessianEigenvalues:
    """Return eigenvalues of the Hessian.

    The Hessian acts on flat vectors in 32 bits, with all chosen parameters in one vector.
    """
    _, hessian_product = jax.linearize(_gradient(model, inputs, loss), chosen)
    wide_params = {label: x.astype(jnp.float32) for label, x in chosen.items()}
    flat, unravel = ravel_pytree(wide_params)

    def vector_product(vector: Array) -> Array:
        tangents = {label: x.astype(chosen[label].dtype) for label, x in unravel(vector).items()}
        products = hessian_product(tangents)
        wide_products = {label: x.astype(jnp.float32) for label, x in products.items()}
        flat_products, _ = ravel_pytree(wide_products)
        return flat_products

    def block_product(block: Array) -> Array:
        # `eigenpairs` passes blocks of the shape (1, size, columns). The product is computed for
        # each column.
        product = jax.vmap(vector_product, in_axes=1, out_axes=1)(block[0])
        return product[None]

    count = min(k, flat.size)  # There are no more eigenvalues than entries of the parameters.
    pairs = eigenpairs(block_product, key, size=flat.size, k=count, steps=steps)
    vectors = jax.vmap(unravel, in_axes=1)(pairs.vectors)
    return HessianEigenvalues(values=pairs.values, residuals=pairs.residuals, vectors=vectors)


def _standard_error(samples: Array) -> Array:
    """Return the standard error of the mean of samples."""
    return jnp.std(samples, ddof=1) / np.sqrt(len(samples)).astype(np.float32)
