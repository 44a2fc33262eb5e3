"""Functions for normalisations over batches, channels, layers and groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import show
from nnef_jax.flattening.operators.attributes import axis, dtype, flag, integer, integers, number
from nnef_jax.flattening.site import Tensor
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.quantizers import MICROSOFT
from nnef_jax.formats.onnx.operators.registry import operator

_EPSILON = number("epsilon", 1e-5)
_EPSILON_OF_SUMS = number("epsilon", 1e-12)
_STASH = dtype("stash_type", 1)  # the dtype in which a tensor is standardised


def _with_last_axes(site: NodeSite, i: int, count: int) -> Any:
    """Append `count` new axes of extent 1 to the axes of input `i`."""
    rank = site.rank(i)
    return site.unsqueezed(site.operand(i), tuple(range(rank, rank + count)))


class _Standardized(NamedTuple):
    """A standardised tensor, and the mean and 1 / deviation of the tensor before standardising."""

    items: Any
    mean: Any
    inverse: Any


def _standardized(
    site: NodeSite, x: Tensor, axes: Sequence[int], epsilon: float, *, centred: bool = True
) -> _Standardized:
    """Compute (x - mean) / deviation along axes, with deviation = sqrt(variance + epsilon).

    If `centred` is False, compute x / deviation, with deviation = sqrt(mean(x^2) + epsilon). Then
    the mean in the result is None.
    """
    step = site.step
    axes = tuple(axes)
    if centred:
        mean, variance = step.moments(x, axes=axes)
        x = step.sub(x, mean)
    else:
        mean = None
        variance = step.mean_reduce(step.sqr(x), axes=axes)  # the variance around 0
    inverse = step.rsqrt(step.add(variance, epsilon))
    return _Standardized(step.mul(x, inverse), mean, inverse)


def _scaled(site: NodeSite, x: Tensor, scale: Tensor, bias: Tensor | None, dtype: str = "") -> Any:
    """Compute x * scale + bias in a dtype, by default the dtype of input 0.

    If the bias is None, compute x * scale.
    """
    dtype = dtype or site.dtype_of()
    x = site.cast(x, dtype)
    scale = site.cast(scale, dtype)
    if bias is None:
        return site.step.mul(x, scale)
    bias = site.cast(bias, dtype)
    product = site.step.mul(x, scale)
    return site.step.add(product, bias)


@operator("BatchNormalization", since=14)
def _batch_normalization(
    site: NodeSite, x: Tensor, *, epsilon: float = _EPSILON, trains: bool = flag("training_mode")
) -> Any:
    """Normalise channels by the running mean and variance, which are inputs 3 and 4.

    Inputs 1 and 2 are the scale and the offset of the normalised channels. If `trains`, channels
    are normalised by the mean and variance of the batch. Then the new running mean and variance,
    and the mean and variance of the batch, are returned too.
    """
    # In training, or since version 14, x is normalised in the dtype of the running statistics.
    # Otherwise x is normalised in its own dtype.
    dtype_input = 3 if trains or site.version >= 14 else 0
    dtype = site.dtype_of(dtype_input)
    vectors: list[Any] = []  # of shape (1, channels)
    for i in range(1, 5):  # scale, offset, mean and variance
        vector = site.unsqueezed(site.operand(i), (0,))
        vectors.append(site.cast(vector, dtype))
    scale, offset, mean, variance = vectors
    further_results: list[Any] = []
    if trains:
        running = [mean, variance]
        mean, variance = _moments_of_batch(site, x, dtype)
        new_running = _running(site, running, [mean, variance])
        further_results = [site.squeezed(y, 0) for y in (*new_running, mean, variance)]
    result_dtype = site.dtype_of()
    needs_cast = dtype != result_dtype
    add = site.step_or_last(is_last=not needs_cast)
    x = site.cast(x, dtype)
    normal = add.batch_normalization(x, mean, variance, offset, scale, epsilon=epsilon)
    return (site.cast(normal, result_dtype), *further_results)


def _moments_of_batch(site: NodeSite, x: Tensor, dtype: str) -> list[Any]:
    """Return the mean and the variance of each channel over a batch.

    Each result has shape (1, channels). Before version 9, the attribute `spatial` may be 0. The
    moments are then taken only over the batch: there is a mean for each channel and position.
    """
    spatial_axes = range(2, site.rank()) if site.flag("spatial", True) else ()
    moments = site.step.moments(site.widened(x), axes=(0, *spatial_axes))
    return [site.cast(site.squeezed(moment, *spatial_axes), dtype) for moment in moments]


def _running(site: NodeSite, statistics: Sequence[Tensor], moments: Sequence[Tensor]) -> list[Any]:
    """Compute the new running statistics: statistic * momentum + moment * (1 - momentum).

    `statistics` are the old running mean and variance, and `moments` are the mean and variance of a
    batch.
    """
    step = site.step
    momentum = site.number("momentum", 0.9)
    new_statistics: list[Any] = []
    for statistic, moment in zip(statistics, moments, strict=True):
        old_share = step.mul(statistic, momentum)
        new_share = step.mul(moment, 1 - momentum)
        new_statistics.append(step.add(old_share, new_share))
    return new_statistics


@operator("BatchNormalization", since=7)
def _batch_normalization_by_outputs(site: NodeSite, x: Tensor, *, epsilon: float = _EPSILON) -> Any:
    """Normalise channels by running statistics.

    If an output after the first one has a name, normalise as in training.
    """
    trains = any(site.is_read(i) for i in range(1, 5))
    return _batch_normalization(site, x, epsilon=epsilon, trains=trains)


@operator("BatchNormalization")
def _old_batch_normalization(
    site: NodeSite, x: Tensor, *, epsilon: float = _EPSILON, is_test: bool = flag("is_test")
) -> Any:
    """Normalise channels as before version 7: as in training, unless `is_test`."""
    return _batch_normalization(site, x, epsilon=epsilon, trains=not is_test)


@operator("InstanceNormalization")
def _instance_normalization(site: NodeSite, x: Tensor, *, epsilon: float = _EPSILON) -> Any:
    """Normalise each channel of each sample, then multiply by input 1 and add input 2."""
    spatial_axes = range(2, site.rank())
    normal = _standardized(site, site.widened(x), spatial_axes, epsilon).items
    scale = _with_last_axes(site, 1, len(spatial_axes))
    bias = _with_last_axes(site, 2, len(spatial_axes))
    return _scaled(site, normal, scale, bias)


@operator("LayerNormalization")
def _layer_normalization(
    site: NodeSite,
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    axis: int = axis("axis", -1),
    epsilon: float = _EPSILON,
    stash: str = _STASH,
) -> Any:
    """Normalise over `axis` and all later axes, then multiply by `scale` and add `bias`.

    Return the result, the mean and 1 / deviation. `stash` is the dtype in which x is normalised.
    """
    x = site.cast(x, site.computation_dtype(stash))
    axes = range(axis, site.rank())
    normal, mean, inverse = _standardized(site, x, axes, epsilon)
    return _scaled(site, normal, scale, bias), mean, inverse


@operator("RMSNormalization")
def _rms_normalization(
    site: NodeSite,
    x: Tensor,
    scale: Tensor,
    *,
    axis: int = axis("axis", -1),
    epsilon: float = _EPSILON,
    stash: str = _STASH,
) -> Any:
    """Divide x by its root mean square over `axis` and all later axes; multiply by `scale`.

    `stash` is the dtype in which the quotient is computed.
    """
    x = site.cast(x, site.computation_dtype(stash))
    return _normalized_by_mean_square(site, x, scale, axis=axis, epsilon=epsilon)


@operator("SimplifiedLayerNormalization")
@operator("SimplifiedLayerNormalization", domain=MICROSOFT)
def _simplified_layer_normalization(
    site: NodeSite,
    x: Tensor,
    scale: Tensor,
    *,
    axis: int = axis("axis", -1),
    epsilon: float = _EPSILON,
) -> Any:
    """Divide x by its root mean square over `axis` and all later axes; multiply by `scale`."""
    return _normalized_by_mean_square(site, site.widened(x), scale, axis=axis, epsilon=epsilon)


def _normalized_by_mean_square(
    site: NodeSite, x: Tensor, scale: Tensor, *, axis: int, epsilon: float
) -> Any:
    """Divide x by its root mean square over `axis` and all later axes, and multiply by `scale`.

    Return the result and 1 / root mean square.
    """
    axes = range(axis, site.rank())
    normal, _, inverse = _standardized(site, x, axes, epsilon, centred=False)
    return _scaled(site, normal, scale, bias=None), inverse


def _normalized_sum(
    site: NodeSite,
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    epsilon: float,
    *,
    centred: bool = True,
) -> Any:
    """Normalise `x`, a sum of tensors, over its last axis; multiply by `scale` and add `bias`.

    Return the result, the mean and 1 / deviation. If `centred` is False, the mean is not
    subtracted, and None is returned in its place.
    """
    last_axis = (site.rank(x) - 1,)
    normal, mean, inverse = _standardized(
        site, site.widened(x), last_axis, epsilon, centred=centred
    )
    result = _scaled(site, normal, scale, bias, dtype=site.dtype_of(x))
    return result, mean, inverse


def _sum(site: NodeSite, x: Tensor, y: Tensor, bias: Tensor | None) -> Any:
    """Compute x + y + bias. If the bias is None, it is left out."""
    total = site.step.add(x, y)
    return total if bias is None else site.step.add(total, bias)


@operator("SkipLayerNormalization", domain=MICROSOFT)
def _skip_layer_normalization(
    site: NodeSite,
    x: Tensor,
    y: Tensor,
    scale: Tensor,
    beta: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = _EPSILON_OF_SUMS,
) -> Any:
    """Normalise x + y + bias, then multiply by `scale` and add `beta`.

    Return the result, the mean, 1 / deviation, and the sum before it was normalised.
    """
    total = _sum(site, x, y, bias)
    normal, mean, inverse = _normalized_sum(site, total, scale, beta, epsilon)
    return normal, mean, inverse, total


@operator("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _skip_simplified_layer_normalization(
    site: NodeSite,
    x: Tensor,
    y: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    epsilon: float = _EPSILON_OF_SUMS,
) -> Any:
    """Divide x + y + bias by its root mean square, then multiply by `scale`.

    Return the result, None, 1 / root mean square, and the sum before it was normalised.
    """
    total = _sum(site, x, y, bias)
    normal, _, inverse = _normalized_sum(
        site, total, scale, bias=None, epsilon=epsilon, centred=False
    )
    return normal, None, inverse, total


@operator("EmbedLayerNormalization", domain=MICROSOFT)
def _embed_layer_normalization(
    site: NodeSite, words: Tensor, *, epsilon: float = _EPSILON_OF_SUMS
) -> tuple[Any, ...]:
    """Normalise the sum of the embeddings of a word, its position and its segment.

    The sum is computed for each word. Inputs 0, 1 and 8 are the indices of words, segments and
    positions. Inputs 2, 3 and 4 are the embeddings of words, positions and segments.

    Return the normalised sums, the length of each sequence, and the sums. The results have shape
    (batch, time, items), (batch,) and (batch, time, items). Input 7 is a mask. The length of a
    sequence is the sum of its mask. Without input 7, the lengths are 0.
    """
    batch, times = site.known_shape()
    positions = site.operand(8) if site.has(8) else site.positions(times, axis=1, rank=2)
    step = site.step
    word_embeddings = step.gather(site.operand(2), words, axis=0)
    position_embeddings = step.gather(site.operand(3), positions, axis=0)
    segment_embeddings = None
    if site.has(1):
        segment_embeddings = step.gather(site.operand(4), site.input(1), axis=0)
    total = step.add(word_embeddings, position_embeddings)
    if segment_embeddings is not None:
        total = step.add(total, segment_embeddings)
    if site.has(7):
        mask = site.cast(site.operand(7), "int32")
        lengths = site.reshaped(site.total(mask, (1,)), (batch,))
    else:
        lengths = site.filled(0, "int32", (batch,))
    normal, _, _ = _normalized_sum(site, total, site.operand(5), site.optional(6), epsilon)
    return normal, lengths, total


def _grouped(
    site: NodeSite, x: Tensor, groups: int, epsilon: float, *, by_channel: bool
) -> tuple[Any, int]:
    """Normalise the groups of channels; return the result and the number of channels.

    The result has shape (batch, groups, channels / groups, ...). Inputs 1 and 2 are the scale and
    the bias. If `by_channel`, the scale and the bias must have an item for each channel. Otherwise
    they must have an item for each group. Raises InvalidShape if the scale or the bias has another
    shape.
    """
    channels = site.known_shape()[1]
    if groups < 1 or channels % groups != 0:
        raise InvalidOperation(f"'num_groups' {groups} does not divide {channels} channels")
    due_shape = (channels,) if by_channel else (groups,)
    for i in (1, 2):
        if site.shape(i) != due_shape:
            raise InvalidShape(
                f"'{site.node.inputs[i]}' {show(site.shape(i))} must be {show(due_shape)} for "
                f"{groups} groups of {show(site.shape())}"
            )
    # Axis 1, the channels, is replaced by two axes: groups, and channels of a group.
    split = site.reshaped(x, (groups, channels // groups), first=1, count=1)
    axes_of_group = range(2, site.rank() + 1)
    return _standardized(site, split, axes_of_group, epsilon).items, channels


@operator("GroupNormalization", since=21)
def _group_normalization(
    site: NodeSite,
    x: Tensor,
    *,
    groups: int = integer("num_groups"),
    epsilon: float = _EPSILON,
    stash: str = _STASH,
) -> Any:
    """Normalise groups of channels. Scale and bias have an item for each channel."""
    x = site.cast(x, site.computation_dtype(stash))
    normal, channels = _grouped(site, x, groups, epsilon, by_channel=True)
    spatial_rank = site.rank() - 2
    scale = _with_last_axes(site, 1, spatial_rank)
    bias = _with_last_axes(site, 2, spatial_rank)
    # Axes 1 and 2, the groups and the channels of a group, become one axis.
    normal = site.reshaped(normal, (channels,), first=1, count=2)
    return _scaled(site, normal, scale, bias)


@operator("GroupNormalization")
def _group_normalization_by_group(
    site: NodeSite, x: Tensor, *, groups: int = integer("num_groups"), epsilon: float = _EPSILON
) -> Any:
    """Normalise groups of channels. Scale and bias have an item for each group."""
    normal, channels = _grouped(site, site.widened(x), groups, epsilon, by_channel=False)
    # `normal` has shape (batch, groups, channels of a group, ...). Scale and bias, of shape
    # (groups,), get an axis for each axis after the groups.
    axis_count = site.rank() - 1
    scale = _with_last_axes(site, 1, axis_count)
    bias = _with_last_axes(site, 2, axis_count)
    scaled = _scaled(site, normal, scale, bias)
    # Axes 1 and 2, the groups and the channels of a group, become one axis.
    return site.reshaped(scaled, (channels,), first=1, count=2)


@operator("MeanVarianceNormalization")
def _mean_variance_normalization(
    site: NodeSite, x: Tensor, *, axes: Sequence[int] = integers("axes", (0, 2, 3))
) -> Any:
    """Compute (x - mean) / (deviation + 1e-9) along axes."""
    step = site.step
    x = site.widened(x)
    positive_axes = tuple(site.axis(axis) for axis in axes)
    mean, variance = step.moments(x, axes=positive_axes)
    deviation = step.add(site.root(variance), 1e-9)
    normal = step.div(step.sub(x, mean), deviation)
    return site.cast(normal, site.dtype_of())


@operator("LpNormalization")
def _lp_normalization(
    site: NodeSite, x: Tensor, *, axis: int = axis("axis", -1), power: int = integer("p", 2)
) -> Any:
    """Divide x by its norm along an axis.

    The norm is the sum of absolute values if `power` is 1, otherwise the root of the sum of
    squares.
    """
    if power not in (1, 2):
        raise InvalidOperation(f"'p' must be 1 or 2, it is {power}")
    if power == 1:
        return site.last.l1_normalization(x, axes=(axis,), bias=0.0, epsilon=0.0)
    return site.last.l2_normalization(x, axes=(axis,), bias=0.0, epsilon=0.0)
