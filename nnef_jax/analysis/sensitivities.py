"""Sensitivity of a loss to each layer: gradients, and the loss's rise after rounding the layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, cycle
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lowering import Context
from lowering.ops import rules
from nnef_jax import Model
from nnef_jax.analysis.argument_checks import require_model
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
from nnef_jax.calls.arguments import Input, Params
from nnef_jax.errors import InputError
from nnef_jax.options import names_of, require, require_flags
from nnef_jax.results import Axes, Result, Table, axes, literally, result, static, table_of
from nnef_jax.workings import graph_for

_COLOURS = ("#1f4e79", "#c0392b", "#2e8b57", "#d98c00", "#7d5ba6")


@result
class Sensitivity(Result):
    """The sensitivity of a loss to each layer of a network, as `sensitivity` computes it.

    Args:
        loss: the loss at the inputs.
        scores: norms of gradients, an array [layers] for each kind of score. A number is NaN if the
            layer lacks the parameters that the kind needs.
        increases: increases of the loss, an array [layers] for each kind of rounding. The rounding
            of weights has NaN for a layer without weights.
        names: the names of the layers' tensors, in the order of computation.
        kinds: the kinds of the layers' operations.
    """

    loss: Array
    scores: Mapping[str, Array]
    increases: Mapping[str, Array]
    names: tuple[str, ...] = static()
    kinds: tuple[str, ...] = static()

    def table(self, *, sort: str | None = None) -> Table:
        """Return a table with a line for each layer.

        Args:
            sort: a key of `scores` or `increases`. The lines are sorted by the figures of this key,
                with the largest magnitude first. By default the lines are in the order of
                computation.

        Raises ValueError for an unknown key.
        """
        figures_by_name = {**self.scores, **self.increases}
        columns = {name: np.asarray(figures) for name, figures in figures_by_name.items()}
        layer_indices = np.arange(len(self.names))
        if sort is not None:
            if sort not in columns:
                raise ValueError(f"sort must be one of {', '.join(columns)}, it is {sort!r}")
            # Layers with NaN come last, because -1 is below all magnitudes.
            magnitudes = np.nan_to_num(np.abs(columns[sort]), nan=-1)
            layer_indices = np.argsort(-magnitudes, kind="stable")
        rows: list[list[Any]] = []
        for layer in layer_indices:
            cells: list[Any] = [self.names[layer], self.kinds[layer]]
            for figures in columns.values():
                figure = figures[layer]
                cells.append(None if np.isnan(figure) else figure)
            rows.append(cells)
        title = f"loss {float(self.loss):.5g}: gradients, and its increase where values are rounded"
        return table_of(title, ["layer", "operation", *columns], rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the increase of the loss for each layer and kind of rounding. Return the axes."""
        figure_height = max(2.5, 0.25 * len(self.names))
        ax = axes(ax, size=(7.5, figure_height))
        arrays = {kind: np.asarray(x, np.float64) for kind, x in self.increases.items()}
        magnitudes = np.abs(np.concatenate([[0.0], *arrays.values()]))
        largest = np.max(magnitudes[np.isfinite(magnitudes)])
        heights = np.arange(len(self.names))
        colours = cycle(_COLOURS)
        for kind, x in arrays.items():
            colour = next(colours)
            ax.plot(x, heights, "o", color=colour, markersize=5, alpha=0.8, label=kind)
        # The scale is linear below a thousandth of the largest increase, and logarithmic above it.
        # If all increases are 0, the scale is linear below 1.
        ax.set_xscale("symlog", linthresh=largest / 1000 or 1.0)
        ax.axvline(0, color="#999999", lw=0.6, zorder=0)
        ax.hlines(heights, *ax.get_xlim(), color="#e6e9ee", lw=1, zorder=-1)
        ax.set_yticks(heights, map(literally, self.names), fontsize=8)
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
    """Return the sensitivity of a loss to each layer: to its values, parameters and precision.

    The scores come from one backward pass. "gradient" is the norm of the gradient at the layer's
    tensor. "gradient x value" is the norm of the elementwise product of gradient and tensor.
    "parameter gradient" and "parameter x gradient" are these two norms for the layer's parameters.
    "parameter x gradient" is a first-order estimate of the importance of the parameters (Molchanov
    et al. 2019, arXiv:1906.10771, without squares).

    Each increase of the loss takes a run, and all runs are in one compiled function. Each run
    rounds one layer in one way. "weights 8 bits" rounds the weights of the layer, without biases,
    to 2^bits evenly spaced levels between their extremes. "values 8 bits" rounds the tensor of the
    layer to such levels. "float16" rounds the tensor of the layer to this dtype.

    Args:
        inputs: the inputs of a call, in order, or one dict from names to inputs.
        loss: a function from the outputs to a floating-point number. Each function object is traced
            once, as in `jax.jit`.
        bits: the number of bits of the levels, 2 to 16. None leaves out rounding to levels.
        dtypes: names of floating-point dtypes. () leaves out rounding to dtypes.
        per_channel: whether each index of axis 0 of the weights has a separate range of levels.
        names: names or patterns of the layers' tensors; by default all floating-point tensors.
        params: a dict from labels to arrays, used instead of `model.params`.

    Raises InputError for unknown names, for a network without floating-point tensors, for empty
    tensors, and if rounding makes a gradient 0. Raises TypeError or ValueError for wrong options,
    and for a loss that is not a floating-point number.

    >>> result = nnef_jax.analysis.sensitivity(logits, images, loss=cross_entropy, bits=4)
    >>> rich.print(result.table(sort="weights 4 bits"))
    """
    require_model(model)
    require_callable("loss", loss, "a function of the outputs")
    require_flags(per_channel=per_channel)
    _require_bits(bits)
    dtypes = names_of("dtypes", dtypes, "names of dtypes")
    _require_float_dtypes(dtypes)
    model, values = on_one_device(model, inputs, params)
    graph = graph_for(model, values)
    layers = real_layers(layers_of(graph, names))
    for name, layer in layers.items():
        if 0 in layer.value.type.shape:
            raise InputError(f"'{name}' is empty: it is {layer.value.type}")
    labels: set[str] = set()
    for layer in layers.values():
        labels.update(layer.params)
    require_gradients(model, graph, layers, labels)
    measured = _sensitivity(
        model,
        values,
        names=tuple(layers),
        loss=loss,
        bits=bits,
        dtypes=dtypes,
        per_channel=per_channel,
    )
    return Sensitivity(
        loss=measured.loss,
        scores=measured.scores,
        increases=measured.increases,
        names=tuple(layers),
        kinds=tuple(layer.kind for layer in layers.values()),
    )


