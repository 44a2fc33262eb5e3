"""Registers rules, one for each kind of operation, such as "conv".

A rule has three functions: `infer` checks operands and returns the types of results, `lower`
computes the results under tracing, and `work` counts multiply-adds. `lower` has a parameter for
each operand and attribute, with the standard's name (but `lambda_` for `lambda`). `infer` and
`work` may have only some of these parameters. A parameter `**name` takes the remaining ones.
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

    `list(registry)` returns the kinds. `registry[kind]` returns the `Rule`, or raises KeyError if
    the kind has no rule. `kind in registry` tells whether the kind has a rule.
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

        The decorator raises ValueError if the kind already has a rule, and TypeError if the
        functions of the rule have different parameters or defaults.
        """

        def register(lower: Lower) -> Lower:
            if kind in self._rules:
                raise ValueError(f"operation '{kind}' already has a rule")
            # These dicts map the names of a function's parameters to the defaults.
            parameters = _parameters(lower)
            infer_parameters = _parameters(infer)
            work_parameters = {} if work is None else _parameters(work)
            wants_context = parameters.pop("ctx", None) is not None
            for name in infer_parameters.keys() & parameters.keys():
                if _differ(infer_parameters[name], parameters[name]):
                    raise TypeError(f"rule of '{kind}': infer and lower have different defaults")
            if "**" in parameters:
                # `lower` takes any name, so the rule also has the parameters of `infer`.
                parameters = infer_parameters | parameters
            # `work` may also read `result`, the type of the first result.
            work_reads = _reads(f"rule of '{kind}': work", work_parameters, [*parameters, "result"])
            infer_reads = _reads(f"rule of '{kind}': infer", infer_parameters, parameters)
            defaults: dict[str, Any] = {}
            for name, default in parameters.items():
                if default is not _REQUIRED:
                    defaults[name] = default
            self._rules[kind] = Rule(
                kind=kind,
                infer=infer,
                lower=lower,
                parameters=tuple(parameters),
                wants_context=wants_context,
                not_differentiable=not_differentiable,
                work=work,
                work_reads=work_reads,
                defaults=defaults,
                infer_reads=infer_reads,
            )
            return lower

        return register

    def get(self, kind: str) -> Rule | None:
        """Return the rule of a kind of operations, or None if the kind has no rule."""
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
    """Map the names of a function's parameters, as the standard writes them, to their defaults.

    A parameter `**name` has the key `**` in the map. If its annotation is `Unpack[...]` of a
    TypedDict, and can be evaluated, the map has the keys of the TypedDict in place of `**`.
    """
    defaults: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            standard_name = parameter.name.removesuffix("_")  # `lambda_` becomes `lambda`
            defaults[standard_name] = parameter.default
        else:
            keys = _keys(parameter.annotation, inspect.unwrap(function))
            defaults |= dict.fromkeys(keys, _REQUIRED)
    return defaults


def _keys(annotation: Any, function: Callable[..., object]) -> Iterable[str]:
    """Return the keys of the TypedDict in an annotation `Unpack[...]`.

    If the annotation has no TypedDict, or cannot be evaluated in the function's module, ["**"]
    is returned.
    """
    if "Unpack" not in str(annotation):
        return ["**"]
    try:
        # Only this annotation is evaluated. `typing.get_type_hints` would evaluate all annotations,
        # which takes a millisecond for each rule.
        if isinstance(annotation, str):
            annotation = eval(annotation, function.__globals__)
        typed_dict = annotation.__args__[0]
        return typed_dict.__annotations__
    except (NameError, AttributeError):  # a local name, or a function that jax wraps
        return ["**"]


def _differ(default: object, other: object) -> bool:
    """Tell whether two defaults are different. They may be arrays."""
    return default is not other and bool(np.any(default != other))


def _reads(label: str, names: Collection[str], parameters: Collection[str]) -> frozenset[str]:
    """Return the parameters of a rule that one of its functions reads.

    `names` are the parameters of the function, and `parameters` are the parameters of the rule.
    Raises TypeError if the rule lacks a parameter of the function. `label` names the function in
    the error.
    """
    unknown = sorted(set(names) - set(parameters) - {"**"})
    if unknown and "**" not in parameters:
        raise TypeError(f"{label} takes {', '.join(map(repr, unknown))}, lower does not")
    return frozenset(parameters if "**" in names else names)
