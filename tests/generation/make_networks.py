"""Makes the language models of `tests/generation/networks`, and the tokens that torch generates.

    python -m tests.generation.make_networks FOLDER

The models are small and random. Each is written as its users write it: by torch_to_nnef's own
command (0.24.12, with transformers 4.57.6), by optimum (optimum-onnx 0.1.0, optimum 2.1.0), and by
the builder of onnxruntime-genai (0.15.2). torch is 2.13.0. No test runs this script: the files that
it makes are part of the tests.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from optimum.exporters.onnx import main_export
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

WORDS, WIDTH, LAYERS, HEADS, STEPS = 96, 16, 2, 4, 200
TEXT = "".join(map(chr, range(32, 127)))
PROMPT = "a small model"


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of single letters."""
    letters = Tokenizer(models.BPE(unk_token="<s>"))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=WORDS, special_tokens=["<s>", "</s>"])
    letters.train_from_iterator([TEXT], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=letters, unk_token="<s>", bos_token="<s>", eos_token="</s>"
    )


def configuration(kind: str, words: int) -> Any:
    """Return the configuration of a small model."""
    if kind == "gpt2":
        return GPT2Config(
            vocab_size=words,
            n_embd=WIDTH,
            n_layer=LAYERS,
            n_head=HEADS,
            n_positions=256,
            initializer_range=0.3,
        )
    if kind == "llama8":  # each of eight devices has one head
        return LlamaConfig(
            vocab_size=words, hidden_size=32, intermediate_size=64, head_dim=4,
            num_hidden_layers=LAYERS, num_attention_heads=8, num_key_value_heads=8,
            initializer_range=0.3,
        )  # fmt: skip
    if kind == "mistral":
        return MistralConfig(
            vocab_size=words, hidden_size=WIDTH, intermediate_size=2 * WIDTH, head_dim=4,
            num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=2,
            initializer_range=0.3, sliding_window=8,
        )  # fmt: skip
    make = {"llama": LlamaConfig, "qwen3": Qwen3Config}[kind]
    return make(
        vocab_size=words, hidden_size=WIDTH, intermediate_size=2 * WIDTH, head_dim=WIDTH // HEADS,
        num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=2,
        initializer_range=0.3,
    )  # fmt: skip


def make(kind: str, folder: Path, out: Path) -> None:
    """Write a model in all formats, a prompt, and the tokens that torch generates greedily."""
    torch.manual_seed(0)
    words = tokenizer()
    model = AutoModelForCausalLM.from_config(configuration(kind, len(words))).eval()
    source = folder / kind
    model.save_pretrained(source)
    words.save_pretrained(source)
    prompt = torch.tensor([words.encode(PROMPT)])
    text = model.generate(
        prompt, max_new_tokens=STEPS, do_sample=False, pad_token_id=0, eos_token_id=None
    )
    first = len(prompt[0])
    arrays = {"prompt": prompt.numpy(), "tokens": text[:, first:].numpy()}
    if kind == "llama":
        search = {"max_new_tokens": 20, "num_beams": 4, "do_sample": False, "pad_token_id": 0}
        beams = model.generate(prompt, eos_token_id=None, **search)[:, first:]
        stop = beams[0, 12]
        stopped = model.generate(prompt, eos_token_id=int(stop), **search)[:, first:]
        arrays |= {"beams": beams.numpy(), "stop": stop.numpy(), "stopped": stopped.numpy()}
    np.savez_compressed(out / f"{kind}.npz", **arrays)
    if kind != "llama8":
        main_export(
            str(source), str(folder / f"{kind}-onnx"), task="text-generation-with-past",
            do_validation=False, no_post_process=True,
        )  # fmt: skip
        shutil.copy(folder / f"{kind}-onnx" / "model.onnx", out / f"{kind}.onnx")
    if kind in ("gpt2", "mistral"):
        return  # torch_to_nnef's command does not take gpt2's configuration, or drops the window
    if kind == "llama":
        genai = folder / f"{kind}-genai"
        builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", source]
        options = ["-o", genai, "-c", folder / "cache", "-p", "fp32", "-e", "cpu"]
        subprocess.run([*builder, *options], check=True)
        onnx.save(onnx.load(genai / "model.onnx"), out / f"{kind}-genai.onnx")
    tract = folder / "tract"  # otherwise the command downloads tract
    tract.write_text("#!/bin/sh\necho tract 0.22.1\n")
    tract.chmod(0o755)
    archive = folder / f"{kind}-nnef"
    command = [sys.executable, "-m", "torch_to_nnef_llm.cli", "-d", source, "-e", archive]
    command += ["--tract-specific-path", tract, "-dt", "f32", "-dwtac", "-nv"]
    subprocess.run(command, check=True)
    shutil.copy(archive / "model" / "model.nnef.tgz", out / f"{kind}.nnef.tgz")


