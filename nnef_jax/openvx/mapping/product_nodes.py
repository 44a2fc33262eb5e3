"""Maps convolutions, deconvolutions, matrix products and batch normalisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from lowering import correlation, windows
from lowering.extents import Shape, volume
from nnef_jax.openvx.layers.product_layers import (
    convolution_layer,
    deconvolution_layer,
    fully_connected_layer,
)
from nnef_jax.openvx.mapping.mapped_operation import (
    Computed,
    MappedOperation,
    NodeInputs,
    Unfit,
    VxLayer,
    array_as_planes,
    as_planes,
    is_single,
    reshaped,
)
from nnef_jax.openvx.mapping.registry import maps
from nnef_jax.openvx.tensor import Tensor


@maps("conv")
def convolution(operation: MappedOperation) -> VxLayer:
    """Map `conv` onto a vxConvolutionLayer for each group, on a view of the group's channels."""
    operation.require_fixed("filter", "bias")
    shape = operation.require_planes("input")
    filter = operation.shape("filter")
    window = windows.basic_windows(shape[2:], filter[2:], **_window_attributes(operation))
    padding = symmetric(window, window.border)
    require_smallest_strides(window, padding)
    groups = operation.attributes["groups"] or shape[1]  # 0 means a group for each channel
    attributes: dict[str, Any] = {
        "padding": xy_pair(padding, single=0),
        "dilation": xy_pair([distance - 1 for distance in window.dilation], single=0),
        "skip": xy_pair(window.stride, single=1),
        "groups": groups,
    }
    rank = len(shape)

    def run(node: NodeInputs) -> Computed:
        """Compute the convolution on raw integers."""
        x = as_planes(node["input"])
        options: Any = {**attributes, **node.products}
        layer = convolution_layer(x, node["filter"], node.get("bias"), **options)
        return _as_rank(layer, rank)

    return VxLayer(
        _with_count(groups, "vxConvolutionLayer"),
        run,
        arrange={"filter": array_as_planes, "bias": _biases(filter[0])},
        static=("filter",),
        scale=("filter", _by_first),
        channels=filter[0],
    )


@maps("deconv")
def deconvolution(operation: MappedOperation) -> VxLayer:
    """Map `deconv` onto vxDeconvolutionLayer with a flipped filter."""
    operation.require_fixed("filter", "bias")
    shape = operation.require_planes("input")
    filter = operation.shape("filter")
    output = operation.result.shape
    declared_output = operation.attributes["output_shape"]
    window = windows.reverse_windows(
        shape[2:], declared_output[2:], filter[2:], **_window_attributes(operation)
    )
    groups = output[1] // filter[1]
    if any(distance != 1 for distance in window.dilation):
        raise Unfit(f"its dilation is {list(window.dilation)}, the layer has none")
    if window.border not in ("constant", "ignore"):
        raise Unfit(f"its border is '{window.border}', the layer pads with zeros")
    paddings = [before for before, _ in window.padding]
    additions: list[int] = []
    axes = zip(shape[2:], output[2:], filter[2:], window.stride, paddings, strict=True)
    for extent, result, size, stride, padding in axes:
        additions.append(_addition(extent, result, size, stride, padding))
    attributes: dict[str, Any] = {
        "padding": xy_pair(paddings, single=0),
        "a": xy_pair(additions, single=0),
        "upscale": xy_pair(window.stride, single=1),
        "groups": groups,
    }
    rank = len(shape)
    if rank == 3:
        raise Unfit("it has one spatial axis, and OpenVX cannot infer an upscale along the other")

    def run(node: NodeInputs) -> Computed:
        """Compute the deconvolution on raw integers."""
        options: Any = {**attributes, **node.products}
        layer = deconvolution_layer(node["input"], node["filter"], node.get("bias"), **options)
        return _as_rank(layer, rank)

    def flipped(filter: Array) -> Array:
        """Return the filter in the layout of OpenVX, (outputs, inputs of a group, *size)."""
        return correlation.transposed_filter(filter, groups)

    return VxLayer(
        _with_count(groups, "vxDeconvolutionLayer"),
        run,
        arrange={"filter": flipped, "bias": _biases(output[1])},
        static=("filter",),
        scale=("filter", partial(_by_output, groups=groups)),
        channels=output[1],
    )


