"""Telling texts of tract's dialect from those of the standard, without what reads either."""

from __future__ import annotations

import re
from collections.abc import Iterator

# What only the dialect has, among comments and strings, in which that means nothing.
# A string ends on its line, with a quote or without one: what is scanned once is not scanned again.
STRING = r"""(?:"(?:[^"\\\n]++|\\.)*+"?|'(?:[^'\\\n]++|\\.)*+'?)"""
_SIGN = re.compile(
    r"\#[^\n]*+|(\bextension\s++tract_\w|\bfragment\s++tract_core_properties\b"
    rf"|\bi{STRING})|{STRING}"
)


def is_tract(text: str) -> bool:
    """Whether a text is of the dialect: it names a registry, or has identifiers in quotes."""
    if not any(sign in text for sign in ("tract_", "i'", 'i"')):
        return False  # without looking at each character, which takes 20 ms for 5,000 statements
    return any(signs(text))


def signs(text: str) -> Iterator[re.Match[str]]:
    """The places of what only the dialect has."""
    return (found for found in _SIGN.finditer(text) if found[1])
