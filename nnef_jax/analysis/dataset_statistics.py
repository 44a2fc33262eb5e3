"""Statistics of activations and gradients inside a network, over a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lowering.extents import show
from nnef_jax import Model
from nnef_jax.analysis.argument_checks import require_model
from nnef_jax.analysis.layer_tensors import (
    LayerTensor,
    Loss,
    chosen_params,
    layers_of,
    loss_of,
    real_layers,
    require_callable,
    require_gradients,
    zeros_at,
)
from nnef_jax.analysis.question import bound
from nnef_jax.analysis.tensor_statistics import TensorStatistics, gram_matrix, measure
from nnef_jax.calls.arguments import Input, Params, Sample, over_samples
from nnef_jax.errors import InputError
from nnef_jax.options import names_of, require_flags, require_samples
from nnef_jax.results import Axes, Result, Table, axes, literally, table_of
from nnef_jax.workings import graph_for

# Effective ranks are computed for tensors of at most 1024 units. For a tensor of 1024 units, the
# computation takes 0.3 s.
_MOST_UNITS_FOR_RANK = 1024


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Statistics(Result):
    """The statistics of tensors inside a network.

    Args:
        tensors: maps the names of tensors to their statistics, in the order of computation. If `of`
            is "gradients", labels of parameters follow, with the statistics of the gradients at
            these parameters.
        of: "activations" or "gradients".
        batches: the number of batches.
    """

    tensors: Mapping[str, TensorStatistics]
    of: str
    batches: int

    def merge(self, other: Statistics) -> Statistics:
        """Return the statistics over the batches of both results, such as two parts of a dataset.

        Raises InputError if the two results have different tensors, or if one has activations and
        the other has gradients.
        """
        if self.of != other.of or self.tensors.keys() != other.tensors.keys():
            raise InputError("statistics of other tensors cannot be merged")
        merged: dict[str, TensorStatistics] = {}
        for name, statistics in self.tensors.items():
            merged[name] = statistics.merge(other.tensors[name])
        return Statistics(tensors=merged, of=self.of, batches=self.batches + other.batches)

    def to_dict(self) -> dict[str, object]:
        """Return `{"of", "batches", "tensors": {name: ...}}`. JSON can hold all values."""
        tensors = {name: x.to_dict() for name, x in self.tensors.items()}
        return {"of": self.of, "batches": self.batches, "tensors": tensors}

    def table(self) -> Table:
        """Return a table with a line for each tensor."""
        rows: list[list[Any]] = []
        for x in self.tensors.values():
            zeros = f"{x.zeros / max(x.size, 1):.1%}"
            dead = None if x.dead is None else f"{len(x.dead)} of {x.units}"
            row = [x.name, x.kind, show(x.shape), x.mean, x.std, x.min, x.max, zeros]
            # If there are no NaNs, or no infinities, the cell is None and stays empty.
            row += [x.nan or None, x.inf or None, dead, x.effective_rank]
            rows.append(row)
        columns = ["name", "operation", "shape", "mean", "std", "min", "max", "zeros", "NaN", "Inf"]
        columns += ["dead units", "effective rank"]
        batches = f"{self.batches} batches" if self.batches > 1 else f"{self.batches} batch"
        return table_of(f"{self.of} of {batches}", columns, rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw a row for each tensor, in the order of computation. Return the axes.

        The row of an activation is a line from the minimum to the maximum. The line is thick from
        mean - deviation to mean + deviation. The number of dead units stands beside the line. The
        row of a gradient shows its root mean square.
        """
        tensors = list(self.tensors.values())
        figure_height = max(2.5, 0.22 * len(tensors))
        ax = axes(ax, size=(7.5, figure_height))
        if self.of == "gradients":
            _draw_gradients(ax, tensors)
        else:
            _draw_activations(ax, tensors)
        names = [literally(x.name) for x in tensors]
        ax.set_yticks(np.arange(len(tensors)), names, fontsize=8)
        ax.invert_yaxis()
        return ax


def _draw_gradients(ax: Axes, tensors: Sequence[TensorStatistics]) -> None:
    """Draw a point for the root mean square of each gradient. Gradient i is at the height i."""
    heights = np.arange(len(tensors))
    # The axis is logarithmic, so there is no point for 0.
    rms_values = [x.rms if x.rms > 0 else np.nan for x in tensors]
    left_end = np.nanmin([*rms_values, np.inf])
    ax.plot(rms_values, heights, "o", color="#1f4e79", markersize=5)
    ax.hlines(heights, left_end, rms_values, color="#b9c6d6", lw=1, zorder=0)
    ax.set_xscale("log")
    ax.set_xlabel("root mean square of the gradient")