def make_whisper(folder: Path, out: Path) -> None:
    """Write the decoder of a speech model, keys and values of a sound, and tokens by torch."""
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=WORDS, d_model=WIDTH, encoder_layers=LAYERS, decoder_layers=LAYERS,
        encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=WIDTH,
        decoder_ffn_dim=WIDTH, max_target_positions=64, init_std=0.3, pad_token_id=0,
        decoder_start_token_id=3, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    source = folder / "whisper"
    model.save_pretrained(source)
    WhisperFeatureExtractor().save_pretrained(source)
    states = torch.randn(1, 20, WIDTH)  # of the encoder
    token, past, tokens = torch.tensor([[3]]), None, list[int]()
    for _ in range(50):
        step = model(
            encoder_outputs=(states,), decoder_input_ids=token, past_key_values=past, use_cache=True
        )
        past = step.past_key_values
        token = step.logits[:, -1].argmax(-1, keepdim=True)
        tokens.append(int(token))
    arrays = {"prompt": np.array([[3]]), "tokens": np.array([tokens])}
    for layer, cache in enumerate(past.cross_attention_cache.layers):
        for name, array in (("key", cache.keys), ("value", cache.values)):
            arrays[f"past_key_values.{layer}.encoder.{name}"] = array.detach().numpy()
    np.savez_compressed(out / "whisper.npz", **arrays)
    main_export(
        str(source), str(folder / "whisper-onnx"), task="automatic-speech-recognition-with-past",
        do_validation=False, no_post_process=True,
    )  # fmt: skip
    shutil.copy(folder / "whisper-onnx" / "decoder_with_past_model.onnx", out / "whisper.onnx")


# Templates in the form of published ones: they use filters, namespaces, macros and white space.
TEMPLATES = {
    "messages with marks": """{% for message in messages %}{% if loop.first and \
messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}
{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
    "namespaces and filters": """{{- bos_token }}
{%- set state = namespace(count=0, system=none) %}
{%- for message in messages if message.role != 'system' %}
    {%- set state.count = state.count + 1 %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {{- '[INST] ' ~ message.content | trim ~ ' [/INST]' if message.role == 'user' }}
    {%- if message.role == 'assistant' %}{% generation %}{{ message.content }}{% endgeneration %}
    {{- eos_token }}{% endif %}
{%- endfor %}
{{ messages | tojson }} {{ state.count }}""",
    "macros and loop controls": """{% macro line(role, text) -%}
<{{ role | upper }}>{{ text | replace('\n', ' ') }}
{% endmacro %}
{% for message in messages %}
    {% if message['content'] is not string %}{% continue %}{% endif %}
    {{ line(message['role'], message['content']) }}
    {%- if loop.index > 3 %}{% break %}{% endif %}
{% endfor %}
{% if tools %}{{ tools | tojson(indent=4) }}{% endif %}""",
}
MESSAGES = [
    {"role": "user", "content": " What is <1> & 'é'?\n"},
    {"role": "assistant", "content": "Two words."},
    {"role": "user", "content": "Thanks"},
]


def make_chats(out: Path) -> None:
    """Write chat templates, and the texts that transformers renders."""
    words = tokenizer()
    tokens = {"bos_token": words.bos_token, "eos_token": words.eos_token}
    chats: dict[str, Any] = {}
    for name, template in TEMPLATES.items():
        text = words.apply_chat_template(
            MESSAGES, chat_template=template, add_generation_prompt=True, tokenize=False
        )
        chats[name] = {
            "template": template, "messages": MESSAGES, "tokens": tokens, "text": text
        }  # fmt: skip
    text = json.dumps(chats, indent=1, ensure_ascii=False)
    (out / "chats.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    make_chats(Path(__file__).parent / "networks")
    for name in ("llama", "llama8", "qwen3", "gpt2", "mistral"):
        make(name, Path(sys.argv[1]), Path(__file__).parent / "networks")
    make_whisper(Path(sys.argv[1]), Path(__file__).parent / "networks")
