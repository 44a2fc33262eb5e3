"""Language models of torch_to_nnef and optimum generate the tokens that torch generates."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import openvino
import pytest
from onnx import TensorProto, helper, numpy_helper
from openvino._offline_transformations import apply_make_stateful_transformation

import nnef_jax
from nnef_jax.errors import InputError, NnefError, UnsupportedError
from nnef_jax.execution.runnable import execution_of
from nnef_jax.generation import Decoder, Roles, Sampling
from nnef_jax.generation.roles import Cache
from nnef_jax.parameters.sharding import chosen_divisions

NETWORKS = Path(__file__).parent / "networks"
FILES = ("llama.nnef.tgz", "qwen3.nnef.tgz", "llama.onnx", "qwen3.onnx", "gpt2.onnx")
PLACES = 256


def reference(file: str) -> tuple[Any, Any]:
    """Return the prompt and the tokens after it, by torch."""
    with np.load(NETWORKS / f"{file.partition('.')[0]}.npz") as arrays:
        return arrays["prompt"], arrays["tokens"]


def decoder_of(file: str, **options: Any) -> Decoder:
    return nnef_jax.decoder(nnef_jax.load(NETWORKS / file, **options), PLACES)


@pytest.fixture(scope="module", params=FILES)
def file(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def decoder(file: str) -> Decoder:
    return decoder_of(file)


@pytest.fixture(scope="module")
def llama() -> Decoder:
    return decoder_of("llama.nnef.tgz")


def test_tokens_are_those_of_torch(file: str, decoder: Decoder) -> None:
    prompt, tokens = reference(file)
    steps = tokens.shape[1]
    generated = decoder.generate(prompt, steps)
    assert generated.tokens.tolist() == tokens.tolist()
    assert generated.lengths.tolist() == [steps]


def test_rows_of_different_lengths(file: str, decoder: Decoder) -> None:
    prompt, tokens = reference(file)
    text = np.concatenate([prompt, tokens], axis=1)[0]
    lengths = np.array([14, 40, 23])
    rows = np.stack([np.pad(text[:n], (0, 40 - n)) for n in lengths])
    generated = decoder.generate(rows, 20, lengths=lengths)
    assert generated.tokens.tolist() == [text[n : n + 20].tolist() for n in lengths]


def test_caches_that_are_states_of_openvino(tmp_path: Path) -> None:
    """OpenVINO makes inputs and outputs of caches states, as optimum-intel does."""
    network = openvino.Core().read_model(NETWORKS / "llama.onnx")
    names = [x.any_name for x in network.inputs]
    pairs = {x: x.replace("past_key_values", "present") for x in names if "past" in x}
    apply_make_stateful_transformation(network, pairs)
    openvino.save_model(network, tmp_path / "llama.xml", compress_to_fp16=False)
    decoder = nnef_jax.decoder(nnef_jax.load(tmp_path / "llama.xml"), PLACES)
    prompt, tokens = reference("llama")
    assert decoder.generate(prompt, 30).tokens.tolist() == tokens[:, :30].tolist()


def test_buffers_that_the_network_fills() -> None:
    """GroupQueryAttention writes keys into a cache of fixed size, and counts the ones of a mask."""
    model = nnef_jax.load(NETWORKS / "llama-genai.onnx")
    assert model.inputs[2].shape == (None, 2, None, 4)  # the file leaves the last axis open too
    decoder = nnef_jax.decoder(model, PLACES)
    prompt, tokens = reference("llama")
    assert decoder.generate(prompt, 200).tokens.tolist() == tokens.tolist()
    text = np.concatenate([prompt, tokens], axis=1)[0]
    rows = np.stack([text[:30], np.pad(text[:14], (0, 16))])
    generated = decoder.generate(rows, 10, lengths=[30, 14]).tokens
    assert generated.tolist() == [text[30:40].tolist(), text[14:24].tolist()]


@pytest.mark.parametrize("name", ["", "P"])
def test_items_of_a_head_without_a_name(name: str, tmp_path: Path) -> None:
    """The number of items of a head follows from the queries, whatever the file calls it."""
    model = onnx.load(NETWORKS / "llama-genai.onnx")
    for value in model.graph.input:
        if value.name.startswith("past"):
            value.type.tensor_type.shape.dim[3].dim_param = name
    onnx.save(model, tmp_path / "net.onnx")
    decoder = nnef_jax.decoder(nnef_jax.load(tmp_path / "net.onnx"), PLACES)
    prompt, tokens = reference("llama")
    assert decoder.generate(prompt, 5).tokens.tolist() == tokens[:, :5].tolist()
    with pytest.raises(NnefError, match=r"\[.*,8\]"):
        nnef_jax.load(NETWORKS / "llama-genai.onnx", input_shapes={"kv_cache_dim": 8})


def test_a_speech_model_reads_an_encoder() -> None:
    """Keys and values of the encoder are inputs that stay the same from token to token."""
    decoder = nnef_jax.decoder(nnef_jax.load(NETWORKS / "whisper.onnx"), 64)
    with np.load(NETWORKS / "whisper.npz") as arrays:
        encoded = {name: arrays[name] for name in arrays.files if "encoder" in name}
        assert sorted(decoder.roles.context) == sorted(encoded)
        generated = decoder.generate(arrays["prompt"], 50, **encoded)
        assert generated.tokens.tolist() == arrays["tokens"].tolist()
    with pytest.raises(InputError, match="encoder"):
        decoder.generate([3], 5)


def test_a_stream_has_the_same_tokens(llama: Decoder) -> None:
    prompt, tokens = reference("llama")
    sample = Sampling(temperature=0.7, top_k=20, top_p=0.9)
    assert [int(x[0]) for x in llama.stream(prompt, 20)] == tokens[0, :20].tolist()
    streamed = [int(x[0]) for x in llama.stream(prompt, 20, sample=sample, key=5)]
    assert streamed == llama.generate(prompt, 20, sample=sample, key=5).tokens[0].tolist()


def test_a_key_can_be_used_again(llama: Decoder) -> None:
    sample = Sampling(temperature=1.0)
    key = jax.random.key(5)
    first, second = (llama.generate([1, 2], 20, sample=sample, key=key).tokens for _ in range(2))
    assert first.tolist() == second.tolist()
    assert llama.generate([1, 2], 20, sample=sample, key=6).tokens.tolist() != first.tolist()


def test_beams_are_those_of_torch(llama: Decoder) -> None:
    with np.load(NETWORKS / "llama.npz") as arrays:
        prompt, tokens = arrays["prompt"], arrays["tokens"]
        beams, stop, stopped = arrays["beams"], int(arrays["stop"]), arrays["stopped"]
    assert llama.search(prompt, 20).tokens.tolist() == beams.tolist()
    assert beams.tolist() != tokens[:, :20].tolist()
    assert llama.search(prompt, 20, beams=1).tokens.tolist() == tokens[:, :20].tolist()
    ended = llama.search(prompt, 20, stop=stop)
    assert ended.tokens[0, : ended.lengths[0]].tolist() == stopped[0].tolist()
    length = prompt.shape[1]
    rows = np.stack([np.pad(tokens[0, :6], (0, length - 6)), prompt[0]])
    both = llama.search(rows, 20, lengths=[6, length])
    assert both.tokens[1].tolist() == beams[0].tolist()
    with pytest.raises(InputError, match="beams must be at least 1"):
        llama.search(prompt, 5, beams=0)


def test_a_row_ends_after_a_stop_token(llama: Decoder) -> None:
    prompt, tokens = reference("llama")
    stop = int(tokens[0, 9])
    end = tokens[0].tolist().index(stop) + 1
    generated = llama.generate(np.repeat(prompt, 2, 0), 30, stop=[stop, 10**6])
    assert generated.lengths.tolist() == [end, end]
    assert generated.tokens[0].tolist() == tokens[0, :end].tolist() + [stop] * (30 - end)


def test_probabilities_are_those_of_the_tokens(llama: Decoder) -> None:
    """Differences of the sum of log-probabilities are its derivative."""
    _, tokens = reference("llama")
    text = jnp.asarray(tokens[:, :12])
    scores = llama.log_probabilities(None, text)
    logits, state = llama.prefill(None, text[:, :7])
    expected = jax.nn.log_softmax(logits)[0, text[0, 7]]
    np.testing.assert_allclose(scores[0, 6], expected, rtol=1e-4)
    np.testing.assert_allclose(state["length"], [7])

    def total(params: Any) -> Any:
        return llama.log_probabilities(params, text).sum()

    params = dict(llama.model.params)
    gradient = jax.jit(jax.grad(total))(params)
    label = next(x for x, g in gradient.items() if g.ndim == 2)
    direction = np.random.default_rng(0).standard_normal(params[label].shape).astype(np.float32)
    step = 1e-3
    ends = [total({**params, label: params[label] + sign * step * direction}) for sign in (1, -1)]
    slope = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(slope, (gradient[label] * direction).sum(), rtol=2e-2)


def test_steps_within_programs_of_ones_own(llama: Decoder) -> None:
    """The loop of a user, under jit, and over different texts, under vmap."""
    prompt, tokens = reference("llama")
    params = llama.model.params

    def generate(params: Any, prompt: jax.Array) -> jax.Array:
        logits, state = llama.prefill(params, prompt)

        def turn(carry: Any, _: None) -> tuple[Any, jax.Array]:
            logits, state = carry
            token = jnp.argmax(logits, -1)
            return llama.step(params, state, token), token

        return jax.lax.scan(turn, (logits, dict(state)), None, length=10)[1][:, 0]

    assert jax.jit(generate)(params, prompt).tolist() == tokens[0, :10].tolist()
    prompts = np.stack([prompt, prompt[:, ::-1]])
    rows = jax.jit(jax.vmap(generate, (None, 0)))(params, prompts)
    assert rows.tolist() == [generate(params, x).tolist() for x in prompts]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_few_bits(dtype: str) -> None:
    """Logits after a prompt differ by few parts in a thousand of the largest one."""
    prompt, _ = reference("llama")
    wide, _ = decoder_of("llama.onnx").prefill(None, prompt)
    narrow, _ = decoder_of("llama.onnx", dtype=dtype).prefill(None, prompt)
    assert narrow.dtype == dtype
    tolerance = {"bfloat16": 0.05, "float16": 0.01}[dtype] * np.abs(wide).max()
    np.testing.assert_allclose(narrow.astype(jnp.float32), wide, atol=tolerance, rtol=0)


def test_roles_are_shown(llama: Decoder) -> None:
    assert str(llama.roles).splitlines()[0].split() == ["tokens", "input_ids"]
    assert llama.roles.caches[0] == Cache("in_cache_key_0", "out_cache_key_0", 2)
    assert "256 places" in repr(llama)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1] * 250, 10), "need 259 places, the caches have 256"),
        (([1] * 257, 1), "a prompt has 257 tokens"),
        (([], 5), "a prompt is empty"),
        (([1, 2], 0), "steps must be at least 1, they are 0"),
    ],
)
def test_prompts_that_cannot_be(llama: Decoder, arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        llama.generate(*arguments)


@pytest.mark.parametrize(
    "tokens", ["hello", [1.5, 2.0], [-1, 5], np.zeros((1, 2, 3), int), [1, 999]]
)
def test_tokens_that_cannot_be(llama: Decoder, tokens: Any) -> None:
    with pytest.raises(InputError, match="token"):
        llama.generate(tokens, 3)


def test_a_decoder_pickles(llama: Decoder) -> None:
    prompt, tokens = reference("llama")
    llama.generate(prompt, 2)
    again = pickle.loads(pickle.dumps(llama))
    assert again.generate(prompt, 5).tokens.tolist() == tokens[:, :5].tolist()


def test_a_decoder_is_not_saved(llama: Decoder, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="the network of a decoder cannot be saved"):
        llama.model.save(tmp_path / "net.nnef.tgz")
    assert not [*tmp_path.iterdir()]


def test_lengths_that_cannot_be(llama: Decoder) -> None:
    with pytest.raises(InputError, match="lengths must be 1 numbers from 1 to 2"):
        llama.generate([1, 2], 3, lengths=[3])


def test_roles_that_the_network_lacks(llama: Decoder) -> None:
    model = nnef_jax.load(NETWORKS / "gpt2.onnx")
    roles = nnef_jax.decoder(model).roles
    first, *others = roles.caches
    for wrong, message in (
        (replace(roles, mask="words"), "the mask: there is no 'words'"),
        (
            replace(roles, caches=(replace(first, after="words"), *others)),
            "no cache '.*' -> 'words'",
        ),
        (replace(roles, caches=(replace(first, axis=9), *others)), "axis 9 of the cache"),
    ):
        with pytest.raises(InputError, match=message):
            nnef_jax.decoder(model, roles=wrong)
    with pytest.raises(TypeError, match=r"roles must be a nnef_jax\.generation\.Roles"):
        nnef_jax.decoder(model, roles={"tokens": "input_ids"})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("penalty", [float("nan"), 1e39])
def test_length_penalties_that_cannot_be(llama: Decoder, penalty: float) -> None:
    with pytest.raises(InputError, match="length_penalty must be"):
        llama.search([1, 2], 3, length_penalty=penalty)


def test_networks_that_are_no_decoders() -> None:
    model = nnef_jax.load(Path(__file__).parents[2] / "examples" / "digits" / "model")
    with pytest.raises(InputError, match="no input of the network is the tokens"):
        nnef_jax.decoder(model)
    fixed = nnef_jax.load(NETWORKS / "gpt2.onnx", input_shapes={"past_sequence_length": 8})
    with pytest.raises(InputError, match="0 open axes after the batch"):
        nnef_jax.decoder(fixed)
    with pytest.raises(InputError, match=r"decoder\(\.\.\., tokens=NAME\)"):
        nnef_jax.decoder(nnef_jax.load(NETWORKS / "gpt2.onnx"), tokens="words")
    with pytest.raises(InputError, match="no input of the network is the mask"):
        nnef_jax.decoder(nnef_jax.load(NETWORKS / "gpt2.onnx"), mask="words")
    with pytest.raises(TypeError, match="'token' is no role"):
        nnef_jax.decoder(nnef_jax.load(NETWORKS / "gpt2.onnx"), token="input_ids")


def test_an_operation_that_cannot_be_padded(tmp_path: Path) -> None:
    """A pool whose windows have several positions is refused by name."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["embedded"]),
        helper.make_node("Unsqueeze", ["embedded", "one"], ["new"]),
        helper.make_node("Concat", ["past_key_values.0.key", "new"], ["present.0.key"], axis=2),
        helper.make_node("MaxPool", ["present.0.key"], ["pooled"], kernel_shape=[2, 1]),
        helper.make_node("ReduceSum", ["pooled"], ["total"], keepdims=0),
        helper.make_node("Add", ["embedded", "total"], ["logits"]),
    ]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "tokens"])
    past = helper.make_tensor_value_info(
        "past_key_values.0.key", TensorProto.FLOAT, [1, 1, "past", 4]
    )
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        for name in ("logits", "present.0.key")
    ]
    constants = {
        "table": np.ones((9, 4), np.float32),
        "one": np.array([1]),
    }
    initializers = [numpy_helper.from_array(x, name) for name, x in constants.items()]
    graph = helper.make_graph(nodes, "joins", [ids, past], outputs, initializers)
    onnx.save(helper.make_model(graph), tmp_path / "net.onnx")
    decoder = nnef_jax.decoder(nnef_jax.load(tmp_path / "net.onnx"), 16)
    with pytest.raises(NnefError, match="'pooled' cannot read a cache of fixed size"):
        decoder.generate([1, 2], 3)


