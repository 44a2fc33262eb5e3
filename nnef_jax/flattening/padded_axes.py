"""Follows padded axes through a graph. The number of items of a padded axis depends on values.

A padded axis has the largest possible extent, and its items come before the padding. When an
operator makes such a tensor, its meaning notes the number of items in `counts`. An operation that
reads the tensor passes the axis on to its results, by the rule for the operation's kind. If the
operation would take padding for items, InvalidOperation is raised. The values of padding are
arbitrary. Only in outputs of the network is the padding set: to -1 for integers and to NaN for real
numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lowering.extents import UNKNOWN
from lowering.graph import Call, Operation, Rule, Value, is_float, is_integer
from lowering.location import Span
from nnef_jax.calls.trimming import length_name
from nnef_jax.flattening.counts import Count, PaddedOperation, refusal
from nnef_jax.flattening.emission import ByName, Emission
from nnef_jax.flattening.padded_kinds import TRACE_RULE, count_of_results
from nnef_jax.formats.base import Options

_DIVISIBLE = 5040  # an extent that is divisible by all numbers up to 10


class CountedEmission(Emission):
    """A graph under construction that notes which tensors are padded.

    `counts` maps each padded tensor to the `Count` of its items.
    """

    def __init__(self, options: Options, integer: str = "int32") -> None:
        super().__init__(options, integer)
        self.counts: dict[Value, Count] = {}

    def add(
        self, kind: str, operands: ByName, attributes: ByName, names: Sequence[str],
        span: Span | None, calls: tuple[Call, ...] = (), *, rule: Rule | None = None,
        inserted: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Add an operation as `Emission.add` does, and note which of the results are padded."""
        add_operation = partial(super().add, calls=calls, rule=rule, inserted=inserted)
        if not self.counts:
            return add_operation(kind, operands, attributes, names, span)
        step = PaddedOperation(self, self.counts, kind, dict(operands), attributes, span)
        result_count = count_of_results(step) if step.counts else None
        results = add_operation(kind, step.operands, attributes, names, span)
        if result_count == TRACE_RULE:
            self._trace_padding(step, self.builder.operations[-1])
        elif result_count is not None:
            for result in results:
                for value in _listed(result):
                    self.counts[value] = result_count
        return results

    def _trace_padding(self, step: PaddedOperation, operation: Operation) -> None:
        """Find the padded axes of an operation's results by tracing its rule, and note them.

        An open extent is traced as the extent `_DIVISIBLE`. Raises InvalidOperation if padding
        would be taken for items.
        """
        from lowering import Context, NotSeparableError, Program, batch_axes, compute
        from lowering.jaxpr_evaluation import make_jaxpr
        from lowering.jaxprs import is_literal

        operands = list(dict.fromkeys(operation.reads()))

        def compute_results(*arrays: jax.Array) -> list[jax.Array]:
            array_by_operand = dict(zip(operands, arrays, strict=True))
            return jax.tree.leaves(compute(operation, Context(), array_by_operand))

        types = [jax.ShapeDtypeStruct(self._shape(x), jnp.dtype(x.type.dtype)) for x in operands]
        program = Program(make_jaxpr(compute_results, *types))
        operand_axes: dict[Any, int] = {}  # the padded axis by the program's variable
        for variable, operand in zip(program.arguments, operands, strict=True):
            if operand in self.counts:
                operand_axes[variable] = self.counts[operand].axis
        try:
            padded_axes = batch_axes(program, operand_axes, resizes=False)
        except NotSeparableError:
            raise step.refusal() from None
        for result, variable in zip(operation.writes(), program.results, strict=True):
            # A result without a padded axis is computed from the padded extent.
            if is_literal(variable) or variable not in padded_axes:
                raise step.refusal()
            self.counts[result] = Count(padded_axes[variable], step.first_count.items)

    def require_items(self, x: object, axes: Collection[int]) -> None:
        """Raise InvalidOperation if `x` is a tensor that is padded along one of `axes`."""
        if not isinstance(x, Value):
            return
        count = self.counts.get(x)
        if count is not None and count.axis in axes:
            raise refusal(x.name, count, "it")

    def _shape(self, x: Value) -> Sequence[int]:
        """Return the shape of a tensor for tracing, in which no extent is UNKNOWN."""
        if self.symbolic is not None:
            return self.symbolic.shape_of(x)
        return [_DIVISIBLE if n is UNKNOWN else n for n in x.type.shape]

    def with_defined_padding(self, x: Value, name: str, span: Span) -> Value:
        """Return an output of the network with defined values in its padding.

        The padding is NaN for real numbers, -1 for signed integers and 0 for other dtypes. `x` is
        the tensor of the output, and `name` is the name of the output. A run can capture the number
        of items under the name that `length_name` returns.
        """
        count = self.counts.get(x)
        if count is None:
            return x
        self.builder.aliases[length_name(name, count.axis)] = count.items
        if count.has_marked_padding:
            return x
        dtype = x.type.dtype
        is_unsigned = dtype.startswith("u")
        if is_float(dtype):
            padding = np.nan
        elif is_integer(dtype) and not is_unsigned:
            padding = -1
        else:
            padding = 0
        step = PaddedOperation(self, self.counts, "copy", {"x": x}, {}, span)
        output = step.masked("x", padding)
        self.builder.aliases[name] = output
        return output

    def unpadded_shape(self, x: Value) -> list[int | Value]:
        """Return the shape that a padded tensor has without its padding.

        The extent of the padded axis is a tensor of shape (1,), all others are integers.
        """
        count = self.counts[x]
        shape: list[int | Value] = list(x.type.shape)
        shape[count.axis] = count.items
        return shape


def _listed(result: Value | Sequence[Value]) -> Sequence[Value]:
    """Return the tensors of a result, which is a tensor or an array of tensors."""
    return [result] if isinstance(result, Value) else result
