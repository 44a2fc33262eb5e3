"""The fast reader, which builds the same tree as the grammar in a tenth of the time, or gives up.

5,000 flat statements take 0.1 s instead of 1.2 s. The standard library takes 20 ms instead of 200
ms. The 200 ms include the time to make lark's tables.

The fast reader does not explain errors. At an unexpected token it gives up, and then the grammar
reads the text. A test compares the trees of both readers. Flat statements, which exporters write,
are matched one argument at a time. All other text is read by recursive descent, with a method for
each production.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from nnef_jax.formats.syntax import tree
from nnef_jax.formats.syntax.token_reader import (
    GENERIC,
    NAME,
    NUMBER,
    STRING,
    NotUnderstood,
    TokenReader,
    placed,
    require,
    token_of,
)
from nnef_jax.formats.syntax.tokens import BUILTINS, SPACE, Language, Token
from nnef_jax.formats.syntax.tree_builder import TreeBuilder
from nnef_jax.formats.syntax.types import Type

_EQUALS = re.compile(rf"{SPACE}=(?!=)")
_SEMICOLON = re.compile(rf"{SPACE};")
_OPENING = re.compile(r"\(")
_ITEM = re.compile(r"[^\s\[\](),]+")
_LOGICAL = {"true": True, "false": False}
_ENDS = frozenset(",;)]")  # marks that end an expression
_FLAT_LEVELS = 3  # the nesting of expressions in a flat statement


class FastReader(TokenReader):
    """Reads a text without a grammar.

    The methods have the names of productions of the grammar, and call the builder as the grammar
    does. They raise NotUnderstood if they cannot read the text. Errors of the builder are raised
    too.

    Args:
        text: the text.
        builder: builds the nodes of the tree.
        language: the patterns of tokens and the form of productions.
        most: the largest number of tokens that may be read one by one.
    """

    reserved: Collection[str]

    def __init__(self, text: str, builder: TreeBuilder, language: Language, most: int) -> None:
        self.build: Any = builder
        self.reserved = _LOGICAL.keys() if language.loose else builder.keywords | BUILTINS
        super().__init__(text, language, most)

    # Documents

    def document(self) -> Any:
        """Read a document: its version, extensions and fragments, then its graph."""
        definitions = self.definitions()
        self.expect("graph")
        name = self.name()
        least = 0 if self.loose else 1
        opening, *parameter_names = self.listed("()", self.name, least)
        self.expect("->")
        _, *result_names = self.listed("()", self.name, least)
        parameters = self.build.names(*parameter_names)
        results = self.build.names(*result_names)
        # `opening` stands for the two brackets, which the builder ignores.
        graph = self.build.graph(name, opening, parameters, opening, results, self.body())
        return self.build.document(*definitions, graph)

    def library(self) -> Any:
        """Read a library, which is a document without a graph."""
        return self.build.library(*self.definitions())

    def quantization(self) -> Any:
        """Read a graph.quant, which has entries `"name": operation(...);`."""
        entries: list[Any] = []
        while self.kind == STRING:
            key = self.take()
            self.expect(":")
            quantizer = self.invocation(self.name())
            self.accept(";")
            entries.append(self.build.quantization_entry(key, quantizer, end=None))
        return self.build.items(*entries)

    def assertion(self) -> Any:
        """Read an assertion of tract: `condition`, or `scenario: condition`."""
        first_token = placed(self.token, self.start)
        expression = self.expression()
        # Nodes are compared without their offsets.
        is_name = expression == tree.Identifier(0, first_token)
        if is_name and self.accept(":"):
            condition = self.expression()
            return self.build.assertion(first_token, condition)
        return self.build.assertion(None, expression)

    def definitions(self) -> list[Any]:
        """Read the version, the extensions and the fragments of a document."""
        self.expect("version")
        require(self.kind == NUMBER)
        definitions: list[Any] = [self.build.version(self.take(), end=None)]
        needs_semicolon = not self.build.provisional
        if needs_semicolon or self.token == ";":
            self.expect(";")
        while self.token == "extension":
            line = self.language.extension.match(self.text, self.start)
            if line is None:
                raise NotUnderstood
            end_of_line = None  # the builder ignores it
            definitions.append(self.build.extension(token_of(line, 1), end_of_line))
            self.advance(line.end())
        while self.accept("fragment"):
            definitions.append(self.fragment())
        return definitions

    def fragment(self) -> tree.Fragment:
        """Read a fragment after the word "fragment"."""
        name = self.name()
        generic = self.generic(declared=True)
        opening, *parameters = self.listed("()", self.parameter)
        self.expect("->")
        _, *results = self.listed("()", self.result, least=1)
        has_no_body = self.token == ";" and not self.loose
        body = self.take() if has_no_body else self.body()
        # The builder ignores the two opening brackets.
        return self.build.fragment(
            name, generic, opening, tuple(parameters), opening, tuple(results), body
        )

    def parameter(self) -> tree.FormalParameter:
        """Read a parameter of a fragment: `name: type` or `name: type = default`."""
        name, type = self.declared()
        default = self.expression() if self.accept("=") else None
        return self.build.parameter(name, type, default)

    def result(self) -> tree.ResultDeclaration:
        """Read a result of a fragment: `name: type`."""
        name, type = self.declared(typed=not self.loose)
        return self.build.result(name, type)

    def declared(self, typed: bool = True) -> tuple[Token, Any]:
        """Read `name: type`; return the name and the type.

        If `typed` is False, the type may be missing. None is then returned as the type.
        """
        match = self.language.declared.match(self.text, self.start)
        if match is not None:  # the usual case, in which the type is no tuple
            self.advance(match.end())
            name = token_of(match, 1)
            type_name = token_of(match, 2)
            generic = token_of(match, 3) if match[3] else None
            return name, self.arrays(self.build.named_type(type_name, generic))
        name = self.name()
        if not typed and self.token != ":":
            return name, None
        self.expect(":")
        return name, self.type()

    def type(self) -> Type:
        """Read a type, such as `tensor<scalar>[]` or `(integer, integer)`."""
        if self.accept("?"):
            return self.arrays(self.build.generic_type())
        if self.token != "(":
            return self.arrays(self.build.named_type(self.name(), self.generic()))
        opening = self.take()
        items = self.several(self.type)
        require(self.loose or len(items) > 1)
        self.expect(")")
        return self.arrays(self.build.tuple_type(opening, *items))

    def arrays(self, type: Type) -> Type:
        """Read the pairs of brackets after a type; return the type of the array."""
        while self.token == "[]":
            type = self.build.array_type(type, self.take())
        return type

    # Statements

    def body(self) -> tuple[tree.Assignment, ...]:
        """Read the statements of a body, from its opening to its closing brace."""
        offset = self.stop  # the end of the opening brace, and later of the last read statement
        statements: list[tree.Assignment] = []
        self.expect("{")
        while True:
            # Groups 1 and 2 are the names in `name = operation(`.
            match = self.language.statement.match(self.text, offset)
            if match and match[1] not in self.reserved and match[2] not in self.reserved:
                statement, offset = self.flat(match)
            else:
                # The statement is not flat, or this is the closing brace.
                self.advance(offset)
                may_end = len(statements) > 0 or self.loose
                if self.token == "}" and may_end:
                    break
                targets = self.several(self.target)
                self.expect("=")
                statement = self.assignment(targets)
                offset = self.stop
            statements.append(statement)
        self.advance(self.stop)
        return tuple(statements)

    def assignment(
        self, targets: Sequence[tree.Target], first: tree.Expression | None = None
    ) -> tree.Assignment:
        """Read the values that are assigned to targets, up to the semicolon.

        `first` is the part of the first value that is already read, or None.
        """
        values = [self.expression(first)]
        while not self.loose and self.accept(","):
            values.append(self.expression())
        target = targets[0] if len(targets) == 1 else self.build.bare_tuple(*targets)
        value = values[0] if len(values) == 1 else self.build.bare_value(*values)
        require(self.token == ";")
        return self.build.assignment(target, value, end=None)

    def target(self) -> Any:
        """Read the target of an assignment: a name, an array or a tuple."""
        if self.kind == NAME:
            return self.build.identifier(self.take())
        if self.token == "[" and not self.loose:
            return self.build.array_expression(*self.listed("[]", self.target, least=1))
        brackets = "[]" if self.token == "[" else "()"
        least = 1 if self.loose else 2
        return self.build.tuple_expression(*self.listed(brackets, self.target, least))

    def flat(self, start: re.Match[str]) -> tuple[tree.Assignment, int]:
        """Read a statement `name = operation<generic>(...);`.

        `start` is the match of `name = operation<generic>(`. Return the statement and the offset of
        its end.
        """
        tokens_left = self.tokens_left
        arguments, end_of_call = self.arguments(start.end())
        name, operation, generic = start.groups()
        if self.loose:
            name = self.build.name(token_of(start, 1))
        target = tree.Identifier(start.start(1), name)
        semicolon = _SEMICOLON.match(self.text, end_of_call)
        is_flat = self.tokens_left == tokens_left  # no token was read one by one
        if semicolon is None or not is_flat or self.build.nesting < _FLAT_LEVELS:
            # The invocation may be the beginning of a larger expression. Expressions may also be
            # nested too deeply, which the builder checks.
            generic_token = token_of(start, 3) if generic else None
            opening = None  # the builder ignores the opening bracket
            value = self.build.invocation(token_of(start, 2), generic_token, opening, *arguments)
            self.advance(end_of_call)
            return self.assignment([target], value), self.stop
        if self.loose:
            operation = self.build.name(token_of(start, 2))
        type = self.build.generic(token_of(start, 3)) if generic else None
        value = tree.Invocation(start.start(2), operation, type, tuple(arguments))
        return tree.Assignment(target.offset, target, value), semicolon.end()

    def arguments(self, offset: int) -> tuple[list[tree.Argument], int]:
        """Read the arguments of an invocation. `offset` is the end of the opening bracket.

        Return the arguments, and the offset of the end of the closing bracket. The value of most
        arguments is a literal, a name or a list of numbers. One match reads such an argument and
        the mark after it.
        """
        match_argument = self.language.value.match
        text = self.text
        loose = self.loose
        build = self.build
        items: list[tree.Argument] = []
        mark = ","  # the mark after an argument
        while mark == ",":
            value: tree.Expression | None = None
            match = match_argument(text, offset)
            if match is not None and match[1] not in _LOGICAL:
                # One of the middle four groups has the value; the other three are None.
                _, numbers, number, name, string, mark = match.groups()
                if name is not None:
                    if name not in self.reserved:
                        name = build.name(token_of(match, 4)) if loose else name
                        value = tree.Identifier(match.start(4), name)
                    elif name in _LOGICAL:
                        value = tree.Literal(match.start(4), _LOGICAL[name])
                elif numbers is not None:
                    value = _numbers(numbers, match.start(2))
                elif number is not None:
                    value = tree.Literal(match.start(3), _number(number))
                elif string.isprintable() and "\\" not in string:
                    value = tree.Literal(match.start(5), string[1:-1])
            if match is None or value is None:
                # The argument is read by recursive descent. If there is no argument, the closing
                # bracket is read here.
                self.advance(offset)
                may_end = loose or not items
                if self.token == ")" and may_end:
                    return items, self.stop
                items.append(self.argument())
                mark = self.token
                offset = self.stop
            else:
                offset = match.end()
                argument_name = match[1]
                start = value.offset if argument_name is None else match.start(1)
                if loose and argument_name:
                    argument_name = build.name(token_of(match, 1))
                items.append(tree.Argument(start, argument_name, value))
        require(mark == ")")
        return items, offset

    # Expressions

    def expression(self, first: tree.Expression | None = None) -> tree.Expression:
        """Read an expression. `first` is the part that is already read, or None."""
        next_character = self.text[self.stop : self.stop + 1]
        is_word = self.kind <= STRING  # the token is a name, a number or a string
        is_atom = is_word and next_character in _ENDS
        if first is None and is_atom:
            return self.atom()
        value = self.binary(first=first)
        if self.loose or not self.accept("if"):
            return value
        condition = self.binary()
        self.expect("else")
        return self.build.select(value, condition, self.expression())

    def binary(self, level: int = 1, first: tree.Expression | None = None) -> tree.Expression:
        """Read an expression of binary operators with the precedence `level` or a higher one.

        `first` is the part that is already read, or None.
        """
        levels = self.language.levels
        left = self.unary(first)
        while levels.get(self.token, 0) >= level:
            # Operators of equal precedence are grouped from the left: the right operand has only
            # operators of higher precedence.
            operator_level = levels[self.token]
            left = self.build.binary(left, self.take(), self.binary(operator_level + 1))
        return left

    def unary(self, first: tree.Expression | None = None) -> tree.Expression:
        """Read an expression of unary operators and powers.

        `first` is the part that is already read, or None.
        """
        if first is None:
            if self.token in self.language.signs:
                return self.build.unary(self.take(), self.unary())
            first = self.atom()
        base = self.postfix(first)
        if self.loose or self.token != "^":
            return base
        return self.build.binary(base, self.take(), self.unary())

    def postfix(self, value: tree.Expression) -> tree.Expression:
        """Read the indices and ranges after an expression, such as `[0]` and `[1:2]`."""
        while self.accept("["):
            begin = None if self._at_colon() else self.expression()
            # The builder ignores the opening bracket, which is None here.
            if self._at_colon():
                self.expect(":")
                end = None if self.token == "]" else self.expression()
                value = self.build.subrange(value, None, begin, end)
            else:
                value = self.build.subscript(value, None, begin)
            self.expect("]")
        return value

    def _at_colon(self) -> bool:
        """Tell whether the next token is the `:` of a range. A loose language has no ranges."""
        return self.token == ":" and not self.loose

    def atom(self) -> tree.Expression:
        """Read an expression without operators: a literal, a name, a call, an array or a tuple."""
        kind = self.kind
        token = self.take()
        if kind == NAME:
            if token in _LOGICAL:
                return self.build.logical(token)
            if self.token == "(" or self.kind == GENERIC:
                return self.invocation(token)
            return self.build.identifier(token)
        if kind == NUMBER:
            return self.build.number(token)
        if kind == STRING:
            return self.build.string(token)
        if token == "(":
            first = self.expression()
            if self.accept(")"):
                return self.build.parenthesised(token, first)
            self.expect(",")
            other_items = self.items_to(")", self.expression, least=1)
            return self.build.tuple_expression(token, first, *other_items)
        if token == "[]":
            return self.build.array_expression(token)
        require(token == "[")
        is_comprehension = not self.loose and self.accept("for")
        if not is_comprehension:
            return self.build.array_expression(token, *self.items_to("]", self.expression))
        loops = self.several(self.loop)
        condition = self.binary() if self.accept("if") else None
        self.expect("yield")
        node = self.build.comprehension(token, loops, condition, self.expression())
        self.expect("]")
        return node

    def loop(self) -> tree.Loop:
        """Read a loop of a comprehension: `name in iterable`."""
        return self.build.loop(self.name(), self.take("in"), self.binary())

    def invocation(self, name: Token) -> tree.Expression:
        """Read an invocation after the name of the operation."""
        generic = self.generic()
        require(self.token == "(")
        arguments, end = self.arguments(self.stop)
        self.advance(end)
        opening = None  # the builder ignores the opening bracket
        return self.build.invocation(name, generic, opening, *arguments)

    def argument(self) -> tree.Argument:
        """Read an argument: `expression` or `name = expression`."""
        if self.kind == NAME and self.token not in _LOGICAL:
            equals = _EQUALS.match(self.text, self.stop)
            if equals is not None:
                name = self.take()
                self.advance(equals.end())
                return self.build.named_argument(name, self.expression())
        return self.build.argument(self.expression())


def _number(text: str) -> int | float:
    """Convert the text of a number, which may begin with a minus sign."""
    is_integer = text.isdigit() or text[1:].isdigit()
    return int(text) if is_integer else float(text)


def _numbers(text: str, offset: int) -> tree.Array | tree.Tuple:
    """Make an array or a tuple from a text such as "[1,2]", "(1,2)" or "[(1,2),(3,4)]".

    `offset` is the offset of the text.
    """
    items: list[Any] = []
    for match in _ITEM.finditer(text):
        item = match[0]
        number = int(item) if item.isdigit() else _number(item)  # most items have only digits
        items.append(tree.Literal(offset + match.start(), number))
    has_pairs = "(" in text[1:]
    if has_pairs:
        openings = _OPENING.finditer(text)
        pairs: list[Any] = []
        for opening, first, second in zip(openings, items[::2], items[1::2], strict=True):
            pairs.append(tree.Tuple(offset + opening.start(), (first, second)))
        items = pairs
    sequence = tree.Array if text[0] == "[" else tree.Tuple
    node = sequence(offset, tuple(items))
    node.depth = 2  # an upper bound: an array of pairs has the depth 2, plain numbers have 1
    return node
