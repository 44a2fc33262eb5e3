"""Meanings of elementwise layers: activations, conversions, rounding and functions of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import floordiv, mod
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import Value, is_float
from nnef_jax.flattening.by_kind import ByKind
from nnef_jax.flattening.emission import ends_of
from nnef_jax.flattening.hostvalues import binary
from nnef_jax.flattening.operators.attributes import integer, number, numbers, one_of, text, word
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.element_types import computation_dtype
from nnef_jax.formats.openvino.layer_site import LayerSite
from nnef_jax.formats.openvino.layers.registry import (
    LEGACY,
    OPERATORS,
    element,
    legacy,
    number_at,
    operator,
    opsets,
)
from nnef_jax.formats.openvino.layers.rows import FUNCTIONS


@operator("Clamp", low=number("min", 0), high=number("max", 6))
@legacy("ReLU6", low=0.0, high=number("n", 6))
def _clamp(site: LayerSite, x: Value, *, low: float, high: float) -> Value:
    dtype = x.type.dtype
    if is_float(dtype):
        return site.last.clamp(x, low, high)
    least, most = ends_of(dtype)
    ends: list[Any] = [max(math.ceil(low), least), min(math.floor(high), most)]
    if dtype != site.integer:
        ends = [site.filled(end, dtype) for end in ends]
    return site.last.clamp(x, *ends)


@legacy("HardSigmoid", slope=number("alpha", 0.2), offset=number("beta", 0.5))
@opsets("HardSigmoid", slope=number_at(1), offset=number_at(2))
def _hard_sigmoid(site: LayerSite, x: Value, *, slope: float, offset: float) -> Value:
    line = site.step.add(site.step.mul(x, slope), offset)
    return site.last.clamp(line, 0.0, 1.0)


@legacy("ReLU")
def _legacy_relu(site: LayerSite, x: Value, *, slope: float = number("negative_slope", 0)) -> Value:
    return site.last.leaky_relu(x, alpha=slope) if slope else site.last.relu(x)


@legacy("PReLU")
def _legacy_prelu(site: LayerSite, x: Value) -> Value:
    """Multiply negative items by the slope of their channel, or by one slope for all channels.

    There is one slope for all channels if the layer stores a single slope. The attribute
    `channel_shared` is ignored.
    """
    slopes = 1 if site.has_one_weight() else x.type.shape[1]
    return site.last.prelu(x, site.required_weights("weights", (1, slopes)))


@opsets("PReLU")
def _prelu(site: LayerSite, x: Value) -> Value:
    """Multiply negative items of `x` by the slopes in input 1.

    A vector of slopes has one slope for each channel. Slopes of any other rank are broadcast to
    `x`.
    """
    slope = site.operand(1)
    slopes = site.shape(1)
    shape = x.type.shape
    is_by_channel = len(slopes) == 1 and len(shape) > 1 and slopes[0] in (1, shape[1])
    if is_by_channel:
        return site.last.prelu(x, site.unsqueezed(slope, (0,)))
    return site.last.prelu(*site.aligned(x, slope))


@operator("Swish")
def _swish(site: LayerSite, x: Value) -> Value:
    beta: Any = site.operand(1) if site.has(1) else site.number("alpha", 1.0)
    if isinstance(beta, Constant):
        beta = site.scalar(1)
    if isinstance(beta, Value):
        beta = site.reshaped(beta, (1,) * len(x.type.shape))
    elif beta == 1:
        return site.last.silu(x)
    return site.last.mul(x, site.step.sigmoid(site.step.mul(x, beta)))


@operator("Gelu")
def _gelu(
    site: LayerSite, x: Value, *, mode: str = word("approximation_mode", "erf", "tanh")
) -> Value:
    step = site.step
    if mode == "tanh":
        return site.last.gelu(x, approximation="tanh")
    inner = step.erf(step.mul(x, math.sqrt(0.5)))
    return site.last.mul(step.mul(x, 0.5), step.add(inner, 1.0))


_ACTIVATIONS = {
    *map(str.lower, FUNCTIONS), "clamp", "elu", "gelu", "leakyrelu", "not", "prelu", "relu",
    "relu6", "swish",
}  # fmt: skip


@legacy("Activation")
def _activation(site: LayerSite, x: Value, *, type: str = text("type")) -> Value:
    """Apply the activation that the attribute `type` names."""
    if type == "square":
        return site.last.sqr(x)
    if type == "linear":
        scaled = site.step.mul(x, site.number("alpha", 1))
        return site.last.add(scaled, site.number("beta", 0))
    if type not in _ACTIVATIONS:
        raise InvalidOperation(f"there is no activation '{type}'")
    if type == "leakyrelu":
        type = "relu"
    function = OPERATORS.get(type, LEGACY)
    assert function is not None, type
    return function.run(site)


# Conversions of element types, and rounding to levels

_LARGEST = {"f8e4m3": 448.0, "f8e5m2": 57344.0}
_WRAPPED = ("int8", "uint8", "int16", "uint16", "uint32")


@legacy("Convert")
def _converted(site: LayerSite, x: Value, *, type: str = element("precision", "FP32")) -> Value:
    """Cast a tensor to the element type in the attribute `precision`.

    Real numbers outside the range of the result's integer type wrap around if the type has 8 or 16
    bits or is uint32.
    """
    dtype = site.graph.computation_dtype(type)
    if is_float(x.type.dtype) and dtype in _WRAPPED:
        x = site.step.cast(x, dtype="int32")
    return site.last.cast(x, dtype=dtype)


def _type_of_second(site: LayerSite) -> str:
    like = site.operand(1)
    return like.type if isinstance(like, Constant) else site.graph.element(like.type.dtype)


@opsets("Convert", type=element("destination_type"))
@opsets("ConvertLike", type=_type_of_second)
def _convert(site: LayerSite, *, type: str) -> Value | Constant:
    x = site.operand(0)
    dtype = site.graph.computation_dtype(type)
    if isinstance(x, Constant):
        if is_float(dtype) and site.dtype_of(0) == dtype:
            return x  # the graph widens stored weights of 16 bits when the weights are read
        if site.folds:
            return site.converted(x, type)
    return _converted(site, site.tensor(0), type=type)


@opsets("ConvertPromoteTypes")
def _promoted(site: LayerSite) -> list[Value]:
    """Cast inputs 0 and 1 to the element types that the file declares for the two outputs."""
    types = [port.type for port in site.layer.outputs]
    if len(types) != 2 or "" in types:
        raise InvalidOperation("its output ports do not declare their types")
    pairs = zip(site.first_inputs(2), types, strict=True)
    return [site.last.cast(x, dtype=computation_dtype(type, site.real)) for x, type in pairs]


@opsets("FakeConvert")
def _fake_convert(site: LayerSite, *, type: str = one_of("destination_type", *_LARGEST)) -> Value:
    """Round x * scale - shift to 8-bit floats, then undo the shift and the scale."""
    step = site.step
    operands = [site.operand(i) for i in range(3) if site.has(i)]
    x, scale, *shift = site.aligned(*operands)
    scaled = step.mul(x, scale)
    if shift:
        scaled = step.sub(scaled, shift[0])
    scaled = step.clamp(scaled, -_LARGEST[type], _LARGEST[type])
    codes = step.cast(scaled, dtype=computation_dtype(type, site.real))
    rounded = step.cast(codes, dtype=scaled.type.dtype)
    if shift:
        rounded = step.add(rounded, shift[0])
    return site.last.div(rounded, scale)


@operator("FakeQuantize", "Quantize")
def _fake_quantize(site: LayerSite, x: Value, *, levels: int = integer("levels")) -> Value:
    """Round to `levels` levels between the ends of the input range; map these to the output range.

    Inputs 1 and 2 are the ends of the input range, and inputs 3 and 4 the ends of the output range.
    Halves round to even. If the two ranges are known and equal, and `levels` is a power of 2, the
    layer becomes NNEF's `min_max_linear_quantize`.
    """
    if levels < 2:
        raise InvalidOperation(f"'levels' must be 2 or more, it is {levels}")
    ends = [site.operand(i) for i in range(1, 5)]
    arrays = [end.array for end in ends if isinstance(end, Constant)]
    bits = levels.bit_length() - 1
    has_equal_ends = len(arrays) == 4 and all(map(np.array_equal, arrays[:2], arrays[2:]))
    is_power_of_2 = 2**bits == levels
    if has_equal_ends and is_power_of_2 and np.all(arrays[0] < arrays[1]):
        operands = site.aligned(x, ends[0], ends[1])
        return site.last.min_max_linear_quantize(
            *operands, bits=bits, signed=False, symmetric=False, ties="even"
        )
    return site.last.fake_quantize(*site.aligned(x, *ends), levels=levels)


# Functions of several tensors

_FLOORED = binary(floordiv, np.divide)
_REMAINDER = binary(mod, np.mod)


@opsets("Divide")
def _divide(site: LayerSite) -> Value:
    """Divide input 0 by input 1.

    If both are known, and the attribute `m_pythondiv` is set, quotients of integers are rounded
    down.
    """
    x, y = site.broadcast()
    if site.folds and site.flag("m_pythondiv", True):
        return site.evaluate(_FLOORED, x, y)
    return site.last.div(x, y)


def _floored_mod(site: LayerSite, x: Tensor | float, y: Tensor | float) -> Value:
    """Compute x - y * floor(x / y)."""
    step = site.step
    quotient = step.div(x, y)
    dtype = quotient.type.dtype
    if is_float(dtype):
        return site.last.sub(x, step.mul(step.floor(quotient), y))
    remainder = step.rem(x, y)
    product = step.mul(step.sign(remainder), y)
    signs_differ = step.lt(product, site.number_like(product, 0))
    return site.last.add(remainder, step.mul(step.cast(signs_differ, dtype=dtype), y))


@opsets("FloorMod")
def _mod(site: LayerSite) -> Value:
    x, y = site.broadcast()
    # `_floored_mod` would fail, since it needs the sign of symbolic extents
    return site.evaluate(_REMAINDER, x, y) if site.folds else _floored_mod(site, x, y)


_ELTWISE = {
    "sum": "add", "": "add", "add": "add", "mul": "mul", "prod": "mul", "max": "max", "min": "min",
    "sub": "sub", "div": "div", "pow": "pow",
}  # fmt: skip
_CONDITIONS = {
    "equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt",
    "greater_equal": "ge", "logical_and": "and", "logical_or": "or", "logical_xor": "bitwise_xor",
}  # fmt: skip


@legacy("Eltwise")
def _eltwise(
    site: LayerSite,
    *,
    operation: str = text("operation", "sum"),
    factors: Sequence[float] = numbers("coeff", ()),
) -> Value:
    """Combine all inputs from left to right by the attribute `operation`, such as "sum" or "max".

    For sums, `factors` has a factor for each input. The result of a comparison is 0.0 or 1.0.
    """
    parts = [x for x in site.operands if x is not None]
    if factors and operation in ("sum", ""):
        if len(factors) != len(parts):
            raise InvalidOperation(f"'coeff' must have an item for each of {len(parts)} inputs")
        for i, factor in enumerate(factors):
            if factor != 1:
                parts[i] = site.step.mul(site.tensor(parts[i]), factor)
    result, *parts = parts
    for i, part in enumerate(parts, 1):
        x, y = site.aligned(result, part)
        result = _combined(site, site.step_or_last(i == len(parts)), operation, x, y)
    return site.tensor(result) if isinstance(result, Constant) else result


def _combined(
    site: LayerSite, last: ByKind, operation: str, x: Tensor | float, y: Tensor | float
) -> Value:
    step = site.step
    match operation:
        case "squared_diff":
            return last.sqr(step.sub(x, y))
        case "floor_mod":
            return _floored_mod(site, x, y)
        case "mean":
            return last.mul(step.add(x, y), 0.5)
        case "logical_not":
            return last.sub(1.0, x)
        case _ if operation in _ELTWISE:
            return getattr(last, _ELTWISE[operation])(x, y)
        case _:
            if operation.startswith("logical_"):
                x = step.ne(x, 0.0)
                y = step.ne(y, 0.0)
            if operation not in _CONDITIONS:
                raise InvalidOperation(f"there is no operation '{operation}'")
            condition = getattr(step, _CONDITIONS[operation])(x, y)
            return last.cast(condition, dtype=site.real)


@legacy("Power")
def _legacy_power(
    site: LayerSite,
    x: Value,
    *,
    scale: float = number("scale", 1),
    shift: float = number("shift", 0),
    power: float = number("power", 1),
) -> Value:
    """Compute (shift + scale * x) ** power."""
    steps: list[Any] = []
    if scale != 1:
        steps.append(("mul", [scale], {}))
    if shift != 0:
        steps.append(("add", [shift], {}))
    if power != 1:
        steps.append(("pow", [power], {}))
    return site.chain(x, *steps)
