"""What an operand was broadcast from."""

from __future__ import annotations

from typing import Any

from lowering.jaxprs import is_literal
from lowering.program import Matcher


def along(found: Matcher, operand: Any, axis: int) -> Any:
    """Return the source of a repeated operand, if only one axis of it has several items.

    None where it has items along others.
    """
    shape = operand.aval.shape
    maker = found.maker(operand, "broadcast_in_dim")
    if all(n == 1 or i == axis for i, n in enumerate(shape)):
        return operand
    if is_literal(operand) or maker is None or len(maker.invars) != 1:
        return None
    (source,) = maker.invars
    axes = maker.params["broadcast_dimensions"]
    extents = source.aval.shape
    if all(n == 1 or axes[i] == axis for i, n in enumerate(extents)):
        return source
    return along(found, source, axes.index(axis)) if axis in axes else None
