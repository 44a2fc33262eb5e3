"""Functions for elementwise layers: activations, conversions, rounding, and arithmetic."""

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
from nnef_jax.flattening.host_operations import binary
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
    """Replace items below `low` by `low`, and items above `high` by `high`.

    If the items are integers, `low` is rounded up and `high` is rounded down.
    """
    dtype = x.type.dtype
    if is_float(dtype):
        return site.last.clamp(x, low, high)
    least, most = ends_of(dtype)
    low_integer = max(math.ceil(low), least)
    high_integer = min(math.floor(high), most)
    if dtype == site.integer:  # the dtype of Python integers
        return site.last.clamp(x, low_integer, high_integer)
    low_tensor = site.filled(low_integer, dtype)
    high_tensor = site.filled(high_integer, dtype)
    return site.last.clamp(x, low_tensor, high_tensor)


@legacy("HardSigmoid", slope=number("alpha", 0.2), offset=number("beta", 0.5))
@opsets("HardSigmoid", slope=number_at(1), offset=number_at(2))
def _hard_sigmoid(site: LayerSite, x: Value, *, slope: float, offset: float) -> Value:
    linear = site.step.add(site.step.mul(x, slope), offset)
    return site.last.clamp(linear, 0.0, 1.0)


@legacy("ReLU")
def _legacy_relu(site: LayerSite, x: Value, *, slope: float = number("negative_slope", 0)) -> Value:
    return site.last.leaky_relu(x, alpha=slope) if slope else site.last.relu(x)


@legacy("PReLU")
def _legacy_prelu(site: LayerSite, x: Value) -> Value:
    """Multiply negative items by the slope of their channel, or by one slope for all channels.

    The layer stores a slope for each channel, or a single slope. The attribute `channel_shared` is
    ignored.
    """
    slope_count = 1 if site.has_one_weight() else x.type.shape[1]
    return site.last.prelu(x, site.required_weights("weights", (1, slope_count)))


@opsets("PReLU")
def _prelu(site: LayerSite, x: Value) -> Value:
    """Multiply negative items of `x` by the slopes in input 1.

    A vector of slopes has one slope for each channel. Slopes of any other rank are broadcast to
    `x`.
    """
    slopes = site.operand(1)
    slopes_shape = site.shape(1)
    shape = x.type.shape
    is_vector = len(slopes_shape) == 1
    has_channels = len(shape) > 1
    if is_vector and has_channels and slopes_shape[0] in (1, shape[1]):
        # The slopes of shape (channels,) become a tensor of shape (1, channels).
        return site.last.prelu(x, site.unsqueezed(slopes, (0,)))
    return site.last.prelu(*site.aligned(x, slopes))


@operator("Swish")
def _swish(site: LayerSite, x: Value) -> Value:
    """Compute x * sigmoid(beta * x).

    Input 1 has beta. Without input 1, the attribute `alpha` has beta.
    """
    beta: Any = site.operand(1) if site.has(1) else site.number("alpha", 1.0)
    if isinstance(beta, Constant):
        beta = site.scalar(1)  # a Python number
    if isinstance(beta, Value):
        # The network computes beta. It has one item, and is broadcast to `x`.
        beta = site.reshaped(beta, (1,) * len(x.type.shape))
    elif beta == 1:
        return site.last.silu(x)
    return site.last.mul(x, site.step.sigmoid(site.step.mul(x, beta)))


@operator("Gelu")
def _gelu(
    site: LayerSite, x: Value, *, mode: str = word("approximation_mode", "erf", "tanh")
) -> Value:
    """Compute x / 2 * (erf(x / sqrt(2)) + 1), or the approximation of this formula by tanh."""
    if mode == "tanh":
        return site.last.gelu(x, approximation="tanh")
    step = site.step
    error_function = step.erf(step.mul(x, math.sqrt(0.5)))
    return site.last.mul(step.mul(x, 0.5), step.add(error_function, 1.0))


_ACTIVATIONS = {
    *map(str.lower, FUNCTIONS), "clamp", "elu", "gelu", "leakyrelu", "not", "prelu", "relu",
    "relu6", "swish",
}  # fmt: skip


@legacy("Activation")
def _activation(site: LayerSite, x: Value, *, type: str = text("type")) -> Value:
    """Apply the activation in the attribute `type`, such as "relu"."""
    if type == "square":
        return site.last.sqr(x)
    if type == "linear":
        scaled = site.step.mul(x, site.number("alpha", 1))
        return site.last.add(scaled, site.number("beta", 0))
    if type not in _ACTIVATIONS:
        raise InvalidOperation(f"there is no activation '{type}'")
    # For each other activation, there is a layer with the same name and the same attributes.
    layer_type = "relu" if type == "leakyrelu" else type
    layer = OPERATORS.get(layer_type, LEGACY)
    assert layer is not None, layer_type
    return layer.run(site)


