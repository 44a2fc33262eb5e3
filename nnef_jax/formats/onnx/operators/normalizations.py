"""Normalisation over batches, channels and windows; softmax and the losses on it; dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import show
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators import operator


def _behind(site: NodeSite, i: int, axes: int) -> Any:
    """Return an input with so many axes of extent 1 behind its own."""
    rank = site.rank(i)
    return site.unsqueezed(site.operand(i), tuple(range(rank, rank + axes)))


def _standardized(
    site: NodeSite, x: Any, axes: Sequence[int], epsilon: float
) -> tuple[Any, Any, Any]:
    """Return a tensor of mean 0 and variance 1 along axes, what the mean was, and 1 / deviation."""
    mean, variance = site.insert("moments", {"input": x}, axes=tuple(axes))
    inverse = site.term("rsqrt", site.term("add", variance, epsilon))
    return site.term("mul", site.term("sub", x, mean), inverse), mean, inverse


def _wide(site: NodeSite) -> Any:
    """Return the input in 32 bits at least."""
    is_half = site.dtype_of() in ("float16", "bfloat16")
    return site.cast(site.operand(0), "float32") if is_half else site.operand(0)


def _stashed(site: NodeSite) -> Any:
    """Return the input in the dtype of the first stage."""
    return site.cast(site.operand(0), site.computed(site.dtype("stash_type", 1)))


def _scaled(site: NodeSite, x: Any, scale: Any, bias: Any) -> Any:
    """Return the second stage: x * scale + bias in the dtype of the input."""
    x = site.cast(x, site.dtype_of())
    scale, bias = (y if y is None else site.cast(y, site.dtype_of()) for y in (scale, bias))
    x = site.term("mul", x, scale)
    return x if bias is None else site.term("add", x, bias)


@operator("BatchNormalization")
def _batch_normalization(site: NodeSite) -> Any:
    """Normalise by statistics given, or by those of the batch, which running ones then follow.

    Before version 9 there may be statistics for each item of a sample. Files say that they train
    by `is_test` before version 7, by `training_mode` since 14, and by further outputs between.
    """
    rank, epsilon, version = site.rank(), site.number("epsilon", 1e-5), site.version
    if version >= 14:
        trains = site.flag("training_mode")
    elif version < 7:
        trains = not site.flag("is_test")
    else:
        trains = any(site.wants(i) for i in range(1, 5))
    names = ("scale", "offset", "mean", "variance")
    dtype = site.dtype_of() if not trains and version < 14 else site.dtype_of(3)
    given = {
        name: site.cast(site.unsqueezed(site.operand(i + 1), (0,)), dtype)
        for i, name in enumerate(names)
    }
    x = site.cast(site.operand(0), dtype)
    running: list[Any] = []
    if trains:
        is_spatial = site.flag("spatial", True)
        axes = (0, *range(2, rank)) if is_spatial else (0,)
        squeezed = axes[1:]
        momentum = site.number("momentum", 0.9)
        found = site.insert("moments", {"input": _wide(site)}, axes=axes)
        for name, new in zip(("mean", "variance"), found, strict=True):
            new = site.insert("squeeze", {"input": new}, axes=squeezed) if squeezed else new
            new = site.cast(new, dtype)
            kept = site.term("mul", given[name], momentum)
            mixed = site.term("add", kept, site.term("mul", new, 1 - momentum))
            running.append(site.insert("squeeze", {"input": mixed}, axes=(0,)))
            given[name] = new
        running += [site.insert("squeeze", {"input": given[n]}, axes=(0,)) for n in names[2:]]
    add = site.emit if dtype == site.dtype_of() else site.insert
    result = add("batch_normalization", {"input": x, **given}, epsilon=epsilon)
    return (site.cast(result, site.dtype_of()), *running)


@operator("InstanceNormalization")
def _instance_normalization(site: NodeSite) -> Any:
    plane = site.rank() - 2
    axes, epsilon = range(2, plane + 2), site.number("epsilon", 1e-5)
    normal = _standardized(site, _wide(site), axes, epsilon)[0]
    return _scaled(site, normal, _behind(site, 1, plane), _behind(site, 2, plane))


@operator("LayerNormalization")
def _layer_normalization(site: NodeSite) -> Any:
    """Normalise the axes from one on; return the mean and 1 / deviation too."""
    axes = range(site.axis(site.int("axis", -1)), site.rank())
    found = _standardized(site, _stashed(site), axes, site.number("epsilon", 1e-5))
    bias = site.operand(2) if site.has(2) else None
    return (_scaled(site, found[0], site.operand(1), bias), *found[1:])


@operator("RMSNormalization")
def _rms_normalization(site: NodeSite) -> Any:
    axes = tuple(range(site.axis(site.int("axis", -1)), site.rank()))
    x = _stashed(site)
    squares = site.insert("mean_reduce", {"input": site.term("sqr", x)}, axes=axes)
    inverse = site.term("rsqrt", site.term("add", squares, site.number("epsilon", 1e-5)))
    return _scaled(site, site.term("mul", x, inverse), site.operand(1), None)


@operator("GroupNormalization")
def _group_normalization(site: NodeSite) -> Any:
    """Normalise groups of channels; before version 21 a group has one scale, then a channel."""
    groups, epsilon = site.int("num_groups"), site.number("epsilon", 1e-5)
    shape, plane = site.shape(), site.rank() - 2
    channels = site.known_shape()[1]
    if groups < 1 or channels % groups:
        raise InvalidOperation(f"'num_groups' {groups} does not divide {channels} channels")
    x = _stashed(site) if site.version >= 21 else _wide(site)
    split = site.insert(
        "reshape", {"input": x}, shape=(groups, channels // groups), axis_start=1, axis_count=1
    )
    normal = _standardized(site, split, range(2, plane + 3), epsilon)[0]
    of_groups = site.version < 21
    for i in (1, 2):
        if site.shape(i) != (wanted := (groups if of_groups else channels,)):
            raise InvalidShape(
                f"'{site.node.inputs[i]}' {show(site.shape(i))} must be {show(wanted)} for "
                f"{groups} groups of {show(shape)}"
            )
    if of_groups:
        scale, bias = (_behind(site, i, plane + 1) for i in (1, 2))
        normal = _scaled(site, normal, scale, bias)
    merged = site.insert(
        "reshape", {"input": normal}, shape=(channels,), axis_start=1, axis_count=2
    )
    if of_groups:
        return merged
    return _scaled(site, merged, _behind(site, 1, plane), _behind(site, 2, plane))


@operator("MeanVarianceNormalization")
def _mean_variance_normalization(site: NodeSite) -> Any:
    axes = tuple(site.axis(a) for a in site.ints("axes", (0, 2, 3)))
    x = _wide(site)
    mean, variance = site.insert("moments", {"input": x}, axes=axes)
    deviation = site.term("add", site.term("sqrt", variance), 1e-9)
    return site.cast(site.term("div", site.term("sub", x, mean), deviation), site.dtype_of())


@operator("LpNormalization")
def _lp_normalization(site: NodeSite) -> Any:
    power, axes = site.int("p", 2), (site.axis(site.int("axis", -1)),)
    if power not in (1, 2):
        raise InvalidOperation(f"'p' must be 1 or 2, it is {power}")
    operands = {"input": site.operand(0)}
    return site.emit(f"l{power}_normalization", operands, axes=axes, bias=0.0, epsilon=0.0)


@operator("LRN")
def _lrn(site: NodeSite) -> Any:
    size = (1, site.int("size"), *[1] * (site.rank() - 2))
    return site.emit(
        "local_response_normalization", {"input": site.operand(0)}, size=size,
        alpha=site.number("alpha", 1e-4), beta=site.number("beta", 0.75),
        bias=site.number("bias", 1),
    )  # fmt: skip


@operator("Softmax")
def _softmax(site: NodeSite) -> Any:
    return site.emit("softmax", {"x": site.operand(0)}, axes=_classes(site))


@operator("LogSoftmax")
def _log_softmax(site: NodeSite) -> Any:
    return site.emit("log_softmax", {"x": site.operand(0)}, axes=_classes(site))


def _classes(site: NodeSite) -> tuple[int, ...]:
    """Return the axis of classes; before version 13 all from one on."""
    if site.version >= 13:
        return (site.axis(site.int("axis", -1)),)
    return tuple(range(site.axis(site.int("axis", 1)), site.rank()))


@operator("NegativeLogLikelihoodLoss")
def _negative_log_likelihood(site: NodeSite) -> Any:
    return _loss(site, site.operand(0))


@operator("SoftmaxCrossEntropyLoss")
def _softmax_cross_entropy(site: NodeSite) -> Any:
    """Return the loss and the logarithms of probabilities."""
    logarithms = site.insert("log_softmax", {"x": site.operand(0)}, axes=(1,))
    return _loss(site, logarithms), logarithms


def _loss(site: NodeSite, logarithms: Any) -> Any:
    """Return minus the weighted logarithms of targets, or their sum, or that over all weights."""
    reduction = site.choice("reduction", "mean", "sum", "none", default="mean")
    target = site.operand(1)
    keeps: Any = None

    def kept(x: Any, other: Any) -> Any:
        return x if keeps is None else site.chosen(keeps, x, other)

    if "ignore_index" in site.node.attributes:
        keeps = site.term("ne", target, site.int("ignore_index"))
        target = kept(target, 0)
    places = {"input": logarithms, "indices": site.unsqueezed(target, (1,))}
    chosen = site.insert("gather_elements", places, axis=1)
    chosen = site.insert("squeeze", {"input": chosen}, axes=(1,))
    weight: Any = None
    if site.has(2):
        weight = site.insert("gather", {"input": site.operand(2), "indices": target}, axis=0)
        chosen = site.term("mul", chosen, weight)
    losses = kept(site.term("neg", chosen), 0)
    if reduction == "none":
        return losses
    axes = tuple(range(site.rank(losses)))

    def total(x: Any) -> Any:
        x = site.insert("sum_reduce", {"input": x}, axes=axes, normalize=False)
        return site.reshaped(x, ())

    if reduction == "sum":
        return total(losses)
    if weight is None and keeps is None:
        mean = site.insert("mean_reduce", {"input": losses}, axes=axes)
        return site.reshaped(mean, ())
    if weight is None:
        weight = site.cast(keeps, site.dtype_of(logarithms))
    return site.term("div", total(losses), total(kept(weight, 0)))
