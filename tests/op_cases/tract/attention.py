"""Attention, rotary embeddings, mixtures of experts."""

from __future__ import annotations

from math import inf

from tests.op_cases.case import Given, Logical, OpCase, Operand, Real

from .rows import case, row, tract_case

_SDPA = "tract_transformers_sdpa"
_SOFTMAX = "masked_softmax"
_ROPE = "rotary_embedding"


def _attention(
    name: str,
    q: tuple[int, ...] = (2, 2, 3, 4),
    k: tuple[int, ...] = (2, 2, 5, 4),
    v: tuple[int, ...] = (),
    mask: Operand | None = None,
    tolerance: float = 1e-5,
    **attributes: object,
) -> OpCase:
    operands: dict[str, Operand] = {"query": Real(q), "key": Real(k), "value": Real(v or k)}
    if mask is not None:
        operands["mask"] = mask
    return tract_case(f"attention_{name}", "attention", operands, attributes, tolerance=tolerance)


def _sdpa(name: str, tolerance: float = 1e-5, **types: str) -> OpCase:
    operands: dict[str, Operand] = {"q": Real((2, 2, 3, 4))}
    operands |= {"k": Real((2, 2, 5, 4)), "v": Real((2, 2, 5, 4))}
    return tract_case(f"sdpa_{name}", _SDPA, operands, types, tolerance=tolerance)


_SDPA_CASES = (
    _attention("plain"),
    _attention("rank_3", (2, 3, 4), (2, 5, 4)),
    _attention("rank_5", (2, 1, 2, 3, 4), (2, 1, 1, 2, 4), mask=Real((3, 2))),
    _attention("scale", scale=0.3),
    _attention("value_width", v=(2, 2, 5, 3)),
    _attention("groups", (2, 4, 3, 2), (2, 2, 4, 2)),
    _attention("groups_rank_3", (6, 2, 2), (2, 3, 2)),
    _attention("one_key_head", (1, 3, 2, 2), (1, 1, 4, 2)),
    _attention("shared_batch", (2, 2, 3, 2), (1, 2, 4, 2)),
    _attention("causal", (1, 2, 4, 3), (1, 2, 4, 3), is_causal=True),
    _attention("causal_more_keys", (1, 2, 2, 3), (1, 2, 5, 3), is_causal=True),
    _attention("causal_more_queries", (1, 1, 4, 2), (1, 1, 2, 2), is_causal=True),
    _attention("causal_groups", (1, 4, 3, 2), (1, 2, 3, 2), is_causal=True),
    _attention("mask", mask=Real((2, 2, 3, 5))),
    _attention("mask_rank_2", mask=Real((3, 5))),
    _attention("mask_batch", mask=Real((2, 1, 1, 5))),
    _attention("mask_groups", (2, 4, 3, 2), (2, 2, 4, 2), mask=Real((1, 4, 3, 4))),
    _attention("mask_rank_3", (2, 3, 4), (2, 5, 4), mask=Real((3, 5))),
    _attention("mask_logical", mask=Logical((2, 1, 3, 5))),
    _attention(
        "mask_logical_empty_row",
        (1, 2, 2, 3),
        (1, 2, 3, 3),
        mask=Given(((True, False, True), (False, False, False))),
    ),
    _attention(
        "mask_infinite",
        (1, 2, 3, 2),
        (1, 2, 2, 2),
        mask=Given(((0.0, -inf), (-inf, -inf), (0.5, -6e4))),
    ),
    _attention("mask_and_causal", (1, 1, 3, 2), (1, 1, 3, 2), mask=Real((3, 3)), is_causal=True),
    _sdpa("accumulator_empty", datum_type="", acc_datum_type=""),
    _sdpa("accumulator_f16", tolerance=2e-2, acc_datum_type="f16", datum_type="f32"),
    _attention("one_query", (1, 1, 1, 1), (1, 1, 1, 1)),
)

