"""How much a loss depends on each layer: on its values, its parameters, and on rounding either."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lowering import Context
from lowering.ops import rules
from nnef_jax import Model
from nnef_jax.analysis.layer_tensors import (
    LayerTensor,
    Loss,
    layers_of,
    loss_of,
    on_one_device,
    real_layers,
    require_callable,
    require_gradients,
    scalar,
    zeros_at,
)
from nnef_jax.analysis.question import require_model
from nnef_jax.calls.arguments import Input, Params
from nnef_jax.errors import InputError
from nnef_jax.options import names_of, require, require_flags
from nnef_jax.results import Axes, Result, Table, axes, literally, result, static, table_of
from nnef_jax.workings import graph_for

_COLOURS = ("#1f4e79", "#c0392b", "#2e8b57", "#d98c00", "#7d5ba6")


@result
class Sensitivity(Result):
    """How much a loss depends on each layer of a network: see `sensitivity`.

    Args:
        loss: at the inputs.
        scores: by what is asked, [layers]: NaN where a layer has no such parameters.
        increases: by what is rounded, [layers]: how much the loss grows; NaN as above.
        names: of the layers, in the order in which they are computed.
        kinds: of their operations.
    """

    loss: Array
    scores: Mapping[str, Array]
    increases: Mapping[str, Array]
    names: tuple[str, ...] = static()
    kinds: tuple[str, ...] = static()

    def table(self, *, sort: str | None = None) -> Table:
        """Return a table with a line for each layer, or those of the largest figures first.

        Args:
            sort: the column to sort by, a key of `scores` or `increases`: by magnitude.

        Raises ValueError for a column that there is not.
        """
        columns = {n: np.asarray(x) for n, x in (*self.scores.items(), *self.increases.items())}
        order = np.arange(len(self.names))
        if sort is not None:
            if sort not in columns:
                raise ValueError(f"sort must be one of {', '.join(columns)}, it is {sort!r}")
            order = np.argsort(-np.nan_to_num(np.abs(columns[sort]), nan=-1), kind="stable")
        rows = [
            [
                self.names[i],
                self.kinds[i],
                *(None if np.isnan(x[i]) else x[i] for x in columns.values()),
            ]
            for i in order
        ]
        title = f"loss {float(self.loss):.5g}: gradients, and its increase where values are rounded"
        return table_of(title, ["layer", "operation", *columns], rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw by how much rounding each layer raises the loss; return the axes."""
        ax = axes(ax, (7.5, max(2.5, 0.25 * len(self.names))))
        arrays = {name: np.asarray(x, np.float64) for name, x in self.increases.items()}
        sizes = np.abs(np.concatenate([[0.0], *arrays.values()]))
        largest = np.max(sizes[np.isfinite(sizes)])
        places = np.arange(len(self.names))
        for (name, x), colour in zip(arrays.items(), _COLOURS * len(arrays), strict=False):
            ax.plot(x, places, "o", color=colour, markersize=5, alpha=0.8, label=name)
        ax.set_xscale("symlog", linthresh=largest / 1000 or 1.0)
        ax.axvline(0, color="#999999", lw=0.6, zorder=0)
        ax.hlines(places, *ax.get_xlim(), color="#e6e9ee", lw=1, zorder=-1)
        ax.set_yticks(places, map(literally, self.names), fontsize=8)
        ax.invert_yaxis()
        ax.set_xlabel(f"increase of the loss, which is {float(self.loss):.4g}")
        ax.spines["left"].set_visible(False)
        beside: Any = {"loc": "upper left", "bbox_to_anchor": (1, 1), "title": "rounded"}
        if arrays:
            ax.legend(frameon=False, fontsize=8, title_fontsize=8, alignment="left", **beside)
        return ax


