"""Says operations by their kinds: as steps of a meaning, and as rows of a format's table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any

from lowering.errors import InvalidOperation
from lowering.ops import rules

Meaning = Callable[..., Any]  # of one tensor, or of several outputs


class ByKind:
    """Adds operations by kind: `steps.mul(x, y)` has operands in the order of the kind's rule.

    What is given by name is an attribute. Kinds that are words of Python end with `_`.
    """

    __slots__ = ("_add",)

    def __init__(self, add: Callable[..., Any]) -> None:
        self._add = add

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        kind = kind.removesuffix("_")
        rule = rules.get(kind)
        if rule is None:
            raise AttributeError(f"there is no kind '{kind}'")
        names = rule.parameters

        def add(*operands: Any, **attributes: Any) -> Any:
            return self._add(kind, dict(zip(names, operands, strict=False)), **attributes)

        return add


# What reads an attribute of an operation from a site: by the name that the format has for it, and
# what stands for it where it is missing. Without that an error says that it is.
flag, number, numbers, integer, axis = (
    partial(methodcaller, method) for method in ("flag", "number", "numbers", "int", "axis_of")
)


def word(attribute: str, *allowed: str) -> methodcaller:
    """Read one of some words, the first where the attribute is missing."""
    return methodcaller("choice", attribute, *allowed, default=allowed[0])


def operation(kind: str, *inputs: Any, **attributes: Any) -> Meaning:
    """Return the meaning of an operator that is one operation: on these inputs, or on input 0.

    An input is its number, or what reads it; an attribute is a value, or what reads it.
    """

    def meaning(site: Any) -> Any:
        operands = [x(site) if callable(x) else site.operand(x) for x in inputs or (0,)]
        given = {name: x(site) if callable(x) else x for name, x in attributes.items()}
        return getattr(site.last, kind)(*operands, **given)

    return meaning


def refused(why: str, hint: str) -> Meaning:
    """Return a meaning that raises, with a hint, for an operator that is no pure function."""

    def meaning(site: Any) -> Any:
        raise InvalidOperation(why, hint)

    return meaning
