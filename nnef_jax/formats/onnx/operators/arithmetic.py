"""Item by item: arithmetic, comparisons, logic, activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nnef_jax.formats.onnx.operators import operator
from nnef_jax.formats.onnx.site import Site

_UNARY = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh",
    "Atan": "atan", "Atanh": "atanh", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf",
    "Exp": "exp", "Floor": "floor", "HardSwish": "hard_swish", "Identity": "copy",
    "IsNaN": "is_nan",
    "Log": "log", "Neg": "neg", "Not": "not", "BitwiseNot": "bitwise_not", "Reciprocal": "rcp",
    "Relu": "relu", "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin", "Sinh": "sinh",
    "Softplus": "softplus", "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
}  # fmt: skip
_BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Equal": "eq", "Less": "lt",
    "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge", "And": "and", "Or": "or",
    "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor",
}  # fmt: skip


def _unary(kind: str) -> Callable[[Site], Any]:
    return lambda site: site.emit(kind, {"x": site.operand(0)})


for _name, _kind in _UNARY.items():
    operator(_name)(_unary(_kind))


def _binary(kind: str) -> Callable[[Site], Any]:
    def meaning(site: Site) -> Any:
        x, y = site.aligned(site.operand(0), site.operand(1))
        return site.emit(kind, {"x": x, "y": y})

    return meaning


for _name, _kind in _BINARY.items():
    operator(_name)(_binary(_kind))
