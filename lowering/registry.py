"""Which rule lowers which operation. A dialect or a user lays one registry over another.

A rule has three facets, kept side by side: `infer` says the types of the results from the types of
the operands (and refuses arguments that break the operation's rules), `lower` computes the results
under JAX tracing, `work` counts their multiply-adds. They take the operands and attributes under
the names that the standard gives them; a name that Python reserves gets an underscore (`lambda_`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lowering.graph import TensorType

Types = TensorType | list[TensorType] | tuple[TensorType | list[TensorType], ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """How one operation is checked and computed.

    `infer(**types_and_attributes)` returns a `TensorType` for one result, a list for a result
    array, a tuple of these for several results; `lower(**arrays_and_attributes)` returns arrays in
    the same structure, and takes `ctx`, a `lowering.trace.Context`, where `wants_context`.

    `work` takes what it names: types and attributes with 1 for unknown extents, `result`, the type
    of the first result, and `registry`, for an operation that repeats a graph. None stands for 0.
    """

    kind: str
    infer: Callable[..., Types]
    lower: Callable[..., Any]
    parameters: tuple[str, ...]  # their names, as the standard writes them
    wants_context: bool
    not_differentiable: str = ""  # the reason, where it is not
    work: Callable[..., int] | None = None
    work_reads: tuple[str, ...] = ()  # the names of what it takes


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
        """Decorator that makes a function the rule of an operation; a second one is an error."""

        def register(lower: Callable[..., Any]) -> Callable[..., Any]:
            if kind in self._rules:
                raise ValueError(f"operation '{kind}' already has a rule")
            lowered = inspect.signature(lower).parameters
            names = _standard_names(lowered)
            inferred = _standard_names(inspect.signature(infer).parameters)
            if inferred != names:
                raise TypeError(f"rule of '{kind}': infer takes {inferred}, lower takes {names}")
            reads = _standard_names(inspect.signature(work).parameters) if work else ()
            if unknown := set(reads) - {*names, "result", "registry"}:
                raise TypeError(f"rule of '{kind}': work takes {unknown}, lower does not")
            self._rules[kind] = Rule(
                kind, infer, lower, names, "ctx" in lowered, not_differentiable, work, reads
            )
            return lower

        return register

    def overlay(self, other: Registry) -> Registry:
        """A new registry with the rules of `other` over those of this one."""
        return Registry(self._rules | other._rules)

    def check_signatures(self, signatures: Mapping[str, Iterable[str]]) -> None:
        """Raise TypeError where a rule's parameters are not those of the declaration."""
        for kind, rule in self._rules.items():
            if kind in signatures and tuple(signatures[kind]) != rule.parameters:
                raise TypeError(
                    f"rule of '{kind}' takes {rule.parameters}, "
                    f"its declaration has {tuple(signatures[kind])}"
                )

    def get(self, kind: str) -> Rule | None:
        """The rule of an operation, None where there is none."""
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
    """The name of a rule's parameter for one of the standard's: `lambda_` for `lambda`."""
    return "lambda_" if name == "lambda" else name


def _standard_names(parameters: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.removesuffix("_") for name in parameters if name != "ctx")