def _addition(extent: int, result: int, size: int, stride: int, padding: int) -> int:
    """Return the number of rows or columns that a deconvolution adds at the end of an axis.

    Raises Unfit if the layer cannot compute the axis.

    Args:
        extent: the extent of the input.
        result: the extent of the result.
        size: the extent of the filter.
        stride: the distance between neighbouring inputs once they are spread.
        padding: the number of items that are cut off at each end.
    """
    addition = result - ((extent - 1) * stride + size - 2 * padding)
    if extent == 1:
        raise Unfit("an extent is 1, from which OpenVX cannot infer the upscale")
    if padding >= size:
        raise Unfit(f"the padding {padding} is not below the size {size} of the kernel")
    if not 0 <= addition < stride:
        raise Unfit(f"it adds {addition} rows or columns, the layer adds 0 to {stride - 1}")
    return addition


@maps("linear")
def linear(operation: MappedOperation) -> VxLayer:
    """Map `linear` onto vxFullyConnectedLayer."""
    operation.require_fixed("filter", "bias")
    filter = operation.shape("filter")
    bias = operation.shape("bias")
    # A bias of the result's rank has an axis of channels, which is the last one.
    has_channels = len(bias) == len(operation.result.shape)
    batch_of_bias = bias[:-1] if has_channels else bias
    if not is_single(filter[:-2]) or not is_single(batch_of_bias):
        raise Unfit("its weights or biases differ between the items of the batch")
    return _fully_connected(operation, names=("input", "filter"), transposes=(False, True))


@maps("matmul")
def product(operation: MappedOperation) -> VxLayer:
    """Map `matmul` with a fixed matrix onto vxFullyConnectedLayer.

    A matrix product whose operands both depend on inputs is mapped onto vxTensorMatrixMultiplyNode.
    """
    a_shape = operation.shape("A")
    b_shape = operation.shape("B")
    transposes_a = operation.attributes["transposeA"]
    transposes_b = operation.attributes["transposeB"]
    if len(a_shape) < 2 or len(b_shape) < 2:
        raise Unfit("a vector is no matrix")
    if operation.is_fixed("B") and is_single(b_shape[:-2]):
        transposes = (transposes_a, transposes_b)
        return _fully_connected(operation, names=("A", "B"), transposes=transposes)
    shape = operation.result.shape
    count = volume(shape[:-2])

    def run(node: NodeInputs) -> Computed:
        """Compute the products of the matrices on raw integers."""
        # According to the text of OpenVX 1.2, products are rounded to the nearest and saturated.
        # The C code truncates them. In both cases, only complete sums are rounded.
        rounding = "nearest_even" if node.choices.semantics == "spec" else "to_zero"
        options: Any = {
            **node.products,
            "overflow_policy": "saturate",
            "rounding_policy": rounding,
            "semantics": "spec",
        }
        a = _matrices(node["A"], transposes_a, shape)
        b = _matrices(node["B"], transposes_b, shape)

        def multiply(a: Tensor, b: Tensor) -> Any:
            """Multiply two matrices. The layer takes the second one transposed."""
            weights = Tensor(b.data.T, b.fixed_point_position)
            return fully_connected_layer(a, weights, **options)

        result, mask = jax.vmap(multiply)(a, b)
        return reshaped(result, shape), mask.reshape(shape)

    return VxLayer(_with_count(count, "vxTensorMatrixMultiplyNode"), run)