def test_roles_by_the_user() -> None:
    prompt, tokens = reference("gpt2")
    model = nnef_jax.load(NETWORKS / "gpt2.onnx")
    recognised = nnef_jax.decoder(model, PLACES).roles
    roles = Roles(
        tokens="input_ids", logits="logits", caches=recognised.caches, mask="attention_mask",
        positions="position_ids",
    )  # fmt: skip
    decoder = nnef_jax.decoder(model, PLACES, roles=roles)
    assert decoder.generate(prompt, 5).tokens.tolist() == tokens[:, :5].tolist()


def test_caches_are_divided_by_heads(llama: Decoder) -> None:
    """Over two devices the heads of keys are divided, and with them the caches that hold these."""
    divisions = chosen_divisions(execution_of(llama.model).definition, 2, "cpu")
    assert {divisions[cache.before].axis for cache in llama.roles.caches} == {1}
    keys = [label for label in llama.model.params if "k_proj" in label]
    assert keys and {divisions[label].why for label in keys} == {"columns"}


def test_a_prompt_that_fills_the_caches(llama: Decoder) -> None:
    """A chunk of as many tokens as a cache has places is read by smaller chunks."""
    prompt = np.arange(1, 17)[None]
    decoder = nnef_jax.decoder(nnef_jax.load(NETWORKS / "llama.nnef.tgz"), 16)
    expected = llama.generate(prompt, 1).tokens
    np.testing.assert_array_equal(decoder.generate(prompt, 1).tokens, expected)
    with pytest.raises(NnefError, match="places must be at least 2"):
        nnef_jax.decoder(nnef_jax.load(NETWORKS / "llama.nnef.tgz"), 1)


