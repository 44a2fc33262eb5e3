"""The table of operators that become a single operation.

A row has the kind of the operation, the indices of inputs, and the attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import Any

from nnef_jax.flattening.operators.attributes import axis, flag, integer, number, word
from nnef_jax.flattening.operators.registry import Meaning, Refusal, operation
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import OPERATORS

# The names of operations on one tensor. The operator has the same name with a capital letter: the
# operator Abs becomes the operation "abs".
_SAME_NAME = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp",
    "floor", "log", "neg", "not", "relu", "sigmoid", "sign", "sin", "sinh", "softplus", "sqrt",
    "tan", "tanh",
)  # fmt: skip
_REDUCTION = word("reduction", "none", "add", "mul", "min", "max")
_RANDOM = (
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
)  # fmt: skip
RANDOM = Refusal(
    "its results are random: no two runtimes have the same, and it is given no key",
    "cut the network behind it, and give it the numbers",
)


def plane(site: NodeSite) -> tuple[int, ...]:
    """Return the spatial axes of input 0, which are all axes but the first two."""
    return tuple(range(2, site.rank()))


def _class_axis(site: NodeSite) -> tuple[int, ...]:
    """Return the axis of a softmax since version 13, by default the last one."""
    return (site.axis_of("axis", -1),)


def _class_axes(site: NodeSite) -> tuple[int, ...]:
    """Return the axes of a softmax before version 13: the attribute `axis` and all later axes."""
    first_axis = site.axis_of("axis", 1)
    return tuple(range(first_axis, site.rank()))


def _input_or(i: int, default: float) -> Callable[[NodeSite], Any]:
    """Return a function that returns input `i` of a site, or a default if the input is left out."""

    def read(site: NodeSite) -> Any:
        return site.operand(i) if site.has(i) else default

    return read


_ROWS: Mapping[str, Meaning] = {
    **{kind.capitalize(): operation(kind) for kind in _SAME_NAME},
    **dict.fromkeys(_RANDOM, RANDOM),
    "BitwiseAnd": operation("bitwise_and", 0, 1),
    "BitwiseNot": operation("bitwise_not"),
    "BitwiseOr": operation("bitwise_or", 0, 1),
    "BitwiseXor": operation("bitwise_xor", 0, 1),
    **{
        name: operation(
            name.lower(), axis=lambda site: site.axis(site.integer(1)),
            exclusive=flag("exclusive"), reverse=flag("reverse"),
        ) for name in ("CumSum", "CumProd")
    },
    "Det": operation("determinant"),
    "Elu": operation("elu", alpha=number("alpha", 1.0)),
    "Expand": operation("broadcast", shape=methodcaller("integers", 1)),
    "Gather": operation("gather", 0, 1, axis=axis("axis", 0)),
    "GatherElements": operation("gather_elements", 0, 1, axis=axis("axis", 0)),
    "GatherND": operation("gather_nd", 0, 1, batch_dims=integer("batch_dims", 0)),
    "GlobalAveragePool": operation("mean_reduce", axes=plane),
    "GlobalMaxPool": operation("max_reduce", axes=plane),
    "GreaterOrEqual": operation("ge", 0, 1),
    "HardSwish": operation("hard_swish"),
    "IsInf": operation(
        "is_inf", positive=flag("detect_positive", True), negative=flag("detect_negative", True)
    ),
    "IsNaN": operation("is_nan"),
    "LeakyRelu": operation("leaky_relu", alpha=number("alpha", 0.01)),
    "LessOrEqual": operation("le", 0, 1),
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
    "Trilu": operation("triangle", 0, _input_or(1, 0), upper=flag("upper", True)),
    "Where": operation("select", 0, 1, 2),
}  # fmt: skip

OPERATORS.rows(_ROWS)
for _name, _kind in (("Softmax", "softmax"), ("LogSoftmax", "log_softmax")):
    OPERATORS.rows({_name: operation(_kind, axes=_class_axes)})
    OPERATORS.rows({_name: operation(_kind, axes=_class_axis)}, since=13)