@maps("batch_normalization")
def batch_normalization(operation: MappedOperation) -> VxLayer:
    """Map a batch normalisation that is not folded into a preceding product.

    The result is a vxConvolutionLayer with a 1x1 window for each channel.
    """
    shape = operation.require_planes("input")
    input_name, *parameters = operation.arguments
    operation.require_fixed(*parameters)
    channels = shape[1]
    for name in parameters:
        for axis, extent in enumerate(operation.shape(name)):
            is_by_channel = axis == 1 and extent == channels
            if extent != 1 and not is_by_channel:
                raise Unfit(f"'{name}' must be one number for each channel")

    def run(node: NodeInputs) -> Computed:
        """Compute the convolution by `filter` and `bias`, which `weights_of` makes."""
        x = as_planes(node[input_name])
        options = node.products
        result = convolution_layer(x, node["filter"], node["bias"], groups=channels, **options)
        return _as_rank(result, len(shape))

    def real(operands: Mapping[str, Array]) -> Array:
        """Compute the normalisation in floating point, as filter * x + bias."""
        by_channel = [1, channels, *(1 for _ in shape[2:])]
        filter = operands["filter"].reshape(by_channel)
        bias = operands["bias"].reshape(by_channel)
        return operands[input_name] * filter + bias

    return VxLayer(
        _with_count(channels, "vxConvolutionLayer"),
        run,
        arrange={"bias": _biases(channels)},
        static=("filter",),
        scale=("filter", _by_first),
        channels=channels,
        real=real,
        is_unit=True,
    )


def _fully_connected(
    operation: MappedOperation, names: tuple[str, str], transposes: tuple[bool, bool]
) -> VxLayer:
    """Map a product of a tensor and a matrix of weights onto vxFullyConnectedLayer.

    The rows of the tensor become items of a batch.

    Args:
        operation: the operation.
        names: the names of two operands: the tensor and the weights.
        transposes: two flags: whether the operation transposes the tensor, and whether it
            transposes the weights.
    """
    left, right = names
    transposes_left, transposes_right = transposes
    shape = operation.result.shape
    # The tensor, or its transpose, is (..., rows, inner), and the weights, or their transpose, are
    # (inner, channels).
    inner_axis = -2 if transposes_left else -1  # an axis of the tensor
    channel_axis = -2 if transposes_right else -1  # an axis of the weights
    inner = operation.shape(left)[inner_axis]

    def run(node: NodeInputs) -> Computed:
        """Compute the product on raw integers."""
        x = node[left]
        data = _transposed_if(transposes_left, x.data)
        rows = Tensor(data.reshape(-1, inner), x.fixed_point_position)
        options: Any = node.products
        result_and_mask: Any = fully_connected_layer(rows, node[right], node.get("bias"), **options)
        result, mask = result_and_mask
        return reshaped(result, shape), mask.reshape(shape)

    def arranged(weights: Array) -> Array:
        """Return the weights in the layout of OpenVX, (channels, inner)."""
        weights = weights.reshape(weights.shape[-2:])
        return weights if transposes_right else weights.T

    def scaled(weights: Array, factor: Array) -> Array:
        """Multiply the weights by a factor for each channel."""
        by_channel = [1 for _ in weights.shape]
        by_channel[channel_axis] = -1
        return weights * factor.reshape(by_channel)

    def real(operands: Mapping[str, Array]) -> Array:
        """Compute the product in floating point."""
        a = _transposed_if(transposes_left, operands[left])
        b = _transposed_if(transposes_right, operands[right])
        products = jnp.matmul(a, b)
        bias = operands.get("bias", 0)
        is_array = np.ndim(bias) > 0  # a bias that is a number is 0
        return products + bias if is_array else products

    return VxLayer(
        "vxFullyConnectedLayer",
        run,
        arrange={right: arranged, "bias": _biases(shape[-1])},
        static=(right,),
        scale=(right, scaled),
        channels=shape[-1],
        axis=len(shape) - 1,
        real=real,
    )


def _matrices(x: Tensor, is_transposed: bool, result_shape: Shape) -> Tensor:
    """Return the matrices of an operand of a batched product, (count, rows, columns).

    There is one matrix for each product of the result. A matrix that several products share is
    repeated.
    """
    data = _transposed_if(is_transposed, x.data)
    shape = (*result_shape[:-2], *data.shape[-2:])
    matrices = jnp.broadcast_to(data, shape).reshape(-1, *shape[-2:])
    return Tensor(matrices, x.fixed_point_position)


