"""What layers that sum products share: formats, exact sums, their rounding and overflow."""

from __future__ import annotations

from functools import partial

import jax
from jax import Array

from lowering.kernels.digits import Factors, Slide, sums_of_products
from lowering.kernels.fixed_point import base_for, narrow, total
from nnef_jax.openvx import checks
from nnef_jax.openvx.errors import unsupported, wrong_format
from nnef_jax.openvx.tensor import ROUNDING, StaticWeights, Tensor, require_one_of

OVERFLOW = ("wrap", "saturate")
SEMANTICS = ("spec",)


def multiply_accumulate(
    inputs: Tensor,
    x: Array,
    weights: StaticWeights,
    biases: Tensor | None,
    bias_shape: tuple[int, ...],
    slide: Slide,
    *,
    overflow_policy: str,
    rounding_policy: str,
    strict: bool,
    output_position: int | None,
) -> tuple[Tensor, Array]:
    """Return saturate(round(sum of products + biases)), and where it overflowed."""
    position = checks.position_of_output(strict, output_position, inputs)
    product = inputs.fixed_point_position + weights.tensor.fixed_point_position
    shift = checks.shift_of("the output's position", product - position)
    up, offsets, largest = 0, None, weights.factors.largest
    if biases is not None:
        up = checks.shift_of("the position of biases", product - biases.fixed_point_position)
        if up < 0:
            wrong_format("biases have more fractional bits than products of inputs and weights")
        offsets = biases.data.reshape(bias_shape)
        largest += 1 << (15 + up)
    base = base_for(largest, shift)
    if base is None:
        unsupported("sums of so many products may reach 2**47", "split the layer by views")
    data, overflowed = _exact(
        x,
        weights.factors,
        offsets,
        slide=slide,
        base=base,
        up=up,
        shift=shift,
        policies=(overflow_policy, rounding_policy),
    )
    return Tensor(data, position), overflowed


@partial(jax.jit, static_argnames=("slide", "base", "up", "shift", "policies"))
def _exact(
    x: Array,
    factors: Factors,
    biases: Array | None,
    *,
    slide: Slide,
    base: int,
    up: int,
    shift: int,
    policies: tuple[str, str],
) -> tuple[Array, Array]:
    terms = sums_of_products(x, factors, slide)
    if biases is not None:
        terms.append((biases.astype("int32"), up))
    return narrow(total(terms, base), shift, *policies, x.dtype)


def checked_policies(overflow_policy: str, rounding_policy: str, semantics: str) -> None:
    """Raise VxError unless the parameters that all such layers have are known names."""
    require_one_of("overflow_policy", overflow_policy, OVERFLOW)
    require_one_of("rounding_policy", rounding_policy, ROUNDING)
    require_one_of("semantics", semantics, SEMANTICS)


def prepared(weights: Tensor | StaticWeights, *ranks: int) -> StaticWeights:
    """Return weights as the layers compute with them; raise TypeError or VxError for others."""
    if isinstance(weights, StaticWeights):
        checks.tensor("weights", weights.tensor, *ranks)
        return weights
    return StaticWeights(checks.tensor("weights", weights, *ranks))
