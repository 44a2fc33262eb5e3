"""From a document of the dialect to the flat graph.

Names may be assigned again, the last value counts. Values that follow from shapes stay on the host
(`host`), so that they can be shapes again; operations on tensors go into the graph, with the casts
that the dialect leaves to its reader (`promotion`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN, is_known
from lowering.graph import Call, Graph, Value
from lowering.location import Source
from nnef_jax.errors import LimitError, NnefError, kept, raise_all
from nnef_jax.formats.base import Options
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.invocation import InvalidInvocation
from nnef_jax.formats.syntax.quantizer import Quantizer
from nnef_jax.formats.syntax.standard import OPERATORS
from nnef_jax.formats.tract import codes, declarations, special, symbols
from nnef_jax.formats.tract.arguments import attribute, bind
from nnef_jax.formats.tract.document import Document
from nnef_jax.formats.tract.emission import Results, TractEmitter, weight
from nnef_jax.formats.tract.parser import parse
from nnef_jax.formats.tract.quantization import read_quantization, step_of
from nnef_jax.formats.tract.resources import Resources
from nnef_jax.formats.tract.symbolic import symbolic_shape
from nnef_jax.formats.tract.unsupported import refuse_readers_of_padding, refuse_unsupported
from nnef_jax.limits import BINDING, CALL, ERROR, within_memory

_CONSTANTS = {"inf": math.inf, "nan": math.nan}
_LONGEST_PREFIX = 200
_CLOSE = "give the shapes of the inputs by load(..., input_shapes=...)"
# Steps beside those of an expression, by what there is to do.
_ASSIGNMENT = 3
_INVOCATION = 10
_SPECIAL = 30  # an operation that is not computed
_NETWORK = 60  # within another one
_DEEPEST = 100  # fragment calls: none calls itself, so that real ones are few


@dataclass(slots=True)
class Frame:
    """One body being evaluated: the graph's, or a fragment's."""

    fragment: s.Fragment | None
    source: Source
    values: dict[str, Any]
    prefix: str = ""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class Unit:
    """A document, what its archive holds, and the entries of its graph.quant.

    `rounds` says whether tensors that it names are rounded when the network runs, `progress` is
    told how many variables are read; `labels` is what stands before the labels of a network within
    another one.
    """

    document: Document
    resources: Resources
    quantizers: Mapping[str, Quantizer]
    rounds: bool = True
    progress: Callable[[int], None] | None = None
    labels: str = ""


class Poisoned(Exception):
    """An expression reads a name whose own error is already reported."""


class Flattener(TractEmitter):
    """Evaluates one document. `data` collects the stored arrays of the variables by label."""

    def __init__(
        self,
        unit: Unit,
        options: Options,
        extents: Mapping[str, Any],
        data: dict[str, NDArray[Any]],
    ) -> None:
        super().__init__(options)
        self.unit = unit
        self.document = unit.document
        self.options = options
        self.extents = extents  # of symbols
        self.inputs = {parameter.name for parameter in unit.document.graph.parameters}
        self.data = data
        self.decoded: set[str] = set()  # variables that are stored quantised, by their names
        self.entries: dict[Value, Quantizer] = {}  # of tensors that have codes
        self.shapes: dict[Value, Sequence[Any]] = {}  # of inputs, with symbolic extents
        self.given: Mapping[str, Value] | None = None  # the inputs of a network within another
        self.captured: dict[Value, Value] = {}  # variables around a scan, as its body has them
        self.outer: Flattener | None = None  # what the body of a scan is in
        self.root: Flattener = self  # of networks in networks and of the bodies of scans
        # Labels of what a stream keeps, at the root, each with how many were made of it.
        self.states: dict[str, int] = {}
        self.documents: dict[Resources, Document] = {}  # of networks in networks, at the root
        self.errors: list[NnefError] = []

    # The graph

    def flatten(self) -> Graph:
        """The flat graph. Raises NnefError, several at once where they are independent."""
        with within_memory("the flat graph"):
            return self._flatten()

    def _flatten(self) -> Graph:
        graph = self.document.graph
        self.is_open = self._has_open_inputs()
        self.builder.reserve(i.name for a in graph.body for i in s.identifiers(a.target))
        frame = Frame(None, self.document.source, {})
        outputs = self.outputs(frame)
        for name, value in frame.values.items():
            if isinstance(value, Value) and value.name != name:
                self.builder.aliases[name] = value
        names = [result.name for result in graph.results]
        inputs = [parameter.name for parameter in graph.parameters]
        flat = self.builder.graph(graph.name, outputs, names, inputs)
        refuse_readers_of_padding(flat)
        return flat

    def outputs(self, frame: Frame) -> list[Value]:
        """The outputs of the document's graph, once its body is evaluated in a frame."""
        refuse_unsupported(self.document, self.options.registry, self.meter)
        self._check_inputs()
        for assignment in self.document.graph.body:
            targets = [identifier.name for identifier in s.identifiers(assignment.target)]
            names = [frame.prefix + target for target in targets]
            try:
                self._assign(assignment, names, frame)
            except Poisoned:
                frame.values |= dict.fromkeys(targets, Poisoned)
            except LimitError as error:
                error.span = error.span or s.span_in(frame.source, assignment.value)
                raise
            except NnefError as error:
                self.meter.steps += ERROR
                self.errors += kept(error)
                frame.values |= dict.fromkeys(targets, Poisoned)
        outputs = [self._output(result, frame) for result in self.document.graph.results]
        raise_all(self.errors)
        return outputs

    def inner(
        self, label: str, operands: Sequence[Value], prefix: str, calls: tuple[Call, ...]
    ) -> list[Value]:
        """The outputs of another network of the archive for these inputs."""
        if self.outer is not None:
            raise InvalidOperation("the body of a scan cannot have another network in it")
        self.meter.spend(_NETWORK)
        resources = self.unit.resources.submodel(label)
        documents = self.root.documents
        if resources not in documents:
            documents[resources] = parse(resources.graph, self.meter)
        document = documents[resources]
        parameters = [parameter.name for parameter in document.graph.parameters]
        if len(parameters) != len(operands):
            raise InvalidOperation(
                f"network '{label}' takes {len(parameters)} inputs, it is given {len(operands)}"
            )
        given = dict(zip(parameters, operands, strict=True))
        extents = symbols.solve(
            document, {name: self.shape_of(v) for name, v in given.items()}, self.meter
        )
        quantization, quantizers = resources.quantization, dict[str, Quantizer]()
        if quantization is not None:
            quantizers = read_quantization(quantization, document.names, self.meter)
        unit = replace(
            self.unit,
            document=document,
            resources=resources,
            quantizers=quantizers,
            labels=f"{self.unit.labels}{label}/",
        )
        options = replace(self.options, quantizers=quantizers if unit.rounds else {})
        child = Flattener(unit, options, extents, self.data)
        child.builder, child.constants, child.given = self.builder, self.constants, given
        child.root, child.is_open = self.root, self.is_open
        child.shapes = self.shapes
        return child.outputs(Frame(None, document.source, {}, prefix, calls))

    def _check_inputs(self) -> None:
        """Refuse a document whose header has inputs that its body does not declare."""
        declared = symbols.external_shapes(self.document)
        frame = Frame(None, self.document.source, {})
        hint = "write NAME = tract_core_external(shape = [...], datum_type = 'f32');"
        raise_all(
            [
                self.error(f"input '{parameter.name}' is not declared", parameter, frame, hint)
                for parameter in self.document.graph.parameters
                if parameter.name not in declared
            ]
        )

    def _has_open_inputs(self) -> bool:
        """Whether an extent of an input is left open: what depends on it is not known then."""
        given = {**self.options.input_shapes, **self.options.symbolic_shapes}
        declared = symbols.external_shapes(self.document)
        return any(
            extent is None or extent is UNKNOWN for shape in given.values() for extent in shape
        ) or any(
            symbols.evaluate(extent, self.extents) in (0, UNKNOWN)
            for name, shape in declared.items()
            if name not in given
            for extent in shape
        )

    def shape_of(self, value: Value) -> Sequence[Any]:
        """The shape of a tensor, with the extents that `jax.export` keeps symbolic."""
        if is_known(value.type.shape) or not self.options.symbolic_shapes:
            return value.type.shape
        if value not in self.shapes:
            graph = self.builder.graph("", [value], [value.name])
            self.shapes[value] = symbolic_shape(graph, self.options.registry, self.shapes)
        return self.shapes[value]

    def _output(self, result: s.Identifier, frame: Frame) -> Value:
        try:
            value = self.lookup(result, frame)
            return self.tensor(value, "", result, frame, [frame.prefix + result.name])
        except Poisoned:
            pass
        except NnefError as error:
            self.errors.append(error)
        return Value(result.name, cast(Any, None))

    def _assign(self, assignment: s.Assignment, names: Sequence[str], frame: Frame) -> None:
        self.meter.steps += _ASSIGNMENT
        value = self.evaluate(assignment.value, frame, names)
        for name, item in self._unpack(assignment.target, value, frame):
            if frame.fragment is None:
                item = self._quantized(name, item, assignment, frame)
            frame.values[name] = item

    def _unpack(self, target: s.Target, value: Any, frame: Frame) -> Iterator[tuple[str, Any]]:
        match target:
            case s.Identifier(name=name):
                yield name, list(value) if isinstance(value, Results) else value
            case s.Array(items=items) | s.Tuple(items=items):
                parts = cast(list[Any], value if isinstance(value, list | tuple) else [value])
                if len(parts) != len(items):
                    message = f"{len(parts)} results cannot be assigned to {len(items)} names"
                    raise self.error(message, target, frame)
                for item, part in zip(items, parts, strict=True):
                    yield from self._unpack(cast(s.Target, item), part, frame)

    def _quantized(self, name: str, value: Any, node: s.Node, frame: Frame) -> Any:
        """What a name stands for downstream: the value as graph.quant quantises it."""
        entry = self.unit.quantizers.get(name)
        if entry is None:
            return value
        stored = codes.dtype_of(entry)
        if isinstance(value, Value) and value.type.dtype == stored:
            wanted = [self.builder.unreserved(f"{name}_real")]
            result = codes.decoded(self, value, entry, node, frame, wanted)
        elif name in self.decoded or name not in self.options.quantizers:
            result = value
        else:
            value = self.tensor(value, self.builder.real, node, frame, [name])
            inner = Frame(None, entry.source, {name: value}, f"{name}_quantized_")
            node = entry.invocation(name, value.type, variable=value in self.constants)
            result = self.evaluate(node, inner, [self.builder.unreserved(f"{name}_quantized")])
        scale = step_of(entry)
        if isinstance(result, Value) and scale is not None:
            self.scales[result] = scale
        if isinstance(result, Value) and stored:
            self.entries[result] = entry
        return result

    # Expressions

    def evaluate(self, node: s.Expression, frame: Frame, names: Sequence[str] = ()) -> Any:
        """The value of an expression; `names` are wanted for the tensors that it makes."""
        self.meter.steps += 1
        if self.meter.steps > self.limits.steps:
            self.spend(0, node, frame)
        match node:
            case s.Literal(value=value):
                return value
            case s.Identifier():
                return self.lookup(node, frame)
            case s.Array(items=items) | s.Tuple(items=items):
                found = [self.evaluate(item, frame) for item in items]
                self.spend(_nested(found, self.limits.steps), node, frame)
                return found if isinstance(node, s.Array) else tuple(found)
            case s.Unary(operand=operand):
                return self.apply("neg", {"x": self.evaluate(operand, frame)}, node, frame, names)
            case s.Binary(operator=operator, left=left, right=right):
                operands = {"x": self.evaluate(left, frame), "y": self.evaluate(right, frame)}
                return self.apply(OPERATORS[operator], operands, node, frame, names)
            case s.Subscript(sequence=sequence, index=index):
                values, position = self.evaluate(sequence, frame), self.evaluate(index, frame)
                return self._item(values, position, node, frame)
            case s.Invocation():
                return self._invoke(node, frame, names)
            case _:
                raise self.error("this cannot be computed in the dialect", node, frame)

    def lookup(self, node: s.Identifier, frame: Frame) -> Any:
        """What a name stands for: a value of the body, a symbol, or infinity."""
        name = node.name
        if name in frame.values:
            if frame.values[name] is Poisoned:
                raise Poisoned
            return frame.values[name]
        if name in self.extents:
            # The length of a stream stays open: what it is for does not need it before its end.
            if self.extents[name] is UNKNOWN and not (self.is_open or self.document.pulsed):
                message = f"the shapes of the inputs do not tell what symbol '{name}' is"
                raise self.error(message, node, frame)
            return self.extents[name]
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        raise self.error(f"'{name}' is not defined here", node, frame)

    def _item(self, values: Any, position: Any, node: s.Node, frame: Frame) -> Any:
        if isinstance(values, Value):  # of a list, which may be long, one item matters
            values = self.known(values)
        is_host = isinstance(values, np.ndarray)
        if not (isinstance(values, list | tuple) or (is_host and values.ndim)):
            raise self.error("only arrays and known values have items", node, frame)
        try:
            index = attribute(self.known(position), special.INTEGER)
        except InvalidOperation as error:
            raise self.error(error.message, node, frame, error.hint) from None
        if index is UNKNOWN:
            raise self.error("which item it is depends on an open extent", node, frame, _CLOSE)
        if not -len(values) <= index < len(values):
            raise self.error(f"there is no item {index} among {len(values)}", node, frame)
        found: Any = values[index]
        return np.asarray(found, values.dtype) if is_host else self.known(found)

    # Invocations

    def _invoke(self, node: s.Invocation, frame: Frame, names: Sequence[str]) -> Any:
        # The bodies of the standard's fragments know only what the standard has.
        is_ours = frame.source is self.document.source
        own = self.document.fragments.get(node.operation) if is_ours else None
        fragment = own or declarations.declarations().get(node.operation)
        if fragment is None:
            raise self.error(f"there is no operation '{node.operation}'", node, frame)
        if own is not None:
            self.refuse_recursion(own, node, frame)
        try:
            if own is not None:
                self.spend(BINDING * len(own.parameters), node, frame)
            given = bind(fragment, node, self.meter, own=own is not None)
        except InvalidInvocation as error:
            raise self.error(error.message, error.node, frame, error.hint) from None
        arguments: dict[str, Any] = {}
        inner: Frame | None = None
        for parameter in fragment.parameters:
            if parameter.name in given:
                arguments[parameter.name] = self.evaluate(given[parameter.name], frame)
            elif parameter.default is not None:
                if inner is None:
                    calls = self._calls(fragment, node, frame)
                    inner = Frame(fragment, fragment.source, {}, "", calls)
                arguments[parameter.name] = self.evaluate(parameter.default, inner)
        self.spend(_INVOCATION + 2 * weight(list(arguments.values())), node, frame)
        if own is not None:
            return self._call(own, arguments, node, frame, names)
        form = special.FORMS.get(fragment.name)
        if form is not None:
            self.meter.steps += _SPECIAL
            return self.located(lambda: form(self, arguments, node, frame, names), node, frame)
        if fragment.body is not None and fragment.name not in self.options.registry:
            return self._call(fragment, arguments, node, frame, names)
        operands = codes.with_codes(self, fragment.name, arguments, node, frame)
        return self.apply(fragment.name, operands, node, frame, names)

    def _call(
        self,
        fragment: s.Fragment,
        arguments: dict[str, Any],
        node: s.Node,
        frame: Frame,
        names: Sequence[str],
    ) -> Any:
        """Evaluate the body of a fragment, of the document or of the standard."""
        self.spend(2 * CALL, node, frame)
        inner = self.enter(fragment, arguments, node, frame, names)
        results = [self.lookup(s.Identifier(r.offset, r.name), inner) for r in fragment.results]
        return results[0] if len(results) == 1 else Results(results)

    def refuse_recursion(self, fragment: s.Fragment, node: s.Node, frame: Frame) -> None:
        """Refuse a call of a fragment from inside of it: nothing there could end it."""
        if any(call.fragment == fragment.name for call in frame.calls):
            raise self.error(f"fragment '{fragment.name}' calls itself", node, frame)
        if len(frame.calls) >= _DEEPEST:
            message = f"fragments call each other more than {_DEEPEST} deep"
            span = s.span_in(frame.source, node)
            raise LimitError(message, span=span, calls=frame.calls)

    def _calls(self, fragment: s.Fragment, node: s.Node, frame: Frame) -> tuple[Call, ...]:
        return (*frame.calls, Call(fragment.name, s.span_in(frame.source, node)))

    def enter(
        self,
        fragment: s.Fragment,
        arguments: dict[str, Any],
        node: s.Node,
        frame: Frame,
        names: Sequence[str],
    ) -> Frame:
        """The frame of a fragment's body after its evaluation."""
        calls = self._calls(fragment, node, frame)
        prefix = f"{names[0] if names else frame.prefix + fragment.name}_"[-_LONGEST_PREFIX:]
        inner = Frame(fragment, fragment.source, dict(arguments), prefix, calls)
        own = dict(zip((r.name for r in fragment.results), names, strict=False))
        for assignment in fragment.body or ():
            targets = [identifier.name for identifier in s.identifiers(assignment.target)]
            wanted = [own.get(t) or self.local(prefix + t) for t in targets]
            self._assign(assignment, wanted, inner)
        return inner

    # Bodies of scans

    def child(self) -> Flattener:
        """A flattener for the body of a scan, which becomes a graph of its own."""
        child = Flattener(self.unit, self.options, self.extents, self.data)
        child.outer, child.root, child.is_open = self, self.root, self.is_open
        return child

    def capture(self, outer: Value) -> Value:
        """A variable of the graph around a scan, as the scan's body has it."""
        if outer not in self.captured:
            assert self.outer is not None
            inner = self.builder.input(self.builder.unreserved(outer.name), outer.type)
            self.captured[outer] = inner
            self.constants[inner] = self.outer.constants[outer]
        return self.captured[outer]

    def several(self, results: Sequence[Any]) -> Results:
        """Results that a statement gives names one by one."""
        return Results(results)


def _nested(items: Sequence[Any], most: int) -> int:
    """How many items the lists in a list have, as far as `most`: one may be in it many times."""
    count = 0
    pending = [x for x in items if isinstance(x, list | tuple)]
    while pending and count <= most:
        inner = cast(Sequence[Any], pending.pop())
        count += len(inner)
        pending += [x for x in inner if isinstance(x, list | tuple)]
    return count
