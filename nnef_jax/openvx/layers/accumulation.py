"""What layers that sum products share: formats, exact sums, their rounding and overflow."""

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

_MOST_CELLS = 4096  # of a window of the C routines, which are brought together channel by channel


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The parameters that all these layers have, checked: VxError for other names."""

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
    """Return an output of a shape, with `report_overflow` also where a sum overflowed.

    The inputs are [batch,] and what the weights have after their first axis.
    """
    count, *core = weights.tensor.shape
    biases = None if biases is None else checks.tensor("biases", biases)
    checks.same_format(arithmetic.strict, inputs=x, weights=weights.tensor, biases=biases)
    position = checks.position_of_output(arithmetic.strict, arithmetic.output_position, x)
    product = x.fixed_point_position + weights.tensor.fixed_point_position
    shift = checks.shift_of("the output's position", product - position)
    up, offsets, largest = 0, None, weights.factors.largest
    if biases is not None:
        own = shape[-len(core) :]
        if biases.shape not in ((count,), own):
            also = f" or {own}" if len(core) > 1 else ""
            wrong_dimension(f"biases have the shape {biases.shape}, not {(count,)}{also}")
        up = checks.shift_of("the position of biases", product - biases.fixed_point_position)
        if up < 0:
            wrong_format("biases have more fractional bits than products of inputs and weights")
        offsets = biases.data.reshape(
            1, count, *(own[1:] if biases.shape == own else [1] * (len(core) - 1))
        )
        largest += 1 << (15 + up)
    data = x.data.reshape(-1, *x.shape[len(x.shape) - len(core) :])
    policies = (arithmetic.overflow_policy, arithmetic.rounding_policy)
    if arithmetic.semantics == "khronos" and _rounds_products(x, arithmetic):
        if not arithmetic.strict:
            unsupported("the C routines have the positions of the extension alone", "strict=True")
        if math.prod(core[1:]) > _MOST_CELLS:
            unsupported(f"windows have more than {_MOST_CELLS} items", "semantics='spec'")
        if core[0] >= 1 << 16:
            unsupported("an accumulator of 32 bits overflows: 2**16 products or more")
        steps = Steps(x.dtype, shift, policies, report_overflow)
        made = stepwise(data, weights.tensor.data, offsets, slide=slide, steps=steps)
    else:
        base = base_for(largest, shift)
        if base is None:
            unsupported("sums of so many products may reach 2**47", "split the layer by views")
        made = _exact(
            data,
            weights.factors,
            offsets,
            slide=slide,
            base=base,
            up=up,
            shift=shift,
            policies=policies,
        )
    result = Tensor(made[0].reshape(shape), position)
    return (result, made[1].reshape(shape)) if report_overflow else result


def _rounds_products(x: Tensor, arithmetic: Arithmetic) -> bool:
    """Tell whether products that are rounded and saturated one by one give other sums.

    They do not where nothing is rounded and numbers wrap, or none is negative.
    """
    saturates = arithmetic.overflow_policy == "saturate"
    return x.dtype == "int16" or (x.dtype == "int8" and saturates)


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


def prepared(weights: Tensor | StaticWeights, *ranks: int) -> StaticWeights:
    """Return weights as the layers compute with them; raise TypeError or VxError for others."""
    if isinstance(weights, StaticWeights):
        checks.tensor("weights", weights.tensor, *ranks)
        return weights
    return StaticWeights(checks.tensor("weights", weights, *ranks))


def require_fitting(x: Tensor, weights: Tensor, groups: int) -> None:
    """Raise TypeError or VxError unless weights have as many channels as a group of the inputs."""
    groups = operator.index(groups)
    count, depth, *_ = weights.shape
    channels = x.shape[-3]
    if groups < 1 or channels != depth * groups or count % groups:
        wrong_dimension(
            f"weights of the dims {weights.dims} do not fit {channels} input maps"
            + (f" in {groups} groups" if groups != 1 else "")
        )


def ends(
    extent: int, before: int, span: int, output: int, skip: int = 1, upscale: int = 1
) -> tuple[int, int]:
    """Return the padding along an axis with which windows of a span have so many positions."""
    covered = (extent - 1) * upscale + 1
    return before, (output - 1) * skip + span - before - covered
