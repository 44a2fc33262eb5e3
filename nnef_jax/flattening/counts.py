"""The number of items along a padded axis, and an operation that reads padded tensors."""

from __future__ import annotations

import math
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
        for name, x in operands.items():
            tensors = {name: x}
            if isinstance(x, list | tuple):
                items = cast("Sequence[Any]", x)
                tensors = {f"{name}[{i}]": item for i, item in enumerate(items)}
            for key, tensor in tensors.items():
                if isinstance(tensor, Value) and tensor in counts:
                    self.counts[key] = counts[tensor]

    @property
    def first_count(self) -> Count:
        """Return the `Count` of the first operand that is padded."""
        return next(iter(self.counts.values()))

    def refusal(self) -> InvalidOperation:
        """Return the error that says that this operation would take padding for items."""
        return refusal(*next(iter(self.counts.items())), f"'{self.kind}'")

    def require_only(self, *names: str) -> Count:
        """Return the `Count` of the operand with the first of the names `names`.

        Raises InvalidOperation unless exactly the operands with these names are padded.
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
        # `CountedEmission.add` would follow padding through these operations, which replace the
        # padding.
        add = Emission.add
        return add(self.graph, kind, operands, attributes, names, self.span, inserted=True)[0]

    def masked(self, name: str, padding: float) -> Value:
        """Return the operand `name`, in which each item of the padding is replaced by a number.

        `padding` is the number. It is converted to the operand's dtype.
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
        numbers = {"start": 0, "end": extent, "step": 1, "dtype": count.items.type.dtype}
        indices = self.insert("range", {}, **numbers)
        new_axes = tuple(i for i in range(rank) if i != axis)
        indices = self.insert("unsqueeze", {"input": indices}, axes=new_axes)
        items = self.spread(count.items, rank)
        filling = self._filling(padding, rank, x.type.dtype)
        is_item = self.insert("lt", {"x": indices, "y": items})
        operands = {"condition": is_item, "true_value": x, "false_value": filling}
        return self.insert("select", operands)

    def _filling(self, padding: float, rank: int, dtype: str) -> Value:
        """Return a tensor of `rank` axes of extent 1, whose single item is `padding`."""
        is_nan = math.isnan(padding)
        if is_nan:  # documents have no literal for NaN, so it is computed as the square root of -1
            value = -1.0
        elif dtype == "bool":
            value = bool(padding)
        else:
            value = float(padding) if is_float(dtype) else int(padding)
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
        """Return the `Count` of a result that takes the first items that `count` counts.

        The result takes at most `most` items. They lie along `axis` in the result.
        """
        dtype = count.items.type.dtype
        limit = self.insert("constant", {}, shape=(1,), value=(most,), dtype=dtype)
        return Count(axis, self.insert("min", {"x": count.items, "y": limit}))

    def ends(self, name: str) -> tuple[Any, Any]:
        """Return the least and the greatest finite number in the dtype of the operand `name`."""
        return ends_of(self.operands[name].type.dtype)
