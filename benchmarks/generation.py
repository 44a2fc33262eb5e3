"""Compares the time of a token of a language model in nnef_jax, tract, onnxruntime and torch.

    python -m benchmarks.generation FOLDER [--threads 1] [--rounds 12]

The model is a random Llama of 12 layers of width 768 in float32. Exporters write it to `FOLDER`
once, as their users would: torch_to_nnef writes an NNEF archive, optimum an ONNX model. Each engine
reads the same prompt of 32 tokens and generates 32 tokens greedily. nnef_jax generates them in one
compiled loop over caches of 128 places. The loops of the other engines are Python, and their caches
grow. All engines must generate the same tokens.

The packages are those of docs/language_model_recipes.md, and tract.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

PROMPT_LENGTH, STEPS, PLACES = 32, 32, 128
LAYERS, WORDS = 12, 2048
Generate = Callable[[int], list[int]]  # generates so many tokens after the prompt


def exported(folder: Path) -> None:
    """Write the model to the folders `torch`, `onnx` and `nnef`, unless they are there."""
    source = folder / "torch"
    if not source.exists():
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        from tests.generation.make_networks import tokenizer

        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=WORDS, hidden_size=768, intermediate_size=2048, num_hidden_layers=LAYERS,
            num_attention_heads=12, num_key_value_heads=12, initializer_range=0.1,
        )  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(source)
        tokenizer().save_pretrained(source)
    if not (folder / "onnx").exists():
        from optimum.exporters.onnx import main_export

        main_export(
            str(source), str(folder / "onnx"), task="text-generation-with-past",
            do_validation=False, no_post_process=True,
        )  # fmt: skip
    if not (folder / "nnef").exists():
        script = folder / "tract"  # otherwise the command downloads tract
        script.write_text("#!/bin/sh\necho tract 0.22.1\n")
        script.chmod(0o755)
        command = [sys.executable, "-m", "torch_to_nnef_llm.cli", "-d", source]
        command += ["-e", folder / "nnef", "--tract-specific-path", script, "-dt", "f32"]
        subprocess.run([*command, "-dwtac", "-nv"], check=True)


def of_nnef_jax(path: Path, prompt: list[int]) -> Generate:
    """Return the function that generates tokens with nnef_jax."""
    import nnef_jax

    decoder = nnef_jax.decoder(nnef_jax.load(path), places=PLACES)
    return lambda steps: np.asarray(decoder.generate([prompt], steps=steps).tokens)[0].tolist()


def of_tract(path: Path, prompt: list[int]) -> Generate:
    """Return the function that generates tokens with tract, which reads the NNEF archive."""
    import tract

    reader = tract.nnef().with_tract_extra().with_tract_transformers()
    model = reader.load(path).into_runnable()
    convert: Any = tract.Tensor.from_numpy  # pyright: ignore[reportAttributeAccessIssue]
    empty = [convert(np.zeros((1, 12, 0, 64), np.float32)) for _ in range(2 * LAYERS)]

    def generate(steps: int) -> list[int]:
        caches, tokens, made = empty, prompt, list[int]()
        for _ in range(steps):
            logits, *caches = model.run([convert(np.array([tokens])), *caches])
            tokens = [int(logits.to_numpy()[0, -1].argmax())]
            made += tokens
        return made

    return generate


def of_onnxruntime(path: Path, prompt: list[int], threads: int) -> Generate:
    """Return the function that generates tokens with onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]
    cache_names = [name for name in names if name.startswith("past_key_values")]
    empty = [np.zeros((1, 12, 0, 64), np.float32) for _ in cache_names]

    def generate(steps: int) -> list[int]:
        caches: Sequence[Any] = empty
        tokens, made, length = prompt, list[int](), 0
        for _ in range(steps):
            positions = np.arange(length, length + len(tokens))[None]
            length += len(tokens)
            feed = {"input_ids": np.array([tokens]), "position_ids": positions}
            feed |= {"attention_mask": np.ones((1, length), np.int64)}
            feed |= dict(zip(cache_names, caches, strict=True))
            logits, *caches = session.run(None, {name: feed[name] for name in names})
            tokens = [int(logits[0, -1].argmax())]
            made += tokens
        return made

    return generate


def of_torch(path: Path, prompt: list[int]) -> Generate:
    """Return the function that generates tokens with torch."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(path).eval()

    def generate(steps: int) -> list[int]:
        caches, tokens, made = None, prompt, list[int]()
        with torch.inference_mode():
            for _ in range(steps):
                step = model(torch.tensor([tokens]), past_key_values=caches, use_cache=True)
                caches, tokens = step.past_key_values, [int(step.logits[0, -1].argmax())]
                made += tokens
        return made

    return generate


def main(argv: Sequence[str] | None = None) -> None:
    """Export the model, and print the median time of a token in each engine."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args(argv)
    os.sched_setaffinity(0, set(range(options.threads)))  # before an engine starts threads
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    exported(options.folder)
    from benchmarks import timing

    prompt = np.random.default_rng(0).integers(0, WORDS, PROMPT_LENGTH).tolist()
    archive = options.folder / "nnef" / "model" / "model.nnef.tgz"
    onnx = options.folder / "onnx" / "model.onnx"
    engines = {
        "nnef_jax, NNEF": of_nnef_jax(archive, prompt),
        "nnef_jax, ONNX": of_nnef_jax(onnx, prompt),
        "tract": of_tract(archive, prompt),
        "onnxruntime": of_onnxruntime(onnx, prompt, options.threads),
        "torch": of_torch(options.folder / "torch", prompt),
    }
    texts = {name: generate(1 + STEPS) for name, generate in engines.items()}
    if len(set(map(tuple, texts.values()))) > 1:
        raise timing.DisagreementError(f"the engines generate different tokens: {texts}")
    calls: dict[str, Callable[[], Any]] = {}
    for name, generate in engines.items():
        calls[f"{name}: prompt"] = lambda generate=generate: generate(1)
        calls[f"{name}: all"] = lambda generate=generate: generate(1 + STEPS)
    measured = timing.measure(calls, options.rounds)
    samples = measured.samples
    times: dict[str, float] = {}
    for name in engines:
        pairs = zip(samples[f"{name}: all"], samples[f"{name}: prompt"], strict=True)
        times[name] = median((all_tokens - first) / STEPS for all_tokens, first in pairs)
    fastest = min(time for name, time in times.items() if not name.startswith("nnef_jax"))
    print(f"| engine, {options.threads} threads | ms a token | of the fastest other engine |")
    print("|---|---|---|")
    for name, time in times.items():
        print(f"| {name} | {time * 1e3:.2f} | {time / fastest:.3f} |")
    print(f"other processes used {measured.elsewhere:.2f} cores")


if __name__ == "__main__":
    main()
