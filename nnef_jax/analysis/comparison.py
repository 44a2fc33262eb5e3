"""Two networks, or runs of one, layer by layer: the first tensor that differs, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from lowering.extents import show
from nnef_jax import Model
from nnef_jax.analysis.differences import Array, difference, kind_of
from nnef_jax.analysis.layer_tensors import layers_of
from nnef_jax.analysis.matching import Pair, TensorKind, match
from nnef_jax.analysis.question import bound
from nnef_jax.calls.arguments import Input, arguments_of
from nnef_jax.errors import InputError, NnefError
from nnef_jax.execution.probe import Probe
from nnef_jax.options import numpy_of, require, require_flags, shown, word_pairs
from nnef_jax.results import Axes, Result, Table, axes, literally, table_of
from nnef_jax.workings import arrays_read, cycle_of, graph_for, without_mesh

Run = Model | Mapping[str, ArrayLike] | Callable[..., object]  # what computes tensors, or did
_NONE = float("nan")


@dataclass(frozen=True, kw_only=True)
class TensorDifference:
    """How far a tensor of `b` is from that of `a`: see `compare`."""

    a: str
    b: str
    by: str
    kind: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    nan: tuple[int, int]
    inf: tuple[int, int]
    reason: str
    absolute: float = _NONE
    relative: float = _NONE
    excess: float = _NONE
    snr: float = _NONE
    ulps: float = _NONE
    saturated: float = _NONE
    own: str | None = None
    own_excess: float = _NONE
    own_snr: float = _NONE


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Comparison(Result):
    """What `compare` found: a `TensorDifference` for each pair, in the order in which `a` runs.

    Args:
        tensors: by name in `a`.
        unmatched: names of the tensors of `a`, and of `b`, that nothing is taken as the same as.
        rtol, atol: the tolerance.
        isolated: whether `own` was asked for.
    """

    tensors: Mapping[str, TensorDifference]
    unmatched: Mapping[str, tuple[str, ...]]
    rtol: float
    atol: float
    isolated: bool = False

    @property
    def first(self) -> TensorDifference | None:
        """Return the first tensor that differs, or None."""
        return next((x for x in self.tensors.values() if x.reason), None)

    @property
    def origins(self) -> tuple[str, ...]:
        """Return the names of the tensors that differ also where all before is that of `a`."""
        return tuple(name for name, x in self.tensors.items() if x.own)

    def to_dict(self) -> dict[str, object]:
        """Return plain values of JSON, among them the name `first` (None), and `origins`."""
        first = self.first and self.first.a
        return super().to_dict() | {"first": first, "origins": list(self.origins)}

    def table(self, *, differing: bool = False) -> Table:
        """Return a table with a line for each pair, or for those alone that differ."""
        rows = [
            [
                *(x.a, x.b if x.b != x.a else "", x.kind, show(x.shapes[0])),
                " ".join(dict.fromkeys(x.dtypes)),
                *(x.absolute, x.relative, x.snr, x.ulps, x.reason or "ok"),
                *([x.own or "ok" if x.own is not None else None] if self.isolated else []),
            ]
            for x in self.tensors.values()
            if x.reason or not differing
        ]
        columns = ["a", "b", "operation", "shape", "dtype", "absolute", "relative", "SNR in dB"]
        columns += ["ulps", "differs"]
        columns += ["by itself"] if self.isolated else []
        first = self.first
        said = f"the first that differs is {first.a}: {first.reason}" if first else "none differs"
        spare = [f"{len(names)} of {side}" for side, names in self.unmatched.items() if names]
        more = f", {' and '.join(spare)} unmatched" if spare else ""
        return table_of(f"{len(self.tensors)} tensors, {said}{more}", columns, rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the error of each tensor, relative to its root mean square; return the axes.

        The first that differs is marked. Where `isolate` was given, bars show the error that a
        tensor has where all before it is that of `a`.
        """
        ax = axes(ax, (8, 4))
        rows = list(self.tensors.values())
        errors = [_noise(x.snr) for x in rows]
        own = [_noise(x.own_snr) for x in rows]
        known = [e for e in (*errors, *own) if 0 < e < np.inf]
        low = min(known, default=1e-8) / 3
        places = np.arange(len(rows))
        if self.isolated:
            heights = [max(e, low) if e == e else low for e in own]
            colours = ["#e8b4ad" if x.own else "#c9d3df" for x in rows]
            ax.bar(places, heights, color=colours, label="made here", width=0.8)
        heights = [max(e, low) for e in errors]  # NaN stays: nothing is drawn
        ax.plot(places, heights, color="#1f4e79", marker="o", markersize=3, lw=1.2, label="error")
        if first := self.first:
            where = rows.index(first)
            said = literally(f"the first that differs: {first.a}, {first.reason}")
            ax.plot(where, heights[where], "o", color="#c0392b", markersize=6, label=said)
        ax.set_yscale("log")
        ax.set_ylim(low)
        ax.set_ylabel("error / root mean square")
        ax.margins(x=0.01)
        if len(rows) <= 40:
            names = [literally(x.a) for x in rows]
            ax.set_xticks(places, names, rotation=60, ha="right", fontsize=8)
        else:
            ax.set_xlabel("tensors, in the order in which they are computed")
        ax.legend(frameon=False, fontsize=8)
        return ax


