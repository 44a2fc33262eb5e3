"""The operators that are one operation each, or a line: the kind, its inputs and attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import Any

from nnef_jax.flattening.attributes import axis, flag, integer, number, word
from nnef_jax.flattening.operators import Meaning, Refusal, operation
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import OPERATORS

# Functions of one tensor that are called as their kinds.
_NAMED = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp",
    "floor", "log", "neg", "not", "relu", "sigmoid", "sign", "sin", "sinh", "softplus", "sqrt",
    "tan", "tanh",
)  # fmt: skip
_PAIRS = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Equal": "eq", "Less": "lt",
    "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge", "And": "and", "Or": "or",
    "Xor": "bitwise_xor", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
}  # fmt: skip
_REDUCTION = word("reduction", "none", "add", "mul", "min", "max")
_RANDOM = (
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
)  # fmt: skip
RANDOM = Refusal(
    "its results are random: no two runtimes have the same, and it is given no key",
    "cut the network behind it, and give it the numbers",
)


def pair(site: NodeSite) -> tuple[Any, Any]:
    """Return two operands that broadcast as numpy does; before version 7 along an axis."""
    x, y = site.operand(0), site.operand(1)
    if site.version < 7 and site.flag("broadcast") and "axis" in site.node.attributes:
        behind = site.axis_of("axis") + site.rank(y)
        y = site.unsqueezed(y, range(site.rank(y), site.rank(y) + site.rank(x) - behind))
    return x, y


def _on_two(kind: str) -> Meaning:
    return lambda site: getattr(site.last, kind)(*pair(site))


def plane(site: NodeSite) -> tuple[int, ...]:
    """Return the axes behind those of the batch and the channels."""
    return tuple(range(2, site.rank()))


def classes(site: NodeSite) -> tuple[int, ...]:
    """Return the axis of classes; before version 13 all from one on."""
    if site.version >= 13:
        return (site.axis_of("axis", -1),)
    return tuple(range(site.axis_of("axis", 1), site.rank()))


def _optional(i: int, default: Any) -> Callable[[NodeSite], Any]:
    return lambda site: site.operand(i) if site.has(i) else default


_ROWS: Mapping[str, Meaning] = {
    **{kind.capitalize(): operation(kind) for kind in _NAMED},
    **{name: _on_two(kind) for name, kind in _PAIRS.items()},
    **dict.fromkeys(_RANDOM, RANDOM),
    "BitShift": lambda site: getattr(
        site.last, f"shift_{site.choice('direction', 'LEFT', 'RIGHT').lower()}"
    )(*pair(site)),
    "BitwiseNot": operation("bitwise_not"),
    **{
        name: operation(
            name.lower(), axis=lambda site: site.axis(site.integer(1)),
            exclusive=flag("exclusive"), reverse=flag("reverse"),
        ) for name in ("CumSum", "CumProd")
    },
    "Concat": lambda site, *values: site.last.concat(
        values, axis=site.axis_of("axis", 1 if site.version < 4 else None)
    ),
    "Det": operation("determinant"),
    "Elu": operation("elu", alpha=number("alpha", 1.0)),
    "Expand": operation("broadcast", shape=methodcaller("integers", 1)),
    "Gather": operation("gather", 0, 1, axis=axis("axis", 0)),
    "GatherElements": operation("gather_elements", 0, 1, axis=axis("axis", 0)),
    "GatherND": operation("gather_nd", 0, 1, batch_dims=integer("batch_dims", 0)),
    "GlobalAveragePool": operation("mean_reduce", axes=plane),
    "GlobalMaxPool": operation("max_reduce", axes=plane),
    "HardSigmoid": lambda site, x: site.last.clamp(
        site.step.add(site.step.mul(x, site.number("alpha", 0.2)), site.number("beta", 0.5)), 0, 1
    ),
    "HardSwish": operation("hard_swish"),
    "IsInf": operation(
        "is_inf", positive=flag("detect_positive", True), negative=flag("detect_negative", True)
    ),
    "IsNaN": operation("is_nan"),
    "LeakyRelu": operation("leaky_relu", alpha=number("alpha", 0.01)),
    "LogSoftmax": operation("log_softmax", axes=classes),
    "LRN": operation(
        "local_response_normalization",
        size=lambda site: (1, site.int("size"), *[1] * (site.rank() - 2)),
        alpha=number("alpha", 1e-4), beta=number("beta", 0.75), bias=number("bias", 1),
    ),
    "Reciprocal": operation("rcp"),
    "ReverseSequence": operation(
        "reverse_sequence", 0, 1, batch_axis=axis("batch_axis", 1), time_axis=axis("time_axis", 0)
    ),
    "Round": operation("round", ties="even"),
    **dict.fromkeys(
        ("Scatter", "ScatterElements"),
        operation("scatter_elements", 0, 1, 2, axis=axis("axis", 0), reduction=_REDUCTION),
    ),
    "ScatterND": operation("scatter_nd", 0, 1, 2, reduction=_REDUCTION),
    "Softmax": operation("softmax", axes=classes),
    "Trilu": operation("triangle", 0, _optional(1, 0), upper=flag("upper", True)),
    "Where": operation("select", 0, 1, 2),
}  # fmt: skip

OPERATORS.rows(_ROWS)
