"""What values tensors inside a network take over a dataset, and what gradients they get."""

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
from nnef_jax.analysis.question import bound, require_model
from nnef_jax.analysis.tensor_statistics import TensorStatistics, measure, products
from nnef_jax.calls.arguments import Params, Sample, over_samples
from nnef_jax.errors import InputError
from nnef_jax.options import names_of, require_flags, require_samples
from nnef_jax.results import Axes, Result, Table, axes, literally, table_of
from nnef_jax.workings import graph_for

_WIDEST = 1024  # units of which an effective rank is found: their singular values take 0.3 s


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Statistics(Result):
    """Statistics of tensors inside a network, by name.

    Args:
        tensors: in the order in which the network computes them; then gradients of parameters.
        of: "activations" or "gradients".
        batches: how many were seen.
    """

    tensors: Mapping[str, TensorStatistics]
    of: str
    batches: int

    def merge(self, other: Statistics) -> Statistics:
        """Return the statistics of both series of batches together: of parts of a dataset, say.

        Raises InputError where they are not of the same tensors.
        """
        if self.of != other.of or self.tensors.keys() != other.tensors.keys():
            raise InputError("statistics of other tensors cannot be merged")
        both = {name: x.merge(other.tensors[name]) for name, x in self.tensors.items()}
        return Statistics(tensors=both, of=self.of, batches=self.batches + other.batches)

    def to_dict(self) -> dict[str, object]:
        """Return `{"of", "batches", "tensors": {name: ...}}` of plain values of JSON."""
        tensors = {name: x.to_dict() for name, x in self.tensors.items()}
        return {"of": self.of, "batches": self.batches, "tensors": tensors}

    def table(self) -> Table:
        """Return a table with a line for each tensor."""
        rows = [
            [
                *(x.name, x.kind, show(x.shape), x.mean, x.std, x.min, x.max),
                *(f"{x.zeros / max(x.size, 1):.1%}", x.nan or None, x.inf or None),
                *(None if x.dead is None else f"{len(x.dead)} of {x.units}", x.effective_rank),
            ]
            for x in self.tensors.values()
        ]
        columns = ["name", "operation", "shape", "mean", "std", "min", "max", "zeros", "NaN", "Inf"]
        columns += ["dead units", "effective rank"]
        batches = f"{self.batches} batch{'es' * (self.batches > 1)}"
        return table_of(f"{self.of} of {batches}", columns, rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the values of each tensor, from the network's start to its end; return the axes.

        Activations: a line from the least to the largest, thick within a standard deviation of the
        mean, with the number of dead units. Gradients: their root mean square.
        """
        rows = list(self.tensors.values())
        ax = axes(ax, (7.5, max(2.5, 0.22 * len(rows))))
        places = np.arange(len(rows))
        if self.of == "gradients":
            sizes = [x.rms if x.rms > 0 else np.nan for x in rows]
            ax.plot(sizes, places, "o", color="#1f4e79", markersize=5)
            ax.hlines(places, np.nanmin([*sizes, np.inf]), sizes, color="#b9c6d6", lw=1, zorder=0)
            ax.set_xscale("log")
            ax.set_xlabel("root mean square of the gradient")
        else:
            for place, x in enumerate(rows):
                if not x.count:
                    continue
                ax.plot([x.min, x.max], [place] * 2, color="#b9c6d6", lw=1.5)
                ends = [max(x.mean - x.std, x.min), min(x.mean + x.std, x.max)]
                ax.plot(ends, [place] * 2, color="#1f4e79", lw=5, solid_capstyle="butt")
                ax.plot(x.mean, place, "o", color="white", markersize=3)
                if x.dead:
                    told = f" {len(x.dead)} of {x.units} dead"
                    ax.text(x.max, place, told, va="center", fontsize=7, color="#c0392b")
            ax.set_xscale("symlog", linthresh=1)
            ax.set_xlabel("value: range, mean and standard deviation")
            ax.axvline(0, color="#999999", lw=0.6, zorder=0)
        ax.set_yticks(places, [literally(x.name) for x in rows], fontsize=8)
        ax.invert_yaxis()
        return ax


def activation_statistics(
    model: Model,
    batches: Iterable[Sample],
    *,
    names: Sequence[str] | None = None,
    params: Params | None = None,
    rank: bool = True,
) -> Statistics:
    """Return statistics of what a network computes inside, over any number of batches.

    Mean, standard deviation, extremes, shares of zeros, numbers of NaNs and infinities; units
    (channels or features) that are 0 in all items, as those are that a ReLU never lets pass; the
    effective rank of the activations, a row for each item and position. One batch is in memory at a
    time. A network with state runs one cycle from its initial state.

    Args:
        batches: for each call an array, a tuple of arrays, or a dict of arrays by input name.
        names: names or patterns of tensors, by default all that outputs follow from.
        params: instead of `model.params`.
        rank: whether to find effective ranks, of tensors of up to 1024 units of real numbers.

    Raises InputError where there is no batch, one does not fit, or a name is unknown.

    >>> found = nnef_jax.analysis.activation_statistics(model, [images], names=["relu*"])
    >>> found.tensors["relu1"].dead, found.tensors["relu1"].effective_rank
    """
    require_model(model)
    require_flags(rank=rank)
    model = model if params is None else model.with_params(params)

    def of_batch(values: list[Any], layers: Mapping[str, LayerTensor]) -> dict[str, Any]:
        return model.intermediates(*values, names=list(layers))

    return _over(model, "activations", batches, names, of_batch, rank)


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
    """Return statistics of the gradients of a loss at tensors inside and at parameters.

    They are those of `activation_statistics`: a root mean square that falls or grows from layer to
    layer is a gradient that vanishes or explodes, and a dead unit gets none.

    Args:
        batches: for each call an array, a tuple of arrays, or a dict of arrays by input name.
        loss: a function of what the network returns to a real number, and of the batch's target
            after it where `targets` are given. It is traced once for each object.
        targets: for each batch what the loss takes: labels, say.
        names: names or patterns of tensors of real numbers, by default all; [] for none.
        labels: the same of parameters.
        params: instead of `model.params`.
        rank: whether to find effective ranks.

    Raises InputError where there is no batch, one does not fit, or a name is unknown; TypeError for
    a loss that is no real number.

    >>> found = nnef_jax.analysis.gradient_statistics(model, [images], loss=loss, targets=[digits])
    >>> found.tensors["conv1_filter"].rms
    """
    require_model(model)
    require_callable("loss", loss, "a function of the outputs")
    require_flags(rank=rank)
    model = model if params is None else model.with_params(params)
    labels = None if labels is None else names_of("labels", labels, "labels of parameters")
    chosen = {} if labels == () else chosen_params(model.params, labels)
    if targets is not None:
        require_samples("targets", targets)
    given = None if targets is None else iter(targets)

    def of_batch(values: list[Any], layers: Mapping[str, LayerTensor]) -> dict[str, Any]:
        target = () if given is None else tuple(islice(given, 1))
        if given is not None and not target:
            raise InputError("there are fewer targets than batches")
        require_gradients(model, graph_for(model, values), layers, chosen)
        added = zeros_at(model, values, list(layers))
        inside, of_params = _gradients(model, chosen, values, target, added, loss=loss)
        # A label may be the name of a tensor too.
        return inside | {f"{n} (parameter)" if n in inside else n: x for n, x in of_params.items()}

    return _over(model, "gradients", batches, names, of_batch, rank)


@partial(jax.jit, static_argnames="loss")
def _gradients(
    model: Model,
    chosen: Mapping[str, Any],
    inputs: list[Any],
    target: tuple[Any, ...],
    added: Mapping[str, Any],
    *,
    loss: Loss,
) -> tuple[dict[str, Array], dict[str, Array]]:
    def value(added: Mapping[str, Any], chosen: Mapping[str, Any]) -> Array:
        def of(outputs: Any) -> Any:
            return loss(outputs, *target)

        return loss_of(model, {**model.params, **chosen}, inputs, of, added)[0]

    return jax.grad(value, (0, 1))(added, chosen)


def _over(
    model: Model,
    of: Literal["activations", "gradients"],
    batches: Iterable[Sample],
    names: Sequence[str] | None,
    tensors_of: Callable[[list[Any], Mapping[str, LayerTensor]], Mapping[str, Any]],
    rank: bool,
) -> Statistics:
    """Return the statistics of what a function makes of the inputs of each batch."""
    require_samples("batches", batches)

    def run(batch: tuple[Any, ...]) -> Any:
        values = bound(model, batch)
        layers = layers_of(graph_for(model, values), names)
        layers = real_layers(layers) if of == "gradients" and layers else layers
        return tensors_of(values, layers), layers

    found: Statistics | None = None
    for arrays, layers in over_samples("batch", batches, run):
        one = Statistics(tensors=dict(_measured(arrays, layers, rank)), of=of, batches=1)
        found = one if found is None else found.merge(one)
    if found is None:
        raise InputError("statistics need at least one batch")
    return found


def _measured(
    arrays: Mapping[str, Any], layers: Mapping[str, LayerTensor], rank: bool
) -> Iterator[tuple[str, TensorStatistics]]:
    """Yield statistics of tensors in order; all are computed before any is fetched."""
    pending: dict[str, Any] = {}
    for name in (*layers, *(n for n in arrays if n not in layers)):
        x = jnp.asarray(arrays[name])
        if not jnp.issubdtype(x.dtype, jnp.complexfloating):
            axis = layers[name].unit_axis if name in layers else None
            pending[name] = x, axis, measure(x, axis=axis)
    for name, (x, axis, (numbers, alive)) in pending.items():
        real = jnp.issubdtype(x.dtype, jnp.floating)
        is_ranked = rank and real and (axis is None or x.shape[axis] <= _WIDEST)
        one = TensorStatistics(
            name=name,
            kind=layers[name].kind if name in layers else "parameter",
            shape=x.shape,
            **{key: found.item() for key, found in jax.device_get(numbers).items()},
            alive=None if alive is None else np.asarray(alive),
            gram=products(x, axis) if is_ranked and axis is not None else None,
        )
        yield name, one
