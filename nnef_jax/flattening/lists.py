"""Lists: tensors whose number of items along an axis is counted in a run.

The extent of such an axis is a symbol of `jax.export`, as if the document had a name for it. In the
types of tensors, such an extent is UNKNOWN. Each symbol has a largest value, so that a run computes
on arrays of fixed shapes. In these arrays padding follows the items, see `lowering.padding`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.errors import InconclusiveDimensionOperation

from lowering import SymbolValues
from lowering.errors import InvalidComputation, UnsupportedOperation
from lowering.extents import (
    Extent,
    Shape,
    at_least,
    has_symbols,
    is_known,
    is_symbolic,
    shapes_differ,
    show,
    volume,
)
from lowering.graph import Call, Operation, Rule, Value, is_float, is_integer
from lowering.location import Span
from lowering.symbol_values import Dimensions, symbols_in
from lowering.tracing import CUT_BEFORE
from nnef_jax.calls.trimming import length_name
from nnef_jax.flattening.bounds import Bounds
from nnef_jax.flattening.computations import Computations
from nnef_jax.flattening.emission import ByName, Emission
from nnef_jax.flattening.symbolic import SymbolicShapes
from nnef_jax.formats.base import ExtentNeeded, Options

# Rules raise these errors if they need the value of a symbolic extent.
_OF_EXTENTS = (TypeError, ValueError, NotImplementedError, InconclusiveDimensionOperation)


@dataclass(slots=True, eq=False)
class Symbols:
    """The symbols that a network's graph shares with the graphs of the bodies.

    A symbol stands for a number of items that the network counts.

    Args:
        dimensions: the dimensions of `jax.export` for the symbols.
        names_of_user: the names of the symbols that the user of `jax.export` defined. The dicts
            below do not have these symbols.
        most: maps the name of each symbol to its largest value.
        limits: maps the name of each symbol to an upper bound, which may have other symbols: n0 + 1
            for n1.
        count_names: maps the name of each symbol to the name of a tensor. In a run, the tensor has
            the value of the symbol.
    """

    dimensions: Dimensions
    names_of_user: frozenset[str] = frozenset()
    most: dict[str, int] = field(default_factory=dict[str, int])
    limits: dict[str, Any] = field(default_factory=dict[str, Any])
    count_names: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def is_open(self) -> bool:
        """Tell whether the network has symbols that the user defined."""
        return bool(self.names_of_user)

    def bound(self, extent: Any) -> Any:
        """Return the largest value of an extent."""
        return SymbolValues(self.most).bound(extent, self.dimensions.scope)

    def new(self, limit: Any, count_name: str) -> Any:
        """Return a new symbol. Its value is at most the extent `limit`.

        `count_name` is the name of the tensor that has the value in a run.
        """
        prefix = "n"
        # No name of the user's symbols may begin with the prefix.
        while any(name.startswith(prefix) for name in self.names_of_user):
            prefix += "_"
        name = f"{prefix}{len(self.most)}"
        self.most[name] = self.bound(limit)
        self.limits[name] = limit
        self.count_names[name] = count_name
        return self.dimensions.of(Extent(name))


class ListEmission(Emission):
    """A graph under construction that may have lists. `outer` is the graph around a body."""

    def __init__(
        self, options: Options, integer: str = "int32", outer: ListEmission | None = None
    ) -> None:
        super().__init__(options, integer)
        self._outer_lists = outer
        if outer is None:
            extents = [n for shape in options.symbolic_shapes.values() for n in shape]
            scopes = [n.scope for n in extents if is_symbolic(n)]
            dimensions = Dimensions(scopes[0] if scopes else None)
            names_of_user = frozenset(symbols_in(tuple(extents)))
            self.symbols: Symbols = Symbols(dimensions, names_of_user)
        else:
            self.symbols = outer.symbols
        # Maps a list to the number that pads the list if it is an output. A list without an entry
        # is padded by the default number of its dtype.
        self.list_padding: dict[Value, float] = {}
        self.computations: Computations = Computations(self.builder)
        self._symbol_by_key: dict[Any, Any] = {}  # maps keys of counts to symbols
        self.bounds: Bounds = Bounds(self.computations, self.shape_of, self.bound)

    @property
    def has_lists(self) -> bool:
        """Tell whether a symbol for a number of items has been made so far."""
        return bool(self.symbols.most)

    # Adding operations

    def add(
        self, kind: str, operands: ByName, attributes: ByName, names: Sequence[str],
        span: Span | None, calls: tuple[Call, ...] = (), *, rule: Rule | None = None,
        inserted: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Add an operation as `Emission.add` does, and check that the operation supports lists."""
        if self.has_lists and not self.symbols.is_open:
            # If the user has no symbols, the graph has the text of each symbol, not jax's object.
            attributes = {name: _as_text(x) for name, x in attributes.items()}
        try:
            results = super().add(
                kind, operands, attributes, names, span, calls, rule=rule, inserted=inserted
            )
        except (TypeError, InconclusiveDimensionOperation):
            refusal = self._refusal_of(kind, operands.values(), attributes.values())
            if refusal is None:
                raise
            raise refusal from None
        if self.has_lists and self.symbolic is not None and not self.is_body:
            new_operation = self.builder.operations[-1]
            self._require_shapes(new_operation)
            self._require_items(new_operation, span, calls)
        defines_symbol = kind == "counted" and rule is None
        if self.has_lists and defines_symbol:
            self._define(str(attributes["extent"]), results[0])
        return results

    def insert(self, kind: str, operands: ByName, span: Span | None, **attributes: Any) -> Any:
        """Add an operation that the document does not have, and return its result or results."""
        names = [self.builder.unreserved(f"list.{kind}")]
        # Not `self.add`: the operands already have the extents that the operation needs.
        results = ListEmission.add(self, kind, operands, attributes, names, span, inserted=True)
        return results[0] if len(results) == 1 else results

    def _define(self, symbol: str, value: Value) -> None:
        """Record in all outer graphs that `value`, a tensor of this body, defines `symbol`."""
        graph = self._outer_lists
        while graph is not None:
            graph.builder.symbols.setdefault(symbol, value)
            graph = graph._outer_lists

    def _require_shapes(self, operation: Operation) -> None:
        """Raise UnsupportedOperation if an operation cannot be computed for a list."""
        if self.symbolic is None:
            return
        try:
            for value in operation.writes():
                self.symbolic.shape_of(value)
        except InvalidComputation as error:
            lists = [x for x in operation.reads() if self.is_list(x)]
            if not lists:
                raise UnsupportedOperation(error.message, CUT_BEFORE) from None
            raise self.refusal(lists[0], error.message) from None
        except _OF_EXTENTS:
            attributes = [attribute for _, attribute in operation.attributes]
            refusal = self._refusal_of(operation.kind, operation.reads(), attributes)
            if refusal is None:
                raise
            raise refusal from None

    def _require_items(
        self, operation: Operation, span: Span | None, calls: tuple[Call, ...]
    ) -> None:
        """Raise LimitError if a list among an operation's results can have too many items."""
        for x in operation.writes():
            if not self.is_list(x):
                continue
            shape = [self.bound(n) for n in self.shape_of(x)]
            # The user's symbols have no largest value, and count as 1.
            item_count = volume([n for n in shape if not is_symbolic(n)])
            if item_count > self.limits.tensor_items:
                names = quoted(self.count_names(self.shape_of(x)))
                message = (
                    f"'{x.name}' {show(shape)} has room for the largest numbers of items that "
                    f"{names} can tell: {item_count} items, more than {self.limits.tensor_items}"
                )
                raise self.beyond(message, "tensor_items", span, calls)

    def count_names(self, shape: Shape) -> list[str]:
        """Return the names of the tensors that have the values of the symbols in a shape."""
        symbols = sorted(symbols_in(tuple(shape)) & self.symbols.most.keys())
        return [self.symbols.count_names[name] for name in symbols]

    def _refusal_of(
        self, kind: str, operands: Iterable[object], attributes: Iterable[Any]
    ) -> UnsupportedOperation | None:
        """Return the error for an operation that needs to know a number of items before a run.

        Return None if neither the operands nor the attributes depend on numbers of items.
        """
        lists = [x for x in operands if isinstance(x, Value) and self.is_list(x)]
        if lists:
            reason = f"'{kind}' needs the number of its items before the network runs"
            return self.refusal(lists[0], reason)
        names = self.count_names(tuple(attributes))
        if not names:
            return None
        return UnsupportedOperation(
            f"an attribute of '{kind}' depends on the number of items that {quoted(names)} tells: "
            f"'{kind}' needs this number before the network runs",
            CUT_BEFORE,
        )

    def refusal(self, x: Value, message: str) -> UnsupportedOperation:
        """Return the error for an operation that cannot be computed for a list.

        `message` says why. The error also names the first symbolic axis of the list, and the tensor
        that has the number of items along this axis.
        """
        shape = self.shape_of(x)
        axis = list(map(is_symbolic, shape)).index(True)
        names = quoted(self.count_names((shape[axis],)))
        return UnsupportedOperation(
            f"axis {axis} of '{x.name}' is a list, whose number of items depends on values "
            f"({names} tells it): {message}",
            CUT_BEFORE,
        )

    # Questions

    def is_list(self, x: object) -> bool:
        """Tell whether a tensor is a list, whose items along an axis are counted in a run."""
        if self.symbolic is None or not self.has_lists or not isinstance(x, Value):
            return False
        if is_known(x.type.shape):
            return False
        names = set().union(*map(symbols_in, self.shape_of(x)))
        return not names.isdisjoint(self.symbols.most)

    def is_counted_here(self, x: object) -> bool:
        """Tell whether a tensor of a body is a list whose items the body itself counts."""
        if not isinstance(x, Value) or not self.is_list(x):
            return False
        return any(map(self.counts_here, self.shape_of(x)))

    def counts_here(self, extent: Any) -> bool:
        """Tell whether an extent has a symbol for items that this graph itself counts.

        Return False if this is not the graph of a body.
        """
        outer = self._outer_lists
        if outer is None:
            return False
        # The symbols of this graph are subtracted: `_define` recorded them in the outer graph too.
        outer_symbols = outer.builder.symbols.keys() - self.builder.symbols.keys()
        counted_symbols = symbols_in(extent) & self.symbols.most.keys()
        return not counted_symbols <= outer_symbols

    def may_be_negative(self, extent: Any) -> bool:
        """Tell whether an extent can be negative, as n0 - 2 is for a list of one item.

        Return False if the extent does not depend on numbers of items.
        """
        depends_on_lists = not symbols_in(extent).isdisjoint(self.symbols.most)
        return depends_on_lists and not at_least(0, self.bound(-extent))

    def has_shape_of(self, x: Value, y: Value) -> bool:
        """Tell whether two tensors certainly have the same shape.

        Extents may be symbolic. Without lists, an open extent is compared as `shapes_differ` does.
        """
        if not self.has_lists:
            return not shapes_differ(x.type.shape, y.type.shape)
        return self.shape_of(x) == self.shape_of(y)

    def shape_of(self, x: Value) -> Shape:
        """Return the shape of a tensor, with symbolic extents.

        Raises ExtentNeeded if an extent is open.
        """
        if is_known(x.type.shape):
            return x.type.shape
        if self.symbolic is None:
            raise ExtentNeeded
        return self.symbolic.shape_of(x)

    def bound(self, extent: Any) -> Any:
        """Return the largest value of an extent."""
        return self.symbols.bound(extent)

    # Lists

    def begin_symbolic(self) -> SymbolicShapes:
        """Return the object that infers shapes with symbols; make it if there is none yet."""
        if self.symbolic is None:
            dimensions, most = self.symbols.dimensions, self.symbols.most
            self.symbolic = SymbolicShapes(self.builder, dimensions, most)
        return self.symbolic

    def symbol(self, count: Value, limit: Any) -> Any:
        """Return the symbol for a number of items that the network counts.

        The number is at most the extent `limit`.

        If the network computes two numbers in the same way, they have the same symbol. Raises
        ExtentNeeded if the shapes of the network's inputs are not known.
        """
        if self.symbolic is None:
            if not all(is_known(x.type.shape) for x in self.builder.inputs):
                raise ExtentNeeded
            self.begin_symbolic()
        key = self.computations.key(count)
        if key not in self._symbol_by_key:
            self._symbol_by_key[key] = self.symbols.new(limit, count.name)
        return self._symbol_by_key[key]

    def defined_symbol(self, count: Value, limit: Any, span: Span | None) -> Any:
        """Return the symbol for a number of items, and add operations that define the symbol.

        The operations make a list of `count` integers: 0, 1, 2 and so on. In a run, the value of
        the symbol is the number of these integers. The arguments are as for `symbol`.
        """
        dtype = self.builder.integer
        most = self.bound(limit)
        integers = self.insert("range", {}, span, start=0, end=most, step=1, dtype=dtype)
        numbers = self.listed(integers, 0, count, limit, span)
        return self.shape_of(numbers)[0]

    def listed(self, x: Value, axis: int, count: Value, limit: Any, span: Span | None) -> Value:
        """Return the first `count` items of a tensor along an axis as a list.

        `count` is at most the extent `limit`.
        """
        extent = self.symbol(count, limit)
        operands = {"input": x, "count": count}
        most = self.bound(limit)
        return self.insert("counted", operands, span, axis=axis, extent=extent, most=most)

    def counted(self, x: Value, axis: int, extent: Any, span: Span | None) -> Value:
        """Return the first `extent` items of a tensor along an axis. `extent` is symbolic."""
        operands = {"input": x, "count": self.extent_tensor(extent, span)}
        most = self.bound(extent)
        return self.insert("counted", operands, span, axis=axis, extent=extent, most=most)

    def filled(self, x: Value, axis: int, value: float, span: Span | None) -> Value:
        """Pad a list along an axis to its largest possible extent. New items are `value`."""
        most = self.bound(self.shape_of(x)[axis])
        return self.padded_to(x, axis, most, span, value)

    def padded_to(
        self, x: Value, axis: int, size: int, span: Span | None, value: float = 0
    ) -> Value:
        """Pad a tensor to `size` items along an axis. New items are `value`.

        The tensor may be a list. The result has a fixed extent along the axis.
        """
        shape = list(self.shape_of(x))
        if shape[axis] == size:
            return x
        shape[axis] = size
        return self.insert(
            "filled", {"input": x}, span, shape=tuple(shape), value=_as_attribute(value)
        )

    def extent_tensor(self, extent: Any, span: Span | None) -> Value:
        """Return an extent, which may be symbolic, as a tensor of shape (1,)."""
        dtype = self.builder.integer
        return self.insert("constant", {}, span, shape=(1,), value=(extent,), dtype=dtype)

    def as_output(self, x: Value, name: str, span: Span | None) -> Value:
        """Return `x`, an output of the network, with defined values in its padding.

        `list_padding` may have a number for the padding of `x`. Otherwise the padding is NaN for
        real numbers, -1 for signed integers and 0 for other dtypes. `name` is the name of the
        output. A run can capture the number of items under the name that `length_name` returns.
        """
        if not self.is_list(x):
            return x
        padding = self.list_padding.get(x, _padding_of(x.type.dtype))
        shape = self.shape_of(x)
        for axis, extent in enumerate(shape):
            is_counted = not symbols_in(extent).isdisjoint(self.symbols.most)
            if is_counted:
                length = self.extent_tensor(extent, span)
                self.builder.aliases[length_name(name, axis)] = length
        attributes = {"shape": tuple(map(self.bound, shape)), "value": _as_attribute(padding)}
        (output,) = self.add("filled", {"input": x}, attributes, [name], span, inserted=True)
        self.builder.aliases[name] = output
        return output


def quoted(names: Iterable[str]) -> str:
    """Return names in quotation marks, with commas between them."""
    return ", ".join(f"'{name}'" for name in names)


def _padding_of(dtype: str) -> float:
    """Return the number that pads an output of this dtype."""
    if is_float(dtype):
        return math.nan
    is_signed = is_integer(dtype) and not dtype.startswith("u")
    return -1 if is_signed else 0


def _as_attribute(number: float) -> float | str:
    """Return the attribute `value` of an operation `filled`. Infinity and NaN become text."""
    return number if math.isfinite(number) else str(number)


def _as_text(attribute: Any) -> Any:
    """Return an attribute with an `Extent` in place of each symbolic extent."""
    if isinstance(attribute, list | tuple):
        items: Sequence[Any] = attribute
        return tuple(map(_as_text, items)) if has_symbols(items) else items
    return Extent(str(attribute)) if is_symbolic(attribute) else attribute
