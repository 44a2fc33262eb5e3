"""Maps operations to rules.

A rule's `infer` checks operands and types results, `lower` computes under tracing, `work` counts
multiply-adds. The parameters of `lower` are the rule's, with the standard's names (`lambda_` for
`lambda`). The others take those that they name; `**` takes all.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lowering.graph import Rule, Types

_REQUIRED = inspect.Parameter.empty


class Registry:
    """Rules by the canonical name of the operation that they lower."""

    def __init__(self, rules: Mapping[str, Rule] | None = None) -> None:
        self._rules: dict[str, Rule] = dict(rules or {})

    def rule(
        self,
        kind: str,
        infer: Callable[..., Types],
        *,
        work: Callable[..., int] | None = None,
        not_differentiable: str = "",
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Make the decorated function the rule of an operation; a second one is an error."""

        def register(lower: Callable[..., Any]) -> Callable[..., Any]:
            if kind in self._rules:
                raise ValueError(f"operation '{kind}' already has a rule")
            known, of = _parameters(lower), f"rule of '{kind}'"
            context = known.pop("ctx", None) is not None
            defaults = {n: default for n, default in known.items() if default is not _REQUIRED}
            reads = _reads(f"{of}: infer", infer, known)
            counted = _reads(f"{of}: work", work, {**known, "result": _REQUIRED}) if work else reads
            names, why_not = tuple(known), not_differentiable
            self._rules[kind] = Rule(
                kind, infer, reads, lower, names, context, why_not, work, counted, defaults
            )
            return lower

        return register

    def get(self, kind: str) -> Rule | None:
        """Return the rule of an operation, None where there is none."""
        return self._rules.get(kind)

    def __getitem__(self, kind: str) -> Rule:
        return self._rules[kind]

    def __contains__(self, kind: object) -> bool:
        return kind in self._rules

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)


def python_name(name: str) -> str:
    """Return the name of a rule's parameter: `lambda_` for the standard's `lambda`."""
    return "lambda_" if name == "lambda" else name


def _parameters(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of a function's parameters by standard name, `**` for all others.

    `**name: Unpack[...]` of a TypedDict stands for its keys.
    """
    found: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            found[parameter.name.removesuffix("_")] = parameter.default
        elif "Unpack" in str(parameter.annotation):
            # `typing.get_type_hints` resolves all annotations, which takes a millisecond a rule.
            hint: Any = parameter.annotation
            hint = eval(hint, function.__globals__) if isinstance(hint, str) else hint
            found |= dict.fromkeys(hint.__args__[0].__annotations__, _REQUIRED)
        else:
            found["**"] = _REQUIRED
    return found


def _reads(facet: str, function: Callable[..., Any], known: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of what a facet takes of the parameters of its rule, `**` for all."""
    taken = _parameters(function)
    unknown = taken.keys() - known.keys() - {"**"}
    if unknown and "**" not in known:
        raise TypeError(f"{facet} takes {unknown}, lower does not")
    if any(taken[name] != known[name] for name in taken.keys() & known.keys()):
        raise TypeError(f"{facet} and lower have different defaults")
    return frozenset(known if "**" in taken else taken)
