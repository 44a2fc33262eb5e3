"""Meanings of normalisations over batches, channels, layers and groups."""

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
_STASH = dtype("stash_type", 1)  # the dtype in which x is standardised


def _with_last_axes(site: NodeSite, i: int, axes: int) -> Any:
    """Return input `i` with `axes` further axes of extent 1 at the end."""
    rank = site.rank(i)
    return site.unsqueezed(site.operand(i), tuple(range(rank, rank + axes)))


class _Standardized(NamedTuple):
    """The result of `_standardized`: the standardised tensor, the mean, and 1 / deviation.

    The mean and the deviation are those of the tensor before it was standardised.
    """

    items: Any
    mean: Any
    inverse: Any


def _standardized(
    site: NodeSite, x: Tensor, axes: Sequence[int], epsilon: float, *, centred: bool = True
) -> _Standardized:
    """Compute (x - mean) / deviation along axes, where deviation is sqrt(variance + epsilon).

    Return this tensor, the mean and 1 / deviation. If `centred` is False, return x / root, where
    root is sqrt(mean(x^2) + epsilon), None, and 1 / root.
    """
    step = site.step
    axes = tuple(axes)
    mean = None
    if centred:
        mean, mean_square = step.moments(x, axes=axes)
        x = step.sub(x, mean)
    else:
        mean_square = step.mean_reduce(step.sqr(x), axes=axes)
    inverse = step.rsqrt(step.add(mean_square, epsilon))
    return _Standardized(step.mul(x, inverse), mean, inverse)


def _scaled(site: NodeSite, x: Tensor, scale: Tensor, bias: Tensor | None, dtype: str = "") -> Any:
    """Compute x * scale + bias in a dtype, by default the dtype of input 0."""
    dtype = dtype or site.dtype_of()
    x = site.cast(x, dtype)
    scale = site.cast(scale, dtype)
    if bias is None:
        return site.step.mul(x, scale)
    bias = site.cast(bias, dtype)
    return site.step.add(site.step.mul(x, scale), bias)


@operator("BatchNormalization", since=14)
def _batch_normalization(
    site: NodeSite, x: Tensor, *, epsilon: float = _EPSILON, trains: bool = flag("training_mode")
) -> Any:
    """Normalise channels by the running mean and variance, which are inputs 3 and 4.

    If `trains`, the mean and variance of the batch are used instead, and the new running statistics
    and the statistics of the batch are returned too. Before version 9, if the attribute `spatial`
    is 0, each item of a sample has separate statistics.
    """
    dtype_input = 3 if trains or site.version >= 14 else 0
    dtype = site.dtype_of(dtype_input)
    scale, offset, mean, variance = (
        site.cast(site.unsqueezed(site.operand(i), (0,)), dtype) for i in range(1, 5)
    )
    statistics: list[Any] = [mean, variance]
    results: list[Any] = []
    if trains:
        moments = _moments_of_batch(site, x, dtype)
        running = _running(site, statistics, moments)
        results = [site.squeezed(y, 0) for y in (*running, *moments)]
        statistics = moments
    add = site.step_or_last(dtype == site.dtype_of())
    x = add.batch_normalization(site.cast(x, dtype), *statistics, offset, scale, epsilon=epsilon)
    return (site.cast(x, site.dtype_of()), *results)


def _moments_of_batch(site: NodeSite, x: Tensor, dtype: str) -> list[Any]:
    """Return the mean and the variance of each channel over a batch.

    If the attribute `spatial` is 0, return the mean and the variance of each item of a sample.
    """
    spatial = range(2, site.rank()) if site.flag("spatial", True) else ()
    moments = site.step.moments(site.widened(x), axes=(0, *spatial))
    return [site.cast(site.squeezed(moment, *spatial), dtype) for moment in moments]


def _running(site: NodeSite, statistics: Sequence[Tensor], moments: Sequence[Tensor]) -> list[Any]:
    """Compute the new running statistics: old * momentum + moment * (1 - momentum)."""
    step = site.step
    momentum = site.number("momentum", 0.9)
    running: list[Any] = []
    for statistic, moment in zip(statistics, moments, strict=True):
        share = step.mul(statistic, momentum)
        running.append(step.add(share, step.mul(moment, 1 - momentum)))
    return running


@operator("BatchNormalization", since=7)
def _batch_normalization_by_outputs(site: NodeSite, x: Tensor, *, epsilon: float = _EPSILON) -> Any:
    """Normalise channels by running statistics.

    If another node reads an output after the first one, normalise as in training.
    """
    trains = any(site.is_read(i) for i in range(1, 5))
    return _batch_normalization(site, x, epsilon=epsilon, trains=trains)


@operator("BatchNormalization")
def _old_batch_normalization(
    site: NodeSite, x: Tensor, *, epsilon: float = _EPSILON, is_test: bool = flag("is_test")
) -> Any:
    return _batch_normalization(site, x, epsilon=epsilon, trains=not is_test)


@operator("InstanceNormalization")
def _instance_normalization(site: NodeSite, x: Tensor, *, epsilon: float = _EPSILON) -> Any:
    plane = site.rank() - 2
    normal = _standardized(site, site.widened(x), range(2, plane + 2), epsilon).items
    return _scaled(site, normal, _with_last_axes(site, 1, plane), _with_last_axes(site, 2, plane))


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
    """Normalise over `axis` and all later axes; return also the mean and 1 / deviation."""
    x = site.cast(x, site.computation_dtype(stash))
    x, mean, inverse = _standardized(site, x, range(axis, site.rank()), epsilon)
    return _scaled(site, x, scale, bias), mean, inverse


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
    return _normalized_by_mean_square(site, site.widened(x), scale, axis=axis, epsilon=epsilon)


