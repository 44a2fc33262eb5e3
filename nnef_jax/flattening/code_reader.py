"""Reads the code of meanings without running it: kinds that they add, attributes that they read.

A meaning is followed into the helpers that it calls, with the values that the code itself says:
texts, functions, tables. All branches count: a kind may be named that no document gives, and none
is left out that the code names. Operations that only broadcast operands, or hold a constant, are
not named.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from operator import methodcaller
from types import FunctionType
from typing import Any

from lowering.ops import rules
from nnef_jax.flattening.attributes import Attribute
from nnef_jax.flattening.code_flow import CodeFlow
from nnef_jax.flattening.code_values import (
    ANY,
    NOTHING,
    UNKNOWN,
    Code,
    Items,
    Literal,
    Mark,
    Object,
    Pairs,
    Scope,
    Values,
    exact_items,
    items_of,
    lifted,
    list_of,
    listed,
    of_dict,
    opened,
    texts_of,
)
from nnef_jax.flattening.operators import NEWEST, Operator, Operators, Refusal, Row

# Methods of a site: those that read an attribute, that add an operation of a kind, and that are
# not followed.
_READERS = frozenset({
    "flag", "number", "int", "numbers", "ints", "axis_of", "dtype", "text", "word", "choice",
    "subgraph", "body",
})  # fmt: skip
_ADDERS = frozenset({"emit", "insert", "_emit"})
_LEAVES = frozenset({"aligned", "item", "tensor", "operand", "folded", "evaluated", "spend"})
# Functions that return an argument, or its items.
_SAME = frozenset({
    "list", "tuple", "sorted", "reversed", "iter", "set", "dict", "replace", "cast", "filter",
    "min", "max", "frozenset",
})  # fmt: skip
_TEXTS = frozenset({"lower", "upper", "removeprefix", "removesuffix", "capitalize"})
_SITES = frozenset({"site", "at"})  # names of parameters and fields
_REST = "*"  # arguments by position behind the others, of which there may be any number


# The site, that of another node or layer made from it, and what adds operations by kind.
_SITE, _OTHER_SITE, _STEP = Mark(), Mark(), Mark()
_BOTH_SITES = frozenset({_SITE, _OTHER_SITE})


@dataclass(frozen=True, slots=True)
class CodeFacts:
    """What the code of a meaning says.

    Args:
        kinds: of operations that it may add.
        reads: attributes that it may read. A default that is computed is `...`.
        is_open: whether it adds an operation of a kind that the code does not say.
    """

    kinds: frozenset[str] = frozenset()
    reads: frozenset[Attribute] = frozenset()
    is_open: bool = False
    asks_name: bool = False  # whether it depends on the operator's name

    def __or__(self, other: CodeFacts) -> CodeFacts:
        """Return the facts of both."""
        kinds, reads = self.kinds | other.kinds, self.reads | other.reads
        is_open, asks = self.is_open or other.is_open, self.asks_name or other.asks_name
        return CodeFacts(kinds, reads, is_open, asks)


class CodeReader(CodeFlow):
    """Reads meanings of a format whose sites are of a class."""

    def __init__(self, site: type, key: Callable[[str], str] = str) -> None:
        self._site = site
        self._key = key
        self._results: dict[Any, tuple[Values, CodeFacts]] = {}
        self._partial: dict[Any, tuple[Values, CodeFacts]] = {}  # results within a recursion
        self._instances: dict[Any, Object] = {}
        self._running: set[Any] = set()
        self._is_partial = False  # whether a call of a function within itself was met
        self._facts = CodeFacts()
        self._name = UNKNOWN  # of the operator

    def facts(self, operator: Operator) -> CodeFacts:
        """Return what the code of an operator's meaning says."""
        self._name = UNKNOWN
        facts = self._meant(operator)
        if not facts.asks_name:
            return facts
        results, self._results = self._results, {}  # which hold for all operators
        self._name = lifted(self._key(operator.name))
        facts = self._meant(operator)
        self._results = results
        return facts

    def _meant(self, operator: Operator) -> CodeFacts:
        self._facts = CodeFacts()
        self._partial.clear()
        values = {name: self._given(x) for name, x in operator.attributes.items()}
        self._follow(operator.meaning, values)
        return self._facts

    def _given(self, x: Any) -> Values:
        """Return the values of an attribute that a meaning is given."""
        if isinstance(x, Attribute):
            self._follow(x, {})
            return frozenset(map(_literal, x.arguments)) if x.type == "word" else UNKNOWN
        if isinstance(x, methodcaller):
            self._follow(x, {})
            return UNKNOWN
        return self._call(lifted(x), [frozenset({_SITE})], {}) if callable(x) else lifted(x)

    def _follow(self, meaning: Any, named: Mapping[str, Values]) -> None:
        """Follow what is called with a site."""
        if isinstance(meaning, Row):
            self._add(lifted(meaning.kind))
            for x in (*meaning.inputs, *meaning.attributes.values()):
                self._follow(x, {})
        elif isinstance(meaning, Attribute):
            self._facts |= CodeFacts(reads=frozenset({meaning}))
        elif isinstance(meaning, methodcaller):
            call: Any = meaning.__reduce__()
            keywords = call[0].keywords if isinstance(call[0], partial) else {}
            name, *first = (*getattr(call[0], "args", ()), *call[1])
            named = {name: lifted(x) for name, x in keywords.items()}
            self._method(_SITE, name, [*map(lifted, first)], named)
        elif callable(meaning) and not isinstance(meaning, Refusal):
            # Of its inputs any may be there or not.
            self._call(lifted(meaning), [frozenset({_SITE})], {**named, _REST: UNKNOWN})

    def _add(self, names: Values) -> None:
        """Note the kinds that names are; a part of a name may not be known."""
        patterns = [x.value for x in names if isinstance(x, Literal) and x.type is re.Pattern]
        kinds = [kind for kind in rules if any(re.fullmatch(x, kind) for x in patterns)]
        kinds += [x for x in texts_of(names) if x in rules]
        is_open = not (texts_of(names) or patterns)
        self._facts |= CodeFacts(frozenset(kinds), is_open=is_open)

    # Calls

    def _call(
        self, functions: Values, first: Sequence[Values], named: Mapping[str, Values]
    ) -> Values:
        """Return the results of functions, given arguments by position and by name."""
        results: set[Any] = set()
        for function in functions:
            if isinstance(function, Code):
                results |= self._run(function, first, named)
            elif isinstance(function, Object) and function.is_instance:
                self._instance(function)
                results.add(ANY)
            elif isinstance(function, Object):
                results |= self._made(function.value, first, named)
            else:
                results.add(ANY)
        return frozenset(results)

    def _made(
        self, callee: Any, first: Sequence[Values], named: Mapping[str, Values]
    ) -> set[Any] | Values:
        """Return the results of an object that is called: a class of ours makes an instance."""
        if isinstance(callee, Attribute | Row | methodcaller):
            self._follow(callee, {})
            return UNKNOWN
        if not isinstance(callee, type) or not callee.__module__.startswith("nnef_jax."):
            for values in (*first, *named.values()):
                codes = frozenset(x for x in values if isinstance(x, Code))
                self._call(codes, [], {_REST: UNKNOWN})  # the function may call them
            return UNKNOWN
        key = callee, tuple(first), frozenset(named.items())
        if key in self._instances:
            return frozenset({self._instances[key]})
        instance = self._instances[key] = Object(callee, is_instance=True)
        if dataclasses.is_dataclass(callee):
            names = [x.name for x in dataclasses.fields(callee) if x.init]
            instance.fields.update(zip(names, first, strict=False))
            instance.fields.update(named)
        elif isinstance(callee.__init__, FunctionType):
            self._call(lifted(callee.__init__), [frozenset({instance}), *first], named)
        return frozenset({instance})

    def _instance(self, instance: Object) -> None:
        """Follow an attribute or a row that code makes and calls with the site."""
        fields = instance.fields
        if instance.value is Row:
            self._add(fields["kind"])
        elif instance.value is Attribute:
            arguments = items_of(fields.get("arguments", NOTHING))
            for type in texts_of(fields["type"]):
                self._read(type, [fields["name"], arguments], {})

    def _run(self, code: Code, first: Sequence[Values], named: Mapping[str, Values]) -> Values:
        scope = Scope(code.scope, code.scope.module)
        self._bind(code, scope, [*code.first, *first], {**dict(code.named), **named})
        key = code.node, code.scope, code.scope.version, frozenset(scope.names.items())
        if key in self._running:
            self._is_partial = True
            return NOTHING
        if key in self._partial:
            values, facts = self._partial[key]
            self._facts |= facts
            return values
        if key not in self._results:
            before, self._facts = self._facts, CodeFacts()
            self._running.add(key)
            if isinstance(code.node, ast.Lambda):
                values = self.value(code.node.body, scope)
            else:
                values = self.function(code.node.body, scope)
            self._running.remove(key)
            self._is_partial = self._is_partial and bool(self._running)
            facts, self._facts = self._facts, before
            results = self._partial if self._is_partial else self._results
            results[key] = values, facts
            self._facts |= facts
            return values
        values, facts = self._results[key]
        self._facts |= facts
        return values

    def _bind(
        self, code: Code, scope: Scope, first: Sequence[Values], named: Mapping[str, Values]
    ) -> None:
        """Give the parameters of a function their values."""
        arguments = code.node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        pairs = (
            *zip(reversed(positional), reversed(arguments.defaults), strict=False),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        )
        defaults = {x.arg: default for x, default in pairs if default is not None}
        for i, x in enumerate([*positional, *arguments.kwonlyargs]):
            if i < min(len(positional), len(first)):
                values = first[i]
            elif x.arg in named:
                values = named[x.arg]
            else:
                default = defaults.get(x.arg)
                values = self.value(default, code.scope) if default else NOTHING
                values = values | named.get(_REST, NOTHING) or UNKNOWN
            is_step = isinstance(x.annotation, ast.Name) and x.annotation.id == "ByKind"
            if ANY in values and (is_step or x.arg in _SITES):
                values = values - UNKNOWN | {_STEP if is_step else _SITE}
            scope.names[x.arg] = values
        if arguments.vararg:
            others = first[len(positional) :]
            repeated = NOTHING.union(named[_REST], *others) if _REST in named else None
            scope.names[arguments.vararg.arg] = list_of(repeated) if repeated else listed(others)
        if arguments.kwarg:
            names = {_REST, *(x.arg for x in (*positional, *arguments.kwonlyargs))}
            others = [(lifted(name), x) for name, x in named.items() if name not in names]
            scope.names[arguments.kwarg.arg] = frozenset({Pairs(tuple(others))})

    def _method(
        self, site: Mark, name: str, first: Sequence[Values], named: Mapping[str, Values]
    ) -> Values:
        """Return the results of a method of the site."""
        if name in _ADDERS:
            self._add(first[0] if first else NOTHING)
        elif name in _READERS:
            return self._read(name, first, named)
        elif name == "step_or_last":
            return frozenset({_STEP})
        elif name not in _LEAVES:
            return self._call(self._of_class(self._site, name, frozenset({site})), first, named)
        return UNKNOWN

    @staticmethod
    def _of_class(owner: type, name: str, instance: Values) -> Values:
        """Return a method of a class with its first argument."""
        method: Any = getattr(owner, name, None)
        first = () if isinstance(owner.__dict__.get(name), staticmethod) else (instance,)
        codes = (x for x in lifted(method) if isinstance(x, Code)) if callable(method) else ()
        return frozenset(Code(x.node, x.scope, first) for x in codes) or UNKNOWN

    def _read(self, type: str, first: Sequence[Values], named: Mapping[str, Values]) -> Values:
        """Note that an attribute is read; return the words that it may be."""
        names, *others = first or [NOTHING]
        others = others or ([lifted(False)] if type == "flag" else [])
        if "default" in named:
            others = [named["default"], *others] if type == "choice" else [named["default"]]
        type = "word" if type == "choice" else type
        others += [named[_REST]] if _REST in named else []
        literals = [[x.value for x in values if isinstance(x, Literal)] for values in others]
        arguments = tuple(x[0] if len(x) == 1 else ... for x in literals)
        arguments = tuple(dict.fromkeys(arguments)) if type == "word" else arguments[:1]
        reads = (Attribute(name, type, arguments) for name in texts_of(names))
        self._facts |= CodeFacts(reads=frozenset(reads))
        return NOTHING.union(*others) if type == "word" else UNKNOWN

    def attribute(self, node: ast.Attribute, scope: Scope) -> Values:
        """Return the values of an attribute of an object."""
        bases = self.value(node.value, scope)
        if node.attr in ("step", "last"):
            return frozenset({_STEP})
        if node.attr in _SITES:
            return frozenset({_SITE})
        values: set[Any] = set()
        for base in bases:
            if base is _STEP:
                self._add(lifted(node.attr.removesuffix("_")))
                values.add(ANY)
            elif base is _SITE and node.attr == "operator":
                self._facts |= CodeFacts(asks_name=True)
                values |= self._name
            elif base in _BOTH_SITES:
                values |= self._of_class(self._site, node.attr, frozenset({base}))
            elif isinstance(base, Object) and base.is_instance:
                methods = self._of_class(base.value, node.attr, frozenset({base}))
                values |= base.fields.get(node.attr, methods)
            elif isinstance(base, Object) and hasattr(base.value, node.attr):
                values |= lifted(getattr(base.value, node.attr))
            else:
                values.add(ANY)
        return frozenset(values)

    def called(self, node: ast.Call, scope: Scope) -> Values:
        """Return the results of a call."""
        named: dict[str, Values] = {}
        first = self._arguments(node, scope, named)
        for x in node.keywords:
            values = self.value(x.value, scope)
            if x.arg is not None:
                named[x.arg] = values
                continue
            for pairs in values:
                if isinstance(pairs, Pairs):
                    named |= {name: y for key, y in pairs.pairs for name in texts_of(key)}
                else:
                    named[_REST] = named.get(_REST, NOTHING) | UNKNOWN
        match node.func:
            case ast.Name(id="getattr"):
                return self._named(first)
            case ast.Name(id="partial"):
                codes = (x for x in first[0] if isinstance(x, Code))
                arguments = tuple(first[1:]), tuple(named.items())
                return frozenset(Code(x.node, x.scope, *arguments) for x in codes) or UNKNOWN
            case ast.Name(id="enumerate"):
                return list_of(listed([UNKNOWN, items_of(first[0])]))
            case ast.Name(id="zip"):
                if _REST in named:
                    return list_of(list_of(items_of(named[_REST]).union(*map(items_of, first))))
                return list_of(listed([items_of(x) for x in first]))
            case ast.Name(id="map"):
                return list_of(self._call(first[0], [items_of(x) for x in first[1:]], {}))
            case ast.Name(id="next"):
                return items_of(first[0]).union(*first[1:])
            case ast.Name(id="replace") if named.keys() & {"node", "layer"}:
                return first[0] - {_SITE} | ({_OTHER_SITE} if _SITE in first[0] else NOTHING)
            case ast.Name(id=name) if name in _SAME:
                return NOTHING.union(*first)
            case ast.Attribute(value=receiver, attr=name):
                return self._sent(receiver, name, first, named, scope, node.func)
            case _:
                return self._call(self.value(node.func, scope), first, named)

    def _arguments(self, node: ast.Call, scope: Scope, named: dict[str, Values]) -> list[Values]:
        """Return the arguments by position; those of a list of any length are among `named`."""
        first: list[Values] = []
        for i, x in enumerate(node.args):
            values = self.value(x, scope)
            if not isinstance(x, ast.Starred):
                first.append(values)
                continue
            exact = exact_items(values)
            if exact is None:
                others = (self.value(y, scope) for y in node.args[i + 1 :])
                named[_REST] = NOTHING.union(items_of(values), *map(opened, others))
                break
            first += exact
        return first

    def _named(self, first: Sequence[Values]) -> Values:
        """Return `getattr(x, name)`."""
        if _STEP in first[0]:
            self._add(first[1])
        sites = first[0] & _BOTH_SITES
        methods = [self._of_class(self._site, x, sites) for x in texts_of(first[1])]
        return NOTHING.union(*methods) if sites else UNKNOWN

    def _sent(
        self, receiver: ast.expr, name: str, first: list[Values], named: dict[str, Values],
        scope: Scope, function: ast.expr,
    ) -> Values:  # fmt: skip
        """Return the results of a method of some object."""
        values: set[Any] = set()
        bases = self.value(receiver, scope)
        for base in bases:
            if base in _BOTH_SITES:
                values |= self._method(base, name, first, named)
            elif isinstance(base, Items) and name in ("append", "extend") and first:
                items = first[0] if name == "append" else items_of(first[0])
                self._assign(receiver, list_of(items), scope)
            elif isinstance(base, Pairs):
                values |= of_dict(base, name, first)
            elif isinstance(base, Object) and isinstance(base.value, Operators) and name == "get":
                values |= _registered(base.value, first, named)
            elif isinstance(base, Literal) and base.type is str and name in _TEXTS:
                arguments = product(*(texts_of(x) for x in first))
                values |= {Literal(str, getattr(base.value, name)(*x)) for x in arguments}
            elif isinstance(base, Literal):
                values.add(ANY)
        if all(x in _BOTH_SITES or isinstance(x, Items | Pairs | Literal) for x in bases):
            return frozenset(values) or UNKNOWN
        return frozenset(values) | self._call(self.value(function, scope), first, named)


def _registered(
    operators: Operators, first: Sequence[Values], named: Mapping[str, Values]
) -> Values:
    """Return the operators of a registry that `get` may find, given its arguments."""
    names, versions, domains = [*first, NOTHING, NOTHING][:3]
    numbers = [x.value for x in versions if isinstance(x, Literal) and x.type is int] or [NEWEST]
    domains = texts_of(domains | named.get("domain", NOTHING)) or {""}
    keys = product(texts_of(names), numbers, domains)
    return frozenset(Object(x) for key in keys if (x := operators.get(*key))) or UNKNOWN


def _literal(x: Any) -> Literal:
    return Literal(type(x), x)