def sensitivity(
    model: Model,
    *inputs: Input,
    loss: Loss,
    bits: int | None = 8,
    dtypes: Sequence[str] = ("bfloat16", "float16"),
    per_channel: bool = False,
    names: Sequence[str] | None = None,
    params: Params | None = None,
) -> Sensitivity:
    """Return how much a loss depends on each layer: on its values, parameters, and their precision.

    Scores, from one backward pass: "gradient" and "gradient x value" are norms of the gradient at
    what the layer computes, and of its product with that; "parameter gradient" and "parameter x
    gradient" are those of its parameters, the latter being the first-order estimate of what it is
    worth (Molchanov et al. 2019, arXiv:1906.10771, before squares).

    Increases of the loss, one more run each, all in one compiled function: where the weights of
    this layer alone are rounded to 2^bits even levels between their extremes, biases left out; or
    what it computes; or where that is rounded to a dtype.

    Args:
        inputs: of a call, in order, or one dict by name.
        loss: a function of what the network returns to a real number. It is traced once for each
            object, as in `jax.jit`.
        bits: 2 to 16; None leaves rounding to levels out.
        dtypes: of real numbers, by name; () leaves them out.
        per_channel: weights have a range for each extent of axis 0, instead of one.
        names: names or patterns of the layers' tensors; by default all of real numbers.
        params: instead of `model.params`.

    Raises InputError for names that there are not, a network without real numbers, and tensors
    without items; TypeError or ValueError for wrong options and a loss that is no real number.

    >>> found = nnef_jax.analysis.sensitivity(logits, images, loss=cross_entropy, bits=4)
    >>> rich.print(found.table(sort="weights 4 bits"))
    """
    require_model(model)
    require_callable("loss", loss, "a function of the outputs")
    require_flags(per_channel=per_channel)
    if bits is not None:
        require("bits", bits, int, "an integer, or None")
        if not 2 <= bits <= 16:
            raise ValueError(f"bits must be at least 2 and at most 16, it is {bits}")
    dtypes = names_of("dtypes", dtypes, "names of dtypes")
    for dtype in dtypes:
        try:
            jnp.finfo(dtype)
        except (TypeError, ValueError):
            raise ValueError(f"dtypes must be of real numbers, '{dtype}' is not") from None
    model, values = on_one_device(model, inputs, params)
    graph = graph_for(model, values)
    layers = real_layers(layers_of(graph, names))
    for name, layer in layers.items():
        if 0 in layer.value.type.shape:
            raise InputError(f"'{name}' is empty: it is {layer.value.type}")
    labels = {label for layer in layers.values() for label in layer.params}
    require_gradients(model, graph, layers, labels)
    found = _sensitivity(
        model,
        values,
        names=tuple(layers),
        loss=loss,
        bits=bits,
        dtypes=dtypes,
        per_channel=per_channel,
    )
    kinds = tuple(layer.kind for layer in layers.values())
    return Sensitivity(
        loss=found[0], scores=found[1], increases=found[2], names=tuple(layers), kinds=kinds
    )


