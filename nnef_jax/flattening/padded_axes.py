"""Tensors with as many items along an axis as values say: padded to the most there can be.

What makes one notes it in `counts`. The axis is followed from operation to operation, by kind. One
that would take padding for items raises. What is behind the items is -1 in whole numbers and NaN in
real ones where it is `ended`, and anything before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lowering.extents import UNKNOWN
from lowering.graph import Operation, Value, is_float, is_integer
from lowering.location import Span
from nnef_jax.flattening.counts import Count, PaddedOperation, refusal
from nnef_jax.flattening.emission import ByName, Emission
from nnef_jax.flattening.padded_kinds import TABLE, followed
from nnef_jax.formats.base import Options
from nnef_jax.trimming import length_name

_DIVISIBLE = 5040  # by all numbers up to 10


class CountedEmission(Emission):
    """A graph in the making, in which padded axes are followed. `counts` has those there are."""

    def __init__(self, options: Options, integer: str = "int32") -> None:
        super().__init__(options, integer)
        self.counts: dict[Value, Count] = {}

    def add(
        self, kind: str, operands: ByName, attributes: ByName, names: Sequence[str],
        span: Span | None, *calls: Any, **options: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Add an operation, and note which axes of its results are padded; see `Emission`."""
        if not self.counts:
            return super().add(kind, operands, attributes, names, span, *calls, **options)
        step = PaddedOperation(self, self.counts, kind, dict(operands), attributes, span)
        where = followed(step) if step.counts else None
        results = super().add(kind, step.operands, attributes, names, span, *calls, **options)
        if where == TABLE:
            self._pass(step, self.builder.operations[-1])
        elif where is not None:
            for result in results:
                self.counts.update(dict.fromkeys(_listed(result), where))
        return results

    def _pass(self, step: PaddedOperation, operation: Operation) -> None:
        """Note the axes of an operation's results in which items of padded operands stay apart.

        Its rule is traced for that. An extent that is not known is a number that many divide.
        """
        from lowering import Context, NotSeparableError, Program, batch_axes, compute
        from lowering.jaxprs import is_literal, make_jaxpr

        reads = list(dict.fromkeys(operation.reads()))

        def results(*arrays: Any) -> list[Any]:
            values = compute(operation, Context(), dict(zip(reads, arrays, strict=True)))
            return jax.tree.leaves(values)

        types = [jax.ShapeDtypeStruct(self._shape(x), jnp.dtype(x.type.dtype)) for x in reads]
        program = Program(make_jaxpr(results, *types))
        pairs = zip(program.arguments, reads, strict=True)
        padded = {v: self.counts[x].axis for v, x in pairs if x in self.counts}
        try:
            axes = batch_axes(program, padded, resizes=False)
        except NotSeparableError:
            raise step.refusal() from None
        for x, v in zip(operation.writes(), program.results, strict=True):
            if is_literal(v) or v not in axes:  # made from the padded extent alone
                raise step.refusal()
            self.counts[x] = Count(axes[v], step.first.items)

    def require_items(self, x: Any, axes: Collection[int]) -> None:
        """Raise InvalidOperation where a tensor is padded along one of some axes."""
        count = self.counts.get(x)
        if count is not None and count.axis in axes:
            raise refusal(x.name, count, "it")

    def _shape(self, x: Value) -> Sequence[Any]:
        if self.symbolic is not None:
            return self.symbolic.of(x)
        return [_DIVISIBLE if n is UNKNOWN else n for n in x.type.shape]

    def ended(self, x: Value, name: str, span: Span) -> Value:
        """Return an output of the network, with its length under a name of its own.

        Where its items leave a number for that, its padding can be told from these too.
        """
        count = self.counts.get(x)
        if count is None:
            return x
        self.builder.aliases[length_name(name, count.axis)] = count.items
        if count.marked:
            return x
        dtype = x.type.dtype
        signed = is_integer(dtype) and not dtype.startswith("u")
        padding = np.nan if is_float(dtype) else -1 if signed else 0
        step = PaddedOperation(self, self.counts, "copy", {"x": x}, {}, span)
        self.builder.aliases[name] = found = step.masked("x", padding)
        return found

    def items_of(self, x: Value) -> list[int | Value]:
        """Return the extents that a tensor has without its padding: tensors [1] where computed."""
        count = self.counts[x]
        return [count.items if i == count.axis else n for i, n in enumerate(x.type.shape)]


def _listed(x: Any) -> list[Value]:
    return [x] if isinstance(x, Value) else [v for v in x if isinstance(v, Value)]
