"""Caches of a window of positions, for a Mistral whose tokens attend to eight of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import nnef_jax
from nnef_jax.errors import InputError
from nnef_jax.generation import Decoder
from tests.generation.test_decoder import NETWORKS, reference

PLACES = 80


def decoder_of(window: int | None, file: str = "mistral.onnx", **options: Any) -> Decoder:
    return nnef_jax.decoder(nnef_jax.load(NETWORKS / file, **options), PLACES, window=window)


@pytest.fixture(scope="module")
def text() -> Any:
    """Return a prompt of 13 tokens, and 60 tokens after it, by torch."""
    return np.concatenate(reference("mistral"), axis=1)[0]


@pytest.mark.parametrize("window", [8, 20, None])
def test_tokens_are_those_of_torch(window: int | None, text: Any) -> None:
    """Short prompts, and prompts of several chunks. A larger window changes nothing."""
    decoder = decoder_of(window)
    places = PLACES if window is None else window - 1
    assert decoder.init_state(3)["past_key_values.1.value"].shape == (3, 2, places, 4)
    assert decoder.generate(text[:13], 60).tokens.tolist() == [text[13:].tolist()]
    lengths = [14, 50, 32]
    rows = np.stack([np.pad(text[:n], (0, 50 - n)) for n in lengths])
    generated = decoder.generate(rows, 10, lengths=lengths).tokens
    assert generated.tolist() == [text[n : n + 10].tolist() for n in lengths]


def test_prompts_in_programs_of_ones_own(text: Any) -> None:
    decoder = decoder_of(8)
    logits, state = jax.jit(lambda tokens: decoder.prefill(None, tokens))(text[None, :37])
    assert int(logits.argmax()) == text[37] and state["length"].tolist() == [37]
    logits, state = decoder.step(None, state, text[37:38])
    assert int(logits.argmax()) == text[38] and state["length"].tolist() == [38]


def test_programs_are_told_apart(tmp_path: Path, text: Any) -> None:
    """Decoders that differ only in `places` have caches of one shape, and programs of their own."""
    for window in (8, 9):
        decoder = decoder_of(window, cache_dir=tmp_path)
        assert decoder.generate(text[:13], 20).tokens.tolist() == [text[13:33].tolist()]
    with pytest.raises(InputError, match=f"the caches have {PLACES}"):
        decoder_of(8).generate(text[:13], PLACES)


@pytest.mark.parametrize(
    ("window", "file", "message"),
    [
        (7, "mistral.onnx", "attends to more than 7 positions"),
        (8, "gpt2.onnx", "attends to more than 8 positions"),
        (8, "llama.nnef.tgz", "this one computes positions from the length of its caches"),
        (8, "llama-genai.onnx", "this one computes positions"),
        (1, "mistral.onnx", "window must be at least 2, it is 1"),
    ],
)
def test_windows_that_a_network_does_not_have(window: int, file: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        decoder_of(window, file)


def test_shapes_alone() -> None:
    """Without arrays the window is not checked."""
    decoder = decoder_of(8, parameters="shapes")
    assert decoder.model.graph.states[1].value.type.shape[2] == 7
