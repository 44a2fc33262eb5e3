"""Language models with the operators of ONNX for attention, against `onnx.reference`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import nnef_jax
from nnef_jax.errors import InputError
from nnef_jax.generation.roles import Cache

WORDS, WIDTH, LAYERS, HEADS, KEY_HEADS, PLACES = 24, 16, 2, 4, 2, 32
ITEMS = WIDTH // HEADS
PROMPT = [3, 17, 5, 11, 2]
STEPS = 12


def network(*, static: bool, opset: int, **attention: Any) -> Any:
    """Return a random language model of two layers.

    If `static`, TensorScatter writes keys into caches of a fixed length. Otherwise Attention
    appends them to the past keys.
    """
    random = np.random.default_rng(7)
    weights: dict[str, Any] = {
        "table": random.normal(size=(WORDS, WIDTH)),
        "places": random.normal(size=(PLACES, WIDTH)),
        "head": random.normal(size=(WIDTH, WORDS)),
    }
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["words"]),
        helper.make_node("Gather", ["places", "position_ids"], ["at"]),
        helper.make_node("Add", ["words", "at"], ["h0"]),
    ]
    cache_shape = ["batch", KEY_HEADS, "length", ITEMS]
    caches: list[str] = []
    results: list[str] = []
    for i in range(LAYERS):
        for x, heads in (("q", HEADS), ("k", KEY_HEADS), ("v", KEY_HEADS)):
            weights[f"{x}w{i}"] = random.normal(size=(WIDTH, heads * ITEMS)) / 4
            nodes += [
                helper.make_node("MatMul", [f"h{i}", f"{x}w{i}"], [f"{x}{i}f"]),
                helper.make_node("Reshape", [f"{x}{i}f", f"shape{heads}"], [f"{x}{i}r"]),
                helper.make_node("Transpose", [f"{x}{i}r"], [f"{x}{i}"], perm=[0, 2, 1, 3]),
            ]
        before = "{}_cache_{}" if static else "past_{}_{}"
        names = [before.format(x, i) for x in ("key", "value")]
        after = [f"updated_{x}" if static else x.replace("past", "present") for x in names]
        caches += names
        results += after
        if static:
            for cache, new, result in zip(names, (f"k{i}", f"v{i}"), after, strict=True):
                reads = [cache, new, "write_indices"]
                nodes.append(helper.make_node("TensorScatter", reads, [result]))
            reads = [f"q{i}", *after, "", "", "", "nonpad_kv_seqlen"]
            nodes.append(helper.make_node("Attention", reads, [f"y{i}"], is_causal=1, **attention))
        else:
            reads = [f"q{i}", f"k{i}", f"v{i}", "", *names]
            writes = [f"y{i}", *after]
            nodes.append(helper.make_node("Attention", reads, writes, is_causal=1, **attention))
        weights[f"ow{i}"] = random.normal(size=(WIDTH, WIDTH)) / 4
        nodes += [
            helper.make_node("Transpose", [f"y{i}"], [f"y{i}t"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [f"y{i}t", "shape"], [f"y{i}f"]),
            helper.make_node("MatMul", [f"y{i}f", f"ow{i}"], [f"o{i}"]),
            helper.make_node("Add", [f"h{i}", f"o{i}"], [f"h{i + 1}"]),
        ]
    nodes.append(helper.make_node("MatMul", [f"h{LAYERS}", "head"], ["logits"]))
    initializers = [
        numpy_helper.from_array(x.astype(np.float32), name) for name, x in weights.items()
    ]
    for name, shape in (
        (f"shape{HEADS}", [0, 0, HEADS, ITEMS]),
        (f"shape{KEY_HEADS}", [0, 0, KEY_HEADS, ITEMS]),
        ("shape", [0, 0, WIDTH]),
    ):
        initializers.append(numpy_helper.from_array(np.array(shape), name))
    integer, real = TensorProto.INT64, TensorProto.FLOAT
    inputs = [(name, integer, ["batch", "tokens"]) for name in ("input_ids", "position_ids")]
    if static:
        inputs += [(name, integer, ["batch"]) for name in ("write_indices", "nonpad_kv_seqlen")]
    inputs += [(name, real, cache_shape) for name in caches]
    outputs = [("logits", ["batch", "tokens", WORDS]), *((x, None) for x in results)]
    graph = helper.make_graph(
        nodes, "language_model",
        [helper.make_tensor_value_info(*x) for x in inputs],
        [helper.make_tensor_value_info(name, real, shape) for name, shape in outputs],
        initializers,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def greedy(model: Any, prompt: list[int], steps: int) -> list[int]:
    """Return the tokens that onnx.reference computes, one after the other."""
    run: Any = ReferenceEvaluator(model)
    names = [x.name for x in model.graph.input]
    outputs = [x.name for x in model.graph.output]
    static = "write_indices" in names
    shape = (1, KEY_HEADS, PLACES if static else 0, ITEMS)
    caches = [x for x in names if "key" in x or "value" in x]
    arrays = {name: np.zeros(shape, np.float32) for name in caches}
    tokens: list[int] = []
    used, part = 0, list(prompt)
    for _ in range(steps):
        feed = {**arrays, "input_ids": np.array([part])}
        feed["position_ids"] = np.arange(used, used + len(part))[None]
        if static:
            feed["write_indices"] = np.array([used])
            feed["nonpad_kv_seqlen"] = np.array([used + len(part)])
        logits, *after = run.run(outputs, {name: feed[name] for name in names})
        arrays = dict(zip(caches, after, strict=True))
        used += len(part)
        part = [int(np.argmax(logits[0, -1]))]
        tokens += part
    return tokens


@pytest.mark.parametrize(("static", "opset"), [(False, 23), (False, 24), (True, 24)])
def test_tokens_are_those_of_the_reference(static: bool, opset: int) -> None:
    model = network(static=static, opset=opset)
    expected = greedy(model, PROMPT, STEPS)
    assert len(set(expected)) > 3  # not one token again and again
    decoder = nnef_jax.decoder(nnef_jax.load(model), PLACES)
    assert decoder.generate(PROMPT, STEPS).tokens.tolist() == [expected]
    text = PROMPT + expected
    rows = np.array([text[:16], text[:3] + [0] * 13])
    generated = decoder.generate(rows, 6, lengths=[16, 3]).tokens
    assert generated.tolist() == [greedy(model, text[:n], 6) for n in (16, 3)]


def test_roles_of_caches_of_a_fixed_length() -> None:
    model = network(static=True, opset=24)
    roles = nnef_jax.decoder(nnef_jax.load(model), PLACES).roles
    assert (roles.length, roles.total_length) == ("write_indices", "nonpad_kv_seqlen")
    assert roles.caches[0] == Cache("key_cache_0", "updated_key_cache_0", 2)
    assert roles.context == ()
    assert "write_indices" in str(roles)
    for port in model.graph.input:
        if port.name == "write_indices":
            port.name = "begin"
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            if name == "write_indices":
                node.input[i] = "begin"
    loaded = nnef_jax.load(model)
    expected = greedy(network(static=True, opset=24), PROMPT, 4)
    decoder = nnef_jax.decoder(loaded, PLACES, length="begin")
    assert decoder.generate(PROMPT, 4).tokens.tolist() == [expected]
    with pytest.raises(InputError, match="no input of the network is the length"):
        nnef_jax.decoder(loaded, PLACES, length="write_indices")
