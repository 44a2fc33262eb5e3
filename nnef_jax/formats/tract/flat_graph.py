"""The flat graph while it is built: its values, what is known of them, and its stored data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from lowering import rounding
from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN, is_known, show, volume
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

_STORED_PER_STEP = 8  # items of a parameter made host values
_LARGEST_SHAPE = 16  # items of a parameter that may be a shape

Stored = NDArray[Any]  # the data of a parameter, a state or a constant
# How documents say operations, by their first results: name, operands and attributes.
Said = dict[Value, tuple[str, Mapping[str, Any], Mapping[str, Any]]]


class FlatGraph(Emitter):
    """A graph that operations are added to.

    `data` collects the arrays of variables and states by label, of about so many `variables`.
    `is_open` tells whether UNKNOWN may stand for an extent. A scan's body is a graph of its own,
    with variables passed from `outer`.
    """

    def __init__(self, options: Options, data: dict[str, Stored | None], *, is_open: bool) -> None:
        integer = computed("int64", options.real)
        super().__init__(options, integer)
        self.data = data
        self.is_open = is_open
        self.variables = 0
        self.outer: FlatGraph | None = None
        self.constants: dict[Value, Stored] = {}  # parameters, as they are stored
        self.defaults = Defaults(options.real, integer, self.constants.keys())
        self.said: Said = {}
        # Of graph.quant: the entries of tensors that have codes, the variables that are stored as
        # codes, and the steps of tensors, an array where each channel has its own.
        self.entries: dict[Value, Quantizer] = {}
        self.decoded: set[Value] = set()
        self.scales: dict[Value, Stored] = {}
        # The variables that a scan's body reads of `outer`, with the body's inputs for them.
        self.captured: dict[Value, Value] = {}
        self._states: dict[str, int] = {}  # labels, each with how many were made of it

    def report(self) -> None:
        """Tell the options' `progress` that a further variable is about to be read."""
        if self.options.progress is not None:
            done = len(self.data)
            self.options.progress(done, max(done + 1, self.variables))

    def body(self) -> FlatGraph:
        """Return a graph for the body of a scan in this one."""
        body = FlatGraph(self.options, self.data, is_open=self.is_open)
        body.outer = self
        return body

    def input(
        self, name: str, type: TensorType, shape: Sequence[Any], stored: Stored | None = None
    ) -> Value:
        """Add an input; `shape` has symbolic extents, `stored` is the value of a constant."""
        value = self.builder.input(name, type)
        if self.symbolic is not None:
            self.symbolic.declare(value, shape)
        if stored is not None:
            self.constants[value] = stored
        return value

    def capture(self, variable: Value) -> Value:
        """Return a variable of the graph around a scan, as the scan's body has it."""
        assert self.outer is not None
        if variable not in self.captured:
            name, stored = self.builder.unreserved(variable.name), self.outer.constants[variable]
            self.captured[variable] = self.input(name, variable.type, variable.type.shape, stored)
        return self.captured[variable]

    def state(
        self, type: TensorType, name: str, label: str, span: Span, initial: Stored | None
    ) -> Value:
        """Add a variable that starts with an array, or zeros: `builder.update` changes it."""
        if self.outer is not None:
            raise InvalidOperation("the body of a scan cannot keep a state from call to call")
        if not is_known(type.shape):
            message = f"a state must have a known shape, it is {show(type.shape)}"
            raise InvalidOperation(message, GIVE_SHAPES)
        wanted = label
        while label in self._states:
            self._states[wanted] += 1
            label = f"{wanted}_{self._states[wanted]}"
        self._states[label] = 0
        items = volume(type.shape)
        if items > self.limits.tensor_items:
            raise LimitError(f"a state of {items} items", hint=raising("tensor_items"))
        self.meter.expand(items * np.dtype(type.dtype).itemsize, f"state '{name}'")
        data = np.zeros(type.shape, type.dtype) if initial is None else initial
        self.data.setdefault(label, rounding.saturated(data, type.dtype))
        return self.builder.variable(self.builder.unreserved(name), label, type, span)

    def shape_of(self, value: Value) -> Sequence[Any]:
        """Return the shape of a tensor, with the extents that `jax.export` keeps symbolic."""
        if is_known(value.type.shape) or self.symbolic is None:
            return value.type.shape
        return self.symbolic.of(value)

    # What is known

    def known(self, value: Any, *, shapes: bool = False) -> Any:
        """Return the value with its parameters of few items as what is stored of them.

        With `shapes` these are only parameters that may be shapes.
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

    def require_known(self, value: Any) -> None:
        """Raise InvalidOperation for an extent that is open though all inputs' shapes are known."""
        if not self.is_open and any(item is UNKNOWN for item in _items(value)):
            raise InvalidOperation(
                "a whole number is due, this is none, or one that no shape of the inputs tells"
            )

    def literal(self, value: Host, dtype: str) -> Any:
        """Return a known value of one item as a literal of a dtype."""
        try:
            item = value.ravel()[0]
            if is_float(dtype):
                return rounding.saturated(item, dtype)[()]
            # A real beyond the type would be cast with a warning alone.
            return jnp.dtype(dtype).type(int(item) if isinstance(item, float) else item)
        except (OverflowError, ValueError):
            x64 = "jax's x64 mode keeps 64 bits: jax.config.update('jax_enable_x64', True)"
            message = f"{value.item()} does not fit {dtype}"
            raise InvalidOperation(message, hint=x64 if dtype == "int32" else "") from None

    def literals(self, known: Host, dtype: str) -> tuple[Any, ...]:
        """Return the items of a known value as literals of a dtype."""
        wanted = jnp.dtype(dtype)
        if known.size and jnp.issubdtype(wanted, jnp.integer):
            for extreme in (known.min(), known.max()):  # all are of the dtype where these are
                self.literal(host(extreme), dtype)
        elif wanted != np.bool_:
            known = known.astype(np.float64)
        return tuple(rounding.saturated(known, wanted).ravel().tolist())


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in cast(Sequence[Any], value):
            yield from _items(item)
    else:
        yield value
