"""The rules, one file for each family of operations; `rules` has them all, by kind.

A kind has one meaning, whatever the graph was read from. Kinds of NNEF 1.0 have the standard's
parameters; further ones follow these, with defaults that mean the standard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from lowering.registry import Registry, Rule

# The kinds of each family.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "activation": (
        "sigmoid", "relu", "softplus", "gelu", "silu", "softabs", "softmax", "elu",
        "selu", "prelu", "leaky_relu",
    ),
    "conv": (
        "conv", "deconv",
    ),
    "elementwise": (
        "neg", "rcp", "exp", "log", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin",
        "acos", "atan", "asinh", "acosh", "atanh", "abs", "sign", "floor", "ceil",
        "round", "sqr", "sqrt", "rsqr", "rsqrt", "log2", "add", "sub", "mul", "div",
        "min", "max", "lt", "gt", "le", "ge", "eq", "ne", "and", "or", "pow", "copy",
        "not", "select", "clamp",
    ),
    "linear": (
        "matmul", "linear",
    ),
    "normalize": (
        "l1_normalization", "l2_normalization", "local_response_normalization",
        "local_variance_normalization",
        "batch_normalization",
    ),
    "quantize": (
        "min_max_linear_quantize", "zero_point_linear_quantize", "logarithmic_quantize",
    ),
    "reduce": (
        "sum_reduce", "mean_reduce", "max_reduce", "min_reduce", "any_reduce",
        "all_reduce", "argmax_reduce", "argmin_reduce", "moments",
    ),
    "resample": (
        "nearest_downsample", "area_downsample", "nearest_upsample",
        "multilinear_upsample",
    ),
    "roi": (
        "avg_roi_pool", "max_roi_pool", "roi_resample",
    ),
    "shape": (
        "reshape", "transpose", "squeeze", "unsqueeze", "concat", "split", "stack",
        "unstack", "slice", "tile", "pad", "gather", "cast", "copy_n", "add_n",
    ),
    "tensors": (
        "constant",
    ),
    "window": (
        "box", "debox", "max_pool", "avg_pool", "rms_pool", "argmax_pool",
        "max_pool_with_index", "sample", "desample",
    ),
    "attention": (
        "attention", "masked_softmax", "rotary_embedding",
    ),
    "detection": (
        "non_max_suppression", "non_zero",
    ),
    "experts": (
        "mixture_of_experts",
    ),
    "indexing": (
        "gather_elements", "gather_nd", "scatter_elements", "scatter_nd", "topk", "one_hot",
    ),
    "lookup": (
        "direct_lookup", "reverse_lookup", "tract.tree_ensemble",
    ),
    "pulse": (
        "tract.pulse_mask",
    ),
    "quantized": (
        "quantized_einsum", "quantized_conv",
    ),
    "recurrent": (
        "lstm_pointwise", "gru_pointwise", "gru_sequence", "causal_conv1d_update",
        "gated_delta_rule",
    ),
    "resize": (
        "resize", "grid_sample",
    ),
    "scan": (
        "scan",
    ),
    "signal": (
        "fft", "stft", "pairs_to_complex", "complex_to_pairs", "tract.exp_unit_norm",
        "tract.exp_mean_norm",
    ),
    "tract.activation": (
        "tract_core_silu", "tract_core_erf", "tract_core_hard_swish",
        "tract_core_gelu_approx", "tract_core_clamped_swiglu",
    ),
    "tract.conv": (
        "tract.conv", "tract.deconv",
    ),
    "tract.elementwise": (
        "tract.neg", "tract.sqr", "tract.square", "tract.abs", "tract.sign", "tract.relu",
        "recip", "tract.floor", "tract.ceil", "tract.round", "tract.tract_core_round_even",
        "tract.sub", "tract.add", "tract.mul", "tract.min", "tract.max", "tract.div",
        "tract.pow", "tract_core_pow_const", "tract.clamp", "tract.lt", "tract.gt",
        "tract.le", "tract.ge", "tract.eq", "tract.ne", "tract_core_bitand",
        "tract_core_bitor", "tract_core_bitxor", "tract_core_xor", "tract_core_bitnot",
        "tract_shl", "tract_shr", "tract_core_is_nan", "tract_core_is_inf",
        "tract_core_cast",
    ),
    "tract.linear": (
        "tract.matmul", "tract.linear", "tract_core_einsum", "tract_core_matmul",
    ),
    "tract.quantize": (
        "tract.min_max_linear_quantize", "tract.zero_point_linear_quantize",
    ),
    "tract.reduce": (
        "tract.sum_reduce", "tract_core_product_reduce", "tract.max_reduce",
        "tract.min_reduce", "tract.argmax_reduce", "tract.tract_core_argmax_reduce_last",
        "tract.argmin_reduce", "tract.tract_core_argmin_reduce_last", "tract_core_cumsum",
        "tract_core_softmax", "tract_core_log_softmax", "tract_core_rms_norm",
        "tract_core_scaled_rms_norm",
    ),
    "tract.shape": (
        "tract.transpose", "tract.squeeze", "tract.unsqueeze", "tract.slice",
        "tract_core_downsample", "tract_core_dyn_slice", "tract_core_trilu", "tract.tile",
        "tract.pad", "tract_core_broadcast", "tract_core_range",
    ),
    "tract.tensors": (
        "range", "values",
    ),
    "tract.window": (
        "tract.max_pool", "tract.max_pool_with_index", "tract.nearest_upsample",
        "tract.multilinear_upsample",
    ),
}  # fmt: skip


class Families(Registry):
    """A registry that imports a family, which enters its rules, when one of its kinds is met."""

    def __init__(self, families: Mapping[str, tuple[str, ...]], package: str) -> None:
        super().__init__()
        self._package = package
        self._family_of = {kind: family for family, kinds in families.items() for kind in kinds}

    def get(self, kind: str) -> Rule | None:
        """The rule of a kind, None where there is none."""
        if kind not in self._rules and kind in self._family_of:
            import_module(f"{self._package}.{self._family_of[kind]}")
        return self._rules.get(kind)

    def __getitem__(self, kind: str) -> Rule:
        rule = self._rules.get(kind) or self.get(kind)
        if rule is None:
            raise KeyError(kind)
        return rule

    def __contains__(self, kind: object) -> bool:
        return kind in self._family_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._family_of)

    def __len__(self) -> int:
        return len(self._family_of)


rules = Families(FAMILIES, __name__)
