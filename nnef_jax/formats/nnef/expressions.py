"""Infers the types of expressions (spec 3.3.2, 3.3.3), and reports invalid expressions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from lowering.location import Source
from nnef_jax.errors import NnefError, SemanticError
from nnef_jax.formats.nnef.scope import Scope
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax import types as t
from nnef_jax.formats.syntax.invocation import InvalidInvocation
from nnef_jax.limits import ERROR_STEPS, LETTERS_PER_STEP
from nnef_jax.wording.similar import did_you_mean

_ARITHMETIC = frozenset("+-*/^")
_ORDER = frozenset({"<", "<=", ">", ">="})
_EQUALITY = frozenset({"==", "!="})
_LOGIC = frozenset({"&&", "||"})
_LARGEST_TUPLE = 1000  # the largest number of items of a tuple, with the items of inner tuples
_NUMBERS = {t.INTEGER, t.SCALAR}


Calls = Mapping[str, Sequence[s.Invocation]]  # invocations by the name of the operation


@dataclass
class ExpressionTypes:
    """Infers the types of the expressions in the body of a fragment, or of the graph.

    `fragment` is None for the graph. `types` has the types of the names that are assigned so far.
    Errors are collected in `errors`.
    """

    scope: Scope
    source: Source
    provisional: bool
    errors: list[NnefError]
    fragment: s.Fragment | None
    types: Mapping[str, t.Type]
    body: Sequence[s.Assignment] = ()

    def __post_init__(self) -> None:
        self.calls: defaultdict[str, list[s.Invocation]] = defaultdict(list)
        self._loops: dict[str, t.Type] = {}
        self._undefined: set[str] = set()
        # Result types of invocations without errors. The keys consist of the operation and the
        # types of its arguments.
        self._results: dict[object, t.Type] = {}
        self._tuples: dict[tuple[t.Type, ...], t.TupleOf] = {}

    def fits(self, actual: t.Type, formal: t.Type) -> bool:
        """Tell whether the type `actual` fits the declared type `formal`, as `types.fits` does.

        In documents of 1.0 provisional, integers fit scalars.
        """
        return t.fits(actual, formal, mixed=self.provisional)

    def shown(self, formal: t.Type) -> str:
        """Return a declared type in the form that messages show."""
        return str(formal)

    def _report_error(self, message: str, node: s.SyntaxNode, hint: str = "") -> t.Type:
        self.scope.meter.spend(ERROR_STEPS + len(message) // LETTERS_PER_STEP, "the text")
        span = s.span_in(self.source, node)
        self.errors.append(SemanticError(message, span=span, hint=hint))
        return t.ANY

    def type_of(self, expression: s.Expression) -> t.Type:
        """Return the type of an expression.

        If the expression has an error, report the error and return `ANY`.
        """
        match expression:
            case s.Literal(value=value):
                return t.LITERALS[value.__class__]
            case s.Identifier(name=name):
                type = self._loops.get(name) or self.types.get(name)
                if isinstance(type, t.Tensor):
                    return type
                return self._counted(type) if type else self._report_undefined(expression)
            case s.Array(items=items):
                return self._array(items)
            case s.Tuple():
                return self._tuple(expression)
            case s.Invocation():
                return self._invocation(expression)
            case s.Unary(operator=operator, operand=operand):
                type = self.type_of(operand)
                result = _unary(operator, type)
                if result is not None:
                    return result
                message = f"operator '{operator}' does not take a value of type {type}"
                return self._report_error(message, expression)
            case s.Binary():
                return self._binary(expression)
            case s.Select():
                return self._select(expression)
            case s.Subscript():
                return self._subscript(expression)
            case s.Subrange():
                return self._subrange(expression)
            case s.Comprehension():
                return self._comprehension(expression)
            case s.Builtin(function=function, argument=argument):
                return self._builtin(function, self.type_of(argument), expression)

    def _tuple(self, expression: s.Tuple) -> t.Type:
        types = tuple([self.type_of(item) for item in expression.items])
        type = self._tuples.get(types)
        if type is None:
            type = self._tuples[types] = t.TupleOf(types)
        if type.size <= _LARGEST_TUPLE:  # tuples of names can grow exponentially
            return type
        message = f"tuples within tuples have over {_LARGEST_TUPLE} items here"
        return self._report_error(message, expression)

    def _select(self, expression: s.Select) -> t.Type:
        self._expect(expression.condition, t.LOGICAL, "the condition of 'if'")
        left_type = self.type_of(expression.true_value)
        right_type = self.type_of(expression.false_value)
        type = self._common(left_type, right_type)
        if type is not None:
            return type
        message = f"the two sides of 'if' have types {left_type} and {right_type}"
        return self._report_error(message, expression)

    def _subrange(self, expression: s.Subrange) -> t.Type:
        for bound in (expression.begin, expression.end):
            if bound is not None:
                self._expect(bound, t.INTEGER, "a bound of a range")
        type = self.type_of(expression.sequence)
        if isinstance(type, t.ArrayOf | t.Anything) or type == t.STRING:
            return type
        return self._report_error(f"a value of type {type} has no ranges", expression)

    def _counted(self, type: t.Type) -> t.Type:
        """Return `type` after counting the steps of the meter that comparing a large type takes."""
        if isinstance(type, t.TupleOf | t.ArrayOf):
            self.scope.meter.spend(t.weight(type), "the text")
        return type

    def _report_undefined(self, node: s.Identifier) -> t.Type:
        """Report a name that nothing defines, and return `ANY`. Only its first use is reported."""
        if node.name not in self._undefined:
            self._undefined.add(node.name)
            self._report_error(
                f"'{node.name}' is not defined here", node, self.how_to_define(node.name)
            )
        return t.ANY

    def how_to_define(self, name: str) -> str:
        """Return a hint that says how to define an undefined name."""
        if name in self._targets:
            return "it is assigned later: a name must be assigned before it is used"
        meter = self.scope.meter
        hint = did_you_mean(name, self.types, self._loops, meter=meter, most=1, cutoff=0.7)
        if hint:
            return hint
        if self.fragment:
            return "assign it before this, or make it a parameter"
        return "assign it before this"

    def _common(self, a: t.Type, b: t.Type) -> t.Type | None:
        """Return the type that the types `a` and `b` have in common, as `types.common` does.

        In documents of 1.0 provisional, the common type of an integer and a scalar is a scalar.
        """
        mixed = self.provisional and {a, b} == _NUMBERS
        return t.SCALAR if mixed else t.common(a, b)

    @cached_property
    def _targets(self) -> Set[str]:
        """Return all names that the body assigns."""
        return {i.name for a in self.body for i in s.identifiers(a.target)}

    def _expect(self, expression: s.Expression, expected: t.Type, title: str) -> None:
        """Report an error if an expression does not have the type `expected`.

        `title` names the expression in the error.
        """
        actual = self.type_of(expression)
        if not t.fits(actual, expected) or isinstance(actual, t.Tensor):
            self._report_error(f"{title} must be of type {expected}, this is {actual}", expression)

    def _array(self, items: Sequence[s.Expression]) -> t.Type:
        item: t.Type = t.ANY
        for position, expression in enumerate(items):
            if isinstance(expression, s.Literal):  # most items are literals
                type = t.LITERALS[expression.value.__class__]
            else:
                type = self.type_of(expression)
            if type is item or type == item:
                continue
            unified = self._common(item, type)
            if unified is None:
                message = f"item {position} has type {type}, the items before it {item}"
                return self._report_error(message, expression)
            item = unified
        return t.ArrayOf(item)

    def _binary(self, node: s.Binary) -> t.Type:
        operator = node.operator
        left = self.type_of(node.left)
        right = self.type_of(node.right)
        are_mixed = {left, right} == _NUMBERS
        if are_mixed and self.provisional:
            left = right = t.SCALAR
        if isinstance(left, t.Anything) or isinstance(right, t.Anything):
            return t.LOGICAL if operator == "in" else t.ANY
        hint = ""
        if isinstance(left, t.Tensor) or isinstance(right, t.Tensor):
            item = "logical" if operator in _LOGIC else "scalar"
            fit = self.fits(left, t.Tensor(item)) and self.fits(right, t.Tensor(item))
            if operator != "in" and fit:
                result_item = "scalar" if operator in _ARITHMETIC else "logical"
                return t.Tensor(result_item)
            if t.INTEGER in (left, right):
                hint = "write an integer with a point to use it with a tensor"
        else:
            result = _binary(operator, left, right)
            if result is not None:
                return result
            if are_mixed:
                hint = "integers and scalars do not mix: write scalar(...) or a number with a point"
        message = f"operator '{operator}' does not take types {left} and {right}"
        return self._report_error(message, node, hint)

    def _subscript(self, node: s.Subscript) -> t.Type:
        type = self.type_of(node.sequence)
        if isinstance(type, t.TupleOf):
            match node.index:
                case s.Literal(value=int(index)) if 0 <= index < len(type.items):
                    return type.items[index]
                case _:
                    last = len(type.items) - 1
                    message = f"the index into a tuple must be a literal from 0 to {last}"
                    return self._report_error(message, node)
        item = _item(type)
        if item is None:
            return self._report_error(f"a value of type {type} has no items", node)
        self._expect(node.index, t.INTEGER, "an index")
        return item

    def _comprehension(self, node: s.Comprehension) -> t.Type:
        bound: dict[str, t.Type] = {}
        for loop in node.loops:
            type = self.type_of(loop.iterable)
            item = _item(type)
            if item is None:
                item = self._report_error(
                    f"a value of type {type} cannot be iterated", loop.iterable
                )
            if loop.name in self.types or loop.name in self._loops or loop.name in bound:
                self._report_error(
                    f"'{loop.name}' is already defined", loop, "give the loop another name"
                )
            bound[loop.name] = item
        hidden = {name: self._loops[name] for name in bound if name in self._loops}
        self._loops |= bound
        if node.condition is not None:
            self._expect(node.condition, t.LOGICAL, "the condition of a comprehension")
        item = self.type_of(node.item)
        for name in bound:
            del self._loops[name]
        self._loops |= hidden
        return t.ArrayOf(item)

    def _builtin(self, function: str, type: t.Type, node: s.SyntaxNode) -> t.Type:
        match function:
            case "shape_of":
                takes = "a tensor"
                fits = isinstance(type, t.Tensor) or t.fits(type, t.TENSOR)
            case "length_of" | "range_of":
                takes = "an array or a string"
                fits = isinstance(type, t.ArrayOf) or type == t.STRING
            case _:
                takes = "a primitive value"
                fits = isinstance(type, t.Primitive)
        if not fits and not isinstance(type, t.Anything):
            return self._report_error(f"'{function}' takes {takes}, this is {type}", node)
        return _BUILTIN_RESULTS[function]

    def _invocation(self, node: s.Invocation) -> t.Type:
        self.calls[node.operation].append(node)
        fragment = self.scope.lookup(node.operation, self.fragment)
        if fragment is None:
            for argument in node.arguments:
                self.type_of(argument.value)
            return t.ANY
        if node.operation == "external" and self.fragment is not None:
            hint = "pass the tensor as an argument"
            self._report_error("'external' is not allowed in a fragment", node, hint)
        try:
            form = self.scope.form(fragment, node)
        except InvalidInvocation as error:
            for argument in node.arguments:
                self.type_of(argument.value)
            return self._report_error(error.message, error.node, error.hint)
        arguments = node.arguments
        types = [(name, self.type_of(arguments[at].value)) for name, at in form.positions.items()]
        key = (node.operation, node.generic, *types)
        result = self._results.get(key)
        if result is None:
            count = len(self.errors)
            result = self._result(fragment, node, form.positions, dict(types))
            if len(self.errors) == count:
                self._results[key] = result
        return result if isinstance(result, t.Tensor) else self._counted(result)

    def _result(
        self,
        fragment: s.Fragment,
        node: s.Invocation,
        positions: Mapping[str, int],
        types: Mapping[str, t.Type],
    ) -> t.Type:
        """Return the type of the result of an invocation, and report arguments of wrong types.

        `positions` and `types` have the positions and the types of the arguments, by parameter.
        Several results have the type of a tuple.
        """
        generic = self._generic(fragment, node, types)
        for parameter in fragment.parameters:
            if parameter.name not in types:
                continue
            actual, formal = types[parameter.name], parameter.type
            concrete = t.substitute(formal, generic or "scalar")
            if generic is not None:
                formal = concrete
            if not self.fits(actual, concrete):
                name = f"'{parameter.name}' of '{fragment.name}'"
                self._report_error(
                    f"{name} must be of type {self.shown(formal)}, this is {actual}",
                    node.arguments[positions[parameter.name]].value,
                    self.how_to_write(formal, actual),
                )
        results = [t.substitute(result.type, generic) for result in fragment.results]
        if any(t.holds(result, t.Tensor("string")) for result in results):
            self._report_error("a tensor cannot hold strings", node)
            results = [t.ANY] * len(results)
        return results[0] if len(results) == 1 else t.TupleOf(tuple(results))

    def how_to_write(self, formal: t.Type, actual: t.Type) -> str:
        """Return a hint how to write an argument of type `actual` as the type `formal` needs it.

        Return "" if there is no hint.
        """
        match formal, actual:
            case _, t.Primitive("integer") if t.fits(t.SCALAR, formal):
                return "write the number with a point, as in 2.0"
            case t.ArrayOf(t.TupleOf()), t.ArrayOf():
                return "write a pair for each dimension, as in [(0,0), (1,1)]"
            case t.ArrayOf(), t.TupleOf():
                return "write an array with brackets, as in [1, 2]"
            case _:
                return ""

    def _generic(
        self, fragment: s.Fragment, node: s.Invocation, types: Mapping[str, t.Type]
    ) -> str | None:
        """Return the type that `?` stands for in an invocation.

        The type is the generic argument, such as `<scalar>`. If there is none, it is deduced from
        the types of the arguments. If that fails, it is the default that the fragment declares.
        Return None if the fragment is not generic.
        """
        if node.generic is not None:
            if not fragment.generic:
                self._report_error(
                    f"'{fragment.name}' is not generic, it takes no <{node.generic}>", node
                )
            is_within_generic = self.fragment is not None and self.fragment.generic
            if node.generic == "?" and not is_within_generic:
                self._report_error("'?' stands for nothing here", node)
            return node.generic
        if not fragment.generic:
            return None
        for parameter in fragment.parameters:
            if parameter.name in types:
                deduced = t.deduce(types[parameter.name], parameter.type)
                if deduced:
                    is_integer = self.provisional and types[parameter.name] == t.INTEGER
                    is_for_tensor = t.has_tensor(parameter.type)
                    return "scalar" if is_integer and is_for_tensor else deduced
        leaves = t.GENERIC, t.Tensor("?")
        is_generic = any(t.holds(p.type, *leaves) for p in fragment.parameters)
        if fragment.generic_default is None and not is_generic:
            name = fragment.name
            hint = f"write {name}<scalar>(...), {name}<integer>(...) or {name}<logical>(...)"
            message = f"the arguments of '{name}' do not tell what its '?' stands for"
            self._report_error(message, node, hint)
        return fragment.generic_default


def _item(type: t.Type) -> t.Type | None:
    """Return the type of the items of an array or string, or None for other types."""
    if isinstance(type, t.ArrayOf):
        return type.item
    return type if type in (t.STRING, t.ANY) else None


def _unary(operator: str, type: t.Type) -> t.Type | None:
    """Return the type of the result of a unary operator on an operand of type `type`.

    Return None if the operator does not take an operand of this type.
    """
    tensor_item = "logical" if operator == "!" else "scalar"
    primitives = ("logical",) if operator == "!" else ("scalar", "integer")
    match type:
        case t.Tensor(item) if item is None or item == tensor_item:
            return t.Tensor(tensor_item)
        case t.Primitive(name) if name in primitives:
            return type
        case _:
            return type if type == t.ANY else None


def _binary(operator: str, left: t.Type, right: t.Type) -> t.Type | None:
    """Return the type of the result of a binary operator on operands that are not tensors.

    Return None if the operator does not take operands of these types.
    """
    match operator, left, right:
        case "+", t.ArrayOf(), t.ArrayOf():
            return t.common(left, right)
        case "*", (t.ArrayOf() | t.Primitive("string")), t.Primitive("integer"):
            return left
        case "+", t.Primitive("string"), t.Primitive("string"):
            return t.STRING
        case "in", _, t.ArrayOf(item):
            return t.LOGICAL if t.common(left, item) else None
        case _, t.Primitive("scalar" | "integer"), t.Primitive() if left == right:
            if operator in _ARITHMETIC:
                return left
            return t.LOGICAL if operator in _ORDER | _EQUALITY else None
        case _, t.Primitive("logical"), t.Primitive("logical") if operator in _LOGIC:
            return t.LOGICAL
        case _:
            return t.LOGICAL if operator in _EQUALITY and t.common(left, right) else None


_BUILTIN_RESULTS: dict[str, t.Type] = {
    **dict.fromkeys(("shape_of", "range_of"), t.ArrayOf(t.INTEGER)),
    **dict.fromkeys(("length_of", "integer", "extent"), t.INTEGER),
    "scalar": t.SCALAR,
    "logical": t.LOGICAL,
    "string": t.STRING,
}
