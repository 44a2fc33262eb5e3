"""Registers rules by kind of operation.

A rule has three functions: `infer` checks operands and returns the types of results, `lower`
computes the results under tracing, `work` counts multiply-adds. The parameters of `lower` are the
rule's, with the standard's names (`lambda_` for `lambda`). `infer` and `work` take the parameters
that they name, or all by `**`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from lowering.graph import Rule, Types

Lower = TypeVar("Lower", bound=Callable[..., object])
_REQUIRED = inspect.Parameter.empty


class Registry:
    """A mapping from kinds, the canonical names of operations, to rules.

    `list(registry)` has the kinds, `registry[kind]` is a `Rule` or raises KeyError, and `kind in
    registry` tells whether the kind has a rule.
    """

    def __init__(self, rules: Mapping[str, Rule] | None = None) -> None:
        self._rules: dict[str, Rule] = dict(rules or {})

    def rule(
        self,
        kind: str,
        infer: Callable[..., Types],
        *,
        work: Callable[..., int] | None = None,
        not_differentiable: str = "",
    ) -> Callable[[Lower], Lower]:
        """Return a decorator that registers a function as `lower` of a new rule.

        Raise ValueError for a kind that has a rule, TypeError if the functions of the rule have
        different parameters or defaults.
        """

        def register(lower: Lower) -> Lower:
            if kind in self._rules:
                raise ValueError(f"operation '{kind}' already has a rule")
            lowered, inferred = _parameters(lower), _parameters(infer)
            context = lowered.pop("ctx", None) is not None
            shared = inferred.keys() & lowered.keys()
            if any(_differ(inferred[name], lowered[name]) for name in shared):
                raise TypeError(f"rule of '{kind}': infer and lower have different defaults")
            if "**" in lowered:
                lowered = inferred | lowered
            reads = _reads(f"rule of '{kind}': infer", inferred, lowered)
            taken = () if work is None else _parameters(work)
            counted = _reads(f"rule of '{kind}': work", taken, [*lowered, "result"])
            defaults = {n: default for n, default in lowered.items() if default is not _REQUIRED}
            names, why_not = tuple(lowered), not_differentiable
            self._rules[kind] = Rule(
                kind, infer, lower, names, context, why_not, work, counted, defaults, reads
            )
            return lower

        return register

    def get(self, kind: str) -> Rule | None:
        """Return the rule of a kind, or None."""
        return self._rules.get(kind)

    def __getitem__(self, kind: str) -> Rule:
        return self._rules[kind]

    def __contains__(self, kind: object) -> bool:
        return kind in self._rules

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)


def _parameters(function: Callable[..., object]) -> dict[str, Any]:
    """Map the standard names of a function's parameters to defaults; `**name` has the name `**`.

    `**name: Unpack[...]` of a TypedDict gives the keys of the TypedDict instead, if the annotation
    can be evaluated.
    """
    defaults: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            defaults[parameter.name.removesuffix("_")] = parameter.default
        else:
            keys = _keys(parameter.annotation, inspect.unwrap(function))
            defaults |= dict.fromkeys(keys, _REQUIRED)
    return defaults


def _keys(annotation: Any, function: Callable[..., object]) -> Iterable[str]:
    """Return the keys of the TypedDict in `Unpack[...]`, or `**` for another annotation."""
    if "Unpack" not in str(annotation):
        return ["**"]
    try:
        # `typing.get_type_hints` evaluates all annotations: a millisecond for each rule.
        hint = eval(annotation, function.__globals__) if isinstance(annotation, str) else annotation
        return hint.__args__[0].__annotations__
    except (NameError, AttributeError):  # a local name, or a function that jax wraps
        return ["**"]


def _differ(default: object, other: object) -> bool:
    return default is not other and bool(np.any(default != other))


def _reads(facet: str, taken: Collection[str], lowered: Collection[str]) -> frozenset[str]:
    """Return the rule's parameters that a facet takes; TypeError for names that `lower` lacks."""
    unknown = sorted(set(taken) - set(lowered) - {"**"})
    if unknown and "**" not in lowered:
        raise TypeError(f"{facet} takes {', '.join(map(repr, unknown))}, lower does not")
    return frozenset(lowered if "**" in taken else taken)
