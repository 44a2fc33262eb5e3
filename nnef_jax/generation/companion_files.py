"""Reads the files that lie beside a language model: its tokenizer, chat template and stop tokens.

transformers writes these files, and exporters copy them: `tokenizer.json`,
`tokenizer_config.json`, `chat_template.jinja`, `generation_config.json` and `config.json`.
onnxruntime-genai writes `genai_config.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nnef_jax.errors import DataError, InputError, LimitError
from nnef_jax.storage import files

_MOST = 64 << 20  # bytes of a file in JSON; configurations of tokenizers with many words have 1 MB
# Files that may name the tokens that end a text. The first file that does so decides.
_WITH_STOP = ("generation_config.json", "genai_config.json", "config.json")


@dataclass(frozen=True)
class CompanionFiles:
    """The files beside a language model.

    A file is searched for in three folders: the folder of the tokenizer, if `tokenizer` is not
    None; the folder of the network; and the folder `tokenizer` beside the network's folder, where
    torch_to_nnef writes the files.

    Args:
        source: the path of the network's file or folder.
        tokenizer: the path of a `tokenizer.json` or of its folder, or None to search for it.
    """

    source: str
    tokenizer: Path | None = None

    @cached_property
    def folders(self) -> list[Path]:
        """Return the folders that are searched, in order."""
        network = Path(self.source)
        folder = network if network.is_dir() else network.parent
        of_network = [folder, folder.absolute().parent / "tokenizer"]
        tokenizer = self.tokenizer
        if tokenizer is None:
            return of_network
        return [tokenizer if tokenizer.is_dir() else tokenizer.parent, *of_network]

    def path(self, name: str) -> Path | None:
        """Return the path of a file with this name in the first folder that has one, or None."""
        paths = (folder / name for folder in self.folders)
        return next((path for path in paths if path.is_file()), None)

    def tokenizer_path(self) -> Path:
        """Return the path of the tokenizer.

        Raises InputError if there is none, and FileNotFoundError if there is no network either.
        """
        tokenizer = self.tokenizer
        if tokenizer is not None:
            return tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
        path = self.path("tokenizer.json")
        if path is None:
            Path(self.source).stat()  # raises FileNotFoundError if the network is missing too
            raise InputError(
                f"there is no tokenizer.json beside {self.source}",
                hint="--tokenizer FILE names it; --tokens 1,15043 gives a prompt as token numbers",
            )
        return path

    def stop(self) -> list[int]:
        """Return the numbers of the tokens that end a text, from the first file that has them.

        Raises DataError if a file is damaged.
        """
        for name in _WITH_STOP:
            document = self._document(name)
            model = document.get("model")  # genai_config.json has the numbers in this object
            inner = model if isinstance(model, Mapping) else {}
            ends = document.get("eos_token_id", inner.get("eos_token_id"))
            numbers = ends if isinstance(ends, list) else [ends]
            tokens = [x for x in numbers if isinstance(x, int) and not isinstance(x, bool)]
            if tokens:
                return tokens
        return []

    def special_tokens(self) -> dict[str, str]:
        """Return the special tokens of `tokenizer_config.json` by name, such as "eos_token".

        Raises DataError if the file is damaged.
        """
        tokens: dict[str, str] = {}
        for name, value in self._document("tokenizer_config.json").items():
            text = value.get("content") if isinstance(value, Mapping) else value
            if str(name).endswith("_token") and isinstance(text, str):
                tokens[str(name)] = text
        return tokens

    def chat_template(self) -> tuple[str, Path]:
        """Return the chat template, and the path of the file that has it.

        Raises InputError if there is none, and DataError if a file is damaged.
        """
        path = self.path("chat_template.jinja")
        if path is not None:
            return _text(path), path
        template = self._document("tokenizer_config.json").get("chat_template")
        if isinstance(template, list):  # several templates, each with a name
            pairs = [x for x in template if isinstance(x, Mapping)]
            template = {x.get("name"): x.get("template") for x in pairs}.get("default")
        path = self.path("tokenizer_config.json")
        if isinstance(template, str) and path is not None:
            return template, path
        raise InputError(
            f"there is no chat template beside {self.source}",
            hint="without --chat the prompt is passed to the network as it is",
        )

    def _document(self, name: str) -> dict[Any, Any]:
        """Return the object in a JSON file, or an empty one if there is no such file.

        Raises DataError if the file is damaged.
        """
        path = self.path(name)
        if path is None:
            return {}
        text = _text(path)
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            raise DataError(f"{path}: not JSON") from None
        if not isinstance(document, dict):
            raise DataError(f"{path}: not a JSON object")
        return document


def read_bytes(path: Path, most: int) -> bytes:
    """Return the bytes of a file. Raises LimitError if there are more than `most` bytes."""
    with files.open_regular(str(path), DataError) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise LimitError(f"{path}: at most {most} bytes are read")
    return data


def _text(path: Path) -> str:
    """Return the text of a file.

    Raises DataError if the file is not UTF-8, and LimitError if it has more than `_MOST` bytes.
    """
    try:
        return read_bytes(path, _MOST).decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path}: not a text in UTF-8") from None
