"""Registers rules by primitive, or by what `facts` says of primitives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from lowering.facts import facts

Rule = Callable[..., Any]
R = TypeVar("R", bound=Rule)


class Rules:
    """Holds the rules of a pass: of a primitive its `own`, else that of the first fact that holds.

    >>> @rules("reshape", "squeeze")
    ... def reshaped(...): ...
    >>> @rules(by_item=True)
    ... def computed(...): ...
    """

    def __init__(
        self, own: Mapping[str, Rule] | None = None, only: Callable[[Any], bool] = lambda _: True
    ) -> None:
        """Hold rules by primitive, for some equations only."""
        self.own: dict[str, Rule] = {**(own or {})}
        self._only = only
        self._by_fact: dict[str, Rule] = {}

    def __call__(self, *primitives: str, **holds: bool) -> Callable[[R], R]:
        """Register a rule of primitives, or of all for which a field of `Facts` holds."""

        def register(rule: R) -> R:
            self.own.update(dict.fromkeys(primitives, rule))
            self._by_fact.update(dict.fromkeys(holds, rule))
            return rule

        return register

    def of(self, equation: Any) -> Rule | None:
        """Return the rule of an equation, if it has one."""
        known = facts(equation)
        found = (rule for fact, rule in self._by_fact.items() if getattr(known, fact))
        rule = self.own.get(equation.primitive.name) or next(found, None)
        return rule if rule and self._only(equation) else None
