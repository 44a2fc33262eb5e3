"""Maps pools, reductions over planes, softmax and normalisation."""

from __future__ import annotations

from typing import Any

from lowering import windows
from nnef_jax.openvx.layers.pointwise import (
    NORMALIZATION_SIZES,
    normalization_layer,
    softmax_layer,
)
from nnef_jax.openvx.layers.pooling_layers import pooling_layer
from nnef_jax.openvx.mapping.mapped_operation import (
    Computed,
    MappedOperation,
    NodeInputs,
    Unfit,
    VxLayer,
    as_planes,
    reshaped,
)
from nnef_jax.openvx.mapping.product_nodes import require_smallest_strides, symmetric, xy_pair
from nnef_jax.openvx.mapping.registry import maps


@maps("max_pool", "avg_pool", "box")
def pool(operation: MappedOperation) -> VxLayer:
    """Map a pool onto vxPoolingLayer. The zeros of the padding count in averages."""
    kind = "max" if operation.kind == "max_pool" else "avg"
    shape = operation.require_planes("input")
    attributes = dict(operation.attributes)
    is_sum = not attributes.pop("normalize", True)  # only `box` has this attribute
    if is_sum:
        raise Unfit("it sums, but the layer averages")
    window = windows.basic_windows(shape, **attributes)
    # The first two axes are those of the batch and the channels.
    spans_axes = any(extent != 1 for extent in (*window.size[:2], *window.stride[:2]))
    pads_axes = any(pads != (0, 0) for pads in window.padding[:2])
    if spans_axes or pads_axes:
        raise Unfit("its windows span batch or channels")
    if any(distance != 1 for distance in window.dilation):
        raise Unfit(f"its dilation is {list(window.dilation[2:])}, the layer has none")
    padding = symmetric(window, window.border)
    require_smallest_strides(window, padding)
    if any(padding):
        _require_border(operation, kind, window.border)
    return _pooling(
        operation,
        pooling_type=kind,
        pooling_size=xy_pair(window.size[2:], single=1),
        pooling_padding=xy_pair(padding[2:], single=0),
        skip=xy_pair(window.stride[2:], single=1),
    )


def _require_border(operation: MappedOperation, kind: str, border: str) -> None:
    """Raise Unfit if the operation and the layer treat padding differently.

    In averages, the layer counts padding. In maxima, padding takes part according to the text of
    OpenVX (the semantics "spec"), but not in the C code ("khronos").
    """
    if kind == "avg":
        if border != "constant":
            raise Unfit("its averages leave out the padding, the layer's averages include it")
        return
    takes_part = border == "constant"
    takes_part_in_layer = operation.semantics == "spec"
    # Zeros do not change the maximum of items that are not negative.
    may_be_negative = operation.operand("input") not in operation.not_negative
    if takes_part != takes_part_in_layer and may_be_negative:
        use = "takes part in maxima" if takes_part else "is left out of maxima"
        layer = "leaves it out" if takes_part else "does not leave it out"
        raise Unfit(f"its padding {use} and 'input' may be negative: the layer {layer}")


@maps("max_reduce", "mean_reduce", "sum_reduce")
def reduction(operation: MappedOperation) -> VxLayer:
    """Map the mean or maximum of a plane onto a vxPoolingLayer with a single window."""
    kind = "max" if operation.kind == "max_reduce" else "avg"
    if operation.kind == "sum_reduce" and not operation.attributes["normalize"]:
        raise Unfit("it sums, but the layer averages")
    shape = operation.require_planes("input")
    axes = tuple(operation.attributes["axes"])
    if sorted(axes) != list(range(2, len(shape))):
        raise Unfit(f"it reduces axes {list(axes)}, the layer reduces width and height")
    size = xy_pair(shape[2:], single=1)
    return _pooling(operation, pooling_type=kind, pooling_size=size, skip=(1, 1))


def _pooling(operation: MappedOperation, **attributes: Any) -> VxLayer:
    """Return the layer vxPoolingLayer for an operation. `attributes` are those of the layer."""
    shape = operation.result.shape

    def run(node: NodeInputs) -> Computed:
        """Compute the pool on raw integers."""
        x = as_planes(node["input"])
        choices = node.choices
        result = pooling_layer(x, **attributes, semantics=choices.semantics, strict=choices.strict)
        return reshaped(result, (x.shape[0], *shape[1:])), None

    return VxLayer("vxPoolingLayer", run, keeps_position=True)


@maps("softmax")
def softmax(operation: MappedOperation) -> VxLayer:
    """Map `softmax` onto vxSoftmaxLayer.

    A softmax over channels is computed directly. A softmax over the last axis is computed on a view
    whose rows run along this axis.
    """
    shape = operation.shape("x")
    axes = tuple(operation.attributes["axes"])
    is_over_channels = len(shape) == 4 and axes == (1,)
    is_over_last_axis = axes == (len(shape) - 1,)
    if not is_over_channels and not is_over_last_axis:
        raise Unfit(f"it is over axes {list(axes)} of {len(shape)}, the layer over one of classes")

    def run(node: NodeInputs) -> Computed:
        """Compute the softmax on raw integers."""
        x = node["x"]
        rows = x if is_over_channels else reshaped(x, (-1, shape[-1]))  # (rows, classes)
        return reshaped(softmax_layer(rows, **node.output), x.shape), None

    return VxLayer("vxSoftmaxLayer", run)


@maps("local_response_normalization")
def normalization(operation: MappedOperation) -> VxLayer:
    """Map local response normalisation onto vxNormalizationLayer.

    NNEF and OpenVX both divide alpha by the size of the window.
    """
    if operation.profile.dtype != "int16":
        raise Unfit("vxNormalizationLayer is optional in the 8-bit extension")
    shape = operation.require_planes("input")
    declared_size = tuple(operation.attributes["size"])
    size = declared_size + (1,) * (len(shape) - len(declared_size))
    count = max(size)  # the extent of the window along the axis or axes that it spans
    spatial_ones = (1,) * (len(shape) - 2)
    if size == (1, count, *spatial_ones):
        kind = "across_maps"
    elif size == (1, 1, count, count):
        kind = "same_map"
    else:
        raise Unfit(f"its window {list(size)} is neither across maps nor a square in a map")
    if count not in NORMALIZATION_SIZES:
        raise Unfit(f"its window has {count} items, the layer takes 3, 5 or 7")
    alpha = operation.attributes["alpha"]
    beta = operation.attributes["beta"]
    bias = operation.attributes["bias"]
    if min(alpha, beta, bias) <= 0:
        raise Unfit("alpha, beta and bias must be positive")

    def run(node: NodeInputs) -> Computed:
        """Compute the normalisation on raw integers."""
        x = as_planes(node["input"])
        result = normalization_layer(
            x,
            type=kind,
            normalization_size=count,
            alpha=alpha,
            beta=beta,
            bias=bias,
            **node.output,
        )
        return reshaped(result, node["input"].shape), None

    return VxLayer("vxNormalizationLayer", run, saturates=True)
