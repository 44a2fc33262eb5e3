"""vxFullyConnectedLayer."""

from __future__ import annotations

import math

from jax import Array

from lowering.kernels.correlation import Slide
from nnef_jax.openvx import layer_checks as checks
from nnef_jax.openvx.layers.accumulation import Arithmetic, multiply_accumulate, prepared
from nnef_jax.openvx.tensor import StaticWeights, Tensor
from nnef_jax.openvx.vx_errors import wrong_dimension


@checks.layer
def fully_connected_layer(
    inputs: Tensor,
    weights: Tensor | StaticWeights,
    biases: Tensor | None = None,
    *,
    overflow_policy: str = "saturate",
    rounding_policy: str = "to_zero",
    output_shape: tuple[int, ...] | None = None,
    semantics: str = "spec",
    strict: bool = True,
    output_position: int | None = None,
    report_overflow: bool = False,
) -> Tensor | tuple[Tensor, Array]:
    """Multiply inputs ([batch...,] I) or ([batch...,] C,H,W) by weights (O,I): [batch...,] O.

    `saturate(round(sum of inputs * weights + biases))` (vxFullyConnectedLayer). Three axes are
    taken together where I is C * H * W, or the weights are (O,C,H,W); `output_shape` decides where
    both readings are possible. The other parameters are those of `convolution_layer`.
    """
    arithmetic = Arithmetic(overflow_policy, rounding_policy, semantics, strict, output_position)
    x = checks.tensor("inputs", inputs)
    if isinstance(weights, Tensor) and len(weights.shape) == 4:
        if x.shape[-3:] != weights.shape[1:]:
            wrong_dimension(f"weights of the dims {weights.dims} do not fit inputs of {x.dims}")
        flat = weights.data.reshape(weights.shape[0], -1)
        weights = Tensor(flat, weights.fixed_point_position)
    filter = prepared(weights, 2)
    count, depth = filter.tensor.shape
    cores = [n for n in (1, 3) if len(x.shape) >= n and math.prod(x.shape[-n:]) == depth]
    if output_shape is not None:
        wanted = checks.shape("output_shape", output_shape)
        cores = [n for n in cores if wanted == (*x.shape[:-n], count)]
    if not cores:
        more = "" if output_shape is None else f" and an output_shape of {tuple(output_shape)}"
        wrong_dimension(
            f"weights of the dims {filter.tensor.dims} do not fit inputs of {x.dims}{more}"
        )
    shape = (*x.shape[: -cores[0]], count)
    flat = Tensor(x.data.reshape(math.prod(shape[:-1]), depth), x.fixed_point_position)
    return multiply_accumulate(flat, filter, biases, Slide(), shape, arithmetic, report_overflow)
