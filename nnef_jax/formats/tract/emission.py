"""Put operations of the dialect into a graph, with the casts that it leaves to its reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from jax.errors import InconclusiveDimensionOperation
from numpy.typing import NDArray

from lowering.builder import GraphBuilder
from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN, volume
from lowering.graph import Rule, Value
from nnef_jax.errors import NnefError, UnsupportedError
from nnef_jax.formats.base import ExtentNeeded, Options
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.emission import Emitter, Frame
from nnef_jax.formats.syntax.tensors import result_count
from nnef_jax.formats.syntax.types import ArrayOf
from nnef_jax.formats.tract import datum, declarations
from nnef_jax.formats.tract.arguments import attribute, is_attribute
from nnef_jax.formats.tract.folding import fold
from nnef_jax.formats.tract.host import Host, NotFolded, boxes, host, integers, is_plain
from nnef_jax.formats.tract.operations import meanings
from nnef_jax.formats.tract.promotion import (
    Defaults,
    common_dtype,
    converted,
    own_dtype,
    typed,
)
from nnef_jax.limits import LETTERS_PER_STEP, RESULT

DATUM_TYPES = frozenset(
    {
        "to", "datum_type", "acc", "acc_datum_type", "output", "output_type", "output_dt",
        "out_dt", "scale_dt",
    }
)  # fmt: skip
# Operations with a bias, stored in steps of the product of the two other scales where these are
# quantised, and operations whose result has the steps of their operand.
_BIASED = ("conv", "deconv", "linear")
_KEEPS_SCALE = frozenset(
    {
        "copy", "reshape", "transpose", "squeeze", "unsqueeze", "slice", "pad", "max_pool", "relu",
        "tract_core_cast",
    }
)  # fmt: skip
_LARGEST_ATTRIBUTE = 4096  # items of a parameter that may stand for an attribute
_LARGEST_SHAPE = 16
_APPLICATION = 40  # steps, beside one for each item of a known value
_STORED_PER_STEP = 8  # items of a parameter made host values

WEIGHTY = frozenset({list, tuple, str, np.ndarray})  # values that have a weight

# How documents say operations, by their first results: name, operands and attributes.
Said = dict[Value, tuple[str, Mapping[str, Any], Mapping[str, Any]]]


class Results(tuple[Any, ...]):
    """The results of an operation that has several."""


class TractEmitter(Emitter):
    """Applies declared operations to tensors of the graph, host values, and numbers and lists."""

    def __init__(self, options: Options) -> None:
        integer = datum.compute_dtype("int64", options.real)
        builder = GraphBuilder(real=options.real, integer=integer)
        super().__init__(builder, options.meter)
        self.constants: dict[Value, NDArray[Any]] = {}  # parameters, as they are stored
        # Steps of tensors that graph.quant names, an array where each channel has its own.
        self.scales: dict[Value, NDArray[Any]] = {}
        self.is_open = True  # whether UNKNOWN may stand for an extent
        self.said: Said = {}
        self.defaults = Defaults(builder.real, builder.integer, self.constants.keys())

    def located(self, compute: Callable[[], Any], node: s.Node, frame: Frame) -> Any:
        """Return what is computed; raise a located error where it refuses its arguments."""
        kind = getattr(node, "operation", "") or getattr(node, "operator", "")
        try:
            return compute()
        except NnefError as error:  # of a member of the archive, say
            if error.span is None:
                error.span, error.calls = s.span_in(frame.source, node), frame.calls
            raise
        except InvalidOperation as error:
            raise self.invalid(error, kind, {}, node, frame) from None
        except InconclusiveDimensionOperation:
            raise UnsupportedError(
                f"'{kind}' depends on more of an extent than is known while it is symbolic",
                span=s.span_in(frame.source, node),
                calls=frame.calls,
                hint="export it for known shapes",
            ) from None

    def invalid(
        self,
        error: InvalidOperation,
        kind: str,
        operands: Mapping[str, Any],
        node: s.Node,
        frame: Frame,
    ) -> NnefError:
        """Return the located error, which speaks the document's names of arguments."""
        if meaning := meanings().get(kind):
            said = meaning.in_document
            error = type(error)(said(error.message), said(error.hint))
            operands = {said(f"'{name}'")[1:-1]: x for name, x in operands.items()}
        return super().invalid(error, kind, operands, node, frame)

    def apply(
        self,
        kind: str,
        arguments: Mapping[str, Any],
        node: s.Node,
        frame: Frame,
        names: Sequence[str],
        rule: Rule | None = None,
    ) -> Any:
        """Return an operation's result, on the host if all is known; `rule` is a user's own."""

        def compute() -> Any:
            self.spend(_APPLICATION, node, frame)
            declared = declarations.declarations()[kind]
            items = declarations.operands(kind)
            operands: dict[str, Any] = {}
            attributes: dict[str, Any] = {}
            for parameter in declared.parameters:
                value = arguments[parameter.name]
                if parameter.name in items:
                    operands[parameter.name] = self._operand(value, parameter, node, frame)
                else:
                    attributes[parameter.name] = self._attribute(value, parameter)
            try:
                known = self._known_operands(operands)
                if all(map(_is_known, known.values())):
                    result = fold(kind, known, attributes)
                    self.spend(weight(result), node, frame)
                    return Results(result) if isinstance(result, list) else result
            except NotFolded:
                pass
            if kind in _BIASED:
                operands["bias"] = self._bias(operands, node, frame)
            unified = self._unified(declared.name, items, operands, node, frame)
            self.spend(_result_steps(kind, unified, attributes), node, frame)
            results = self._results(kind, unified, attributes, node, frame, names, rule)
            read = next(iter(operands.values()), None)
            if kind in _KEEPS_SCALE and isinstance(read, Value) and read in self.scales:
                self.scales[results[0]] = self.scales[read]
            if len(results) == 1:
                return Results(results[0]) if isinstance(results[0], list) else results[0]
            return Results(results)

        return self.located(compute, node, frame)

    def apply_own(
        self,
        rule: Rule,
        kind: str,
        arguments: Mapping[str, Any],
        node: s.Node,
        frame: Frame,
        names: Sequence[str],
    ) -> Any:
        """Apply a user's rule to a fragment: tensors are operands, known values attributes."""
        operands = {n: x for n, x in arguments.items() if _holds_tensors([x])}
        attributes = {n: _plain(x) for n, x in arguments.items() if n not in operands}
        results = self.emit(kind, operands, attributes, node, frame, names, rule)
        return results[0] if len(results) == 1 else Results(results)

    def _results(
        self,
        kind: str,
        operands: Mapping[str, Any],
        attributes: Mapping[str, Any],
        node: s.Node,
        frame: Frame,
        names: Sequence[str],
        rule: Rule | None,
    ) -> tuple[Any, ...]:
        """Return the results in the graph: by a user's rule, else as the kind it is."""
        if rule is not None:
            return self.emit(kind, operands, attributes, node, frame, names, rule)
        stem = names[0] if names else frame.prefix + kind

        def insert(
            kind: str, operands: Mapping[str, Any], attributes: Mapping[str, Any], part: str
        ) -> Value:
            wanted = [self.builder.unreserved(f"{stem}.{part}")]
            return self.emit(kind, operands, attributes, node, frame, wanted, inserted=True)[0]

        meaning = meanings()[kind]
        try:
            draft = meaning.draft(operands, attributes, insert)
        except InvalidOperation as error:
            raise self.invalid(error, kind, operands, node, frame) from None
        arguments = draft.operands, draft.attributes
        results = self.emit(draft.kind, *arguments, node, frame, names, shown=kind)
        first = results[0]
        if first and isinstance(first, list):
            first = cast(list[Any], first)[0]
        if isinstance(first, Value):
            self.said[first] = kind, operands, attributes
        return results

    def _bias(self, operands: Mapping[str, Any], node: s.Node, frame: Frame) -> Any:
        """Return the bias in real numbers, also where it is stored in steps that no entry gives."""
        input, filter, bias = (operands[name] for name in ("input", "filter", "bias"))
        if not isinstance(bias, Value) or not bias.type.dtype.startswith("int"):
            return bias
        scales = [
            self.scales[x] for x in (input, filter) if isinstance(x, Value) and x in self.scales
        ]
        if len(scales) < 2:
            return bias
        step = scales[0] * scales[1]
        if step.ndim and step.size == volume(bias.type.shape):
            step = step.reshape(bias.type.shape)
        real = self.cast(bias, self.builder.real, node, frame)
        return self.apply("mul", {"x": real, "y": step}, node, frame, [f"{bias.name}_real"])

    def _attribute(self, value: Any, parameter: s.Parameter) -> Any:
        if is_attribute(value, parameter.type) and parameter.name not in DATUM_TYPES:
            return value
        try:
            found = attribute(self.known(value), parameter.type)
            if parameter.name in DATUM_TYPES and found:
                found = datum.dtype_of(found, self.builder.real)
            self._require_known(found)
            return found
        except InvalidOperation as error:
            message = f"'{parameter.name}': {error.message}"
            raise type(error)(message, error.hint) from None

    def _require_known(self, value: Any) -> None:
        if isinstance(value, list | tuple):
            for item in cast(list[Any], value):
                self._require_known(item)
        elif value is UNKNOWN and not self.is_open:
            raise InvalidOperation(
                "a whole number is due, this is none, or one that no shape of the inputs tells"
            )

    def known(self, value: Any) -> Any:
        """Return the value with its parameters of few items as what is stored of them."""
        if isinstance(value, list | tuple):
            return type(value)(self.known(item) for item in value)  # pyright: ignore[reportUnknownArgumentType]
        if isinstance(value, Value) and value in self.constants:
            stored = self.constants[value]
            if stored.size > _LARGEST_ATTRIBUTE:
                return value
            self.meter.spend(stored.size // _STORED_PER_STEP)
            return host(stored)
        return value

    def _known_operands(self, operands: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the operands; beside known ones, parameters that may be shapes are known too."""
        if not any(_is_known(x) for x in operands.values()):
            return operands

        def known(x: Any) -> Any:
            if isinstance(x, list):
                return [known(item) for item in cast(list[Any], x)]
            stored = self.constants.get(x) if isinstance(x, Value) else None
            if stored is None or stored.size > _LARGEST_SHAPE:
                return x
            return host(stored) if stored.dtype.name in ("int32", "int64") else x

        return {name: known(x) for name, x in operands.items()}

    def _operand(self, value: Any, parameter: s.Parameter, node: s.Node, frame: Frame) -> Any:
        """Return a tensor, a known value, False for one that is left out, or a list of tensors."""
        if value is False and parameter.default == s.Literal(0, False):
            return False
        if not isinstance(parameter.type, ArrayOf):
            return self._one_operand(value, parameter.name, node, frame)
        items = cast(list[Any], value if isinstance(value, list | tuple) else [value])
        return [
            self._one_operand(item, f"{parameter.name}[{i}]", node, frame)
            for i, item in enumerate(items)
        ]

    def _one_operand(self, value: Any, name: str, node: s.Node, frame: Frame) -> Value | Host:
        if isinstance(value, Value):
            return value
        if _holds_tensors(value):
            return self.apply("stack", {"values": value, "axis": 0}, node, frame, ())
        try:
            return host(value)
        except InvalidOperation as error:
            raise InvalidOperation(f"'{name}': {error.message}") from None

    def _unified(
        self,
        kind: str,
        items: Mapping[str, str | None],
        operands: Mapping[str, Any],
        node: s.Node,
        frame: Frame,
    ) -> dict[str, Any]:
        """Return operands of one item type in one dtype; nonzero numbers are logically true."""
        dtypes = {"logical": "bool"}
        for item in ("?", "scalar"):
            group = [
                x
                for name, operand in operands.items()
                if items[name] == item and operand is not False
                for x in (operand if isinstance(operand, list) else [operand])
            ]
            if group:
                exact = kind == "div"  # where a whole divisor does not mean integers
                dtypes[item] = common_dtype(group, item, self.defaults, exact=exact)
        if kind == "sub" and dtypes["?"] == "bool":
            dtypes["?"] = self.builder.integer  # with it begin sums over logical values: counts

        def unify(x: Any, item: str | None) -> Any:
            if isinstance(x, list):
                return [unify(part, item) for part in cast(list[Any], x)]
            if x is False:
                return x
            dtype = dtypes.get(item or "")
            if isinstance(x, Value):
                return self.cast(x, dtype, node, frame) if dtype else x
            if item == "integer":
                x = boxes(integers(x)).reshape(x.shape)
                self._require_known(x.ravel().tolist())
            dtype = dtype or own_dtype(x, item, self.defaults)
            if x.ndim == 0 and is_plain(x.ravel()):
                return self.literal(x, dtype)
            return self.tensor(x, dtype, node, frame)

        return {name: unify(operand, items[name]) for name, operand in operands.items()}

    def literal(self, value: Host, dtype: str) -> Any:
        """Return a known value of one item as a literal of a dtype."""
        try:
            return typed(value, dtype)
        except OverflowError:
            x64 = "jax's x64 mode keeps 64 bits: jax.config.update('jax_enable_x64', True)"
            message = f"{value.item()} does not fit {dtype}"
            raise InvalidOperation(message, hint=x64 if dtype == "int32" else "") from None

    def _literals(self, known: Host, dtype: str) -> tuple[Any, ...]:
        wanted = jnp.dtype(dtype)
        if known.size and jnp.issubdtype(wanted, jnp.integer):
            for extreme in (known.min(), known.max()):  # all are of the dtype where these are
                self.literal(host(extreme), dtype)
        elif wanted != np.bool_:
            known = known.astype(np.float64)
        with np.errstate(all="ignore"):  # what a small real type does not have becomes infinite
            return tuple(known.astype(wanted).ravel().tolist())

    def cast(
        self, x: Value, dtype: str, node: s.Node, frame: Frame, names: Sequence[str] = ()
    ) -> Value:
        """Return a tensor in a dtype."""
        if x.type.dtype == dtype:
            return x
        wanted = names or [self.builder.unreserved(f"{x.name}_{dtype}")]
        (result,) = self.emit("cast", {"input": x}, {"dtype": dtype}, node, frame, wanted)
        stored = self.constants.get(x)
        if stored is not None:  # still known when the document is flattened
            is_small = stored.size <= _LARGEST_ATTRIBUTE
            self.constants[result] = converted(stored, dtype) if is_small else stored
        return result

    def tensor(
        self, value: Any, dtype: str, node: s.Node, frame: Frame, names: Sequence[str] = ()
    ) -> Value:
        """Return a value as a tensor of a dtype; '' keeps its own."""
        if _holds_tensors(value):
            value = self.apply("stack", {"values": value, "axis": 0}, node, frame, names)
        if isinstance(value, Value):
            return self.cast(value, dtype, node, frame) if dtype else value
        try:
            known = host(value)
            dtype = dtype or own_dtype(known, None, self.defaults)
            items = tuple(known.ravel().tolist())
            self._require_known(items)
            if is_plain(items):
                items = self._literals(known, dtype)
        except InvalidOperation as error:
            raise self.invalid(error, "constant", {}, node, frame) from None
        attributes = {"shape": known.shape, "value": items, "dtype": dtype}
        (result,) = self.emit("constant", {}, attributes, node, frame, names)
        return result


def _result_steps(kind: str, operands: Mapping[str, Any], attributes: Mapping[str, Any]) -> int:
    try:
        return RESULT * result_count(kind, operands, attributes)
    except ExtentNeeded:
        raise InvalidOperation(
            "how many results it has depends on an open extent",
            hint="give the shapes of the inputs by load(..., input_shapes=...)",
        ) from None


def weight(value: Any) -> int:
    """Return how many items a value has, through lists and host values; letters count less."""
    if isinstance(value, np.ndarray):
        return value.size
    if isinstance(value, str):
        return len(value) // LETTERS_PER_STEP
    if not isinstance(value, list | tuple):
        return 0
    return len(value) + sum([weight(x) for x in value if type(x) in WEIGHTY])  # pyright: ignore


def _is_known(operand: Any) -> bool:
    if isinstance(operand, list):
        return all(map(_is_known, cast(list[Any], operand)))
    return isinstance(operand, np.ndarray)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_plain, cast(list[Any], value)))
    return value.tolist() if isinstance(value, np.ndarray) else value


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, list) and any(
        isinstance(item, Value) or _holds_tensors(item) for item in cast(list[Any], value)
    )
