"""The programs of a decoder are stored in the folder `cache_dir`, and loaded without a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import nnef_jax
from nnef_jax.generation import Decoder, Sampling
from nnef_jax.generation.beams import BeamSearch
from nnef_jax.generation.decoder_network import DecoderStep
from nnef_jax.generation.token_loop import TokenLoop
from tests.generation.test_decoder import NETWORKS, PLACES, reference


def refuse(*_: Any) -> None:
    raise AssertionError("a step is traced")


def decoder_of(path: Path, cache: Path) -> Decoder:
    return nnef_jax.decoder(nnef_jax.load(path, cache_dir=cache), PLACES)


@pytest.mark.parametrize("file", ["llama.nnef.tgz", "llama.onnx"])
def test_a_second_process_traces_nothing(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts, streams, searches and draws run from the folder. A new model stands for
    the second process."""
    prompt, tokens = reference("llama")
    text = np.concatenate([prompt, tokens], axis=1)
    with np.load(NETWORKS / "llama.npz") as arrays:
        beams = arrays["beams"]
    sample = Sampling(1.0, top_k=9, top_p=0.8, repetition_penalty=1.3)
    drawn = nnef_jax.decoder(nnef_jax.load(NETWORKS / file), PLACES).generate(
        prompt, 9, sample=sample, key=3
    )

    def check(decoder: Decoder) -> None:
        assert decoder.generate(prompt, 5).tokens.tolist() == tokens[:, :5].tolist()
        generated = decoder.generate(text[:, :40], 5).tokens
        assert generated.tolist() == text[:, 40:45].tolist()
        assert [int(x[0]) for x in decoder.stream(prompt, 3)] == tokens[0, :3].tolist()
        assert decoder.search(prompt, 20).tokens.tolist() == beams.tolist()
        again = decoder.generate(prompt, 9, sample=sample, key=3)
        assert again.tokens.tolist() == drawn.tokens.tolist()

    check(decoder_of(NETWORKS / file, tmp_path))
    monkeypatch.setattr(DecoderStep, "lower", refuse)
    check(decoder_of(NETWORKS / file, tmp_path))


def test_networks_of_equal_shapes_have_programs_of_their_own(tmp_path: Path) -> None:
    """The two networks differ only in an attribute of their norms."""
    model = onnx.load(NETWORKS / "gpt2.onnx")
    for node in model.graph.node:
        if node.op_type == "LayerNormalization":
            (epsilon,) = [x for x in node.attribute if x.name == "epsilon"]
            epsilon.f = 10.0
    onnx.save(model, tmp_path / "other.onnx")
    prompt, tokens = reference("gpt2")
    cache = tmp_path / "cache"
    assert decoder_of(NETWORKS / "gpt2.onnx", cache).generate(prompt, 40).tokens.tolist() == (
        tokens[:, :40].tolist()
    )
    other = nnef_jax.decoder(nnef_jax.load(tmp_path / "other.onnx"), PLACES)
    expected = other.generate(prompt, 40).tokens.tolist()
    assert expected != tokens[:, :40].tolist()
    assert decoder_of(tmp_path / "other.onnx", cache).generate(prompt, 40).tokens.tolist() == (
        expected
    )


def test_the_loop_reads_short_prompts_of_a_batch() -> None:
    """Rows that a chunk has read wait for rows that the loop reads."""
    prompt, tokens = reference("llama")
    text = np.concatenate([prompt, tokens], axis=1)[0]
    decoder = nnef_jax.decoder(nnef_jax.load(NETWORKS / "llama.nnef.tgz"), PLACES)
    lengths = [3, 40, 15, 1]
    rows = np.stack([np.pad(text[:n], (0, 40 - n)) for n in lengths])
    generated = decoder.generate(rows, 10, lengths=lengths).tokens
    single = [decoder.generate(text[:n], 10).tokens[0].tolist() for n in lengths]
    assert generated.tolist() == single
    assert single[1] == text[40:50].tolist()
    logits, _ = decoder.prefill(None, text[None, :3])  # by single steps
    assert single[0][0] == int(logits[0].argmax())


def test_parameters_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are compiled once for all parameters."""
    prompt, tokens = reference("llama")
    decoder = decoder_of(NETWORKS / "llama.nnef.tgz", tmp_path)
    params = dict(decoder.model.params)
    assert decoder.generate(prompt, 5, params=params).tokens.tolist() == tokens[:, :5].tolist()
    monkeypatch.setattr(DecoderStep, "lower", refuse)
    zeros = {label: np.zeros_like(x) for label, x in params.items()}
    assert decoder.generate(prompt, 5, params=zeros).tokens.tolist() == [[0] * 5]


def test_other_settings_run_in_the_same_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Temperatures, penalties, stop tokens and numbers of tokens are arguments of a program."""
    prompt, tokens = reference("llama")
    stop = int(tokens[0, 4])
    length = tokens[0].tolist().index(stop) + 1

    def fresh() -> Decoder:
        return nnef_jax.decoder(nnef_jax.load(NETWORKS / "llama.nnef.tgz"), PLACES)

    warm = Sampling(2.0, top_k=9, top_p=0.8, repetition_penalty=1.3)
    cold = Sampling(0.5, top_k=5, top_p=0.5, repetition_penalty=1.1)
    expected_cold = fresh().generate(prompt, 30, sample=cold, key=3).tokens.tolist()
    expected_beams = fresh().search(prompt, 9, stop=stop, length_penalty=0.5).tokens.tolist()
    decoder = fresh()
    hot = decoder.generate(prompt, 30, sample=warm, key=3).tokens.tolist()
    decoder.generate(prompt, 20)
    decoder.search(prompt, 20)
    monkeypatch.setattr(TokenLoop, "run", refuse)
    monkeypatch.setattr(BeamSearch, "run", refuse)
    stopped = decoder.generate(prompt, 12, stop=[stop])
    assert stopped.lengths.tolist() == [length]
    assert decoder.generate(prompt, 30, sample=cold, key=3).tokens.tolist() == expected_cold
    assert expected_cold != hot
    beams = decoder.search(prompt, 9, stop=stop, length_penalty=0.5)
    assert beams.tokens.tolist() == expected_beams
    with pytest.raises(AssertionError, match="a step is traced"):
        decoder.generate(prompt, 30, sample=Sampling(0.5, top_k=5))
