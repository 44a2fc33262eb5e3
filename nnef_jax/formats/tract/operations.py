"""The table from the dialect's operations to kinds; those not in it are kinds of the same name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial

from lowering import resampling
from lowering.ops import rules
from nnef_jax.formats.base import Expand
from nnef_jax.formats.syntax.standard import standard
from nnef_jax.formats.tract import composites, geometry
from nnef_jax.formats.tract.declarations import declarations
from nnef_jax.formats.tract.meaning import Meaning

# Kinds that a registry has under its prefix.
_PREFIXED = {
    "tract_core": (
        "is_nan", "silu", "erf", "hard_swish", "clamped_swiglu", "broadcast", "gather_elements",
        "gather_nd", "scatter_elements", "scatter_nd", "topk", "grid_sample", "fft",
    ),
    "tract_onnx_ml": ("direct_lookup", "reverse_lookup"),
    "tract_transformers": ("causal_conv1d_update",),
}  # fmt: skip
_RENAMED = {
    "recip": "rcp", "square": "sqr", "tract_shl": "shift_left", "tract_shr": "shift_right",
    "tract_core_bitand": "bitwise_and", "tract_core_bitor": "bitwise_or",
    "tract_core_bitxor": "bitwise_xor", "tract_core_xor": "bitwise_xor",
    "tract_core_bitnot": "bitwise_not", "tract_core_trilu": "triangle",
    "tract_core_inner_dim_to_complex": "pairs_to_complex",
    "tract_core_complex_to_inner_dim": "complex_to_pairs",
    "tract_transformers_apply_rope": "rotary_embedding",
    "tract_transformers_gdn_recurrent": "gated_delta_rule",
}  # fmt: skip
# Operations whose axes may count from the end.
_WITH_AXES = {
    **{name: name for name in (
        "sum_reduce", "max_reduce", "min_reduce", "argmax_reduce", "argmin_reduce", "transpose",
        "squeeze",
    )},
    "tract_core_product_reduce": "product_reduce",
    "tract_core_log_softmax": "log_softmax",
}  # fmt: skip
_EVEN = {"ties": "even"}
_NEVER_WINS = {"border": dict.fromkeys(("constant", "ignore"), "ignore")}
_RESIZE = {"coord_transformer": "coordinate_transformation_mode", "interpolator": "mode"}
_PRODUCT = {
    "a0": "a_zero_point", "b0": "b_zero_point", "c0": "output_zero_point",
    "c_scale": "output_scale",
}  # fmt: skip

# In each: the kind, its names of arguments by the dialect's, and attributes that are added. None is
# for what repeats other arguments, or resets states that tract keeps from call to call: here these
# start from the operand.
_MEANINGS: dict[str, Meaning] = {
    **{f"{prefix}_{kind}": Meaning(kind) for prefix, kinds in _PREFIXED.items() for kind in kinds},
    **{name: Meaning(kind) for name, kind in _RENAMED.items()},
    **{name: Meaning(kind, rewrite=geometry.many) for name, kind in _WITH_AXES.items()},
    # Arithmetic
    "round": Meaning("round", {}, {"ties": "away"}),
    "tract_core_round_even": Meaning("round", {}, _EVEN),
    "min_max_linear_quantize": Meaning("min_max_linear_quantize", {}, _EVEN),
    "zero_point_linear_quantize": Meaning("zero_point_linear_quantize", {}, _EVEN),
    "clamp": Meaning("clamp", {}, {"inclusive": True}),
    "tract_core_pow_const": Meaning("pow", {"input": "x"}, rewrite=composites.power),
    "tract_core_is_inf": Meaning(
        "is_inf", {"input": "x", "detect_positive": "positive", "detect_negative": "negative"}
    ),
    "tract_core_gelu_approx": Meaning(
        "gelu", {"input": "x", "fast_impl": "approximation"},
        values={"fast_impl": {True: "tanh_square", False: "tanh"}},
    ),
    "tract_core_cast": Meaning("cast", {"to": "dtype"}),
    # Axes
    "tract_core_argmax_reduce_last": Meaning("argmax_reduce", {}, {"last": True}, geometry.many),
    "tract_core_argmin_reduce_last": Meaning("argmin_reduce", {}, {"last": True}, geometry.many),
    "tract_core_cumsum": Meaning("cumsum", rewrite=geometry.one),
    "unsqueeze": Meaning("unsqueeze", rewrite=geometry.new),
    "slice": Meaning("slice", rewrite=geometry.sliced),
    "tract_core_downsample": Meaning("slice", rewrite=geometry.downsample),
    "tract_core_dyn_slice": Meaning(
        "dynamic_slice", {"len": "length", "end": None}, rewrite=geometry.one
    ),
    "pad": Meaning("pad", rewrite=geometry.pad),
    # Windows
    "max_pool": Meaning("max_pool", rewrite=geometry.pool, values=_NEVER_WINS),
    "max_pool_with_index": Meaning(
        "max_pool_with_index", rewrite=geometry.max_pool_with_index, values=_NEVER_WINS
    ),
    "nearest_upsample": Meaning("nearest_upsample", rewrite=geometry.upsample),
    "multilinear_upsample": Meaning(
        "multilinear_upsample", rewrite=geometry.upsample,
        values={"border": {"replicate": "replicate"}},
    ),
    "conv": Meaning("conv", rewrite=geometry.conv),
    "deconv": Meaning("deconv", rewrite=geometry.deconv),
    "tract_core_qconv": Meaning(
        "quantized_conv",
        {
            "a0": "filter_zero_point", "a_scale": "filter_scale", "b0": "input_zero_point",
            "b_scale": "input_scale", "c0": "output_zero_point", "c_scale": "output_scale",
            "output_dt": "dtype",
        },
        rewrite=geometry.quantized_conv,
    ),
    # Products
    "matmul": Meaning("matmul", rewrite=composites.same_rank),
    "linear": Meaning("linear", rewrite=composites.same_rank),
    "tract_core_einsum": Meaning(
        "einsum", {"acc": "accumulator", "output": "dtype"}, rewrite=composites.einsum
    ),
    "tract_core_matmul": Meaning("einsum", {"A": "a", "B": "b"}, rewrite=composites.legacy_matmul),
    "tract_core_einsum_q": Meaning("quantized_einsum", _PRODUCT, rewrite=composites.paired),
    "tract_core_qmatmul": Meaning(
        "quantized_einsum", _PRODUCT | {"A": "a", "B": "b", "output_type": "dtype"},
        rewrite=composites.quantized_matmul,
    ),
    # Normalisation. `exp` names an approximation of the exponential function; ours is exact. What
    # `scale_dt` says is done in 32 bits at least.
    "tract_core_softmax": Meaning("softmax", {"exp": None}, rewrite=geometry.many),
    "tract_core_rms_norm": Meaning("rms_norm", {"eps": "epsilon"}, {"dtype": ""}, composites.norm),
    "tract_core_scaled_rms_norm": Meaning(
        "rms_norm", {"eps": "epsilon", "out_dt": "dtype", "scale_dt": None}, rewrite=composites.norm
    ),
    "tract_onnx_lrn": Meaning("local_response_normalization", rewrite=composites.response),
    "tract_extra_exp_unit_norm": Meaning("tract.exp_unit_norm", {"stateless": None}),
    "tract_extra_exp_mean_norm": Meaning("tract.exp_mean_norm", {"stateless": None}),
    # Transformers
    "tract_transformers_sdpa": Meaning(
        "attention", {"q": "query", "k": "key", "v": "value", "datum_type": None},
        rewrite=composites.attention,
    ),
    "tract_transformers_scaled_masked_softmax": Meaning(
        "masked_softmax", rewrite=composites.masked_softmax
    ),
    "tract_moe_ffn": Meaning(
        "mixture_of_experts",
        {
            "x": "input", "wg": "router", "wg_bias": "router_bias", "act_alpha": "alpha",
            "act_limit": "limit",
        },
        rewrite=composites.experts,
    ),
    # Recurrence
    "tract_core_lstm_epilogue": Meaning(
        "lstm_pointwise", {"preact": "gates", "c_prev": "cell"},
        rewrite=partial(composites.hidden, name="cell"),
    ),
    "tract_core_gru_epilogue": Meaning(
        "gru_pointwise", {"xh": "input_gates", "rh": "state_gates", "h_prev": "state"},
        rewrite=partial(composites.hidden, name="state"),
    ),
    "tract_core_gru_seq": Meaning(
        "gru_sequence",
        {
            "x": "input", "w": "weight", "r": "recurrent_weight", "b": "bias",
            "initial_h": "initial_state", "emit_y": "emit_states", "reset_every_turn": None,
        },
        rewrite=composites.gru_sequence,
    ),
    # Indices
    "tract_core_gather": Meaning("gather", rewrite=composites.gather),
    "tract_core_one_hot": Meaning(
        "one_hot",
        {"input": "indices", "dim": "depth", "value_off": "off_value", "value_on": "on_value"},
        rewrite=composites.one_hot,
    ),
    "tract_onnx_non_max_suppression": Meaning(
        "non_max_suppression", values={"center_point_box": {0: False, 1: True}}
    ),
    "tract_onnx_non_zero": Meaning("non_zero", {"count_symbol": None}),
    "tract_onnx_ml_tree_ensemble_classifier": Meaning(
        "tree_ensemble", {"n_classes": "classes", "aggregate_fn": "aggregate"},
        rewrite=composites.tree_ensemble,
    ),
    # Signals
    "tract_onnx_resize": Meaning("resize", _RESIZE),
    "tract_core_resize": Meaning(
        "resize", _RESIZE,
        {
            "cubic_coeff_a": resampling.CUBIC, "exclude_outside": False, "antialias": False,
            "extrapolation_value": 0.0,
        },
        composites.core_resize,
    ),
    "tract_core_stft": Meaning("stft", {"frame": "frame_length", "stride": "frame_step"}),
}  # fmt: skip


@cache
def meanings() -> Mapping[str, Meaning]:
    """Return the meanings of operations by the names that documents give them."""
    return {name: Meaning(name) for name in standard() if name in rules} | _MEANINGS


# Their definitions are written in expressions that the dialect lacks, or give an array of results.
_WHOLE = frozenset(
    {"add_n", "copy_n", "nearest_downsample", "area_downsample", "logarithmic_quantize"}
)


@cache
def defined(expand: Expand) -> frozenset[str]:
    """Return the operations that run by the standard's definitions.

    "all" adds the kinds that tract reads as the standard does.
    """
    table = meanings()
    kept = table if expand == "auto" else {n for n in table if table[n] != Meaning(n)} | _WHOLE
    return frozenset(n for n, f in declarations().items() if f.body is not None and n not in kept)
