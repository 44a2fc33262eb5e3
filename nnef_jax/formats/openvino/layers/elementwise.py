"""Item by item: arithmetic, comparisons, activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import Value, is_float
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.layers import everywhere, legacy, opsets
from nnef_jax.formats.openvino.site import Site

_UNARY = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh",
    "Atan": "atan", "Atanh": "atanh", "Ceil": "ceil", "Ceiling": "ceil", "Cos": "cos",
    "Cosh": "cosh", "Erf": "erf", "Exp": "exp", "Floor": "floor", "HSwish": "hard_swish",
    "Log": "log", "Neg": "neg", "Negative": "neg", "Sigmoid": "sigmoid", "Sign": "sign",
    "Sin": "sin", "Sinh": "sinh", "SoftPlus": "softplus", "Sqrt": "sqrt", "Tan": "tan",
    "Tanh": "tanh", "LogicalNot": "not", "BitwiseNot": "bitwise_not", "IsNaN": "is_nan",
    "Reciprocal": "rcp", "Copy": "copy", "Identity": "copy",
}  # fmt: skip
_BINARY = {
    "Add": "add", "Subtract": "sub", "Multiply": "mul", "Divide": "div", "Power": "pow",
    "Maximum": "max", "Minimum": "min", "Equal": "eq", "NotEqual": "ne", "Less": "lt",
    "LessEqual": "le", "Greater": "gt", "GreaterEqual": "ge", "LogicalAnd": "and",
    "LogicalOr": "or", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor", "BitwiseLeftShift": "shift_left",
    "BitwiseRightShift": "shift_right",
}  # fmt: skip


_FUNCTIONS = {type.lower(): kind for type, kind in _UNARY.items()}


def _unary(kind: str) -> Callable[[Site], Value]:
    return lambda site: site.emit(kind, {"x": site.tensor(0)})


for _type, _kind in _UNARY.items():
    everywhere(_type)(_unary(_kind))


@everywhere("SoftSign")
def _softsign(site: Site) -> Value:
    x = site.tensor(0)
    size = site.insert("add", {"x": site.insert("abs", {"x": x}), "y": 1.0})
    return site.emit("div", {"x": x, "y": size})


@everywhere("Mish")
def _mish(site: Site) -> Value:
    x = site.tensor(0)
    return site.emit(
        "mul", {"x": x, "y": site.insert("tanh", {"x": site.insert("softplus", {"x": x})})}
    )


@everywhere("Elu")
def _elu(site: Site) -> Value:
    return site.emit("elu", {"x": site.tensor(0)}, alpha=site.number("alpha", 1.0))


@everywhere("Clamp")
def _clamp(site: Site) -> Value:
    return _clamped(site, site.tensor(0), site.number("min", 0), site.number("max", 6))


def _clamped(site: Site, x: Value, low: float, high: float) -> Value:
    if is_float(x.type.dtype):
        return site.emit("clamp", {"x": x, "a": low, "b": high})
    ends = np.iinfo(x.type.dtype)
    whole = (max(math.ceil(low), ends.min), min(math.floor(high), ends.max))
    bounds = {n: _whole(site, v, x.type.dtype) for n, v in zip("ab", whole, strict=True)}
    return site.emit("clamp", {"x": x, **bounds})


def _whole(site: Site, item: int, dtype: str) -> Any:
    """Return a whole number in the dtype of others: a literal where it has that dtype."""
    if dtype == site.graph.builder.integer:
        return item
    return site.insert("constant", {}, shape=(), value=(item,), dtype=dtype)


@legacy("ReLU")
def _leaky(site: Site) -> Value:
    slope = site.number("negative_slope", 0)
    if slope:
        return site.emit("leaky_relu", {"x": site.tensor(0)}, alpha=slope)
    return site.emit("relu", {"x": site.tensor(0)})


opsets("ReLU")(_unary("relu"))


@legacy("ReLU6")
def _relu6(site: Site) -> Value:
    return _clamped(site, site.tensor(0), 0.0, site.number("n", 6))


@legacy("Activation")
def _activation(site: Site) -> Value:
    """Return what the attribute `type` names: an activation, or any function of one tensor."""
    kind = site.text("type")
    x = site.tensor(0)
    match kind:
        case "relu" | "leakyrelu":
            return _leaky(site)
        case "relu6":
            return _relu6(site)
        case "elu":
            return _elu(site)
        case "clamp":
            return _clamp(site)
        case "not":
            return site.emit("sub", {"x": 1.0, "y": x})
        case "square":
            return site.emit("sqr", {"x": x})
        case "linear":
            scaled = site.insert("mul", {"x": x, "y": site.number("alpha", 1)})
            return site.emit("add", {"x": scaled, "y": site.number("beta", 0)})
        case "swish":
            return _swish(site)
        case "gelu":
            return _gelu(site)
        case "prelu":
            return _prelu_of_channels(site)
        case _ if kind in _FUNCTIONS:
            return site.emit(_FUNCTIONS[kind], {"x": x})
        case _:
            raise InvalidOperation(f"there is no activation '{kind}'")


@legacy("Not")
def _not(site: Site) -> Value:
    return site.emit("sub", {"x": 1.0, "y": site.tensor(0)})


@opsets("PReLU")
def _prelu(site: Site) -> Value:
    x, slope = site.tensor(0), site.operand(1)
    shape, own = x.type.shape, site.shape(1)
    if len(own) == 1 and len(shape) > 1 and own[0] in (1, shape[1]):  # of channels
        slope = site.insert("unsqueeze", {"input": site.tensor(1)}, axes=(0,))
        return site.emit("prelu", {"x": x, "alpha": slope})
    x, slope = site.aligned(x, slope)
    return site.emit("prelu", {"x": x, "alpha": slope})


@legacy("PReLU")
def _prelu_of_channels(site: Site) -> Value:
    """Return the positive part, and the negative one times a slope, of each channel or of all.

    How many are stored decides, whatever `channel_shared` says.
    """
    x = site.tensor(0)
    slope = site.blob("weights", (1, 1 if site.has_one_weight() else x.type.shape[1]))
    if slope is None:
        raise InvalidOperation("it has no weights")
    return site.emit("prelu", {"x": x, "alpha": slope})


@opsets("Selu")
def _selu(site: Site) -> Value:
    alpha, scale = (float(site.known(i).reshape(-1)[0]) for i in (1, 2))
    return site.emit("selu", {"x": site.tensor(0)}, **{"alpha": alpha, "lambda": scale})


@legacy("Selu")
def _legacy_selu(site: Site) -> Value:
    values = {
        "alpha": site.number("alpha", 1.6732632),
        "lambda": site.number("gamma", 1.0507010),
    }
    return site.emit("selu", {"x": site.tensor(0)}, **values)


def _hard_sigmoid_of(site: Site, alpha: float, beta: float) -> Value:
    x = site.insert("mul", {"x": site.tensor(0), "y": alpha})
    return site.emit("clamp", {"x": site.insert("add", {"x": x, "y": beta}), "a": 0.0, "b": 1.0})


@opsets("HardSigmoid")
def _hard_sigmoid(site: Site) -> Value:
    return _hard_sigmoid_of(site, *(float(site.known(i).reshape(-1)[0]) for i in (1, 2)))


@legacy("HardSigmoid")
def _legacy_hard_sigmoid(site: Site) -> Value:
    return _hard_sigmoid_of(site, site.number("alpha", 0.2), site.number("beta", 0.5))


@opsets("HSigmoid")
def _hsigmoid(site: Site) -> Value:
    x = site.insert("add", {"x": site.tensor(0), "y": 3.0})
    return site.emit("div", {"x": site.insert("clamp", {"x": x, "a": 0.0, "b": 6.0}), "y": 6.0})


@everywhere("Swish")
def _swish(site: Site) -> Value:
    x = site.tensor(0)
    beta: Any = site.operand(1) if site.has(1) else site.number("alpha", 1.0)
    if isinstance(beta, Constant):
        beta = float(beta.array.reshape(-1)[0])
    if isinstance(beta, Value):
        beta = site.reshaped(beta, (1,) * len(x.type.shape))
    elif beta == 1:
        return site.emit("silu", {"x": x})
    gate = site.insert("sigmoid", {"x": site.insert("mul", {"x": x, "y": beta})})
    return site.emit("mul", {"x": x, "y": gate})


@everywhere("Gelu")
def _gelu(site: Site) -> Value:
    x = site.tensor(0)
    if site.choice("approximation_mode", "erf", "tanh", default="erf") == "tanh":
        return site.emit("gelu", {"x": x}, approximation="tanh")
    inner = site.insert("erf", {"x": site.insert("mul", {"x": x, "y": math.sqrt(0.5)})})
    half = site.insert("mul", {"x": x, "y": 0.5})
    return site.emit("mul", {"x": half, "y": site.insert("add", {"x": inner, "y": 1.0})})


@everywhere("Round")
def _round(site: Site) -> Value:
    ties = {"half_to_even": "even", "half_away_from_zero": "away"}
    mode = site.choice("mode", *ties, default="half_to_even")
    return site.emit("round", {"x": site.tensor(0)}, ties=ties[mode])


@opsets("IsInf")
def _is_inf(site: Site) -> Value:
    directions = {
        "positive": site.flag("detect_positive", True),
        "negative": site.flag("detect_negative", True),
    }
    return site.emit("is_inf", {"x": site.tensor(0)}, **directions)


@opsets("IsFinite")
def _is_finite(site: Site) -> Value:
    x = site.tensor(0)
    infinite = site.insert("is_inf", {"x": x}, positive=True, negative=True)
    return site.emit(
        "not", {"x": site.insert("or", {"x": infinite, "y": site.insert("is_nan", {"x": x})})}
    )


# Two tensors


def _broadcast(site: Site, *operands: Any) -> list[Any]:
    mode = site.choice("auto_broadcast", "numpy", "none", "pdpd", default="numpy")
    if mode == "pdpd" and len(site.shape(1)) < len(site.shape(0)):
        axis = site.int("axis", -1)
        return site.aligned(
            *operands, first_axis=len(site.shape(0)) - len(site.shape(1)) if axis < 0 else axis
        )
    return site.aligned(*operands)


def _binary(kind: str) -> Callable[[Site], Value]:
    def meaning(site: Site) -> Value:
        x, y = _broadcast(site, site.operand(0), site.operand(1))
        return site.emit(kind, {"x": x, "y": y})

    return meaning


for _type, _kind in _BINARY.items():
    opsets(_type)(_binary(_kind))


def _modulo(site: Site, x: Any, y: Any, *, floored: bool) -> Value:
    """Return what is left of x over y; the quotient is rounded down if `floored`, else cut off."""
    quotient = site.insert("div", {"x": x, "y": y})
    if is_float(quotient.type.dtype):
        if floored:
            quotient = site.insert("floor", {"x": quotient})
        else:
            size = site.insert("floor", {"x": site.insert("abs", {"x": quotient})})
            quotient = site.insert("mul", {"x": site.insert("sign", {"x": quotient}), "y": size})
        return site.emit("sub", {"x": x, "y": site.insert("mul", {"x": quotient, "y": y})})
    rest = site.insert("sub", {"x": x, "y": site.insert("mul", {"x": quotient, "y": y})})
    if not floored:
        return site.emit("copy", {"x": rest})
    dtype = rest.type.dtype
    product = site.insert("mul", {"x": site.insert("sign", {"x": rest}), "y": y})
    differs = site.insert("lt", {"x": product, "y": _whole(site, 0, dtype)})
    more = site.insert("mul", {"x": site.insert("cast", {"input": differs}, dtype=dtype), "y": y})
    return site.emit("add", {"x": rest, "y": more})


@opsets("FloorMod")
def _floor_mod(site: Site) -> Value:
    return _modulo(site, *_broadcast(site, site.operand(0), site.operand(1)), floored=True)


@opsets("Mod")
def _mod(site: Site) -> Value:
    return _modulo(site, *_broadcast(site, site.operand(0), site.operand(1)), floored=False)


def _xor(site: Site, x: Any, y: Any, *, final: bool = False) -> Value:
    """Tell where one holds and the other does not; NNEF compares numbers alone."""
    either = site.insert("or", {"x": x, "y": y})
    both = site.insert("and", {"x": x, "y": y})
    add = site.emit if final else site.insert
    return add("and", {"x": either, "y": site.insert("not", {"x": both})})


@opsets("LogicalXor")
def _logical_xor(site: Site) -> Value:
    return _xor(site, *_broadcast(site, site.operand(0), site.operand(1)), final=True)


@opsets("SquaredDifference")
def _squared_difference(site: Site) -> Value:
    x, y = _broadcast(site, site.operand(0), site.operand(1))
    return site.emit("sqr", {"x": site.insert("sub", {"x": x, "y": y})})


_ELTWISE = {
    "sum": "add", "": "add", "add": "add", "mul": "mul", "prod": "mul", "max": "max", "min": "min",
    "sub": "sub", "div": "div", "pow": "pow", "equal": "eq", "not_equal": "ne", "less": "lt",
    "less_equal": "le", "greater": "gt", "greater_equal": "ge",
}  # fmt: skip
_TRUTHS = {"logical_and": "and", "logical_or": "or"}


@legacy("Eltwise")
def _eltwise(site: Site) -> Value:
    """Join two or more tensors; comparisons give 0.0 and 1.0."""
    operation = site.text("operation", "sum")
    factors = site.numbers("coeff", [])
    first, *rest = [x for x in site.operands if x is not None]
    joined: Any = first
    if factors and operation in ("sum", ""):
        if len(factors) != len(rest) + 1:
            raise InvalidOperation(f"'coeff' must have an item for each of {len(rest) + 1} inputs")
        first, *rest = [
            x if factor == 1 else site.insert("mul", {"x": site.tensor(x), "y": factor})
            for x, factor in zip((first, *rest), factors, strict=True)
        ]
        joined = first
    for i, other in enumerate(rest):
        add = site.emit if i == len(rest) - 1 else site.insert
        x, y = site.aligned(joined, other)
        joined = _joined(site, add, operation, x, y)
    return site.tensor(joined) if isinstance(joined, Constant) else joined


def _joined(site: Site, add: Callable[..., Any], operation: str, x: Any, y: Any) -> Value:
    if operation == "squared_diff":
        return add("sqr", {"x": site.insert("sub", {"x": x, "y": y})})
    if operation == "floor_mod":
        return _modulo(site, x, y, floored=True)
    if operation == "mean":
        return add("mul", {"x": site.insert("add", {"x": x, "y": y}), "y": 0.5})
    if operation == "logical_not":
        return add("sub", {"x": 1.0, "y": x})
    if operation.startswith("logical_"):
        x, y = (site.insert("ne", {"x": v, "y": 0.0}) for v in (x, y))
        if operation == "logical_xor":
            return add("cast", {"input": _xor(site, x, y)}, dtype=site.real)
        if operation not in _TRUTHS:
            raise InvalidOperation(f"there is no operation '{operation}'")
        kind = _TRUTHS[operation]
    elif operation in _ELTWISE:
        kind = _ELTWISE[operation]
    else:
        raise InvalidOperation(f"there is no operation '{operation}'")
    if kind in ("eq", "ne", "lt", "le", "gt", "ge", "and", "or"):
        return add("cast", {"input": site.insert(kind, {"x": x, "y": y})}, dtype=site.real)
    return add(kind, {"x": x, "y": y})


@legacy("Power")
def _legacy_power(site: Site) -> Value:
    """Return (shift + scale * x) ** power."""
    x = site.tensor(0)
    scale, shift, power = site.number("scale", 1), site.number("shift", 0), site.number("power", 1)
    steps = [("mul", scale)] * (scale != 1) + [("add", shift)] * (shift != 0)
    steps += [("pow", power)] * (power != 1)
    for i, (kind, factor) in enumerate(steps or [("copy", 0.0)]):
        add = site.emit if i == max(len(steps), 1) - 1 else site.insert
        x = add(kind, {"x": x} if kind == "copy" else {"x": x, "y": factor})
    return x


@everywhere("Select")
def _select(site: Site) -> Value:
    condition = site.tensor(0)
    if condition.type.dtype != "bool":
        zero = 0.0 if is_float(condition.type.dtype) else 0
        condition = site.insert("ne", {"x": condition, "y": zero})
    condition, x, y = site.aligned(condition, site.tensor(1), site.tensor(2))
    return site.emit("select", {"condition": condition, "true_value": x, "false_value": y})
