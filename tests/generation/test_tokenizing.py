"""Pieces of text: together they are the text that the package tokenizers decodes at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnef_jax.errors import DataError, InputError, UnsupportedError
from nnef_jax.generation import tokenizing
from nnef_jax.generation.tokenizing import TextPieces, TextTokenizer

tokenizers = pytest.importorskip("tokenizers")
TEXT = ["the owl sees the mouse", "où est la chouette ? 270°", "中文字 and 🦉🦉"]


def of_bytes() -> Any:
    """Pairs of bytes, as those of GPT-2 and Llama 3: a character may be several tokens."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def with_fallback() -> Any:
    """Words that begin with a mark, and bytes for the letters without a token, as in Llama 2."""
    words = ["▁", "▁the", "▁owl", "o", "w", "l", "t", "h", "e", " ", "\n", "中"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *words]
    vocabulary = {word: i for i, word in enumerate(names)}
    pairs = [("t", "h"), ("th", "e"), ("▁", "the"), ("o", "w"), ("ow", "l"), ("▁", "owl")]
    vocabulary |= {x: len(vocabulary) + i for i, x in enumerate(("th", "ow", "the", "owl"))}
    model = tokenizers.models.BPE(vocabulary, pairs, unk_token="<unk>", byte_fallback=True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    decoders = tokenizers.decoders
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def of_parts() -> Any:
    """Parts of words that continue a word with ##, as those of BERT."""
    words = ["[UNK]", "the", "owl", "##s", "see", "mouse", "[SEP]"]
    model = tokenizers.models.WordPiece({x: i for i, x in enumerate(words)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    tokenizer.add_special_tokens(["[SEP]"])
    return tokenizer


def saved(make: Callable[[], Any], folder: Path) -> TextTokenizer:
    path = folder / f"{make.__name__}.json"
    make().save(str(path))
    return TextTokenizer(path)


@pytest.fixture(scope="module", params=[of_bytes, with_fallback], ids=lambda x: x.__name__)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return saved(request.param, tmp_path_factory.mktemp("tokenizers"))


def pieces(tokenizer: TextTokenizer, prompt: list[int], tokens: list[int]) -> list[str]:
    stream = TextPieces(tokenizer, prompt)
    return [*(stream.add(token) for token in tokens), stream.end()]


CHARACTERS = st.sampled_from("thewol \n°é中文字🦉é👩‍🚀")


@settings(max_examples=200, deadline=None)
@given(prompt=st.text(CHARACTERS, max_size=8), text=st.text(CHARACTERS | st.characters(
    exclude_categories=["Cs"], exclude_characters="\ufffd▁"), max_size=12))  # fmt: skip
def test_pieces_are_characters(tokenizer: TextTokenizer, prompt: str, text: str) -> None:
    before, both = tokenizer.encode(prompt), tokenizer.encode(prompt + text)
    if both[: len(before)] != before:  # a token has the end of one and the begin of the other
        before = []
    after = both[len(before) :]
    parts = pieces(tokenizer, before, after)
    assert tokenizer.decode(before) + "".join(parts) == tokenizer.decode(both)
    assert not any("\ufffd" in part for part in parts)
    assert parts[-1] == ""


@settings(max_examples=200, deadline=None)
@given(tokens=st.lists(st.integers(0, 257), max_size=24))
def test_any_tokens_end_and_do_not_wait(tokenizer: TextTokenizer, tokens: list[int]) -> None:
    """Bytes that are no characters are shown after at most three more tokens."""
    stream, shown = TextPieces(tokenizer, []), 0
    for count, token in enumerate(tokens, 1):
        shown += bool(stream.add(token)) or tokenizer.decode([token]) == ""
        assert len(stream._pending) < 4 and len(stream._pending) <= count
    stream.end()
    assert not stream._pending


def test_a_character_comes_with_its_last_byte(tmp_path: Path) -> None:
    tokenizer = saved(of_bytes, tmp_path)
    tokens = [tokenizer.token(x) for x in ("ð", "Ł", "¦", "Ĥ")]  # F0 9F A6 82, a scorpion
    assert pieces(tokenizer, [], [x for x in tokens if x is not None]) == ["", "", "", "🦂", ""]


def test_spaces_stay_after_special_tokens(tmp_path: Path) -> None:
    """A decoder that drops the first space of a text drops none in its middle."""
    tokenizer = saved(with_fallback, tmp_path)
    the, end = tokenizer.token("▁the"), tokenizer.token("</s>")
    assert the is not None and end is not None
    assert pieces(tokenizer, [the], [end, end, the, the]) == ["", "", " the", " the", ""]
    assert pieces(tokenizer, [], [the, the]) == ["the", " the", ""]


def test_parts_of_words(tmp_path: Path) -> None:
    tokenizer = saved(of_parts, tmp_path)
    tokens = tokenizer.encode("the owls see")
    assert "".join(pieces(tokenizer, tokens[:1], tokens[1:])) == " owls see"


def test_a_file_that_cuts_and_pads_does_not_change_prompts(tmp_path: Path) -> None:
    tokenizer = of_parts()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert TextTokenizer(tmp_path / "tokenizer.json").encode("the owl see") == [1, 2, 4]


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[" * 100_000, '{"model": {"type": "BPE"}}', "\0", '{"version": "9"}'],
    ids=range(6),
)
def test_files_that_are_no_tokenizers(text: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(DataError, match=r"not a tokenizer\.json"):
        TextTokenizer(tmp_path / "tokenizer.json")


def test_tokens_without_a_word(tmp_path: Path) -> None:
    tokenizer = saved(of_parts, tmp_path)
    tokenizer.require_words(7)
    with pytest.raises(InputError, match="tokens up to 6, the network has tokens 0 to 5"):
        tokenizer.require_words(6)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizing, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"nnef_jax\[text\].*--tokens 1,15043"):
        TextTokenizer(tmp_path / "tokenizer.json")