@partial(jax.jit, static_argnames=("names", "loss", "bits", "dtypes", "per_channel"))
def _sensitivity(
    model: Model,
    inputs: list[Any],
    *,
    names: tuple[str, ...],
    loss: Loss,
    bits: int | None,
    dtypes: tuple[str, ...],
    per_channel: bool,
) -> tuple[Array, dict[str, Array], dict[str, Array]]:
    params = model.params
    known = layers_of(graph_for(model, inputs))
    layers = {name: known[name] for name in names}
    scores = _scores(model, inputs, layers, loss)
    roundings: dict[str, Callable[[Any], Any]] = {}
    if bits is not None:
        roundings[f"values {bits} bits"] = partial(_to_levels, bits=bits, per_channel=False)
    roundings |= {dtype: partial(_to_dtype, dtype=dtype) for dtype in dtypes}
    count = len(names)
    weights = [_weights(layer, params) for layer in layers.values()]

    # Run i * count + j rounds what layer j computes in way i; those of weights come last.
    def rounded(run: Array) -> Array:
        def edit(j: int, x: Array) -> Array:
            way = jnp.where(run % count == j, run // count, len(roundings))
            ways = [*roundings.values(), lambda x: x]
            return jax.lax.switch(jnp.clip(way, 0, len(roundings)), ways, x)

        changed = dict(params)
        if bits is not None:
            rounding = partial(_to_levels, bits=bits, per_channel=per_channel)
            for label in {label for row in weights for label in row}:
                readers = [j for j, row in enumerate(weights) if label in row]
                is_read = jnp.any(run == len(roundings) * count + jnp.array(readers))
                changed[label] = jax.lax.cond(is_read, rounding, lambda x: x, params[label])
        edits = {name: partial(edit, j) for j, name in enumerate(names)}
        return scalar(loss(model.apply(changed, *inputs, edit=edits if roundings else None)))

    never = (len(roundings) + 1) * count
    kinds = [*roundings, f"weights {bits} bits"] if bits is not None else list(roundings)
    # What nothing is rounded in is a run of the same program: differences are of rounding alone.
    losses = jax.lax.map(rounded, jnp.array([*range(len(kinds) * count), never]))
    increases = {
        kind: losses[i * count : (i + 1) * count] - losses[-1] for i, kind in enumerate(kinds)
    }
    if bits is not None:
        kind = f"weights {bits} bits"
        has = jnp.array([bool(row) for row in weights])
        increases = {kind: jnp.where(has, increases.pop(kind), jnp.nan), **increases}
    return losses[-1], scores, increases


def _weights(layer: LayerTensor, params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the labels of the weights of real numbers, which are more than a scalar."""
    real = jnp.floating
    return tuple(
        x for x in layer.weights if jnp.issubdtype(params[x].dtype, real) and params[x].ndim > 1
    )


def _scores(
    model: Model,
    inputs: list[Any],
    layers: Mapping[str, LayerTensor],
    loss: Loss,
) -> dict[str, Array]:
    """Return norms of gradients, and of the products of each with its own tensor."""
    params = model.params
    real = {x: p for x, p in params.items() if jnp.issubdtype(p.dtype, jnp.floating)}

    def value(added: Any, real: Any) -> Any:
        return loss_of(model, {**params, **real}, inputs, loss, added)

    added = zeros_at(model, inputs, list(layers))
    (at, of), inside = jax.grad(value, (0, 1), has_aux=True)(added, real)

    def norm(arrays: Sequence[Any]) -> Array:
        squares = [jnp.sum(jnp.square(x.astype(jnp.float32))) for x in arrays]
        return jnp.sqrt(sum(squares, jnp.zeros(()))) if squares else jnp.full((), jnp.nan)

    labels = [[x for x in layer.params if x in real] for layer in layers.values()]
    return {
        "gradient": jnp.stack([norm([at[name]]) for name in layers]),
        "gradient x value": jnp.stack([norm([at[name] * inside[name]]) for name in layers]),
        "parameter gradient": jnp.stack([norm([of[x] for x in row]) for row in labels]),
        "parameter x gradient": jnp.stack([norm([of[x] * real[x] for x in row]) for row in labels]),
    }


def _to_levels(x: Array, *, bits: int, per_channel: bool) -> Array:
    """Round to even levels between the extremes of a tensor, or of each extent of axis 0."""
    spanned = tuple(range(int(per_channel), x.ndim))
    low, high = (f(x, axis=spanned, keepdims=True) for f in (jnp.min, jnp.max))
    rule = rules["min_max_linear_quantize"].lower
    return rule(Context(), x, low, high, bits, signed=False, symmetric=False)


def _to_dtype(x: Array, *, dtype: str) -> Array:
    # A compiler may leave out what goes to a dtype and back: the barrier keeps it.
    return jax.lax.optimization_barrier(x.astype(dtype)).astype(x.dtype)
