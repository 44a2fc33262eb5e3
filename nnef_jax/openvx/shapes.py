"""The relations between the extents of a layer's input and output.

Shapes are in C order, and pairs are in OpenVX's order (x, y). All functions raise `VxError` for
extents that are impossible.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from nnef_jax.openvx.vx_errors import wrong_dimension, wrong_parameter

Pair = tuple[int, int]  # the numbers (x, y) for the two spatial axes


def infer_skip(
    extent: int,
    size: int,
    output: int,
    padding: int = 0,
    dilation: int = 0,
    rounding: str = "floor",
) -> int:
    """Return the smallest skip for which windows have `output` positions along an axis.

    The relation of vxConvolutionLayer is `output = round(travel / skip) + 1`, where `round` is the
    floor or ceiling, and `travel` is extent + 2 padding - size - (size - 1) dilation.
    """
    travel = _travel(extent, size, padding, dilation)
    if output < 1:
        wrong_dimension(f"an output must have at least 1 item along an axis, it has {output}")
    if rounding == "floor":
        # floor(travel / skip) must be below `output`. With a travel of 7 and 3 positions, the
        # smallest such skip is 7 // 3 + 1 = 3.
        skip = travel // output + 1
    else:
        # ceil(travel / skip) must be at most output - 1. With a travel of 7 and 3 positions, the
        # smallest such skip is ceil(7 / 2) = 4.
        skip = max(ceil(travel / max(output - 1, 1)), 1)
    if _positions(travel, skip, rounding) != output:
        wrong_dimension(
            f"no integer skip gives {output} of {travel + 1} positions of windows "
            f"(an input of {extent}, {padding} of padding at each end, windows of {size})",
            f"a skip of 1 gives {travel + 1}, a skip of 2 {_positions(travel, 2, rounding)}",
        )
    return skip


def infer_upscale(extent: int, size: int, output: int, padding: int = 0, a: int = 0) -> int:
    """Return the upscale of a deconvolution from `extent` to `output` items.

    The relation of vxDeconvolutionLayer is `output = (extent - 1) upscale - 2 padding + size + a`.
    """
    if extent < 2:
        wrong_dimension("an input of 1 item along an axis determines no upscale", "give upscale=")
    upscale, remainder = divmod(output + 2 * padding - size - a, extent - 1)
    if remainder or upscale < 1:
        wrong_dimension(
            f"no integer upscale brings {extent} items to {output} "
            f"(with padding {padding}, windows of {size} and a = {a})",
            f"an upscale of 1 gives {extent - 1 - 2 * padding + size + a}",
        )
    return upscale


def convolution_output_shape(
    inputs: Sequence[int],
    weights: Sequence[int],
    padding: Pair = (0, 0),
    dilation: Pair = (0, 0),
    skip: Pair = (1, 1),
    rounding: str = "floor",
) -> tuple[int, ...]:
    """Return the shape of a convolution's output, with skips (x, y)."""
    shape = _windowed(inputs, weights[-2:], padding, dilation, skip, rounding)
    return (*shape[:-3], weights[0], *shape[-2:])


def pooling_output_shape(
    inputs: Sequence[int],
    pooling_size: Sequence[int],
    pooling_padding: Pair = (0, 0),
    skip: Pair = (1, 1),
    rounding: str = "floor",
) -> tuple[int, ...]:
    """Return the shape of a pooling layer's output, with skips (x, y)."""
    return _windowed(inputs, pooling_size[::-1], pooling_padding, (0, 0), skip, rounding)


def deconvolution_output_shape(
    inputs: Sequence[int],
    weights: Sequence[int],
    padding: Pair = (0, 0),
    a: Pair = (0, 0),
    upscale: Pair = (1, 1),
) -> tuple[int, ...]:
    """Return the shape of a deconvolution's output, with upscales (x, y)."""
    extents: list[int] = []
    # The pairs are (x, y). They are reversed to the order of the extents, (y, x).
    for extent, size, factor, pad, addition in zip(
        inputs[-2:], weights[-2:], upscale[::-1], padding[::-1], a[::-1], strict=True
    ):
        extents.append((extent - 1) * factor - 2 * pad + size + addition)
    if min(extents) < 1:
        wrong_dimension(f"the output would have the dims {tuple(extents[::-1])}")
    return (*inputs[:-3], weights[0], *extents)


def _windowed(
    inputs: Sequence[int],
    size: Sequence[int],
    padding: Pair,
    dilation: Pair,
    skip: Pair,
    rounding: str,
) -> tuple[int, ...]:
    """Return the shape of a result that has an item for each window of an input's last two axes.

    `size` has the extents of a window in C order. The pairs are (x, y).
    """
    travels = map(_travel, inputs[-2:], size, padding[::-1], dilation[::-1])
    rows, columns = (
        _positions(travel, step, rounding) for travel, step in zip(travels, skip[::-1], strict=True)
    )
    return (*inputs[:-2], rows, columns)


def _travel(extent: int, size: int, padding: int, dilation: int) -> int:
    """Return the number of items by which a window can move along an axis."""
    padded = extent + 2 * padding
    span = size + (size - 1) * dilation
    if span > padded:
        message = f"windows span {span} items, the padded input has {padded}"
        wrong_parameter(message, "give more padding")
    return padded - span


def _positions(travel: int, skip: int, rounding: str) -> int:
    """Return the number of positions of a window that can move by `travel` items."""
    steps = travel // skip if rounding == "floor" else ceil(travel / skip)
    return steps + 1
