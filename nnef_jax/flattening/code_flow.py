"""Follows the statements and expressions of a function with the values that its code says.

It does not run them. All branches count whose conditions the code does not decide.
"""

from __future__ import annotations

import ast
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

from nnef_jax.flattening.code_values import (
    ANY,
    NOTHING,
    UNKNOWN,
    Code,
    Items,
    Literal,
    Object,
    Pairs,
    Scope,
    Values,
    compared,
    exact_items,
    items_of,
    joined,
    lifted,
    list_of,
    listed,
    of_key,
    opened,
    texts_of,
    truth,
)

_MOST = 64  # texts of an expression
_PASSES = 6  # over a function


class CodeFlow(ABC):
    """Follows functions. What an attribute or a call gives is said by a subclass."""

    @abstractmethod
    def attribute(self, node: ast.Attribute, scope: Scope) -> Values:
        """Return the values of an attribute of an object."""

    @abstractmethod
    def called(self, node: ast.Call, scope: Scope) -> Values:
        """Return the results of a call."""

    # Statements

    def function(self, body: Sequence[ast.stmt], scope: Scope) -> Values:
        """Return the results of a function; again while its names get more values."""
        results = set[Any]()
        for _ in range(_PASSES):
            before = scope.changes[0]
            results.clear()
            self._block(body, scope, results)
            if scope.changes[0] == before:
                break
        return frozenset(results) or UNKNOWN

    def _block(self, body: Iterable[ast.stmt], scope: Scope, results: set[Any]) -> bool:
        """Follow statements; tell whether the function ends in them."""
        return any(self._statement(statement, scope, results) for statement in body)

    def _statement(self, node: ast.stmt, scope: Scope, results: set[Any]) -> bool:
        match node:
            case ast.Raise() | ast.Continue() | ast.Break():
                return True
            case ast.Return():
                results |= self.value(node.value, scope) if node.value else UNKNOWN
                return True
            case ast.FunctionDef():
                scope.add(node.name, frozenset({Code(node, scope)}))
            case ast.Assign():
                values = self.value(node.value, scope)
                for target in node.targets:
                    self._assign(target, values, scope)
            case ast.AnnAssign() | ast.AugAssign():
                if node.value is not None:
                    self._assign(node.target, self.value(node.value, scope), scope)
            case ast.Expr():
                self.value(node.value, scope)
            case ast.For():
                self._assign(node.target, items_of(self.value(node.iter, scope)), scope)
                self._block(node.body, scope, results)
                self._block(node.orelse, scope, results)
            case ast.While():
                self.value(node.test, scope)
                self._block(node.body, scope, results)
            case ast.If():
                return self._choice(node, scope, results)
            case ast.With():
                for x in node.items:
                    self.value(x.context_expr, scope)
                self._block(node.body, scope, results)  # `suppress` goes on behind it
            case ast.Try():
                for body in (node.body, *(x.body for x in node.handlers), node.orelse):
                    self._block(body, scope, results)
                self._block(node.finalbody, scope, results)
            case ast.Match():
                subject = self.value(node.subject, scope)
                for case in node.cases:
                    pattern = case.pattern
                    if isinstance(pattern, ast.MatchValue):
                        equal = self.value(pattern.value, scope)
                        if compared(ast.Eq(), subject, equal) is False:
                            continue
                    self._block(case.body, scope, results)
            case _:
                pass
        return False

    def _choice(self, node: ast.If, scope: Scope, results: set[Any]) -> bool:
        """Follow the branches that may be taken."""
        test = self._test(node.test, scope)
        match node.test, node.body:
            case ast.Compare(ast.Name(id=name), [ast.NotIn()], [table]), [*_, ast.Raise()]:
                # Behind it, the name is a key of the table.
                if ANY in scope.get(name):
                    keys = items_of(self.value(table, scope))
                    scope.names[name] = scope.names.get(name, NOTHING) - UNKNOWN | keys
            case _:
                pass
        ends = test is not False and self._block(node.body, scope, results)
        ends_else = test is not True and self._block(node.orelse, scope, results)
        return ends if test is True else ends_else if test is False else ends and ends_else

    def _test(self, node: ast.expr, scope: Scope) -> bool | None:
        """Return whether a condition holds, None where the code does not say it."""
        match node:
            case ast.Compare(left, [op], [right]):
                return compared(op, self.value(left, scope), self.value(right, scope))
            case ast.UnaryOp(ast.Not(), operand):
                test = self._test(operand, scope)
                return None if test is None else not test
            case ast.BoolOp():
                tests = [self._test(x, scope) for x in node.values]
                decisive = isinstance(node.op, ast.Or)
                if decisive in tests:
                    return decisive
                return None if None in tests else not decisive
            case _:
                truths = {truth(x) for x in self.value(node, scope)}
                return truths.pop() if len(truths) == 1 else None

    def _assign(self, target: ast.expr, values: Values, scope: Scope) -> None:
        match target:
            case ast.Name():
                scope.add(target.id, values)
            case ast.Starred():
                self._assign(target.value, values, scope)
            case ast.Attribute():
                for x in self.value(target.value, scope):
                    if isinstance(x, Object):
                        x.fields[target.attr] = x.fields.get(target.attr, NOTHING) | values
            case ast.Subscript(ast.Name(id=name)):
                pairs = ((self.value(target.slice, scope), values),)
                scope.add(name, frozenset({Pairs(pairs)}))
            case ast.Tuple() | ast.List():
                for i, part in enumerate(target.elts):
                    parts = set[Any]()
                    for x in values:
                        if (
                            isinstance(x, Items)
                            and len(x.items) == len(target.elts)
                            and not x.repeats
                        ):
                            parts |= x.items[i]
                        else:
                            parts |= items_of([x])
                    whole = isinstance(part, ast.Starred)
                    self._assign(
                        part, list_of(frozenset(parts)) if whole else frozenset(parts), scope
                    )
            case _:
                pass

    def _narrow(self, node: ast.If, scope: Scope) -> None:
        """Give a name the keys of a table without which an error is raised."""
        match node.test, node.body:
            case ast.Compare(ast.Name(id=name), [ast.NotIn()], [table]), [*_, ast.Raise()]:
                if not texts_of(scope.get(name)):
                    scope.add(name, items_of(self.value(table, scope)))
            case _:
                pass

    # Expressions

    def value(self, node: ast.expr, scope: Scope) -> Values:
        """Return the values of an expression, as far as the code says them."""
        match node:
            case ast.Constant():
                return lifted(node.value) if node.value is not ... else UNKNOWN
            case ast.Name():
                return scope.get(node.id)
            case ast.Attribute():
                return self.attribute(node, scope)
            case ast.Call():
                return self.called(node, scope)
            case ast.Lambda():
                return frozenset({Code(node, scope)})
            case ast.IfExp():
                test = self._test(node.test, scope)
                body = self.value(node.body, scope) if test is not False else NOTHING
                return body | (self.value(node.orelse, scope) if test is not True else NOTHING)
            case ast.BoolOp():
                return NOTHING.union(*(self.value(x, scope) for x in node.values))
            case ast.NamedExpr():
                values = self.value(node.value, scope)
                self._assign(node.target, values, scope)
                return values
            case ast.Tuple() | ast.List() | ast.Set():
                return self._display(node.elts, scope)
            case ast.Dict():
                return self._dict(node, scope)
            case ast.Starred():
                return self.value(node.value, scope)
            case ast.Subscript():
                return self._item(node, scope)
            case ast.JoinedStr():
                return self._formatted(node, scope)
            case ast.BinOp():
                left, right = self.value(node.left, scope), self.value(node.right, scope)
                if isinstance(node.op, ast.Add):
                    texts = product(texts_of(left), texts_of(right))
                    pairs = frozenset(Literal(str, a + b) for a, b in texts)
                    lists = [x for x in (left, right) if any(isinstance(y, Items) for y in x)]
                    return pairs | joined(lists) if lists else pairs or UNKNOWN
                return left | right if isinstance(node.op, ast.BitOr) else UNKNOWN
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                self._loops(node.generators, scope)
                return list_of(self.value(node.elt, scope))
            case ast.DictComp():
                self._loops(node.generators, scope)
                pair = self.value(node.key, scope), self.value(node.value, scope)
                return frozenset({Pairs((pair,))})
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.value(child, scope)
                return UNKNOWN

    def _loops(self, generators: Sequence[ast.comprehension], scope: Scope) -> None:
        for each in generators:
            self._assign(each.target, items_of(self.value(each.iter, scope)), scope)
            for test in each.ifs:
                self.value(test, scope)

    def _display(self, elements: Sequence[ast.expr], scope: Scope) -> Values:
        items: list[Values] = []
        for x in elements:
            values = self.value(x, scope)
            if isinstance(x, ast.Starred):
                exact = exact_items(values)
                if exact is None:
                    others = (self.value(y, scope) for y in elements)
                    return list_of(NOTHING.union(*items, *map(opened, others)))
                items += exact
            else:
                items.append(values)
        return listed(items)

    def _dict(self, node: ast.Dict, scope: Scope) -> Values:
        pairs: list[tuple[Values, Values]] = []
        for key, x in zip(node.keys, node.values, strict=True):
            values = self.value(x, scope)
            if key is not None:
                pairs.append((self.value(key, scope), values))
            else:
                pairs += [pair for y in values if isinstance(y, Pairs) for pair in y.pairs]
        return frozenset({Pairs(tuple(pairs))})

    def _formatted(self, node: ast.JoinedStr, scope: Scope) -> Values:
        """Return the texts of a formatted string, or patterns where a part of it is not known."""
        parts: list[list[str]] = []
        for x in node.values:
            values = self.value(x.value if isinstance(x, ast.FormattedValue) else x, scope)
            parts.append([".*"] if ANY in values else sorted(texts_of(values)))
        texts = ["".join(x) for x in product(*parts)][:_MOST]
        is_pattern = any(x == [".*"] for x in parts)
        return frozenset(Literal(re.Pattern if is_pattern else str, x) for x in texts)

    def _item(self, node: ast.Subscript, scope: Scope) -> Values:
        index = {x.value for x in self.value(node.slice, scope) if isinstance(x, Literal)}
        values: set[Any] = set()
        for x in self.value(node.value, scope):
            if isinstance(x, Pairs):
                values |= of_key(x, index)
            elif isinstance(x, Items):
                exact = [x.items[i] for i in index if isinstance(i, int) and i < len(x.items)]
                exact = [] if x.repeats else exact
                is_part = isinstance(node.slice, ast.Slice)
                whole = list_of(items_of([x]))
                values |= whole if is_part else NOTHING.union(*(exact or x.items))
            else:
                values.add(ANY)
        return frozenset(values)
