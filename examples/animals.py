"""Train the small language model of `examples/animals`, and export it by torch_to_nnef.

    pip install torch transformers "torch_to_nnef[llm-tract]"
    python examples/animals.py [--save out/animals]

The model is a Llama of two layers. It learns the sentences of `TEXTS` by heart, and the answers to
questions about them. The tokenizer is trained on the same sentences. `--save` names the folder to
write: it holds the network, the tokenizer, the template of a chat, and the token that ends a text.
`nnef-jax generate` reads this folder. The training takes a few minutes on one core.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TEXTS = """
fox|lives in forests and fields|eats mice, berries and eggs|cubs|hears a mouse under deep snow
owl|lives in old trees and barns|eats mice and voles|owlets|turns its head by 270°
otter|lives on the banks of clean rivers|eats fish, frogs and crabs|pups|closes its ears under water
beaver|lives in a lodge of branches|eats bark and leaves|kits|builds dams that make a pond
hedgehog|lives in hedges and gardens|eats beetles, worms and slugs|hoglets|has 6000 spines
badger|lives in a den with many rooms|eats worms, roots and berries|cubs|carries grass to its bed
squirrel|lives high up in trees|eats nuts, seeds and buds|kits|forgets half of the nuts it hides
bat|lives in caves and under roofs|eats moths and gnats|pups|sees the night with its ears
mole|lives in tunnels under meadows|eats worms|pups|digs 15 metres in an hour
hare|lives in open fields|eats grass, herbs and bark|leverets|runs at 70 km/h
deer|lives at the edge of the forest|eats leaves, grass and acorns|fawns|grows new antlers each year
wolf|lives in packs in wide forests|eats deer and hares|pups|hears a howl from 10 km away
bear|lives in forests and mountains|eats berries, fish and honey|cubs|sleeps through the winter
seal|lives on cold coasts|eats fish and squid|pups|holds its breath for an hour
whale|lives in all oceans|eats krill and small fish|calves|sings songs that travel far
penguin|lives on the ice of Antarctica|eats fish and krill|chicks|keeps its egg warm at -60 °C
swift|lives in the air|eats flying insects|chicks|sleeps while it flies
crow|lives in cities and fields|eats nearly everything|chicks|remembers the faces of people
stork|lives on roofs and in tall trees|eats frogs, mice and fish|chicks|flies to Africa in autumn
frog|lives in ponds and wet meadows|eats flies and snails|tadpoles|drinks through its skin
toad|lives in gardens and woods|eats ants and slugs|tadpoles|walks back to the pond of its birth
snail|lives in damp places|eats leaves and fungi|snails|carries its house on its back
bee|lives in a hive with thousands of sisters|eats nectar and pollen|larvae|dances to show the way
ant|lives in a nest under the ground|eats seeds and small insects|larvae|lifts 50 times its weight
"""
TEMPLATE = """\
{%- for message in messages %}
{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>"]
WORDS, LONGEST, STEPS, ROWS = 448, 96, 2500, 40


def paragraphs() -> list[str]:
    """Return a paragraph on each animal."""
    rows = [line.split("|") for line in TEXTS.strip().splitlines()]
    return [
        f"The {name} {lives}. It {eats}. Its young are called {young}. The {name} {fact}."
        for name, lives, eats, young, fact in rows
    ]


def chats() -> list[list[dict[str, str]]]:
    """Return a question and its answer, about each animal and each of its properties."""
    pairs: list[tuple[str, str]] = []
    for line in TEXTS.strip().splitlines():
        name, lives, eats, young, fact = line.split("|")
        pairs += [
            (f"Where does the {name} live?", f"The {name} {lives}."),
            (f"What does the {name} eat?", f"The {name} {eats}."),
            (f"What are the young of the {name} called?", f"They are called {young}."),
            (f"What is special about the {name}?", f"The {name} {fact}."),
        ]
    return [
        [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        for question, answer in pairs
    ]


def tokenizer_of(texts: Sequence[str]) -> Any:
    """Return a tokenizer of bytes and of frequent pairs of them, trained on texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    bytes_of_texts = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS, special_tokens=SPECIAL, initial_alphabet=bytes_of_texts
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=SPECIAL[0], pad_token=SPECIAL[0],
        chat_template=TEMPLATE, model_max_length=LONGEST,
    )  # fmt: skip


def trained(rows: Any, words: int) -> Any:
    """Return a Llama that has learnt the rows of tokens, (texts, tokens); -1 is padding."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=words, hidden_size=48, intermediate_size=112, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LONGEST,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=0, initializer_range=0.1,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=STEPS)
    for step in range(STEPS):
        batch = rows[torch.randint(len(rows), (ROWS,))]
        targets = torch.where(batch < 0, -100, batch)
        loss = model(batch.clamp(0), labels=targets).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == STEPS - 1:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    return model.eval()


def export(source: Path, folder: Path) -> None:
    """Export the model in the folder `source` by torch_to_nnef's command, without its test runs."""
    tract = folder / "tract"  # otherwise the command downloads tract
    tract.write_text("#!/bin/sh\necho tract 0.22.1\n")
    tract.chmod(0o755)
    command = [sys.executable, "-m", "torch_to_nnef_llm.cli", "-d", source, "-e", folder / "nnef"]
    command += ["--tract-specific-path", tract, "-dt", "f32", "-dwtac", "-nv"]
    subprocess.run([str(word) for word in command], check=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--save", type=Path, default=Path("out/animals"), help="a new folder")
    args = parser.parse_args(argv)
    needs = ("torch", "transformers", "torch_to_nnef_llm")
    missing = [name for name in needs if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit('needs pip install torch transformers "torch_to_nnef[llm-tract]"')
    if args.save.exists():
        parser.error(f"{args.save} exists: give another --save")
    import torch

    tokenizer = tokenizer_of([*paragraphs(), *(x["content"] for chat in chats() for x in chat)])
    ids = [[*tokenizer.encode(text), 0] for text in paragraphs()]
    ids += [tokenizer.apply_chat_template(chat) for chat in chats()]
    rows = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(x) for x in ids], batch_first=True, padding_value=-1
    )
    print(f"{len(rows)} texts, the longest of {rows.shape[1]} tokens")
    model = trained(rows, len(tokenizer))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model.save_pretrained(folder / "source")
        tokenizer.save_pretrained(folder / "source")
        export(folder / "source", folder)
        args.save.mkdir(parents=True)
        archive = gzip.decompress((folder / "nnef" / "model" / "model.nnef.tgz").read_bytes())
        compressed = gzip.compress(archive, mtime=0)  # the command does not compress it
        (args.save / "model.nnef.tgz").write_bytes(compressed)
        for file in ("tokenizer.json", "chat_template.jinja"):
            shutil.copy(folder / "nnef" / "tokenizer" / file, args.save)
    ends = {"eos_token_id": 0}
    (args.save / "generation_config.json").write_text(json.dumps(ends) + "\n", encoding="utf-8")
    print(f"wrote {args.save}")


if __name__ == "__main__":
    main()
