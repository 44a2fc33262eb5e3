"""Writes rows by kind as tract does: as rows of its own, which are run as documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.op_cases.case import OpCase

_DATUM = {"int8": "i8", "uint8": "u8", "int32": "i32"}


@dataclass(frozen=True)
class Spelling:
    """The operation of tract for a kind, its names of arguments, and further arguments."""

    operation: str
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    further: Callable[[OpCase], dict[str, Any]] = lambda case: {}
    without: frozenset[str] = frozenset()

    def __call__(self, case: OpCase) -> OpCase:
        """Return tract's row for one by kind; its tensors are in the same order."""
        operands = {self.names.get(name, name): x for name, x in case.operands.items()}
        if "inputs" in self.names.values():  # an array of the first two
            operands = {"inputs": [operands.pop("inputs"), operands.pop("b")]} | operands
        attributes = {
            self.names.get(name, name): x
            for name, x in case.attributes.items()
            if name not in self.without
        }
        attributes |= self.further(case)
        return replace(
            case, operation=self.operation, operands=operands, attributes=attributes, means=case
        )


def _hidden(operand: str) -> Callable[[OpCase], dict[str, Any]]:
    return lambda case: {"hidden": case.operands[operand].shape[-1]}  # type: ignore[union-attr]


def _sequence(case: OpCase) -> dict[str, Any]:
    return {
        **_hidden("recurrent_weight")(case),
        "chunk": -1 if case.attributes.get("reverse") else 1,
        "has_bias": "bias" in case.operands,
    }


_SCALES = {"output_zero_point": "c0", "output_scale": "c_scale"}

SPELLINGS: dict[str, Spelling] = {
    "attention": Spelling(
        "tract_transformers_sdpa",
        {"query": "q", "key": "k", "value": "v"},
        lambda case: {"datum_type": "f32", "acc_datum_type": "f32"},
    ),
    "masked_softmax": Spelling("tract_transformers_scaled_masked_softmax"),
    "rotary_embedding": Spelling("tract_transformers_apply_rope"),
    "mixture_of_experts": Spelling(
        "tract_moe_ffn",
        {"input": "x", "router": "wg", "router_bias": "wg_bias"}
        | {"alpha": "act_alpha", "limit": "act_limit"},
    ),
    "lstm_pointwise": Spelling(
        "tract_core_lstm_epilogue", {"gates": "preact", "cell": "c_prev"}, _hidden("cell")
    ),
    "gru_pointwise": Spelling(
        "tract_core_gru_epilogue",
        {"input_gates": "xh", "state_gates": "rh", "state": "h_prev"},
        _hidden("state"),
    ),
    "gru_sequence": Spelling(
        "tract_core_gru_seq",
        {"input": "x", "weight": "w", "recurrent_weight": "r", "bias": "b"}
        | {"initial_state": "initial_h", "emit_states": "emit_y"},
        _sequence,
        frozenset({"reverse"}),
    ),
    "causal_conv1d_update": Spelling("tract_transformers_causal_conv1d_update"),
    "gated_delta_rule": Spelling("tract_transformers_gdn_recurrent"),
    "gather_elements": Spelling("tract_core_gather_elements"),
    "gather_nd": Spelling("tract_core_gather_nd"),
    "scatter_elements": Spelling("tract_core_scatter_elements"),
    "scatter_nd": Spelling("tract_core_scatter_nd"),
    "topk": Spelling("tract_core_topk"),
    "one_hot": Spelling(
        "tract_core_one_hot",
        {"indices": "input", "depth": "dim", "off_value": "value_off", "on_value": "value_on"},
    ),
    "non_max_suppression": Spelling(
        "tract_onnx_non_max_suppression",
        further=lambda case: {"center_point_box": int(case.attributes.get("center_point_box", 0))},
    ),
    "non_zero": Spelling("tract_onnx_non_zero"),
    "direct_lookup": Spelling("tract_onnx_ml_direct_lookup"),
    "reverse_lookup": Spelling("tract_onnx_ml_reverse_lookup"),
    "tree_ensemble": Spelling(
        "tract_onnx_ml_tree_ensemble_classifier",
        {"classes": "n_classes", "aggregate": "aggregate_fn"},
        lambda case: {"max_used_feature": 2},
    ),
    "resize": Spelling(
        "tract_onnx_resize",
        {"mode": "interpolator", "coordinate_transformation_mode": "coord_transformer"},
    ),
    "grid_sample": Spelling("tract_core_grid_sample"),
    "quantized_einsum": Spelling(
        "tract_core_einsum_q",
        {"a": "inputs", "a_zero_point": "a0", "b_zero_point": "b0"} | _SCALES,
        lambda case: {"acc": "i32", "output": _DATUM[case.attributes["dtype"]]},
        frozenset({"dtype"}),
    ),
    "quantized_conv": Spelling(
        "tract_core_qconv",
        {"filter_zero_point": "a0", "filter_scale": "a_scale"}
        | {"input_zero_point": "b0", "input_scale": "b_scale"}
        | _SCALES,
        lambda case: {"output_dt": _DATUM[case.attributes["dtype"]]},
        frozenset({"dtype"}),
    ),
    "fft": Spelling("tract_core_fft"),
    "stft": Spelling("tract_core_stft", {"frame_length": "frame", "frame_step": "stride"}),
    "pairs_to_complex": Spelling("tract_core_inner_dim_to_complex"),
    "tract.exp_unit_norm": Spelling("tract_extra_exp_unit_norm"),
    "tract.exp_mean_norm": Spelling("tract_extra_exp_mean_norm"),
}


def spelled(case: OpCase) -> OpCase:
    """Return the row as tract writes it, unchanged if it names an operation of tract."""
    spelling = SPELLINGS.get(case.operation)
    return spelling(case) if spelling else case
