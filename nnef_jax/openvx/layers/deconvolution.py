"""vxDeconvolutionLayer."""

from __future__ import annotations

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
from nnef_jax.openvx.tensor import StaticWeights, Tensor
from nnef_jax.openvx.vx_errors import wrong_parameter


@checks.layer
def deconvolution_layer(
    inputs: Tensor,
    weights: Tensor | StaticWeights,
    biases: Tensor | None = None,
    *,
    padding: tuple[int, int] = (0, 0),
    a: tuple[int, int] = (0, 0),
    overflow_policy: str = "saturate",
    rounding_policy: str = "to_zero",
    output_shape: tuple[int, ...] | None = None,
    upscale: tuple[int, int] | None = None,
    groups: int = 1,
    semantics: str = "spec",
    strict: bool = True,
    output_position: int | None = None,
    report_overflow: bool = False,
) -> Tensor | tuple[Tensor, Array]:
    """Correlate inputs ([batch,] I,H,W), spread `upscale` apart, with weights (O,I/groups,h,w).

    An output has (extent - 1) * upscale - 2 * padding + size + a items along an axis
    (vxDeconvolutionLayer): `padding` is cut from each end, `a`, below the upscale, is added at the
    last. The upscale is given, or the one that leads to `output_shape`, or 1. Weights are not
    flipped: a filter of NNEF is, and has its first two axes swapped.

    The other parameters are those of `convolution_layer`, as is what is raised.
    """
    arithmetic = Arithmetic(overflow_policy, rounding_policy, semantics, strict, output_position)
    x, filter = checks.tensor("inputs", inputs, 3, 4), prepared(weights, 4)
    require_fitting(x, filter.tensor, groups)
    extents, size = x.shape[-2:], filter.tensor.shape[2:]
    padding, a = checks.pair("padding", padding), checks.pair("a", a)
    for axis, k, p in zip("xy", size[::-1], padding, strict=True):
        if k < p + 1:
            wrong_parameter(f"padding along {axis} is {p}, weights of {k} allow up to {k - 1}")
    known = (*x.shape[:-3], filter.tensor.shape[0])
    infer, more = shapes.infer_upscale, (padding[::-1], a[::-1])
    upscale = checks.stride("upscale", upscale, output_shape, known, infer, extents, size, *more)
    for axis, more, up in zip("xy", a, upscale, strict=True):
        if more >= up:
            wrong_parameter(f"a along {axis} is {more}, it must be below the upscale, {up}")
    shape = shapes.deconvolution_output_shape(x.shape, filter.tensor.shape, padding, a, upscale)
    checks.bounded("the output", shape)
    if semantics == "khronos":
        # The C routines take an end of the input for one of the spread input (OpenVX-cts, issue 9).
        rows, columns = (-(-n // up) for n, up in zip(extents, upscale[::-1], strict=True))
        x = Tensor(x.data[..., :rows, :columns], x.fixed_point_position)
    before = [k - 1 - p for k, p in zip(size, padding[::-1], strict=True)]
    pads = tuple(map(ends, x.shape[-2:], before, size, shape[-2:], (1, 1), upscale[::-1]))
    slide = Slide((1, 1), pads, upscale[::-1], (1, 1), groups)
    return multiply_accumulate(x, filter, biases, slide, shape, arithmetic, report_overflow)
