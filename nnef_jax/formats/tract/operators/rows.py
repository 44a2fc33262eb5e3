"""Functions for operations of the dialect that become a single operation of the graph."""

from __future__ import annotations

from collections.abc import Mapping

from nnef_jax.flattening.operators.attributes import axis, flag, integer, text, word
from nnef_jax.flattening.operators.registry import Meaning, operation
from nnef_jax.formats.tract.operators.geometry import channels, new_axes
from nnef_jax.formats.tract.operators.registry import AXES, OPERATORS
from nnef_jax.formats.tract.operators.windows import WINDOW, channel_plane, factors

# Maps a registry to the kinds for which the registry has an operation REGISTRY_KIND, such as
# tract_core_erf for erf.
_PREFIXED = {
    "tract_core": (
        "is_nan", "silu", "erf", "hard_swish", "clamped_swiglu", "broadcast", "gather_elements",
        "gather_nd", "scatter_elements", "scatter_nd", "topk", "grid_sample", "fft",
    ),
    "tract_onnx": ("non_zero",),
    "tract_onnx_ml": ("direct_lookup", "reverse_lookup"),
    "tract_transformers": ("causal_conv1d_update",),
}  # fmt: skip
# Maps the name of an operation of tract to its kind, where the two names differ.
_RENAMED = {
    "recip": "rcp", "square": "sqr", "tract_shl": "shift_left", "tract_shr": "shift_right",
    "tract_core_bitand": "bitwise_and", "tract_core_bitor": "bitwise_or",
    "tract_core_bitxor": "bitwise_xor", "tract_core_xor": "bitwise_xor",
    "tract_core_bitnot": "bitwise_not", "tract_core_trilu": "triangle",
    "tract_core_inner_dim_to_complex": "pairs_to_complex",
    "tract_core_complex_to_inner_dim": "complex_to_pairs",
    "tract_transformers_apply_rope": "rotary_embedding",
    "tract_transformers_gdn_recurrent": "gated_delta_rule",
    "tract_extra_exp_unit_norm": "tract.exp_unit_norm",
    "tract_extra_exp_mean_norm": "tract.exp_mean_norm",
}  # fmt: skip
# Maps operations to kinds. The operations have an argument `axes`, in which negative axes count
# from the end.
_ON_AXES = {
    **{name: name for name in (
        "sum_reduce", "max_reduce", "min_reduce", "argmax_reduce", "argmin_reduce", "transpose",
        "squeeze",
    )},
    "tract_core_product_reduce": "product_reduce",
    "tract_core_softmax": "softmax", "tract_core_log_softmax": "log_softmax",
}  # fmt: skip

# Some arguments have no effect. `end`, `datum_type` and `count_symbol` follow from other arguments.
# `exp` names an approximation of the exponential function, which is computed exactly here. Scales
# have at least 32 bits, whatever `scale_dt` is. `stateless` and `reset_every_turn` say how tract
# keeps states from call to call, but here a state starts from its operand.
_ROWS: Mapping[str, Meaning] = {
    **{f"{registry}_{x}": operation(x) for registry, kinds in _PREFIXED.items() for x in kinds},
    **{name: operation(kind) for name, kind in _RENAMED.items()},
    **{name: operation(kind, axes=AXES) for name, kind in _ON_AXES.items()},
    "clamp": operation("clamp", inclusive=True),
    "max_pool": operation("max_pool", **WINDOW),
    "max_pool_with_index": operation("max_pool_with_index", **WINDOW, first_axis=channel_plane),
    "min_max_linear_quantize": operation("min_max_linear_quantize", ties="even"),
    "multilinear_upsample": operation(
        "multilinear_upsample", border=word("border", "replicate"), factor=factors
    ),
    "nearest_upsample": operation("nearest_upsample", factor=factors),
    "round": operation("round", ties="away"),
    "tract_core_argmax_reduce_last": operation("argmax_reduce", axes=AXES, last=True),
    "tract_core_argmin_reduce_last": operation("argmin_reduce", axes=AXES, last=True),
    "tract_core_cumsum": operation("cumsum", axis=axis("axis")),
    "tract_core_dyn_slice": operation("dynamic_slice", length=integer("len"), axis=axis("axis")),
    "tract_core_gelu_approx": operation(
        "gelu", approximation=lambda site: "tanh_square" if site.flag("fast_impl") else "tanh"
    ),
    "tract_core_is_inf": operation(
        "is_inf", positive=flag("detect_positive"), negative=flag("detect_negative")
    ),
    "tract_core_round_even": operation("round", ties="even"),
    "tract_core_scaled_rms_norm": operation(
        "rms_norm", 0, 1, 2, axis=axis("axis"), dtype=text("out_dt")
    ),
    "tract_core_stft": operation(
        "stft", frame_length=integer("frame"), frame_step=integer("stride")
    ),
    "tract_onnx_lrn": operation("local_response_normalization", size=channels),
    "tract_onnx_non_max_suppression": operation(
        "non_max_suppression",
        center_point_box=lambda site: site.choice("center_point_box", 0, 1) == 1,
    ),
    "tract_onnx_resize": operation(
        "resize", mode=text("interpolator"),
        coordinate_transformation_mode=text("coord_transformer"),
    ),
    "unsqueeze": operation("unsqueeze", axes=new_axes),
    "zero_point_linear_quantize": operation("zero_point_linear_quantize", ties="even"),
}  # fmt: skip

OPERATORS.rows(_ROWS)
