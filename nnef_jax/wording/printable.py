"""Escapes control characters, so that a terminal shows text and does not execute it."""

from __future__ import annotations

import unicodedata

_PLAIN = "\n\t\u200c\u200d"  # characters of texts that a terminal may show, printable or not


def printable(line: str) -> str:
    r"""Return a line in which each character that is not printable is an escape such as '\u001b'.

    Characters that are not printable are controls, line ends, marks of direction, separators other
    than the space, and lone surrogates. The escapes are written as in JSON, so a line of JSON keeps
    its value.
    """
    return line if line.isprintable() else "".join(map(_escaped, line))


def printable_text(text: str) -> str:
    """Return a text in which control characters are escapes, as those of `printable`.

    In contrast to `printable`, line feeds, tabs, spaces of all widths, and the joiners of scripts
    and pictograms stay as they are.
    """
    return text if text.isprintable() else "".join(map(_escaped_in_text, text))


def _escaped_in_text(character: str) -> str:
    """Return a character for `printable_text`: unchanged, or as its escapes in JSON."""
    is_plain = character in _PLAIN or unicodedata.category(character) == "Zs"
    return character if is_plain else _escaped(character)


def _escaped(character: str) -> str:
    """Return a printable character unchanged, and any other character as escapes of JSON.

    JSON has an escape for each code unit of UTF-16, which has two bytes. A character has one or two
    code units.
    """
    if character.isprintable():
        return character
    data = character.encode("utf-16-be", "surrogatepass")
    escapes: list[str] = []
    for start in range(0, len(data), 2):
        code_unit = data[start : start + 2]
        escapes.append(f"\\u{code_unit.hex()}")
    return "".join(escapes)
