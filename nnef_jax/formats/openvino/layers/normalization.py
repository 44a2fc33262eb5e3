"""Normalisation, softmax, and what scales channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.formats.openvino.layers import everywhere, legacy, opsets
from nnef_jax.formats.openvino.site import Site


@everywhere("SoftMax")
def _softmax(site: Site) -> Value:
    return site.emit("softmax", {"x": site.tensor(0)}, axes=(site.axis(site.int("axis", 1)),))


@everywhere("LogSoftmax")
def _log_softmax(site: Site) -> Value:
    return site.emit("log_softmax", {"x": site.tensor(0)}, axes=(site.axis(site.int("axis", 1)),))


@legacy("BatchNormalization")
def _batch_normalization(site: Site) -> Value:
    """Return (x - biases) / sqrt(weights + epsilon): the variance is called weights."""
    x = site.tensor(0)
    channels = x.type.shape[1]
    variance, mean = (site.blob(tag, (1, channels)) for tag in ("weights", "biases"))
    if variance is None or mean is None:
        raise InvalidOperation("it needs weights and biases")
    operands = {"input": x, "mean": mean, "variance": variance, "offset": 0.0, "scale": 1.0}
    return site.emit("batch_normalization", operands, epsilon=site.number("epsilon", 1e-5))


@opsets("BatchNormInference")
def _batch_norm_inference(site: Site) -> Value:
    """Normalise channels; set 1 has gamma and beta first, set 5 the data."""
    first = 2 if site.layer.opset == "opset1" else 0
    places = [0, 1, 3, 4] if first else [1, 2, 3, 4]
    gamma, beta, mean, variance = (
        site.insert("unsqueeze", {"input": site.tensor(i)}, axes=(0,)) for i in places
    )
    operands = {
        "input": site.tensor(first),
        "mean": mean,
        "variance": variance,
        "offset": beta,
        "scale": gamma,
    }
    return site.emit("batch_normalization", operands, epsilon=site.number("epsilon"))


@legacy("ScaleShift")
def _scale_shift(site: Site) -> Value:
    x = site.tensor(0)
    shape = x.type.shape
    axis = 1 if len(shape) > 1 else 0
    count = 1 if site.has_one_weight() else shape[axis]
    wanted = (1, count) if axis else (count,)
    scale, shift = site.blob("weights", wanted), site.blob("biases", wanted)
    if scale is not None:
        add = site.emit if shift is None else site.insert
        x = add("mul", {"x": x, "y": scale})
    if shift is not None:
        x = site.emit("add", {"x": x, "y": shift})
    if scale is None and shift is None:
        raise InvalidOperation("it has neither weights nor biases")
    return x


@legacy("Norm", "LRN")
def _norm(site: Site) -> Value:
    """Divide by (k + alpha * mean of squares) ** beta, over channels or a square of items."""
    x = site.tensor(0)
    size = site.int("local-size", site.int("local_size", 0))
    if size < 1:
        raise InvalidOperation("attribute 'local-size' is missing")
    rank = len(x.type.shape)
    is_across = site.choice("region", "across", "same", default="across") == "across"
    sizes = [1, size, *[1] * (rank - 2)] if is_across else [1, 1, *[size] * (rank - 2)]
    return _response(site, x, sizes, site.number("k", 1))


@opsets("LRN")
def _lrn(site: Site) -> Value:
    x, axes = site.tensor(0), [site.axis(a) for a in site.integers(1)]
    size = site.int("size")
    sizes = [size if i in axes else 1 for i in range(len(x.type.shape))]
    return _response(site, x, sizes, site.number("bias"))


def _response(site: Site, x: Value, size: Sequence[int], bias: float) -> Value:
    given = {"alpha": site.number("alpha"), "beta": site.number("beta"), "bias": bias}
    return site.emit("local_response_normalization", {"input": x}, size=size, **given)


def _root_mean(
    site: Site, squares: Value, epsilon: float, *, outside: bool = False, largest: bool = False
) -> Value:
    """Return what to multiply with: 1 / sqrt(squares + epsilon), or with epsilon elsewhere."""
    if outside:
        root = site.insert("add", {"x": site.insert("sqrt", {"x": squares}), "y": epsilon})
        return site.insert("rcp", {"x": root})
    kind = "max" if largest else "add"
    return site.insert("rsqrt", {"x": site.insert(kind, {"x": squares, "y": epsilon})})


def _mean_variance(
    site: Site, axes: Sequence[int], epsilon: float, *, scales: bool, outside: bool = False
) -> Value:
    x = site.tensor(0)
    mean = site.insert("mean_reduce", {"input": x}, axes=tuple(axes))
    if not scales:
        return site.emit("sub", {"x": x, "y": mean})
    centred = site.insert("sub", {"x": x, "y": mean})
    variance = site.insert(
        "mean_reduce", {"input": site.insert("sqr", {"x": centred})}, axes=tuple(axes)
    )
    return site.emit(
        "mul", {"x": centred, "y": _root_mean(site, variance, epsilon, outside=outside)}
    )


@legacy("MVN")
def _legacy_mvn(site: Site) -> Value:
    return _mvn_of_channels(site)


def _mvn_of_channels(site: Site) -> Value:
    first = 1 if site.flag("across_channels") else 2
    axes = list(range(first, len(site.shape())))
    return _mean_variance(
        site, axes, site.number("eps", 1e-9), scales=site.flag("normalize_variance", True)
    )


@opsets("MVN")
def _mvn(site: Site) -> Value:
    """Normalise along axes (set 6), or all but batch and perhaps channels (set 2)."""
    if not site.has(1):
        return _mvn_of_channels(site)
    axes = sorted(site.axis(a) for a in site.integers(1))
    outside = (
        site.choice("eps_mode", "inside_sqrt", "outside_sqrt", default="inside_sqrt")
        == "outside_sqrt"
    )
    return _mean_variance(
        site,
        axes,
        site.number("eps", 1e-9),
        scales=site.flag("normalize_variance", True),
        outside=outside,
    )


def _unit(
    site: Site, axes: Sequence[int], epsilon: float, scale: Any = None, *, largest: bool = False
) -> Value:
    """Divide by the root of the sum of squares along axes, and multiply by a scale."""
    x = site.tensor(0)
    squares = site.insert(
        "sum_reduce", {"input": site.insert("sqr", {"x": x})}, axes=tuple(axes), normalize=False
    )
    factor = _root_mean(site, squares, epsilon, largest=largest)
    if scale is None:
        return site.emit("mul", {"x": x, "y": factor})
    return site.emit("mul", {"x": site.insert("mul", {"x": x, "y": factor}), "y": scale})


@legacy("Normalize")
def _normalize(site: Site) -> Value:
    shape = site.shape()
    is_shared = site.flag("channel_shared") or site.has_one_weight()
    scale = site.blob("weights", (1, 1 if is_shared else shape[1]))
    axes = range(1, len(shape)) if site.flag("across_spatial") else [1]
    return _unit(site, list(axes), site.number("eps", 1e-10), scale)


@opsets("NormalizeL2")
def _normalize_l2(site: Site) -> Value:
    axes = sorted({site.axis(a) for a in site.integers(1)})
    largest = site.choice("eps_mode", "add", "max", default="add") == "max"
    if not axes:  # each item by itself
        x = site.tensor(0)
        squares = site.insert("sqr", {"x": x})
        return site.emit(
            "mul", {"x": x, "y": _root_mean(site, squares, site.number("eps"), largest=largest)}
        )
    return _unit(site, axes, site.number("eps"), largest=largest)


@everywhere("GRN")
def _grn(site: Site) -> Value:
    return _unit(site, [1], site.number("bias", 1.0))


@opsets("RMS", "RMSNorm")
def _rms(site: Site) -> Value:
    x, scale = site.tensor(0), site.operand(1)
    epsilon = site.number("epsilon", site.number("eps", 1e-5))
    return site.emit(
        "rms_norm",
        {"input": x, "scale": scale, "epsilon": epsilon},
        axis=len(x.type.shape) - 1,
        dtype="",
    )


@opsets("GroupNormalization")
def _group_normalization(site: Site) -> Value:
    x, groups = site.tensor(0), site.int("num_groups")
    _, channels, *rest = x.type.shape
    if groups < 1 or channels % groups:
        raise InvalidOperation(f"'num_groups' {groups} does not divide {channels} channels")
    split = site.insert(
        "reshape", {"input": x}, shape=(groups, channels // groups), axis_start=1, axis_count=1
    )
    axes = tuple(range(2, len(rest) + 3))
    mean = site.insert("mean_reduce", {"input": split}, axes=axes)
    centred = site.insert("sub", {"x": split, "y": mean})
    variance = site.insert("mean_reduce", {"input": site.insert("sqr", {"x": centred})}, axes=axes)
    normal = site.insert(
        "mul", {"x": centred, "y": _root_mean(site, variance, site.number("epsilon", 1e-5))}
    )
    normal = site.insert(
        "reshape", {"input": normal}, shape=(channels,), axis_start=1, axis_count=2
    )
    scale, shift = (site.insert("unsqueeze", {"input": site.tensor(i)}, axes=(0,)) for i in (1, 2))
    return site.emit("add", {"x": site.insert("mul", {"x": normal, "y": scale}), "y": shift})
