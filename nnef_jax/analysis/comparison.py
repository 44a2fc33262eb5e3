"""Compares two networks tensor by tensor: finds the first tensor that differs, and the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
from nnef_jax.calls.arguments import Input, Params, State, arguments_of
from nnef_jax.errors import InputError, NnefError
from nnef_jax.execution.probe import Probe
from nnef_jax.options import numpy_of, require, require_flags, shown, word_pairs
from nnef_jax.results import Axes, Result, Table, axes, literally, table_of
from nnef_jax.workings import arrays_read, cycle_of, graph_for, without_mesh

# A network for `compare`: a model, a dict from names to recorded tensors, or a function of inputs.
Run = Model | Mapping[str, ArrayLike] | Callable[..., object]
_UNKNOWN_FIGURE = float("nan")
_MOST_LABELLED = 40  # A picture of more than 40 tensors does not show their names.


@dataclass(frozen=True, kw_only=True)
class TensorDifference:
    """The difference of a tensor of network `b` from its counterpart in network `a`.

    The docstring of `compare` explains the fields.
    """

    a: str
    b: str
    by: str
    kind: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    nan: tuple[int, int]
    inf: tuple[int, int]
    reason: str
    absolute: float = _UNKNOWN_FIGURE
    relative: float = _UNKNOWN_FIGURE
    excess: float = _UNKNOWN_FIGURE
    snr: float = _UNKNOWN_FIGURE
    ulps: float = _UNKNOWN_FIGURE
    saturated: float = _UNKNOWN_FIGURE
    own: str | None = None
    own_excess: float = _UNKNOWN_FIGURE
    own_snr: float = _UNKNOWN_FIGURE


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Comparison(Result):
    """The result of `compare`: a `TensorDifference` for each pair of tensors, in the order of `a`.

    Args:
        tensors: the difference of each pair. The keys are names in `a`.
        unmatched: the names of tensors without a partner, in two tuples with the keys "a" and "b".
        rtol: the relative tolerance.
        atol: the absolute tolerance.
        isolated: whether layers of `b` were also run on tensors of `a`. The field `own` of each
            difference then tells why the layer differs by itself.
    """

    tensors: Mapping[str, TensorDifference]
    unmatched: Mapping[str, tuple[str, ...]]
    rtol: float
    atol: float
    isolated: bool = False

    @property
    def first(self) -> TensorDifference | None:
        """Return the difference of the first tensor that differs, or None."""
        for tensor_difference in self.tensors.values():
            if tensor_difference.reason:
                return tensor_difference
        return None

    @property
    def origins(self) -> tuple[str, ...]:
        """Return the names of the tensors at which a difference arises.

        These tensors differ even if they are computed from operands with the values of `a`.
        """
        return tuple(name for name, x in self.tensors.items() if x.own)

    def to_dict(self) -> dict[str, object]:
        """Return a dict of all fields, and of `first` and `origins`. JSON can hold its values.

        `first` is the name in `a` of the first tensor that differs, or None. `origins` is a list.
        """
        first = None if self.first is None else self.first.a
        return super().to_dict() | {"first": first, "origins": list(self.origins)}

    def table(self, *, differing: bool = False) -> Table:
        """Return a table with a line for each pair of tensors.

        If `differing`, the table only has the pairs that differ.
        """
        columns = ["a", "b", "operation", "shape", "dtype", "absolute", "relative", "SNR in dB"]
        columns += ["ulps", "differs"]
        if self.isolated:
            columns.append("by itself")
        tensors = list(self.tensors.values())
        if differing:
            tensors = [x for x in tensors if x.reason]
        return table_of(self._title(), columns, map(self._row, tensors))

    def _title(self) -> str:
        """Return the title of the table, such as "8 tensors, none differs, 2 of a unmatched"."""
        verdict = "none differs"
        first = self.first
        if first is not None:
            verdict = f"the first that differs is {first.a}: {first.reason}"
        title = f"{len(self.tensors)} tensors, {verdict}"
        unmatched_counts = [
            f"{len(names)} of {network}" for network, names in self.unmatched.items() if names
        ]
        if unmatched_counts:
            title += f", {' and '.join(unmatched_counts)} unmatched"
        return title

    def _row(self, x: TensorDifference) -> list[Any]:
        """Return the cells of the table for one tensor."""
        name_in_b = x.b if x.b != x.a else ""
        distinct_dtypes = dict.fromkeys(x.dtypes)
        shape, _ = x.shapes
        row: list[Any] = [x.a, name_in_b, x.kind, show(shape), " ".join(distinct_dtypes)]
        row += [x.absolute, x.relative, x.snr, x.ulps, x.reason or "ok"]
        if self.isolated:
            # The field `own` is None if the layer was not run by itself. The cell is then empty.
            does_not_differ = x.own == ""
            row.append("ok" if does_not_differ else x.own)
        return row

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the error of each tensor, divided by the tensor's root mean square. Return the axes.

        The first tensor that differs is marked. If `isolated`, bars show the error of each layer on
        the operands of `a`.
        """
        ax = axes(ax, size=(8, 4))
        tensors = list(self.tensors.values())
        errors = [_relative_error(x.snr) for x in tensors]
        own_errors = [_relative_error(x.own_snr) for x in tensors]
        # The axis is logarithmic. An error of 0 is drawn at the lower end of the axis.
        positive_errors = [error for error in errors + own_errors if 0 < error < np.inf]
        lower_end = min(positive_errors, default=1e-8) / 3
        positions = np.arange(len(tensors))
        if self.isolated:
            bar_heights = np.fmax(own_errors, lower_end)  # `fmax` replaces NaN.
            colours = ["#e8b4ad" if x.own else "#c9d3df" for x in tensors]
            ax.bar(positions, bar_heights, color=colours, label="made here", width=0.8)
        # An error of NaN stays NaN. matplotlib draws no point for NaN.
        heights = [max(error, lower_end) for error in errors]
        style: Any = {"color": "#1f4e79", "marker": "o", "markersize": 3, "lw": 1.2}
        ax.plot(positions, heights, label="error", **style)
        first = self.first
        if first is not None:
            position = tensors.index(first)
            label = literally(f"the first that differs: {first.a}, {first.reason}")
            ax.plot(position, heights[position], "o", color="#c0392b", markersize=6, label=label)
        ax.set_yscale("log")
        ax.set_ylim(lower_end)
        ax.set_ylabel("error / root mean square")
        ax.margins(x=0.01)
        if len(tensors) <= _MOST_LABELLED:
            names = [literally(x.a) for x in tensors]
            ax.set_xticks(positions, names, rotation=60, ha="right", fontsize=8)
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

    Each of `a` and `b` is a model, a dict from names to arrays, or a function of the inputs. The
    arrays of a dict were recorded by another engine (`numpy.load` of a .npz is such a dict). A
    function returns such a dict, or the outputs as an array or a tuple of arrays. Models may differ
    in format and dtype. A model runs as it is written, without passes; a model with state runs one
    cycle from its initial state. All tensors of both networks are in memory together.

    The field `by` tells how a pair of tensors was matched:

    - "given": the pair is in `names`.
    - "name": the names are equal, or become equal if only letters and digits are kept.
    - "output": both tensors are output i, and the networks have equally many outputs.
    - "position": the kinds of operations, such as "conv", and the shapes are equal. Between two
      matched pairs, these pairs form a longest common sequence.

    A tensor differs if an item is out of tolerance: `|b - a| > atol + rtol * max(|a|, rms of a)`,
    where rms is the root mean square. `reason` is "" for a tensor that does not differ, and
    otherwise "shape", "dtype" (another kind: logical, integer, floating-point or complex), "nan" or
    "inf" (at other positions), "saturation", or "values". The reason is "saturation" if most items
    out of tolerance are saturated: one tensor has its minimum or maximum there, several of its
    items are equal to this extreme, and the other tensor goes beyond the extreme.

    `to_dict()` is `{"tensors": {name in a: {"a", "b", "by", "kind", "shapes", "dtypes", "nan",
    "inf", "reason", "absolute", "relative", "excess", "snr", "ulps", "saturated", "own",
    "own_excess", "own_snr"}}, "unmatched": {"a": [...], "b": [...]}, "first": name or None,
    "origins": [...], "rtol", "atol", "isolated"}`. `nan` is the numbers of NaNs in a and in b, and
    `inf` is the numbers of infinities. `absolute` and `relative` are the largest errors, `excess`
    is the largest error divided by its tolerance, `snr` is the signal-to-noise ratio in dB, `ulps`
    is the largest error in steps of the coarser dtype, and `saturated` is the share of saturated
    items among the items out of tolerance. A figure that cannot be computed is NaN.

    Args:
        a: the reference.
        b: the network that is compared with the reference.
        inputs: the inputs of a call of each network, in order, or one dict from names to inputs.
        names: a dict from names in a to names in b, for pairs that the other rules do not match.
        rtol: the relative tolerance.
        atol: the absolute tolerance.
        isolate: whether each layer of `b`, which must be a model, is also run on the tensors of
            `a`. Then `own` is the reason why the layer differs by itself. The field `own` is "" if
            the layer only inherits its error, and None if the layer was not run on tensors of `a`.
            Operands that `a` lacks are computed from tensors of `a`.

    Raises InputError for inputs that a model does not take, for unknown `names`, and if no tensor
    is matched. Raises TypeError or ValueError for wrong arguments.

    >>> result = nnef_jax.analysis.compare(model, half, image, rtol=1e-2)
    >>> result.first.a, result.first.reason
    """
    require("rtol", rtol, int | float, "a number")
    require("atol", atol, int | float, "a number")
    are_tolerances = rtol >= 0 and atol >= 0 and rtol + atol > 0
    if not are_tolerances:
        raise ValueError(f"rtol and atol must not be negative nor both 0: {rtol}, {atol}")
    require_flags(isolate=isolate)
    given_pairs = word_pairs("names", names or {}, "names in b by names in a")
    if isolate and not isinstance(b, Model):
        raise TypeError(f"isolate runs layers of b, a nnef_jax.Model, it is {shown(b)}")
    arrays_a, kinds_a = _tensors("a", source=a, other=b, inputs=inputs)
    arrays_b, kinds_b = _tensors("b", source=b, other=a, inputs=inputs)
    pairs = match(kinds_a, kinds_b, given_pairs)
    if not pairs:
        hint = "give names={name in a: name in b}"
        raise InputError("no tensor of a is found in b", hint=hint)
    isolated: Mapping[str, Array] = {}
    if isolate:
        assert isinstance(b, Model)
        isolated = _isolated(b, inputs, pairs, arrays_a, arrays_b)

    def tensor_difference(pair: Pair) -> TensorDifference:
        """Return the difference of two paired tensors."""
        x = arrays_a[pair.a]
        y = arrays_b[pair.b]
        reason, figures = difference(y, reference=x, rtol=rtol, atol=atol)
        own_fields: dict[str, Any] = {}
        if pair.b in isolated:
            own_reason, own_figures = difference(
                isolated[pair.b], reference=x, rtol=rtol, atol=atol
            )
            own_fields = {
                "own": own_reason,
                "own_excess": own_figures["excess"],
                "own_snr": own_figures["snr"],
            }
        return TensorDifference(
            a=pair.a,
            b=pair.b,
            by=pair.by,
            kind=kinds_a[pair.a].kind or kinds_b[pair.b].kind,
            shapes=(x.shape, y.shape),
            dtypes=(x.dtype.name, y.dtype.name),
            nan=(_count(np.isnan, x), _count(np.isnan, y)),
            inf=(_count(np.isinf, x), _count(np.isinf, y)),
            reason=reason,
            **figures,
            **own_fields,
        )

    paired_a = {pair.a for pair in pairs}
    paired_b = {pair.b for pair in pairs}
    return Comparison(
        tensors={pair.a: tensor_difference(pair) for pair in pairs},
        unmatched={
            "a": tuple(name for name in kinds_a if name not in paired_a),
            "b": tuple(name for name in kinds_b if name not in paired_b),
        },
        rtol=float(rtol),
        atol=float(atol),
        isolated=isolate,
    )


def _tensors(
    side: str, source: Run, other: Run, inputs: tuple[Input, ...]
) -> tuple[dict[str, Array], dict[str, TensorKind]]:
    """Return a dict from names to arrays of one network, and a dict from names to `TensorKind`s.

    Args:
        side: "a" or "b", the name of the network in errors.
        source: the network.
        other: the other network. If `other` is a model, and `source` is a function that returns
            outputs without names, these outputs get the names of the model's outputs.
        inputs: the inputs of a call.
    """
    if isinstance(source, Model):
        try:
            return _tensors_of_model(source, inputs)
        except NnefError as error:
            error.message = f"{side}: {error.message}"
            raise
    recorded: Any = source
    if not isinstance(source, Mapping):
        recorded = _result_of_call(side, source, inputs)
    output_names: list[str] = []
    if isinstance(other, Model):
        output_names = [spec.name for spec in other.outputs]
    if not isinstance(recorded, Mapping):
        recorded = _outputs_by_name(recorded, output_names)
        output_names = list(recorded)
    arrays = _recorded_arrays(side, recorded)
    positions = {name: position for position, name in enumerate(output_names)}
    kinds: dict[str, TensorKind] = {}
    for name, array in arrays.items():
        # Recorded tensors and results of functions do not tell which operation computed them.
        kinds[name] = TensorKind(kind="", shape=array.shape, output=positions.get(name))
    return arrays, kinds


def _result_of_call(side: str, function: object, inputs: tuple[Input, ...]) -> Any:
    """Call a function with the inputs, and return its result.

    `side` is "a" or "b", the name of the network in errors. Raises TypeError if `function` cannot
    be called.
    """
    if not callable(function):
        expected = "a model, a dict of arrays by name or a function of the inputs"
        raise TypeError(f"{side} must be {expected}, it is {shown(function)}")
    args, kwargs = arguments_of(inputs)
    return function(*args, **kwargs)


def _recorded_arrays(side: str, recorded: Mapping[Any, Any]) -> dict[str, Array]:
    """Return the arrays in a dict of recorded tensors, after checking that they hold numbers.

    `side` is "a" or "b", the name of the network in errors.
    """
    try:
        values_by_name: dict[Any, Any] = dict(recorded)
    except Exception as reason:
        # If `recorded` is an open .npz file, `dict` reads the file. numpy may then raise any
        # exception.
        raise InputError(f"{side}: its arrays cannot be read: {reason}") from None
    arrays: dict[str, Array] = {}
    for name, value in values_by_name.items():
        array = numpy_of(value, InputError, f"{side}: '{name}' is not an array")
        if kind_of(array) not in "bifc":
            raise InputError(f"{side}: '{name}' holds no numbers, its dtype is {array.dtype}")
        arrays[str(name)] = array
    return arrays


def _outputs_by_name(returned: Any, names: list[str]) -> dict[str, Any]:
    """Return a dict from names to the outputs of a function.

    The outputs in a named tuple have the names of its fields. All other outputs have the names in
    `names`. If there are more or fewer names than outputs, the outputs are named "output0",
    "output1" and so on.
    """
    outputs: list[Any] = [*returned] if isinstance(returned, tuple | list) else [returned]
    if len(names) != len(outputs):
        names = [f"output{i}" for i in range(len(outputs))]
    # Only a named tuple has the attribute `_fields`.
    fields = getattr(returned, "_fields", names)
    return dict(zip(fields, outputs, strict=True))


def _tensors_of_model(
    model: Model, inputs: tuple[Input, ...]
) -> tuple[dict[str, Array], dict[str, TensorKind]]:
    """Return a dict from names to tensors of a model, and a dict from names to `TensorKind`s."""
    values = bound(model, inputs)
    graph = graph_for(model, values)
    layers = layers_of(graph)
    output_positions: dict[str, int] = {}
    for position, value in enumerate(graph.outputs):
        output_positions.setdefault(value.name, position)
    captured = model.intermediates(*values, names=list(layers)) if layers else {}
    arrays: dict[str, Array] = {}
    kinds: dict[str, TensorKind] = {}
    for name, layer in layers.items():
        array = np.asarray(captured[name])
        arrays[name] = array
        kinds[name] = TensorKind(layer.kind, array.shape, output_positions.get(name))
    return arrays, kinds


def _isolated(
    model: Model,
    inputs: tuple[Input, ...],
    pairs: list[Pair],
    arrays_a: Mapping[str, Array],
    arrays_b: Mapping[str, Array],
) -> dict[str, Array]:
    """Return a dict from names to tensors of the model `b`, computed from the values of `a`.

    One run computes all tensors. The run records each paired tensor, and then replaces it by its
    counterpart in `a`. Later operations therefore read the values of `a`.
    """
    replacements = _replacements(pairs, arrays_a, arrays_b)
    if not replacements:
        return {}
    model = without_mesh(model)
    cycle = cycle_of(model)

    @jax.jit
    def run_with_replacements(
        params: Params, state: State, values: list[jax.Array], counterparts: dict[str, jax.Array]
    ) -> dict[str, jax.Array]:
        """Return the tensors of one run. Their operands are replaced by `counterparts`."""
        computed: dict[str, jax.Array] = {}

        def record_and_replace(name: str, x: jax.Array) -> jax.Array:
            computed[name] = x
            return counterparts[name]

        edits: dict[str, Callable[[Any], Any]] = {}
        for name in counterparts:
            edits[name] = partial(record_and_replace, name)
        # With results=False, the results of the network are not computed. The run computes only the
        # tensors of `counterparts`, and the tensors on which these depend.
        probe = replace(Probe.of(edits, list(counterparts)), results=False)
        cycle(params, state, values, probe)
        return computed

    values = bound(model, inputs)
    # The run needs only the parameters and states on which the captured tensors depend.
    captures = Probe(capture=tuple(replacements), results=False)
    params, state = arrays_read(model, values, captures)
    computed = run_with_replacements(params, state, values, replacements)
    return {name: np.asarray(x) for name, x in computed.items()}


def _replacements(
    pairs: list[Pair], arrays_a: Mapping[str, Array], arrays_b: Mapping[str, Array]
) -> dict[str, Array]:
    """Return the arrays of `a` that can replace tensors of `b`. The keys are names in `b`.

    An array can replace its partner if both have equal shapes and the same kind of dtype.
    """
    replacements: dict[str, Array] = {}
    for pair in pairs:
        array_a = arrays_a[pair.a]
        array_b = arrays_b[pair.b]
        has_equal_shape = array_a.shape == array_b.shape
        if has_equal_shape and kind_of(array_a) == kind_of(array_b):
            replacements[pair.b] = array_a.astype(array_b.dtype)
    return replacements


def _count(test: Callable[[Array], Array], x: Array) -> int:
    """Return the number of items for which a test, `np.isnan` or `np.isinf`, is true."""
    if kind_of(x) in "bi":
        return 0  # Logical values and integers are neither NaN nor infinite.
    if x.dtype.kind == "V":  # numpy gives bfloat16 and float8 the kind "V".
        x = x.astype(np.float64)
    return int(test(x).sum())


def _relative_error(snr: float) -> float:
    """Return the relative error for `snr`, a signal-to-noise ratio in dB. 20 dB give 0.1.

    The relative error is the root mean square of the errors, divided by the root mean square of
    the reference.
    """
    return float(10 ** (-snr / 20))