# Conversions of element types, and rounding to levels

_LARGEST = {"f8e4m3": 448.0, "f8e5m2": 57344.0}  # the largest finite numbers of 8-bit floats
_WRAPPED = ("int8", "uint8", "int16", "uint16", "uint32")  # in casts to these dtypes, numbers wrap


@legacy("Convert")
def _legacy_convert(
    site: LayerSite, x: Value, *, type: str = element("precision", "FP32")
) -> Value:
    """Cast a tensor to the element type in the attribute `precision`.

    Casts to integers of 8 or 16 bits or to uint32 wrap around: 257.0 becomes 1 in uint8.
    """
    dtype = site.graph.computation_dtype(type)
    if is_float(x.type.dtype) and dtype in _WRAPPED:
        # A direct cast from real numbers would saturate. A cast from int32 wraps around.
        x = site.step.cast(x, dtype="int32")
    return site.last.cast(x, dtype=dtype)


def _type_of_input_1(site: LayerSite) -> str:
    """Return the element type of input 1."""
    operand = site.operand(1)
    if isinstance(operand, Constant):
        return operand.type
    return site.graph.element(operand.type.dtype)


@opsets("Convert", type=element("destination_type"))
@opsets("ConvertLike", type=_type_of_input_1)
def _convert(site: LayerSite, *, type: str) -> Value | Constant:
    """Cast input 0 to the element type `type`.

    If input 0 is a constant, the result may be a constant too.
    """
    x = site.operand(0)
    dtype = site.graph.computation_dtype(type)
    if isinstance(x, Constant):
        has_dtype = site.dtype_of(0) == dtype
        if has_dtype and is_float(dtype):
            # No conversion is needed: the graph itself widens stored weights of 16 bits to the
            # dtype of computation.
            return x
        if site.folds:
            return site.converted(x, type)
    return _legacy_convert(site, site.tensor(0), type=type)


@opsets("ConvertPromoteTypes")
def _promoted(site: LayerSite) -> list[Value]:
    """Cast inputs 0 and 1 to the element types that the file declares for the two outputs."""
    types = [port.type for port in site.layer.outputs]
    if len(types) != 2 or "" in types:
        raise InvalidOperation("its output ports do not declare their types")
    results: list[Value] = []
    for x, type in zip(site.first_inputs(2), types, strict=True):
        dtype = computation_dtype(type, site.real)
        results.append(site.last.cast(x, dtype=dtype))
    return results


@opsets("FakeConvert")
def _fake_convert(site: LayerSite, *, type: str = one_of("destination_type", *_LARGEST)) -> Value:
    """Round x * scale - shift to 8-bit floats, then undo the shift and the scale.

    Inputs 0 to 2 are x, the scale and the shift. Input 2 may be left out.
    """
    step = site.step
    operands = [site.operand(i) for i in range(3) if site.has(i)]
    x, scale, *optional_shift = site.aligned(*operands)
    scaled = step.mul(x, scale)
    if optional_shift:
        scaled = step.sub(scaled, optional_shift[0])
    largest = _LARGEST[type]
    scaled = step.clamp(scaled, -largest, largest)
    codes = step.cast(scaled, dtype=computation_dtype(type, site.real))
    rounded = step.cast(codes, dtype=scaled.type.dtype)
    if optional_shift:
        rounded = step.add(rounded, optional_shift[0])
    return site.last.div(rounded, scale)


@operator("FakeQuantize", "Quantize")
def _fake_quantize(site: LayerSite, x: Value, *, levels: int = integer("levels")) -> Value:
    """Round items to levels in an input range, then map the levels to an output range.

    The levels are at equal distances, and `levels` is their number. Inputs 1 and 2 are the ends of
    the input range, and inputs 3 and 4 are the ends of the output range. Halves round to even. If
    the two ranges are constant and equal, and `levels` is a power of 2, the layer becomes NNEF's
    `min_max_linear_quantize`.
    """
    if levels < 2:
        raise InvalidOperation(f"'levels' must be 2 or more, it is {levels}")
    ends = [site.operand(i) for i in range(1, 5)]
    bits = levels.bit_length() - 1
    is_power_of_2 = 2**bits == levels
    if is_power_of_2 and _has_equal_ranges(ends):
        operands = site.aligned(x, ends[0], ends[1])
        return site.last.min_max_linear_quantize(
            *operands, bits=bits, signed=False, symmetric=False, ties="even"
        )
    return site.last.fake_quantize(*site.aligned(x, *ends), levels=levels)