def _require_bits(bits: int | None) -> None:
    """Raise TypeError or ValueError unless `bits` is None, or an integer from 2 to 16."""
    if bits is None:
        return
    require("bits", bits, int, "an integer, or None")
    if not 2 <= bits <= 16:
        raise ValueError(f"bits must be at least 2 and at most 16, it is {bits}")


def _require_float_dtypes(dtypes: Sequence[str]) -> None:
    """Raise ValueError unless all names are of floating-point dtypes."""
    for dtype in dtypes:
        try:
            jnp.finfo(dtype)
        except (TypeError, ValueError):
            raise ValueError(f"dtypes must be of real numbers, '{dtype}' is not") from None


class _Measured(NamedTuple):
    """The loss, and the arrays `scores` and `increases` of a `Sensitivity`."""

    loss: Array
    scores: dict[str, Array]
    increases: dict[str, Array]


@partial(jax.jit, static_argnames=("names", "loss", "bits", "dtypes", "per_channel"))
def _sensitivity(
    model: Model,
    inputs: list[Array],
    *,
    names: tuple[str, ...],
    loss: Loss,
    bits: int | None,
    dtypes: tuple[str, ...],
    per_channel: bool,
) -> _Measured:
    """Return the loss, the scores, and the increase of the loss in each run that rounds values.

    Each run rounds one layer in one way. With 3 layers and 2 kinds of rounding tensors, the runs 0,
    1 and 2 apply the first kind to the tensors of layers 0, 1 and 2. The runs 3, 4 and 5 apply the
    second kind. The runs 6, 7 and 8 round the weights of layers 0, 1 and 2. Run 9 rounds nothing.
    """
    params = model.params
    all_layers = layers_of(graph_for(model, inputs))
    layers = {name: all_layers[name] for name in names}
    scores = _scores(model, inputs, layers, loss)
    layer_count = len(names)
    weight_labels = [_weights(layer, params) for layer in layers.values()]
    roundings: dict[str, Callable[[Array], Array]] = {}
    if bits is not None:
        roundings[f"values {bits} bits"] = partial(_to_levels, bits=bits, per_channel=False)
    roundings |= {dtype: partial(_to_dtype, dtype=dtype) for dtype in dtypes}
    first_weight_run = len(roundings) * layer_count

    def rounded_tensor(run: Array, layer: int, x: Array) -> Array:
        """Round the tensor of a layer if the run rounds this tensor."""
        no_rounding = len(roundings)
        is_for_layer = run % layer_count == layer
        index = jnp.where(is_for_layer, run // layer_count, no_rounding)
        branches = [*roundings.values(), _unchanged]
        # In runs that round weights, the index is `no_rounding` or more. It is clipped to
        # `no_rounding`, and the tensor stays as it is.
        return jax.lax.switch(jnp.clip(index, 0, no_rounding), branches, x)

    def rounded_params(run: Array, bits: int) -> dict[str, Array]:
        """Return the parameters, after rounding the weights that the run rounds."""
        params_of_run = dict(params)
        round_weight = partial(_to_levels, bits=bits, per_channel=per_channel)
        for label in dict.fromkeys(chain.from_iterable(weight_labels)):
            # Several layers may read the same weight.
            readers: list[int] = []
            for layer, labels in enumerate(weight_labels):
                if label in labels:
                    readers.append(layer)
            is_rounded = jnp.any(run == first_weight_run + jnp.array(readers))
            params_of_run[label] = jax.lax.cond(is_rounded, round_weight, _unchanged, params[label])
        return params_of_run

    def loss_of_run(run: Array) -> Array:
        """Return the loss of the run with the index `run`."""
        params_of_run = dict(params) if bits is None else rounded_params(run, bits)
        edits = None
        if roundings:
            edits = {name: partial(rounded_tensor, run, layer) for layer, name in enumerate(names)}
        outputs = model.apply(params_of_run, *inputs, edit=edits)
        return scalar(loss(outputs))

    kinds = list(roundings)
    if bits is not None:
        kinds.append(f"weights {bits} bits")
    # One program computes all runs, also the run that rounds nothing. The losses of two runs
    # therefore differ only because of the values that are rounded.
    unrounded_run = first_weight_run + layer_count
    runs = jnp.array([*range(len(kinds) * layer_count), unrounded_run])
    losses = jax.lax.map(loss_of_run, runs)
    unrounded_loss = losses[-1]
    increases: dict[str, Array] = {}
    for index, kind in enumerate(kinds):
        start = index * layer_count
        increases[kind] = losses[start : start + layer_count] - unrounded_loss
    if bits is not None:
        # In the result, the increases from rounded weights come first.
        kind = f"weights {bits} bits"
        has_weights = jnp.array([bool(labels) for labels in weight_labels])
        of_weights = jnp.where(has_weights, increases.pop(kind), jnp.nan)
        increases = {kind: of_weights, **increases}
    return _Measured(unrounded_loss, scores, increases)


def _unchanged(x: Array) -> Array:
    return x


def _weights(layer: LayerTensor, params: Mapping[str, Array]) -> tuple[str, ...]:
    """Return the labels of a layer's floating-point weights that have two axes or more."""
    labels: list[str] = []
    for label in layer.weights:
        weight = params[label]
        is_floating = jnp.issubdtype(weight.dtype, jnp.floating)
        if is_floating and weight.ndim > 1:
            labels.append(label)
    return tuple(labels)


def _scores(
    model: Model,
    inputs: list[Array],
    layers: Mapping[str, LayerTensor],
    loss: Loss,
) -> dict[str, Array]:
    """Return a dict from the names of the four kinds of scores to arrays [layers].

    The scores are norms of gradients, and norms of gradients multiplied by tensors or parameters.
    """
    params = model.params
    real = {label: x for label, x in params.items() if jnp.issubdtype(x.dtype, jnp.floating)}

    def loss_at(
        added: Mapping[str, Array], real: Mapping[str, Array]
    ) -> tuple[Array, dict[str, Any]]:
        return loss_of(model, {**params, **real}, inputs, loss, added)

    zeros = zeros_at(model, inputs, list(layers))
    gradients, tensors = jax.grad(loss_at, argnums=(0, 1), has_aux=True)(zeros, real)
    layer_gradients, parameter_gradients = gradients

    def norm(arrays: Sequence[Array]) -> Array:
        """Return the norm over all entries of all arrays, or NaN if there are no arrays."""
        if not arrays:
            return jnp.full((), jnp.nan)
        squares = [jnp.sum(jnp.square(array.astype(jnp.float32))) for array in arrays]
        return jnp.sqrt(sum(squares, jnp.zeros(())))

    def parameter_norms(arrays: Mapping[str, Array]) -> Array:
        """Return the norm of each layer, [layers], over all arrays of the layer's parameters."""
        norms: list[Array] = []
        for layer in layers.values():
            norms.append(norm([arrays[label] for label in layer.params if label in real]))
        return jnp.stack(norms)

    layer_norms: list[Array] = []
    layer_product_norms: list[Array] = []
    for name in layers:
        gradient = layer_gradients[name]
        layer_norms.append(norm([gradient]))
        layer_product_norms.append(norm([gradient * tensors[name]]))
    parameter_products = {label: x * real[label] for label, x in parameter_gradients.items()}
    return {
        "gradient": jnp.stack(layer_norms),
        "gradient x value": jnp.stack(layer_product_norms),
        "parameter gradient": parameter_norms(parameter_gradients),
        "parameter x gradient": parameter_norms(parameter_products),
    }


def _to_levels(x: Array, *, bits: int, per_channel: bool) -> Array:
    """Round a tensor to 2^bits evenly spaced levels from its minimum to its maximum.

    If `per_channel`, each index i of axis 0 has separate levels, from the minimum to the maximum of
    x[i].
    """
    first_reduced_axis = 1 if per_channel else 0
    reduced_axes = tuple(range(first_reduced_axis, x.ndim))
    low = jnp.min(x, axis=reduced_axes, keepdims=True)
    high = jnp.max(x, axis=reduced_axes, keepdims=True)
    quantize = rules["min_max_linear_quantize"].lower
    return quantize(Context(), x, low, high, bits, signed=False, symmetric=False)


def _to_dtype(x: Array, *, dtype: str) -> Array:
    """Round a tensor to a dtype. The result has the dtype of the tensor."""
    # A compiler may remove a cast to a dtype and back. The barrier prevents this.
    return jax.lax.optimization_barrier(x.astype(dtype)).astype(x.dtype)
