"""The arithmetic of layers that sum products: checks, sums, rounding and overflow."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from functools import partial

import jax
from jax import Array

from lowering import Slide
from nnef_jax.openvx import layer_checks as checks
from nnef_jax.openvx.exact_sums import Factors, base_for, narrow, sums_of_products, total
from nnef_jax.openvx.profiles import OVERFLOW, ROUNDING, SEMANTICS
from nnef_jax.openvx.stepwise import Steps, stepwise
from nnef_jax.openvx.tensor import StaticWeights, Tensor, require_one_of
from nnef_jax.openvx.vx_errors import unsupported, wrong_dimension, wrong_format

# The largest number of cells of a window that `stepwise` can take. `stepwise` holds all products of
# a channel in memory at once.
_MOST_CELLS = 4096
# An accumulator of 32 bits can hold the sum of fewer products than this number.
_TOO_MANY_PRODUCTS = 1 << 16
_LARGEST_BIAS_BITS = 15  # the largest magnitude of a bias is 2^15


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The parameters that all layers with products have.

    Raises VxError for an unknown policy or unknown semantics.
    """

    overflow_policy: str
    rounding_policy: str
    semantics: str
    strict: bool
    output_position: int | None

    def __post_init__(self) -> None:
        require_one_of("overflow_policy", self.overflow_policy, OVERFLOW)
        require_one_of("rounding_policy", self.rounding_policy, ROUNDING)
        require_one_of("semantics", self.semantics, SEMANTICS)


def multiply_accumulate(
    x: Tensor,
    weights: StaticWeights,
    biases: Tensor | None,
    slide: Slide,
    shape: tuple[int, ...],
    arithmetic: Arithmetic,
    report_overflow: bool,
) -> Tensor | tuple[Tensor, Array]:
    """Multiply inputs by weights, add biases, and return the output in the shape `shape`.

    If `report_overflow`, also return a mask of sums that overflowed. For weights (outputs, channels
    of a group, height, width), the inputs are ([batch...,] channels, height, width). For weights
    (outputs, channels), the inputs are ([batch...,] channels).
    """
    # `core` is (channels of a group, height, width) or (channels,). A sample of the inputs has as
    # many axes as `core`, and so has a sample of the output.
    count, *core = weights.tensor.shape
    rank = len(core)
    if biases is not None:
        biases = checks.tensor("biases", biases)
    checks.same_format(arithmetic.strict, inputs=x, weights=weights.tensor, biases=biases)
    # A product has the fractional bits of both factors. Sums are shifted to the output's position.
    position = checks.position_of_output(arithmetic.strict, arithmetic.output_position, x)
    product_position = x.fixed_point_position + weights.tensor.fixed_point_position
    shift = checks.shift_of("the output's position", product_position - position)
    bias_shift = 0
    offsets = None
    largest = weights.factors.largest
    if biases is not None:
        offsets = _offsets(biases, count, shape[-rank:])
        bias_shift = _bias_shift(biases, product_position)
        largest += 1 << (_LARGEST_BIAS_BITS + bias_shift)  # the shifted bias adds to the sums
    # The axes of the batch, of which there may be any number, become one axis.
    data = x.data.reshape(-1, *x.shape[-rank:])
    policies = (arithmetic.overflow_policy, arithmetic.rounding_policy)
    if arithmetic.semantics == "khronos" and _rounds_products(x, arithmetic):
        _require_stepwise(arithmetic, core)
        steps = Steps(x.dtype, shift, policies, report=report_overflow)
        sums, overflowed = stepwise(data, weights.tensor.data, offsets, slide=slide, steps=steps)
    else:
        base = base_for(largest, shift)
        if base is None:
            unsupported("sums of so many products may reach 2**47", "split the layer by views")
        sums, overflowed = _exact(
            data,
            weights.factors,
            offsets,
            slide=slide,
            base=base,
            bias_shift=bias_shift,
            shift=shift,
            policies=policies,
        )
    result = Tensor(sums.reshape(shape), position)
    if not report_overflow:
        return result
    assert overflowed is not None
    return result, overflowed.reshape(shape)


