"""Functions for layers that reduce along axes, find the largest items, or normalise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN, volume
from lowering.graph import Value, is_integer
from nnef_jax.flattening.along_axes import REDUCTIONS, reduced
from nnef_jax.flattening.operators.attributes import axis, flag, integer, number, text, word
from nnef_jax.formats.openvino.layer_site import LayerSite
from nnef_jax.formats.openvino.layers.registry import (
    axes_at,
    either,
    integers_at,
    legacy,
    operator,
    opsets,
)

# Maps the end of a layer's type, such as "Sum" of "ReduceSum", to the `steps` of `_reduced`.
_STEPS_OF_REDUCTIONS = {
    **REDUCTIONS,
    **dict.fromkeys(("LogicalAnd", "And"), ("", "all_reduce", "")),
    **dict.fromkeys(("LogicalOr", "Or"), ("", "any_reduce", "")),
}


def _reduced(
    site: LayerSite, x: Value, *, axes: Sequence[int], steps: tuple[str, str, str], keeps_axes: bool
) -> Value:
    """Reduce a tensor along axes.

    `steps` are the names of three operations: one before the reduction, the reduction, and one
    after it. "" stands for no operation. The result has the dtype of `x`.
    """
    axes = tuple(sorted(set(axes)))
    if not axes:
        return site.last.copy(x)  # nothing is reduced
    dtype = x.type.dtype
    _, reduction, after = steps
    result_dtype = ""  # the dtype to which the result is cast, or "" for no cast
    is_logical = reduction in ("all_reduce", "any_reduce")
    needs_reals = reduction == "mean_reduce" or after != ""
    if is_logical and dtype != "bool":
        x = site.truths(x)
        result_dtype = dtype
    elif needs_reals and is_integer(dtype):
        x = site.step.cast(x, dtype=site.real)
        result_dtype = dtype
    return reduced(site, x, axes, steps, keeps_axes=keeps_axes, result_dtype=result_dtype)


for _name, _steps in _STEPS_OF_REDUCTIONS.items():
    # The default of the attribute `keep_dims` is true before version 10, and false since then.
    for _register, _default in ((legacy, True), (opsets, False)):
        _keeps_axes = flag("keep_dims", _default)
        _register(f"Reduce{_name}", axes=axes_at(1), steps=_steps, keeps_axes=_keeps_axes)(_reduced)


@legacy("ArgMax")
def _arg_max(
    site: LayerSite,
    x: Value,
    *,
    count: int = integer("top_k", 1),
    with_values: bool = flag("out_max_val"),
) -> Value:
    """Return the indices of the `count` largest items as real numbers.

    With the attribute `axis`, the items along this axis are compared. If `with_values`, the values
    of the largest items are returned instead of the indices.

    Without the attribute, all items with the same batch index are compared. If `with_values`, the
    result has two channels: the indices and the values.
    """
    step = site.step
    if site.has_attribute("axis"):
        values, indices = step.topk(x, k=count, axis=site.axis_of("axis"), largest=True)
        if with_values:
            return site.last.copy(values)
        return site.last.cast(indices, dtype=site.real)
    batch, *extents = x.type.shape
    flat = site.reshaped(x, (batch, 1, volume(extents)))
    values, indices = step.topk(flat, k=count, axis=2, largest=True)
    indices = step.cast(indices, dtype=site.real)
    if with_values:
        return site.last.concat([indices, values], axis=1)
    return site.last.copy(indices)


@operator("TopK")
def _top_k(
    site: LayerSite,
    x: Value,
    *,
    counts: Sequence[int] = integers_at(1),
    axis: int = axis("axis"),
    mode: str = word("mode", "max", "min"),
    sort: str = word("sort", "value", "index", "none"),
    type: str = text("index_element_type", "i32"),
) -> list[Value]:
    """Return the largest or smallest items along an axis, and their indices along this axis.

    `counts` has one item, the number of items to return. The items are in the order of their
    indices if `sort` is "index", otherwise in the order of their values.
    """
    if len(counts) != 1:
        raise InvalidOperation("'k' must be one number")
    count = counts[0]
    extent = x.type.shape[axis]
    k = count if extent is UNKNOWN else min(count, extent)
    values, indices = site.last.topk(x, k=k, axis=axis, largest=mode == "max")
    if sort == "index":
        # A topk of all k indices sorts the indices from the smallest to the largest.
        _, order = site.step.topk(indices, k=k, axis=axis, largest=False)
        values = site.step.gather_elements(values, order, axis=axis)
        indices = site.step.gather_elements(indices, order, axis=axis)
    if type == "i64":
        indices = site.cast(indices, site.integer)
    return [values, indices]


# Normalisation


@legacy("BatchNormalization")
def _legacy_batch_normalization(
    site: LayerSite, x: Value, *, epsilon: float = number("epsilon", 1e-5)
) -> Value:
    """Normalise channels. The variance is stored as `weights`, and the mean as `biases`."""
    shape = (1, x.type.shape[1])
    variance = site.blob("weights", shape)
    mean = site.blob("biases", shape)
    if variance is None or mean is None:
        raise InvalidOperation("it needs weights and biases")
    offset = 0.0
    scale = 1.0
    return site.last.batch_normalization(x, mean, variance, offset, scale, epsilon=epsilon)


@opsets("BatchNormInference")
def _batch_normalization(site: LayerSite, *, epsilon: float = number("epsilon")) -> Value:
    """Normalise channels of input 0, or of input 2 in operation set 1.

    The other inputs are the scale, the offset, the mean and the variance, in this order.
    """
    data_input = 2 if site.layer.opset == "opset1" else 0
    channel_tensors: list[Value] = []
    for i in range(5):
        if i != data_input:
            channel_tensors.append(site.unsqueezed(site.operand(i), (0,)))
    scale, offset, mean, variance = channel_tensors
    x = site.tensor(data_input)
    return site.last.batch_normalization(x, mean, variance, offset, scale, epsilon=epsilon)


@legacy("ScaleShift")
def _scale_shift(site: LayerSite, x: Value) -> Value:
    """Multiply channels by stored weights, and add stored biases.

    The weights or the biases may be missing. The axis of channels is 0 for a vector, otherwise 1.
    """
    shape = x.type.shape
    channel_axis = 1 if len(shape) > 1 else 0
    channels = 1 if site.has_one_weight() else shape[channel_axis]
    weights_shape = (1, channels) if channel_axis == 1 else (channels,)
    scale = site.blob("weights", weights_shape)
    shift = site.blob("biases", weights_shape)
    steps: list[Any] = []  # each step is (operation name, operands from the second on, attributes)
    no_attributes: dict[str, Any] = {}
    if scale is not None:
        steps.append(("mul", [scale], no_attributes))
    if shift is not None:
        steps.append(("add", [shift], no_attributes))
    if not steps:
        raise InvalidOperation("it has neither weights nor biases")
    return site.chain(x, *steps)


_EXPONENT_ATTRIBUTES: dict[str, Any] = {"alpha": number("alpha"), "beta": number("beta")}


@legacy("Norm", "LRN", **_EXPONENT_ATTRIBUTES)
def _legacy_response(
    site: LayerSite,
    x: Value,
    *,
    size: int = either(integer("local-size", 0), "local_size"),
    bias: float = number("k", 1),
    region: str = word("region", "across", "same"),
    alpha: float,
    beta: float,
) -> Value:
    """Compute x / (bias + alpha * mean(x**2)) ** beta.

    If `region` is "across", the mean is taken over windows of `size` channels. If `region` is
    "same", the mean is taken over windows of `size` items along each spatial axis.
    """
    if size < 1:
        raise InvalidOperation("attribute 'local-size' is missing")
    axes = [1] if region == "across" else range(2, len(x.type.shape))
    return _response(site, x, axes=axes, size=size, bias=bias, alpha=alpha, beta=beta)


@opsets("LRN", **_EXPONENT_ATTRIBUTES)
def _response(
    site: LayerSite,
    x: Value,
    *,
    axes: Sequence[int] = axes_at(1),
    size: int = integer("size"),
    bias: float = number("bias"),
    alpha: float,
    beta: float,
) -> Value:
    """Compute x / (bias + alpha * mean(x**2)) ** beta.

    The mean is taken over windows of `size` items along each of `axes`.
    """
    sizes = [size if axis in axes else 1 for axis in range(len(x.type.shape))]
    return site.last.local_response_normalization(x, size=sizes, alpha=alpha, beta=beta, bias=bias)


def _inverse_root(
    site: LayerSite, squares: Value, epsilon: float, epsilon_mode: str = "add"
) -> Value:
    """Compute the inverse root of squares.

    The formula depends on `epsilon_mode`:

    - "add": 1 / sqrt(squares + epsilon)
    - "max": 1 / sqrt(max(squares, epsilon))
    - "outside_sqrt": 1 / (sqrt(squares) + epsilon)
    """
    step = site.step
    if epsilon_mode == "outside_sqrt":
        return step.rcp(step.add(site.root(squares), epsilon))
    combine = getattr(step, epsilon_mode)  # "add" and "max" are names of operations
    return step.rsqrt(combine(squares, epsilon))


def _centred(site: LayerSite, x: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """Return two tensors, x - mean and the variance. Mean and variance are taken along `axes`."""
    mean, variance = site.step.moments(x, axes=axes)
    return site.step.sub(x, mean), variance


@operator("MVN")
def _mvn(
    site: LayerSite,
    x: Value,
    *,
    epsilon: float = number("eps", 1e-9),
    scales: bool = flag("normalize_variance", True),
) -> Value:
    """Subtract the mean along axes. If `scales`, divide by the standard deviation too.

    In operation set 6, the axes are in input 1. In older sets the axes are all spatial axes, and
    also the axis of channels if the attribute `across_channels` is set.
    """
    epsilon_mode = "add"
    if site.has(1) and not site.net.is_legacy:
        axes = sorted(site.axes(1))
        mode = site.word("eps_mode", "inside_sqrt", "outside_sqrt")
        epsilon_mode = "add" if mode == "inside_sqrt" else mode  # see `_inverse_root`
    else:
        first_axis = 1 if site.flag("across_channels") else 2
        axes = list(range(first_axis, len(site.shape())))
    if not scales:
        return site.last.sub(x, site.step.mean_reduce(x, axes=axes))
    centred, variance = _centred(site, x, axes)
    inverse_deviation = _inverse_root(site, variance, epsilon, epsilon_mode)
    return site.last.mul(centred, inverse_deviation)


def _unit_factor(
    site: LayerSite, x: Value, axes: Sequence[int], epsilon: float, epsilon_mode: str = "add"
) -> Value:
    """Compute 1 / sqrt(sum + epsilon), where sum is the sum of the squares of `x` along `axes`.

    If `axes` is empty, the squares are not summed. If `epsilon_mode` is "max" instead of "add",
    max(sum, epsilon) replaces sum + epsilon.
    """
    squares = site.step.sqr(x)
    if axes:
        squares = site.step.sum_reduce(squares, axes=axes, normalize=False)
    return _inverse_root(site, squares, epsilon, epsilon_mode)


@operator("GRN", axes=(1,), epsilon=number("bias", 1.0), epsilon_mode="add")
@opsets(
    "NormalizeL2",
    axes=axes_at(1),
    epsilon=number("eps"),
    epsilon_mode=word("eps_mode", "add", "max"),
)
def _unit(
    site: LayerSite, x: Value, *, axes: Sequence[int], epsilon: float, epsilon_mode: str
) -> Value:
    """Compute x / sqrt(sum + epsilon), where sum is the sum of the squares of `x` along `axes`.

    If `epsilon_mode` is "max" instead of "add", max(sum, epsilon) replaces sum + epsilon.
    """
    factor = _unit_factor(site, x, sorted(set(axes)), epsilon, epsilon_mode)
    return site.last.mul(x, factor)


@legacy("Normalize")
def _legacy_unit(
    site: LayerSite,
    x: Value,
    *,
    epsilon: float = number("eps", 1e-10),
    is_shared: bool = flag("channel_shared"),
    is_spatial: bool = flag("across_spatial"),
) -> Value:
    """Divide `x` by the root of the sum of its squares, then multiply by a stored scale.

    The sum is taken over channels, and also over the spatial axes if `is_spatial`. If `is_shared`,
    there is one scale for all channels.
    """
    shape = x.type.shape
    has_one_scale = is_shared or site.has_one_weight()
    scale_count = 1 if has_one_scale else shape[1]
    scale = site.blob("weights", (1, scale_count))
    axes = list(range(1, len(shape))) if is_spatial else [1]
    factor = _unit_factor(site, x, axes, epsilon)
    if scale is None:
        return site.last.mul(x, factor)
    unit = site.step.mul(x, factor)
    return site.last.mul(unit, scale)


@opsets("GroupNormalization")
def _group_normalization(
    site: LayerSite,
    x: Value,
    *,
    groups: int = integer("num_groups"),
    epsilon: float = number("epsilon", 1e-5),
) -> Value:
    """Normalise groups of channels, then multiply by input 1 and add input 2.

    Input 0 has shape (batch, channels, ...). In each group, the mean is subtracted from the items,
    and the difference is divided by the standard deviation.
    """
    step = site.step
    _, channels, *extents = x.type.shape
    if groups < 1 or channels % groups:
        raise InvalidOperation(f"'num_groups' {groups} does not divide {channels} channels")
    # `split` has shape (batch, groups, channels / groups, ...).
    split = step.reshape(x, shape=(groups, channels // groups), axis_start=1, axis_count=1)
    axes_in_group = [*range(2, len(extents) + 3)]
    centred, variance = _centred(site, split, axes_in_group)
    normal = step.mul(centred, _inverse_root(site, variance, epsilon))
    normal = step.reshape(normal, shape=(channels,), axis_start=1, axis_count=2)
    scale = site.unsqueezed(site.operand(1), (0,))
    shift = site.unsqueezed(site.operand(2), (0,))
    return site.last.add(step.mul(normal, scale), shift)
