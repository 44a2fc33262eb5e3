"""The largest singular values of a Jacobian: how far a network stretches small changes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from numpy.typing import ArrayLike

from lowering.extents import show
from lowering.graph import is_float
from nnef_jax import Model
from nnef_jax.analysis.argument_checks import require_count, require_key, require_model
from nnef_jax.analysis.krylov import Map, singular_triplets
from nnef_jax.analysis.layer_tensors import on_one_device
from nnef_jax.analysis.question import Question, ask
from nnef_jax.calls.arguments import Input, Params
from nnef_jax.errors import InputError
from nnef_jax.options import require_flags
from nnef_jax.results import Axes, Result, Table, axes, literally, result, static, table_of

_MOST_IN_LEGEND = 10  # A picture of more than 10 items has no legend.
_LEAST_ROUNDING = 1e-4  # A difference below this share of the largest result counts as rounding.


@result
class JacobianSpectrum(Result):
    """The largest singular values of the Jacobian of an output by an input, for each item.

    Args:
        values: the k largest singular values [batch, k], the largest first; NaN for an item whose
            output is not finite.
        residuals: error bounds [batch, k]. An exact singular value is within residuals[b, i] of
            values[b, i].
        directions: the right singular vectors, [batch, k, ...]. Each of them is a change of the
            input whose norm is 1.
        input: the name of the input.
        output: the name of the output.
    """

    values: Array
    residuals: Array
    directions: Array
    input: str = static()
    output: str = static()

    @property
    def lipschitz(self) -> Array:
        """Return the largest singular value of each item, [batch].

        This is the local Lipschitz constant in the L2 norm, and a lower bound of the Lipschitz
        constant over any region around the item.
        """
        return self.values[..., 0]

    def table(self) -> Table:
        """Return a table with a line for each singular value of each item."""
        values = np.asarray(self.values)
        residuals = np.asarray(self.residuals)
        rows: list[tuple[Any, ...]] = []
        for index in np.ndindex(values.shape):
            rows.append((*index, values[index], residuals[index]))
        columns = ["item", "index", "singular value", "residual"]
        return table_of(f"Jacobian of '{self.output}' to '{self.input}'", columns, rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the singular values of each item over their index. Return the axes of matplotlib.

        The residuals are error bars.
        """
        ax = axes(ax, size=(6.4, 4))
        indices = np.arange(1, self.values.shape[-1] + 1)
        values = np.asarray(self.values)
        residuals = np.asarray(self.residuals)
        style: Any = {"marker": "o", "markersize": 3, "lw": 1.2}
        for item in range(len(values)):
            ax.errorbar(indices, values[item], yerr=residuals[item], label=item, **style)
        ax.set_xticks(indices)
        ax.set_xlabel("index")
        ax.set_ylabel("singular value")
        ax.set_title(literally(f"Jacobian of {self.output} to {self.input}"), fontsize=10)
        if len(self.values) <= _MOST_IN_LEGEND:
            ax.legend(title="item", frameon=False, fontsize=8, ncols=2)
        return ax


def jacobian_spectrum(
    model: Model,
    *inputs: Input,
    k: int = 4,
    wrt: str | None = None,
    output: str | None = None,
    params: Params | None = None,
    batched: bool = True,
    steps: int = 8,
    key: Array | None = None,
) -> JacobianSpectrum:
    """Return the largest singular values of the Jacobian of an output by an input, for each item.

    The Jacobian is never formed. Products of the Jacobian and of its transpose with vectors,
    computed by jvp and vjp, span Krylov spaces of k * steps vectors for each item (Musco and Musco
    2015, arXiv:1504.05477). If an item of the input or output has at most k * steps entries, the
    values are exact up to rounding.

    Args:
        inputs: the inputs of a call, in order, or one dict from names to inputs.
        k: the number of values; at most the number of entries of an item of the input or output.
        wrt: the name of the input, or of a tensor inside the network; by default the first
            floating-point input.
        output: the name of the output, or of a tensor inside the network; by default the first
            floating-point output.
        params: a dict from labels to arrays, used instead of `model.params`.
        batched: whether the first axis of input and output is the batch, whose items do not depend
            on one another. If False, the complete input is one item.
        steps: the number of blocks; more blocks make residuals smaller.
        key: a key of `jax.random`, for the start; the default is a fixed key.

    Raises InputError for unknown names, for tensors that are not floating-point, for batches of
    different sizes, and for items that depend on one another. In a traced function the values are
    NaN in the last case.

    >>> spectrum = nnef_jax.analysis.jacobian_spectrum(logits, images, k=2)
    >>> spectrum.lipschitz, spectrum.residuals
    """
    require_model(model)
    k = require_count("k", k)
    steps = require_count("steps", steps)
    require_flags(batched=batched)
    if key is None:
        key = jax.random.key(0)
    require_key(key)
    model, values = on_one_device(model, inputs, params)
    if output is None:
        output = _first_real_output(model)
    question = ask("", model, values, {"target": _whole_output, "output": output, "wrt": wrt})
    question.require_derivative()
    spectrum = _spectrum(question, key, k=k, steps=steps, batched=batched)
    if not isinstance(spectrum.mixed, Tracer) and spectrum.mixed:
        message = f"items of '{output}' depend on other items of '{question.wrt}'"
        raise InputError(message, hint="batched=False makes the complete input one item")
    return JacobianSpectrum(
        values=spectrum.values,
        residuals=spectrum.residuals,
        directions=spectrum.directions,
        input=question.wrt,
        output=output,
    )


