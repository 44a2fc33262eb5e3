"""Meanings of elementwise operators: arithmetic, bounds and activations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nnef_jax.flattening.by_kind import ByKind
from nnef_jax.flattening.operators.attributes import flag, number, one_of, word
from nnef_jax.flattening.operators.registry import Meaning
from nnef_jax.flattening.site import Operand, Tensor
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator
from nnef_jax.formats.onnx.operators.rows import RANDOM

# Operators on two tensors, with their kinds. Since version 7 the tensors broadcast as numpy's do.
_PAIRS = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Equal": "eq", "Less": "lt",
    "Greater": "gt", "And": "and", "Or": "or", "Xor": "bitwise_xor",
}  # fmt: skip


@operator("Identity")
def _identity(site: NodeSite) -> Any:
    """Return a tensor, a sequence or an optional value unchanged."""
    x = site.operands[0]
    return site.last.copy(x) if isinstance(x, Tensor) else x


def _on_two(kind: str) -> Meaning:
    return lambda site, x, y: getattr(site.last, kind)(x, y)


def _along_axis(meaning: Meaning) -> Meaning:
    """Return the meaning of an operator on two tensors before version 7, from its later meaning.

    Before version 7, the first axis of y lies along the axis `axis` of x.
    """

    def meaning_along_axis(site: NodeSite, x: Tensor, y: Tensor, *, broadcasts: bool) -> Any:
        if broadcasts and site.has_attribute("axis"):
            rank = site.rank(y)
            missing = site.rank(x) - (site.axis_of("axis") + rank)
            y = site.unsqueezed(y, range(rank, rank + missing))
        return meaning(site, x, y)

    return meaning_along_axis


def _power(site: NodeSite, x: Tensor, y: Tensor) -> Any:
    """Compute x^y in the dtype of x. The dtype of y may be different."""
    dtype = site.dtype_of(x)
    if dtype == site.dtype_of(y):
        return site.last.pow(x, y)
    is_integer_to_real = site.is_real(y) and not site.is_real(x)
    wide = site.computation_dtype("float64") if is_integer_to_real else dtype
    power = site.step.pow(site.cast(x, wide), site.cast(y, wide))
    return site.cast(power, dtype)


for _name, _meaning in {
    **{name: _on_two(kind) for name, kind in _PAIRS.items()},
    "Pow": _power,
}.items():
    operator(_name, since=7)(_meaning)
    operator(_name, broadcasts=flag("broadcast"))(_along_axis(_meaning))


@operator("BitShift")
def _bit_shift(
    site: NodeSite, x: Tensor, y: Tensor, *, direction: str = one_of("direction", "LEFT", "RIGHT")
) -> Any:
    add = site.last.shift_left if direction == "LEFT" else site.last.shift_right
    return add(x, y)


@operator("Mod")
def _mod(site: NodeSite, x: Tensor, y: Tensor, *, truncates: bool = flag("fmod")) -> Any:
    """Compute the remainder of x / y.

    The remainder has the sign of x if `truncates`, otherwise the sign of y.
    """
    return site.last.rem(x, y) if truncates else floored_mod(site, x, y, site.last)


def floored_mod(site: NodeSite, x: Tensor, y: Operand, add: ByKind) -> Any:
    """Compute x - floor(x / y) * y, the remainder with the sign of y.

    `add` adds the last of the operations.
    """
    step = site.step
    remainder = step.rem(x, y)
    signs_differ = step.ne(step.lt(remainder, 0), step.lt(y, 0))
    is_shifted = step.and_(signs_differ, step.ne(remainder, 0))
    return add.select(is_shifted, step.add(remainder, y), remainder)


def _combined(site: NodeSite, kind: str, values: Sequence[Tensor], end: ByKind) -> Any:
    """Combine tensors from left to right by operations of one kind, such as "add".

    `end` adds the last of the operations.
    """
    result, *operands = values
    if not operands:
        return end.copy(result)
    *inner, last = operands
    for value in inner:
        result = getattr(site.step, kind)(result, value)
    return getattr(end, kind)(result, last)


def _of_all(kind: str) -> Meaning:
    return lambda site, *values: _combined(site, kind, values, site.last)


for _name, _kind in (("Max", "max"), ("Min", "min"), ("Sum", "add")):
    operator(_name)(_of_all(_kind))


@operator("Mean")
def _mean(site: NodeSite, *values: Tensor) -> Any:
    return site.last.div(_combined(site, "add", values, site.step), len(values))


@operator("Clip", since=11)
def _clip(
    site: NodeSite, x: Tensor, low: Operand | None = None, high: Operand | None = None
) -> Any:
    """Return min(max(x, low), high)."""
    steps: list[Any] = []
    if low is not None:
        steps.append(("max", [low], {}))
    if high is not None:
        steps.append(("min", [high], {}))
    return site.chain(x, *steps)


@operator("Clip")
def _clip_by_attributes(site: NodeSite, x: Tensor) -> Any:
    low = site.number("min") if site.has_attribute("min") else None
    high = site.number("max") if site.has_attribute("max") else None
    return _clip(site, x, low, high)


# Activations. Others are in the module `rows`, or are defined by functions of the standard.


@operator(
    "Selu", since=6,
    alpha=number("alpha", 1.6732632423543772), gamma=number("gamma", 1.0507009873554805),
)  # fmt: skip
@operator("Selu", alpha=number("alpha", 1.6732), gamma=number("gamma", 1.0507))
def _selu(site: NodeSite, x: Tensor, *, alpha: float, gamma: float) -> Any:
    return site.last.selu(x, alpha=alpha, **{"lambda": gamma})


@operator("HardSigmoid")
def _hard_sigmoid(
    site: NodeSite,
    x: Tensor,
    *,
    alpha: float = number("alpha", 0.2),
    beta: float = number("beta", 0.5),
) -> Any:
    line = site.step.add(site.step.mul(x, alpha), beta)
    return site.last.clamp(line, 0, 1)


@operator("PRelu", since=7)
def _prelu(site: NodeSite, x: Tensor, slope: Tensor) -> Any:
    """Compute x * slope for negative items of x. All other items are unchanged."""
    if site.is_real():
        return site.last.prelu(x, slope)
    return site.last.select(site.step.lt(x, 0), site.step.mul(x, slope), x)


@operator("PRelu")
def _prelu_of_channels(site: NodeSite, x: Tensor, slope: Tensor) -> Any:
    if site.rank(slope) == 1:
        slope = site.unsqueezed(slope, range(1, site.rank() - 1))
    return _prelu(site, x, slope)


@operator("Gelu")
def _gelu(
    site: NodeSite, x: Tensor, *, approximation: str = word("approximate", "none", "tanh")
) -> Any:
    if approximation == "tanh":
        return site.last.gelu(x, approximation="tanh")
    erf = site.step.erf(site.step.mul(x, math.sqrt(0.5)))
    twice_cdf = site.step.add(erf, 1)
    return site.last.mul(site.step.mul(x, 0.5), twice_cdf)


@operator("Swish")
def _swish(site: NodeSite, x: Tensor, *, alpha: float = number("alpha", 1.0)) -> Any:
    if alpha == 1:
        return site.last.silu(x)
    return site.last.mul(x, site.step.sigmoid(site.step.mul(x, alpha)))


@operator("Dropout", since=7)
def _dropout(
    site: NodeSite, x: Tensor, ratio: Tensor | None = None, mode: Tensor | None = None
) -> Any:
    """Return the input unchanged, and a mask of ones.

    Raises InvalidOperation if the node drops items at random, as in training.
    """
    if mode is None or not site.known(2).any():
        return _dropped(site, x, False)
    drops = ratio is None or bool(site.known(1).any())
    return _dropped(site, x, drops)


@operator("Dropout")
def _dropout_by_attributes(site: NodeSite, x: Tensor, *, is_test: bool = flag("is_test")) -> Any:
    return _dropped(site, x, not is_test and site.number("ratio", 0.5) != 0)


def _dropped(site: NodeSite, x: Tensor, drops: bool) -> Any:
    if drops:
        return RANDOM(site)
    result = site.last.copy(x)
    if not site.is_read(1):
        return result
    dtype = "bool" if site.version >= 10 else site.dtype_of()
    return result, site.filled(1, dtype, site.known_shape())
