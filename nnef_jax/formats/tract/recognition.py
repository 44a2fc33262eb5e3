"""Tell texts of tract's dialect from those of the standard, without a parser."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nnef_jax.formats.syntax.tokens import OPEN_STRING

# What only the dialect has; comments and strings, in which it means nothing, are skipped.
_SIGN = re.compile(
    r"\#[^\n]*+|(\bextension\s++tract_\w|\bfragment\s++tract_core_properties\b"
    rf"|\bi{OPEN_STRING})|{OPEN_STRING}"
)


def is_tract(text: str) -> bool:
    """Tell whether a text is of the dialect: it names a registry, or quotes identifiers."""
    if not any(sign in text for sign in ("tract_", "i'", 'i"')):
        return False  # each character would take 20 ms for 5,000 statements
    return any(signs(text))


def signs(text: str) -> Iterator[re.Match[str]]:
    """Yield the places of what only the dialect has."""
    return (found for found in _SIGN.finditer(text) if found[1])
