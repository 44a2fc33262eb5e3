"""How much a network stretches small changes of an input: singular values of its Jacobian."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from lowering.extents import show
from lowering.graph import is_float
from nnef_jax import Model
from nnef_jax.analysis.krylov import singular_triplets
from nnef_jax.analysis.layer_tensors import on_one_device
from nnef_jax.analysis.question import Question, ask, require_count, require_key, require_model
from nnef_jax.calls.arguments import Input, Params
from nnef_jax.errors import InputError
from nnef_jax.options import require_flags
from nnef_jax.results import Axes, Result, Table, axes, literally, result, static, table_of


@result
class JacobianSpectrum(Result):
    """The largest singular values of the Jacobian of an output to an input, for each item.

    Args:
        values: [batch, k], the largest first; NaN where the output is not finite.
        residuals: [batch, k]; some singular value is as near to each of `values` as that.
        directions: [batch, k, ...], changes of the input, of norm 1, that are stretched so much.
        input, output: names.
    """

    values: Array
    residuals: Array
    directions: Array
    input: str = static()
    output: str = static()

    @property
    def lipschitz(self) -> Array:
        """Return the largest value of each item: the local Lipschitz constant in the L2 norm.

        That of the network over a region is as large as the largest in it, or larger.
        """
        return self.values[..., 0]

    def table(self) -> Table:
        """Return a table of singular values: a line for each value of an item."""
        values, residuals = np.asarray(self.values), np.asarray(self.residuals)
        rows = [(*place, values[place], residuals[place]) for place in np.ndindex(values.shape)]
        columns = ["item", "index", "singular value", "residual"]
        return table_of(f"Jacobian of '{self.output}' to '{self.input}'", columns, rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the values of each item over their index, bars being residuals; return the axes."""
        ax = axes(ax, (6.4, 4))
        places = np.arange(1, self.values.shape[-1] + 1)
        for item, (values, residuals) in enumerate(
            zip(np.asarray(self.values), np.asarray(self.residuals), strict=True)
        ):
            ax.errorbar(places, values, residuals, marker="o", markersize=3, lw=1.2, label=item)
        ax.set_xticks(places)
        ax.set_xlabel("index")
        ax.set_ylabel("singular value")
        ax.set_title(literally(f"Jacobian of {self.output} to {self.input}"), fontsize=10)
        if len(self.values) <= 10:
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
    """Return the largest singular values of the Jacobian of an output to an input, for each item.

    The Jacobian is never made: products with it and its transpose, by jvp and vjp, span block
    Krylov spaces of k * steps vectors for each item (Musco and Musco 2015, arXiv:1504.05477). An
    input or output of no more items than that is covered whole: values are then as exact as the
    arithmetic.

    Args:
        inputs: of a call, in order, or one dict by name.
        k: how many; as many as there are, if they are fewer.
        wrt: the name of the input, or of a tensor inside; by default the first real input.
        output: the name of the output, or of a tensor inside; by default the first real output.
        params: instead of `model.params`.
        batched: whether first axes are those of items, none of which depends on another; otherwise
            all of the input is one item.
        steps: more make residuals smaller.
        key: of `jax.random`, for the start; by default always the same.

    Raises InputError for names that there are not, what is not of real numbers, and where both have
    not as many items, or these depend on one another (in a traced function values are NaN then).

    >>> found = nnef_jax.analysis.jacobian_spectrum(logits, images, k=2)
    >>> found.lipschitz, found.residuals
    """
    require_model(model)
    k, steps = require_count("k", k), require_count("steps", steps)
    require_flags(batched=batched)
    if key is not None:
        require_key(key)
    model, values = on_one_device(model, inputs, params)
    if output is None:
        names = zip(model.graph.output_names, model.graph.outputs, strict=True)
        real = [name for name, value in names if is_float(value.type.dtype)]
        if not real:
            raise InputError("no output is of real numbers: none has a Jacobian")
        output = real[0]
    question = ask("", model, values, {"target": _all, "output": output, "wrt": wrt})
    question.require_derivative()
    key = jax.random.key(0) if key is None else key
    singular, directions, residuals, mixed = _spectrum(
        question, key, k=k, steps=steps, batched=batched
    )
    if not isinstance(mixed, Tracer) and mixed:
        message = f"items of '{output}' depend on other items of '{question.wrt}'"
        raise InputError(message, hint="batched=False takes all of the input as one item")
    return JacobianSpectrum(
        values=singular,
        residuals=residuals,
        directions=directions,
        input=question.wrt,
        output=output,
    )


def _all(outputs: Any) -> Any:
    """Stand for a score: it is the output that is asked about."""
    return outputs


@partial(jax.jit, static_argnames=("k", "steps", "batched"))
def _spectrum(
    question: Question, key: Array, *, k: int, steps: int, batched: bool
) -> tuple[Array, Array, Array, Array]:
    def run(x: Array) -> Array:
        return question.run(x)[0]

    x = question.value()
    y, push = jax.linearize(run, x)
    _, pull = jax.vjp(run, x)
    if not jnp.issubdtype(y.dtype, jnp.floating):
        raise InputError(f"output '{question.output}' is of {y.dtype}, which has no derivative")
    batch = len(x) if batched else 1
    if 0 in (x.size, y.size) or (batched and (not y.ndim or len(y) != batch)):
        message = f"'{question.wrt}' is {show(x.shape)}, '{question.output}' is {show(y.shape)}"
        hint = "the first axes are those of items, of which there is one or more; or batched=False"
        raise InputError(message, hint=hint)
    columns, rows = x.size // batch, y.size // batch

    def by_column(product: Any, like: Array) -> Any:
        def mapped(vectors: Array) -> Array:  # [batch, size, columns]
            several = jnp.moveaxis(vectors, 2, 0).reshape(-1, *like.shape).astype(like.dtype)
            found = jax.vmap(product)(several)
            return jnp.moveaxis(found.reshape(len(found), batch, -1), 0, 2).astype(jnp.float32)

        return mapped

    forward, adjoint = by_column(push, x), by_column(lambda v: pull(v)[0], y)
    k = min(k, rows, columns)
    sizes = rows, columns
    values, vectors, residuals = singular_triplets(forward, adjoint, key, batch, sizes, k, steps)
    shape = x.shape[1:] if batched else x.shape
    rounding = max(1e-4, 8 * float(jnp.finfo(y.dtype).eps))
    mixed = _mixes(forward, jax.random.normal(key, (batch, columns, 1)), rounding)
    directions = jnp.moveaxis(vectors, 2, 1).reshape(batch, k, *shape)
    # Derivatives of a ReLU hide NaNs.
    known = jnp.all(jnp.isfinite(y.reshape(batch, -1)), axis=1, keepdims=True) & ~mixed
    return jnp.where(known, values, jnp.nan), directions, residuals, mixed


def _mixes(product: Any, vectors: Array, rounding: float) -> Array:
    """Tell whether a linear map of vectors, [batch, size, 1], makes an item of several.

    Where signs of items turn those of its results turn likewise. Any two items differ in some bit
    of their numbers.
    """
    batch = len(vectors)
    numbers = np.arange(batch)[:, None]
    bits = (numbers >> np.arange(max(1, (batch - 1).bit_length()))[None]) & 1
    signs = jnp.asarray(1 - 2 * bits, jnp.float32)[:, None]
    plain, turned = product(vectors), product(vectors * signs)
    return jnp.any(jnp.abs(turned - plain * signs) > rounding * jnp.max(jnp.abs(plain)))
