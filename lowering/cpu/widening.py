"""Compute numbers of 16 bits in 32: only what a product reads stays narrow.

A CPU rounds to 16 bits in several instructions, after each operation. Products of bfloat16 with
sums of 32 bits are what it has units for. Between them nothing is rounded, so that results are
nearer to those of float32 than as written. MobileNetV2 of batch 8 takes 49 ms instead of 86.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lowering import jaxprs
from lowering.cpu.narrow import DEPTH
from lowering.devices import multiplies_bfloat16
from lowering.facts import facts
from lowering.jaxprs import is_literal, primitive
from lowering.kernels.precision import is_bfloat16
from lowering.program import Program
from lowering.targets.target import Target

_WIDE = np.dtype(np.float32)
_NARROW = (np.dtype(jnp.bfloat16), np.dtype(np.float16))


def _is_moving(equation: Any) -> bool:
    """Tell whether it moves items to other places, which keeps their width."""
    known = facts(equation)
    return known.moves and not known.by_item


def _is_kept(equation: Any) -> bool:
    """Tell whether no number is computed."""
    return facts(equation).moves or primitive(equation) in ("iota", "scatter")


def _is_computing(equation: Any) -> bool:
    """Tell whether numbers of 32 bits give what those of 16 do, rounded less often."""
    known = facts(equation)
    return (known.by_item or known.reduces) and primitive(equation) != "nextafter"


def run(program: Program, target: Target) -> Program:
    """Compute numbers of 16 bits in 32. Arguments and results keep their types.

    A function with real arguments of 32 bits rounds to 16 because its document says so. It stays as
    it is, but for the precision of its products. A backward pass goes by its results. Convolutions
    in it are of 32 bits, for which it has kernels.
    """
    closed, backward = program.closed, program.role == "backward"
    avals = [x for x in (closed.out_avals if backward else closed.in_avals) if _is_real(x)]
    chosen = bool(avals) and all(map(_is_narrow, avals))
    if not (chosen or _has_precision(closed.jaxpr)):
        return program
    way = _Way(widens=chosen, backward=backward)

    def function(*arguments: Any) -> list[Any]:
        results = _evaluate(closed, arguments, way)
        return [x.astype(a.dtype) for x, a in zip(results, closed.out_avals, strict=True)]

    return program.retraced(function)


def computes_narrow(jaxpr: Any) -> bool:
    """Tell whether numbers of 16 bits are more than moved, or multiplied with sums of 32 bits."""
    return any(map(_computes_narrow, jaxpr.eqns))


def _computes_narrow(equation: Any) -> bool:
    inner = jaxprs.inner(equation)
    if inner:
        return any(computes_narrow(closed.jaxpr) for closed in inner)
    if primitive(equation) == jaxprs.PRODUCT:
        return any(map(_is_narrow, equation.outvars))
    reads_or_makes = (*equation.invars, *equation.outvars)
    return not _is_kept(equation) and any(map(_is_narrow, reads_or_makes))


@dataclass(frozen=True, slots=True)
class _Way:
    """Says whether all of 16 bits is widened, or products alone get their precision."""

    widens: bool
    backward: bool


def _is_real(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.floating)


def _has_precision(jaxpr: Any) -> bool:
    """Tell whether products of float32 are to be of bfloat16."""
    return any(
        is_bfloat16(e.params.get("precision"))
        or any(_has_precision(inner.jaxpr) for inner in jaxprs.inner(e))
        for e in jaxpr.eqns
    )


def _is_narrow(x: Any) -> bool:
    dtype = getattr(getattr(x, "aval", x), "dtype", None)
    return dtype in _NARROW


def _evaluate(closed: Any, arguments: Sequence[Any], way: _Way) -> list[Any]:
    """Evaluate a function. A variable of 16 bits stands for an array of 16 or of 32."""
    values = jaxprs.values_of(closed, arguments)

    def compute(equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
        pairs = zip(equation.invars, operands, strict=True)
        operands = [np.asarray(x, v.aval.dtype) if is_literal(v) else x for v, x in pairs]
        name = primitive(equation)
        if name == jaxprs.SCAN:
            return _scan(equation, operands, way)
        if name == jaxprs.PRODUCT and is_bfloat16(equation.params["precision"]):
            return [_product(equation, operands, way)]
        if not way.widens or not any(map(_is_narrow, (*equation.invars, *equation.outvars))):
            return jaxprs.bind(equation, operands)
        if name == "convert_element_type" and _is_narrow(equation.outvars[0]):
            return [x if _is_narrow(x) else jnp.asarray(x, _WIDE) for x in operands]
        if name in (jaxprs.PRODUCT, jaxprs.CONVOLUTION):
            return [_product(equation, operands, way)]
        if _is_computing(equation):
            return _bind(equation, _wide(operands))
        if _is_moving(equation):
            whole = [x for x in operands if np.size(x) > 1 and _is_narrow(x)]
            if not whole and not all(map(_is_narrow, operands)):
                return _bind(equation, _wide(operands))
        return jaxprs.bind(equation, _as_declared(equation, operands))

    for equation in closed.jaxpr.eqns:
        jaxprs.place(equation, values, compute)
    return [jnp.asarray(jaxprs.read(v, values)) for v in closed.jaxpr.outvars]


def _bind(equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
    results = equation.primitive.bind(*operands, **equation.params)
    return results if equation.primitive.multiple_results else [results]


def _wide(operands: Sequence[Any]) -> list[Any]:
    return [jnp.asarray(x, _WIDE) if _is_narrow(x) else x for x in operands]


def _as_declared(equation: Any, operands: Sequence[Any]) -> list[Any]:
    pairs = zip(equation.invars, operands, strict=True)
    return [jnp.asarray(x, v.aval.dtype) if _is_narrow(v) else x for v, x in pairs]


def _product(equation: Any, operands: Sequence[Any], way: _Way) -> Any:
    """Multiply what is meant to be bfloat16 in it where that pays, else in 32 bits."""
    name, params = primitive(equation), equation.params | {"preferred_element_type": _WIDE}
    meant = all(v.aval.dtype == jnp.bfloat16 for v in equation.invars)
    if is_bfloat16(params["precision"]):
        meant, params["precision"] = True, None
    pays = _depth(equation) >= DEPTH and not (way.backward and name == jaxprs.CONVOLUTION)
    narrow = meant and pays and multiplies_bfloat16()
    operands = [jnp.asarray(x, jnp.bfloat16) for x in operands] if narrow else _wide(operands)
    return equation.primitive.bind(*operands, **params)


def _depth(equation: Any) -> int:
    """Return how many items of a product are summed, in a convolution those of a cell."""
    numbers, (left, right) = equation.params["dimension_numbers"], equation.invars
    if primitive(equation) == jaxprs.CONVOLUTION:
        return right.aval.shape[numbers.rhs_spec[1]]
    ((sums, _), _) = numbers
    return math.prod(left.aval.shape[axis] for axis in sums)


def _scan(equation: Any, operands: Sequence[Any], way: _Way) -> list[Any]:
    params, (count, carried) = equation.params, jaxprs.scan_counts(equation)
    fit = _wide if way.widens else list
    constants, start, stacks = (
        operands[:count],
        fit(operands[count : count + carried]),
        operands[count + carried :],
    )

    def turn(carry: Sequence[Any], items: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        results = _evaluate(params["jaxpr"], [*constants, *carry, *items], way)
        return fit(results[:carried]), results[carried:]

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    carry, collected = jax.lax.scan(turn, start, list(stacks), **options)
    return [*carry, *collected]
