"""Numbers of items along axes that are padded, and an operation that reads such tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN
from lowering.graph import Value, is_float
from lowering.location import Span
from nnef_jax.flattening.emission import ByName, Emission, ends_of
from nnef_jax.formats.base import ExtentNeeded


@dataclass(frozen=True, slots=True, eq=False)
class Count:
    """How many items along an axis there are, a tensor [1]; what is behind them is padding.

    It is `marked` where padding can be told from items already.
    """

    axis: int
    items: Value
    marked: bool = False


def refusal(name: str, count: Count, reader: str) -> InvalidOperation:
    """Return the error of what reads the padding of a tensor."""
    return InvalidOperation(
        f"axis {count.axis} of '{name}' has as many items as values say, and is padded: "
        f"{reader} would take padding for items",
        "cut the network before it",
    )


class PaddedOperation:
    """An operation that reads padded tensors: `counts` are by operand."""

    def __init__(
        self, graph: Emission, known: Mapping[Value, Count], kind: str, operands: dict[str, Any],
        attributes: ByName, span: Span | None,
    ) -> None:  # fmt: skip
        self.graph, self.kind, self.operands = graph, kind, operands
        self.attributes, self.span = attributes, span
        self.counts: dict[str, Count] = {}
        for name, x in operands.items():
            found = [(name, x)]
            if isinstance(x, list | tuple):
                items = cast("Sequence[Any]", x)
                found = [(f"{name}[{i}]", item) for i, item in enumerate(items)]
            self.counts |= {k: known[v] for k, v in found if isinstance(v, Value) and v in known}

    @property
    def first(self) -> Count:
        """Return the count of one of the padded operands."""
        return next(iter(self.counts.values()))

    def refusal(self) -> InvalidOperation:
        """Return the error of an operation that reads padding."""
        return refusal(*next(iter(self.counts.items())), f"'{self.kind}'")

    def only(self, *names: str) -> Count:
        """Return the count of some operands; raise where others are padded, or none of them."""
        if set(self.counts) != set(names):
            raise self.refusal()
        return self.counts[names[0]]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an operand."""
        return self.operands[name].type.shape

    def insert(self, kind: str, operands: Mapping[str, Any], **attributes: Any) -> Value:
        """Add an operation before it."""
        names = [self.graph.builder.unreserved(f"counted.{kind}")]
        add = Emission.add  # which follows nothing: what is behind the items is about to change
        return add(self.graph, kind, operands, attributes, names, self.span, inserted=True)[0]

    def masked(self, name: str, padding: Any) -> Value:
        """Return an operand with something else behind its items."""
        x, count = self.operands[name], self.counts[name]
        rank, dtype, axis = len(x.type.shape), x.type.dtype, count.axis
        extent = x.type.shape[axis]
        if extent is UNKNOWN:
            if self.graph.symbolic is None:
                raise ExtentNeeded
            extent = self.graph.symbolic.of(x)[axis]
        numbers = {"start": 0, "end": extent, "step": 1, "dtype": count.items.type.dtype}
        places = self.insert("range", {}, **numbers)
        others = tuple(i for i in range(rank) if i != axis)
        places = self.insert("unsqueeze", {"input": places}, axes=others)
        items = self.spread(count.items, rank)
        padding = bool(padding) if dtype == "bool" else (float if is_float(dtype) else int)(padding)
        is_nan = padding != padding  # no document says it, but all say the root of -1
        value = -1.0 if is_nan else padding
        constant = {"shape": (1,) * rank, "value": (value,), "dtype": dtype}
        other = self.insert("constant", {}, **constant)
        if is_nan:
            other = self.insert("sqrt", {"x": other})
        is_item = self.insert("lt", {"x": places, "y": items})
        given = {"condition": is_item, "true_value": x, "false_value": other}
        return self.insert("select", given)

    def spread(self, items: Value, rank: int) -> Value:
        """Return a number [1] with more axes."""
        return self.insert("unsqueeze", {"input": items}, axes=tuple(range(1, rank)))

    def mask(self, name: str, padding: Any) -> None:
        """Put something else behind the items of an operand."""
        self.operands[name] = self.masked(name, padding)

    def at_most(self, axis: int, count: Count, most: int) -> Count:
        """Return a count with no more items than some."""
        dtype = count.items.type.dtype
        limit = self.insert("constant", {}, shape=(1,), value=(most,), dtype=dtype)
        return Count(axis, self.insert("min", {"x": count.items, "y": limit}))

    def ends(self, name: str) -> tuple[Any, Any]:
        """Return the least and the greatest finite number that an operand can have."""
        return ends_of(self.operands[name].type.dtype)
