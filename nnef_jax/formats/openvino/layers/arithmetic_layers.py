"""Two tensors or more item by item, and what tells of items."""

from __future__ import annotations

from typing import Any

from lowering.errors import InvalidOperation
from lowering.graph import Value, is_float
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.layer_site import LayerSite, Steps
from nnef_jax.formats.openvino.layers import everywhere, legacy, opsets


@opsets("IsFinite")
def _is_finite(site: LayerSite) -> Value:
    x, step = site.tensor(0), site.step
    infinite = step.is_inf(x, positive=True, negative=True)
    return site.last.not_(step.or_(infinite, step.is_nan(x)))


def _modulo(site: LayerSite, x: Any, y: Any, *, floored: bool) -> Value:
    """Return what is left of x over y; the quotient is rounded down if `floored`, else cut off."""
    step = site.step
    quotient = step.div(x, y)
    if is_float(quotient.type.dtype):
        if floored:
            quotient = step.floor(quotient)
        else:
            size = step.floor(step.abs(quotient))
            quotient = step.mul(step.sign(quotient), size)
        return site.last.sub(x, step.mul(quotient, y))
    rest = step.sub(x, step.mul(quotient, y))
    if not floored:
        return site.last.copy(rest)
    dtype = rest.type.dtype
    product = step.mul(step.sign(rest), y)
    differs = step.lt(product, 0 if dtype == site.integer else site.filled(0, dtype))
    return site.last.add(rest, step.mul(step.cast(differs, dtype=dtype), y))


@opsets("FloorMod")
def _floor_mod(site: LayerSite) -> Value:
    return _modulo(site, *site.broadcast(), floored=True)


@opsets("Mod")
def _mod(site: LayerSite) -> Value:
    return _modulo(site, *site.broadcast(), floored=False)


def _xor(last: Steps, site: LayerSite, x: Any, y: Any) -> Value:
    """Tell where one holds and the other does not; NNEF compares numbers alone."""
    either, both = site.step.or_(x, y), site.step.and_(x, y)
    return last.and_(either, site.step.not_(both))


@opsets("LogicalXor")
def _logical_xor(site: LayerSite) -> Value:
    return _xor(site.last, site, *site.broadcast())


@opsets("SquaredDifference")
def _squared_difference(site: LayerSite) -> Value:
    return site.last.sqr(site.step.sub(*site.broadcast()))


_ELTWISE = {
    "sum": "add", "": "add", "add": "add", "mul": "mul", "prod": "mul", "max": "max", "min": "min",
    "sub": "sub", "div": "div", "pow": "pow",
}  # fmt: skip
_CONDITIONS = {
    "equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt",
    "greater_equal": "ge", "logical_and": "and", "logical_or": "or",
}  # fmt: skip


@legacy("Eltwise")
def _eltwise(site: LayerSite) -> Value:
    """Join two or more tensors; comparisons give 0.0 and 1.0."""
    operation, factors = site.text("operation", "sum"), site.numbers("coeff", [])
    parts = [x for x in site.operands if x is not None]
    if factors and operation in ("sum", ""):
        if len(factors) != len(parts):
            raise InvalidOperation(f"'coeff' must have an item for each of {len(parts)} inputs")
        parts = [
            x if factor == 1 else site.step.mul(site.tensor(x), factor)
            for x, factor in zip(parts, factors, strict=True)
        ]
    joined, *rest = parts
    for i, other in enumerate(rest, 1):
        x, y = site.aligned(joined, other)
        joined = _joined(site, site.step_or_last(i == len(rest)), operation, x, y)
    return site.tensor(joined) if isinstance(joined, Constant) else joined


def _joined(site: LayerSite, last: Steps, operation: str, x: Any, y: Any) -> Value:
    step = site.step
    match operation:
        case "squared_diff":
            return last.sqr(step.sub(x, y))
        case "floor_mod":
            return _modulo(site, x, y, floored=True)
        case "mean":
            return last.mul(step.add(x, y), 0.5)
        case "logical_not":
            return last.sub(1.0, x)
        case _ if operation in _ELTWISE:
            return getattr(last, _ELTWISE[operation])(x, y)
        case _:
            if operation.startswith("logical_"):
                x, y = step.ne(x, 0.0), step.ne(y, 0.0)
            if operation == "logical_xor":
                return last.cast(_xor(step, site, x, y), dtype=site.real)
            if operation not in _CONDITIONS:
                raise InvalidOperation(f"there is no operation '{operation}'")
            return last.cast(getattr(step, _CONDITIONS[operation])(x, y), dtype=site.real)


@legacy("Power")
def _legacy_power(site: LayerSite) -> Value:
    """Return (shift + scale * x) ** power."""
    x = site.tensor(0)
    given = (
        ("mul", site.number("scale", 1), 1),
        ("add", site.number("shift", 0), 0),
        ("pow", site.number("power", 1), 1),
    )
    steps = [(kind, factor) for kind, factor, neutral in given if factor != neutral]
    for i, (kind, factor) in enumerate(steps, 1):
        x = getattr(site.step_or_last(i == len(steps)), kind)(x, factor)
    return x if steps else site.last.copy(x)


@everywhere("Select")
def _select(site: LayerSite) -> Value:
    condition = site.truths(site.tensor(0))
    return site.last.select(*site.aligned(condition, site.tensor(1), site.tensor(2)))
