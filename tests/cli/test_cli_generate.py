"""`nnef-jax generate`: tokens of torch, texts that a model was trained on, and wrong usage."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from nnef_jax.cli.terminal import print_piece
from nnef_jax.generation import tokenizing
from tests.cli_support import call, fails

ROOT = Path(__file__).resolve().parents[2]
NETWORKS = ROOT / "tests/generation/networks"
LLAMA = NETWORKS / "llama.nnef.tgz"
ANIMALS = ROOT / "examples/animals"
PARAGRAPH = (
    " lives in old trees and barns. It eats mice and voles. Its young are called owlets."
    " The owl turns its head by 270°.\n"
)


def generated(*args, source=LLAMA):
    """Run the command; return its standard output, and check the line about its speed."""
    code, out, err = call("generate", source, "--no-cache", *args)
    assert code == 0, err
    assert re.fullmatch(r"\d+ tokens: the first after \d+\.\d s(, then \d+\.\d tokens/s)?\n", err)
    return out


@pytest.fixture(scope="module")
def torch():
    """Arrays with the prompt of the Llama, and the tokens that torch generates."""
    with np.load(NETWORKS / "llama.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def prompt(torch):
    return ",".join(map(str, torch["prompt"][0]))


def numbers(text):
    return [int(word) for word in text.split()]


# Token numbers


def test_tokens_are_those_of_torch(prompt, torch):
    expected = torch["tokens"][0, :20].tolist()
    assert numbers(generated("--tokens", prompt, "--steps", 20)) == expected
    echoed = numbers(generated("--tokens", prompt, "--steps", 20, "--echo", "--places", 64))
    assert echoed == [*torch["prompt"][0].tolist(), *expected]


def test_beams_are_those_of_torch(prompt, torch):
    options = ("--tokens", prompt, "--steps", 20, "--beams", 4)
    assert numbers(generated(*options)) == torch["beams"][0].tolist()
    stopped = generated(*options, "--stop", torch["stop"])
    assert numbers(stopped) == torch["stopped"][0].tolist()


def test_stop(prompt, torch):
    tokens = torch["tokens"][0].tolist()
    end = tokens.index(tokens[9]) + 1
    out = generated("--tokens", prompt, "--steps", 20, "--stop", f"5, {tokens[9]}")
    assert numbers(out) == tokens[:end]


def test_the_end_is_that_of_a_file_beside_the_network(prompt, torch, tmp_path):
    """Files of transformers, and of onnxruntime-genai, name one token or several."""
    source = shutil.copy(LLAMA, tmp_path)
    tokens = torch["tokens"][0].tolist()
    end = tokens.index(tokens[9]) + 1
    ends = {
        "config.json": {"eos_token_id": tokens[9]},
        "genai_config.json": {"model": {"eos_token_id": [5, tokens[9]]}},
        "generation_config.json": {"eos_token_id": [tokens[9]]},
    }
    for name, document in ends.items():
        (tmp_path / name).write_text(json.dumps(document))
        out = generated("--tokens", prompt, "--steps", 20, source=source)
        assert numbers(out) == tokens[:end], name
        (tmp_path / name).unlink()
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": null}')
    assert len(numbers(generated("--tokens", prompt, "--steps", 20, source=source))) == 20


def test_random_tokens_depend_on_the_seed(prompt):
    options = ("--tokens", prompt, "--steps", 12, "--temperature", 2, "--top-k", 50, "--top-p", 0.9)
    first, again, other = (generated(*options, "--seed", seed) for seed in (1, 1, 2))
    assert first == again != other


def test_fewer_bits(prompt, torch):
    out = numbers(generated("--tokens", prompt, "--steps", 4, "--dtype", "bfloat16"))
    assert len(out) == 4 and out[0] == torch["tokens"][0, 0]


# Texts


@pytest.fixture
def text_package():
    pytest.importorskip("tokenizers")


@pytest.mark.usefixtures("text_package")
def test_the_model_of_the_examples_continues_a_text_that_it_learnt():
    source = ANIMALS / "model.nnef.tgz"
    assert generated("--prompt", "The owl", source=source) == PARAGRAPH
    assert generated("--prompt", "The owl", "--echo", source=source) == f"The owl{PARAGRAPH}"
    beams = generated("--prompt", "The owl", "--beams", 2, "--steps", 60, source=source)
    assert beams == PARAGRAPH


@pytest.mark.usefixtures("text_package")
def test_a_chat(monkeypatch):
    source = ANIMALS / "model.nnef.tgz"
    question = "What does the penguin eat?"
    answer = "The penguin eats fish and krill.\n"
    assert generated("--chat", "--prompt", question, source=source) == answer
    monkeypatch.setattr(sys, "stdin", io.StringIO(question))
    assert generated("--chat", "--prompt", "-", source=source) == answer
    out = generated("--chat", "--prompt", question, "--stop", "none", "--steps", 60, source=source)
    assert out.startswith(answer.strip()) and len(out) > len(answer)


@pytest.mark.usefixtures("text_package")
def test_files_where_torch_to_nnef_writes_them(tmp_path):
    """The network in `model`, the tokenizer and its configuration in `tokenizer`."""
    for folder in ("model", "tokenizer"):
        (tmp_path / folder).mkdir()
    source = shutil.copy(ANIMALS / "model.nnef.tgz", tmp_path / "model")
    shutil.copy(ANIMALS / "tokenizer.json", tmp_path / "tokenizer")
    template = "{% if eos_token == '<|end|>' %}{{ messages[1]['content'] }}{% endif %}"
    templates = [{"name": "tools", "template": "no"}, {"name": "default", "template": template}]
    config = {"eos_token": {"content": "<|end|>"}, "chat_template": templates}
    (tmp_path / "tokenizer/tokenizer_config.json").write_text(json.dumps(config))
    assert generated("--prompt", "The owl", source=source) == PARAGRAPH
    options = ("--chat", "--system", "x", "--prompt", "The owl", "--echo")
    assert generated(*options, source=source) == f"The owl{PARAGRAPH}"


@pytest.mark.usefixtures("text_package")
def test_the_folder_of_the_tokenizer(tmp_path):
    source = shutil.copy(ANIMALS / "model.nnef.tgz", tmp_path)
    options = ("--prompt", "The owl", "--tokenizer", ANIMALS)
    assert generated(*options, source=source) == PARAGRAPH
    err = fails("generate", source, "--prompt", "The owl", "--tokenizer", tmp_path)
    assert f"{tmp_path / 'tokenizer.json'}: No such file" in err


def test_control_characters_are_not_printed(capsys):
    """A network cannot send commands to a terminal; spaces and joiners of all scripts stay."""
    print_piece("a\x1b[2J\x9b\r\u202e\ud800 b\n\tc\u3000d\u200de°")
    assert (
        capsys.readouterr().out == "a\\u001b[2J\\u009b\\u000d\\u202e\\ud800 b\n\tc\u3000d\u200de°"
    )


# Errors of the user


def test_a_missing_tokenizer():
    err = fails("generate", LLAMA, "--prompt", "The owl")
    assert f"there is no tokenizer.json beside {LLAMA}" in err and "--tokens 1,15043" in err
    err = fails("generate", "nowhere.nnef.tgz", "--prompt", "The owl")
    assert "nowhere.nnef.tgz: No such file" in err and "tokenizer" not in err


def test_a_missing_package(monkeypatch):
    monkeypatch.setattr(tokenizing, "find_spec", lambda name: None)
    err = fails("generate", ANIMALS / "model.nnef.tgz", "--prompt", "The owl")
    assert 'pip install "nnef_jax[text]"' in err


@pytest.mark.usefixtures("text_package")
def test_the_tokenizer_of_another_network():
    tokenizer = ANIMALS / "tokenizer.json"
    err = fails("generate", LLAMA, "--prompt", "The owl", "--tokenizer", tokenizer)
    assert f"{tokenizer} has tokens up to 447, the network has tokens 0 to 96" in err
    err = fails("generate", LLAMA, "--prompt", "x", "--tokenizer", "nowhere.json")
    assert "nowhere.json: No such file" in err


@pytest.mark.usefixtures("text_package")
def test_files_that_are_damaged(tmp_path):
    shutil.copy(ANIMALS / "model.nnef.tgz", tmp_path)
    shutil.copy(ANIMALS / "tokenizer.json", tmp_path)
    source = tmp_path / "model.nnef.tgz"
    err = fails("generate", source, "--prompt", "The owl", "--chat")
    assert f"there is no chat template beside {source}" in err
    config = tmp_path / "tokenizer_config.json"
    for text, message in (
        ("[" * 10**6, "not JSON"),
        ("[]", "not a JSON object"),
        ('{"chat_template": "{% if %}"}', "the chat template fails: line 1"),
    ):
        config.write_text(text)
        assert f"{config}: {message}" in fails("generate", source, "--prompt", "x", "--chat")
    config.write_bytes(b"\xff")
    assert "not a text in UTF-8" in fails("generate", source, "--prompt", "x", "--chat")


def test_prompts_that_cannot_be(prompt):
    err = fails("generate", LLAMA, "--tokens", prompt, "--places", 20, "--steps", 30)
    assert "30 further ones need 42 places" in err and "--places 42" in err
    assert "a prompt is empty" in fails("generate", LLAMA, "--tokens", "none")
    err = fails("generate", LLAMA, "--tokens", "97", "--no-cache")
    assert "a prompt has the token 97, the network has tokens 0 to 96" in err


def test_networks_that_generate_no_text():
    err = fails("generate", ROOT / "examples/digits/model", "--tokens", "1")
    assert "no input of the network is the tokens: none takes integers, of image" in err
    assert "a language model takes token numbers" in err
    err = fails("generate", NETWORKS / "whisper.onnx", "--tokens", "3")
    assert "past_key_values.0.encoder.key" in err and "in Python" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give either --prompt TEXT or --tokens NUMBERS"),
        (("--prompt", "x", "--tokens", "1"), "give either --prompt TEXT or --tokens NUMBERS"),
        (("--tokens", "1", "--chat"), "does not go with --tokens"),
        (("--tokens", "1", "--tokenizer", "x"), "does not go with --tokens"),
        (("--prompt", "x", "--system", "y"), "needs --chat"),
        (("--tokens", "1,x"), "'1,x' is not a list of numbers"),
        (("--tokens", "1,²"), "is not a list of numbers"),
        (("--tokens", "1", "--stop", "-1"), "is not a list of numbers"),
        (("--tokens", "1", "--top-k", "5"), "need a temperature"),
        (("--tokens", "1", "--beams", "2", "--temperature", "1"), "does not go with --temperature"),
        (("--tokens", "1", "--steps", "0"), "--steps"),
    ],
)
def test_wrong_usage(options, message):
    code, out, err = call("generate", LLAMA, *options)
    assert (code, out) == (2, "") and message in err


def test_numbers_beyond_their_range(prompt):
    err = fails("generate", LLAMA, "--tokens", prompt, "--temperature", 1, "--top-p", 0)
    assert "top_p must be more than 0" in err
