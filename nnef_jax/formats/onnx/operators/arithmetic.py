"""Item by item: arithmetic, comparisons, logic, activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators import operator

_UNARY = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh",
    "Atan": "atan", "Atanh": "atanh", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf",
    "Exp": "exp", "Floor": "floor", "HardSwish": "hard_swish", "IsNaN": "is_nan",
    "Log": "log", "Neg": "neg", "Not": "not", "BitwiseNot": "bitwise_not", "Reciprocal": "rcp",
    "Relu": "relu", "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin", "Sinh": "sinh",
    "Softplus": "softplus", "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
}  # fmt: skip
_BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Equal": "eq", "Less": "lt",
    "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge", "And": "and", "Or": "or",
    "Xor": "bitwise_xor", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
}  # fmt: skip


def _unary(kind: str) -> Callable[[NodeSite], Any]:
    return lambda site: site.emit(kind, {"x": site.operand(0)})


for _name, _kind in _UNARY.items():
    operator(_name)(_unary(_kind))


@operator("Identity")
def _identity(site: NodeSite) -> Any:
    """Return a tensor, a sequence, or an optional value that may be empty."""
    x = site.operands[0]
    return site.emit("copy", {"x": x}) if isinstance(x, Value | Constant) else x


def _pair(site: NodeSite) -> list[Any]:
    """Return two operands that broadcast as numpy does; before version 7 along an axis."""
    x, y = site.operand(0), site.operand(1)
    if site.version < 7 and site.flag("broadcast") and "axis" in site.node.attributes:
        behind = site.axis(site.int("axis")) + site.rank(y)
        y = site.unsqueezed(y, range(site.rank(y), site.rank(y) + site.rank(x) - behind))
    return site.aligned(x, y)


def _binary(kind: str) -> Callable[[NodeSite], Any]:
    def meaning(site: NodeSite) -> Any:
        x, y = _pair(site)
        return site.emit(kind, {"x": x, "y": y})

    return meaning


for _name, _kind in _BINARY.items():
    operator(_name)(_binary(_kind))


@operator("Pow")
def _power(site: NodeSite) -> Any:
    """Return x to the power y, of another dtype if need be; the result has that of x."""
    dtype, other = site.dtype_of(0), site.dtype_of(1)
    x, y = _pair(site)
    if dtype == other:
        return site.emit("pow", {"x": x, "y": y})
    wide = dtype if site.is_real(0) or not site.is_real(1) else site.computed("float64")
    x, y = (site.cast(site.operand(i), wide) for i in range(2))
    x, y = site.aligned(x, y)
    return site.cast(site.emit("pow", {"x": x, "y": y}), dtype)


@operator("Mod")
def _mod(site: NodeSite) -> Any:
    """Return the remainder of a division: with the sign of x for `fmod`, else of y."""
    x, y = _pair(site)
    if site.flag("fmod"):
        return site.emit("rem", {"x": x, "y": y})
    return floored_mod(site, x, y, site.emit)


def floored_mod(site: NodeSite, x: Any, y: Any, add: Callable[..., Any]) -> Any:
    """Return the remainder of a division rounded down."""
    rest = site.insert("rem", {"x": x, "y": y})
    zero = site.zero(rest)
    signs = [site.insert("lt", {"x": v, "y": zero}) for v in (rest, y)]
    differ = site.insert("ne", {"x": signs[0], "y": signs[1]})
    moves = site.insert("and", {"x": differ, "y": site.insert("ne", {"x": rest, "y": zero})})
    more = site.insert("add", {"x": rest, "y": y})
    return add("select", {"condition": moves, "true_value": more, "false_value": rest})


@operator("BitShift")
def _bit_shift(site: NodeSite) -> Any:
    way = site.choice("direction", "LEFT", "RIGHT").lower()
    x, y = _pair(site)
    return site.emit(f"shift_{way}", {"x": x, "y": y})


def _joined(site: NodeSite, kind: str, end: Callable[..., Any]) -> Any:
    """Join all inputs in order; the last operation is added by `end`."""
    first, *rest = (site.operand(i) for i in range(len(site.operands)))
    for i, other in enumerate(rest):
        x, y = site.aligned(first, other)
        first = (end if i == len(rest) - 1 else site.insert)(kind, {"x": x, "y": y})
    return first if rest else end("copy", {"x": first})


def _all(kind: str) -> Callable[[NodeSite], Any]:
    return lambda site: _joined(site, kind, site.emit)


for _name, _kind in {"Max": "max", "Min": "min", "Sum": "add"}.items():
    operator(_name)(_all(_kind))


@operator("Mean")
def _mean(site: NodeSite) -> Any:
    total = _joined(site, "add", site.insert)
    return site.emit("div", {"x": total, "y": site.item(len(site.operands), total)})


@operator("Clip")
def _clip(site: NodeSite) -> Any:
    """Return items between bounds, which are inputs since version 11; the upper one wins."""
    x = site.operand(0)
    bounds: list[Any] = [site.operand(i) if site.has(i) else None for i in (1, 2)]
    if site.version < 11:
        names = ("min", "max")
        given = [site.number(n) if n in site.node.attributes else None for n in names]
        bounds = [None if n is None else site.item(n, x) for n in given]
    steps = [(k, b) for k, b in zip(("max", "min"), bounds, strict=True) if b is not None]
    for i, (kind, bound) in enumerate(steps):
        a, b = site.aligned(x, bound)
        x = (site.emit if i == len(steps) - 1 else site.insert)(kind, {"x": a, "y": b})
    return x if steps else site.emit("copy", {"x": x})


@operator("IsInf")
def _is_inf(site: NodeSite) -> Any:
    ways = {name: site.flag(f"detect_{name}", True) for name in ("positive", "negative")}
    return site.emit("is_inf", {"x": site.operand(0)}, **ways)


@operator("Round")
def _round(site: NodeSite) -> Any:
    return site.emit("round", {"x": site.operand(0)}, ties="even")


@operator("Where")
def _where(site: NodeSite) -> Any:
    condition, x, y = site.aligned(*(site.operand(i) for i in range(3)))
    return site.emit("select", {"condition": condition, "true_value": x, "false_value": y})


# Activations; others are run by the standard's definitions of them.


@operator("Elu")
def _elu(site: NodeSite) -> Any:
    return site.emit("elu", {"x": site.operand(0)}, alpha=site.number("alpha", 1.0))


@operator("LeakyRelu")
def _leaky_relu(site: NodeSite) -> Any:
    return site.emit("leaky_relu", {"x": site.operand(0)}, alpha=site.number("alpha", 0.01))


@operator("Selu")
def _selu(site: NodeSite) -> Any:
    defaults = (1.6732, 1.0507) if site.version < 6 else (1.6732632423543772, 1.0507009873554805)
    alpha, scale = site.number("alpha", defaults[0]), site.number("gamma", defaults[1])
    return site.emit("selu", {"x": site.operand(0)}, **{"alpha": alpha, "lambda": scale})


@operator("Celu")
def _celu(site: NodeSite) -> Any:
    x, alpha = site.operand(0), site.number("alpha", 1.0)
    factor = site.item(alpha, x)
    inner = site.insert("div", {"x": x, "y": factor})
    return site.emit("mul", {"x": site.insert("elu", {"x": inner}, alpha=1.0), "y": factor})


@operator("HardSigmoid")
def _hard_sigmoid(site: NodeSite) -> Any:
    x = site.operand(0)
    factor, more, low, high = (
        site.item(n, x) for n in (site.number("alpha", 0.2), site.number("beta", 0.5), 0, 1)
    )
    line = site.insert("add", {"x": site.insert("mul", {"x": x, "y": factor}), "y": more})
    return site.emit("clamp", {"x": line, "a": low, "b": high})


@operator("PRelu")
def _prelu(site: NodeSite) -> Any:
    """Return items times a slope where they are negative; before version 7 slopes of channels."""
    x, slope = site.operand(0), site.operand(1)
    if site.version < 7 and site.rank(1) == 1:
        slope = site.unsqueezed(slope, range(1, site.rank() - 1))
    x, slope = site.aligned(x, slope)
    if site.is_real():
        return site.emit("prelu", {"x": x, "alpha": slope})
    below = site.insert("lt", {"x": x, "y": site.zero(site.operand(0))})
    product = site.insert("mul", {"x": x, "y": slope})
    return site.emit("select", {"condition": below, "true_value": product, "false_value": x})


@operator("Gelu")
def _gelu(site: NodeSite) -> Any:
    x = site.operand(0)
    if site.choice("approximate", "none", "tanh", default="none") == "tanh":
        return site.emit("gelu", {"x": x}, approximation="tanh")
    inner = site.insert("mul", {"x": x, "y": site.item(math.sqrt(0.5), x)})
    whole = site.insert("add", {"x": site.insert("erf", {"x": inner}), "y": site.item(1, x)})
    half = site.insert("mul", {"x": x, "y": site.item(0.5, x)})
    return site.emit("mul", {"x": half, "y": whole})


@operator("Swish")
def _swish(site: NodeSite) -> Any:
    x, alpha = site.operand(0), site.number("alpha", 1.0)
    if alpha == 1:
        return site.emit("silu", {"x": x})
    gate = site.insert("sigmoid", {"x": site.insert("mul", {"x": x, "y": site.item(alpha, x)})})
    return site.emit("mul", {"x": x, "y": gate})


# What is random


def _refused(site: NodeSite) -> Any:
    raise InvalidOperation(
        "its results are random: no two runtimes have the same, and it is given no key",
        "cut the network behind it, and give it the numbers",
    )


for _name in (
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
):  # fmt: skip
    operator(_name)(_refused)


@operator("Dropout")
def _dropout(site: NodeSite) -> Any:
    """Return the input, and that all of it is kept: inference alone is exact."""
    if site.version < 7:
        trains = not site.flag("is_test") and site.number("ratio", 0.5) != 0
    else:
        trains = site.has(2) and bool(site.known(2).any())
        trains = trains and not (site.has(1) and not site.known(1).any())
    if trains:
        return _refused(site)
    x = site.operand(0)
    result = site.emit("copy", {"x": x})
    if not site.wants(1):
        return result
    dtype = "bool" if site.version >= 10 else site.dtype_of()
    one = site.constant(1, dtype)
    shape = site.known_shape()
    return result, site.insert("broadcast", {"input": one}, shape=shape) if shape else one
