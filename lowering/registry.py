"""Maps operations to rules.

A rule's `infer` checks operands and types results, `lower` computes under tracing, `work` counts
multiply-adds. Their arguments have the standard's names, `lambda_` for `lambda`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from lowering.graph import Rule, Types


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
            lowered = inspect.signature(lower).parameters
            names = _standard_names(lowered)
            inferred = _standard_names(inspect.signature(infer).parameters)
            if inferred != names:
                raise TypeError(f"rule of '{kind}': infer takes {inferred}, lower takes {names}")
            reads = _standard_names(inspect.signature(work).parameters) if work else ()
            if unknown := set(reads) - {*names, "result"}:
                raise TypeError(f"rule of '{kind}': work takes {unknown}, lower does not")
            defaults = _defaults(lowered)
            if defaults != _defaults(inspect.signature(infer).parameters):
                raise TypeError(f"rule of '{kind}': infer and lower have different defaults")
            context = "ctx" in lowered
            self._rules[kind] = Rule(
                kind, infer, lower, names, context, not_differentiable, work, reads, defaults
            )
            return lower

        return register

    def check_signatures(self, signatures: Mapping[str, Iterable[str]]) -> None:
        """Raise TypeError unless rules take what is declared, then parameters with defaults."""
        for kind, signature in signatures.items():
            declared, rule = tuple(signature), self.get(kind)
            if rule is None:
                continue
            further = rule.parameters[len(declared) :]
            if rule.parameters != declared + further or not rule.defaults.keys() >= {*further}:
                raise TypeError(
                    f"rule of '{kind}' takes {rule.parameters}, its declaration has {declared}"
                )

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


def _standard_names(parameters: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.removesuffix("_") for name in parameters if name != "ctx")


def _defaults(parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    given = ((name.removesuffix("_"), p.default) for name, p in parameters.items())
    return {name: default for name, default in given if default is not inspect.Parameter.empty}
