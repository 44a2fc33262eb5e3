"""The flat graph of a document while it is built, with its stored data and constant values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from lowering import rounding
from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN, Shape, is_known, show, volume
from lowering.graph import TensorType, Value, is_float
from lowering.location import Span
from nnef_jax.errors import LimitError
from nnef_jax.flattening.emission import computation_dtype
from nnef_jax.flattening.hostvalues import Host, host
from nnef_jax.formats.base import GIVE_SHAPES, Options
from nnef_jax.formats.syntax.emitter import Emitter
from nnef_jax.formats.syntax.quantizer import Quantizer
from nnef_jax.formats.tract.dtypes import Defaults
from nnef_jax.formats.tract.tensor_file import LARGEST_ATTRIBUTE
from nnef_jax.limits import raising

# The conversion of a parameter to a host value takes one step for each group of this many items.
_ITEMS_PER_STEP = 8
_LARGEST_SHAPE = 16  # the largest number of items of a parameter that may be a shape

Stored = NDArray[Any]  # the data of a parameter, a state or a constant
# Maps the first result of each operation of the document to the name, the operands and the
# attributes of the operation.
FlatCalls = dict[Value, tuple[str, Mapping[str, Any], Mapping[str, Any]]]


class FlatGraph(Emitter):
    """The graph under construction, to which the operations of a document are added.

    `data` maps labels to the arrays of variables and states. `variable_count` is the number of
    variables in the document. `is_open` tells whether an extent may be UNKNOWN. The body of a scan
    is a separate graph. `outer` is the graph around a body. The body may read the variables of
    `outer`.
    """

    def __init__(self, options: Options, data: dict[str, Stored | None], *, is_open: bool) -> None:
        integer = computation_dtype("int64", options.real)
        super().__init__(options, integer)
        self.data = data
        self.is_open = is_open
        self.variable_count = 0
        self.outer: FlatGraph | None = None
        self.constants: dict[Value, Stored] = {}  # the stored arrays of parameters
        self.defaults: Defaults = Defaults(options.real, integer, self.constants.keys())
        self.calls: FlatCalls = {}
        # `entries`, `decoded` and `scales` come from graph.quant.
        self.entries: dict[Value, Quantizer] = {}  # the entries of tensors that have codes
        self.decoded: set[Value] = set()  # variables that are stored as codes
        # Maps a tensor to its scale, which is one number or one number for each channel.
        self.scales: dict[Value, Stored] = {}
        self.captured: dict[Value, Value] = {}  # maps variables of `outer` to inputs of this body
        # Maps the label of a state to the number of labels that consist of this label and a suffix.
        self._states: dict[str, int] = {}

    def report(self) -> None:
        """Call the user's `progress` function before the next variable is read.

        The function gets the number of variables that have been read, and the number of all
        variables.
        """
        if self.options.progress is not None:
            read_count = len(self.data)
            total = max(read_count + 1, self.variable_count)
            self.options.progress(read_count, total)

    def body(self) -> FlatGraph:
        """Make an empty graph for the body of a scan."""
        body = FlatGraph(self.options, self.data, is_open=self.is_open)
        body.outer = self
        return body

    def input(
        self, name: str, type: TensorType, shape: Sequence[int], stored: Stored | None = None
    ) -> Value:
        """Add an input to the graph and return its tensor.

        `shape` is the shape of `type`, but may have symbolic extents. If this graph is a body, and
        the input stands for a constant of `outer`, `stored` is the array of the constant.
        """
        value = self.builder.input(name, type)
        if self.symbolic is not None:
            self.symbolic.declare(value, shape)
        if stored is not None:
            self.constants[value] = stored
        return value

    def capture(self, variable: Value) -> Value:
        """Return the input that stands for a variable of `outer`. This graph is a scan's body."""
        assert self.outer is not None
        if variable not in self.captured:
            name = self.builder.unreserved(variable.name)
            stored = self.outer.constants[variable]
            self.captured[variable] = self.input(name, variable.type, variable.type.shape, stored)
        return self.captured[variable]

    def state(
        self, type: TensorType, name: str, label: str, span: Span, initial: Stored | None
    ) -> Value:
        """Add a state to the graph and return its tensor.

        The state starts with the array `initial`, or with zeros if `initial` is None. If another
        state has the same label, a suffix is added to the label. `builder.update` sets the state's
        next value.

        Raises InvalidOperation in the body of a scan and for an open shape. Raises LimitError if
        the state is too large.
        """
        if self.outer is not None:
            raise InvalidOperation("the body of a scan cannot keep a state from call to call")
        if not is_known(type.shape):
            message = f"a state must have a known shape, it is {show(type.shape)}"
            raise InvalidOperation(message, GIVE_SHAPES)
        unique_label = label
        while unique_label in self._states:
            self._states[label] += 1
            unique_label = f"{label}_{self._states[label]}"
        self._states[unique_label] = 0
        item_count = volume(type.shape)
        if item_count > self.limits.tensor_items:
            raise LimitError(f"a state of {item_count} items", hint=raising("tensor_items"))
        byte_count = item_count * np.dtype(type.dtype).itemsize
        self.meter.expand(byte_count, f"state '{name}'")
        array = np.zeros(type.shape, type.dtype) if initial is None else initial
        self.data.setdefault(unique_label, rounding.saturated(array, type.dtype))
        unique_name = self.builder.unreserved(name)
        return self.builder.variable(unique_name, unique_label, type, span)

    def shape_of(self, value: Value) -> Shape:
        """Return the shape of a tensor. Extents may be symbolic extents of `jax.export`."""
        shape = value.type.shape
        if is_known(shape) or self.symbolic is None:
            return shape
        return self.symbolic.shape_of(value)

    # Constant values

    def known(self, value: Any, *, only_shapes: bool = False) -> Any:
        """Replace each small parameter by its stored array, also within lists and tuples.

        A parameter is a tensor whose items a file stores. If `only_shapes`, only small parameters
        of integers are replaced, since they may be shapes.
        """
        if isinstance(value, list | tuple):
            return type(value)(self.known(item, only_shapes=only_shapes) for item in value)  # pyright: ignore[reportUnknownArgumentType]
        stored = self.constants.get(value) if isinstance(value, Value) else None
        if stored is None:
            return value
        most_items = _LARGEST_SHAPE if only_shapes else LARGEST_ATTRIBUTE
        if stored.size > most_items:
            return value
        has_integers = stored.dtype.name in ("int32", "int64")
        if only_shapes and not has_integers:
            return value
        self.meter.spend(stored.size // _ITEMS_PER_STEP)
        return host(stored)

    def require_known(self, value: object) -> None:
        """Raise InvalidOperation if `value` contains an unknown extent, also within lists.

        If an extent of an input is open, unknown extents are allowed, and no error is raised.
        """
        if self.is_open:
            return
        if any(item is UNKNOWN for item in _items(value)):
            raise InvalidOperation(
                "a whole number is due, but this is none, or depends on more than the input shapes"
            )

    def literal(self, value: Host, dtype: str) -> Any:
        """Convert a host value with a single item to a literal of a dtype.

        Raises InvalidOperation if the dtype cannot hold the number.
        """
        try:
            item = value.ravel()[0]
            if is_float(dtype):
                return rounding.saturated(item, dtype)[()]
            # numpy raises an error for an integer beyond the range of the dtype. For a real number
            # it would only warn.
            if isinstance(item, float):
                item = int(item)
            return jnp.dtype(dtype).type(item)
        except (OverflowError, ValueError):
            hint = ""
            if dtype == "int32":
                hint = "jax's x64 mode keeps 64 bits: jax.config.update('jax_enable_x64', True)"
            message = f"{value.item()} does not fit {dtype}"
            raise InvalidOperation(message, hint=hint) from None

    def literals(self, array: Host, dtype: str) -> tuple[Any, ...]:
        """Convert the items of an array to literals of a dtype.

        Raises InvalidOperation if the dtype cannot hold one of the numbers.
        """
        numpy_dtype = jnp.dtype(dtype)
        if array.size and jnp.issubdtype(numpy_dtype, jnp.integer):
            # If both extremes fit the dtype, all items fit it.
            for extreme in (array.min(), array.max()):
                self.literal(host(extreme), dtype)
        elif numpy_dtype != np.bool_:
            array = array.astype(np.float64)
        return tuple(rounding.saturated(array, numpy_dtype).ravel().tolist())


def _items(value: object) -> Iterator[Any]:
    """Yield the items of a list or tuple, also within nested ones. Yield any other value itself."""
    if isinstance(value, list | tuple):
        for item in cast(Sequence[Any], value):
            yield from _items(item)
    else:
        yield value