def _offsets(biases: Tensor, count: int, sample_shape: tuple[int, ...]) -> Array:
    """Return biases in a shape that broadcasts to the sums, (batch, outputs, *positions).

    `count` is the number of outputs, and `sample_shape` is the shape of the output without the
    batch. Raises VxError unless the biases have the shape (count,) or `sample_shape`.
    """
    has_bias_by_item = biases.shape == sample_shape
    if not has_bias_by_item and biases.shape != (count,):
        shapes = f"{(count,)} or {sample_shape}" if len(sample_shape) > 1 else f"{(count,)}"
        wrong_dimension(f"biases have the shape {biases.shape}, it must be {shapes}")
    ones = (1,) * (len(sample_shape) - 1)
    extents = sample_shape[1:] if has_bias_by_item else ones
    return biases.data.reshape(1, count, *extents)


def _bias_shift(biases: Tensor, product_position: int) -> int:
    """Return the number of bits by which biases are shifted to the position of the products.

    Raises VxError if the biases have more fractional bits than the products.
    """
    bits = product_position - biases.fixed_point_position
    shift = checks.shift_of("the position of biases", bits)
    if shift < 0:
        wrong_format("biases have more fractional bits than the products that they are added to")
    return shift


def _require_stepwise(arithmetic: Arithmetic, core: list[int]) -> None:
    """Raise VxError unless `stepwise` can compute a layer.

    `core` has the extents of the weights, except the number of outputs: first the channels of a
    group, then the window.
    """
    if not arithmetic.strict:
        unsupported("the C routines have only the positions of the extension", "strict=True")
    if math.prod(core[1:]) > _MOST_CELLS:
        unsupported(f"windows have more than {_MOST_CELLS} items", "semantics='spec'")
    if core[0] >= _TOO_MANY_PRODUCTS:
        unsupported("an accumulator of 32 bits overflows: 2**16 products or more")


def _rounds_products(x: Tensor, arithmetic: Arithmetic) -> bool:
    """Tell whether rounding and saturating each product can change the sums."""
    if x.dtype == "int16":
        return True
    # Products of 8 bits are not rounded, so only saturation can change their sums. Sums of uint8
    # cannot change: a saturated sum stays saturated, since no term is negative.
    return x.dtype == "int8" and arithmetic.overflow_policy == "saturate"


@partial(jax.jit, static_argnames=("slide", "base", "bias_shift", "shift", "policies"))
def _exact(
    x: Array,
    factors: Factors,
    biases: Array | None,
    *,
    slide: Slide,
    base: int,
    bias_shift: int,
    shift: int,
    policies: tuple[str, str],
) -> tuple[Array, Array]:
    """Return exact sums of products and biases, rounded once, and a mask of sums that overflow.

    `policies` are the overflow policy and the rounding policy.
    """
    terms = sums_of_products(x, factors, slide)
    if biases is not None:
        terms.append((biases.astype("int32"), bias_shift))
    return narrow(total(terms, base), shift, *policies, x.dtype)


def prepared(weights: Tensor | StaticWeights, *ranks: int) -> StaticWeights:
    """Return weights in the prepared form `StaticWeights`.

    Raises TypeError if `weights` is not a tensor, and VxError unless its rank is one of `ranks`.
    """
    if isinstance(weights, StaticWeights):
        checks.tensor("weights", weights.tensor, *ranks)
        return weights
    return StaticWeights(checks.tensor("weights", weights, *ranks))


def require_fitting(x: Tensor, weights: Tensor, groups: int) -> None:
    """Raise an error unless weights have as many channels as a group of the inputs.

    The error is a VxError, or a TypeError if `groups` is not an integer.
    """
    groups = operator.index(groups)
    count, depth, *_ = weights.shape
    channels = x.shape[-3]
    if groups < 1 or channels != depth * groups or count % groups:
        message = f"weights with the dims {weights.dims} do not fit {channels} input maps"
        if groups != 1:
            message += f" in {groups} groups"
        wrong_dimension(message)


def ends(
    extent: int, before: int, span: int, output: int, skip: int = 1, upscale: int = 1
) -> tuple[int, int]:
    """Return the padding before and after an axis, with which windows have `output` positions.

    The padding before the axis is `before`. A window spans `span` items. For example, windows of 3
    items with 4 positions and a skip of 2 need 9 items. With `before` = 1 and an extent of 7, the
    padding after the axis is 1.
    """
    upscaled = (extent - 1) * upscale + 1
    needed = (output - 1) * skip + span
    return before, needed - before - upscaled
