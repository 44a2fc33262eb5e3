"""Normalisation over batches, channels and windows; the losses on softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import show
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.quantizers import MICROSOFT
from nnef_jax.formats.onnx.operators.registry import operator

_SKIPS = 1e-12  # epsilon of sums by default, where other operators have 1e-5


def _behind(site: NodeSite, i: int, axes: int) -> Any:
    """Return an input with so many axes of extent 1 behind its own."""
    rank = site.rank(i)
    return site.unsqueezed(site.operand(i), tuple(range(rank, rank + axes)))


def _standardized(
    site: NodeSite, x: Any, axes: Sequence[int], epsilon: float = 1e-5, *, centred: bool = True
) -> tuple[Any, Any, Any]:
    """Return a tensor of mean 0 and variance 1 along axes, what the mean was, and 1 / deviation.

    One that is not centred keeps its mean, and has a mean square of 1.
    """
    step, axes, mean = site.step, tuple(axes), None
    if centred:
        mean, square = step.moments(x, axes=axes)
        x = step.sub(x, mean)
    else:
        square = step.mean_reduce(step.sqr(x), axes=axes)
    inverse = step.rsqrt(step.add(square, site.number("epsilon", epsilon)))
    return step.mul(x, inverse), mean, inverse


def _stashed(site: NodeSite) -> Any:
    """Return the input in the dtype of the first stage."""
    return site.cast(site.operand(0), site.computed(site.dtype("stash_type", 1)))


def _scaled(site: NodeSite, x: Any, scale: Any, bias: Any, dtype: str = "") -> Any:
    """Return the second stage: x * scale + bias in a dtype, that of the input by default."""
    x, scale, bias = (
        y if y is None else site.cast(y, dtype or site.dtype_of()) for y in (x, scale, bias)
    )
    x = site.step.mul(x, scale)
    return x if bias is None else site.step.add(x, bias)


@operator("BatchNormalization")
def _batch_normalization(site: NodeSite, x: Any) -> Any:
    """Normalise by statistics given, or by those of the batch, which running ones then follow.

    Before version 9 there may be statistics for each item of a sample. Files say that they train
    by `is_test` before version 7, by `training_mode` since 14, and by further outputs between.
    """
    step, epsilon, version = site.step, site.number("epsilon", 1e-5), site.version
    if version >= 14:
        trains = site.flag("training_mode")
    elif version < 7:
        trains = not site.flag("is_test")
    else:
        trains = any(site.is_read(i) for i in range(1, 5))
    dtype = site.dtype_of() if not trains and version < 14 else site.dtype_of(3)
    scale, offset, *given = (
        site.cast(site.unsqueezed(site.operand(i), (0,)), dtype) for i in range(1, 5)
    )
    running: list[Any] = []
    if trains:
        axes = (0, *range(2, site.rank())) if site.flag("spatial", True) else (0,)
        momentum = site.number("momentum", 0.9)
        found = step.moments(site.wide(x), axes=axes)
        found = [site.cast(site.squeezed(new, *axes[1:]), dtype) for new in found]
        running = [
            step.add(step.mul(old, momentum), step.mul(new, 1 - momentum))
            for old, new in zip(given, found, strict=True)
        ]
        running, given = [site.squeezed(y, 0) for y in (*running, *found)], found
    add = site.step_or_last(dtype == site.dtype_of())
    x = add.batch_normalization(site.cast(x, dtype), *given, offset, scale, epsilon=epsilon)
    return (site.cast(x, site.dtype_of()), *running)


@operator("InstanceNormalization")
def _instance_normalization(site: NodeSite, x: Any) -> Any:
    plane = site.rank() - 2
    normal = _standardized(site, site.wide(x), range(2, plane + 2))[0]
    return _scaled(site, normal, _behind(site, 1, plane), _behind(site, 2, plane))


@operator("LayerNormalization")
def _layer_normalization(site: NodeSite, x: Any, scale: Any, bias: Any = None) -> Any:
    """Normalise the axes from one on; return the mean and 1 / deviation too."""
    axes = range(site.axis_of("axis", -1), site.rank())
    found = _standardized(site, _stashed(site), axes)
    return (_scaled(site, found[0], scale, bias), *found[1:])


@operator("RMSNormalization")
@operator("SimplifiedLayerNormalization")
@operator("SimplifiedLayerNormalization", domain=MICROSOFT)
def _rms_normalization(site: NodeSite, x: Any, scale: Any) -> Any:
    """Divide by the root of the mean square over the axes from one on; return 1 / that too."""
    axes = range(site.axis_of("axis", -1), site.rank())
    x = _stashed(site) if site.operator.startswith("RMS") else site.wide(x)
    found = _standardized(site, x, axes, centred=False)
    return _scaled(site, found[0], scale, None), found[2]


def _of_sum(site: NodeSite, x: Any, scale: Any, bias: Any, *, centred: bool = True) -> Any:
    """Normalise the last axis; return the mean and 1 / deviation too."""
    axes = (site.rank(x) - 1,)
    found = _standardized(site, site.wide(x), axes, _SKIPS, centred=centred)
    return (_scaled(site, found[0], scale, bias, site.dtype_of(x)), *found[1:])


@operator("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _skip(site: NodeSite, x: Any, y: Any, scale: Any, *more: Any) -> Any:
    """Normalise a sum; the simplified one has no beta among its inputs, and keeps the mean."""
    centred = site.operator == "SkipLayerNormalization"
    beta, bias, *_ = (*([] if centred else [None]), *more, None, None)
    total = site.step.add(x, y)
    total = total if bias is None else site.step.add(total, bias)
    return (*_of_sum(site, total, scale, beta, centred=centred), total)


@operator("EmbedLayerNormalization", domain=MICROSOFT)
def _embed_layer_normalization(site: NodeSite, words: Any) -> tuple[Any, ...]:
    """Normalise sums of embeddings of words, positions, segments; count the items of a mask."""
    batch, times = site.known_shape()
    places = site.operand(8) if site.has(8) else site.places(times, 1, 2)
    pairs = [(2, words), (3, places), (4, site.optional(1))]
    first, *others = (
        site.step.gather(site.operand(i), x, axis=0) for i, x in pairs if x is not None
    )
    for x in others:
        first = site.step.add(first, x)
    if site.has(7):
        count = site.reshaped(site.total(site.cast(site.operand(7), "int32"), (1,)), (batch,))
    else:
        count = site.filled(0, "int32", (batch,))
    scale, bias = site.operand(5), site.optional(6)
    return _of_sum(site, first, scale, bias)[0], count, first


@operator("GroupNormalization")
def _group_normalization(site: NodeSite, x: Any) -> Any:
    """Normalise groups of channels; before version 21 a group has one scale, then a channel."""
    groups, shape, plane = site.int("num_groups"), site.shape(), site.rank() - 2
    channels = site.known_shape()[1]
    if groups < 1 or channels % groups:
        raise InvalidOperation(f"'num_groups' {groups} does not divide {channels} channels")
    of_groups = site.version < 21
    for i in (1, 2):
        if site.shape(i) != (wanted := (groups if of_groups else channels,)):
            raise InvalidShape(
                f"'{site.node.inputs[i]}' {show(site.shape(i))} must be {show(wanted)} for "
                f"{groups} groups of {show(shape)}"
            )
    x = site.wide(x) if of_groups else _stashed(site)
    split = site.reshaped(x, (groups, channels // groups), 1, 1)
    normal = _standardized(site, split, range(2, plane + 3))[0]
    scale, bias = (_behind(site, i, plane + of_groups) for i in (1, 2))
    if of_groups:
        return site.reshaped(_scaled(site, normal, scale, bias), (channels,), 1, 2)
    return _scaled(site, site.reshaped(normal, (channels,), 1, 2), scale, bias)


@operator("MeanVarianceNormalization")
def _mean_variance_normalization(site: NodeSite, x: Any) -> Any:
    axes, step = tuple(site.axis(a) for a in site.ints("axes", (0, 2, 3))), site.step
    x = site.wide(x)
    mean, variance = step.moments(x, axes=axes)
    deviation = step.add(site.root(variance), 1e-9)
    return site.cast(step.div(step.sub(x, mean), deviation), site.dtype_of())


@operator("LpNormalization")
def _lp_normalization(site: NodeSite, x: Any) -> Any:
    power = site.int("p", 2)
    if power not in (1, 2):
        raise InvalidOperation(f"'p' must be 1 or 2, it is {power}")
    add = site.last.l1_normalization if power == 1 else site.last.l2_normalization
    return add(x, axes=(site.axis_of("axis", -1),), bias=0.0, epsilon=0.0)
