"""Evaluates single equations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend import core


def bind(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """The results of an equation as it stands."""
    given = {
        variable: operand
        for variable, operand in zip(equation.invars, operands, strict=True)
        if not isinstance(variable, core.Literal)
    }
    info = core.DebugInfo(equation.primitive.name, "equation", ("x",) * len(given), None)
    jaxpr = core.Jaxpr([], list(given), equation.outvars, [equation], debug_info=info)
    return core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, []))(*given.values())