def _draw_activations(ax: Axes, tensors: Sequence[TensorStatistics]) -> None:
    """Draw the range, mean and deviation of each tensor. Tensor i is at the height i."""
    for height, x in enumerate(tensors):
        if not x.count:
            continue  # A tensor without finite items has no range.
        ax.plot([x.min, x.max], [height, height], color="#b9c6d6", lw=1.5)
        ends = [max(x.mean - x.std, x.min), min(x.mean + x.std, x.max)]
        ax.plot(ends, [height, height], color="#1f4e79", lw=5, solid_capstyle="butt")
        ax.plot(x.mean, height, "o", color="white", markersize=3)
        if x.dead:
            label = f" {len(x.dead)} of {x.units} dead"
            ax.text(x.max, height, label, va="center", fontsize=7, color="#c0392b")
    ax.set_xscale("symlog", linthresh=1)
    ax.set_xlabel("value: range, mean and standard deviation")
    ax.axvline(0, color="#999999", lw=0.6, zorder=0)


def activation_statistics(
    model: Model,
    batches: Iterable[Sample],
    *,
    names: Sequence[str] | None = None,
    params: Params | None = None,
    rank: bool = True,
) -> Statistics:
    """Return statistics of the tensors inside a network, over any number of batches.

    The statistics are mean, standard deviation, extremes, the share of zeros, and the numbers of
    NaNs and infinities. A unit is a channel or a feature. A dead unit is 0 in all items. The
    effective rank is computed for a matrix with a column for each unit, and a row for each item and
    position. Only one batch is in memory at a time. A network with state runs one cycle from its
    initial state.

    Args:
        batches: the inputs of each call: an array, a tuple of arrays, or a dict from names to
            arrays.
        names: names or patterns of tensors, by default all tensors on which outputs depend.
        params: a dict from labels to arrays, used instead of `model.params`.
        rank: whether effective ranks are computed, for floating-point tensors of at most 1024
            units.

    Raises InputError if there is no batch, a batch does not fit the network's inputs, or a name is
    unknown.

    >>> statistics = nnef_jax.analysis.activation_statistics(model, [images], names=["relu*"])
    >>> statistics.tensors["relu1"].dead, statistics.tensors["relu1"].effective_rank
    """
    require_model(model)
    require_flags(rank=rank)
    model = model if params is None else model.with_params(params)

    def activations_of_batch(
        values: list[Any], layers: Mapping[str, LayerTensor]
    ) -> dict[str, Any]:
        return model.intermediates(*values, names=list(layers))

    return _statistics_over(
        model, batches, of="activations", names=names, tensors_of=activations_of_batch, rank=rank
    )


def gradient_statistics(
    model: Model,
    batches: Iterable[Sample],
    *,
    loss: Loss,
    targets: Iterable[Sample] | None = None,
    names: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    params: Params | None = None,
    rank: bool = False,
) -> Statistics:
    """Return statistics of the gradients of a loss at tensors inside a network and at parameters.

    The statistics are the same as in `activation_statistics`. If the root mean square decreases
    from layer to layer, the gradient vanishes; if it grows, the gradient explodes. A dead unit has
    gradient 0.

    Args:
        batches: the inputs of each call: an array, a tuple of arrays, or a dict from names to
            arrays.
        loss: a function from the outputs to a floating-point number. If `targets` are passed, the
            second argument of the function is the target of the batch. Each function object is
            traced once.
        targets: the second argument of the loss for each batch, such as classes.
        names: names or patterns of floating-point tensors, by default all; [] for none.
        labels: labels or patterns of floating-point parameters, by default all; [] for none.
        params: a dict from labels to arrays, used instead of `model.params`.
        rank: whether effective ranks are computed.

    Raises InputError if there is no batch, a batch does not fit the network's inputs, a name is
    unknown, or rounding makes a gradient 0. Raises TypeError for a loss that is not a
    floating-point number.

    >>> options = {"loss": cross_entropy, "targets": [digits]}
    >>> statistics = nnef_jax.analysis.gradient_statistics(model, [images], **options)
    >>> statistics.tensors["conv1_filter"].rms
    """
    require_model(model)
    require_callable("loss", loss, "a function of the outputs")
    require_flags(rank=rank)
    model = model if params is None else model.with_params(params)
    if labels is not None:
        labels = names_of("labels", labels, "labels of parameters")
    # labels=[] means that the user chooses no parameters. `chosen_params` would raise an error.
    chosen = {} if labels == () else chosen_params(model.params, labels)
    if targets is not None:
        require_samples("targets", targets)
    remaining_targets = None if targets is None else iter(targets)

    def gradients_of_batch(values: list[Any], layers: Mapping[str, LayerTensor]) -> dict[str, Any]:
        """Return a dict of gradients. The keys are names of tensors, then labels of parameters."""
        loss_arguments: tuple[Sample, ...] = ()
        if remaining_targets is not None:
            loss_arguments = tuple(islice(remaining_targets, 1))
            if not loss_arguments:
                raise InputError("there are fewer targets than batches")
        require_gradients(model, graph_for(model, values), layers, chosen)
        zeros = zeros_at(model, values, list(layers))
        at_tensors, at_params = _gradients(model, chosen, values, loss_arguments, zeros, loss=loss)
        gradients: dict[str, Any] = {**at_tensors}
        for label, gradient in at_params.items():
            is_tensor_name = label in at_tensors
            name = f"{label} (parameter)" if is_tensor_name else label
            gradients[name] = gradient
        return gradients

    return _statistics_over(
        model, batches, of="gradients", names=names, tensors_of=gradients_of_batch, rank=rank
    )


