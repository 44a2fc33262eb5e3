"""Reductions along axes, places of extremes, and normalisation."""

from __future__ import annotations

from collections.abc import Sequence

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN, volume
from lowering.graph import Value, is_integer
from nnef_jax.flattening.along_axes import reduced
from nnef_jax.formats.openvino.layer_site import LayerSite
from nnef_jax.formats.openvino.layers.registry import legacy, operator, opsets

# What is done with items before, the reduction, and what with its results.
_REDUCTIONS = {
    "ReduceMax": ("", "max_reduce", ""), "ReduceMin": ("", "min_reduce", ""),
    "ReduceMean": ("", "mean_reduce", ""), "ReduceProd": ("", "product_reduce", ""),
    "ReduceSum": ("", "sum_reduce", ""), "ReduceSumSquare": ("sqr", "sum_reduce", ""),
    "ReduceL1": ("abs", "sum_reduce", ""), "ReduceL2": ("sqr", "sum_reduce", "sqrt"),
    "ReduceLogSum": ("", "sum_reduce", "log"), "ReduceLogSumExp": ("exp", "sum_reduce", "log"),
    **dict.fromkeys(("ReduceLogicalAnd", "ReduceAnd"), ("", "all_reduce", "")),
    **dict.fromkeys(("ReduceLogicalOr", "ReduceOr"), ("", "any_reduce", "")),
}  # fmt: skip
_BY_KIND = {type.lower(): how for type, how in _REDUCTIONS.items()}


@operator(*_REDUCTIONS)
def _reduced(site: LayerSite, x: Value) -> Value:
    axes, how, dtype = tuple(sorted(set(site.axes(1)))), _BY_KIND[site.operator], x.type.dtype
    if not axes:
        return site.last.copy(x)
    _, kind, after = how
    back = ""  # what the result is cast back to
    if kind in ("all_reduce", "any_reduce") and dtype != "bool":
        x, back = site.truths(x), dtype
    elif is_integer(dtype) and (kind == "mean_reduce" or after):
        x, back = site.step.cast(x, dtype=site.real), dtype
    keeps = site.flag("keep_dims", site.net.is_legacy)
    return reduced(site, x, axes, how, keeps=keeps, back=back)


@legacy("ArgMax")
def _arg_max(site: LayerSite) -> Value:
    """Return places of the largest items, as real numbers, and their values if asked for."""
    x, count, step = site.tensor(0), site.int("top_k", 1), site.step
    with_values = site.flag("out_max_val")
    if "axis" in site.layer.attributes:
        values, places = step.topk(x, k=count, axis=site.axis_of("axis"), largest=True)
        return site.last.copy(values) if with_values else site.last.cast(places, dtype=site.real)
    shape = x.type.shape
    flat = site.reshaped(x, (shape[0], 1, volume(shape[1:])))
    values, places = step.topk(flat, k=count, axis=2, largest=True)
    places = step.cast(places, dtype=site.real)
    return site.last.concat([places, values], axis=1) if with_values else site.last.copy(places)


@operator("TopK")
def _top_k(site: LayerSite) -> list[Value]:
    """Return the largest or smallest items along an axis and their places."""
    x, count = site.tensor(0), site.integers(1)
    if len(count) != 1:
        raise InvalidOperation("'k' must be one number")
    axis = site.axis_of("axis")
    largest = site.choice("mode", "max", "min", default="max") == "max"
    k = count[0] if x.type.shape[axis] is UNKNOWN else min(count[0], x.type.shape[axis])
    found = site.last.topk(x, k=k, axis=axis, largest=largest)
    if site.choice("sort", "value", "index", "none", default="value") == "index":
        order = site.step.topk(found[1], k=k, axis=axis, largest=False)[1]
        found = [site.step.gather_elements(x, order, axis=axis) for x in found]
    values, places = found
    if site.text("index_element_type", "i32") == "i64":
        places = site.cast(places, site.integer)
    return [values, places]


# Normalisation


@legacy("BatchNormalization")
@opsets("BatchNormInference")
def _batch_normalization(site: LayerSite) -> Value:
    """Normalise channels; set 1 has gamma and beta first, set 5 the data.

    Old files store the mean as biases, the variance as weights.
    """
    first, places = (2, (0, 1, 3, 4)) if site.layer.opset == "opset1" else (0, (1, 2, 3, 4))
    if not site.net.is_legacy:
        scale, offset, mean, variance = (site.unsqueezed(site.operand(i), (0,)) for i in places)
        epsilon = site.number("epsilon")
    else:
        shape, first, scale, offset = (1, site.shape()[1]), 0, 1.0, 0.0
        variance, mean = (site.blob(tag, shape) for tag in ("weights", "biases"))
        epsilon = site.number("epsilon", 1e-5)
        if variance is None or mean is None:
            raise InvalidOperation("it needs weights and biases")
    x = site.tensor(first)
    return site.last.batch_normalization(x, mean, variance, offset, scale, epsilon=epsilon)


