"""What fixed-point arithmetic does to a network: where it overflows, and how far it is off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lowering.extents import show
from nnef_jax.analysis.comparison import Comparison, TensorDifference, compare
from nnef_jax.analysis.question import bound
from nnef_jax.errors import InputError
from nnef_jax.model import Model
from nnef_jax.openvx.plan import PlanStep
from nnef_jax.openvx.plan_evaluation import real
from nnef_jax.openvx.tensor import Tensor
from nnef_jax.options import require_flags
from nnef_jax.results import Axes, Result, Table, axes, literally, plain, table_of

_NONE = float("nan")


@dataclass(frozen=True, kw_only=True)
class TensorStats:
    """A tensor in fixed point, beside the one in real numbers: see `Lowered.stats`."""

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
    own_snr: float = _NONE


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Stats(Result):
    """What `Lowered.stats` found: a `TensorStats` for each tensor that both networks have.

    Args:
        tensors: by name, in the order in which they are computed.
        comparison: the same as `analysis.compare` sees it.
        clipped: how many items of weights were cut off, by name.
        samples: how many inputs were run.
    """

    tensors: Mapping[str, TensorStats]
    comparison: Comparison
    clipped: Mapping[str, int]
    samples: int
    isolated: bool = False

    @property
    def first(self) -> TensorStats | None:
        """Return the first tensor that differs, or None."""
        return next((x for x in self.tensors.values() if x.reason), None)

    def to_dict(self) -> dict[str, object]:
        """Return plain values of JSON, among them the name `first` (None)."""
        names = "tensors", "clipped", "samples"
        told: dict[str, object] = {name: plain(getattr(self, name)) for name in names}
        return told | {"first": self.first and self.first.name}

    def table(self) -> Table:
        """Return a table with a line for each tensor."""
        rows = [
            [
                *(x.name, x.layer, show(x.shape), x.position, x.low, x.high),
                *(f"{x.beyond:.2%}" if x.beyond == x.beyond else None, x.absolute, x.snr),
                *([x.own_snr] if self.isolated else []),
                x.reason or "ok",
            ]
            for x in self.tensors.values()
        ]
        columns = ["tensor", "OpenVX", "shape", "position", "low", "high", "beyond", "error"]
        columns += ["SNR in dB", *(["by itself"] if self.isolated else []), "differs"]
        first = self.first
        said = f"the first that differs is {first.name}: {first.reason}" if first else ""
        cut = sum(self.clipped.values())
        weights = f", {cut} item{'s' * (cut != 1)} of weights cut off" if cut else ""
        samples = f"{self.samples} sample{'s' * (self.samples != 1)}"
        return table_of(f"{samples}, {said or 'none differs'}{weights}", columns, rows)

    def plot(self, ax: Axes | None = None, *, label: str = "") -> Axes:
        """Draw the SNR of each tensor; return the axes of matplotlib, for others to be added."""
        ax = axes(ax, (8, 4))
        known = [x for x in self.tensors.values() if x.snr == x.snr]
        heights = [min(x.snr, 120.0) for x in known]
        (line,) = ax.plot(range(len(known)), heights, marker="o", markersize=3, lw=1.2, label=label)
        names = [x.name for x in known]
        if self.first in known:
            where = known.index(self.first)
            color = line.get_color()
            ax.plot(where, heights[where], "o", markersize=8, mfc="none", color=color)
        if len(known) <= 40:
            names = list(map(literally, names))
            ax.set_xticks(range(len(known)), names, rotation=60, ha="right", fontsize=8)
        ax.set_ylabel("SNR (dB)")
        return ax


def statistics(
    model: Model,
    inputs: tuple[Any, ...],
    steps: Sequence[PlanStep],
    entering: Callable[..., Any],
    inside: Callable[..., Any],
    clipped: Mapping[str, int],
    *,
    rtol: float,
    atol: float,
    isolate: bool,
) -> Stats:
    """Return the result of `Lowered.stats`, by its methods of these names."""
    require_flags(isolate=isolate)
    arrays, is_set = _samples(model, inputs)
    layers = {v.name: s.layer.name if s.layer else "" for s in steps for v in s.results}
    names = [name for name in layers if name in model.graph.values]
    if not names:
        raise InputError("the network computes nothing from its inputs")

    def wanted(*arrays: Any) -> dict[str, Any]:
        return model.intermediates(*arrays, names=names)

    def found(instead: Any, *arrays: Any) -> Any:
        pairs = zip(entering(*arrays), inside(*arrays, instead=instead), strict=True)
        return [{**x, **y} for x, y in pairs]

    if is_set:
        wanted, found = jax.vmap(wanted), jax.vmap(found)
    tensors, masks = found({}, *arrays)
    known = {spec.name: x for spec, x in zip(model.inputs, arrays, strict=True)}
    real_ones = wanted(*arrays)
    known |= {name: real_ones[name] for name in names}  # in order, which jax does not keep
    recorded = {name: np.asarray(x) for name, x in known.items()}
    comparison = compare(recorded, _arrays(tensors, recorded), rtol=rtol, atol=atol)
    own: Mapping[str, float] = {}
    if isolate:
        again, _ = found({name: known[name] for name in names}, *arrays)
        alone = compare(recorded, _arrays(again, recorded)).tensors
        own = {name: x.snr for name, x in alone.items()}

    def row(name: str, different: TensorDifference) -> TensorStats:
        x = tensors[name]
        data, mask = np.asarray(real(x)), masks.get(name)
        return TensorStats(
            name=name,
            layer=layers.get(name, "input"),
            shape=data.shape,
            position=x.fixed_point_position if isinstance(x, Tensor) else None,
            low=float(data.min()) if data.size else _NONE,
            high=float(data.max()) if data.size else _NONE,
            beyond=_NONE if mask is None else float(np.mean(np.asarray(mask))),
            absolute=different.absolute,
            snr=different.snr,
            reason=different.reason,
            own_snr=own.get(name, _NONE),
        )

    return Stats(
        tensors={name: row(name, x) for name, x in comparison.tensors.items()},
        comparison=comparison,
        clipped=clipped,
        samples=int(arrays[0].shape[0]) if arrays and arrays[0].ndim else 1,
        isolated=isolate,
    )


def _arrays(tensors: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: np.asarray(real(tensors[name])) for name in names}


def _samples(model: Model, inputs: tuple[Any, ...]) -> tuple[list[Any], bool]:
    """Return the inputs in order, and whether they have one axis more than the network's."""
    names = [spec.name for spec in model.inputs]
    is_named = len(inputs) == 1 and isinstance(inputs[0], Mapping)
    is_complete = is_named and set(inputs[0]) == set(names)
    given = [inputs[0][name] for name in names] if is_complete else inputs
    ranks = [len(spec.shape) + 1 for spec in model.inputs]
    if (is_named and not is_complete) or [np.ndim(x) for x in given] != ranks:
        return bound(model, inputs), False
    arrays = [jnp.asarray(x) for x in given]
    counts = {len(x) for x in arrays}
    if len(counts) > 1 or 0 in counts:
        raise InputError(f"inputs of a set have one length, at least 1, not {sorted(counts)}")
    bound(model, [x[0] for x in arrays])  # for errors of its own
    return arrays, True