def test_prompts_shorter_than_a_known_number_of_tokens(llama: Decoder) -> None:
    fixed = llama.with_model(llama.model_of(16))
    with pytest.raises(NnefError, match="a prompt has 3 tokens, the network reads 16 at a time"):
        fixed.prefill(None, np.arange(16)[None].repeat(2, 0), [3, 16])


def test_donated_states_of_rows_that_are_not_read() -> None:
    prompts = np.arange(40).reshape(2, 20) % 30
    plain, donating = (
        nnef_jax.decoder(nnef_jax.load(NETWORKS / "llama.nnef.tgz", donate_state=donates), 64)
        for donates in (False, True)
    )
    expected, _ = plain.prefill(None, prompts, [20, 3])
    logits, _ = donating.prefill(None, prompts, [20, 3])
    np.testing.assert_array_equal(logits, expected)


@pytest.mark.parametrize("token", [10**6, 2**32 + 1])
def test_tokens_that_the_network_lacks(llama: Decoder, token: int) -> None:
    for method in (llama.generate, llama.search):
        with pytest.raises(NnefError, match=f"a prompt has the token {token}, the network has"):
            method([token], 3)


def test_numbers_of_numpy_are_numbers(llama: Decoder) -> None:
    plain = llama.generate([1, 2], 4, stop=5, key=3, sample=Sampling(1.0))
    same = llama.generate([1, 2], 4, stop=np.int64(5), key=np.int64(3), sample=Sampling(1.0))
    np.testing.assert_array_equal(same.tokens, plain.tokens)
    assert llama.search([1, 2], np.int64(3)).tokens.shape == (1, 3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(NnefError, match="lengths must be"):
        llama.generate([1, 2], 4, lengths=[1.5])
    with pytest.raises(NnefError, match="stop must be token numbers"):
        llama.generate([1, 2], 4, stop=[1.5])
    with pytest.raises(TypeError, match="not both: \\['logits'\\]"):
        nnef_jax.decoder(llama.model, 64, roles=llama.roles, logits="y")


def test_settings_of_two_kinds(tmp_path: Path) -> None:
    """Each kind of `Sampling` has a program of its own, also if programs are stored."""
    plain = nnef_jax.decoder(nnef_jax.load(NETWORKS / "llama.nnef.tgz"), 64)
    for _ in range(2):  # the second decoder loads the programs
        model = nnef_jax.load(NETWORKS / "llama.nnef.tgz", cache_dir=tmp_path)
        decoder = nnef_jax.decoder(model, 64)
        for penalty, temperature in ((1, 1.5), (1.5, 0), (1.5, 1.5)):
            sample = Sampling(temperature, repetition_penalty=penalty)
            expected = plain.generate([1, 2], 6, sample=sample).tokens
            tokens = decoder.generate([1, 2], 6, sample=sample).tokens
            np.testing.assert_array_equal(tokens, expected)


@pytest.mark.parametrize("stores", [True, False])
def test_a_setting_of_jax_that_changes(stores: bool, tmp_path: Path) -> None:
    def decoder() -> Decoder:
        folder = tmp_path if stores else None
        return nnef_jax.decoder(nnef_jax.load(NETWORKS / "llama.onnx", cache_dir=folder), 64)

    def tokens_of(decoder: Decoder) -> list[int]:
        return decoder.generate([1, 2], 8, sample=Sampling(2.0)).tokens[0].tolist()

    used = decoder()
    before = tokens_of(used)
    with jax.threefry_partitionable(False):
        assert tokens_of(used) == tokens_of(decoder()) != before
    assert tokens_of(used) == before


def test_rows_that_differ() -> None:
    speech = nnef_jax.decoder(nnef_jax.load(NETWORKS / "whisper.onnx"), 64)
    with np.load(NETWORKS / "whisper.npz") as arrays:
        encoded = {name: arrays[name] for name in speech.roles.context}
    twice = {name: np.concatenate([x, x]) for name, x in encoded.items()}
    one, two = "has 1 rows, the tokens have 2", "has 2 rows, the tokens have 1"
    state = speech.init_state(1)
    for call, message in (
        (lambda: speech.generate([3], 2, **twice), two),
        (lambda: speech.generate([[3], [4]], 2, **encoded), one),
        (lambda: speech.search([[3], [4]], 2, **encoded), one),
        (lambda: speech.prefill(None, [[3]], **twice), two),
        (lambda: speech.step(None, state, np.array([3, 4]), **twice), one),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_shapes_that_do_not_fit(llama: Decoder) -> None:
    other = nnef_jax.decoder(nnef_jax.load(NETWORKS / "llama.nnef.tgz"), 64)
    with pytest.raises(InputError, match=r"the model's states have the shapes .*64"):
        llama.with_model(other.model)
    with pytest.raises(InputError, match="tokens are no array"):
        llama.generate([[1, 2], [3]], 2)  # pyright: ignore[reportArgumentType]
    for method in (llama.prefill, llama.log_probabilities):
        with pytest.raises(InputError, match=r"tokens must have the shape \(batch, tokens\)"):
            method(None, np.array([1, 2]))


@pytest.mark.parametrize("file", ["llama.nnef.tgz", "llama.onnx"])
def test_gradients_of_a_batch(file: str) -> None:
    """The gradient of a batch is the sum of the gradients of its rows."""
    decoder = nnef_jax.decoder(nnef_jax.load(NETWORKS / file), 64)
    tokens = np.random.default_rng(0).integers(1, 30, (3, 9)).astype(np.int32)

    def loss(params: Any, tokens: Any) -> Any:
        return -decoder.log_probabilities(params, tokens).sum()

    gradient = jax.jit(jax.grad(loss))
    params = dict(decoder.model.params)
    rows = [gradient(params, tokens[i : i + 1]) for i in range(3)]
    for label, slopes in gradient(params, tokens).items():
        expected = np.sum([row[label] for row in rows], axis=0)
        np.testing.assert_allclose(slopes, expected, 1e-3, 1e-4 * np.abs(expected).max())


def test_arguments_that_cannot_be(llama: Decoder) -> None:
    """Each error names the argument."""
    tokens = np.array([[1, 2, 3]])
    for key in (1.5, "a", None, True, 2**70, jax.random.split(jax.random.key(0)), jnp.ones(3)):
        with pytest.raises(InputError, match="key must be a seed of at most 64 bits, or one key"):
            llama.generate(tokens, 2, sample=Sampling(1.0), key=key)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="lengths must be known"):
        jax.jit(lambda lengths: llama.prefill(None, tokens, lengths))(jnp.array([2]))
    with pytest.raises(InputError, match="tokens must be known"):
        jax.jit(lambda tokens: llama.generate(tokens, 2).tokens)(tokens)
    with pytest.raises(InputError, match="batch must be at least 0"):
        llama.init_state(-1)
    with pytest.raises(InputError, match="the first token of a row has no log-probability"):
        llama.log_probabilities(None, tokens[:, :1])


def test_keys_of_two_kinds(tmp_path: Path) -> None:
    """Each kind of key has a program of its own, also if programs are stored."""
    model = nnef_jax.load(NETWORKS / "llama.nnef.tgz", cache_dir=tmp_path)
    decoder = nnef_jax.decoder(model, 64)
    for key in (3, jax.random.key(3, impl="rbg")):
        assert decoder.generate([1, 2], 3, key=key, sample=Sampling(1.0)).tokens.shape == (1, 3)


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="jax removes barriers before it fuses")
def test_a_loop_copies_no_cache(decoder: Decoder) -> None:
    params = decoder.model.params
    state = decoder.init_state()

    def generate(state: Any, steps: Any) -> Any:
        def step(_: Any, carry: Any) -> Any:
            tokens, state = carry
            logits, state = decoder.step(params, state, tokens)
            return jnp.argmax(logits, -1), state

        return jax.lax.fori_loop(0, steps, step, (jnp.zeros(1, int), state))

    text = jax.jit(generate, donate_argnums=0).lower(state, 5).compile().as_text() or ""
    caches = {x.shape for x in state.values() if x.ndim > 1}
    copied = [",".join(map(str, shape)) for shape in caches]
    loop = text.split("ENTRY")[0]
    assert "dynamic-update-slice" in loop
    assert not re.findall(rf"f32\[(?:{'|'.join(copied)})\]\S* copy\(", loop)
