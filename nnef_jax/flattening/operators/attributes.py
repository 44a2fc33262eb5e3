"""Declarations of an operator's attributes: the name in the format, the type and the default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nnef_jax.flattening.emission import Emission
    from nnef_jax.flattening.operators.site import OperatorSite


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute of an operator: its name, its type and its default.

    Calling the object with a site returns the value that the attribute has at this site.

    Args:
        name: the attribute's name in the format.
        type: the name of the method of `OperatorSite` that reads the attribute.
        arguments: the arguments of this method after the attribute's name, such as a default or the
            allowed words.
    """

    name: str
    type: str
    arguments: tuple[Any, ...] = ()

    def __call__(self, site: OperatorSite[Emission]) -> Any:
        """Return the attribute's value at a site.

        Raises InvalidOperation if the value has another type, or if the attribute is required and
        the site does not have it.
        """
        return getattr(site, self.type)(self.name, *self.arguments)


def flag(name: str, default: bool = False) -> Any:
    """Declare an attribute that is true or false."""
    return Attribute(name, "flag", (default,))


def number(name: str, default: float | None = None) -> Any:
    """Declare an attribute that is a real number. It is required if the default is None."""
    return Attribute(name, "number", (default,))


def integer(name: str, default: int | None = None) -> Any:
    """Declare an attribute that is an integer. It is required if the default is None."""
    return Attribute(name, "int", (default,))


def numbers(name: str, default: Sequence[float] | None = None) -> Any:
    """Declare an attribute that is a list of real numbers.

    The attribute is required if the default is None.
    """
    return Attribute(name, "numbers", (default,))


def integers(name: str, default: Sequence[int] | None = None) -> Any:
    """Declare an attribute that is a list of integers. It is required if the default is None."""
    return Attribute(name, "ints", (default,))


def axis(name: str, default: int | None = None) -> Any:
    """Declare an attribute that is an axis of input 0. A negative axis counts from the end."""
    return Attribute(name, "axis_of", (default,))


def dtype(name: str, default: int | str | None = None) -> Any:
    """Declare an attribute that is an element type. It is required if the default is None."""
    return Attribute(name, "dtype", (default,))


def text(name: str, default: str | None = None) -> Any:
    """Declare an attribute that is a string. It is required if the default is None."""
    return Attribute(name, "text", (default,))


def word(name: str, *allowed: str) -> Any:
    """Declare an attribute that is one of the allowed words. The default is the first word."""
    return Attribute(name, "word", allowed)


def one_of(name: str, *allowed: str) -> Any:
    """Declare a required attribute that is one of the allowed words."""
    return Attribute(name, "choice", allowed)


def attribute(name: str, type: str, *arguments: object) -> Any:
    """Declare an attribute of any other type.

    `type` is the name of the method of the site that reads the attribute, and `arguments` are the
    arguments of this method after the attribute's name.
    """
    return Attribute(name, type, arguments)
