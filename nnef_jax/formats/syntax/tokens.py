"""The tokens of the language and its keywords (spec 3.1, 3.2)."""

from __future__ import annotations

import re

_SHARED_KEYWORDS = {
    *("graph", "fragment", "tensor", "scalar", "logical", "string", "true", "false"),
    *("shape_of", "length_of", "range_of", "for", "in", "if", "else"),
}
KEYWORDS = frozenset(_SHARED_KEYWORDS | {"integer", "version", "extension", "yield"})
PROVISIONAL_KEYWORDS = frozenset(_SHARED_KEYWORDS | {"extent"})
CASTS = frozenset({"scalar", "integer", "extent", "logical", "string"})
BUILTINS = CASTS | {"shape_of", "length_of", "range_of"}

# A string ends on its line, with a quote or without one: what is scanned once is not scanned again.
TOKEN = re.compile(
    r"""(?P<skip>[ \t\r\n\f]++|\#[^\n\f]*+)"""
    r"""|(?P<string>'(?:[^'\\\n]++|\\.)*+'?|"(?:[^"\\\n]++|\\.)*+"?)"""
    r"""|(?P<word>[A-Za-z_0-9.]++)|(?P<mark>==|<=|>=|!=|->|.)""",
    re.DOTALL,
)


def count_tokens(text: str) -> int:
    """Return how many tokens a text has."""
    return sum(match.lastgroup != "skip" for match in TOKEN.finditer(text))
