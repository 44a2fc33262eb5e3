"""Compares tensors of a lowered network with those of the original: overflow, errors, SNR."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from lowering.extents import show
from nnef_jax.analysis.comparison import Comparison, TensorDifference, compare
from nnef_jax.analysis.question import bound
from nnef_jax.calls.arguments import Input
from nnef_jax.errors import InputError
from nnef_jax.model import Model
from nnef_jax.openvx.plan import PlanStep
from nnef_jax.openvx.plan_evaluation import real
from nnef_jax.openvx.tensor import Tensor
from nnef_jax.options import require_flags
from nnef_jax.results import Axes, Result, Table, axes, literally, plain, table_of

_NO_FIGURE = float("nan")  # stands for a figure that a tensor does not have
_HIGHEST_DRAWN = 120.0  # an SNR above this number of dB is drawn at this height
_MOST_LABELLED = 40  # the largest number of tensors whose names are shown in a picture


@dataclass(frozen=True, kw_only=True)
class TensorStats:
    """The error of a fixed-point tensor, compared with the same tensor in floating point.

    The docstring of `Lowered.stats` explains the fields.
    """

    name: str
    layer: str
    shape: tuple[int, ...]
    position: int | None
    low: float
    high: float
    beyond: float
    absolute: float
    snr: float
    reason: str
    own_snr: float = _NO_FIGURE


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Stats(Result):
    """The result of `Lowered.stats`: a `TensorStats` for each tensor that both networks have.

    Args:
        tensors: maps names of tensors to their figures, in the order of computation.
        comparison: the result of `analysis.compare` on the same tensors.
        clipped: maps the name of an operand to the number of its weights that were clipped.
        samples: the number of inputs that were run.
        isolated: whether each layer was also run on the tensors of the floating-point network.
    """

    tensors: Mapping[str, TensorStats]
    comparison: Comparison
    clipped: Mapping[str, int]
    samples: int
    isolated: bool = False

    @property
    def first(self) -> TensorStats | None:
        """Return the figures of the first tensor that differs from the original, or None."""
        for stats in self.tensors.values():
            if stats.reason:
                return stats
        return None

    def to_dict(self) -> dict[str, object]:
        """Return the statistics as a dict for JSON. `first` is the name of a tensor, or None."""
        names = "tensors", "clipped", "samples"
        fields: dict[str, object] = {name: plain(getattr(self, name)) for name in names}
        return fields | {"first": None if self.first is None else self.first.name}

    def table(self) -> Table:
        """Return a table with a line for each tensor."""
        columns = ["tensor", "OpenVX", "shape", "position", "low", "high", "beyond", "error"]
        columns.append("SNR in dB")
        if self.isolated:
            columns.append("by itself")
        columns.append("differs")
        verdict = "none differs"
        if first := self.first:
            verdict = f"the first that differs is {first.name}: {first.reason}"
        title = f"{_counted(self.samples, 'sample')}, {verdict}"
        clipped = sum(self.clipped.values())
        if clipped:
            title += f", {_counted(clipped, 'item')} of weights cut off"
        return table_of(title, columns, map(self._row, self.tensors.values()))

    def _row(self, stats: TensorStats) -> list[Any]:
        """Return the line of the table for a tensor."""
        share_beyond = None if np.isnan(stats.beyond) else f"{stats.beyond:.2%}"
        row: list[Any] = [stats.name, stats.layer, show(stats.shape), stats.position]
        row += [stats.low, stats.high, share_beyond, stats.absolute, stats.snr]
        if self.isolated:
            row.append(stats.own_snr)
        row.append(stats.reason or "ok")
        return row

    def plot(self, ax: Axes | None = None, *, label: str = "") -> Axes:
        """Draw the SNR of each tensor. Return the axes of matplotlib, for further curves."""
        ax = axes(ax, (8, 4))
        drawn = [stats for stats in self.tensors.values() if not np.isnan(stats.snr)]
        heights = [min(stats.snr, _HIGHEST_DRAWN) for stats in drawn]
        (line,) = ax.plot(range(len(drawn)), heights, marker="o", markersize=3, lw=1.2, label=label)
        if self.first in drawn:
            # A circle surrounds the point of the first tensor that differs.
            index = drawn.index(self.first)
            color = line.get_color()
            ax.plot(index, heights[index], "o", markersize=8, mfc="none", color=color)
        if len(drawn) <= _MOST_LABELLED:
            names = [literally(stats.name) for stats in drawn]
            ax.set_xticks(range(len(drawn)), names, rotation=60, ha="right", fontsize=8)
        ax.set_ylabel("SNR (dB)")
        return ax


def _counted(count: int, noun: str) -> str:
    """Return a number with a noun, such as "1 sample" or "2 samples"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def statistics(
    lowered: Any, inputs: tuple[Input, ...], *, rtol: float, atol: float, isolate: bool
) -> Stats:
    """Compare the tensors of a lowered network with those of the original, for `Lowered.stats`.

    `lowered` is a `Lowered`. The other arguments are those of `Lowered.stats`.
    """
    require_flags(isolate=isolate)
    model = lowered.model
    arrays, is_set = _samples(model, inputs)
    layers = _layers_by_tensor(lowered.steps)
    names = [name for name in layers if name in model.graph.values]
    if not names:
        raise InputError("the network computes nothing from its inputs")
    real_results: Callable[..., dict[str, Array]] = partial(model.intermediates, names=names)
    fixed_tensors: Callable[..., Any] = partial(_fixed_tensors, lowered)
    if is_set:
        real_results = jax.vmap(real_results)
        fixed_tensors = jax.vmap(fixed_tensors)
    tensors, masks = fixed_tensors({}, *arrays)
    results = real_results(*arrays)
    # jax has sorted the keys of `results`. `names` are in the order of the network.
    results = {name: results[name] for name in names}
    inputs_by_name = {spec.name: x for spec, x in zip(model.inputs, arrays, strict=True)}
    recorded = {name: np.asarray(x) for name, x in {**inputs_by_name, **results}.items()}
    comparison = compare(recorded, _arrays(tensors, recorded), rtol=rtol, atol=atol)
    isolated_snr: Mapping[str, float] = {}
    if isolate:
        # Each layer reads operands that the floating-point network has computed.
        isolated, _ = fixed_tensors(results, *arrays)
        differences = compare(recorded, _arrays(isolated, recorded)).tensors
        isolated_snr = {name: difference.snr for name, difference in differences.items()}

    figures: dict[str, TensorStats] = {}
    for name, difference in comparison.tensors.items():
        layer = layers.get(name, "input")
        own_snr = isolated_snr.get(name, _NO_FIGURE)
        figures[name] = _tensor_stats(
            name, tensors[name], masks.get(name), difference, layer=layer, own_snr=own_snr
        )
    # The extent of an input's first axis is the number of samples.
    has_batch = len(arrays) > 0 and arrays[0].ndim > 0
    sample_count = int(arrays[0].shape[0]) if has_batch else 1
    return Stats(
        tensors=figures,
        comparison=comparison,
        clipped=lowered.clipped,
        samples=sample_count,
        isolated=isolate,
    )


