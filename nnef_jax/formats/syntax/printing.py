"""Prints syntax trees as text (spec 3.1, 3.2). Parsing the text returns an equal tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nnef_jax.formats.syntax import tree
from nnef_jax.formats.syntax.types import ArrayOf, Primitive, Tensor, TupleOf, Type

_INDENT = "    "
_WIDTH = 100  # the largest number of characters of a declaration that is printed in one line

# Precedence levels of expressions. The loosest level comes first, and the order is that of the
# grammar's productions.
_SELECT, _OR, _AND, _COMPARISON, _SUM, _PRODUCT, _UNARY, _POWER, _POSTFIX, _ATOM = range(10)
# For each operator: the level of the expression, and the lowest levels that its left and its right
# operand may have without parentheses.
_OPERATORS = {
    "||": (_OR, _OR, _AND),
    "&&": (_AND, _AND, _COMPARISON),
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!=", "in"), (_COMPARISON, _SUM, _SUM)),
    **dict.fromkeys(("+", "-"), (_SUM, _SUM, _PRODUCT)),
    **dict.fromkeys(("*", "/"), (_PRODUCT, _PRODUCT, _UNARY)),
    "^": (_POWER, _POSTFIX, _UNARY),
}


def print_document(document: tree.Document) -> str:
    """Return the text of a document in its dialect, in a fixed layout.

    The text has no comments, since the tree has none. Parentheses are printed only where the tree
    needs them. Parsing the text returns an equal document.
    """
    return _Printer(document.provisional).document(document)


def print_expression(expression: tree.Expression) -> str:
    """Print an expression in the syntax of 1.0 final."""
    return _Printer(provisional=False).expression(expression)


class _Printer:
    """Prints syntax trees in the syntax of 1.0 provisional or final."""

    def __init__(self, provisional: bool) -> None:
        self.provisional = provisional
        self.end = "" if provisional else ";"  # the end of the version and of each statement

    # Declarations

    def document(self, document: tree.Document) -> str:
        """Return the text of a document."""
        head = f"version {document.version}{self.end}\n"
        if document.extensions:
            head += f"extension {', '.join(document.extensions)};\n"
        fragments = [self.fragment(fragment) for fragment in document.fragments]
        return "\n".join([head, *fragments, self.graph(document.graph)])

    def fragment(self, fragment: tree.Fragment) -> str:
        """Return the text of a fragment."""
        generic = ""
        if fragment.generic:
            default = fragment.generic_default
            generic = f"<? = {default}>" if default else "<?>"
        parameters = [self.parameter(parameter) for parameter in fragment.parameters]
        results = [f"{result.name}: {self.type(result.type)}" for result in fragment.results]
        head = _declaration(f"fragment {fragment.name}{generic}", parameters, results)
        if fragment.body is None:
            return f"{head};\n"
        return head + self.body(fragment.body)

    def graph(self, graph: tree.GraphDefinition) -> str:
        """Return the text of the graph."""
        parameters = [parameter.name for parameter in graph.parameters]
        results = [result.name for result in graph.results]
        head = _declaration(f"graph {graph.name}", parameters, results)
        return head + self.body(graph.body)

    def parameter(self, parameter: tree.FormalParameter) -> str:
        """Return the text of a parameter: `name: type` or `name: type = default`."""
        declaration = f"{parameter.name}: {self.type(parameter.type)}"
        if parameter.default is None:
            return declaration
        return f"{declaration} = {self.expression(parameter.default)}"

    def type(self, type: Type) -> str:
        """Return the text of a type."""
        match type:
            case Tensor(None) if self.provisional:
                return "tensor"
            case Primitive("integer") if self.provisional:
                return "extent"
            case ArrayOf(item):
                return f"{self.type(item)}[]"
            case TupleOf(items):
                return f"({','.join(map(self.type, items))})"
            case _:
                return str(type)

    def body(self, body: Iterable[tree.Assignment]) -> str:
        """Return the text of a body in braces, with a line for each statement."""
        statements = "".join(map(self.assignment, body))
        return f"\n{{\n{statements}}}\n"

    def assignment(self, assignment: tree.Assignment) -> str:
        """Return the line of a statement. The parentheses of a target are left out."""
        target = assignment.target
        if isinstance(target, tree.Tuple):
            left = ", ".join(map(self.expression, target.items))
        else:
            left = self.expression(target)
        return f"{_INDENT}{left} = {self.expression(assignment.value)}{self.end}\n"

    # Expressions

    def expression(self, node: tree.Expression, level: int = _SELECT) -> str:
        """Print an expression, in parentheses if it binds less tightly than `level`."""
        text, node_level = self.bare(node)
        return text if node_level >= level else f"({text})"

    def bare(self, node: tree.Expression) -> tuple[str, int]:
        """Return the text of an expression without outer parentheses, and its precedence level.

        A negative number has the level of the unary minus.
        """
        match node:
            case tree.Literal(value=value):
                text = _literal(value)
                is_negative = text.startswith("-")
                return text, _UNARY if is_negative else _ATOM
            case tree.Identifier(name=name):
                return name, _ATOM
            case tree.Array(items=items):
                return f"[{self.items(items)}]", _ATOM
            case tree.Tuple(items=items):
                return f"({self.items(items)})", _ATOM
            case tree.Subscript(sequence=sequence, index=index):
                return f"{self.expression(sequence, _POSTFIX)}[{self.expression(index)}]", _POSTFIX
            case tree.Subrange(sequence=sequence, begin=begin, end=end):
                first = self.expression(begin) if begin else ""
                last = self.expression(end) if end else ""
                return f"{self.expression(sequence, _POSTFIX)}[{first}:{last}]", _POSTFIX
            case tree.Unary(operator=operator, operand=operand):
                return operator + self.expression(operand, _UNARY), _UNARY
            case tree.Binary(operator=operator, left=left, right=right):
                level, left_level, right_level = _OPERATORS[operator]
                left_text = self.expression(left, left_level)
                return f"{left_text} {operator} {self.expression(right, right_level)}", level
            case tree.Select(condition=condition, true_value=true_value, false_value=false_value):
                true_text = self.expression(true_value, _OR)
                condition_text = self.expression(condition, _OR)
                false_text = self.expression(false_value)
                return f"{true_text} if {condition_text} else {false_text}", _SELECT
            case tree.Comprehension():
                return self.comprehension(node), _ATOM
            case tree.Builtin(function=function, argument=argument):
                return f"{function}({self.expression(argument)})", _ATOM
            case tree.Invocation(operation=operation, generic=generic, arguments=arguments):
                listing = ", ".join(map(self.argument, arguments))
                head = f"{operation}<{generic}>" if generic else operation
                return f"{head}({listing})", _ATOM

    def items(self, items: Sequence[tree.Expression]) -> str:
        """Return the text of the items of an array or tuple, without the brackets.

        There are spaces after the commas, as in `a, 1`, unless all items are literals, as in `1,1`.
        """
        separator = "," if all(map(tree.is_literal, items)) else ", "
        return separator.join(map(self.expression, items))

    def comprehension(self, node: tree.Comprehension) -> str:
        """Return the text of an array comprehension."""
        loops = [f"{loop.name} in {self.expression(loop.iterable, _OR)}" for loop in node.loops]
        iteration = f"for {', '.join(loops)}"
        if node.condition is not None:
            iteration += f" if {self.expression(node.condition, _OR)}"
        item = self.expression(node.item)
        return f"[{item} {iteration}]" if self.provisional else f"[{iteration} yield {item}]"

    def argument(self, argument: tree.Argument) -> str:
        """Return the text of an argument: `expression` or `name = expression`."""
        value = self.expression(argument.value)
        return value if argument.name is None else f"{argument.name} = {value}"


def _declaration(head: str, parameters: Sequence[str], results: Sequence[str]) -> str:
    """Return the declaration of a fragment or graph, in several lines if it is long.

    `head` is the text before the parameters, such as "graph G". `parameters` and `results` are
    the texts of the parameters and results.
    """
    left = f"{head}( {', '.join(parameters)} )" if parameters else f"{head}()"
    right = f"-> ( {', '.join(results)} )"
    line = f"{left} {right}"
    if len(line) <= _WIDTH:
        return line
    if len(left) > _WIDTH:
        lines = f",\n{_INDENT}".join(parameters)
        left = f"{head}(\n{_INDENT}{lines} )"
    return f"{left}\n{right}"


def _literal(value: float | int | bool | str) -> str:
    """Return the text of a literal."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            # Other readers of NNEF do not know escapes. A string with single quotes, but without
            # double quotes, needs no escapes between double quotes.
            quote = '"' if "'" in value and '"' not in value else "'"
            escaped = value.replace("\\", "\\\\").replace(quote, f"\\{quote}")
            return f"{quote}{escaped}{quote}"
        case _:
            return repr(value)
