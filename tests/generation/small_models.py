"""Makes small random models of transformers, for the recipes of docs/language_model_recipes.md.

    python -m tests.generation.small_models FOLDER

It writes the folders `llama`, `whisper` and `bert` to FOLDER, as transformers writes a model with
its tokenizer. The tokenizer of the texts is that of examples/animals. It needs torch and
transformers.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
import transformers

ANIMALS = Path(__file__).resolve().parents[2] / "examples" / "animals"
WIDTH, LAYERS, HEADS = 32, 2, 4


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Return the tokenizer of examples/animals, with its chat template."""
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(ANIMALS / "tokenizer.json"), eos_token="<|end|>", pad_token="<|end|>",
        chat_template=(ANIMALS / "chat_template.jinja").read_text("utf-8"),
    )  # fmt: skip


def llama(words: int) -> transformers.PreTrainedModel:
    """Return a decoder."""
    config = transformers.LlamaConfig(
        vocab_size=words, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=2, initializer_range=0.3,
        max_position_embeddings=256, bos_token_id=None, eos_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def whisper(words: int) -> transformers.PreTrainedModel:
    """Return an encoder of sounds with a decoder."""
    config = transformers.WhisperConfig(
        vocab_size=words, d_model=WIDTH, encoder_layers=LAYERS, decoder_layers=LAYERS,
        encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=WIDTH,
        decoder_ffn_dim=WIDTH, max_target_positions=64, init_std=0.3, pad_token_id=0,
        bos_token_id=1, eos_token_id=0, decoder_start_token_id=3, suppress_tokens=None,
        begin_suppress_tokens=None,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config)


def bert(words: int) -> transformers.PreTrainedModel:
    """Return an encoder of texts."""
    config = transformers.BertConfig(
        vocab_size=words, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=2 * WIDTH, max_position_embeddings=128, initializer_range=0.3,
        pad_token_id=0,
    )  # fmt: skip
    return transformers.BertModel(config)


def main(folder: Path) -> None:
    """Write the models to `folder`."""
    torch.manual_seed(0)
    words = tokenizer()
    for make in (llama, whisper, bert):
        target = folder / make.__name__
        shutil.rmtree(target, ignore_errors=True)
        make(len(words)).eval().save_pretrained(target)
        words.save_pretrained(target)
    transformers.WhisperFeatureExtractor().save_pretrained(folder / "whisper")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
