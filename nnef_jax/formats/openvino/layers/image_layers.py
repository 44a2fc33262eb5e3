"""Functions for image layers: resizes, and conversions from brightness and colour planes to RGB."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import show
from lowering.graph import Value, is_float
from nnef_jax.flattening.along_axes import cropped
from nnef_jax.flattening.by_kind import ByKind
from nnef_jax.flattening.operators.attributes import flag, integer, integers, text
from nnef_jax.flattening.sampling import resized
from nnef_jax.formats.openvino.layer_site import LayerSite
from nnef_jax.formats.openvino.layers.registry import legacy, opsets

_COORDINATES = (
    "half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "tf_half_pixel_for_nn",
)  # fmt: skip
# The mode of coordinates if the attribute `align_corners` is false, and the mode if it is true.
_CORNERS = ("asymmetric", "align_corners")
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")


def _resized(
    last: ByKind, x: Value, sizes: Sequence[int], mode: str, coordinates: str, **attributes: Any
) -> Value:
    """Resize `x` by operations that `last` adds.

    `sizes` are the extents of the result. If `attributes` contains `scales`, the extents follow
    from the scales, and `sizes` is ignored.
    """
    attributes["sizes"] = () if attributes.get("scales") else sizes
    if coordinates == "tf_half_pixel_for_nn":
        rounding = attributes.get("nearest_mode", "floor")
        rounds_down = rounding in ("floor", "round_prefer_floor")
        is_supported = mode == "nearest" and rounds_down
        if not is_supported:
            # With all other modes and roundings, "tf_half_pixel_for_nn" would shift items even
            # along axes that keep their extent.
            raise InvalidOperation(f"'{coordinates}' needs 'nearest' and a mode that rounds down")
    return resized(last, x, mode, coordinates, **attributes)


@opsets("Interpolate")
def _interpolate(
    site: LayerSite,
    x: Value,
    *,
    begin: Sequence[int] = integers("pads_begin", (0,)),
    end: Sequence[int] = integers("pads_end", (0,)),
) -> Value:
    """Resize a tensor along axes, to given extents or by given factors.

    In operation set 1, input 1 has the sizes. In operation set 4, input 1 has the sizes and input 2
    the scales. In operation set 11, input 1 has the sizes or the scales. The attribute
    `shape_calculation_mode` chooses between sizes and scales. The next input, if there is one, has
    the axes: input 3 in operation set 4, and input 2 in operation set 11.
    """
    if any((*begin, *end)):
        pairs = zip_longest(begin, end, fillvalue=0)  # one list may be shorter than the other
        padding_by_axis = dict(enumerate(pairs))
        x = site.padded(x, padding_by_axis)
    rank = len(x.type.shape)
    opset = site.layer.opset
    has_calculation_mode = site.has_attribute("shape_calculation_mode")
    if opset in ("opset1", "") and not has_calculation_mode:
        return _interpolate_of_opset1(site, x)
    mode = site.choice(
        "mode", "nearest", "linear", "linear_onnx", "cubic", "bilinear_pillow", "bicubic_pillow"
    )
    coordinates = site.word("coordinate_transformation_mode", *_COORDINATES)
    nearest = site.word("nearest_mode", *_ROUNDINGS)
    by_scales = site.choice("shape_calculation_mode", "sizes", "scales") == "scales"
    scales_input = 2 if opset == "opset4" else 1
    axes_input = scales_input + 1
    axes = site.axes(axes_input) if site.has(axes_input) else range(rank)
    if not by_scales:
        sizes = dict(zip(axes, site.integers(1), strict=True))
        return _interpolated(site, x, mode, coordinates, nearest, sizes=sizes)
    factors = site.known(scales_input).reshape(-1).astype(float).tolist()
    scales = dict(zip(axes, factors, strict=True))
    return _interpolated(site, x, mode, coordinates, nearest, scales=scales)


def _interpolate_of_opset1(site: LayerSite, x: Value) -> Value:
    """Resize a tensor to the sizes in input 1, by the attributes of operation set 1."""
    axes = [site.axis(axis) for axis in site.ints("axes")]
    mode = site.choice("mode", "nearest", "linear", "cubic")
    sizes = dict(zip(axes, site.integers(1), strict=True))
    aligns_corners = site.flag("align_corners", True)
    coordinates = _CORNERS[aligns_corners]
    return _interpolated(site, x, mode, coordinates, nearest="simple", sizes=sizes)


def _interpolated(
    site: LayerSite, x: Value, mode: str, coordinates: str, nearest: str, *,
    sizes: Mapping[int, int] = {}, scales: Mapping[int, float] = {},
) -> Value:  # fmt: skip
    """Resize along the axes that are keys of `sizes` or of `scales`.

    `sizes` maps an axis to an extent of the result. `scales` maps an axis to the ratio of the
    result's extent to the input's extent. `nearest` is the rounding of coordinates in the mode
    "nearest".
    """
    shape = list(site.known_shape(x))
    extents = list(shape)  # the extents of the result
    for axis, size in sizes.items():
        extents[axis] = size
    for axis, scale in scales.items():
        # With a scale of 0.3333333, 6 items become 1.9999998. This must not be rounded down to 1.
        extents[axis] = math.floor(shape[axis] * scale + 1e-6)
    kernel, attributes = _kernel(site, mode, rank=len(shape))
    if mode in ("bilinear_pillow", "bicubic_pillow"):
        coordinates = "half_pixel"
    if scales and coordinates != "align_corners":
        exact_scales = tuple(scales.get(axis, 1.0) for axis in range(len(shape)))
        exact_extents = [n * scale for n, scale in zip(shape, exact_scales, strict=True)]
        if exact_extents != extents:
            # Coordinates depend on exact scales. Quotients of rounded extents are not exact.
            attributes["scales"] = exact_scales
    if kernel == "nearest":
        attributes["nearest_mode"] = nearest
    return _resized(site.last, x, extents, kernel, coordinates, **attributes)


def _kernel(site: LayerSite, mode: str, rank: int) -> tuple[str, dict[str, Any]]:
    """Return the interpolation kernel of a mode of Interpolate, and the attributes of the kernel.

    The kernel is "nearest", "linear" or "cubic". `rank` is the number of axes of input 0.
    """
    attributes: dict[str, Any] = {"cubic_coeff_a": site.number("cube_coeff", -0.75)}
    antialias = site.flag("antialias")
    if mode == "bilinear_pillow":
        return "linear", attributes | {"antialias": True, "exclude_outside": True}
    if mode == "bicubic_pillow":
        # In Pillow, the default for the coefficient differs from the default in the mode "cubic".
        attributes["cubic_coeff_a"] = site.number("cube_coeff", -0.5)
        return "cubic", attributes | {"antialias": True, "exclude_outside": True}
    if mode in ("linear", "linear_onnx"):
        # The runtime of 2026.4 widens the kernel only in the mode 'linear' and for inputs with five
        # axes or more. In all other cases the attribute `antialias` is ignored.
        may_widen = mode == "linear" and rank > 4
        widens = may_widen and antialias
        return "linear", attributes | {"antialias": widens, "exclude_outside": widens}
    return mode, attributes


def _resized_shape(site: LayerSite) -> list[int]:
    """Return the declared shape of the result, with the actual batch and channels of input 0."""
    return [*site.shape()[:2], *site.declared[2:]]


@legacy("Interp")
def _interp(
    site: LayerSite,
    x: Value,
    *,
    begin: int = integer("pad_beg", 0),
    end: int = integer("pad_end", 0),
    aligned: bool = flag("align_corners", True),
) -> Value:
    """Interpolate linearly to the shape that the file declares for the output.

    If `aligned`, the centres of the first items of input and output coincide, and so do the centres
    of the last items. Before the interpolation, `begin` items are added at the start of each
    spatial axis, and `end` items at its end. Negative numbers crop the input.
    """
    spatial_axes = range(2, len(x.type.shape))
    x = cropped(site, x, dict.fromkeys(spatial_axes, (begin, end)))
    if max(begin, end) > 0:
        padding = (max(begin, 0), max(end, 0))
        x = site.padded(x, dict.fromkeys(spatial_axes, padding))
    return _resized(site.last, x, _resized_shape(site), "linear", _CORNERS[aligned])


@legacy("Resample")
def _resample(site: LayerSite, x: Value, *, type: str = text("type")) -> Value:
    """Resize to the declared shape by the nearest items, or by linear interpolation.

    In the interpolation, the position of an item is the item's centre. If the attribute `antialias`
    is set and the result is smaller than the input, the kernel of the interpolation is widened.
    """
    sizes = _resized_shape(site)
    if type.endswith("nearest"):
        return _resized(site.last, x, sizes, mode="nearest", coordinates="asymmetric")
    shrinks = any(size < extent for size, extent in zip(sizes, x.type.shape, strict=True))
    widens = site.flag("antialias") and shrinks
    widening = {"antialias": widens, "exclude_outside": widens}
    return _resized(site.last, x, sizes, mode="linear", coordinates="half_pixel", **widening)


# Video frames are converted as in ITU-R BT.601, in the range of video (16 to 235). Each of the
# colours red, green and blue has a pair: the factor of (u - 128) and the factor of (v - 128).
_RGB = ((0.0, 1.596), (-0.391, -0.813), (2.018, 0.0))
_BGR = _RGB[::-1]
_BRIGHTNESS = 1.164  # the factor of (brightness - 16)


def _colour(site: LayerSite, chroma: Value, i: int, shape: tuple[int, int, int]) -> Value:
    """Subtract 128 from colour plane `i` of `chroma`, and enlarge the plane to the image's size.

    The tensor `chroma` has shape (batch, height / 2, width / 2, 2), and the result has shape
    (batch, height, width, 1). `shape` is (batch, height, width).
    """
    batch, height, width = shape
    plane = site.part(chroma, axis=3, first=i, last=i + 1)
    # Each colour pixel covers two rows and two columns of the image.
    pixels = site.reshaped(plane, (batch, height // 2, 1, width // 2, 1))
    repeated = site.step.tile(pixels, repeats=(1, 1, 2, 1, 2))
    return site.step.sub(site.reshaped(repeated, (batch, height, width, 1)), 128.0)


def _planes(site: LayerSite, *, interleaved: bool) -> tuple[Value, Value]:
    """Return the brightness and the colours of images as two tensors of real numbers.

    The brightness has shape (batch, height, width, 1). The colours have shape
    (batch, height / 2, width / 2, 2). The layer has one, two or three inputs. A single input is an
    image with brightness and colours. Two inputs are the brightness and a tensor with both colours.
    Three inputs are the brightness and a plane for each colour. In a single image, the two colours
    of a pixel are side by side if `interleaved`, otherwise they are in separate planes.
    """
    inputs = [site.cast(x, site.real) for x in site.tensors()]
    if len(inputs) == 2:
        brightness, colours = inputs
        return brightness, colours
    if len(inputs) > 2:
        brightness, *colour_planes = inputs
        return brightness, site.step.concat(colour_planes, axis=3)
    return _planes_of_image(site, inputs[0], interleaved=interleaved)


def _planes_of_image(site: LayerSite, image: Value, *, interleaved: bool) -> tuple[Value, Value]:
    """Split an image of shape (batch, height * 3 / 2, width, 1) into brightness and colours.

    The colours are below the brightness. If `interleaved`, the two colours of a pixel are side by
    side (NV12), otherwise they are in separate planes (I420). `image` is input 0 of the layer. The
    results have the shapes (batch, height, width, 1) and (batch, height / 2, width / 2, 2).
    """
    batch, rows, width, _ = site.known_shape()
    height = rows * 2 // 3
    if rows % 3 or height % 2 or width % 2:
        message = f"{show(site.shape())} is no image with half as many colour pixels by axis"
        raise InvalidShape(message)
    colours = site.part(image, axis=1, first=height, last=rows)
    brightness = site.part(image, axis=1, first=0, last=height)
    half_height = height // 2
    half_width = width // 2
    if interleaved:
        return brightness, site.reshaped(colours, (batch, half_height, half_width, 2))
    separate = site.reshaped(colours, (batch, 2, half_height, half_width))
    return brightness, site.transposed(separate, (0, 2, 3, 1))


@opsets("NV12toRGB", interleaved=True, colours=_RGB)
@opsets("NV12toBGR", interleaved=True, colours=_BGR)
@opsets("I420toRGB", interleaved=False, colours=_RGB)
@opsets("I420toBGR", interleaved=False, colours=_BGR)
def _coloured(
    site: LayerSite, *, interleaved: bool, colours: Sequence[tuple[float, float]]
) -> Value:
    """Convert images from brightness and two colours to red, green and blue.

    `colours` has a pair for each colour of the result: the factors of the first and the second
    colour of the input. `interleaved` tells whether the two colours of an input pixel are side by
    side (NV12), or in separate planes (I420).
    """
    step = site.step
    brightness, chroma = _planes(site, interleaved=interleaved)
    batch, height, width, _ = site.known_shape(brightness)
    is_even = height % 2 == 0 and width % 2 == 0
    is_half_size = chroma.type.shape == (batch, height // 2, width // 2, 2)
    if not is_even or not is_half_size:
        message = f"colours {show(chroma.type.shape)} do not fit {show(brightness.type.shape)}"
        raise InvalidShape(message)
    y = step.mul(step.sub(brightness, 16.0), _BRIGHTNESS)
    u, v = (_colour(site, chroma, i, (batch, height, width)) for i in range(2))
    planes: list[Value] = []
    for by_u, by_v in colours:
        plane = y
        if by_u:  # a term with the factor 0 is left out
            plane = step.add(plane, step.mul(u, by_u))
        if by_v:
            plane = step.add(plane, step.mul(v, by_v))
        planes.append(plane)
    pixels = step.clamp(step.concat(planes, axis=3), 0.0, 255.0)
    dtype = site.dtype_of(0)
    if is_float(dtype):
        # The operation of the layer's result must be added by `site.last`.
        return site.last.copy(pixels)
    return site.last.cast(step.round(pixels, ties="away"), dtype=dtype)
