"""Attributes of operators: the name that a format has for each, its type, and its default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of an operator. Calling it with a site reads it, and checks its type.

    Args:
        name: its name in the format.
        type: the method of `OperatorSite` that reads it.
        arguments: those of the method besides the name: a default, or the words that are allowed.
    """

    name: str
    type: str
    arguments: tuple[Any, ...] = ()

    def __call__(self, site: Any) -> Any:
        """Return its value at a site. Raises InvalidOperation for another type, or without one."""
        return getattr(site, self.type)(self.name, *self.arguments)


def flag(name: str, default: bool = False) -> Any:
    """Return an attribute that is true or false."""
    return Attribute(name, "flag", (default,))


def number(name: str, default: float | None = None) -> Any:
    """Return an attribute that is a real number. None as a default makes it required."""
    return Attribute(name, "number", (default,))


def integer(name: str, default: int | None = None) -> Any:
    """Return an attribute that is a whole number. None as a default makes it required."""
    return Attribute(name, "int", (default,))


def numbers(name: str, default: Sequence[float] | None = None) -> Any:
    """Return an attribute that is a list of real numbers."""
    return Attribute(name, "numbers", (default,))


def integers(name: str, default: Sequence[int] | None = None) -> Any:
    """Return an attribute that is a list of whole numbers."""
    return Attribute(name, "ints", (default,))


def axis(name: str, default: int | None = None) -> Any:
    """Return an attribute that is an axis of input 0, which may count from the end."""
    return Attribute(name, "axis_of", (default,))


def dtype(name: str, default: Any = None) -> Any:
    """Return an attribute that is an element type."""
    return Attribute(name, "dtype", (default,))


def text(name: str, default: str | None = None) -> Any:
    """Return an attribute that is any text."""
    return Attribute(name, "text", (default,))


def word(name: str, *allowed: str) -> Any:
    """Return an attribute that is one of some words, the first by default."""
    return Attribute(name, "word", allowed)


def one_of(name: str, *allowed: str) -> Any:
    """Return an attribute that is one of some words, and is required."""
    return Attribute(name, "choice", allowed)


def attribute(name: str, type: str, *arguments: Any) -> Any:
    """Return an attribute that a method of the format's site reads, with these arguments."""
    return Attribute(name, type, arguments)