_SOFTMAX_CASES = (
    case(
        "masked_softmax", _SOFTMAX, {"input": Real((2, 2, 3)), "mask": Real((2, 2, 3))}, scale=0.5
    ),
    case(
        "masked_softmax_broadcast",
        _SOFTMAX,
        {"input": Real((2, 2, 3)), "mask": Real((1, 1, 3))},
        scale=-2.0,
    ),
    case(
        "masked_softmax_logical",
        _SOFTMAX,
        {"input": Real((2, 2, 3)), "mask": Logical((2, 2, 3))},
        scale=0.5,
    ),
    case(
        "masked_softmax_logical_rank_1",
        _SOFTMAX,
        {"input": Real((2, 2, 3)), "mask": Given((True, False, True))},
        scale=1.0,
    ),
    row(
        "masked_softmax_empty_row",
        "tract_transformers_scaled_masked_softmax",
        Real((2, 2)),
        Given(((False, False), (True, False))),
        scale=0.5,
        post_softmax_mask=True,
    ),
    case(
        "masked_softmax_empty_row_kept",
        _SOFTMAX,
        {"input": Real((2, 2)), "mask": Given(((False, False), (True, False)))},
        scale=0.5,
    ),
    case(
        "masked_softmax_large",
        _SOFTMAX,
        {"input": Real((2, 3), 100.0, 200.0), "mask": Given(((-6e4, 0.0, 0.0),))},
        scale=3.0,
    ),
)

_ROPE_CASES = tuple(
    case(f"rope_{name}", _ROPE, {"input": Real((2, 2, 3, 4)), "cos": Real(s), "sin": Real(s)})
    for name, s in {
        "full": (2, 2, 3, 4),
        "heads": (2, 1, 3, 4),
        "rank_2": (3, 4),
        "one_column": (2, 2, 3, 1),
    }.items()
)


def _moe(name: str, *parts: str, tokens: tuple[int, ...] = (4,), **attributes: object) -> OpCase:
    """Three experts that take four items to two and back."""
    linear = attributes.get("expert_layout") == "linear"
    router, input = ("wg", "x") if linear else ("router", "input")
    up, down = ((3, 2, 4), (3, 4, 2)) if linear else ((3, 4, 2), (3, 2, 4))
    shapes = {input: (*tokens, 4), router: (3, 4), "w1": up, "w2": down}
    more = {
        "w3": up,
        f"{router}_bias": (3,),
        "w1_bias": (3, 2),
        "w3_bias": (3, 2),
        "w2_bias": (3, 4),
    }
    shapes |= {part: more[part] for part in (p.format(router) for p in parts)}
    operands: dict[str, Operand] = {key: Real(shape) for key, shape in shapes.items()}
    given = {"k": 2, "activation": "silu", "gate": "softmax_topk"} | attributes
    kind = "tract_moe_ffn" if linear else "mixture_of_experts"
    return tract_case(f"moe_{name}", kind, operands, given)


_BIASES = ("{}_bias", "w1_bias", "w3_bias", "w2_bias")

_MOE_CASES = (
    _moe("silu"),
    _moe("swiglu", "w3", activation="swiglu"),
    _moe("silu_gated", "w3", gate="softmax_all"),
    _moe("gelu", activation="gelu", gate="sigmoid"),
    _moe("gelu_gated", "w3", activation="gelu", gate="raw"),
    _moe("relu", activation="relu", gate="raw", k=1),
    _moe("biases", "w3", *_BIASES, activation="swiglu"),
    _moe("some_biases", "{}_bias", "w2_bias", gate="sigmoid"),
    _moe("clamped", "w3", *_BIASES, activation="swiglu", alpha=1.702, limit=0.4),
    _moe("clamped_no_alpha", "w3", activation="swiglu", limit=7.0),
    _moe("all_experts", k=3, gate="softmax_all"),
    _moe("batch", "w3", tokens=(2, 2), activation="swiglu"),
    _moe("linear", "w3", activation="swiglu", expert_layout="linear"),
    _moe("linear_biases", "w3", *_BIASES, gate="raw", expert_layout="linear"),
)

CASES: tuple[OpCase, ...] = (*_SDPA_CASES, *_SOFTMAX_CASES, *_ROPE_CASES, *_MOE_CASES)
