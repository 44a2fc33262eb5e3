"""tract's additions to NNEF as kinds: attention, recurrence, quantised products, signals.

States that tract keeps from call to call start from the operand: `stateless` and
`reset_every_turn` change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import differ, is_known, show
from lowering.graph import is_float
from lowering.kernels.resampling import COORDINATES, CROP, CUBIC, length
from lowering.ops import require
from lowering.ops.require import normal_axis
from nnef_jax.formats.tract.conventions import convolution, legacy_terms
from nnef_jax.formats.tract.meaning import Draft, Meaning

# Transformers


def _attention(draft: Draft) -> None:
    """Compute in `acc_datum_type`; the result has the type of the operands."""
    dtype, wide = draft.dtype("query"), draft.attributes.pop("acc_datum_type")
    if wide in ("", dtype):
        return
    if not is_float(wide):
        raise InvalidOperation(f"'acc_datum_type' must be a type of real numbers, it is {wide}")
    for name in ("query", "key", "value"):
        draft.before(name, "cast", dtype=wide)
    draft.after("cast", dtype=dtype)


def _masked_softmax(draft: Draft) -> None:
    dtype = draft.dtype("mask")
    if draft.attributes.pop("post_softmax_mask") and dtype != "bool":  # a bool mask acts so
        raise InvalidOperation(
            f"'post_softmax_mask' takes a mask of logical values, this one holds {dtype}"
        )


def _experts(draft: Draft) -> None:
    layout = draft.attributes.pop("expert_layout")
    require.one_of("expert_layout", layout, ("canonical", "linear"))
    if len(draft.shape("router")) == 3:
        draft.before("router", "squeeze", axes=(0,))
    for name in ("w1", "w2", "w3"):
        if layout == "linear" and draft.operands[name] is not False:
            draft.before(name, "transpose", axes=(0, 2, 1))


# Recurrence


def _require_hidden(draft: Draft, name: str) -> None:
    hidden, shape = draft.attributes.pop("hidden"), draft.shape(name)
    if not shape or differ(shape[-1], hidden):
        raise InvalidShape(
            f"'{name}' {show(shape)} must have 'hidden' {hidden} items along its last axis"
        )


def _lstm(draft: Draft) -> None:
    _require_hidden(draft, "cell")


def _gru(draft: Draft) -> None:
    _require_hidden(draft, "state")


def _gru_sequence(draft: Draft) -> None:
    _require_hidden(draft, "recurrent_weight")
    chunk = draft.attributes.pop("chunk")
    if chunk not in (1, -1):
        raise InvalidOperation(
            f"'chunk' must be 1, or -1 for the sequence from its end, it is {chunk}"
        )
    draft.attributes["reverse"] = chunk < 0
    if not draft.attributes.pop("has_bias"):
        draft.operands["bias"] = False
    if draft.attributes.pop("projected"):
        draft.operands["weight"] = False


# Indices


def _gather(draft: Draft) -> None:
    dtype = draft.attributes.pop("datum_type")
    draft.attributes["axis"] = normal_axis(draft.attributes["axis"], len(draft.shape("input")))
    if dtype not in ("", draft.dtype("input")):
        draft.after("cast", dtype=dtype)


def _one_hot(draft: Draft) -> None:
    if is_float(draft.dtype("indices")):
        draft.before("indices", "cast", dtype="int32")


def _suppression(draft: Draft) -> None:
    centre = draft.attributes["center_point_box"]
    if centre not in (0, 1):
        raise InvalidOperation(f"'center_point_box' must be 0 or 1, it is {centre}")
    draft.attributes["center_point_box"] = bool(centre)


def _tree_ensemble(draft: Draft) -> None:
    last, shape = draft.attributes.pop("max_used_feature"), draft.shape("input")
    if shape and shape[-1] <= last:
        raise InvalidShape(
            f"the trees read feature {last}, 'input' {show(shape)} has only {shape[-1]} features"
        )


# Resampling, normalisation


def _core_resize(draft: Draft) -> None:
    draft.operands["roi"] = False
    given, shape = draft.attributes, draft.shape("input")
    mode = given["coordinate_transformation_mode"]
    require.one_of("coord_transformer", mode, tuple(name for name in COORDINATES if name != CROP))
    if mode == "pytorch_half_pixel":  # no exception for a single item
        given["coordinate_transformation_mode"] = "half_pixel"
    scales = given["scales"]
    whole = mode == "align_corners" and len(scales) == len(shape) and is_known(shape)
    if whole and not given["sizes"] and all(0 < scale < math.inf for scale in scales):
        # The last item is aligned where the scale leaves a part of one over.
        given["sizes"], given["scales"] = tuple(map(int, map(length, shape, scales))), ()


def _response(draft: Draft) -> None:
    shape, size = draft.shape("input"), draft.attributes["size"]
    if len(shape) < 2:
        raise InvalidShape(f"'input' {show(shape)} must have channels along its second axis")
    draft.attributes["size"] = (1, size) + (1,) * (len(shape) - 2)


# Quantised products


def _quantized_einsum(draft: Draft) -> None:
    inputs = draft.operands.pop("inputs")
    if len(inputs) != 2:
        raise InvalidOperation(f"there must be two inputs, there are {len(inputs)}")
    draft.operands["a"], draft.operands["b"] = inputs
    sums, dtype = draft.attributes.pop("acc"), draft.attributes.pop("output")
    draft.attributes["dtype"] = dtype or sums


def _quantized_matmul(draft: Draft) -> None:
    """Take bias, a0 and a_scale for each row, b0 and b_scale for each column, or one for all."""
    a, b, c = legacy_terms(draft)
    draft.attributes["expr"] = f"{a},{b},m,m,m,n,n,,->{c}"


def _quantized_conv(draft: Draft) -> None:
    group = draft.attributes.pop("group")  # tract declares it, and writes `groups`
    if draft.attributes["groups"] == 1:
        draft.attributes["groups"] = group
    convolution(draft)
    draft.attributes["dtype"] = draft.attributes["dtype"] or draft.dtype("input")


_PRODUCT = {
    "a0": "a_zero_point", "b0": "b_zero_point", "c0": "output_zero_point",
    "c_scale": "output_scale",
}  # fmt: skip
_RESIZE = {
    "coord_transformer": "coordinate_transformation_mode", "interpolator": "mode",
}  # fmt: skip

ADDITIONS: Mapping[str, Meaning] = {
    "tract_transformers_sdpa": Meaning(
        "attention",
        {"q": "query", "k": "key", "v": "value"},
        dropped=frozenset({"datum_type"}),  # it repeats that of the operands
        rewrite=_attention,
    ),
    "tract_transformers_scaled_masked_softmax": Meaning("masked_softmax", rewrite=_masked_softmax),
    "tract_transformers_apply_rope": Meaning("rotary_embedding"),
    "tract_moe_ffn": Meaning(
        "mixture_of_experts",
        {
            "x": "input", "wg": "router", "wg_bias": "router_bias", "act_alpha": "alpha",
            "act_limit": "limit",
        },
        rewrite=_experts,
    ),
    "tract_core_lstm_epilogue": Meaning(
        "lstm_pointwise", {"preact": "gates", "c_prev": "cell"}, rewrite=_lstm
    ),
    "tract_core_gru_epilogue": Meaning(
        "gru_pointwise", {"xh": "input_gates", "rh": "state_gates", "h_prev": "state"}, rewrite=_gru
    ),
    "tract_core_gru_seq": Meaning(
        "gru_sequence",
        {
            "x": "input", "w": "weight", "r": "recurrent_weight", "b": "bias",
            "initial_h": "initial_state", "emit_y": "emit_states",
        },
        dropped=frozenset({"reset_every_turn"}),
        rewrite=_gru_sequence,
    ),
    "tract_transformers_causal_conv1d_update": Meaning("causal_conv1d_update"),
    "tract_transformers_gdn_recurrent": Meaning("gated_delta_rule"),
    "tract_core_gather": Meaning("gather", rewrite=_gather),
    "tract_core_gather_elements": Meaning("gather_elements"),
    "tract_core_gather_nd": Meaning("gather_nd"),
    "tract_core_scatter_elements": Meaning("scatter_elements"),
    "tract_core_scatter_nd": Meaning("scatter_nd"),
    "tract_core_topk": Meaning("topk"),
    "tract_core_one_hot": Meaning(
        "one_hot",
        {"input": "indices", "dim": "depth", "value_off": "off_value", "value_on": "on_value"},
        rewrite=_one_hot,
    ),
    "tract_onnx_non_max_suppression": Meaning("non_max_suppression", rewrite=_suppression),
    # A name for the number of those that there are.
    "tract_onnx_non_zero": Meaning("non_zero", dropped=frozenset({"count_symbol"})),
    "tract_onnx_ml_direct_lookup": Meaning("direct_lookup"),
    "tract_onnx_ml_reverse_lookup": Meaning("reverse_lookup"),
    "tract_onnx_ml_tree_ensemble_classifier": Meaning(
        "tract.tree_ensemble",
        {"n_classes": "classes", "aggregate_fn": "aggregate"},
        rewrite=_tree_ensemble,
    ),
    "tract_core_resize": Meaning(
        "resize",
        _RESIZE,
        {
            "cubic_coeff_a": CUBIC, "exclude_outside": False, "antialias": False,
            "extrapolation_value": 0.0,
        },
        rewrite=_core_resize,
    ),
    "tract_onnx_resize": Meaning("resize", _RESIZE),
    "tract_core_grid_sample": Meaning("grid_sample"),
    "tract_onnx_lrn": Meaning("local_response_normalization", rewrite=_response),
    "tract_core_einsum_q": Meaning("quantized_einsum", _PRODUCT, rewrite=_quantized_einsum),
    "tract_core_qmatmul": Meaning(
        "quantized_einsum",
        _PRODUCT | {"A": "a", "B": "b", "output_type": "dtype"},
        rewrite=_quantized_matmul,
    ),
    "tract_core_qconv": Meaning(
        "quantized_conv",
        {
            "a0": "filter_zero_point", "a_scale": "filter_scale", "b0": "input_zero_point",
            "b_scale": "input_scale", "c0": "output_zero_point", "c_scale": "output_scale",
            "output_dt": "dtype",
        },
        rewrite=_quantized_conv,
    ),
    "tract_core_fft": Meaning("fft"),
    "tract_core_stft": Meaning("stft", {"frame": "frame_length", "stride": "frame_step"}),
    "tract_core_inner_dim_to_complex": Meaning("pairs_to_complex"),
    "tract_core_complex_to_inner_dim": Meaning("complex_to_pairs"),
    "tract_extra_exp_unit_norm": Meaning("tract.exp_unit_norm", dropped=frozenset({"stateless"})),
    "tract_extra_exp_mean_norm": Meaning("tract.exp_mean_norm", dropped=frozenset({"stateless"})),
}  # fmt: skip
