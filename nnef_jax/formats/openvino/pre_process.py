"""Adds the normalisation of inputs that old files declare in their `<pre-process>` elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation
from lowering.extents import Shape, show, volume
from lowering.graph import Value
from nnef_jax.flattening.emission import locating_errors
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.document import Net, NetLayer, PortRef, whole_number
from nnef_jax.formats.openvino.element_types import element_type, size_of, unpacked
from nnef_jax.formats.openvino.layer_site import LayerSite
from nnef_jax.formats.openvino.xml import Element


def pre_processed(
    net: Net, feeds: Mapping[PortRef, Tensor], site: Callable[..., LayerSite]
) -> dict[PortRef, Tensor]:
    """Return a copy of `feeds` in which inputs are normalised.

    `feeds` maps ports to inputs of a network. Each input x that has a `<pre-process>` element is
    replaced by (x - mean) / scale. The function `site` makes the `LayerSite` of a layer. Operations
    are added to the graph by this `LayerSite`.
    """
    inputs = dict(feeds)
    for element in net.element.children:
        if element.tag == "pre-process":
            with locating_errors("pre-process", element.span(net.source)):
                layer, port, value = _input(net, inputs, element)
                inputs[port] = _processed(element, value, site(layer, net, operands=()))
    return inputs


def _input(
    net: Net, inputs: Mapping[PortRef, Tensor], element: Element
) -> tuple[NetLayer, PortRef, Value]:
    """Return the layer, the port and the tensor of the input that a `<pre-process>` element is for.

    If the element does not name an input, return the first input with four axes.
    """
    name = element.attributes.get("reference-layer-name")
    for layer in net.layers:
        for port in layer.outputs:
            port_reference = layer.id, port.id
            value = inputs.get(port_reference)
            if not isinstance(value, Value):
                continue
            is_image = len(value.type.shape) == 4
            is_selected = is_image if name is None else layer.name == name
            if is_selected:
                return layer, port_reference, value
    missing = "there is no input with four axes" if name is None else f"there is no input '{name}'"
    raise InvalidOperation(missing)


def _processed(element: Element, x: Value, site: LayerSite) -> Value:
    """Subtract a mean from `x`, and divide the difference by a scale.

    The `<pre-process>` element declares the mean and the scale. The mean of a channel is a number
    or an image, and the scale of a channel is a number.
    """
    channels = [child for child in element.children if child.tag == "channel"]
    channels.sort(key=lambda channel: whole_number(channel.attributes, "id", 0))
    if x.type.shape[1:2] != (len(channels),):
        message = f"it has {len(channels)} channels, the input is {show(x.type.shape)}"
        raise InvalidOperation(message)
    means = [channel.child("mean") for channel in channels]
    scales = [channel.child("scale") for channel in channels]
    has_images = any(mean is not None and "offset" in mean.attributes for mean in means)
    if has_images:
        type = element_type(element.attributes.get("mean-precision", "FP32"))
        shape = x.type.shape[2:]
        images = [_image(site, mean, type, shape) for mean in means]
        # The array has shape (1, channels, height, width).
        mean_array = np.stack(images)[None].astype(np.float32)
        x = site.step.sub(x, Constant(mean_array, "f32", f"{x.name}.mean"))
    elif any(mean is not None for mean in means):
        x = site.step.sub(x, _per_channel(means, default=0.0, x=x, name="mean"))
    if any(scale is not None for scale in scales):
        x = site.step.div(x, _per_channel(scales, default=1.0, x=x, name="scale"))
    return x


def _per_channel(
    elements: Sequence[Element | None], default: float, x: Value, name: str
) -> Constant:
    """Return the attribute `value` of each element as a constant of shape (1, channels, 1, ...).

    `elements` has an element for each channel of `x`, or None for a channel with the value
    `default`. The constant has as many axes as `x`. `name` is the name of the value in errors.
    """
    items: list[float] = []
    try:
        for element in elements:
            items.append(default if element is None else float(element.attributes["value"]))
    except (KeyError, ValueError):
        raise InvalidOperation(f"the {name} of each channel must be a number") from None
    spatial_axes = len(x.type.shape) - 2
    array = np.array(items, np.float32).reshape(1, -1, *[1] * spatial_axes)
    return Constant(array, "f32", f"{x.name}.{name}")


def _image(site: LayerSite, mean: Element | None, type: str, shape: Shape) -> NDArray[Any]:
    """Return the mean image of a channel, or zeros if the channel has no mean image.

    `mean` is the element `<mean>` of the channel, and `type` and `shape` are the element type and
    the shape of the image.
    """
    if mean is None:
        return np.zeros(shape, np.float32)
    offset = whole_number(mean.attributes, "offset")
    size = whole_number(mean.attributes, "size")
    if size != size_of(type, volume(shape)):
        raise InvalidOperation(
            f"a mean image has {size} bytes, which do not fit {list(shape)} items of {type}"
        )
    return unpacked(site.weights.slice(offset, size), type, tuple(shape))