def _normalized_by_mean_square(
    site: NodeSite, x: Tensor, scale: Tensor, *, axis: int, epsilon: float
) -> Any:
    """Divide x by the root of the mean square over `axis` and all later axes; multiply by `scale`.

    Return also 1 / root.
    """
    axes = range(axis, site.rank())
    x, _, inverse = _standardized(site, x, axes, epsilon, centred=False)
    return _scaled(site, x, scale, None), inverse


def _normalized_sum(
    site: NodeSite,
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    epsilon: float,
    *,
    centred: bool = True,
) -> Any:
    """Normalise `x`, a sum of tensors, over its last axis; return also the mean and 1 / deviation.

    If `centred` is False, the mean is not subtracted, and None is returned for it.
    """
    axes = (site.rank(x) - 1,)
    normal, mean, inverse = _standardized(site, site.widened(x), axes, epsilon, centred=centred)
    return _scaled(site, normal, scale, bias, site.dtype_of(x)), mean, inverse


def _sum(site: NodeSite, x: Tensor, y: Tensor, bias: Tensor | None) -> Any:
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
    total = _sum(site, x, y, bias)
    return (*_normalized_sum(site, total, scale, beta, epsilon), total)


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
    total = _sum(site, x, y, bias)
    return (*_normalized_sum(site, total, scale, None, epsilon, centred=False), total)


@operator("EmbedLayerNormalization", domain=MICROSOFT)
def _embed_layer_normalization(
    site: NodeSite, words: Tensor, *, epsilon: float = _EPSILON_OF_SUMS
) -> tuple[Any, ...]:
    """Normalise the sums of the embeddings of words, positions and segments.

    Return also the lengths of the sequences, which are computed from the mask in input 7, and the
    sums. The results have shape (batch, time, items), (batch,) and (batch, time, items).
    """
    batch, times = site.known_shape()
    positions = site.operand(8) if site.has(8) else site.positions(times, 1, 2)
    embeddings = [
        site.step.gather(site.operand(2), words, axis=0),
        site.step.gather(site.operand(3), positions, axis=0),
    ]
    if site.has(1):
        embeddings.append(site.step.gather(site.operand(4), site.input(1), axis=0))
    total = embeddings[0]
    for embedding in embeddings[1:]:
        total = site.step.add(total, embedding)
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

    The result has shape (batch, groups, channels / groups, ...). Scale and bias must have an item
    for each channel if `by_channel` is set, otherwise an item for each group.
    """
    channels = site.known_shape()[1]
    if groups < 1 or channels % groups:
        raise InvalidOperation(f"'num_groups' {groups} does not divide {channels} channels")
    shape = (channels if by_channel else groups,)
    for i in (1, 2):
        if site.shape(i) != shape:
            raise InvalidShape(
                f"'{site.node.inputs[i]}' {show(site.shape(i))} must be {show(shape)} for "
                f"{groups} groups of {show(site.shape())}"
            )
    x = site.reshaped(x, (groups, channels // groups), 1, 1)
    return _standardized(site, x, range(2, site.rank() + 1), epsilon).items, channels


@operator("GroupNormalization", since=21)
def _group_normalization(
    site: NodeSite,
    x: Tensor,
    *,
    groups: int = integer("num_groups"),
    epsilon: float = _EPSILON,
    stash: str = _STASH,
) -> Any:
    x = site.cast(x, site.computation_dtype(stash))
    normal, channels = _grouped(site, x, groups, epsilon, by_channel=True)
    scale, bias = (_with_last_axes(site, i, site.rank() - 2) for i in (1, 2))
    return _scaled(site, site.reshaped(normal, (channels,), 1, 2), scale, bias)


@operator("GroupNormalization")
def _group_normalization_by_group(
    site: NodeSite, x: Tensor, *, groups: int = integer("num_groups"), epsilon: float = _EPSILON
) -> Any:
    normal, channels = _grouped(site, site.widened(x), groups, epsilon, by_channel=False)
    scale, bias = (_with_last_axes(site, i, site.rank() - 1) for i in (1, 2))
    return site.reshaped(_scaled(site, normal, scale, bias), (channels,), 1, 2)


@operator("MeanVarianceNormalization")
def _mean_variance_normalization(
    site: NodeSite, x: Tensor, *, axes: Sequence[int] = integers("axes", (0, 2, 3))
) -> Any:
    step = site.step
    x = site.widened(x)
    mean, variance = step.moments(x, axes=tuple(map(site.axis, axes)))
    deviation = step.add(site.root(variance), 1e-9)
    return site.cast(step.div(step.sub(x, mean), deviation), site.dtype_of())


@operator("LpNormalization")
def _lp_normalization(
    site: NodeSite, x: Tensor, *, axis: int = axis("axis", -1), power: int = integer("p", 2)
) -> Any:
    if power not in (1, 2):
        raise InvalidOperation(f"'p' must be 1 or 2, it is {power}")
    add = site.last.l1_normalization if power == 1 else site.last.l2_normalization
    return add(x, axes=(axis,), bias=0.0, epsilon=0.0)
