"""A shorthand that adds an operation to a graph by its kind (its name): `step.mul(x, y)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowering.ops import rules


class ByKind:
    """An object with a method for each kind of operation. The method adds such an operation.

    For example, `step.pad(x, border="constant")` adds an operation of kind "pad". Positional
    arguments are operands, in the order of the parameters of the kind's rule. Keyword arguments are
    attributes. If a kind is a keyword of Python, the name of the method ends with `_`, as in
    `step.not_(x)`.
    """

    __slots__ = ("_add",)

    def __init__(self, add: Callable[..., Any]) -> None:
        self._add = add

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        """Return a function that adds an operation of the kind `kind`."""
        kind = kind.removesuffix("_")
        rule = rules.get(kind)
        if rule is None:
            raise AttributeError(f"there is no kind '{kind}'")
        names = rule.parameters

        def add(*operands: object, **attributes: object) -> Any:
            # A call may leave out the last operands, so there may be more names than operands.
            operand_by_name = dict(zip(names, operands, strict=False))
            return self._add(kind, operand_by_name, **attributes)

        return add
