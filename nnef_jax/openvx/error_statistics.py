"""Compares tensors of a lowered network with those of the original: overflow, errors, SNR."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
from nnef_jax.openvx.plan_evaluation import real
from nnef_jax.openvx.tensor import Tensor
from nnef_jax.options import require_flags
from nnef_jax.results import Axes, Result, Table, axes, literally, plain, table_of

_NO_FIGURE = float("nan")  # stands for a figure that a tensor does not have
_HIGHEST_DRAWN = 120.0  # larger SNRs, in dB, are drawn at this height
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
        tensors: the figures of tensors by name, in the order of computation.
        comparison: the result of `analysis.compare` on the same tensors.
        clipped: the numbers of weights that were cut off, by name.
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
        """Return the figures of the first tensor that differs, or None if no tensor differs."""
        for stats in self.tensors.values():
            if stats.reason:
                return stats
        return None

    def to_dict(self) -> dict[str, object]:
        """Return values that JSON can hold. `first` is the name of a tensor, or None."""
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
        row: list[Any] = [stats.name, stats.layer, show(stats.shape), stats.position]
        row += [stats.low, stats.high]
        row.append(None if np.isnan(stats.beyond) else f"{stats.beyond:.2%}")
        row += [stats.absolute, stats.snr]
        if self.isolated:
            row.append(stats.own_snr)
        row.append(stats.reason or "ok")
        return row

    def plot(self, ax: Axes | None = None, *, label: str = "") -> Axes:
        """Draw the SNR of each tensor. Return the axes of matplotlib, for further curves."""
        ax = axes(ax, (8, 4))
        drawn = [x for x in self.tensors.values() if not np.isnan(x.snr)]
        heights = [min(x.snr, _HIGHEST_DRAWN) for x in drawn]
        (line,) = ax.plot(range(len(drawn)), heights, marker="o", markersize=3, lw=1.2, label=label)
        names = [x.name for x in drawn]
        if self.first in drawn:
            index = drawn.index(self.first)
            color = line.get_color()
            ax.plot(index, heights[index], "o", markersize=8, mfc="none", color=color)
        if len(drawn) <= _MOST_LABELLED:
            names = list(map(literally, names))
            ax.set_xticks(range(len(drawn)), names, rotation=60, ha="right", fontsize=8)
        ax.set_ylabel("SNR (dB)")
        return ax


def _counted(count: int, noun: str) -> str:
    """Return a number with a noun, such as "1 sample" or "2 samples"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def statistics(
    lowered: Any, inputs: tuple[Input, ...], *, rtol: float, atol: float, isolate: bool
) -> Stats:
    """Compare the tensors of a lowered network with those of the original, as `Lowered.stats`.

    `lowered` is a `Lowered`. The other arguments are those of `Lowered.stats`.
    """
    require_flags(isolate=isolate)
    model = lowered.model
    arrays, is_set = _samples(model, inputs)
    layers: dict[str, str] = {}
    for step in lowered.steps:
        layer = step.layer.name if step.layer else ""
        layers |= {value.name: layer for value in step.results}
    names = [name for name in layers if name in model.graph.values]
    if not names:
        raise InputError("the network computes nothing from its inputs")

    def computed(*arrays: Array) -> dict[str, Array]:
        return model.intermediates(*arrays, names=names)

    def lowered_tensors(
        instead: Mapping[str, Array], *arrays: Array
    ) -> tuple[dict[str, Tensor | Array], dict[str, Array]]:
        inputs, input_masks = lowered.entering(*arrays)
        tensors, masks = lowered.inside(*arrays, instead=instead)
        return {**inputs, **tensors}, {**input_masks, **masks}

    if is_set:
        computed = jax.vmap(computed)
        lowered_tensors = jax.vmap(lowered_tensors)
    tensors, masks = lowered_tensors({}, *arrays)
    reals = {spec.name: x for spec, x in zip(model.inputs, arrays, strict=True)}
    results = computed(*arrays)
    # jax has sorted the keys of `results`. `names` are in the order of the network.
    reals |= {name: results[name] for name in names}
    recorded = {name: np.asarray(x) for name, x in reals.items()}
    comparison = compare(recorded, _arrays(tensors, recorded), rtol=rtol, atol=atol)
    isolated_snr: Mapping[str, float] = {}
    if isolate:  # each layer reads the tensors of the network in floating point
        isolated, _ = lowered_tensors({name: reals[name] for name in names}, *arrays)
        differences = compare(recorded, _arrays(isolated, recorded)).tensors
        isolated_snr = {name: x.snr for name, x in differences.items()}

    figures: dict[str, TensorStats] = {}
    for name, difference in comparison.tensors.items():
        layer = layers.get(name, "input")
        own_snr = isolated_snr.get(name, _NO_FIGURE)
        figures[name] = _tensor_stats(
            name, tensors[name], masks.get(name), difference, layer=layer, own_snr=own_snr
        )
    has_batch = len(arrays) > 0 and arrays[0].ndim > 0
    return Stats(
        tensors=figures,
        comparison=comparison,
        clipped=lowered.clipped,
        samples=int(arrays[0].shape[0]) if has_batch else 1,
        isolated=isolate,
    )


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

    `mask` tells which of its items overflowed, and is None if none can. `difference` compares it
    with the tensor in floating point.
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
    """Return the inputs in the order of the model, and whether they are for several calls.

    Inputs for several calls have an additional first axis, which the model does not declare.
    """
    names = [spec.name for spec in model.inputs]
    ordered: list[Any] = [*inputs]
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        by_name = inputs[0]
        if set(by_name) != set(names):
            return bound(model, inputs), False
        ordered = [by_name[name] for name in names]
    ranks_of_sets = [len(spec.shape) + 1 for spec in model.inputs]
    if [np.ndim(x) for x in ordered] != ranks_of_sets:
        return bound(model, inputs), False
    arrays = [jnp.asarray(x) for x in ordered]
    counts = {len(x) for x in arrays}
    if len(counts) > 1 or 0 in counts:
        message = f"inputs of a set must have one length above 0, they have {sorted(counts)}"
        raise InputError(message)
    bound(model, [x[0] for x in arrays])  # raises the errors of a call with the first samples
    return arrays, True
