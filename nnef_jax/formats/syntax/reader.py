"""The fast reader, which stands beside the grammar: it builds the same tree in a tenth of the time.

(5,000 flat statements: 0.1 s instead of 1.2 s; the standard library: 20 ms instead of 200 ms with
the making of lark's tables.) It knows nothing of errors: at anything that it does not understand it
gives up, and the grammar has its say. A test holds the two equal. What exporters write is flat, and
is read by a pattern for a whole argument; all else by recursive descent, a method a production.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.tokens import BUILTINS, SPACE, Language, Token
from nnef_jax.formats.syntax.tree_builder import TreeBuilder
from nnef_jax.formats.syntax.types import Type

_NAME, _NUMBER, _STRING, _GENERIC = 1, 2, 3, 4  # groups of the pattern of a token
_EQUALS = re.compile(rf"{SPACE}=(?!=)")
_SEMICOLON = re.compile(rf"{SPACE};")
_OPENING = re.compile(r"\(")
_ITEM = re.compile(r"[^\s\[\](),]+")
_LOGICAL = {"true": True, "false": False}
_ENDS = frozenset(",;)]")  # of an expression
_FLAT_LEVELS = 3  # of expressions in a statement without any that is read token by token


class NotUnderstood(Exception):
    """The fast reader gives up: the grammar reads the text."""


class FastReader:
    """Reads a text: `token`, of a `kind`, is the next one, from `start` to `stop`.

    Methods are productions, in which the builder is called as the grammar calls it. They raise
    NotUnderstood, or what the builder raises.
    """

    def __init__(self, text: str, builder: TreeBuilder, language: Language, most: int) -> None:
        self.text = text
        self.build: Any = builder
        self.language = language
        self.loose = language.loose
        self.reserved = _LOGICAL.keys() if self.loose else builder.keywords | BUILTINS
        self.match = language.token.match
        self.left = most  # of tokens that may be read one by one
        self.go(0)

    def go(self, at: int) -> None:
        """Look at the token that follows a position."""
        self.left -= 1
        found = self.match(self.text, at)
        if found is None or self.left < 0:
            raise NotUnderstood
        self.kind = kind = found.lastindex or 0
        self.token = found[kind]
        self.start, self.stop = found.span(kind)

    def take(self, token: str | None = None) -> Token:
        """Step over a token, which has to be the one that is given."""
        if token is not None and token != self.token:
            raise NotUnderstood
        taken = _placed(self.token, self.start)
        self.go(self.stop)
        return taken

    def expect(self, token: str) -> None:
        """Step over a token that has to be there."""
        if token != self.token:
            raise NotUnderstood
        self.go(self.stop)

    def found(self, token: str) -> bool:
        """Step over a token if it is there."""
        found = token == self.token
        if found:
            self.go(self.stop)
        return found

    def name(self) -> Token:
        """Step over a name."""
        _require(self.kind == _NAME)
        return self.take()

    def generic(self, declared: bool = False) -> Token | None:
        """Step over `<type>` if it is there."""
        if self.kind != _GENERIC:
            return None
        token = self.take()
        _require(self.loose or ("?" in token if declared else "=" not in token))
        return token

    def several(self, item: Callable[[], Any]) -> list[Any]:
        """Return items with commas between them, at least one."""
        items = [item()]
        while self.found(","):
            items.append(item())
        return items

    def listed(self, brackets: str, item: Callable[[], Any], least: int = 0) -> list[Any]:
        """Return the bracket that opens a list, and the items in it."""
        return [self.take(brackets[0]), *self.rest(brackets[1], item, least)]

    def rest(self, closing: str, item: Callable[[], Any], least: int = 0) -> list[Any]:
        """Return items with commas between them up to a bracket."""
        items: list[Any] = []
        while self.token != closing:
            items.append(item())
            if self.token != ",":
                break
            self.go(self.stop)
            _require(self.loose or self.token != closing)
        _require(len(items) >= least)
        self.expect(closing)
        return items

    # Documents, as the grammar has them

    def document(self) -> Any:
        definitions = self.definitions()
        self.expect("graph")
        name, opening, *parameters = self.name(), *self.listed("()", self.name, not self.loose)
        self.expect("->")
        results = self.listed("()", self.name, not self.loose)[1:]
        parameters, results = self.build.names(*parameters), self.build.names(*results)
        graph = self.build.graph(name, opening, parameters, opening, results, self.body())
        return self.build.document(*definitions, graph)

    def library(self) -> Any:
        return self.build.library(*self.definitions())

    def quantization(self) -> Any:
        entries: list[Any] = []
        while self.kind == _STRING:
            key, _ = self.take(), self.take(":")
            quantizer = self.invocation(self.name())
            self.found(";")
            entries.append(self.build.quantization_entry(key, quantizer, None))
        return self.build.items(*entries)

    def assertion(self) -> Any:
        scenario, condition = _placed(self.token, self.start), self.expression()
        if condition == s.Identifier(0, scenario) and self.found(":"):
            return self.build.assertion(scenario, self.expression())
        return self.build.assertion(None, condition)

    def definitions(self) -> list[Any]:
        self.expect("version")
        _require(self.kind == _NUMBER)
        found: list[Any] = [self.build.version(self.take(), None)]
        if not self.build.provisional or self.token == ";":
            self.expect(";")
        while self.token == "extension":
            line = self.language.extension.match(self.text, self.start)
            if line is None:
                raise NotUnderstood
            found.append(self.build.extension(_token(line, 1), None))
            self.go(line.end())
        while self.found("fragment"):
            found.append(self.fragment())
        return found

    def fragment(self) -> s.Fragment:
        name, generic = self.name(), self.generic(declared=True)
        opening, *parameters = self.listed("()", self.parameter)
        self.expect("->")
        results = tuple(self.listed("()", self.result, 1)[1:])
        body = self.take() if self.token == ";" and not self.loose else self.body()
        parts = name, generic, opening, tuple(parameters), opening, results, body
        return self.build.fragment(*parts)

    def parameter(self) -> s.FormalParameter:
        name, type = self.declared()
        return self.build.parameter(name, type, self.expression() if self.found("=") else None)

    def result(self) -> s.ResultDeclaration:
        return self.build.result(*self.declared(typed=not self.loose))

    def declared(self, typed: bool = True) -> tuple[Token, Any]:
        found = self.language.declared.match(self.text, self.start)
        if found is not None:
            self.go(found.end())
            generic = _token(found, 3) if found[3] else None
            return _token(found, 1), self.arrays(self.build.named_type(_token(found, 2), generic))
        name = self.name()
        if not typed and self.token != ":":
            return name, None
        self.expect(":")
        return name, self.type()

    def type(self) -> Type:
        if self.found("?"):
            return self.arrays(self.build.generic_type())
        if self.token != "(":
            return self.arrays(self.build.named_type(self.name(), self.generic()))
        opening, items = self.take(), self.several(self.type)
        _require(self.loose or len(items) > 1)
        self.expect(")")
        return self.arrays(self.build.tuple_type(opening, *items))

    def arrays(self, type: Type) -> Type:
        while self.token == "[]":
            type = self.build.array_type(type, self.take())
        return type

    # Statements

    def body(self) -> tuple[s.Assignment, ...]:
        at, items = self.stop, list[s.Assignment]()
        self.expect("{")
        while True:
            found = self.language.statement.match(self.text, at)
            if found and found[1] not in self.reserved and found[2] not in self.reserved:
                statement, at = self.flat(found)
            else:
                self.go(at)
                if self.token == "}" and (items or self.loose):
                    break
                targets, _ = self.several(self.target), self.expect("=")
                statement, at = self.assignment(targets), self.stop
            items.append(statement)
        self.go(self.stop)
        return tuple(items)

    def assignment(self, targets: list[Any], first: Any = None) -> s.Assignment:
        values = [self.expression(first)]
        while not self.loose and self.found(","):
            values.append(self.expression())
        target = targets[0] if len(targets) == 1 else self.build.bare_tuple(*targets)
        value = values[0] if len(values) == 1 else self.build.bare_value(*values)
        _require(self.token == ";")
        return self.build.assignment(target, value, None)

    def target(self) -> Any:
        if self.kind == _NAME:
            return self.build.identifier(self.take())
        if self.token == "[" and not self.loose:
            return self.build.array_expression(*self.listed("[]", self.target, 1))
        brackets = "[]" if self.token == "[" else "()"
        least = 1 if self.loose else 2
        return self.build.tuple_expression(*self.listed(brackets, self.target, least))

    def flat(self, found: re.Match[str]) -> tuple[s.Assignment, int]:
        """Return a statement that begins with `name = operation<generic>(`, and its end."""
        left = self.left
        arguments, at = self.arguments(found.end())
        name, operation, generic = found.groups()
        if self.loose:
            name = self.build.name(_token(found, 1))
        target = s.Identifier(found.start(1), name)
        end = _SEMICOLON.match(self.text, at)
        if end is None or self.left < left or self.build.nesting < _FLAT_LEVELS:
            type = _token(found, 3) if generic else None
            value = self.build.invocation(_token(found, 2), type, None, *arguments)
            self.go(at)
            return self.assignment([target], value), self.stop
        if self.loose:
            operation = self.build.name(_token(found, 2))
        type = self.build.generic(_token(found, 3)) if generic else None
        value = s.Invocation(found.start(2), operation, type, tuple(arguments))
        return s.Assignment(target.offset, target, value), end.end()

    def arguments(self, at: int) -> tuple[list[s.Argument], int]:
        """Return the arguments behind a bracket, and where the one that closes it ends."""
        match, text, loose, build = self.language.value.match, self.text, self.loose, self.build
        items: list[s.Argument] = []
        value: s.Expression | None
        after = ","
        while after == ",":
            value, found = None, match(text, at)
            if found is not None and found[1] not in _LOGICAL:
                argument, numbers, number, name, string, after = found.groups()
                if name is not None:
                    if name not in self.reserved:
                        name = build.name(_token(found, 4)) if loose else name
                        value = s.Identifier(found.start(4), name)
                    elif name in _LOGICAL:
                        value = s.Literal(found.start(4), _LOGICAL[name])
                elif numbers is not None:
                    value = _numbers(numbers, found.start(2))
                elif number is not None:
                    value = s.Literal(found.start(3), _number(number))
                elif string.isprintable() and "\\" not in string:
                    value = s.Literal(found.start(5), string[1:-1])
            if found is None or value is None:
                self.go(at)
                if self.token == ")" and (loose or not items):
                    return items, self.stop
                items.append(self.argument())
                after, at = self.token, self.stop
            else:
                at, argument = found.end(), found[1]
                start = value.offset if argument is None else found.start(1)
                argument = build.name(_token(found, 1)) if loose and argument else argument
                items.append(s.Argument(start, argument, value))
        _require(after == ")")
        return items, at

    # Expressions

    def expression(self, first: Any = None) -> s.Expression:
        if first is None and self.kind <= _STRING and self.text[self.stop : self.stop + 1] in _ENDS:
            return self.atom()
        value = self.binary(1, first)
        if self.loose or not self.found("if"):
            return value
        condition, _ = self.binary(), self.expect("else")
        return self.build.select(value, condition, self.expression())

    def binary(self, level: int = 1, first: Any = None) -> s.Expression:
        left, levels = self.unary(first), self.language.levels
        while (own := levels.get(self.token, 0)) >= level:
            left = self.build.binary(left, self.take(), self.binary(own + 1))
        return left

    def unary(self, first: Any = None) -> s.Expression:
        if first is None and self.token in self.language.signs:
            return self.build.unary(self.take(), self.unary())
        base = self.postfix(self.atom() if first is None else first)
        if self.loose or self.token != "^":
            return base
        return self.build.binary(base, self.take(), self.unary())

    def postfix(self, value: Any) -> s.Expression:
        while self.found("["):
            begin = None if self.token == ":" and not self.loose else self.expression()
            if begin is not None and (self.loose or self.token != ":"):
                value = self.build.subscript(value, None, begin)
            else:
                self.expect(":")
                end = None if self.token == "]" else self.expression()
                value = self.build.subrange(value, None, begin, end)
            self.expect("]")
        return value

    def atom(self) -> s.Expression:
        kind, token = self.kind, self.take()
        if kind == _NAME:
            if token in _LOGICAL:
                return self.build.logical(token)
            if self.token == "(" or self.kind == _GENERIC:
                return self.invocation(token)
            return self.build.identifier(token)
        if kind == _NUMBER:
            return self.build.number(token)
        if kind == _STRING:
            return self.build.string(token)
        if token == "(":
            items = [self.expression()]
            if self.found(")"):
                return self.build.parenthesised(token, items[0])
            self.expect(",")
            return self.build.tuple_expression(token, *items, *self.rest(")", self.expression, 1))
        if token == "[]":
            return self.build.array_expression(token)
        _require(token == "[")
        if self.loose or not self.found("for"):
            return self.build.array_expression(token, *self.rest("]", self.expression))
        loops = self.several(self.loop)
        condition = self.binary() if self.found("if") else None
        self.expect("yield")
        node = self.build.comprehension(token, loops, condition, self.expression())
        self.expect("]")
        return node

    def loop(self) -> s.Loop:
        return self.build.loop(self.name(), self.take("in"), self.binary())

    def invocation(self, name: Token) -> s.Expression:
        generic = self.generic()
        _require(self.token == "(")
        arguments, at = self.arguments(self.stop)
        self.go(at)
        return self.build.invocation(name, generic, None, *arguments)

    def argument(self) -> s.Argument:
        if self.kind == _NAME and self.token not in _LOGICAL:
            found = _EQUALS.match(self.text, self.stop)
            if found is not None:
                name = self.take()
                self.go(found.end())
                return self.build.named_argument(name, self.expression())
        return self.build.argument(self.expression())


def _require(condition: bool) -> None:
    if not condition:
        raise NotUnderstood


def _placed(text: str, start: int) -> Token:
    token = Token(text)
    token.start_pos = start
    return token


def _token(found: re.Match[str], group: int) -> Token:
    return _placed(found[group], found.start(group))


def _number(text: str) -> int | float:
    return int(text) if text.isdigit() or text[1:].isdigit() else float(text)


def _numbers(text: str, offset: int) -> s.Array | s.Tuple:
    """Return an array or a tuple of numbers, or an array of pairs of such."""
    items: list[Any] = [
        s.Literal(offset + m.start(), int(m[0]) if m[0].isdigit() else _number(m[0]))
        for m in _ITEM.finditer(text)
    ]
    if "(" in text[1:]:
        pairs = zip(_OPENING.finditer(text), items[::2], items[1::2], strict=True)
        items = [s.Tuple(offset + m.start(), (a, b)) for m, a, b in pairs]
    node = s.Array(offset, tuple(items)) if text[0] == "[" else s.Tuple(offset, tuple(items))
    node.depth = 2
    return node
