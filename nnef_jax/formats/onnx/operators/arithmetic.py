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

# The kinds of operators on two tensors. Since version 7 of an operator, its tensors broadcast as in
# numpy.
_PAIRS = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Equal": "eq", "Less": "lt",
    "Greater": "gt", "And": "and", "Or": "or", "Xor": "bitwise_xor",
}  # fmt: skip


@operator("Identity")
def _identity(site: NodeSite) -> Any:
    """Return a tensor, a sequence or an optional value unchanged."""
    x = site.operands[0]
    return site.last.copy(x) if isinstance(x, Tensor) else x


def _pair_meaning(kind: str) -> Meaning:
    """Make the function that flattens an operator on two tensors to one operation of a kind."""

    def meaning(site: NodeSite, x: Tensor, y: Tensor) -> Any:
        add_operation = getattr(site.last, kind)
        return add_operation(x, y)

    return meaning


def _meaning_with_axis(meaning: Meaning) -> Meaning:
    """Make the function that flattens an operator on two tensors before version 7.

    `meaning` is the function for version 7. Before version 7, the first axis of y lies along the
    axis of x that the attribute `axis` names.
    """

    def meaning_along_axis(site: NodeSite, x: Tensor, y: Tensor, *, broadcasts: bool) -> Any:
        if broadcasts and site.has_attribute("axis"):
            # y of shape (3,) along axis 1 of x of shape (2, 3, 4, 5) becomes (3, 1, 1).
            rank = site.rank(y)
            end = site.axis_of("axis") + rank  # the end of the axes of x along which y lies
            new_rank = rank + site.rank(x) - end
            y = site.unsqueezed(y, range(rank, new_rank))
        return meaning(site, x, y)

    return meaning_along_axis


def _power(site: NodeSite, x: Tensor, y: Tensor) -> Any:
    """Compute x^y in the dtype of x. The dtype of y may be different."""
    dtype = site.dtype_of(x)
    if dtype == site.dtype_of(y):
        return site.last.pow(x, y)
    # A power with an integer base and a real exponent is a real number. It is computed in the dtype
    # in which the network computes float64, and then cast to the integers of the base.
    has_only_real_exponent = site.is_real(y) and not site.is_real(x)
    power_dtype = site.computation_dtype("float64") if has_only_real_exponent else dtype
    power = site.step.pow(site.cast(x, power_dtype), site.cast(y, power_dtype))
    return site.cast(power, dtype)


for _name, _meaning in {
    **{name: _pair_meaning(kind) for name, kind in _PAIRS.items()},
    "Pow": _power,
}.items():
    operator(_name, since=7)(_meaning)
    operator(_name, broadcasts=flag("broadcast"))(_meaning_with_axis(_meaning))


@operator("BitShift")
def _bit_shift(
    site: NodeSite, x: Tensor, y: Tensor, *, direction: str = one_of("direction", "LEFT", "RIGHT")
) -> Any:
    """Shift the bits of x by y places to the left or to the right."""
    if direction == "LEFT":
        return site.last.shift_left(x, y)
    return site.last.shift_right(x, y)


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
    has_wrong_sign = step.and_(signs_differ, step.ne(remainder, 0))
    return add.select(has_wrong_sign, step.add(remainder, y), remainder)


def _combined(site: NodeSite, kind: str, values: Sequence[Tensor], end: ByKind) -> Any:
    """Combine tensors from left to right by operations of one kind, such as "add".

    `end` adds the last of the operations.
    """
    if len(values) == 1:
        return end.copy(values[0])
    first_value, *middle_values, last_value = values
    add_step = getattr(site.step, kind)
    result = first_value
    for value in middle_values:
        result = add_step(result, value)
    add_last_step = getattr(end, kind)
    return add_last_step(result, last_value)


def _variadic_meaning(kind: str) -> Meaning:
    """Make the function that flattens an operator on any number of tensors.

    The operator combines the tensors by operations of one kind, such as "add".
    """

    def meaning(site: NodeSite, *values: Tensor) -> Any:
        return _combined(site, kind, values, site.last)

    return meaning


for _name, _kind in (("Max", "max"), ("Min", "min"), ("Sum", "add")):
    operator(_name)(_variadic_meaning(_kind))


@operator("Mean")
def _mean(site: NodeSite, *values: Tensor) -> Any:
    """Compute the mean of several tensors."""
    total = _combined(site, "add", values, site.step)
    return site.last.div(total, len(values))


@operator("Clip", since=11)
def _clip(
    site: NodeSite, x: Tensor, low: Operand | None = None, high: Operand | None = None
) -> Any:
    """Compute min(max(x, low), high). A bound that is None is left out."""
    steps: list[Any] = []
    if low is not None:
        steps.append(("max", [low], {}))
    if high is not None:
        steps.append(("min", [high], {}))
    return site.chain(x, *steps)