@partial(jax.jit, static_argnames="loss")
def _gradients(
    model: Model,
    chosen: Mapping[str, Array],
    inputs: list[Array],
    loss_arguments: tuple[Sample, ...],
    zeros: Mapping[str, Array],
    *,
    loss: Loss,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the gradients of the loss at tensors and at parameters, as two dicts.

    The first dict maps names of tensors to gradients. The second maps labels of parameters to
    gradients.

    Args:
        model: the network.
        chosen: maps labels to the parameters at which gradients are computed.
        inputs: the inputs of a call.
        loss_arguments: the arguments of the loss after the outputs: a target, or nothing.
        zeros: maps the name of each tensor to an array of zeros. The array is added to the tensor,
            and the gradient at the array is the gradient at the tensor.
        loss: the loss.
    """

    def loss_at(added: Mapping[str, Array], chosen: Mapping[str, Array]) -> Array:
        params = {**model.params, **chosen}

        def loss_of_outputs(outputs: Any) -> Any:
            return loss(outputs, *loss_arguments)

        value, _ = loss_of(model, params, inputs, loss_of_outputs, added)
        return value

    return jax.grad(loss_at, argnums=(0, 1))(zeros, chosen)


def _statistics_over(
    model: Model,
    batches: Iterable[Sample],
    *,
    of: Literal["activations", "gradients"],
    names: Sequence[str] | None,
    tensors_of: Callable[[list[Any], Mapping[str, LayerTensor]], Mapping[str, Any]],
    rank: bool,
) -> Statistics:
    """Return the merged statistics of the tensors that `tensors_of` computes from each batch.

    Args:
        model: the network.
        batches: the inputs of each call.
        of: the field `of` of the result.
        names: names or patterns of the layers; None for all layers.
        tensors_of: a function that takes the inputs of a call, and a dict from names to layers. It
            returns a dict from names to tensors.
        rank: whether effective ranks are computed.
    """
    require_samples("batches", batches)

    def tensors_and_layers(batch: tuple[Input, ...]) -> Any:
        """Return the tensors for one batch, and a dict from names to layers."""
        values = bound(model, batch)
        layers = layers_of(graph_for(model, values), names)
        # With names=[] there are no layers, and `real_layers` would raise an error.
        if of == "gradients" and layers:
            layers = real_layers(layers)
        return tensors_of(values, layers), layers

    merged: Statistics | None = None
    for arrays, layers in over_samples("batch", batches, tensors_and_layers):
        by_name = dict(_measured(arrays, layers, rank))
        batch_statistics = Statistics(tensors=by_name, of=of, batches=1)
        merged = batch_statistics if merged is None else merged.merge(batch_statistics)
    if merged is None:
        raise InputError("statistics need at least one batch")
    return merged


def _measured(
    arrays: Mapping[str, Any], layers: Mapping[str, LayerTensor], rank: bool
) -> Iterator[tuple[str, TensorStatistics]]:
    """Yield the name of each tensor and its statistics, in order.

    The device starts to compute the statistics of all tensors before the first result is fetched.
    """
    pending: dict[str, Any] = {}
    parameter_names = [name for name in arrays if name not in layers]
    for name in (*layers, *parameter_names):
        x = jnp.asarray(arrays[name])
        if jnp.issubdtype(x.dtype, jnp.complexfloating):
            # Complex numbers have no minimum and maximum, so they have no statistics.
            continue
        unit_axis = layers[name].unit_axis if name in layers else None
        pending[name] = (x, unit_axis, measure(x, axis=unit_axis))
    for name, (x, unit_axis, measured) in pending.items():
        figure_arrays, alive = measured
        figures = {key: array.item() for key, array in jax.device_get(figure_arrays).items()}
        needs_rank = rank and jnp.issubdtype(x.dtype, jnp.floating)
        gram = None
        if needs_rank and unit_axis is not None and x.shape[unit_axis] <= _MOST_UNITS_FOR_RANK:
            gram = gram_matrix(x, unit_axis)
        statistics = TensorStatistics(
            name=name,
            kind=layers[name].kind if name in layers else "parameter",
            shape=x.shape,
            **figures,
            alive=None if alive is None else np.asarray(alive),
            gram=gram,
        )
        yield name, statistics
