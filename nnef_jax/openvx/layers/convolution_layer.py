"""vxConvolutionLayer."""

from __future__ import annotations

from functools import partial

from jax import Array

from lowering.kernels.correlation import Slide
from nnef_jax.openvx import layer_checks as checks
from nnef_jax.openvx import shapes
from nnef_jax.openvx.layers.accumulation import (
    Arithmetic,
    ends,
    multiply_accumulate,
    prepared,
    require_fitting,
)
from nnef_jax.openvx.tensor import StaticWeights, Tensor, require_one_of
from nnef_jax.openvx.vx_errors import wrong_dimension

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
    """Correlate inputs ([batch,] I,H,W) with weights (O,I/groups,h,w) to [batch,] O and extents.

    `saturate(round(sum of inputs * weights + biases))` (vxConvolutionLayer), where biases are (O,),
    or one for each item of an output (O,H,W). Pairs are (x, y): `padding` zeros before and after,
    `dilation` zeros between weights. The skip (stride) is given, or the smallest that brings the
    inputs to `output_shape`, or 1.

    `overflow_policy` is 'saturate' or 'wrap', `rounding_policy` 'to_zero' or 'nearest_even',
    `down_scale_size_rounding` 'floor' or 'ceiling'. `semantics` 'spec' sums without bounds and
    rounds once; 'khronos' is bit by bit what the released C routines compute. Groups are as many
    layers on views of the channels. With `strict=False` tensors have any positions, the output
    `output_position`. `report_overflow` adds a bool array: where a sum overflowed.

    Raises `VxError` for what the extension does not allow.
    """
    arithmetic = Arithmetic(overflow_policy, rounding_policy, semantics, strict, output_position)
    rounding = down_scale_size_rounding
    require_one_of("down_scale_size_rounding", rounding, SIZE_ROUNDING)
    x, filter = checks.tensor("inputs", inputs), prepared(weights, 4)
    if len(x.shape) < 3:
        wrong_dimension(f"inputs have 3 dimensions and those of batches, not {x.dims}")
    require_fitting(x, filter.tensor, groups)
    extents, size = x.shape[-2:], filter.tensor.shape[2:]
    padding, dilation = checks.pair("padding", padding), checks.pair("dilation", dilation)
    known = (*x.shape[:-3], filter.tensor.shape[0])
    infer, more = partial(shapes.infer_skip, rounding=rounding), (padding[::-1], dilation[::-1])
    skip = checks.stride("skip", skip, output_shape, known, infer, extents, size, *more)
    shape = shapes.convolution_output_shape(
        x.shape, filter.tensor.shape, padding, dilation, skip, rounding
    )
    checks.bounded_padding(x, padding, shape)
    # The C routines begin `dilation` further on (OpenVX-cts, issue 5).
    late = dilation[::-1] if semantics == "khronos" else (0, 0)
    before = [p - l for p, l in zip(padding[::-1], late, strict=True)]
    spans = [k + (k - 1) * d for k, d in zip(size, dilation[::-1], strict=True)]
    pads = tuple(map(ends, extents, before, spans, shape[-2:], skip[::-1]))
    slide = Slide(skip[::-1], pads, (1, 1), (dilation[1] + 1, dilation[0] + 1), groups)
    return multiply_accumulate(x, filter, biases, slide, shape, arithmetic, report_overflow)
