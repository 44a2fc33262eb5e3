"""Functions for layers that become one operation or need one line of code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import methodcaller
from typing import Any

from nnef_jax.flattening.operators.attributes import axis, flag, integer, number, numbers, word
from nnef_jax.flattening.operators.registry import Meaning, Refusal, operation
from nnef_jax.formats.openvino.document import FIRST_OF_OPSETS
from nnef_jax.formats.openvino.layers.registry import (
    LEGACY,
    OPERATORS,
    either,
    integer_tensor,
    number_at,
)

# Takes the index of an input, and returns a reader of this input as indices.
indices: Callable[[int], Any] = partial(methodcaller, "indices")


def on_two(kind: str) -> Meaning:
    """Make the function that flattens a layer to a single operation on inputs 0 and 1.

    `kind` is the name of the operation, such as "add". The inputs are broadcast to each other.
    """
    return lambda site: getattr(site.last, kind)(*site.broadcast())


# Maps layers with one operand to names of operations. In versions 2 to 9, the attribute `type` of
# the layer Activation may have the name of such a layer.
FUNCTIONS = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh",
    "Atan": "atan", "Atanh": "atanh", "Ceil": "ceil", "Ceiling": "ceil", "Cos": "cos",
    "Cosh": "cosh", "Erf": "erf", "Exp": "exp", "Floor": "floor", "HSwish": "hard_swish",
    "Log": "log", "Neg": "neg", "Negative": "neg", "Sigmoid": "sigmoid", "Sign": "sign",
    "Sin": "sin", "Sinh": "sinh", "SoftPlus": "softplus", "Sqrt": "sqrt", "Tan": "tan",
    "Tanh": "tanh", "LogicalNot": "not", "BitwiseNot": "bitwise_not", "IsNaN": "is_nan",
    "Reciprocal": "rcp", "Copy": "copy", "Identity": "copy",
}  # fmt: skip
# Maps layers with two operands to names of operations.
PAIRS = {
    "Add": "add", "Subtract": "sub", "Multiply": "mul", "Power": "pow",
    "Maximum": "max", "Minimum": "min", "Equal": "eq", "NotEqual": "ne", "Less": "lt",
    "LessEqual": "le", "Greater": "gt", "GreaterEqual": "ge", "LogicalAnd": "and",
    "LogicalOr": "or", "LogicalXor": "bitwise_xor", "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor", "BitwiseLeftShift": "shift_left",
    "BitwiseRightShift": "shift_right", "Mod": "rem",
}  # fmt: skip
_TIES = {"half_to_even": "even", "half_away_from_zero": "away"}

_ROWS_OF_ALL_VERSIONS: dict[str, Meaning] = {
    **{type: operation(kind) for type, kind in FUNCTIONS.items()},
    "Elu": operation("elu", alpha=number("alpha", 1.0)),
    "LogSoftmax": operation("log_softmax", axes=lambda site: (site.axis_of("axis", 1),)),
    "ReverseSequence": operation(
        "reverse_sequence", 0, indices(1),
        batch_axis=axis("batch_axis", 0), time_axis=axis("seq_axis", 1),
    ),
    "Round": operation("round", ties=lambda site: _TIES[word("mode", *_TIES)(site)]),
    "Mish": lambda site, x: site.last.mul(x, site.step.tanh(site.step.softplus(x))),
    "Select": lambda site, condition, x, y: site.last.select(
        *site.aligned(site.truths(condition), x, y)
    ),
    "SoftMax": operation("softmax", axes=lambda site: (site.axis_of("axis", 1),)),
    "SoftSign": lambda site, x: site.last.div(x, site.step.add(site.step.abs(x), 1.0)),
}  # fmt: skip
_ROWS_OF_OPSETS: dict[str, Meaning] = {
    **{type: on_two(kind) for type, kind in PAIRS.items()},
    "CumSum": operation(
        "cumsum", axis=lambda site: site.axes(1)[0] if site.has(1) else site.axis(0),
        exclusive=flag("exclusive"), reverse=flag("reverse"),
    ),
    "CTCGreedyDecoder": operation(
        "ctc_greedy_decoder", 0, 1, merges=flag("ctc_merge_repeated", True)
    ),
    "CTCLoss": operation(
        "ctc_loss", 0, integer_tensor(1), integer_tensor(2), integer_tensor(3),
        blank=lambda site: site.integers(4)[0] if site.has(4) else site.known_shape()[2] - 1,
        collapses=flag("preprocess_collapse_repeated"), unique=flag("unique"),
        merges=flag("ctc_merge_repeated", True),
    ),
    "GatherElements": operation("gather_elements", 0, 1, axis=axis("axis")),
    "GridSample": operation(
        "grid_sample", 0, 1, align_corners=flag("align_corners"),
        mode=word("mode", "bilinear", "nearest", "bicubic"),
        padding_mode=word("padding_mode", "zeros", "border", "reflection"),
    ),
    "HSigmoid": lambda site, x: site.last.div(
        site.step.clamp(site.step.add(x, 3.0), 0.0, 6.0), 6.0
    ),
    "IsFinite": lambda site, x: site.last.not_(
        site.step.or_(site.step.is_inf(x, positive=True, negative=True), site.step.is_nan(x))
    ),
    "IsInf": operation(
        "is_inf", positive=flag("detect_positive", True), negative=flag("detect_negative", True)
    ),
    "ReLU": operation("relu"),
    **dict.fromkeys(
        ("RMS", "RMSNorm"),
        operation(
            "rms_norm", 0, 1, either(number("epsilon", 1e-5), "eps"),
            axis=lambda site: len(site.shape()) - 1, dtype="",
        ),
    ),
    "Selu": operation("selu", **{"alpha": number_at(1), "lambda": number_at(2)}),
    "SquaredDifference": lambda site: site.last.sqr(site.step.sub(*site.broadcast())),
    "ExperimentalDetectronDetectionOutput": operation(
        "refined_detections", 0, 1, 2,
        score_threshold=number("score_threshold"), nms_threshold=number("nms_threshold"),
        keep_per_class=integer("post_nms_count"), keep=integer("max_detections_per_image"),
        largest=number("max_delta_log_wh"), weights=numbers("deltas_weights"),
    ),
}  # fmt: skip
_ROWS_OF_LEGACY: dict[str, Meaning] = {
    "CTCGreedyDecoder": operation("ctc_greedy_decoder", 0, 1, merges=True),
    "Fill": operation("broadcast", 1, shape=methodcaller("integers", 0)),
    "Flatten": lambda site, x: site.flattened(
        x, first=site.axis_of("axis", 0), last=site.axis_of("end_axis", -1)
    ),
    "Not": lambda site, x: site.last.sub(1.0, x),
    "Selu": operation(
        "selu", **{"alpha": number("alpha", 1.6732632), "lambda": number("gamma", 1.0507010)}
    ),
}

# Layers that are refused: their results depend on more than their inputs, or are no arrays.
REFUSED: Mapping[str, Meaning] = {
    **dict.fromkeys(
        ("RandomUniform", "Multinomial"),
        Refusal(
            "it draws random numbers, and a model is a function of its inputs",
            "cut the network there, and give numbers from jax.random as an input",
        ),
    ),
    **dict.fromkeys(
        ("StringTensorPack", "StringTensorUnpack"),
        Refusal(
            "it holds text, and arrays hold numbers",
            "cut the network after its tokenizer, and give tokens as an input",
        ),
    ),
}

OPERATORS.rows(_ROWS_OF_ALL_VERSIONS)
OPERATORS.rows(_ROWS_OF_LEGACY, until=LEGACY)
OPERATORS.rows(_ROWS_OF_OPSETS | REFUSED, since=FIRST_OF_OPSETS)
