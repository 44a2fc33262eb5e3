"""Activations, with what they clamp and choose."""

from __future__ import annotations

import math
from typing import Any

from lowering.errors import InvalidOperation
from lowering.graph import Value, is_float
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.layer_site import LayerSite, ends_of
from nnef_jax.formats.openvino.layers import everywhere, legacy, opsets
from nnef_jax.formats.openvino.operations import FUNCTIONS, number, operation


@everywhere("SoftSign")
def _softsign(site: LayerSite) -> Value:
    x = site.tensor(0)
    return site.last.div(x, site.step.add(site.step.abs(x), 1.0))


@everywhere("Mish")
def _mish(site: LayerSite) -> Value:
    x = site.tensor(0)
    return site.last.mul(x, site.step.tanh(site.step.softplus(x)))


@everywhere("Clamp")
def _clamp(site: LayerSite) -> Value:
    return _clamped(site, site.number("min", 0), site.number("max", 6))


def _clamped(site: LayerSite, low: float, high: float) -> Value:
    x = site.tensor(0)
    dtype = x.type.dtype
    if is_float(dtype):
        return site.last.clamp(x, low, high)
    least, most = ends_of(dtype)
    ends: list[Any] = [max(math.ceil(low), least), min(math.floor(high), most)]
    if dtype != site.integer:
        ends = [site.filled(end, dtype) for end in ends]
    return site.last.clamp(x, *ends)


@legacy("ReLU")
def _leaky(site: LayerSite) -> Value:
    slope = site.number("negative_slope", 0)
    x = site.tensor(0)
    return site.last.leaky_relu(x, alpha=slope) if slope else site.last.relu(x)


@legacy("ReLU6")
def _relu6(site: LayerSite) -> Value:
    return _clamped(site, 0.0, site.number("n", 6))


@legacy("Not")
def _not(site: LayerSite) -> Value:
    return site.last.sub(1.0, site.tensor(0))


def _linear(site: LayerSite) -> Value:
    scaled = site.step.mul(site.tensor(0), site.number("alpha", 1))
    return site.last.add(scaled, site.number("beta", 0))


@opsets("PReLU")
def _prelu(site: LayerSite) -> Value:
    x, slope = site.tensor(0), site.operand(1)
    shape, own = x.type.shape, site.shape(1)
    if len(own) == 1 and len(shape) > 1 and own[0] in (1, shape[1]):  # of channels
        return site.last.prelu(x, site.unsqueezed(slope, 0))
    return site.last.prelu(*site.aligned(x, slope))


@legacy("PReLU")
def _prelu_of_channels(site: LayerSite) -> Value:
    """Return the positive part, and the negative one times a slope, of each channel or of all.

    How many are stored decides, whatever `channel_shared` says.
    """
    x = site.tensor(0)
    slopes = 1 if site.has_one_weight() else x.type.shape[1]
    return site.last.prelu(x, site.needed("weights", (1, slopes)))


def _hard_sigmoid_of(site: LayerSite, alpha: float, beta: float) -> Value:
    scaled = site.step.add(site.step.mul(site.tensor(0), alpha), beta)
    return site.last.clamp(scaled, 0.0, 1.0)


@opsets("HardSigmoid")
def _hard_sigmoid(site: LayerSite) -> Value:
    return _hard_sigmoid_of(site, site.scalar(1), site.scalar(2))


@legacy("HardSigmoid")
def _legacy_hard_sigmoid(site: LayerSite) -> Value:
    return _hard_sigmoid_of(site, site.number("alpha", 0.2), site.number("beta", 0.5))


@opsets("HSigmoid")
def _hsigmoid(site: LayerSite) -> Value:
    x = site.step.add(site.tensor(0), 3.0)
    return site.last.div(site.step.clamp(x, 0.0, 6.0), 6.0)


@everywhere("Swish")
def _swish(site: LayerSite) -> Value:
    x = site.tensor(0)
    beta: Any = site.operand(1) if site.has(1) else site.number("alpha", 1.0)
    if isinstance(beta, Constant):
        beta = site.scalar(1)
    if isinstance(beta, Value):
        beta = site.reshaped(beta, (1,) * len(x.type.shape))
    elif beta == 1:
        return site.last.silu(x)
    return site.last.mul(x, site.step.sigmoid(site.step.mul(x, beta)))


@everywhere("Gelu")
def _gelu(site: LayerSite) -> Value:
    x, step = site.tensor(0), site.step
    if site.choice("approximation_mode", "erf", "tanh", default="erf") == "tanh":
        return site.last.gelu(x, approximation="tanh")
    inner = step.erf(step.mul(x, math.sqrt(0.5)))
    return site.last.mul(step.mul(x, 0.5), step.add(inner, 1.0))


_BY_NAME = {
    **{type.lower(): operation(kind) for type, kind in FUNCTIONS.items()},
    "relu": _leaky, "leakyrelu": _leaky, "relu6": _relu6, "clamp": _clamp, "not": _not,
    "elu": operation("elu", alpha=number("alpha", 1.0)), "square": operation("sqr"),
    "linear": _linear, "swish": _swish, "gelu": _gelu, "prelu": _prelu_of_channels,
}  # fmt: skip


@legacy("Activation")
def _activation(site: LayerSite) -> Value:
    """Return what the attribute `type` names: an activation, or any function of one tensor."""
    kind = site.text("type")
    if kind not in _BY_NAME:
        raise InvalidOperation(f"there is no activation '{kind}'")
    return _BY_NAME[kind](site)
