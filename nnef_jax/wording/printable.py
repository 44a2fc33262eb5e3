"""Escapes control characters, so that a terminal shows text and does not execute it."""

from __future__ import annotations


def printable(line: str) -> str:
    r"""Return a line in which each character that is not printable is an escape such as '\u001b'.

    Characters that are not printable are controls, line ends, marks of direction, separators other
    than the space, and lone surrogates. The escapes are written as in JSON, so a line of JSON keeps
    its value.
    """
    return line if line.isprintable() else "".join(map(_escaped, line))


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
