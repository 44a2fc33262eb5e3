"""The number of items along a padded axis, and an operation that reads padded tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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
    """The number of items along the padded axis of a tensor. The padding follows the items.

    Args:
        axis: the padded axis.
        items: a tensor of integers of shape (1,) that has the number of items.
        has_marked_padding: whether the padding has values that no item can have, such as -1 for an
            index.
    """

    axis: int
    items: Value
    has_marked_padding: bool = False


def refusal(name: str, count: Count, reader: str) -> InvalidOperation:
    """Return the error for an operation that would take the padding of a tensor for items.

    `name` is the name of the tensor, and `reader` describes the operation in the message.
    """
    return InvalidOperation(
        f"axis {count.axis} of '{name}' is padded, since its number of items depends on values: "
        f"{reader} would take padding for items",
        "cut the network before it",
    )


def _named_tensors(operands: ByName) -> Iterator[tuple[str, Any]]:
    """Yield each operand with its name.

    An operand "values" that is an array of tensors has items with names such as "values[0]".
    """
    for name, operand in operands.items():
        if isinstance(operand, list | tuple):
            for i, item in enumerate(cast("Sequence[Any]", operand)):
                yield f"{name}[{i}]", item
        else:
            yield name, operand


class PaddedOperation:
    """An operation that reads padded tensors, before it is added to the graph.

    `counts` maps the name of each padded operand to its `Count`. If an operand is an array of
    tensors, each padded tensor has an entry with a name such as "values[0]".
    """

    def __init__(
        self, graph: Emission, counts: Mapping[Value, Count], kind: str, operands: dict[str, Any],
        attributes: ByName, span: Span | None,
    ) -> None:  # fmt: skip
        self.graph: Emission = graph
        self.kind: str = kind
        self.operands: dict[str, Any] = operands
        self.attributes: ByName = attributes
        self.span: Span | None = span
        self.counts: dict[str, Count] = {}
        for name, tensor in _named_tensors(operands):
            if isinstance(tensor, Value) and tensor in counts:
                self.counts[name] = counts[tensor]

    @property
    def first_count(self) -> Count:
        """Return the `Count` of the first operand that is padded."""
        return next(iter(self.counts.values()))

    def refusal(self) -> InvalidOperation:
        """Return the error that says that this operation would take padding for items."""
        first_name = next(iter(self.counts))
        return refusal(first_name, self.counts[first_name], f"'{self.kind}'")

    def require_only(self, *names: str) -> Count:
        """Return the `Count` of the operand with the name `names[0]`.

        Raises InvalidOperation unless exactly the operands with the names `names` are padded.
        """
        if set(self.counts) != set(names):
            raise self.refusal()
        return self.counts[names[0]]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the operand `name`."""
        return self.operands[name].type.shape

    def insert(self, kind: str, operands: Mapping[str, Any], **attributes: Any) -> Value:
        """Add another operation to the graph before this one, and return its result."""
        names = [self.graph.builder.unreserved(f"counted.{kind}")]
        # `Emission.add` does not follow padding, as the method of the graph's class would: the
        # operation replaces the padding.
        results = Emission.add(
            self.graph, kind, operands, attributes, names, self.span, inserted=True
        )
        return results[0]

    def masked(self, name: str, padding: float) -> Value:
        """Return the operand `name` with the number `padding` in each item of its padding.

        The number is converted to the operand's dtype.
        """
        x = self.operands[name]
        count = self.counts[name]
        axis = count.axis
        rank = len(x.type.shape)
        extent = x.type.shape[axis]
        if extent is UNKNOWN:
            if self.graph.symbolic is None:
                raise ExtentNeeded
            extent = self.graph.symbolic.shape_of(x)[axis]
        # An index along the axis is that of an item if it is less than the number of items.
        numbers = {"start": 0, "end": extent, "step": 1, "dtype": count.items.type.dtype}
        indices = self.insert("range", {}, **numbers)
        new_axes = tuple(i for i in range(rank) if i != axis)
        indices = self.insert("unsqueeze", {"input": indices}, axes=new_axes)
        item_count = self.spread(count.items, rank)
        is_item = self.insert("lt", {"x": indices, "y": item_count})
        filling = self._filling(padding, rank, x.type.dtype)
        operands = {"condition": is_item, "true_value": x, "false_value": filling}
        return self.insert("select", operands)

    def _filling(self, padding: float, rank: int, dtype: str) -> Value:
        """Return a tensor of `rank` axes of extent 1, whose single item is `padding`."""
        is_nan = math.isnan(padding)
        if is_nan:  # documents have no literal for NaN, so it is computed as the square root of -1
            value = -1.0
        elif dtype == "bool":
            value = bool(padding)
        elif is_float(dtype):
            value = float(padding)
        else:
            value = int(padding)
        constant = {"shape": (1,) * rank, "value": (value,), "dtype": dtype}
        filling = self.insert("constant", {}, **constant)
        return self.insert("sqrt", {"x": filling}) if is_nan else filling

    def spread(self, items: Value, rank: int) -> Value:
        """Reshape a tensor of shape (1,) to a tensor of `rank` axes of extent 1."""
        return self.insert("unsqueeze", {"input": items}, axes=tuple(range(1, rank)))

    def mask(self, name: str, padding: float) -> None:
        """Replace the padding of the operand `name` by the number `padding`."""
        self.operands[name] = self.masked(name, padding)

    def at_most(self, axis: int, count: Count, most: int) -> Count:
        """Return the `Count` of a result that has the first items of a padded tensor.

        `count` has the number of items in the tensor. The result has at most `most` of them, which
        lie along `axis`.
        """
        dtype = count.items.type.dtype
        limit = self.insert("constant", {}, shape=(1,), value=(most,), dtype=dtype)
        return Count(axis, self.insert("min", {"x": count.items, "y": limit}))

    def ends(self, name: str) -> tuple[Any, Any]:
        """Return the least and the greatest finite number in the dtype of the operand `name`."""
        return ends_of(self.operands[name].type.dtype)