@legacy("ScaleShift")
def _scale_shift(site: LayerSite, x: Value) -> Value:
    shape = x.type.shape
    axis = 1 if len(shape) > 1 else 0
    count = 1 if site.has_one_weight() else shape[axis]
    wanted = (1, count) if axis else (count,)
    scale, shift = site.blob("weights", wanted), site.blob("biases", wanted)
    if scale is None and shift is None:
        raise InvalidOperation("it has neither weights nor biases")
    steps = [("mul", scale), ("add", shift)]
    return site.chain(x, *((kind, [y], {}) for kind, y in steps if y is not None))


@legacy("Norm")
@operator("LRN")
def _response(site: LayerSite, x: Value) -> Value:
    """Divide by (bias + alpha * mean of squares) ** beta, over axes.

    These are channels, or before version 10 perhaps a square of items.
    """
    rank = len(x.type.shape)
    if site.net.is_legacy:
        size, bias = site.int(site.attribute("local-size", "local_size"), 0), site.number("k", 1)
        if size < 1:
            raise InvalidOperation("attribute 'local-size' is missing")
        region = site.choice("region", "across", "same", default="across")
        axes = [1] if region == "across" else range(2, rank)
    else:
        axes, size, bias = site.axes(1), site.int("size"), site.number("bias")
    sizes = [size if i in axes else 1 for i in range(rank)]
    given = {"alpha": site.number("alpha"), "beta": site.number("beta"), "bias": bias}
    return site.last.local_response_normalization(x, size=sizes, **given)


def _root_mean(site: LayerSite, squares: Value, epsilon: float, where: str = "add") -> Value:
    """Return the factor 1 / sqrt(squares + epsilon), or with epsilon elsewhere."""
    if where == "outside_sqrt":
        return site.step.rcp(site.step.add(site.root(squares), epsilon))
    return site.step.rsqrt(getattr(site.step, where)(squares, epsilon))


def _centred(site: LayerSite, x: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """Return a tensor less its mean along axes, and its variance."""
    mean, variance = site.step.moments(x, axes=axes)
    return site.step.sub(x, mean), variance


@operator("MVN")
def _mvn(site: LayerSite) -> Value:
    """Normalise along axes (set 6), or all but batch and perhaps channels."""
    x, where = site.tensor(0), "add"
    if site.has(1) and not site.net.is_legacy:
        axes = sorted(site.axes(1))
        mode = site.choice("eps_mode", "inside_sqrt", "outside_sqrt", default="inside_sqrt")
        where = "add" if mode == "inside_sqrt" else mode
    else:
        axes = list(range(1 if site.flag("across_channels") else 2, len(site.shape())))
    epsilon = site.number("eps", 1e-9)
    if not site.flag("normalize_variance", True):
        return site.last.sub(x, site.step.mean_reduce(x, axes=axes))
    centred, variance = _centred(site, x, axes)
    return site.last.mul(centred, _root_mean(site, variance, epsilon, where))


@operator("GRN")
@legacy("Normalize")
@opsets("NormalizeL2")
def _unit(site: LayerSite, x: Value) -> Value:
    """Divide by the root of the sum of squares along axes, and multiply by a scale if there is one.

    Without axes each item is by itself.
    """
    where, scale, shape = "add", None, x.type.shape
    if site.operator == "grn":
        axes, epsilon = [1], site.number("bias", 1.0)
    elif site.net.is_legacy:
        is_shared = site.flag("channel_shared") or site.has_one_weight()
        scale = site.blob("weights", (1, 1 if is_shared else shape[1]))
        axes = [*range(1, len(shape))] if site.flag("across_spatial") else [1]
        epsilon = site.number("eps", 1e-10)
    else:
        axes = sorted(set(site.axes(1)))
        where, epsilon = site.choice("eps_mode", "add", "max", default="add"), site.number("eps")
    squares = site.step.sqr(x)
    if axes:
        squares = site.step.sum_reduce(squares, axes=axes, normalize=False)
    factor = _root_mean(site, squares, epsilon, where)
    unit = site.step_or_last(scale is None).mul(x, factor)
    return unit if scale is None else site.last.mul(unit, scale)


@opsets("GroupNormalization")
def _group_normalization(site: LayerSite) -> Value:
    x, groups, step = site.tensor(0), site.int("num_groups"), site.step
    _, channels, *rest = x.type.shape
    if groups < 1 or channels % groups:
        raise InvalidOperation(f"'num_groups' {groups} does not divide {channels} channels")
    split = step.reshape(x, shape=(groups, channels // groups), axis_start=1, axis_count=1)
    centred, variance = _centred(site, split, [*range(2, len(rest) + 3)])
    normal = step.mul(centred, _root_mean(site, variance, site.number("epsilon", 1e-5)))
    normal = step.reshape(normal, shape=(channels,), axis_start=1, axis_count=2)
    scale, shift = (site.unsqueezed(site.operand(i), (0,)) for i in (1, 2))
    return site.last.add(step.mul(normal, scale), shift)
