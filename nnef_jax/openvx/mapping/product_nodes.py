"""The mappings of convolutions, deconvolutions, products of matrices and normalisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    is_single,
    like,
    plane,
    planes,
)
from nnef_jax.openvx.mapping.registry import maps
from nnef_jax.openvx.tensor import Tensor


@maps("conv")
def convolution(operation: MappedOperation) -> VxLayer:
    """Map `conv` onto vxConvolutionLayer: a layer for each group, on a view of its channels."""
    operation.require_fixed("filter", "bias")
    shape, filter = operation.require_planes("input"), operation.shape("filter")
    sliding = _sliding(operation)
    window = windows.basic(shape[2:], filter[2:], **sliding)
    padding = symmetric(window, window.border)
    require_smallest_strides(window, padding)
    groups = operation.attributes["groups"] or shape[1]
    attributes: dict[str, Any] = {
        "padding": pair(padding, 0),
        "dilation": pair([d - 1 for d in window.dilation], 0),
        "skip": pair(window.stride, 1),
        "groups": groups,
    }
    rank = len(shape)

    def run(node: NodeInputs) -> Computed:
        x, weights, biases = planes(node["input"]), node["filter"], node.get("bias")
        options: Any = {**attributes, **node.products}
        return _as_rank(convolution_layer(x, weights, biases, **options), rank)

    return VxLayer(
        _times(groups, "vxConvolutionLayer"),
        run,
        arrange={"filter": plane, "bias": _biases(filter[0])},
        static=("filter",),
        scale=("filter", _by_first),
        channels=filter[0],
    )


@maps("deconv")
def deconvolution(operation: MappedOperation) -> VxLayer:
    """Map `deconv` onto vxDeconvolutionLayer, whose filter is flipped."""
    operation.require_fixed("filter", "bias")
    shape, filter = operation.require_planes("input"), operation.shape("filter")
    output, declared = operation.result.shape, operation.attributes["output_shape"]
    window = windows.reverse(shape[2:], declared[2:], filter[2:], **_sliding(operation))
    groups = output[1] // filter[1]
    if any(d != 1 for d in window.dilation):
        raise Unfit(f"its dilation is {list(window.dilation)}, the layer has none")
    if window.border not in ("constant", "ignore"):
        raise Unfit(f"its border is '{window.border}', the layer pads with zeros")
    before = [p for p, _ in window.padding]
    extra: list[int] = []
    for extent, up, size, stride, p in zip(
        shape[2:], output[2:], filter[2:], window.stride, before, strict=True
    ):
        a = up - ((extent - 1) * stride + size - 2 * p)
        if extent == 1:
            raise Unfit("an extent is 1, from which OpenVX cannot infer the upscale")
        if size < p + 1:
            raise Unfit(f"the padding {p} is not below the size {size} of the kernel")
        if not 0 <= a < stride:
            raise Unfit(f"it adds {a} rows or columns, the layer adds 0 to {stride - 1}")
        extra.append(a)
    attributes: dict[str, Any] = {
        "padding": pair(before, 0),
        "a": pair(extra, 0),
        "upscale": pair(window.stride, 1),
        "groups": groups,
    }
    rank = len(shape)
    if rank == 3:
        raise Unfit("it has one spatial axis, and OpenVX cannot infer an upscale along the other")

    def run(node: NodeInputs) -> Computed:
        x, weights, biases = node["input"], node["filter"], node.get("bias")
        options: Any = {**attributes, **node.products}
        return _as_rank(deconvolution_layer(x, weights, biases, **options), rank)

    def flipped(filter: Array) -> Array:
        return correlation.transposed_filter(filter, groups)

    def scaled(filter: Array, factor: Array) -> Array:
        inputs, depth, *size = filter.shape
        parts = filter.reshape(groups, inputs // groups, depth, *size)
        factors = factor.reshape(groups, 1, depth, *(1 for _ in size))
        return (parts * factors).reshape(filter.shape)

    return VxLayer(
        _times(groups, "vxDeconvolutionLayer"),
        run,
        arrange={"filter": flipped, "bias": _biases(output[1])},
        static=("filter",),
        scale=("filter", scaled),
        channels=output[1],
    )


@maps("linear")
def linear(operation: MappedOperation) -> VxLayer:
    """Map `linear` onto vxFullyConnectedLayer."""
    operation.require_fixed("filter", "bias")
    filter, bias, shape = operation.shape("filter"), operation.shape("bias"), operation.result.shape
    if not is_single(filter[:-2]) or not is_single(bias[:-1] if len(bias) == len(shape) else bias):
        raise Unfit("its weights or biases differ between the items of the batch")
    return _fully_connected(operation, ("input", "filter"), (False, True))


@maps("matmul")
def product(operation: MappedOperation) -> VxLayer:
    """Map `matmul` with a fixed matrix onto vxFullyConnectedLayer.

    Other products, of two tensors, are mapped onto vxTensorMatrixMultiplyNode.
    """
    left, right = operation.shape("A"), operation.shape("B")
    flipped = operation.attributes["transposeA"], operation.attributes["transposeB"]
    if len(left) < 2 or len(right) < 2:
        raise Unfit("a vector is no matrix")
    if operation.is_fixed("B") and is_single(right[:-2]):
        return _fully_connected(operation, ("A", "B"), flipped)
    count = volume(operation.result.shape[:-2])
    dims = operation.result.shape

    def run(node: NodeInputs) -> Computed:
        # The text of OpenVX 1.2 rounds to the nearest and saturates; the C code truncates.
        rounding = "nearest_even" if node.choices.semantics == "spec" else "to_zero"
        options: Any = {**node.products, "overflow_policy": "saturate"}
        options |= {"rounding_policy": rounding, "semantics": "spec"}
        a, b = (_matrices(node[name], flip, dims) for name, flip in zip("AB", flipped, strict=True))

        def multiply(a: Tensor, b: Tensor) -> Any:
            weights = Tensor(b.data.T, b.fixed_point_position)
            return fully_connected_layer(a, weights, **options)

        result, mask = jax.vmap(multiply)(a, b)
        return like(result, dims), mask.reshape(dims)

    return VxLayer(_times(count, "vxTensorMatrixMultiplyNode"), run)


@maps("batch_normalization")
def batch_normalization(operation: MappedOperation) -> VxLayer:
    """Map a normalisation that follows no product onto a 1x1 vxConvolutionLayer per channel."""
    shape, (first, *parameters) = operation.require_planes("input"), operation.arguments
    operation.require_fixed(*parameters)
    channels = shape[1]
    for name in parameters:
        if any(
            n not in (1, channels if axis == 1 else 1)
            for axis, n in enumerate(operation.shape(name))
        ):
            raise Unfit(f"'{name}' must be one number for each channel")

    def run(node: NodeInputs) -> Computed:
        x, options = planes(node[first]), node.products
        result = convolution_layer(x, node["filter"], node["bias"], groups=channels, **options)
        return _as_rank(result, len(shape))

    def real(operands: Mapping[str, Array]) -> Array:
        by_channel = [1, channels, *(1 for _ in shape[2:])]
        filter, bias = (operands[name].reshape(by_channel) for name in ("filter", "bias"))
        return operands[first] * filter + bias

    return VxLayer(
        _times(channels, "vxConvolutionLayer"),
        run,
        arrange={"bias": _biases(channels)},
        static=("filter",),
        scale=("filter", _by_first),
        channels=channels,
        real=real,
        is_unit=True,
    )


def _fully_connected(
    operation: MappedOperation, names: tuple[str, str], flipped: tuple[bool, bool]
) -> VxLayer:
    """Map a product with a matrix of weights. Rows of the other operand are items of a batch."""
    (left, right), (flip, is_transposed), shape = names, flipped, operation.result.shape
    inner = operation.shape(left)[-2 if flip else -1]

    def run(node: NodeInputs) -> Computed:
        x = node[left]
        data = jnp.swapaxes(x.data, -1, -2) if flip else x.data
        rows = Tensor(data.reshape(-1, inner), x.fixed_point_position)
        options: Any = node.products
        layer: Any = fully_connected_layer(rows, node[right], node.get("bias"), **options)
        result, mask = layer
        return like(result, shape), mask.reshape(shape)

    def arranged(weights: Array) -> Array:
        weights = weights.reshape(weights.shape[-2:])
        return weights if is_transposed else weights.T

    def scaled(weights: Array, factor: Array) -> Array:
        by_channel = [1 for _ in weights.shape]
        by_channel[-2 if is_transposed else -1] = -1
        return weights * factor.reshape(by_channel)

    def real(operands: Mapping[str, Array]) -> Array:
        a, b = operands[left], operands[right]
        a = jnp.swapaxes(a, -1, -2) if flip else a
        y = jnp.matmul(a, jnp.swapaxes(b, -1, -2) if is_transposed else b)
        return y + operands["bias"] if np.ndim(operands.get("bias", 0)) else y

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


def _matrices(x: Tensor, is_transposed: bool, dims: Shape) -> Tensor:
    """Return a matrix for each product, [count,rows,columns]. A shared matrix is repeated."""
    data = jnp.swapaxes(x.data, -1, -2) if is_transposed else x.data
    shape = (*dims[:-2], *data.shape[-2:])
    return Tensor(jnp.broadcast_to(data, shape).reshape(-1, *shape[-2:]), x.fixed_point_position)


def symmetric(window: windows.Windows, border: str) -> list[int]:
    """Return the padding of each axis. Raises Unfit unless it is symmetric and of zeros."""
    for before, after in window.padding:
        if before != after:
            raise Unfit(f"its padding {(before, after)} is not the same on both sides")
        if before and border not in ("constant", "ignore"):
            raise Unfit(f"its border is '{border}', the layer pads with zeros")
    return [before for before, _ in window.padding]


def require_smallest_strides(window: windows.Windows, padding: list[int]) -> None:
    """Raise Unfit for strides that OpenVX would not infer from the extents of input and output.

    OpenVX infers the smallest stride, with one rounding for all axes, to the floor or ceiling.
    """
    wrong: list[str] = []
    is_exact = True  # whether floor and ceiling agree
    for extent, span, stride, p, out in zip(
        window.upscaled, window.dilated, window.stride, padding, window.downscaled, strict=True
    ):
        travel = extent + 2 * p - span  # of a window along the axis
        smallest = travel // out + 1
        is_exact &= travel % stride == 0
        if out > 1 and stride != smallest:
            wrong.append(f"its stride is {stride}, OpenVX infers {smallest} from {out} items")
    if wrong and not is_exact:
        raise Unfit(wrong[0])


def pair(values: Sequence[int], single: int) -> tuple[int, int]:
    """Return values of spatial axes in OpenVX's order (x, y). For one axis y is `single`."""
    return (values[-1], values[0] if len(values) == 2 else single)


def _sliding(operation: MappedOperation) -> dict[str, Any]:
    names = ("border", "padding", "stride", "dilation")
    return {name: operation.attributes[name] for name in names}


def _as_rank(layer: Tensor | tuple[Tensor, Array], rank: int) -> Computed:
    """Return the result and the mask of a layer. For rank 3 the axis of rows is dropped."""
    assert isinstance(layer, tuple)
    result, mask = layer
    if rank == 4:
        return result, mask
    return Tensor(result.data[:, :, 0], result.fixed_point_position), mask[:, :, 0]


def _biases(channels: int) -> Callable[[Array], Array]:
    def arranged(bias: Array) -> Array:
        return jnp.broadcast_to(bias.reshape(-1), (channels,))

    return arranged


def _by_first(filter: Array, factor: Array) -> Array:
    """Multiply a filter by a factor for each item of its first axis."""
    return filter * factor.reshape(-1, *(1 for _ in filter.shape[1:]))


def _times(count: int, name: str) -> str:
    return name if count == 1 else f"{count} x {name}"
