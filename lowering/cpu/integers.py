"""Compute products of tensors that are rounded to few levels by their codes, in integers.

`python -m benchmarks.quantised` times it. Codes stay in 8 bits between layers: what reads a tensor
in real numbers makes them of its codes, in its own loop.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lowering import jaxprs
from lowering.cpu import codes
from lowering.cpu.codes import Codes
from lowering.devices import multiplies_bytes
from lowering.facts import facts
from lowering.jaxprs import is_literal, primitive
from lowering.kernels.levels import NOTE
from lowering.program import Program, in_loops
from lowering.targets.target import Target

# Channels of a window, or items that a product sums: of fewer, sums in float32 are as fast.
_DEPTH = 16

_REAL, _BYTES = np.dtype(np.float32), (np.dtype(np.int8), np.dtype(np.uint8))


@in_loops
def run(program: Program, target: Target) -> Program:
    """Compute products of codes in integers. Remove the notes of levels.

    Passes of derivatives, and steps of loops, stay in real numbers.
    """
    closed = program.closed
    if not _has_codes(closed.jaxpr):
        return program
    is_value = program.role == "value" and not program.in_loop
    found = _found(closed) if is_value else _Found()
    traced = _traced(closed, replace(found, is_settled=True))
    return program.with_closed(jaxprs.of_equations(traced, traced.jaxpr.eqns, traced.jaxpr.outvars))


def names_of_products(closed: Any) -> list[str]:
    """Return the scopes of the products that this pass computes by codes, on this host."""
    return _found(closed).names


@dataclass(slots=True)
class _Found:
    """What is computed in integers: the names of products, and the origins of their codes."""

    names: list[str] = field(default_factory=list[str])
    origins: set[Any] = field(default_factory=set[Any])
    is_settled: bool = False


def _found(closed: Any) -> _Found:
    found = _Found()
    if multiplies_bytes() and _has_codes(closed.jaxpr):
        _traced(closed, found)
    return found


def _traced(closed: Any, found: _Found) -> Any:
    def run(*arguments: Any) -> list[Any]:
        with np.errstate(all="ignore"):  # numbers may overflow, or be divided by 0
            return _evaluate(closed, arguments, found)

    return jax.make_jaxpr(run)(*closed.in_avals)


def _has_codes(jaxpr: Any) -> bool:
    return any(primitive(e) == NOTE or _is_from_bytes(e) for e in jaxpr.eqns)


def _moves(equation: Any) -> bool:
    """Tell whether the one result has items of the one operand, in its dtype."""
    single = len(equation.invars) == len(equation.outvars) == 1
    return single and facts(equation).moves and primitive(equation) != "convert_element_type"


def _is_from_bytes(equation: Any) -> bool:
    return (
        primitive(equation) == "convert_element_type"
        and not is_literal(equation.invars[0])
        and equation.invars[0].aval.dtype in _BYTES
        and equation.outvars[0].aval.dtype == _REAL
    )


def _evaluate(closed: Any, arguments: Sequence[Any], found: _Found) -> list[Any]:
    values = jaxprs.values_of(closed, arguments)
    coded: dict[Any, Codes] = {}
    uses = Counter(jaxprs.variables(v for e in closed.jaxpr.eqns for v in e.invars))
    slim: dict[Any, Any] = {}  # what is broadcast, as it was

    def codes_of(variable: Any) -> Codes | None:
        return None if is_literal(variable) else coded.get(variable)

    def compact(variable: Any) -> Any:
        """Return an operand with the extent 1 where all its items are equal, if it is slim."""
        if is_literal(variable):
            return np.asarray(variable.val, variable.aval.dtype)
        x = slim.get(variable, values[variable])
        return x if codes.is_slim(x) else None

    def compute(equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
        name, variables, (result, *_) = primitive(equation), equation.invars, equation.outvars
        own = [codes_of(v) for v in variables]
        if name == NOTE:
            return [_rounded(equation, operands)]
        if _is_from_bytes(equation):
            if not found.is_settled or result in found.origins:
                coded[result] = codes.of_bytes(operands[0], result)
        elif name in (jaxprs.PRODUCT, jaxprs.CONVOLUTION) and None not in own:
            array = _product(equation, own[0], own[1])
            if array is not None:
                found.names.append(jaxprs.outer_scope(equation))
                found.origins.update(x.origin for x in own if x is not None)
                return [array]
        elif name in ("add", "sub", "mul", "div") and any(own) and not all(own):
            x = _changed(name, own, [compact(v) for v in variables])
            coded.update({} if x is None else {result: x})
        elif name == "transpose" and own[0] is not None:
            coded[result] = _transposed(own[0], equation.params["permutation"])
        elif _moves(equation) and own[0] is not None:
            x = own[0].moved(lambda x: jaxprs.bind(equation, [x])[0])
            coded.update({} if x is None else {result: x})
        elif name == "broadcast_in_dim" and len(operands) == 1:
            shape = [1] * len(equation.params["shape"])
            for n, axis in zip(
                np.shape(operands[0]), equation.params["broadcast_dimensions"], strict=True
            ):
                shape[axis] = n
            base = compact(variables[0])
            if base is not None and np.size(base) == math.prod(shape):
                slim[result] = lax.reshape(base, shape) if np.ndim(base) else base
        return jaxprs.bind(equation, operands)

    def _rounded(equation: Any, operands: Sequence[Any]) -> Any:
        (result,), (x, level, step, start) = equation.outvars, operands
        if (
            found.is_settled
            and result not in found.origins
            and (not found.names or uses[result] < 2)
        ):
            return x
        if x.dtype == _REAL and codes.is_slim(step) and codes.is_slim(start):
            made = codes.of_levels(level, step, start, equation.params["levels"], result)
            coded[result] = made
            return made.real() if found.is_settled else x
        return x

    for equation in closed.jaxpr.eqns:
        jaxprs.place(equation, values, compute)
    return [jnp.asarray(jaxprs.read(v, values)) for v in closed.jaxpr.outvars]


def _product(equation: Any, left: Codes | None, right: Codes | None) -> Any:
    assert left is not None and right is not None
    if equation.outvars[0].aval.dtype != _REAL:
        return None
    params = equation.params
    if primitive(equation) == jaxprs.PRODUCT:
        ((sums, _), _) = params["dimension_numbers"]
        deep = math.prod(left.shape[axis] for axis in sums) >= _DEPTH
        return codes.product(left, right, params) if deep else None
    channels = right.shape[params["dimension_numbers"].rhs_spec[1]]
    plain = params["feature_group_count"] == params["batch_group_count"] == 1
    undilated = all(d == 1 for d in params["lhs_dilation"])
    fits = plain and undilated and channels >= _DEPTH
    return codes.convolution(left, right, params) if fits else None


def _changed(name: str, own: Sequence[Codes | None], slim: Sequence[Any]) -> Codes | None:
    """Return codes plus, minus, times or by an operand that has items along one axis at most."""
    (x, other), reverse = (
        ((own[0], slim[1]), False) if own[0] is not None else ((own[1], slim[0]), True)
    )
    assert x is not None
    if other is None or (reverse and name in ("sub", "div")):
        return None
    if name in ("mul", "div"):
        factor = other if name == "mul" else 1 / other
        made = replace(x, step=x.step * factor, start=x.start * factor)
    else:
        change = other if name == "add" else -other
        made = replace(x, start=x.start + change, zero=None)
    return made if codes.is_slim(made.step) and codes.is_slim(made.start) else None


def _transposed(x: Codes, order: Sequence[int]) -> Codes:
    def turned(v: Any) -> Any:
        return jnp.transpose(v, order) if np.ndim(v) else v

    return replace(
        x,
        codes=jnp.transpose(x.codes, order),
        step=turned(x.step),
        start=turned(x.start),
    )