def _transposed_if(is_transposed: bool, x: Array) -> Array:
    """Exchange the last two axes of an array if `is_transposed`."""
    return jnp.swapaxes(x, -1, -2) if is_transposed else x


def symmetric(window: windows.Windows, border: str) -> list[int]:
    """Return the padding of each axis, as the number of items at one end.

    Raises Unfit unless the padding is equal at both ends of each axis, and consists of zeros.
    """
    pads_with_zeros = border in ("constant", "ignore")
    for before, after in window.padding:
        if before != after:
            raise Unfit(f"its padding {(before, after)} is not the same on both sides")
        if before != 0 and not pads_with_zeros:
            raise Unfit(f"its border is '{border}', the layer pads with zeros")
    return [before for before, _ in window.padding]


def require_smallest_strides(window: windows.Windows, padding: list[int]) -> None:
    """Raise Unfit for strides that OpenVX would not infer from the extents of input and output.

    OpenVX infers the smallest stride for each axis. It rounds the numbers of positions along all
    axes down (floor), or along all axes up (ceiling). If no number needs rounding, OpenVX infers
    the right strides by the ceiling.
    """
    reasons: list[str] = []
    is_exact = True  # whether the number of positions needs no rounding on any axis
    for extent, span, stride, pad, count in zip(
        window.upscaled, window.dilated, window.stride, padding, window.downscaled, strict=True
    ):
        travel = extent + 2 * pad - span  # the number of items by which a window can move
        smallest = travel // count + 1
        if travel % stride != 0:
            is_exact = False
        if count > 1 and stride != smallest:
            reasons.append(f"its stride is {stride}, OpenVX infers {smallest} from {count} items")
    if reasons and not is_exact:
        raise Unfit(reasons[0])


def xy_pair(values: Sequence[int], single: int) -> tuple[int, int]:
    """Return the values of the spatial axes in OpenVX's order (x, y).

    `values` are (y, x), or only (x,). In the second case y is `single`.
    """
    *before_x, x = values
    y = before_x[0] if before_x else single
    return x, y


def _window_attributes(operation: MappedOperation) -> dict[str, Any]:
    """Return the attributes of an operation that describe windows, as a dict."""
    names = ("border", "padding", "stride", "dilation")
    return {name: operation.attributes[name] for name in names}


def _as_rank(layer: Tensor | tuple[Tensor, Array], rank: int) -> Computed:
    """Return the result and the overflow mask of a layer, with `rank` axes.

    Both have the axes (batch, channels, height, width). For rank 3 the height, which is 1, is
    dropped.
    """
    assert isinstance(layer, tuple)
    result, mask = layer
    if rank == 4:
        return result, mask
    return Tensor(result.data[:, :, 0], result.fixed_point_position), mask[:, :, 0]


def _biases(channels: int) -> Callable[[Array], Array]:
    """Return a function that converts a bias to a vector with an item for each channel."""

    def arranged(bias: Array) -> Array:
        """Return a bias, which may be a single number, as a vector."""
        return jnp.broadcast_to(bias.reshape(-1), (channels,))

    return arranged


def _by_first(filter: Array, factor: Array) -> Array:
    """Multiply a filter by an array of factors, one for each index of axis 0."""
    return filter * factor.reshape(-1, *(1 for _ in filter.shape[1:]))


def _by_output(filter: Array, factor: Array, groups: int) -> Array:
    """Multiply the filter of a deconvolution by an array of factors, one for each output.

    The filter has the shape (inputs, outputs of a group, *size).
    """
    inputs, group_outputs, *size = filter.shape
    # The inputs of a group follow each other, and so do the outputs.
    by_group = filter.reshape(groups, inputs // groups, group_outputs, *size)
    factors = factor.reshape(groups, 1, group_outputs, *(1 for _ in size))
    return (by_group * factors).reshape(filter.shape)


def _with_count(count: int, name: str) -> str:
    """Return the name of a node with its count, such as "2 x vxConvolutionLayer"."""
    return name if count == 1 else f"{count} x {name}"
