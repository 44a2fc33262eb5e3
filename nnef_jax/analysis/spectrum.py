"""How much a network stretches small changes of an input: singular values of its Jacobian."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lowering.graph import is_float
from nnef_jax import Model
from nnef_jax.analysis.krylov import singular_triplets
from nnef_jax.analysis.layers import bound, require_model
from nnef_jax.analysis.results import Result, axes, result, static, table_of
from nnef_jax.errors import InputError
from nnef_jax.limits import Meter
from nnef_jax.options import require
from nnef_jax.similar import did_you_mean, listed

if TYPE_CHECKING:
    from rich.table import Table


@result
class JacobianSpectrum(Result):
    """The largest singular values of the Jacobian of an output to an input, for each item.

    Args:
        values: [batch, k], the largest first.
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
        """Return a table with a line for each value of each item."""
        values, residuals = np.asarray(self.values), np.asarray(self.residuals)
        rows = [(*place, values[place], residuals[place]) for place in np.ndindex(values.shape)]
        columns = ["item", "index", "singular value", "residual"]
        return table_of(f"Jacobian of '{self.output}' to '{self.input}'", columns, rows)

    def plot(self, ax: Any = None) -> Any:
        """Draw the values of each item over their index, bars being residuals; return the axes."""
        ax = axes(ax)
        places = np.arange(1, self.values.shape[-1] + 1)
        for item, (values, residuals) in enumerate(
            zip(np.asarray(self.values), np.asarray(self.residuals), strict=True)
        ):
            ax.errorbar(places, values, residuals, marker="o", markersize=3, lw=1.2, label=item)
        ax.set_xticks(places)
        ax.set_xlabel("index")
        ax.set_ylabel("singular value")
        ax.set_title(f"Jacobian of {self.output} to {self.input}", fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
        if len(self.values) <= 10:
            ax.legend(title="item", frameon=False, fontsize=8, ncols=2)
        return ax


def jacobian_spectrum(
    model: Model,
    *inputs: Any,
    k: int = 4,
    wrt: str | None = None,
    output: str | None = None,
    params: Mapping[str, Any] | None = None,
    steps: int = 8,
    key: Array | None = None,
) -> JacobianSpectrum:
    """Return the largest singular values of the Jacobian of an output to an input, for each item.

    The Jacobian is never made: products with it and its transpose, by jvp and vjp, span block
    Krylov spaces of k * steps vectors for each item (Musco and Musco 2015, arXiv:1504.05477). An
    input or output of no more items than that is covered whole: values are then as exact as the
    arithmetic. Items, along the first axes, must not depend on one another.

    Args:
        inputs: of a call, in order, or one dict by name.
        k: how many; as many as there are, if they are fewer.
        wrt: the name of the input; by default the first of real numbers.
        output: the name of the output; by default the first of real numbers.
        params: instead of `model.params`.
        steps: more make residuals smaller.
        key: of `jax.random`, for the start; by default always the same.

    Raises InputError for names that there are not, what is not of real numbers, and where input and
    output have not one axis of items.

    >>> found = nnef_jax.analysis.jacobian_spectrum(logits, images, k=2)
    >>> found.lipschitz, found.residuals
    """
    require_model(model)
    for name, value in (("k", k), ("steps", steps)):
        require(name, value, int, "an integer")
        if value < 1:
            raise ValueError(f"{name} must be at least 1, it is {value}")
    values = bound(model, inputs)
    source = _place("input", wrt, [(x.name, x.type.dtype) for x in model.graph.inputs])
    names = zip(model.graph.output_names, model.graph.outputs, strict=True)
    target = _place("output", output, [(name, x.type.dtype) for name, x in names])
    key = jax.random.key(0) if key is None else key
    singular, directions, residuals = _spectrum(
        model, params, values, key, source=source, target=target, k=k, steps=steps
    )
    return JacobianSpectrum(
        values=singular,
        residuals=residuals,
        directions=directions,
        input=model.inputs[source].name,
        output=model.outputs[target].name,
    )


@partial(jax.jit, static_argnames=("source", "target", "k", "steps"))
def _spectrum(
    model: Model,
    params: Any,
    inputs: list[Any],
    key: Array,
    *,
    source: int,
    target: int,
    k: int,
    steps: int,
) -> tuple[Array, Array, Array]:
    params = model.params if params is None else params

    def run(x: Array) -> Array:
        returned = model.apply(params, *inputs[:source], x, *inputs[source + 1 :])
        return returned[target] if len(model.outputs) > 1 else returned

    x = inputs[source]
    y, push = jax.linearize(run, x)
    _, pull = jax.vjp(run, x)
    if not x.ndim or not y.ndim or len(x) != len(y) or 0 in (x.size, y.size):
        message = f"the input is of shape {x.shape}, the output of {y.shape}: they have no items"
        raise InputError(message, hint="the first axes of both must be those of the items")
    batch, columns, rows = len(x), math.prod(x.shape[1:]), math.prod(y.shape[1:])

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
    return values, jnp.moveaxis(vectors, 2, 1).reshape(batch, k, *x.shape[1:]), residuals


def _place(what: str, wanted: str | None, known: list[tuple[str, str]]) -> int:
    """Return which input or output has a name, or is the first of real numbers."""
    names = [name for name, _ in known]
    real = [name for name, dtype in known if is_float(dtype)]
    if wanted is None:
        if not real:
            raise InputError(f"no {what} is of real numbers: it has no Jacobian")
        return names.index(real[0])
    if wanted not in names:
        hint = did_you_mean(str(wanted), names, meter=Meter())
        raise InputError(f"the graph has no {what} '{wanted}', there is {listed(names)}", hint=hint)
    if wanted not in real:
        raise InputError(f"{what} '{wanted}' is not of real numbers: it has no Jacobian")
    return names.index(wanted)
