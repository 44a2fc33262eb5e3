"""Item by item: arithmetic, bounds, activations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nnef_jax.flattening.by_kind import ByKind
from nnef_jax.flattening.site import Tensor
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator
from nnef_jax.formats.onnx.operators.rows import RANDOM, pair


@operator("Identity")
def _identity(site: NodeSite) -> Any:
    """Return a tensor, a sequence, or an optional value that may be empty."""
    x = site.operands[0]
    return site.last.copy(x) if isinstance(x, Tensor) else x


@operator("Pow")
def _power(site: NodeSite) -> Any:
    """Return x to the power y, of another dtype if need be; the result has that of x."""
    x, y = pair(site)
    dtype = site.dtype_of(x)
    if dtype == site.dtype_of(y):
        return site.last.pow(x, y)
    wide = dtype if site.is_real(x) or not site.is_real(y) else site.computed("float64")
    return site.cast(site.step.pow(site.cast(x, wide), site.cast(y, wide)), dtype)


@operator("Mod")
def _mod(site: NodeSite) -> Any:
    """Return the remainder of a division: with the sign of x for `fmod`, else of y."""
    if site.flag("fmod"):
        return site.last.rem(*pair(site))
    return floored_mod(site, *pair(site), site.last)


def floored_mod(site: NodeSite, x: Any, y: Any, add: ByKind) -> Any:
    """Return the remainder of a division rounded down."""
    step = site.step
    rest = step.rem(x, y)
    differ = step.ne(step.lt(rest, 0), step.lt(y, 0))
    return add.select(step.and_(differ, step.ne(rest, 0)), step.add(rest, y), rest)


def _joined(site: NodeSite, kind: str, values: Sequence[Any], end: ByKind) -> Any:
    """Join all inputs in order; the last operation is added by `end`."""
    first, *rest = values
    for i, other in enumerate(rest, 1):
        first = getattr(end if i == len(rest) else site.step, kind)(first, other)
    return first if rest else end.copy(first)


@operator("Max", "Min", "Sum")
def _all(site: NodeSite, *values: Any) -> Any:
    kind = {"Sum": "add"}.get(site.operator, site.operator.lower())
    return _joined(site, kind, values, site.last)


@operator("Mean")
def _mean(site: NodeSite, *values: Any) -> Any:
    return site.last.div(_joined(site, "add", values, site.step), len(values))


@operator("Clip")
def _clip(site: NodeSite, x: Any, low: Any = None, high: Any = None) -> Any:
    """Return items between bounds, which are inputs since version 11; the upper one wins."""
    if site.version < 11:
        given = site.node.attributes
        low, high = (site.number(n) if n in given else None for n in ("min", "max"))
    bounds = [(kind, n) for kind, n in (("max", low), ("min", high)) if n is not None]
    return site.chain(x, *((kind, [bound], {}) for kind, bound in bounds))


# Activations; others are rows, or are run by the standard's definitions of them.


@operator("Selu")
def _selu(site: NodeSite, x: Any) -> Any:
    alpha, gamma = (
        (1.6732632423543772, 1.0507009873554805) if site.version >= 6 else (1.6732, 1.0507)
    )
    given = {"alpha": site.number("alpha", alpha), "lambda": site.number("gamma", gamma)}
    return site.last.selu(x, **given)


@operator("PRelu")
def _prelu(site: NodeSite, x: Any, slope: Any) -> Any:
    """Return items times a slope where they are negative; before version 7 slopes of channels."""
    if site.version < 7 and site.rank(1) == 1:
        slope = site.unsqueezed(slope, range(1, site.rank() - 1))
    if site.is_real():
        return site.last.prelu(x, slope)
    return site.last.select(site.step.lt(x, 0), site.step.mul(x, slope), x)


@operator("Gelu")
def _gelu(site: NodeSite, x: Any) -> Any:
    if site.choice("approximate", "none", "tanh", default="none") == "tanh":
        return site.last.gelu(x, approximation="tanh")
    whole = site.step.add(site.step.erf(site.step.mul(x, math.sqrt(0.5))), 1)
    return site.last.mul(site.step.mul(x, 0.5), whole)


@operator("Swish")
def _swish(site: NodeSite, x: Any) -> Any:
    alpha = site.number("alpha", 1.0)
    if alpha == 1:
        return site.last.silu(x)
    return site.last.mul(x, site.step.sigmoid(site.step.mul(x, alpha)))


@operator("Dropout")
def _dropout(site: NodeSite, x: Any, ratio: Any = None, mode: Any = None) -> Any:
    """Return the input, and that all of it is kept: inference alone is exact."""
    if site.version < 7:
        trains = not site.flag("is_test") and site.number("ratio", 0.5) != 0
    else:
        trains = mode is not None and bool(site.known(2).any())
        trains = trains and (ratio is None or bool(site.known(1).any()))
    if trains:
        return RANDOM(site)
    result = site.last.copy(x)
    if not site.is_read(1):
        return result
    return result, site.filled(
        1, "bool" if site.version >= 10 else site.dtype_of(), site.known_shape()
    )
