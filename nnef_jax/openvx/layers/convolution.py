"""vxConvolutionLayer."""

from __future__ import annotations

import math

from jax import Array

from lowering.kernels.digits import Slide
from nnef_jax.openvx import checks, shapes
from nnef_jax.openvx.errors import wrong_dimension, wrong_parameter
from nnef_jax.openvx.layers.products import checked_policies, multiply_accumulate, prepared
from nnef_jax.openvx.tensor import StaticWeights, Tensor, require_one_of

SIZE_ROUNDING = ("floor", "ceiling")


@checks.layer
def convolution_layer(
    inputs: Tensor,
    weights: Tensor | StaticWeights,
    biases: Tensor | None = None,
    *,
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (0, 0),
    overflow_policy: str = "saturate",
    rounding_policy: str = "to_zero",
    down_scale_size_rounding: str = "floor",
    output_shape: tuple[int, ...] | None = None,
    skip: tuple[int, int] | None = None,
    groups: int = 1,
    semantics: str = "spec",
    strict: bool = True,
    output_position: int | None = None,
    report_overflow: bool = False,
) -> Tensor | tuple[Tensor, Array]:
    """Correlate inputs ([batch,] I,H,W) with weights (O,I,h,w): [batch,] O and two extents.

    `saturate(round(sum of inputs * weights + biases))`, where biases are (O,), or (O,H,W) for each
    place of the output. `padding` zeros surround the inputs, `dilation` zeros lie between weights.
    """
    checked_policies(overflow_policy, rounding_policy, semantics)
    require_one_of("down_scale_size_rounding", down_scale_size_rounding, SIZE_ROUNDING)
    filter = prepared(weights, 4)
    x = checks.tensor("inputs", inputs)
    if len(x.shape) < 3:
        wrong_dimension(f"inputs have 3 dimensions and those of batches, not {x.dims}")
    checks.same_format(strict, inputs=x, weights=filter.tensor, biases=biases)
    count, depth, *size = filter.tensor.shape
    channels, *extents = x.shape[-3:]
    if groups < 1 or channels != depth * groups or count % groups:
        wrong_dimension(
            f"weights {filter.tensor.dims} do not fit {channels} input maps in {groups} group(s)"
        )
    padding, dilation = checks.pair("padding", padding), checks.pair("dilation", dilation)
    if (output_shape is None) == (skip is None) and skip is not None:
        wrong_parameter("output_shape and skip are both given: one follows from the other")
    rounding = down_scale_size_rounding
    if output_shape is not None:
        wanted = checks.shape("output_shape", output_shape)
        if len(wanted) != len(x.shape) or wanted[:-2] != (*x.shape[:-3], count):
            wrong_dimension(
                f"output_shape is {wanted}, it must begin with {(*x.shape[:-3], count)}"
            )
        skip_y, skip_x = (
            shapes.infer_skip(*axis, rounding=rounding)
            for axis in zip(extents, size, wanted[-2:], padding[::-1], dilation[::-1], strict=True)
        )
        skip = (skip_x, skip_y)
    skip = checks.pair("skip", (1, 1) if skip is None else skip, 1)
    shape = shapes.convolution_output_shape(
        x.shape, filter.tensor.shape, padding, dilation, skip, rounding
    )
    checks.bounded("the output", shape)
    checks.bounded(
        "the padded input",
        (*x.shape[:-2], *(n + 2 * p for n, p in zip(extents, padding[::-1], strict=True))),
    )
    if biases is not None and biases.shape not in ((count,), shape[-3:]):
        wrong_dimension(f"biases have the shape {biases.shape}, not {(count,)} or {shape[-3:]}")
    bias_shape = (1, count, 1, 1)
    if biases is not None and len(biases.shape) == 3:
        bias_shape = (1, *shape[-3:])
    ends = [
        (p, (n - 1) * s + (k - 1) * (d + 1) + 1 - extent - p)
        for p, n, s, k, d, extent in zip(
            padding[::-1], shape[-2:], skip[::-1], size, dilation[::-1], extents, strict=True
        )
    ]
    slide = Slide(skip[::-1], tuple(ends), (1, 1), tuple(d + 1 for d in dilation[::-1]), groups)
    batch = math.prod(x.shape[:-3])
    result, overflowed = multiply_accumulate(
        x,
        x.data.reshape(batch, *x.shape[-3:]),
        filter,
        biases,
        bias_shape,
        slide,
        overflow_policy=overflow_policy,
        rounding_policy=rounding_policy,
        strict=strict,
        output_position=output_position,
    )
    result = Tensor(result.data.reshape(shape), result.fixed_point_position)
    return (result, overflowed.reshape(shape)) if report_overflow else result
