"""The step of a decoder as a file that jax runs alone."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

import nnef_jax
from nnef_jax.errors import InputError, NnefError
from nnef_jax.generation import Decoder
from tests.generation.test_decoder import NETWORKS, reference


@pytest.fixture(scope="module")
def llama() -> Decoder:
    return nnef_jax.decoder(nnef_jax.load(NETWORKS / "llama.nnef.tgz"), 64)


def test_the_exported_step_continues_a_prompt(llama: Decoder, tmp_path: Path) -> None:
    """The batch is open. Two rows read different prompts, of which torch's text has the next."""
    file = tmp_path / "step.npz"
    llama.model_of(1).export(file, entry="step", platforms=["cpu"])
    with np.load(file) as arrays:
        exported = jax.export.deserialize(arrays["function"])
        types = exported.in_tree.unflatten(exported.in_avals)[0]
        params = {x: arrays[f"params/{x}.npy"].view(t.dtype) for x, t in types[0].items()}
    prompt, tokens = reference("llama")
    text = np.concatenate([prompt, tokens], axis=1)[0]
    rows = np.stack([text[:14], text[20:34]])
    batch = len(rows)
    state = {x: np.zeros((batch, *t.shape[1:]), t.dtype) for x, t in types[1].items()}
    step = jax.jit(exported.call)
    logits = np.empty(0)
    for column in rows.T:
        logits, state = step(params, state, column[:, None].astype(np.int32))
    assert state["length"].tolist() == [14, 14]
    assert int(logits[0].argmax()) == text[14]
    expected, _ = llama.prefill(None, rows)
    np.testing.assert_allclose(logits.reshape(expected.shape), expected, rtol=1e-4, atol=1e-4)


def test_the_number_of_tokens_must_be_known(llama: Decoder, tmp_path: Path) -> None:
    with pytest.raises(NnefError, match="the number of tokens that a step reads must be") as error:
        llama.model.export(tmp_path / "step.npz", entry="step")
    assert "decoder.model_of(1)" in error.value.hint
    assert not [*tmp_path.iterdir()]
    with pytest.raises(InputError, match="tokens must be 1 to 63, they are 64"):
        llama.model_of(64)


def test_a_model_of_several_tokens(llama: Decoder) -> None:
    model = llama.model_of(4)
    assert model.inputs[0].shape == (None, 4)
    prompt, _ = reference("llama")
    expected, _ = llama.prefill(None, prompt[:, :4])
    logits, state = model.step(llama.init_state(1), prompt[:, :4])
    np.testing.assert_allclose(logits.reshape(-1), expected[0], rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError):
        model.step(state, prompt[:, :5])
