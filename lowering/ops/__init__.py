"""Holds the rules of all kinds of operations. `rules` maps each kind to its rule.

A kind is the name of an operation, such as "conv", and means the same for all formats. The kinds
are grouped in families. Each family has a file. A kind of the NNEF standard has the parameters of
the standard. If other parameters follow, their defaults give the operation of the standard. Other
packages add kinds with dotted names by `rules.add`.

Where are the checks that rules share? `require`
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module

from lowering.graph import Rule
from lowering.registry import Registry

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "activation": (
        "sigmoid", "softplus", "silu", "erf", "hard_swish", "relu", "gelu", "softabs", "elu",
        "selu", "prelu", "leaky_relu", "clamped_swiglu",
    ),
    "transformer": ("attention", "masked_softmax", "rotary_embedding"),
    "conv": ("conv", "deconv"),
    "coupling": ("pairwise_coupling",),
    "deformable": ("deformable_conv",),
    "detection": ("non_max_suppression", "non_zero", "sorted_suppression", "unique"),
    "proposals": ("detection_output", "proposal", "ctc_greedy_decoder"),
    "detectron": ("anchored_proposals", "refined_detections"),
    "multiclass": ("matrix_suppression", "multiclass_suppression"),
    "elementwise": (
        "neg", "rcp", "exp", "log", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos",
        "atan", "asinh", "acosh", "atanh", "abs", "sign", "sqr", "sqrt", "rsqr", "rsqrt", "log2",
        "floor", "ceil", "copy", "round", "add", "sub", "mul", "min", "max", "div", "rem", "pow",
        "lt", "gt", "le", "ge", "eq", "ne", "and", "or", "not", "bitwise_and", "bitwise_or",
        "bitwise_xor", "bitwise_not", "shift_left", "shift_right", "is_nan", "is_inf", "select",
        "clamp",
    ),
    "experts": ("mixture_of_experts",),
    "indexing": (
        "gather_elements", "gather_in_batches", "gather_nd", "reverse_sequence", "scatter_elements",
        "scatter_nd", "topk", "one_hot",
    ),
    "linear": ("matmul", "linear", "einsum", "inverse", "determinant"),
    "lists": ("counted", "filled"),
    "loop": ("loop", "branch"),
    "lookup": ("direct_lookup", "reverse_lookup", "tree_ensemble"),
    "normalize": (
        "l1_normalization", "l2_normalization", "local_variance_normalization",
        "batch_normalization", "rms_norm", "local_response_normalization",
    ),
    "quantize": (
        "fake_quantize", "min_max_linear_quantize", "zero_point_linear_quantize",
        "logarithmic_quantize",
    ),
    "quantized_products": ("quantized_einsum", "quantized_conv"),
    "recurrent": (
        "lstm_pointwise", "gru_pointwise", "gru_sequence", "causal_conv1d_update",
        "gated_delta_rule",
    ),
    "reduce": (
        "sum_reduce", "mean_reduce", "product_reduce", "moments", "max_reduce", "min_reduce",
        "argmax_reduce", "argmin_reduce", "any_reduce", "all_reduce", "cumsum",
        "cumprod",
    ),
    "resample": (
        "nearest_downsample", "area_downsample", "nearest_upsample", "multilinear_upsample",
    ),
    "resize": ("resize", "grid_sample"),
    "roi": ("avg_roi_pool", "max_roi_pool", "roi_resample"),
    "regions": ("position_sensitive_roi_pool",),
    "roi_align": ("roi_align",),
    "scan": ("scan",),
    "softmax": ("softmax", "log_softmax"),
    "selection": (
        "slice", "dynamic_slice", "triangle", "tile", "pad", "gather", "broadcast",
    ),
    "sequences": ("ctc_loss", "gather_tree"),
    "shape": (
        "reshape", "transpose", "squeeze", "unsqueeze", "concat", "split", "stack", "unstack",
        "cast", "bitcast", "copy_n", "add_n",
    ),
    "signal": (
        "fft", "rfft", "stft", "pairs_to_complex", "complex_to_pairs",
    ),
    "generators": ("constant", "range"),
    "window": (
        "box", "debox", "max_pool", "avg_pool", "rms_pool", "argmax_pool", "max_pool_with_index",
        "sample", "desample", "adaptive_avg_pool", "adaptive_max_pool",
    ),
}  # fmt: skip
# These are the elementwise kinds. An item of the result depends only on the operands' items at the
# same index.
BY_ITEM = frozenset(
    (*FAMILIES["activation"], *FAMILIES["elementwise"], *FAMILIES["quantize"], "cast")
)


class Families(Registry):
    """Maps kinds to rules, and imports a family when one of its kinds is first looked up.

    `list(rules)` has all kinds. `rules[kind].parameters` names the operands and attributes of a
    kind, and `help(rules[kind].lower)` describes these parameters.
    """

    def __init__(self, families: Mapping[str, tuple[str, ...]], package: str) -> None:
        super().__init__()
        self._module_of: dict[str, str] = {}
        for family, kinds in families.items():
            self.add(f"{package}.{family}", kinds)

    def add(self, module: str, kinds: Iterable[str]) -> None:
        """Register `module` as the module that defines the rules of `kinds`."""
        self._module_of.update(dict.fromkeys(kinds, module))

    def get(self, kind: str) -> Rule | None:
        """Return the rule of a kind of operations, or None if the kind has no rule."""
        if kind not in self._rules and kind in self._module_of:
            import_module(self._module_of[kind])
        return self._rules.get(kind)

    def __getitem__(self, kind: str) -> Rule:
        # Most rules are imported already. For such a rule the look-up in `_rules` saves the call
        # of `get`.
        rule = self._rules.get(kind) or self.get(kind)
        if rule is None:
            raise KeyError(kind)
        return rule

    def __contains__(self, kind: object) -> bool:
        return kind in self._module_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._module_of)

    def __len__(self) -> int:
        return len(self._module_of)


rules = Families(FAMILIES, __name__)