def compare(
    a: Run,
    b: Run,
    *inputs: Input,
    names: Mapping[str, str] | None = None,
    rtol: float = 1e-3,
    atol: float = 1e-5,
    isolate: bool = False,
) -> Comparison:
    """Compare two networks tensor by tensor; `a` is the reference.

    Each of both is a model, of whatever dialect and dtype; what a run of another engine recorded, a
    dict of arrays by name, such as `numpy.load` of a .npz; or a function of the inputs that returns
    such a dict, an array, or a tuple of arrays: the outputs. A model runs as it is written, one
    with state for a cycle from its initial state. All tensors of both are held in memory.

    Tensors are taken as the same, `by`: "given", those of `names`; "name", also where names differ
    in characters other than letters and digits; "output", the outputs in order, if there are as
    many; "position", the longest sequences of equal kind and shape between pairs known so.

    One differs where an item is out of tolerance, `|b - a| > atol + rtol * max(|a|, rms of a)`.
    Its `reason` is "shape", "dtype" (logical, integer, real or complex), "nan" or "inf" (at other
    places), "saturation" (most of its wrong items are at an extreme of one tensor that several
    items of it have, beyond which the other goes on) or "values"; "" for one that does not.

    `to_dict()` is `{"tensors": {name in a: {"a", "b", "by", "kind", "shapes", "dtypes", "nan",
    "inf", "reason", "absolute", "relative", "excess", "snr", "ulps", "saturated", "own",
    "own_excess", "own_snr"}}, "unmatched": {"a": [...], "b": [...]}, "first": name or None,
    "origins": [...], "rtol", "atol", "isolated"}`. `nan` and `inf` count items of a and of b.
    `absolute` and `relative` are the largest errors, `excess` is the largest in tolerances, `snr`
    is in dB, `ulps` are steps of the coarser dtype, `saturated` is a share of the wrong items. What
    cannot be measured is NaN.

    Args:
        inputs: of a call of each, in order, or one dict by name.
        names: names in b by names in a, where neither is found by itself.
        rtol, atol: the tolerance.
        isolate: also run each layer of `b`, a model, on the tensors of `a`: `own` is then the
            reason why it differs by itself, "" where its error is inherited, None where unknown.
            What `a` lacks is computed from what it has.

    Raises InputError for inputs that a model does not take, unknown `names`, and where no tensor of
    one is found in the other; TypeError or ValueError for wrong arguments.

    >>> found = nnef_jax.analysis.compare(model, half, image, rtol=1e-2)
    >>> found.first.a, found.first.reason
    """
    require("rtol", rtol, int | float, "a number")
    require("atol", atol, int | float, "a number")
    if not (rtol >= 0 and atol >= 0 and rtol + atol > 0):
        raise ValueError(f"rtol and atol must not be negative nor both 0: {rtol}, {atol}")
    require_flags(isolate=isolate)
    given = word_pairs("names", names or {}, "names in b by names in a")
    if isolate and not isinstance(b, Model):
        raise TypeError(f"isolate runs layers of b, a nnef_jax.Model, it is {shown(b)}")
    sides: dict[str, tuple[dict[str, Array], dict[str, TensorKind]]] = {}
    for side, source, other in (("a", a, b), ("b", b, a)):
        try:
            sides[side] = _tensors(side, source, other, inputs)
        except NnefError as error:
            if isinstance(source, Model):
                error.message = f"{side}: {error.message}"
            raise
    (arrays_a, known_a), (arrays_b, known_b) = sides["a"], sides["b"]
    pairs = match(known_a, known_b, given)
    if not pairs:
        hint = "give names={name in a: name in b}"
        raise InputError("no tensor of a is found in b", hint=hint)
    own = _own(b, inputs, pairs, arrays_a, arrays_b) if isolate and isinstance(b, Model) else {}

    def row(pair: Pair) -> TensorDifference:
        x, y = arrays_a[pair.a], arrays_b[pair.b]
        reason, measured = difference(y, x, rtol, atol)
        if pair.b in own:
            alone, figures = difference(own[pair.b], x, rtol, atol)
            figures = {"own_excess": figures["excess"], "own_snr": figures["snr"]}
            measured = {**measured, **figures, "own": alone}
        return TensorDifference(
            a=pair.a,
            b=pair.b,
            by=pair.by,
            kind=known_a[pair.a].kind or known_b[pair.b].kind,
            shapes=(x.shape, y.shape),
            dtypes=(x.dtype.name, y.dtype.name),
            nan=(_count(np.isnan, x), _count(np.isnan, y)),
            inf=(_count(np.isinf, x), _count(np.isinf, y)),
            reason=reason,
            **measured,  # pyright: ignore[reportArgumentType]
        )

    return Comparison(
        tensors={pair.a: row(pair) for pair in pairs},
        unmatched={
            "a": tuple(x for x in known_a if x not in {pair.a for pair in pairs}),
            "b": tuple(x for x in known_b if x not in {pair.b for pair in pairs}),
        },
        rtol=float(rtol),
        atol=float(atol),
        isolated=isolate,
    )


