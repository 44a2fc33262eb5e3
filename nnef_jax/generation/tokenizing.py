"""Turns text into tokens and tokens into text, by the package tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nnef_jax.errors import DataError, InputError, extra_missing
from nnef_jax.generation.companion_files import read_bytes

_MOST = 256 << 20  # the most bytes of a tokenizer's file; the file for Gemma has 33 MB
_LONGEST_CHARACTER = 4  # bytes in UTF-8
_INCOMPLETE = "\ufffd"  # the text that a tokenizer returns for a part of a character


class TextTokenizer:
    """The tokenizer in a file `tokenizer.json`, which transformers and exporters write.

    Raises UnsupportedError if the package tokenizers is not installed, DataError if the file is no
    tokenizer, and LimitError if the file is too large.
    """

    def __init__(self, path: Path) -> None:
        if find_spec("tokenizers") is None:
            raise extra_missing(
                f"the package tokenizers, which reads {path}, is not installed", "text",
                "; or give the prompt as token numbers: --tokens 1,15043",
            )  # fmt: skip
        self.path = path
        data = read_bytes(path, _MOST)
        tokenizers: Any = import_module("tokenizers")
        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_buffer(data)
        except Exception as error:  # the package raises plain Exceptions
            raise DataError(f"{path}: not a tokenizer.json: {error}") from None
        # A file may cut or pad texts. Both are meant for training.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Return the tokens of a text.

        If `add_special` is true, the tokenizer adds its special tokens, such as a token that
        begins a text. Raises InputError if the tokenizer cannot encode the text.
        """
        try:
            return self._tokenizer.encode(text, add_special_tokens=add_special).ids
        except Exception as error:
            raise InputError(f"{self.path} cannot encode the prompt: {error}") from None

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special tokens."""
        return self._tokenizer.decode([*tokens], skip_special_tokens=True)

    def token(self, text: str) -> int | None:
        """Return the number of the token with this text, or None if there is none."""
        return self._tokenizer.token_to_id(text)

    def require_words(self, words: int) -> None:
        """Raise InputError if the tokenizer has a token that is not from 0 to `words` - 1."""
        largest = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
        if largest >= words:
            raise InputError(
                f"{self.path} has tokens up to {largest}, the network has tokens 0 to {words - 1}",
                hint="is it the tokenizer of this network?",
            )


class TextPieces:
    """Turns tokens into pieces of text as they are generated. No piece has a part of a character.

    A character may consist of several tokens, which are bytes of its code in UTF-8. The text of a
    token may also depend on the tokens before it: a tokenizer may drop the space at the beginning
    of a text. Therefore each token is decoded together with the tokens of the previous piece.

    Args:
        tokenizer: decodes tokens.
        prompt: the tokens before the first generated token.
    """

    def __init__(self, tokenizer: TextTokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._before = [*prompt]  # tokens whose text has been returned
        self._pending: list[int] = []  # tokens whose text has not been returned

    def add(self, token: int) -> str:
        """Add a token, and return the text that the token completes.

        Return "" if the last character is still incomplete.
        """
        self._pending.append(token)
        piece = self._text_of(self._pending)
        if not piece.endswith(_INCOMPLETE):
            self._forget(len(self._pending))
            return piece
        if len(self._pending) < _LONGEST_CHARACTER:
            return ""
        # The first pending token does not begin a character: the character would be complete by
        # now.
        piece = self._text_of(self._pending[:1])
        self._forget(1)
        return piece

    def end(self) -> str:
        """Return the text of the pending tokens, incomplete characters included."""
        piece = self._text_of(self._pending)
        self._forget(len(self._pending))
        return piece

    def _text_of(self, tokens: Sequence[int]) -> str:
        """Return the text that tokens add to the text of the previous piece."""
        before = self._tokenizer.decode(self._before)
        return self._tokenizer.decode([*self._before, *tokens])[len(before) :]

    def _forget(self, count: int) -> None:
        """Move the first `count` pending tokens to `_before`, the tokens of the previous piece."""
        returned = self._pending[:count]
        # If the moved tokens are special tokens, which have no text, earlier tokens are kept too.
        # Otherwise a space after special tokens would seem to begin the text, and would be dropped.
        has_text = bool(self._tokenizer.decode(returned))
        self._before = returned if has_text else [*self._before, *returned]
        self._pending = self._pending[count:]
