"""Operations by kind, as steps of the meaning of an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowering.ops import rules


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