def _fixed_tensors(
    lowered: Any, instead: Mapping[str, Array], *arrays: Array
) -> tuple[dict[str, Tensor | Array], dict[str, Array]]:
    """Return two dicts with names as keys: a lowered network's tensors, and overflow masks.

    `arrays` are the inputs of a call. `instead` maps names of tensors to arrays. An operation that
    would read such a tensor reads the array.
    """
    inputs, input_masks = lowered.entering(*arrays)
    results, masks = lowered.inside(*arrays, instead=instead)
    return {**inputs, **results}, {**input_masks, **masks}


def _layers_by_tensor(steps: Sequence[PlanStep]) -> dict[str, str]:
    """Return a dict that maps a tensor's name to the name of the layer that computes the tensor.

    If no layer computes a tensor, the value is "".
    """
    layers: dict[str, str] = {}
    for step in steps:
        layer = step.layer.name if step.layer else ""
        layers |= {value.name: layer for value in step.results}
    return layers


def _tensor_stats(
    name: str,
    tensor: Tensor | Array,
    mask: Array | None,
    difference: TensorDifference,
    *,
    layer: str,
    own_snr: float,
) -> TensorStats:
    """Return the figures of a tensor of the lowered network.

    `mask` is a mask of the tensor's items that overflowed, or None if no item can overflow.
    `difference` compares the tensor with the same tensor in floating point. `layer` is the name of
    the layer that computes the tensor. `own_snr` is the SNR of this layer alone, as in
    `Lowered.stats`.
    """
    data = np.asarray(real(tensor))
    low = _NO_FIGURE
    high = _NO_FIGURE
    if data.size:
        low = float(data.min())
        high = float(data.max())
    return TensorStats(
        name=name,
        layer=layer,
        shape=data.shape,
        position=tensor.fixed_point_position if isinstance(tensor, Tensor) else None,
        low=low,
        high=high,
        beyond=_NO_FIGURE if mask is None else float(np.mean(np.asarray(mask))),
        absolute=difference.absolute,
        snr=difference.snr,
        reason=difference.reason,
        own_snr=own_snr,
    )


def _arrays(tensors: Mapping[str, Tensor | Array], names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Return the tensors with the names `names`, converted to floating-point arrays."""
    return {name: np.asarray(real(tensors[name])) for name in names}


def _samples(model: Model, inputs: tuple[Input, ...]) -> tuple[list[Array], bool]:
    """Return the inputs in the order of the model, and whether the inputs are for several calls.

    Inputs for several calls have an additional first axis, which the model does not declare.
    """
    names = [spec.name for spec in model.inputs]
    ordered: list[Any] = [*inputs]
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        by_name = inputs[0]
        if set(by_name) != set(names):
            return bound(model, inputs), False  # `bound` raises the error for a wrong name
        ordered = [by_name[name] for name in names]
    ranks_of_sets = [len(spec.shape) + 1 for spec in model.inputs]
    if [np.ndim(x) for x in ordered] != ranks_of_sets:
        return bound(model, inputs), False  # these are the inputs of a single call
    arrays = [jnp.asarray(x) for x in ordered]
    call_counts = {len(x) for x in arrays}
    if len(call_counts) > 1 or 0 in call_counts:
        message = f"inputs of a set must have one length above 0, they have {sorted(call_counts)}"
        raise InputError(message)
    bound(model, [x[0] for x in arrays])  # raises the errors of a call with the first samples
    return arrays, True