def _tensors(
    side: str, source: Any, other: Any, inputs: tuple[Any, ...]
) -> tuple[dict[str, Array], dict[str, TensorKind]]:
    """Return the arrays of one side by name, in order, and what is known of them."""
    if isinstance(source, Model):
        values = bound(source, inputs)
        graph = graph_for(source, values)
        layers = layers_of(graph)
        outputs = {value.name: i for i, value in reversed(list(enumerate(graph.outputs)))}
        arrays = source.intermediates(*values, names=list(layers)) if layers else {}
        found = {name: np.asarray(arrays[name]) for name in layers}
        return found, {
            name: TensorKind(layers[name].kind, x.shape, outputs.get(name))
            for name, x in found.items()
        }
    returned = source
    usual = [spec.name for spec in other.outputs] if isinstance(other, Model) else []
    if not isinstance(source, Mapping):
        if not callable(source):
            what = "a model, a dict of arrays by name or a function of the inputs"
            raise TypeError(f"{side} must be {what}, it is {shown(source)}")
        args, kwargs = arguments_of(inputs)
        returned = source(*args, **kwargs)
    if not isinstance(returned, Mapping):
        is_one = not isinstance(returned, tuple | list)
        several: tuple[Any, ...] = (returned,) if is_one else tuple(returned)
        if len(usual) != len(several):
            usual = [f"output{i}" for i in range(len(several))]
        named = getattr(returned, "_fields", usual)
        returned = dict(zip(named, several, strict=True))
        usual = list(returned)
    places = {name: index for index, name in enumerate(usual)}
    found: dict[str, Array] = {}
    try:
        returned = dict(returned)
    except Exception as reason:  # a .npz is read here
        raise InputError(f"{side}: its arrays cannot be read: {reason}") from None
    for name, x in returned.items():
        found[str(name)] = array = numpy_of(x, InputError, f"{side}: '{name}' is not an array")
        if kind_of(array) not in "bifc":
            raise InputError(f"{side}: '{name}' holds no numbers, its dtype is {array.dtype}")
    return found, {name: TensorKind("", x.shape, places.get(name)) for name, x in found.items()}


def _own(
    model: Model,
    inputs: tuple[Any, ...],
    pairs: list[Pair],
    wanted: Mapping[str, Array],
    found: Mapping[str, Array],
) -> dict[str, Array]:
    """Return the tensors of a model where all that it reads is as wanted.

    An edit sees what an operation computes, and gives its readers something else: one run suffices
    for all of them.
    """
    given = {
        pair.b: wanted[pair.a]
        for pair in pairs
        if wanted[pair.a].shape == found[pair.b].shape
        and kind_of(wanted[pair.a]) == kind_of(found[pair.b])
    }
    given = {name: x.astype(found[name].dtype) for name, x in given.items()}
    if not given:
        return {}
    model = without_mesh(model)
    cycle = cycle_of(model)

    @jax.jit
    def run(own: Any, state: Any, values: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        seen: dict[str, Any] = {}

        def see(name: str, x: Any) -> Any:
            seen[name] = x
            return given[name]

        edits: dict[str, Callable[[Any], Any]] = {name: partial(see, name) for name in given}
        probe = Probe.of(edits, list(given))
        cycle(own, state, values, Probe(probe.edits, {}, probe.capture, results=False))
        return seen

    probe = Probe(capture=tuple(given), results=False)
    values = bound(model, inputs)
    seen = run(*arrays_read(model, values, probe), values, given)
    return {name: np.asarray(x) for name, x in seen.items()}


def _count(test: Callable[[Array], Array], x: Array) -> int:
    if kind_of(x) in "bi":
        return 0
    return int(test(x.astype(np.float64) if x.dtype.kind == "V" else x).sum())


def _noise(snr: float) -> float:
    """Return the root mean square of errors, relative to that of what is wanted."""
    return float(10 ** (-snr / 20))
