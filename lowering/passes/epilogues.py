"""Writes a convolution, its bias and its ReLU in the form that XLA computes as one kernel.

XLA recognises a ReLU only if it is written as a maximum, and a bias only if it has the dtype of the
convolution's result. The rule of ReLU is a choice between x and 0, whose derivative at 0 is 0. The
derivative of a maximum would be 1/2 there. Therefore this pass must run after derivatives are
taken.

The compiler's figures for ResNet-50 with a batch of 8 on an H100: 49 of 53 convolutions are joined
with their ReLU by cuDNN. Instructions access 1,112 MB instead of 1,669 MB in float32, and 556 MB
instead of 1,729 MB in bfloat16. On a TPU, XLA stores the conditions of the choices. By its
estimate, a U-Net with a batch of 1 in bfloat16 takes 231 us on a v5e instead of 273 us, and
MobileNetV2 with a batch of 128 in float32 takes 3,069 us instead of 4,737 us.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from lowering.jaxpr_types import Equation
from lowering.jaxprs import CONVOLUTION, primitive
from lowering.program import Program
from lowering.rewriting import Computed, Matcher, Rewrite, Rules, rewritten
from lowering.targets.target import Target

_RULES = Rules()
_NARROW_DTYPES = (jnp.bfloat16, jnp.float16)
# A choice between x and a bound becomes a maximum or a minimum. This dict maps the comparison of x
# with the bound to the primitive of the maximum or minimum.
_BOUNDED_BY: dict[str, Any] = {"le": lax.max_p, "lt": lax.max_p, "ge": lax.min_p, "gt": lax.min_p}


def run(program: Program, target: Target) -> Program:
    """Join biases and ReLUs to convolutions in a program and in its loops."""
    return rewritten(program, _RULES).with_bodies(lambda inner: run(inner, target))


@_RULES("select_n")
def _bounded(matcher: Matcher, equation: Equation) -> Rewrite:
    """Replace `select(x <= 0, 0, x)` by `max(x, 0)`, and `select(x > 6, 6, x)` by `min(x, 6)`."""
    condition, *cases = equation.invars
    comparison = matcher.maker(condition, *_BOUNDED_BY)
    if comparison is None or len(cases) != 2:
        return None
    x, bound = cases  # the case of a false condition comes first
    compared, limit = comparison.invars
    if compared is not x:
        return None
    bound_number = matcher.number(bound)
    if bound_number is None or matcher.number(limit) != bound_number:
        return None
    maximum_or_minimum = _BOUNDED_BY[primitive(comparison)]
    return equation.replace(primitive=maximum_or_minimum, invars=[x, bound], params={})


@_RULES("convert_element_type")
def _narrow(matcher: Matcher, equation: Equation) -> Rewrite:
    """Replace a conversion to 16 bits after a convolution by a convolution with a 16-bit result.

    The convolution's bias, if it has one, is then added in 16 bits. cuDNN adds such a bias
    before it rounds the sums of the convolution.
    """
    (operand,) = equation.invars
    (result,) = equation.outvars
    dtype = result.aval.dtype
    addition = matcher.maker(operand, "add")
    sums, *biases = addition.invars if addition else [operand]
    convolution = matcher.maker(sums, CONVOLUTION)
    if convolution is None or dtype not in _NARROW_DTYPES:
        return None
    if not matcher.is_read_once(sums) or not matcher.is_read_once(operand):
        return None
    is_bias_known = all(map(matcher.is_known, biases))
    has_narrow_operands = all(v.aval.dtype == dtype for v in convolution.invars)
    if not is_bias_known or not has_narrow_operands:
        return None
    params = convolution.params | {"preferred_element_type": dtype}

    def convolve(x: Array, filter: Array, *biases: Array) -> Array:
        y = lax.conv_general_dilated_p.bind(x, filter, **params)
        for bias in biases:
            y = y + bias.astype(dtype)
        return y

    return Computed(convolve, [*convolution.invars, *biases], at=convolution)
