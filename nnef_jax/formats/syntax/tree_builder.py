"""The syntax tree, built from the productions of a grammar by lark's LALR parser as it goes."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Any, TypeVar

from lark import Lark, Token
from lark.exceptions import UnexpectedInput

from lowering.location import Source, Span
from nnef_jax.errors import LimitError, NnefSyntaxError
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.unexpected import syntax_error
from nnef_jax.limits import raising

_ESCAPE = re.compile(r"\\(.)")
_NOTHING = Source("", "")
_Expression = TypeVar("_Expression", bound=s.Expression)


def at(token: Token) -> int:
    """Return where a token stands."""
    return token.start_pos or 0


def present(items: Sequence[Any]) -> tuple[Any, ...]:
    """Return the nodes of a production, without its tokens and what it lacks."""
    return tuple(item for item in items if isinstance(item, s.Node))


class TreeBuilder:
    """Builds what the grammars have in common.

    Methods are named after productions, what is in these are their arguments.
    """

    def __init__(self) -> None:
        self.begin(_NOTHING, 0, False)

    def begin(self, source: Source, nesting: int, provisional: bool) -> None:
        """Start on a new text."""
        self._source = source
        self._nesting = nesting
        self._operators: list[int] = []  # where expressions compute something

    def _fail(self, message: str, token: Token, hint: str = "") -> NnefSyntaxError:
        span = Span(self._source, at(token), len(token))
        return NnefSyntaxError(message, span=span, hint=hint)

    def _name(self, token: Token) -> str:
        """Return the identifier that a token stands for."""
        return str(token)

    def _check_nesting(self, what: str, depth: int, offset: int) -> None:
        if depth > self._nesting:
            raise LimitError(
                f"{what} are nested more than {self._nesting} deep",
                span=Span(self._source, offset),
                hint=raising("nesting"),
            )

    def _depth(self, offset: int, inner: Sequence[s.Expression | None]) -> int:
        """Return how deep expressions nest in one that has others in it."""
        depth = 1 + max([getattr(item, "depth", 0) for item in inner], default=0)
        self._check_nesting("expressions", depth, offset)
        return depth

    def _nested(self, node: _Expression, *inner: s.Expression | None) -> _Expression:
        """Return an expression that has others in it."""
        node.depth = self._depth(node.offset, inner)
        return node

    def _computed(self, node: _Expression, *inner: s.Expression | None) -> _Expression:
        """Return an expression that computes something from others."""
        self._operators.append(node.offset)
        return self._nested(node, *inner)

    # Atoms

    def number(self, token: Token) -> s.Literal:
        return s.Literal(at(token), int(token) if token.isdigit() else float(token))

    def string(self, token: Token) -> s.Literal:
        return s.Literal(at(token), _ESCAPE.sub(r"\1", token[1:-1]))

    def logical(self, token: Token) -> s.Literal:
        return s.Literal(at(token), token == "true")

    def identifier(self, token: Token) -> s.Identifier:
        return s.Identifier(at(token), self._name(token))

    # Expressions

    def array_expression(self, opening: Token, *items: s.Expression | None) -> s.Array:
        found = present(items)
        return self._nested(s.Array(at(opening), found), *found)

    def tuple_expression(self, opening: Token, *items: s.Expression | None) -> s.Tuple:
        found = present(items)
        return self._nested(s.Tuple(at(opening), found), *found)

    def bare_tuple(self, *items: s.Expression) -> s.Tuple:
        return self._nested(s.Tuple(items[0].offset, items), *items)

    def parenthesised(self, opening: Token, inner: s.Expression) -> s.Expression:
        self._operators.append(at(opening))
        inner.depth = self._depth(at(opening), [inner])
        return inner

    def binary(self, left: s.Expression, operator: Token, right: s.Expression) -> s.Binary:
        return self._computed(s.Binary(at(operator), str(operator), left, right), left, right)

    def unary(self, operator: Token, operand: s.Expression) -> s.Expression:
        match operand:
            case s.Literal(value=int() | float() as value) if operator != "!" and not isinstance(
                value, bool
            ):
                return s.Literal(at(operator), -value if operator == "-" else value)
            case _:
                return self._computed(s.Unary(at(operator), str(operator), operand), operand)

    def subscript(self, sequence: s.Expression, bracket: Token, index: s.Expression) -> s.Subscript:
        return self._computed(s.Subscript(sequence.offset, sequence, index), sequence, index)

    def argument(self, value: s.Expression) -> s.Argument:
        return s.Argument(value.offset, None, value)

    def named_argument(self, name: Token, value: s.Expression) -> s.Argument:
        return s.Argument(at(name), str(name), value)

    # Statements

    def assignment(self, target: s.Target, value: s.Expression, end: Token) -> s.Assignment:
        return s.Assignment(target.offset, target, value)

    def body(self, *items: s.Assignment) -> tuple[s.Assignment, ...]:
        return items

    def names(self, *items: Token | None) -> tuple[s.Identifier, ...]:
        return tuple(s.Identifier(at(item), self._name(item)) for item in items if item is not None)

    def graph(self, *items: Any) -> s.GraphDefinition:
        name, _, parameters, _, results, body = items
        return s.GraphDefinition(at(name), self._name(name), parameters, results, body)


class _Callbacks:
    """Hands the lists that lark gives to a builder's methods."""

    def __init__(self, builder: TreeBuilder) -> None:
        self._builder = builder

    def __getattr__(self, name: str) -> Callable[[list[Any]], Any]:
        method = getattr(self._builder, name)
        return lambda items: method(*items)


class GrammarReader:
    """Reads texts by a grammar of lark's, one at a time: its builder holds the state of one."""

    def __init__(self, package: str, starts: list[str], builder: TreeBuilder) -> None:
        grammar = files(package).joinpath("grammar.lark").read_text(encoding="utf-8")
        self._lark = Lark(grammar, parser="lalr", start=starts, transformer=_Callbacks(builder))
        self._builder = builder
        self._lock = threading.Lock()

    def read(
        self, start: str, source: Source, text: str, nesting: int, *, provisional: bool = False
    ) -> Any:
        """Return what the builder makes of a text from one of the start symbols of the grammar.

        Raises NnefSyntaxError, LimitError, or what else the builder raises.
        """
        with self._lock:
            self._builder.begin(source, nesting, provisional)
            try:
                return self._lark.parse(text, start=start)
            except UnexpectedInput as error:
                raise syntax_error(self._lark, source, text, error, provisional) from None
            finally:
                self._builder.begin(_NOTHING, 0, False)