def _first_real_output(model: Model) -> str:
    """Return the name of the first floating-point output. Raises InputError if there is none."""
    for name, value in zip(model.graph.output_names, model.graph.outputs, strict=True):
        if is_float(value.type.dtype):
            return name
    raise InputError("no output is of real numbers, none has a Jacobian")


def _whole_output(outputs: ArrayLike) -> ArrayLike:
    """Return the outputs unchanged.

    A question needs classes or a function of the outputs. This function is used instead of classes.
    """
    return outputs


class _Spectrum(NamedTuple):
    """The arrays of a `JacobianSpectrum`, and whether items of the batch depend on one another."""

    values: Array
    directions: Array
    residuals: Array
    mixed: Array


@partial(jax.jit, static_argnames=("k", "steps", "batched"))
def _spectrum(question: Question, key: Array, *, k: int, steps: int, batched: bool) -> _Spectrum:
    """Return the singular values of the Jacobian of each item.

    The Jacobian of an item has a column for each entry of the input's item, and a row for each
    entry of the output's item. It is not stored: two functions multiply blocks of vectors by the
    Jacobian and by its transpose.
    """

    def output_at(x: Array) -> Array:
        outputs, _captured = question.run(x)
        return outputs

    x = question.value()
    y, jacobian_product = jax.linearize(output_at, x)
    _, pull_back = jax.vjp(output_at, x)
    if not jnp.issubdtype(y.dtype, jnp.floating):
        raise InputError(f"output '{question.output}' is of {y.dtype}, which has no derivative")
    batch = _checked_batch(question, x, y, batched=batched)
    columns = x.size // batch
    rows = y.size // batch

    def transpose_product(tensor: Array) -> Array:
        (result,) = pull_back(tensor)
        return result

    forward = _by_column(jacobian_product, x, batch)
    adjoint = _by_column(transpose_product, y, batch)
    k = min(k, rows, columns)
    triplets = singular_triplets(
        forward, adjoint, key, batch=batch, sizes=(rows, columns), k=k, steps=steps
    )
    item_shape = x.shape[1:] if batched else x.shape
    rounding = max(_LEAST_ROUNDING, 8 * float(jnp.finfo(y.dtype).eps))
    random_vectors = jax.random.normal(key, (batch, columns, 1))
    mixed = _has_mixed_items(forward, random_vectors, rounding)
    right_vectors = jnp.moveaxis(triplets.right_vectors, 2, 1)  # [batch, k, columns]
    directions = right_vectors.reshape(batch, k, *item_shape)
    # If an output is NaN, its derivative may be finite, for example behind a ReLU. The outputs
    # are therefore checked too.
    is_finite = jnp.isfinite(y.reshape(batch, -1))
    is_valid = jnp.all(is_finite, axis=1, keepdims=True) & ~mixed
    values = jnp.where(is_valid, triplets.values, jnp.nan)
    return _Spectrum(values, directions, triplets.residuals, mixed)


def _checked_batch(question: Question, x: Array, y: Array, *, batched: bool) -> int:
    """Return the number of items of the input `x` and the output `y`.

    If not `batched`, each tensor is a single item. Raises InputError if a tensor is empty, or if
    the tensors have different numbers of items.
    """
    batch = len(x) if batched else 1
    is_empty = 0 in (x.size, y.size)
    is_other_batch = batched and (y.ndim == 0 or len(y) != batch)
    if is_empty or is_other_batch:
        message = f"'{question.wrt}' is {show(x.shape)}, '{question.output}' is {show(y.shape)}"
        hint = "both need the same batch of one item or more; or give batched=False"
        raise InputError(message, hint=hint)
    return batch


def _by_column(product: Callable[[Array], Array], like: Array, batch: int) -> Map:
    """Return a function that applies `product` to each column of a block [batch, size, columns].

    `product` is a linear map of tensors. It takes a tensor with the shape and dtype of `like`.
    """

    def block_product(block: Array) -> Array:
        block_columns = jnp.moveaxis(block, 2, 0)  # [columns, batch, size]
        tensors = block_columns.reshape(-1, *like.shape).astype(like.dtype)
        results = jax.vmap(product)(tensors)
        result_columns = results.reshape(len(results), batch, -1)  # [columns, batch, result size]
        return jnp.moveaxis(result_columns, 0, 2).astype(jnp.float32)

    return block_product


def _has_mixed_items(product: Map, vectors: Array, rounding: float) -> Array:
    """Tell whether an item of a linear map's result depends on another item of the vectors.

    If items are independent, a changed sign of item j only changes the sign of item j of the
    result. The test uses one column of signs for each bit of an item's number: column i changes the
    signs of the items whose number has bit i set. Any two items therefore differ in at least one
    column. For 3 items, the columns of signs are (1, -1, 1) and (1, 1, -1).

    Args:
        product: the map of blocks [batch, size, columns].
        vectors: random vectors, [batch, size, 1].
        rounding: the relative tolerance.
    """
    batch = len(vectors)
    bit_count = max(1, (batch - 1).bit_length())
    items = np.arange(batch)[:, None]
    bits = (items >> np.arange(bit_count)[None]) & 1  # [batch, bit]
    # A bit of 0 becomes the sign 1, and a bit of 1 becomes the sign -1.
    signs = jnp.asarray(1 - 2 * bits, jnp.float32)[:, None]  # [batch, 1, bit]
    results = product(vectors)
    results_of_signed = product(vectors * signs)
    differences = jnp.abs(results_of_signed - results * signs)
    tolerance = rounding * jnp.max(jnp.abs(results))
    return jnp.any(differences > tolerance)
