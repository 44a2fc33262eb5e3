"""Functions for elementwise operators: arithmetic, bounds and activations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from operator import mod
from typing import Any

import numpy as np

from nnef_jax.flattening.by_kind import ByKind
from nnef_jax.flattening.host_operations import binary
from nnef_jax.flattening.hostvalues import NotFolded
from nnef_jax.flattening.operators.attributes import flag, number, one_of, word
from nnef_jax.flattening.operators.registry import Meaning
from nnef_jax.flattening.site import Operand, Tensor
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator
from nnef_jax.formats.onnx.operators.rows import RANDOM

# Maps the name of each operator on two tensors to the name of an operation. Since version 7 of the
# operators, the tensors broadcast as in numpy.
_PAIRS = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Equal": "eq", "Less": "lt",
    "Greater": "gt", "And": "and", "Or": "or", "Xor": "bitwise_xor",
}  # fmt: skip
_REMAINDER = binary(mod, np.mod)  # the remainder with the sign of the divisor, of constants


@operator("Identity")
def _identity(site: NodeSite) -> Any:
    """Return a tensor, a sequence or an optional value unchanged."""
    x = site.operands[0]
    return site.last.copy(x) if isinstance(x, Tensor) else x


def _pair_meaning(kind: str) -> Meaning:
    """Return the function that flattens an operator on two tensors to one operation.

    `kind` is the kind of the operation, such as "mul".
    """

    def meaning(site: NodeSite, x: Tensor, y: Tensor) -> Any:
        emit_operation = getattr(site.last, kind)
        return emit_operation(x, y)

    return meaning


def _meaning_with_axis(meaning: Meaning) -> Meaning:
    """Return the function that flattens the versions before 7 of an operator on two tensors.

    `meaning` is the function for the versions since 7. Before version 7, the attribute `axis` is
    the axis of x at which the axes of y begin. It has an effect only if the attribute `broadcast`
    is set.
    """

    def meaning_along_axis(site: NodeSite, x: Tensor, y: Tensor, *, broadcasts: bool) -> Any:
        """Apply the operator. `broadcasts` is the attribute `broadcast`."""
        if broadcasts and site.has_attribute("axis"):
            # For example, y of shape (3,) lies along axis 1 of x of shape (2, 3, 4, 5). Axes 2 and
            # 3 of x come after y, so y gets 2 new axes at its end: its shape becomes (3, 1, 1).
            y_rank = site.rank(y)
            first_axis_after_y = site.axis_of("axis") + y_rank
            new_axis_count = site.rank(x) - first_axis_after_y
            y = site.unsqueezed(y, range(y_rank, y_rank + new_axis_count))
        return meaning(site, x, y)

    return meaning_along_axis


def _power(site: NodeSite, x: Tensor, y: Tensor) -> Any:
    """Compute x^y in the dtype of x. The dtype of y may be different."""
    dtype = site.dtype_of(x)
    if dtype == site.dtype_of(y):
        return site.last.pow(x, y)
    power_dtype = dtype
    if site.is_real(y) and not site.is_real(x):
        # A power with an integer base and a real exponent is a real number, which is cast to an
        # integer afterwards.
        power_dtype = site.computation_dtype("float64")
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
    if truncates:
        return site.last.rem(x, y)
    if site.is_folded("mod", [x, y]):
        # `floored_mod` would need the sign of symbolic extents.
        with suppress(NotFolded):
            return site.evaluated(_REMAINDER, site.aligned(x, y))
    return floored_mod(site, x, y, last=site.last)


def floored_mod(site: NodeSite, x: Tensor, y: Operand, last: ByKind) -> Any:
    """Compute x - floor(x / y) * y, the remainder with the sign of y.

    `last` adds the final operation to the graph. It is `site.last` or `site.step`.
    """
    step = site.step
    remainder = step.rem(x, y)  # with the sign of x
    signs_differ = step.ne(step.lt(remainder, 0), step.lt(y, 0))
    has_wrong_sign = step.and_(signs_differ, step.ne(remainder, 0))
    return last.select(has_wrong_sign, step.add(remainder, y), remainder)


def _combined(site: NodeSite, kind: str, values: Sequence[Tensor], last: ByKind) -> Any:
    """Combine tensors from left to right by operations of one kind, such as "add".

    `last` adds the final operation to the graph. It is `site.last` or `site.step`.
    """
    if len(values) == 1:
        return last.copy(values[0])
    first_value, *middle_values, last_value = values
    combine = getattr(site.step, kind)
    result = first_value
    for value in middle_values:
        result = combine(result, value)
    combine_finally = getattr(last, kind)
    return combine_finally(result, last_value)


def _variadic_meaning(kind: str) -> Meaning:
    """Return the function that flattens an operator on any number of tensors.

    `kind` is the kind of the operations that combine the tensors from left to right, such as "add".
    """

    def meaning(site: NodeSite, *values: Tensor) -> Any:
        return _combined(site, kind, values, last=site.last)

    return meaning


for _name, _kind in (("Max", "max"), ("Min", "min"), ("Sum", "add")):
    operator(_name)(_variadic_meaning(_kind))


@operator("Mean")
def _mean(site: NodeSite, *values: Tensor) -> Any:
    """Compute the mean of several tensors."""
    total = _combined(site, "add", values, last=site.step)
    return site.last.div(total, len(values))


@operator("Clip", since=11)
def _clip(
    site: NodeSite, x: Tensor, low: Operand | None = None, high: Operand | None = None
) -> Any:
    """Compute min(max(x, low), high). A bound that is None is left out."""
    # A step is a tuple: the kind of an operation, the operands after x, and the attributes.
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


# Activations. Other activations are in the module `rows`, or defined by functions of the ONNX
# standard.


@operator(
    "Selu", since=6,
    alpha=number("alpha", 1.6732632423543772), gamma=number("gamma", 1.0507009873554805),
)  # fmt: skip
@operator("Selu", alpha=number("alpha", 1.6732), gamma=number("gamma", 1.0507))
def _selu(site: NodeSite, x: Tensor, *, alpha: float, gamma: float) -> Any:
    """Compute gamma * x where x > 0, and gamma * alpha * (exp(x) - 1) elsewhere."""
    # `lambda` is a keyword of Python, so the attribute cannot be written as `lambda=gamma`.
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
    # The operation `prelu` is for real numbers only.
    is_negative = site.step.lt(x, 0)
    return site.last.select(is_negative, site.step.mul(x, slope), x)


@operator("PRelu")
def _prelu_of_channels(site: NodeSite, x: Tensor, slope: Tensor) -> Any:
    """Compute x * slope for negative items of x, as before version 7.

    x has shape (batch, channels, ...). The slope has shape (channels,) or broadcasts to x.
    """
    if site.rank(slope) == 1:
        # The slope gets the shape (channels, 1, ...), with an axis for each spatial axis of x.
        spatial_rank = site.rank() - 2
        slope = site.unsqueezed(slope, range(1, spatial_rank + 1))
    return _prelu(site, x, slope)


@operator("Gelu")
def _gelu(
    site: NodeSite, x: Tensor, *, approximation: str = word("approximate", "none", "tanh")
) -> Any:
    """Compute x * cdf(x), where cdf is the distribution function of the normal distribution.

    If `approximation` is "tanh", a formula with a hyperbolic tangent takes the place of cdf.
    """
    if approximation == "tanh":
        return site.last.gelu(x, approximation="tanh")
    # cdf(x) = (1 + erf(x / sqrt(2))) / 2
    step = site.step
    erf = step.erf(step.mul(x, math.sqrt(0.5)))
    twice_cdf = step.add(erf, 1)
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

    Raises InvalidOperation if the node drops items at random. A node drops items in the training
    mode, unless the ratio of dropped items is 0.
    """
    is_training = mode is not None and bool(site.known(2).any())
    if not is_training:
        return _with_mask_of_ones(site, x)
    drops_items = ratio is None or bool(site.known(1).any())  # The default ratio is 0.5.
    if drops_items:
        return RANDOM(site)  # raises InvalidOperation
    return _with_mask_of_ones(site, x)


@operator("Dropout")
def _dropout_by_attributes(site: NodeSite, x: Tensor, *, is_test: bool = flag("is_test")) -> Any:
    """Return the input unchanged, and a mask of ones, for versions before 7.

    Raises InvalidOperation if the node drops items at random: if `is_test` is not set and the
    attribute `ratio` is not 0.
    """
    drops_items = not is_test and site.number("ratio", 0.5) != 0
    if drops_items:
        return RANDOM(site)  # raises InvalidOperation
    return _with_mask_of_ones(site, x)


def _with_mask_of_ones(site: NodeSite, x: Tensor) -> Any:
    """Return a tensor unchanged, and a mask of ones if output 1 has a name."""
    result = site.last.copy(x)
    if not site.is_read(1):
        return result
    is_mask_logical = site.version >= 10
    dtype = "bool" if is_mask_logical else site.dtype_of()
    return result, site.filled(1, dtype, site.known_shape())
