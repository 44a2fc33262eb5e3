"""Takes sums of products out of a loop: one product of all steps' operands instead.

The backward pass of a recurrent layer adds a product to the gradient of its matrix in each step,
which reads and writes the whole matrix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax import lax

from lowering import jaxprs
from lowering.cpu.pipeline import runs
from lowering.jaxprs import PRODUCT, is_literal, primitive


class Total(NamedTuple):
    """A part of a loop's state that each step adds a product to, and nothing else reads.

    `operands` are the variables multiplied, `after` the equations between product and sum.
    """

    place: int
    product: Any
    after: Sequence[Any]
    add: Any

    @property
    def operands(self) -> Sequence[Any]:
        """Return the variables that are multiplied."""
        return self.product.invars

    def total(self, first: Any, left: Any, right: Any) -> Any:
        """Return the sum after all steps, given the stacks of both operands."""
        ((left_sums, right_sums), (left_batch, right_batch)) = self.product.params[
            "dimension_numbers"
        ]

        def later(axes: Sequence[int]) -> list[int]:
            return [axis + 1 for axis in axes]

        numbers = (
            ([0, *later(left_sums)], [0, *later(right_sums)]),
            (later(left_batch), later(right_batch)),
        )
        params = {n: self.product.params[n] for n in ("precision", "preferred_element_type")}
        x = lax.dot_general(left, right, numbers, **params)
        for equation in self.after:
            (x,) = jaxprs.bind(equation, [x])
        return first + x


def totals_of(jaxpr: Any, constants: int, carried: int) -> list[Total]:
    """Return the sums of products in the body of a loop."""
    if not runs("sums"):
        return []
    uses = Counter(jaxprs.variables([*(v for e in jaxpr.eqns for v in e.invars), *jaxpr.outvars]))
    made = {v: e for e in jaxpr.eqns for v in e.outvars}
    fixed = set(jaxpr.invars[:constants])
    found: list[Total] = []
    for place, (start, end) in enumerate(
        zip(jaxpr.invars[constants:][:carried], jaxpr.outvars[:carried], strict=True)
    ):
        add = None if is_literal(end) else made.get(end)
        if add is None or primitive(add) not in ("add", "add_any") or start not in add.invars:
            continue
        if uses[start] != 1 or uses[end] != 1:
            continue
        (value,) = [v for v in add.invars if v is not start]
        after: list[Any] = []
        while (
            not is_literal(value)
            and value in made
            and uses[value] == 1
            and primitive(made[value]) in jaxprs.SHAPING
        ):
            after.insert(0, made[value])
            (value,) = made[value].invars
        product = None if is_literal(value) else made.get(value)
        if product is None or uses[value] != 1 or primitive(product) != PRODUCT:
            continue
        if not any(is_literal(v) or v in fixed for v in product.invars):
            found.append(Total(place, product, after, add))
    return found
