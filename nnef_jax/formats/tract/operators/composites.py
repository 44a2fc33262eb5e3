"""Functions for attention, recurrence, indices and resampling: one operation may become several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from lowering import resampling
from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import differ, is_known, show
from lowering.graph import is_float
from lowering.ops import require
from nnef_jax.flattening.operators.attributes import (
    axis,
    flag,
    integer,
    integers,
    number,
    numbers,
    text,
)
from nnef_jax.formats.tract.call_site import CallSite, TractOperand
from nnef_jax.formats.tract.operators.registry import operator


@operator("tract_core_pow_const")
def power(site: CallSite, x: TractOperand, *, exponent: float = number("exponent")) -> TractOperand:
    """Compute x^exponent. The exponent is converted to the dtype of x."""
    return site.last.pow(x, jnp.dtype(site.dtype_of(x)).type(exponent))


@operator("tract_core_rms_norm")
def rms_norm(
    site: CallSite, input: TractOperand, epsilon: TractOperand, *, axis: int = axis("axis")
) -> TractOperand:
    """Divide the input by the root of its mean square along an axis."""
    scale = jnp.dtype(site.dtype_of(input)).type(1)  # rms_norm multiplies by a scale
    return site.last.rms_norm(input, scale, epsilon, axis=axis, dtype="")


@operator("tract_transformers_sdpa")
def attention(
    site: CallSite,
    query: TractOperand,
    key: TractOperand,
    value: TractOperand,
    mask: TractOperand,
    *,
    scale: float = number("scale"),
    is_causal: bool = flag("is_causal"),
    wide: str = text("acc_datum_type"),
) -> TractOperand:
    """Compute attention in the dtype `wide`, or in the dtype of the operands if `wide` is "".

    The result has the dtype of the operands.
    """
    dtype = site.dtype_of(query)
    attributes = {"scale": scale, "is_causal": is_causal}
    if wide in ("", dtype):
        return site.last.attention(query, key, value, mask, **attributes)
    if not is_float(wide):
        raise InvalidOperation(f"'acc_datum_type' must be a type of real numbers, it is {wide}")
    wide_query = site.step_on("query").cast(query, dtype=wide)
    wide_key = site.step_on("key").cast(key, dtype=wide)
    wide_value = site.step_on("value").cast(value, dtype=wide)
    result = site.step.attention(wide_query, wide_key, wide_value, mask, **attributes)
    return site.last.cast(result, dtype=dtype)


@operator("tract_transformers_scaled_masked_softmax")
def masked_softmax(
    site: CallSite,
    input: TractOperand,
    mask: TractOperand,
    *,
    acts_again: bool = flag("post_softmax_mask"),
) -> TractOperand:
    """Compute the softmax of the input, after the input is scaled and masked.

    If `acts_again`, the mask is applied to the result again. Raises InvalidOperation if a mask that
    acts again has numbers, not truth values.
    """
    dtype = site.dtype_of(mask)
    # A mask of truth values is applied once, since a second time would not change the result.
    if acts_again and dtype != "bool":
        message = f"'post_softmax_mask' takes a mask of logical values, this one holds {dtype}"
        raise InvalidOperation(message)
    return site.last.masked_softmax(input, mask)


@operator("tract_moe_ffn")
def experts(
    site: CallSite,
    input: TractOperand,
    router: TractOperand,
    w1: TractOperand,
    w2: TractOperand,
    w3: TractOperand,
    router_bias: TractOperand,
    *,
    alpha: float = number("act_alpha"),
    limit: float = number("act_limit"),
    layout: str = text("expert_layout"),
) -> TractOperand:
    """Add a mixture of experts: a router chooses the experts through which each row passes.

    `w1`, `w2` and `w3` are the weights of the experts. If `layout` is "linear", the last two axes
    of each of these weights are swapped first.
    """
    require.one_of("expert_layout", layout, ("canonical", "linear"))
    if site.rank(router) == 3:  # the first axis has extent 1
        router = site.step_on("router").squeeze(router, axes=(0,))
    weights = {"w1": w1, "w2": w2, "w3": w3}
    if layout == "linear":
        for name, weight in weights.items():
            is_left_out = weight is False
            if not is_left_out:
                weights[name] = site.step_on(name).transpose(weight, axes=(0, 2, 1))
    return site.last.mixture_of_experts(
        input, router, *weights.values(), router_bias, alpha=alpha, limit=limit
    )


# Recurrence


def _require_hidden(site: CallSite, name: str, x: TractOperand, items: int) -> None:
    """Raise InvalidShape unless the last axis of the operand `x` has `items` items.

    `name` is the name of the operand in the error.
    """
    shape = site.shape(x)
    if not shape or differ(shape[-1], items):
        message = f"'{name}' {show(shape)} must have 'hidden' {items} items along its last axis"
        raise InvalidShape(message)


@operator("tract_core_lstm_epilogue")
def lstm_pointwise(
    site: CallSite, gates: TractOperand, cell: TractOperand, *, hidden: int = integer("hidden")
) -> Any:
    """Compute the last, pointwise part of an LSTM step from the gates and the cell state."""
    _require_hidden(site, "cell", cell, hidden)
    return site.last.lstm_pointwise(gates, cell)


@operator("tract_core_gru_epilogue")
def gru_pointwise(
    site: CallSite,
    input_gates: TractOperand,
    state_gates: TractOperand,
    state: TractOperand,
    *,
    hidden: int = integer("hidden"),
) -> Any:
    """Compute the elementwise part of a GRU step from the gates and the state.

    `input_gates` and `state_gates` are the products of the input and of the state with their
    weights. `hidden` is the number of items of the state.
    """
    _require_hidden(site, "state", state, hidden)
    return site.last.gru_pointwise(input_gates, state_gates, state)


@operator("tract_core_gru_seq")
def gru_sequence(
    site: CallSite,
    input: TractOperand,
    weight: TractOperand,
    recurrent_weight: TractOperand,
    bias: TractOperand,
    initial_state: TractOperand,
    *,
    hidden: int = integer("hidden"),
    chunk: int = integer("chunk"),
    has_bias: bool = flag("has_bias"),
    projected: bool = flag("projected"),
    emit_states: bool = flag("emit_y"),
) -> Any:
    """Run a GRU over a sequence: from the start if `chunk` is 1, from the end if `chunk` is -1.

    If `projected`, `input` is already multiplied by `weight`. If `emit_states`, the result has the
    states of all time steps.
    """
    _require_hidden(site, "recurrent_weight", recurrent_weight, hidden)
    if chunk not in (1, -1):
        message = f"'chunk' must be 1, or -1 for the sequence from its end, it is {chunk}"
        raise InvalidOperation(message)
    # An operand that is False is left out.
    if projected:
        weight = False
    if not has_bias:
        bias = False
    return site.last.gru_sequence(
        input, weight, recurrent_weight, bias, initial_state, reverse=chunk < 0,
        emit_states=emit_states,
    )  # fmt: skip


# Indices


@operator("tract_core_gather")
def gather(
    site: CallSite,
    input: TractOperand,
    indices: TractOperand,
    *,
    axis: int = axis("axis"),
    dtype: str = text("datum_type"),
) -> TractOperand:
    """Gather items along an axis. If `dtype` is not "", cast the items to this dtype."""
    if dtype in ("", site.dtype_of(input)):
        return site.last.gather(input, indices, axis=axis)
    return site.last.cast(site.step.gather(input, indices, axis=axis), dtype=dtype)


@operator("tract_core_one_hot")
def one_hot(
    site: CallSite,
    indices: TractOperand,
    *,
    depth: int = integer("dim"),
    off_value: float = number("value_off"),
    on_value: float = number("value_on"),
) -> TractOperand:
    """Return one-hot vectors. Real indices are truncated to integers."""
    if is_float(site.dtype_of(indices)):
        indices = site.step_on("indices").cast(indices, dtype="int32")
    return site.last.one_hot(indices, depth=depth, off_value=off_value, on_value=on_value)


@operator("tract_onnx_ml_tree_ensemble_classifier")
def tree_ensemble(
    site: CallSite,
    input: TractOperand,
    *,
    last: int = integer("max_used_feature"),
    classes: int = integer("n_classes"),
    aggregate: str = text("aggregate_fn"),
) -> TractOperand:
    """Compute the scores of an ensemble of trees.

    `last` is the highest index of a feature that the trees read. Raises InvalidShape if the input
    has fewer features.
    """
    shape = site.shape(input)
    if shape and shape[-1] <= last:
        raise InvalidShape(
            f"the trees read feature {last}, 'input' {show(shape)} has only {shape[-1]} features"
        )
    return site.last.tree_ensemble(input, classes=classes, aggregate=aggregate)


@operator("tract_core_resize")
def resize(
    site: CallSite,
    input: TractOperand,
    *,
    mode: str = text("interpolator"),
    coordinate_transformation_mode: str = text("coord_transformer"),
    scales: Sequence[float] = numbers("scales"),
    sizes: Sequence[int] = integers("sizes"),
) -> TractOperand:
    """Resize a tensor by scales or to sizes.

    If the coordinates are "align_corners", the scales are replaced by the sizes of the result. With
    scales, the graph's `resize` aligns the last items only if extent * scale is an integer, whereas
    tract always aligns them.
    """
    # tract has all transformations of coordinates except the one that crops the input.
    modes = tuple(name for name in resampling.COORDINATES if name != resampling.CROP)
    require.one_of("coord_transformer", coordinate_transformation_mode, modes)
    coordinates = coordinate_transformation_mode
    shape = site.shape(input)
    are_scales_valid = len(scales) == len(shape) and all(0 < scale < math.inf for scale in scales)
    can_compute_sizes = are_scales_valid and is_known(shape) and not sizes
    if coordinates == "align_corners" and can_compute_sizes:
        lengths: list[int] = []
        for extent, scale in zip(shape, scales, strict=True):
            lengths.append(int(resampling.resized_length(extent, scale)))
        sizes = tuple(lengths)
        scales = ()
    if coordinates == "pytorch_half_pixel":
        # In ONNX, "pytorch_half_pixel" differs from "half_pixel" for a result of one item. tract
        # makes no such difference.
        coordinates = "half_pixel"
    region = False  # only the transformation that crops has a region
    return site.last.resize(
        input, region, scales=scales, sizes=sizes, mode=mode,
        coordinate_transformation_mode=coordinates, cubic_coeff_a=resampling.CUBIC,
        exclude_outside=False, antialias=False, extrapolation_value=0.0,
    )  # fmt: skip