def _has_equal_ranges(ends: Sequence[Tensor]) -> bool:
    """Tell whether two ranges of numbers are constant, equal, and not empty.

    `ends` has the low and the high end of the first range, then of the second range.
    """
    arrays = [end.array for end in ends if isinstance(end, Constant)]
    if len(arrays) != 4:
        return False  # an end of a range is not constant
    low, high, second_low, second_high = arrays
    if not np.array_equal(low, second_low) or not np.array_equal(high, second_high):
        return False
    are_filled = np.all(low < high)
    return bool(are_filled)


# Functions of several tensors

# Functions for constant operands. The first argument of `binary` is for integers, which may be
# symbolic. The second argument is for real numbers.
_FLOORED = binary(floordiv, np.divide)
_REMAINDER = binary(mod, np.mod)


@opsets("Divide")
def _divide(site: LayerSite) -> Value:
    """Divide input 0 by input 1.

    If both inputs are constant, and the attribute `m_pythondiv` is set, quotients of integers are
    rounded down.
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
    # The remainder has the sign of x. If y has the opposite sign, y is added to the remainder.
    remainder = step.rem(x, y)
    sign_product = step.mul(step.sign(remainder), y)
    signs_differ = step.lt(sign_product, site.number_like(sign_product, 0))
    correction = step.mul(step.cast(signs_differ, dtype=dtype), y)
    return site.last.add(remainder, correction)


@opsets("FloorMod")
def _mod(site: LayerSite) -> Value:
    x, y = site.broadcast()
    if site.folds:
        # `_floored_mod` would fail, since it needs the sign of symbolic extents.
        return site.evaluate(_REMAINDER, x, y)
    return _floored_mod(site, x, y)


# Maps the attribute `operation` of the layer Eltwise to the name of an operation. The operations in
# `_CONDITIONS` return bool, and the operations in `_ELTWISE` return numbers.
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

    For sums, `factors` is empty or has a factor for each input. Other operations ignore `factors`.
    The result of a comparison is 0.0 or 1.0.
    """
    operands = [x for x in site.operands if x is not None]
    is_sum = operation in ("sum", "")
    if factors and is_sum:
        if len(factors) != len(operands):
            raise InvalidOperation(f"'coeff' must have an item for each of {len(operands)} inputs")
        for i, factor in enumerate(factors):
            if factor != 1:
                operands[i] = site.step.mul(site.tensor(operands[i]), factor)
    result, *further_operands = operands
    for i, operand in enumerate(further_operands):
        x, y = site.aligned(result, operand)
        is_last = i == len(further_operands) - 1
        result = _combined(site, site.step_or_last(is_last), operation, x, y)
    return site.tensor(result)  # a single input may be a constant


def _combined(
    site: LayerSite, last: ByKind, operation: str, x: Tensor | float, y: Tensor | float
) -> Value:
    """Combine two operands by an operation of the layer Eltwise.

    `last` adds the last operation, and `site.step` adds all operations before it. Raises
    InvalidOperation if Eltwise has no operation with the name `operation`.
    """
    step = site.step
    if operation == "squared_diff":
        return last.sqr(step.sub(x, y))
    if operation == "floor_mod":
        return _floored_mod(site, x, y)
    if operation == "mean":
        return last.mul(step.add(x, y), 0.5)
    if operation == "logical_not":
        return last.sub(1.0, x)
    if operation in _ELTWISE:
        add_operation = getattr(last, _ELTWISE[operation])
        return add_operation(x, y)
    if operation.startswith("logical_"):
        # The operands are numbers, and all numbers but 0 are true.
        x = step.ne(x, 0.0)
        y = step.ne(y, 0.0)
    if operation not in _CONDITIONS:
        raise InvalidOperation(f"there is no operation '{operation}'")
    add_condition = getattr(step, _CONDITIONS[operation])
    condition = add_condition(x, y)
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
    steps: list[Any] = []  # each step is (operation name, operands from the second on, attributes)
    no_attributes: dict[str, Any] = {}
    if scale != 1:
        steps.append(("mul", [scale], no_attributes))
    if shift != 0:
        steps.append(("add", [shift], no_attributes))
    if power != 1:
        steps.append(("pow", [power], no_attributes))
    return site.chain(x, *steps)
