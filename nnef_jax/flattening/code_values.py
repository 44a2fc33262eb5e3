"""What expressions of code may be, as far as the code says it: texts, functions, tables, marks."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from types import FunctionType, MethodType
from typing import Any, cast

Values = frozenset[Any]  # that an expression may have
NOTHING: Values = frozenset()


class Mark:
    """A value that is no object of the code."""


ANY = Mark()  # a value that the code does not say
UNKNOWN: Values = frozenset({ANY})
_LARGEST = 256  # items of a table that is read


@dataclass(frozen=True, slots=True)
class Literal:
    """A number, a text, a truth value or None; 1 and True differ."""

    type: type
    value: Any


@dataclass(frozen=True, slots=True)
class Items:
    """A list or a tuple: the values of each item, or those of any item if it repeats."""

    items: tuple[Values, ...]
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Pairs:
    """A dict: the values of each key and of its item."""

    pairs: tuple[tuple[Values, Values], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """The names of a function, and where others are looked up."""

    outer: Scope | None
    module: Mapping[str, Any]
    names: dict[str, Values] = field(default_factory=dict[str, Values])
    changes: list[int] = field(default_factory=lambda: [0])

    @property
    def version(self) -> int:
        """Return how often names got values, here and around."""
        return self.changes[0] + (self.outer.version if self.outer else 0)

    def get(self, name: str) -> Values:
        """Return the values of a name."""
        if name in self.names:
            return self.names[name]
        if self.outer is not None:
            return self.outer.get(name)
        if name in self.module:
            return lifted(self.module[name])
        return lifted(getattr(builtins, name)) if hasattr(builtins, name) else NOTHING

    def add(self, name: str, values: Values) -> None:
        """Add values that a name may have."""
        before = self.names.get(name)
        if before is None or not values <= before:
            self.names[name] = values | (before or NOTHING)
            self.changes[0] += 1


@dataclass(frozen=True, slots=True)
class Code:
    """A function: its node, the scope of its definition, and arguments that it has already."""

    node: ast.FunctionDef | ast.Lambda
    scope: Scope
    first: tuple[Values, ...] = ()
    named: tuple[tuple[str, Values], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Object:
    """An object of a module, or an instance of a class with the values of its fields."""

    value: Any
    fields: dict[str, Values] = field(default_factory=dict[str, Values])
    is_instance: bool = False


_LIFTED: dict[int, tuple[Any, Values]] = {}  # by id, with the object, which keeps the id its own


def lifted(x: Any) -> Values:
    """Return an object as the values of an expression."""
    if x is None or isinstance(x, str | int | float | bool):
        return frozenset({Literal(type(x), x)})
    if id(x) not in _LIFTED:
        _LIFTED[id(x)] = x, NOTHING  # a table may hold itself
        _LIFTED[id(x)] = x, frozenset(_values(x))
    return _LIFTED[id(x)][1]


def _values(x: Any) -> Iterator[Any]:
    if isinstance(x, FunctionType | MethodType):
        if x.__module__.startswith("nnef_jax."):
            yield code_of(x)
        else:
            yield ANY
    elif isinstance(x, partial):
        call = cast("partial[Any]", x)
        first = tuple(map(lifted, call.args))
        named = tuple((name, lifted(value)) for name, value in call.keywords.items())
        for value in lifted(call.func):
            yield Code(value.node, value.scope, first, named) if isinstance(value, Code) else value
    elif isinstance(x, tuple | list | set | frozenset):
        items = list(cast("Iterable[Any]", x))
        yield Items(tuple(map(lifted, items))) if len(items) <= _LARGEST else Object(x)
    elif isinstance(x, Mapping):
        pairs = list(cast("Mapping[Any, Any]", x).items())
        if len(pairs) <= _LARGEST:
            yield Pairs(tuple((lifted(key), lifted(value)) for key, value in pairs))
        else:
            yield ANY
    else:
        yield Object(x)


def items_of(values: Iterable[Any]) -> Values:
    """Return what an iteration over values gives."""
    items: set[Any] = set()
    for value in values:
        if isinstance(value, Items):
            items.update(*value.items)
        elif isinstance(value, Pairs):
            items.update(*(key for key, _ in value.pairs))
        elif isinstance(value, Literal) and value.type is str:
            items.update(Literal(str, letter) for letter in value.value)
        else:
            items.add(ANY)
    return frozenset(items)


def texts_of(values: Iterable[Any]) -> set[str]:
    """Return the texts among values."""
    return {x.value for x in values if isinstance(x, Literal) and x.type is str}


def listed(items: Iterable[Values]) -> Values:
    """Return a list of these items."""
    return frozenset({Items(tuple(items))})


def list_of(item: Values) -> Values:
    """Return a list of any length."""
    return frozenset({Items((item,), repeats=True)})


def opened(values: Values) -> Values:
    """Return values, and the items of lists among them."""
    return values | items_of(x for x in values if isinstance(x, Items))


def exact_items(values: Values) -> Sequence[Values] | None:
    """Return the items of a list or the keys of a dict whose number is known."""
    match list(values):
        case [Items(items, False)]:
            return items
        case [Pairs(pairs)] if all(len(key) == 1 for key, _ in pairs):
            return [key for key, _ in pairs]
        case _:
            return None


def joined(lists: Sequence[Values]) -> Values:
    """Return the sum of lists."""
    if all(len(x) == 1 and isinstance(next(iter(x)), Items) for x in lists):
        repeats = any(x.repeats for (x,) in lists)
        if not repeats:
            return listed([item for (x,) in lists for item in x.items])
    return list_of(NOTHING.union(*map(items_of, lists)))


def of_key(x: Pairs, index: set[Any]) -> Values:
    """Return the items of a dict by keys, all where no key is known."""
    exact = [
        y for key, y in x.pairs if any(isinstance(k, Literal) and k.value in index for k in key)
    ]
    return NOTHING.union(*(exact or (y for _, y in x.pairs))) or UNKNOWN


def of_dict(x: Pairs, name: str, first: Sequence[Values]) -> Values:
    """Return the results of a method of a dict."""
    if name == "items":
        return list_of(frozenset(Items(pair) for pair in x.pairs))
    if name == "values":
        return list_of(NOTHING.union(*(y for _, y in x.pairs)))
    if name in ("get", "pop", "setdefault") and first:
        index = {k.value for k in first[0] if isinstance(k, Literal)}
        return of_key(x, index).union(*first[1:])
    return frozenset({x})


def truth(x: Any) -> bool | None:
    """Return whether a value is true, None if the code does not say it."""
    if isinstance(x, Literal):
        return bool(x.value)
    return None if isinstance(x, Mark | Object | Pairs | Items) else True


def compared(op: ast.cmpop, left: Values, right: Values) -> bool | None:
    """Return a comparison of literals, None where it is not one, or differs between them."""
    if isinstance(op, ast.In | ast.NotIn):
        right = frozenset(y for x in right for y in ([x] if x is ANY else items_of([x])))
    if not left or not all(isinstance(x, Literal) for x in left | right):
        return None
    if isinstance(op, ast.In | ast.NotIn):
        results = {(x in right) == isinstance(op, ast.In) for x in left}
    elif isinstance(op, ast.Eq | ast.NotEq | ast.Is | ast.IsNot):
        is_equal = isinstance(op, ast.Eq | ast.Is)
        results = {(x.value == y.value) == is_equal for x in left for y in right}
    else:
        return None
    return results.pop() if len(results) == 1 else None


def code_of(function: Any) -> Code:
    """Return a function of a module with the values of what it encloses."""
    code = function.__code__
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    names = {name: lifted(cell.cell_contents) for name, cell in cells}
    return Code(_node(code), Scope(None, function.__globals__, names))


def _node(code: Any) -> ast.FunctionDef | ast.Lambda:
    """Return the node of a function: of several lambdas in a line the one around its code."""
    nodes = _nodes(code.co_filename)[code.co_name, code.co_firstlineno]
    # Where a function begins and ends, its code has no column.
    places = [(line, column) for line, _, column, _ in code.co_positions() if line and column]
    for node in nodes:
        first, last = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        if len(nodes) == 1 or all(first <= x <= last for x in places):
            return node
    raise LookupError(f"{code.co_filename}:{code.co_firstlineno} has no {code.co_name}")


@cache
def _nodes(path: str) -> dict[tuple[str, int], list[Any]]:
    """Return the functions of a file by name and first line, inner ones first."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    nodes: dict[tuple[str, int], list[Any]] = {}
    for node in reversed(list(ast.walk(tree))):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(x.lineno for x in node.decorator_list)])
            nodes.setdefault((node.name, first), []).append(node)
        elif isinstance(node, ast.Lambda):
            nodes.setdefault(("<lambda>", node.lineno), []).append(node)
    return nodes
