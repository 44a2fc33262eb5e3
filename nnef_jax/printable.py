"""Makes text printable: a terminal shows it and does not obey it."""

from __future__ import annotations


def printable(line: str) -> str:
    r"""Return a line with an escape for each character that is none to be seen: '\u001b'.

    These are controls, line ends, marks of direction, other separators than the space, and lone
    surrogates. The escapes are those of JSON, so that a JSON object stays one.
    """
    return line if line.isprintable() else "".join(map(_escaped, line))


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
