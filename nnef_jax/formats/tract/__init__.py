"""The dialect of tract and torch_to_nnef: its text, its operations' declarations, its data."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nnef_jax.errors import UnsupportedError
from nnef_jax.formats.base import Frontend, Options
from nnef_jax.formats.syntax.tokens import OPEN_STRING
from nnef_jax.storage.archive import Archive

GRAPHS = ("graph.nnef",)
ALONE: dict[str, bytes] = {}
HAS_WEIGHTS_BESIDE = False
# What only the dialect has; comments and strings, in which it means nothing, are skipped.
_SIGN = re.compile(
    r"\#[^\n]*+|(\bextension\s++tract_\w|\bfragment\s++tract_core_properties\b"
    rf"|\bi{OPEN_STRING})|{OPEN_STRING}"
)


def recognises(archive: Archive) -> bool:
    """Tell whether the text names a registry of tract, or quotes identifiers."""
    return archive.exists("graph.nnef") and is_tract(archive.read_text("graph.nnef").text)


def read(archive: Archive, options: Options) -> Frontend:
    """Return the checked document of an archive, which holds the types of its variables."""
    from nnef_jax.formats.tract.frontend import TractFrontend

    if archive.has_texts_alone:
        message = "a document of tract's dialect cannot be read without its data"
        raise UnsupportedError(message, hint="load the archive, and store it by model.save")
    return TractFrontend(archive, options)


def is_tract(text: str) -> bool:
    """Tell whether a text is of the dialect: it names a registry, or quotes identifiers."""
    if not any(sign in text for sign in ("tract_", "i'", 'i"')):
        return False  # each character would take 20 ms for 5,000 statements
    return any(signs(text))


def signs(text: str) -> Iterator[re.Match[str]]:
    """Yield the places of what only the dialect has."""
    return (found for found in _SIGN.finditer(text) if found[1])
