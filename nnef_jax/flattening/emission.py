"""Adds operations to a graph within `Limits`, and gives errors a place in the document."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.errors import ConcretizationTypeError, InconclusiveDimensionOperation

from lowering import GraphBuilder
from lowering.errors import InvalidOperation
from lowering.extents import MAX_RANK, UNKNOWN, Shape, volume
from lowering.graph import Call, Rule, Value, is_integer
from lowering.location import Span
from nnef_jax.errors import LimitError, NnefError, UnsupportedError, family_of
from nnef_jax.flattening.symbolic import SymbolicShapes
from nnef_jax.formats.base import EXPORT_KNOWN, ExtentNeeded, Options
from nnef_jax.limits import EXTENT_STEPS, OPERATION_STEPS, Limits, Meter, raising

ByName = Mapping[str, Any]  # maps parameter names of an operation to operands or attributes
_ARRAYS = frozenset({list, tuple})
_SEQUENCES = _ARRAYS | {str}
# If a node reads a folded tensor, at most this number of the node's results is recorded.
_MOST_RESULTS = 4
# Errors of Python that the functions of operators raise for operands of an unexpected kind.
_PYTHON_ERRORS = (AttributeError, NotImplementedError, TypeError)
_NARROW = {"int64": "int32", "uint64": "uint32", "complex128": "complex64"}


def computation_dtype(dtype: str, real: str) -> str:
    """Return the dtype in which the network computes tensors that are stored in `dtype`.

    `real` is the dtype that the user chose for real numbers; float32 becomes `real`. If jax's x64
    mode is off, float64 becomes `real` too, and 64-bit integers become 32-bit integers.
    """
    if dtype == "float32":
        return real
    if jax.config.read("jax_enable_x64"):
        return dtype
    return real if dtype == "float64" else _NARROW.get(dtype, dtype)


def ends_of(dtype: str) -> tuple[Any, Any]:
    """Return the least and the greatest finite number of a dtype."""
    if dtype == "bool":
        return False, True
    ends: Any = jnp.iinfo(dtype) if is_integer(dtype) else jnp.finfo(dtype)
    return ends.min, ends.max


class Emission:
    """A graph under construction. Adding operations raises LimitError if `limits` are exceeded.

    `integer` is the dtype of integers for which the document declares no dtype.
    """

    def __init__(self, options: Options, integer: str = "int32") -> None:
        self.options = options
        self.builder: GraphBuilder = GraphBuilder(real=options.real, integer=integer)
        self._largest_real = float(jnp.finfo(options.real).max)
        self.meter: Meter = options.meter
        self.limits: Limits = options.meter.limits
        # The symbolic shapes of tensors. None while no extent is a symbol of `jax.export`.
        self.symbolic: SymbolicShapes | None = None
        if options.symbolic_shapes:
            self.symbolic = SymbolicShapes(self.builder)
        self.is_body = False  # True for the body of a loop, scan or branch
        self._checked_shapes = set[Shape]()  # shapes that were already compared with the limits

    def add(
        self,
        kind: str,
        operands: ByName,
        attributes: ByName,
        names: Sequence[str],
        span: Span | None,
        calls: tuple[Call, ...] = (),
        *,
        rule: Rule | None = None,
        inserted: bool = False,
    ) -> tuple[Any, ...]:
        """Add an operation to the graph and return a tuple of its results.

        An array of tensors is returned as a list. `names` are the names of the results. `span` and
        `calls` are the place of the operation in the document. `rule` is the user's rule for the
        kind, if there is one. If `inserted`, the document has no tensors with these names; see
        `Value`.

        Raises InvalidOperation if the operation refuses its operands or attributes, and NnefError
        if the graph exceeds a limit.
        """
        if len(self.builder.operations) >= self.limits.operations:
            message = f"the flat graph has more than {self.limits.operations} operations"
            raise self.beyond(message, "operations", span, calls)
        long_attributes = [x for x in attributes.values() if type(x) in _SEQUENCES]
        operand_arrays = [x for x in operands.values() if type(x) in _SEQUENCES]
        steps = OPERATION_STEPS + sum(map(len, long_attributes))
        steps += sum(map(_steps_to_compare, operand_arrays))
        self.meter.spend(steps, "the network", span, calls)
        operands = {name: self._hashable_operand(x) for name, x in operands.items()}
        attributes = {name: _hashable_attribute(x) for name, x in attributes.items()}
        results = self.builder.operation(
            kind, operands, attributes, names, span, calls, rule=rule, inserted=inserted
        )
        outputs: list[Any] = []
        for result in results:
            if isinstance(result, tuple):  # an array of tensors
                for value in result:
                    self.require_bounds(value, span, calls)
                outputs.append(list(result))
            else:
                self.require_bounds(result, span, calls)
                outputs.append(result)
        return tuple(outputs)

    def _hashable_operand(self, x: Any) -> Any:
        """Return an operand in a hashable form, in which lists become tuples.

        A finite number that exceeds the range of the dtype of real numbers becomes the nearest
        number in the range.
        """
        if type(x) is float:
            exceeds_range = self._largest_real < abs(x) < math.inf
            return math.copysign(self._largest_real, x) if exceeds_range else x
        if type(x) in _ARRAYS:
            return tuple([self._hashable_operand(item) for item in x])
        return x

    def require_bounds(self, value: Value, span: Span | None, calls: tuple[Call, ...] = ()) -> None:
        """Raise NnefError if the rank or the size of a tensor exceeds the limits.

        Open extents and extents of 0 count as 1.
        """
        shape = value.type.shape
        rank = len(shape)
        self.meter.steps += EXTENT_STEPS * rank  # the next call of `spend` checks the limit
        if shape in self._checked_shapes:
            return
        if rank > MAX_RANK:
            message = f"'{value.name}' has {rank} axes, arrays have at most {MAX_RANK}"
            raise UnsupportedError(message, span=span, calls=calls)
        counted_extents = [n for n in shape if n is not UNKNOWN and n != 0]
        item_count = volume(counted_extents)
        if item_count > self.limits.tensor_items:
            message = f"'{value.name}' has {item_count} items, more than {self.limits.tensor_items}"
            raise self.beyond(message, "tensor_items", span, calls)
        self._checked_shapes.add(shape)

    def note_folded(
        self, constants: Iterable[str], nodes: Iterable[tuple[Iterable[str], Sequence[str]]]
    ) -> None:
        """Record the folded constants, and the results of the nodes that read these constants.

        `constants` are the names of the constants that were computed while flattening. `nodes` has
        a pair for each node of the document: the names of the tensors that the node reads, and the
        names of the node's results.
        """
        results_by_constant: dict[str, list[str]] = {}
        for name in constants:
            # If the graph already uses the name, the constant is in the graph and was not folded.
            if not self.builder.is_taken(name):
                results_by_constant[name] = []
        for reads, results in nodes:
            for name in reads:
                if name in results_by_constant:
                    results_by_constant[name] += results[:_MOST_RESULTS]
        for name, results in results_by_constant.items():
            self.builder.folded[name] = tuple(results)

    def hint_to_fix(self, *values: Value) -> str:
        """Return a hint that tells which input of the network to fix, to make `values` constant.

        The hint is "" if this graph is the body of a loop, scan or branch, or if `values` depend on
        a variable. The hint is also "" if `values` depend on an input with several axes, such as an
        image, unless this input is one of `values`.
        """
        if self.is_body:
            return ""
        origins = self.origins(values)
        inputs = [x for x in origins if self.builder.is_input(x)]
        # An input with several axes, such as an image, is not likely to have a fixed value.
        fixable_inputs = [x for x in inputs if x in values or len(x.type.shape) < 2]
        all_are_fixable = len(fixable_inputs) == len(origins)
        if not fixable_inputs or not all_are_fixable:
            return ""
        name = min(x.name for x in fixable_inputs)
        return f"load(..., values={{{name!r}: ...}}) makes it known"

    def origins(self, values: Iterable[Value]) -> set[Value]:
        """Return the inputs and variables of the graph from which `values` are computed."""
        origins = set(values)
        for operation in reversed(self.builder.operations):
            results = tuple(operation.writes())
            if not origins.isdisjoint(results):
                # Each result of the operation is replaced by the operands from which it is
                # computed.
                origins = origins.difference(results).union(operation.reads())
        return origins

    def beyond(
        self, message: str, limit: str, span: Span | None, calls: tuple[Call, ...] = ()
    ) -> LimitError:
        """Return the error for exceeding the limit `limit`, with a hint how to raise the limit."""
        hint = raising(limit)
        if limit == "call_depth":
            hint = f"is the recursion endless? {hint}"
        return LimitError(message, span=span, calls=calls, hint=hint)


def located(
    error: InvalidOperation,
    what: str,
    span: Span | None,
    calls: tuple[Call, ...] = (),
    translate: Callable[[str], str] = str,
    suffix: str = "",
) -> NnefError:
    """Convert an error of an operation or input to an error with a place in the source.

    `what` describes the operation or input and begins the message. `translate` replaces the names
    in the message and in the hint by the words of the document. The message ends with `suffix`.
    """
    error_class = family_of(error)
    message = f"{what}: {translate(error.message)}{suffix}"
    return error_class(message, span=span, calls=calls, hint=translate(error.hint))


def refused(
    error: InvalidOperation,
    kind: str,
    operands: ByName,
    span: Span | None,
    calls: tuple[Call, ...],
    translate: Callable[[str], str] = str,
) -> NnefError:
    """Convert the error of an operation that refuses its operands to an error with a place.

    The message ends with the type of each operand that is a tensor, and the value of each other
    operand. `translate` replaces the names in the message and in the hint by the words of the
    document.
    """
    pairs = ", ".join(f"{name} {show_operand(x)}" for name, x in operands.items())
    shown_operands = f" ({pairs})" if pairs else ""
    return located(error, f"'{kind}'", span, calls, translate, suffix=shown_operands)


def show_operand(operand: object) -> str:
    """Return the text that messages show for an operand. For a tensor, the text is its type."""
    match operand:
        case Value():
            return str(operand.type)
        case tuple() | list():
            return f"[{', '.join(map(show_operand, cast('Sequence[object]', operand)))}]"
        case _:
            return repr(operand)


# A class takes a quarter of the time of a context manager made from a generator.
class locating_errors:
    """A context in which errors get the place of a layer, a node or an input in the source.

    A Python error, such as a TypeError, counts as an error of the file. The functions that flatten
    operators rely, without checks, on the inputs, axes and items that all writers of files provide.

    The context raises such errors, and InvalidOperation, as NnefError. An NnefError or ExtentNeeded
    is not changed.

    An error of jax, or an error of Python that is about symbolic extents, means that the operator
    needs to know an extent. `refusal` is called then, and returns the exception to raise instead,
    or None if no operand depends on a number of items that is counted in a run.
    """

    __slots__ = ("_parts", "_refusal", "_span", "_title")

    def __init__(
        self, title: str, span: Span | None, parts: str = "inputs",
        refusal: Callable[[], InvalidOperation | None] = lambda: None,
    ) -> None:  # fmt: skip
        self._title, self._span, self._parts = title, span, parts
        self._refusal = refusal

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        """Raise an error of the `with` block again, with a place, unless it already has one."""
        refusal = self._refusal() if _is_about_extents(error) else None
        if refusal is not None:
            raise located(refusal, self._title, self._span) from error
        match error:
            case None | ExtentNeeded() | NnefError():
                pass
            case InvalidOperation():
                raise located(error, self._title, self._span) from None
            case InconclusiveDimensionOperation():
                why = "depends on more of an extent than is known while it is symbolic"
                first_line = str(error).strip().splitlines()[0]
                message = f"{self._title} {why}: {first_line}"
                hint = f"{EXPORT_KNOWN}, or cut the network before it"
                raise UnsupportedError(message, span=self._span, hint=hint) from None
            case ArithmeticError() | AttributeError() | LookupError() | TypeError() | ValueError():
                # The file lacks inputs, axes or items on which the flattening function relies.
                message = f"its {self._parts} and attributes do not go together: {error}"
                raise located(InvalidOperation(message), self._title, self._span) from error
            case _:
                pass


def _is_about_extents(error: BaseException | None) -> bool:
    """Tell whether an error says that a value or a type of a symbolic extent does not fit.

    The messages of Python's own errors have the names of the classes of extents.
    """
    if isinstance(error, InconclusiveDimensionOperation | ConcretizationTypeError):
        return True
    texts = ("_DimExpr", "Extent", "dim_as_value", "ymbolic dimension")
    return isinstance(error, _PYTHON_ERRORS) and any(text in str(error) for text in texts)


def _steps_to_compare(operand_array: Sequence[object]) -> int:
    """Return the number of steps that it takes to compare the shapes of an operand array."""
    ranks = [len(x.type.shape) for x in operand_array if isinstance(x, Value)]
    return len(operand_array) + EXTENT_STEPS * sum(ranks)


def _hashable_attribute(attribute: Any) -> Any:
    """Return an equal attribute that is hashable and has only Python's own types.

    Lists become tuples, and numpy's scalars become Python's.
    """
    if type(attribute) in _ARRAYS:
        return tuple([_hashable_attribute(x) for x in attribute])
    if isinstance(attribute, np.generic):
        return attribute.item()
    return attribute