@operator("Clip")
def _clip_by_attributes(site: NodeSite, x: Tensor) -> Any:
    """Clip x to the bounds in the attributes `min` and `max`, as before version 11."""
    low = site.number("min") if site.has_attribute("min") else None
    high = site.number("max") if site.has_attribute("max") else None
    return _clip(site, x, low, high)


# Activations. The module `rows` has further activations. Functions of the standard define the
# remaining ones.


@operator(
    "Selu", since=6,
    alpha=number("alpha", 1.6732632423543772), gamma=number("gamma", 1.0507009873554805),
)  # fmt: skip
@operator("Selu", alpha=number("alpha", 1.6732), gamma=number("gamma", 1.0507))
def _selu(site: NodeSite, x: Tensor, *, alpha: float, gamma: float) -> Any:
    """Compute gamma * x for items of x above 0, and gamma * alpha * (exp(x) - 1) for others."""
    return site.last.selu(x, alpha=alpha, **{"lambda": gamma})


@operator("HardSigmoid")
def _hard_sigmoid(
    site: NodeSite,
    x: Tensor,
    *,
    alpha: float = number("alpha", 0.2),
    beta: float = number("beta", 0.5),
) -> Any:
    """Compute min(max(alpha * x + beta, 0), 1)."""
    step = site.step
    line = step.add(step.mul(x, alpha), beta)
    return site.last.clamp(line, 0, 1)


@operator("PRelu", since=7)
def _prelu(site: NodeSite, x: Tensor, slope: Tensor) -> Any:
    """Compute x * slope for negative items of x. All other items are unchanged."""
    if site.is_real():
        return site.last.prelu(x, slope)
    is_negative = site.step.lt(x, 0)
    return site.last.select(is_negative, site.step.mul(x, slope), x)


@operator("PRelu")
def _prelu_of_channels(site: NodeSite, x: Tensor, slope: Tensor) -> Any:
    """Compute `_prelu` with a slope of shape (channels,) or with a slope that broadcasts to x."""
    if site.rank(slope) == 1:
        spatial_rank = site.rank() - 2
        slope = site.unsqueezed(slope, range(1, spatial_rank + 1))
    return _prelu(site, x, slope)


@operator("Gelu")
def _gelu(
    site: NodeSite, x: Tensor, *, approximation: str = word("approximate", "none", "tanh")
) -> Any:
    """Compute x * cdf(x), where cdf is the distribution function of the normal distribution.

    The approximation "tanh" replaces cdf by a function with a hyperbolic tangent.
    """
    if approximation == "tanh":
        return site.last.gelu(x, approximation="tanh")
    step = site.step
    erf = step.erf(step.mul(x, math.sqrt(0.5)))
    twice_cdf = step.add(erf, 1)  # twice the distribution function of the normal distribution
    half_x = step.mul(x, 0.5)
    return site.last.mul(half_x, twice_cdf)


@operator("Swish")
def _swish(site: NodeSite, x: Tensor, *, alpha: float = number("alpha", 1.0)) -> Any:
    """Compute x * sigmoid(alpha * x)."""
    if alpha == 1:
        return site.last.silu(x)
    gate = site.step.sigmoid(site.step.mul(x, alpha))
    return site.last.mul(x, gate)


@operator("Dropout", since=7)
def _dropout(
    site: NodeSite, x: Tensor, ratio: Tensor | None = None, mode: Tensor | None = None
) -> Any:
    """Return the input unchanged, and a mask of ones.

    Raises InvalidOperation if the node drops items at random, as in training.
    """
    is_training = mode is not None and bool(site.known(2).any())
    if not is_training:
        return _with_mask_of_ones(site, x)
    has_ratio = ratio is None or bool(site.known(1).any())
    return RANDOM(site) if has_ratio else _with_mask_of_ones(site, x)


@operator("Dropout")
def _dropout_by_attributes(site: NodeSite, x: Tensor, *, is_test: bool = flag("is_test")) -> Any:
    """Return the input and a mask of ones, as `_dropout` does, before version 7."""
    if not is_test and site.number("ratio", 0.5) != 0:
        return RANDOM(site)
    return _with_mask_of_ones(site, x)


def _with_mask_of_ones(site: NodeSite, x: Tensor) -> Any:
    """Return a tensor unchanged, and a mask of ones if another node reads output 1."""
    result = site.last.copy(x)
    if not site.is_read(1):
        return result
    dtype = "bool" if site.version >= 10 else site.dtype_of()  # the mask is logical since 10
    return result, site.filled(1, dtype, site.known_shape())
