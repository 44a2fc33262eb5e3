"""The flat graph of a document while it is built, with its stored data and known values."""

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
from nnef_jax.flattening.emission import computed
from nnef_jax.flattening.hostvalues import Host, host
from nnef_jax.formats.base import GIVE_SHAPES, Options
from nnef_jax.formats.syntax.emitter import Emitter
from nnef_jax.formats.syntax.quantizer import Quantizer
from nnef_jax.formats.tract.dtypes import Defaults
from nnef_jax.formats.tract.tensor_file import LARGEST_ATTRIBUTE
from nnef_jax.limits import raising

_STORED_PER_STEP = 8  # items of a parameter that is converted to a host value
_LARGEST_SHAPE = 16  # items; a parameter with more is no shape

Stored = NDArray[Any]  # the data of a parameter, a state or a constant
# The operations of the document by their first result: name, operands and attributes.
FlatCalls = dict[Value, tuple[str, Mapping[str, Any], Mapping[str, Any]]]


class FlatGraph(Emitter):
    """The graph that operations are added to.

    `data` collects the arrays of variables and states by label. `variables` is the number of
    variables in the text. `is_open` tells whether an extent may be UNKNOWN. The body of a scan is
    another graph, which reads variables of its `outer` graph.
    """

    def __init__(self, options: Options, data: dict[str, Stored | None], *, is_open: bool) -> None:
        integer = computed("int64", options.real)
        super().__init__(options, integer)
        self.data = data
        self.is_open = is_open
        self.variables = 0
        self.outer: FlatGraph | None = None
        self.constants: dict[Value, Stored] = {}  # stored arrays by parameter
        self.defaults: Defaults = Defaults(options.real, integer, self.constants.keys())
        self.calls: FlatCalls = {}
        # From graph.quant.
        self.entries: dict[Value, Quantizer] = {}  # entries of tensors that have codes
        self.decoded: set[Value] = set()  # variables that are stored as codes
        self.scales: dict[Value, Stored] = {}  # the scale of a tensor: a scalar, or one by channel
        self.captured: dict[Value, Value] = {}  # inputs of a scan's body by variable of `outer`
        self._states: dict[str, int] = {}  # the number of labels that are derived from a label

    def report(self) -> None:
        """Call the options' `progress` before another variable is read."""
        if self.options.progress is not None:
            read = len(self.data)
            self.options.progress(read, max(read + 1, self.variables))

    def body(self) -> FlatGraph:
        """Return a new graph for the body of a scan."""
        body = FlatGraph(self.options, self.data, is_open=self.is_open)
        body.outer = self
        return body

    def input(
        self, name: str, type: TensorType, shape: Sequence[int], stored: Stored | None = None
    ) -> Value:
        """Add an input. `shape` has symbolic extents; `stored` is the value of a constant."""
        value = self.builder.input(name, type)
        if self.symbolic is not None:
            self.symbolic.declare(value, shape)
        if stored is not None:
            self.constants[value] = stored
        return value

    def capture(self, variable: Value) -> Value:
        """Return the input of a scan's body for a variable of the graph around the scan."""
        assert self.outer is not None
        if variable not in self.captured:
            name = self.builder.unreserved(variable.name)
            stored = self.outer.constants[variable]
            self.captured[variable] = self.input(name, variable.type, variable.type.shape, stored)
        return self.captured[variable]

    def state(
        self, type: TensorType, name: str, label: str, span: Span, initial: Stored | None
    ) -> Value:
        """Add a state that starts with an array, or zeros. `builder.update` sets its next value.

        A label gets a suffix if another state has it. Raises InvalidOperation in the body of a scan
        and for an open shape, LimitError for a state that is too large.
        """
        if self.outer is not None:
            raise InvalidOperation("the body of a scan cannot keep a state from call to call")
        if not is_known(type.shape):
            message = f"a state must have a known shape, it is {show(type.shape)}"
            raise InvalidOperation(message, GIVE_SHAPES)
        base = label
        while label in self._states:
            self._states[base] += 1
            label = f"{base}_{self._states[base]}"
        self._states[label] = 0
        items = volume(type.shape)
        if items > self.limits.tensor_items:
            raise LimitError(f"a state of {items} items", hint=raising("tensor_items"))
        self.meter.expand(items * np.dtype(type.dtype).itemsize, f"state '{name}'")
        data = np.zeros(type.shape, type.dtype) if initial is None else initial
        self.data.setdefault(label, rounding.saturated(data, type.dtype))
        return self.builder.variable(self.builder.unreserved(name), label, type, span)

    def shape_of(self, value: Value) -> Shape:
        """Return the shape of a tensor, with the symbolic extents of `jax.export`."""
        if is_known(value.type.shape) or self.symbolic is None:
            return value.type.shape
        return self.symbolic.of(value)

    # Known values

    def known(self, value: Any, *, shapes: bool = False) -> Any:
        """Return the value with the stored array in place of each small parameter in it.

        If `shapes`, only parameters that may be shapes are replaced.
        """
        if isinstance(value, list | tuple):
            return type(value)(self.known(item, shapes=shapes) for item in value)  # pyright: ignore[reportUnknownArgumentType]
        stored = self.constants.get(value) if isinstance(value, Value) else None
        most = _LARGEST_SHAPE if shapes else LARGEST_ATTRIBUTE
        if stored is None or stored.size > most:
            return value
        if shapes and stored.dtype.name not in ("int32", "int64"):
            return value
        self.meter.spend(stored.size // _STORED_PER_STEP)
        return host(stored)

    def require_known(self, value: object) -> None:
        """Raise InvalidOperation for an unknown extent, unless an input has one."""
        if not self.is_open and any(item is UNKNOWN for item in _items(value)):
            raise InvalidOperation(
                "a whole number is due, but this is none, or depends on more than the input shapes"
            )

    def literal(self, value: Host, dtype: str) -> Any:
        """Return a known value of one item as a literal of a dtype. Raises InvalidOperation."""
        try:
            item = value.ravel()[0]
            if is_float(dtype):
                return rounding.saturated(item, dtype)[()]
            if isinstance(item, float):
                item = int(item)  # raises for a number beyond the range; numpy would only warn
            return jnp.dtype(dtype).type(item)
        except (OverflowError, ValueError):
            hint = ""
            if dtype == "int32":
                hint = "jax's x64 mode keeps 64 bits: jax.config.update('jax_enable_x64', True)"
            message = f"{value.item()} does not fit {dtype}"
            raise InvalidOperation(message, hint=hint) from None

    def literals(self, array: Host, dtype: str) -> tuple[Any, ...]:
        """Return the items of a known value as literals of a dtype. Raises InvalidOperation."""
        numpy_dtype = jnp.dtype(dtype)
        if array.size and jnp.issubdtype(numpy_dtype, jnp.integer):
            for extreme in (array.min(), array.max()):  # if these fit the dtype, all items do
                self.literal(host(extreme), dtype)
        elif numpy_dtype != np.bool_:
            array = array.astype(np.float64)
        return tuple(rounding.saturated(array, numpy_dtype).ravel().tolist())


def _items(value: object) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in cast(Sequence[Any], value):
            yield from _items(item)
    else:
        yield value
