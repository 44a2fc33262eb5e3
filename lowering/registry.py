"""Maps operations to rules.

A rule's `infer` checks operands and types results, `lower` computes under tracing, `work` counts
multiply-adds. The parameters of `lower` are the rule's, with the standard's names (`lambda_` for
`lambda`). The others take those that they name; `**` takes all.
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
    """Maps kinds, the canonical names of operations, to the rules that lower them.

    It is read like a dictionary: `list(registry)` has the kinds, `registry[kind]` is a `Rule`, or
    a KeyError, and `kind in registry` tells whether there is one.
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
        """Make the decorated function the rule of an operation; a second one is an error."""

        def register(lower: Lower) -> Lower:
            if kind in self._rules:
                raise ValueError(f"operation '{kind}' already has a rule")
            known, inferred = _parameters(lower), _parameters(infer)
            context = known.pop("ctx", None) is not None
            if any(_differ(inferred[name], known[name]) for name in inferred.keys() & known.keys()):
                raise TypeError(f"rule of '{kind}': infer and lower have different defaults")
            if "**" in known:
                known = inferred | known
            reads = _reads(f"rule of '{kind}': infer", inferred, known)
            taken = () if work is None else _parameters(work)
            counted = _reads(f"rule of '{kind}': work", taken, [*known, "result"])
            defaults = {n: default for n, default in known.items() if default is not _REQUIRED}
            names, why_not = tuple(known), not_differentiable
            self._rules[kind] = Rule(
                kind, infer, lower, names, context, why_not, work, counted, defaults, reads
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


def _parameters(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of a function's parameters by standard name, `**` for all others.

    `**name: Unpack[...]` of a TypedDict stands for its keys, where its annotation can be read.
    """
    found: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            found[parameter.name.removesuffix("_")] = parameter.default
        else:
            keys = _keys(parameter.annotation, inspect.unwrap(function))
            found |= dict.fromkeys(keys, _REQUIRED)
    return found


def _keys(annotation: Any, function: Callable[..., Any]) -> Iterable[str]:
    """Return the keys of `Unpack[...]`, `**` for another annotation."""
    if "Unpack" not in str(annotation):
        return ["**"]
    try:
        # `typing.get_type_hints` resolves all annotations, which takes a millisecond a rule.
        hint = eval(annotation, function.__globals__) if isinstance(annotation, str) else annotation
        return hint.__args__[0].__annotations__
    except (NameError, AttributeError):  # it is of a local name, or of a function that jax wraps
        return ["**"]


def _differ(default: Any, other: Any) -> bool:
    return default is not other and bool(np.any(default != other))


def _reads(facet: str, taken: Collection[str], known: Collection[str]) -> frozenset[str]:
    """Return the names of what a facet takes of the parameters of its rule, `**` for all."""
    unknown = sorted(set(taken) - set(known) - {"**"})
    if unknown and "**" not in known:
        raise TypeError(f"{facet} takes {', '.join(map(repr, unknown))}, lower does not")
    return frozenset(known if "**" in taken else taken)
