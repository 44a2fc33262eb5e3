"""Infers the types of expressions (spec 3.3.2, 3.3.3), and reports invalid expressions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from lowering.location import Source
from nnef_jax.errors import NnefError, SemanticError
from nnef_jax.formats.nnef.scope import Scope
from nnef_jax.formats.syntax import tree
from nnef_jax.formats.syntax import types as t
from nnef_jax.formats.syntax.invocation import InvalidInvocation
from nnef_jax.limits import ERROR_STEPS, LETTERS_PER_STEP
from nnef_jax.wording.similar import did_you_mean

_ARITHMETIC = frozenset("+-*/^")
_ORDER = frozenset({"<", "<=", ">", ">="})
_EQUALITY = frozenset({"==", "!="})
_LOGIC = frozenset({"&&", "||"})
_LARGEST_TUPLE = 1000  # the largest number of items of a tuple, including items of inner tuples
_INTEGER_AND_SCALAR = {t.INTEGER, t.SCALAR}

# Maps names of operations to their invocations.
Calls = Mapping[str, Sequence[tree.Invocation]]


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
    fragment: tree.Fragment | None
    types: Mapping[str, t.Type]
    body: Sequence[tree.Assignment] = ()

    def __post_init__(self) -> None:
        self.calls: defaultdict[str, list[tree.Invocation]] = defaultdict(list)
        self._loops: dict[str, t.Type] = {}
        self._undefined: set[str] = set()
        # The result types of invocations without errors. A key has the operation, the generic
        # argument, and the types of the arguments.
        self._results: dict[object, t.Type] = {}
        self._tuples: dict[tuple[t.Type, ...], t.TupleOf] = {}

    def fits(self, actual: t.Type, formal: t.Type) -> bool:
        """Tell whether the type `actual` fits `formal`. Integers fit scalars in 1.0 provisional."""
        return t.fits(actual, formal, mixed=self.provisional)

    def shown(self, formal: t.Type) -> str:
        """Return a declared type in the form that messages show."""
        return str(formal)

    def _report_error(self, message: str, node: tree.SyntaxNode, hint: str = "") -> t.Type:
        """Append to `errors` an error at the place of `node`, and return `ANY`."""
        self.scope.meter.spend(ERROR_STEPS + len(message) // LETTERS_PER_STEP, "the text")
        span = tree.span_in(self.source, node)
        self.errors.append(SemanticError(message, span=span, hint=hint))
        return t.ANY

    def type_of(self, expression: tree.Expression) -> t.Type:
        """Return the type of an expression.

        If the expression has an error, report the error and return `ANY`.
        """
        match expression:
            case tree.Literal(value=value):
                return t.LITERALS[value.__class__]
            case tree.Identifier(name=name):
                type = self._loops.get(name) or self.types.get(name)
                if isinstance(type, t.Tensor):
                    return type
                return self._metered(type) if type else self._report_undefined(expression)
            case tree.Array(items=items):
                return self._array(items)
            case tree.Tuple():
                return self._tuple(expression)
            case tree.Invocation():
                return self._invocation(expression)
            case tree.Unary(operator=operator, operand=operand):
                type = self.type_of(operand)
                result = _result_of_unary(operator, type)
                if result is not None:
                    return result
                message = f"operator '{operator}' does not take a value of type {type}"
                return self._report_error(message, expression)
            case tree.Binary():
                return self._binary(expression)
            case tree.Select():
                return self._select(expression)
            case tree.Subscript():
                return self._subscript(expression)
            case tree.Subrange():
                return self._subrange(expression)
            case tree.Comprehension():
                return self._comprehension(expression)
            case tree.Builtin(function=function, argument=argument):
                return self._builtin(function, self.type_of(argument), expression)

    def _tuple(self, expression: tree.Tuple) -> t.Type:
        """Return the type of a tuple. Tuples with equal item types share one type object."""
        types = tuple([self.type_of(item) for item in expression.items])
        type = self._tuples.get(types)
        if type is None:
            type = t.TupleOf(types)
            self._tuples[types] = type
        # A tuple may contain an earlier tuple twice, so the sizes can grow exponentially.
        if type.size <= _LARGEST_TUPLE:
            return type
        message = f"tuples within tuples have over {_LARGEST_TUPLE} items here"
        return self._report_error(message, expression)

    def _select(self, expression: tree.Select) -> t.Type:
        """Return the type of the expression `a if condition else b`."""
        self._expect(expression.condition, t.LOGICAL, "the condition of 'if'")
        left_type = self.type_of(expression.true_value)
        right_type = self.type_of(expression.false_value)
        type = self._common(left_type, right_type)
        if type is not None:
            return type
        message = f"the two sides of 'if' have types {left_type} and {right_type}"
        return self._report_error(message, expression)

    def _subrange(self, expression: tree.Subrange) -> t.Type:
        """Return the type of a range of items, such as `x[1:3]`."""
        for bound in (expression.begin, expression.end):
            if bound is not None:
                self._expect(bound, t.INTEGER, "a bound of a range")
        type = self.type_of(expression.sequence)
        if isinstance(type, t.ArrayOf | t.Anything) or type == t.STRING:
            return type
        return self._report_error(f"a value of type {type} has no ranges", expression)

    def _metered(self, type: t.Type) -> t.Type:
        """Return `type` unchanged. The meter counts steps for a later comparison of the type."""
        if isinstance(type, t.TupleOf | t.ArrayOf):
            self.scope.meter.spend(t.weight(type), "the text")
        return type

    def _report_undefined(self, node: tree.Identifier) -> t.Type:
        """Report the first use of a name that nothing defines, and return `ANY`."""
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
        """Return the type that the types `a` and `b` have in common; see `types.common`.

        In documents of 1.0 provisional, the common type of an integer and a scalar is a scalar.
        """
        becomes_scalar = self.provisional and {a, b} == _INTEGER_AND_SCALAR
        return t.SCALAR if becomes_scalar else t.common(a, b)

    @cached_property
    def _targets(self) -> Set[str]:
        """Return all names that the body assigns."""
        names: set[str] = set()
        for assignment in self.body:
            names |= {identifier.name for identifier in tree.identifiers(assignment.target)}
        return names

    def _expect(self, expression: tree.Expression, expected: t.Type, title: str) -> None:
        """Report an error if an expression does not have the type `expected`.

        `title` names the expression in the error.
        """
        actual = self.type_of(expression)
        is_tensor = isinstance(actual, t.Tensor)  # A tensor has no value while the text is read.
        if is_tensor or not t.fits(actual, expected):
            self._report_error(f"{title} must be of type {expected}, this is {actual}", expression)

    def _array(self, items: Sequence[tree.Expression]) -> t.Type:
        """Return the type of an array, whose items must have a common type."""
        item_type: t.Type = t.ANY
        for position, item in enumerate(items):
            if isinstance(item, tree.Literal):  # Most items are literals, which need no call.
                type = t.LITERALS[item.value.__class__]
            else:
                type = self.type_of(item)
            if type is item_type or type == item_type:
                continue
            common_type = self._common(item_type, type)
            if common_type is None:
                message = f"item {position} has type {type}, the items before it {item_type}"
                return self._report_error(message, item)
            item_type = common_type
        return t.ArrayOf(item_type)

    def _binary(self, node: tree.Binary) -> t.Type:
        """Return the type of the result of a binary operator."""
        operator = node.operator
        left = self.type_of(node.left)
        right = self.type_of(node.right)
        are_mixed = {left, right} == _INTEGER_AND_SCALAR
        if are_mixed and self.provisional:  # The integer becomes a scalar.
            left = t.SCALAR
            right = t.SCALAR
        if isinstance(left, t.Anything) or isinstance(right, t.Anything):
            return t.LOGICAL if operator == "in" else t.ANY
        has_tensor = isinstance(left, t.Tensor) or isinstance(right, t.Tensor)
        if has_tensor:
            result = self._binary_of_tensors(operator, left, right)
        else:
            result = _result_of_binary(operator, left, right)
        if result is not None:
            return result
        hint = ""
        if has_tensor and t.INTEGER in (left, right):
            hint = "write an integer with a point to use it with a tensor"
        elif are_mixed:
            hint = "integers and scalars do not mix: write scalar(...) or a number with a point"
        message = f"operator '{operator}' does not take types {left} and {right}"
        return self._report_error(message, node, hint)

    def _binary_of_tensors(self, operator: str, left: t.Type, right: t.Type) -> t.Type | None:
        """Return the type of the result of a binary operator with a tensor among its operands.

        Return None if the operator does not take operands of these types.
        """
        due_item = "logical" if operator in _LOGIC else "scalar"
        due = t.Tensor(due_item)
        operands_fit = self.fits(left, due) and self.fits(right, due)
        if operator == "in" or not operands_fit:
            return None
        result_item = "scalar" if operator in _ARITHMETIC else "logical"
        return t.Tensor(result_item)

    def _subscript(self, node: tree.Subscript) -> t.Type:
        """Return the type of an item of a tuple, an array or a string."""
        type = self.type_of(node.sequence)
        if isinstance(type, t.TupleOf):
            # The items of a tuple may have different types, so the index must be a literal.
            match node.index:
                case tree.Literal(value=int(index)) if 0 <= index < len(type.items):
                    return type.items[index]
                case _:
                    last = len(type.items) - 1
                    message = f"the index into a tuple must be a literal from 0 to {last}"
                    return self._report_error(message, node)
        item_type = _type_of_items(type)
        if item_type is None:
            return self._report_error(f"a value of type {type} has no items", node)
        self._expect(node.index, t.INTEGER, "an index")
        return item_type

    def _comprehension(self, node: tree.Comprehension) -> t.Type:
        """Return the type of the array that a comprehension makes."""
        loop_types: dict[str, t.Type] = {}
        for loop in node.loops:
            type = self.type_of(loop.iterable)
            item_type = _type_of_items(type)
            if item_type is None:
                message = f"a value of type {type} cannot be iterated"
                item_type = self._report_error(message, loop.iterable)
            types_of_defined_names = (self.types, self._loops, loop_types)
            if any(loop.name in types for types in types_of_defined_names):
                self._report_error(
                    f"'{loop.name}' is already defined", loop, "give the loop another name"
                )
            loop_types[loop.name] = item_type
        outer_loops = dict(self._loops)
        self._loops |= loop_types
        if node.condition is not None:
            self._expect(node.condition, t.LOGICAL, "the condition of a comprehension")
        result_item_type = self.type_of(node.item)
        self._loops = outer_loops
        return t.ArrayOf(result_item_type)

    def _builtin(self, function: str, type: t.Type, node: tree.SyntaxNode) -> t.Type:
        """Return the type of the result of a built-in function on an argument of type `type`."""
        match function:
            case "shape_of":
                due = "a tensor"
                fits = isinstance(type, t.Tensor) or t.fits(type, t.TENSOR)
            case "length_of" | "range_of":
                due = "an array or a string"
                fits = isinstance(type, t.ArrayOf) or type == t.STRING
            case _:
                due = "a primitive value"
                fits = isinstance(type, t.Primitive)
        if fits or isinstance(type, t.Anything):
            return _BUILTIN_RESULTS[function]
        return self._report_error(f"'{function}' takes {due}, this is {type}", node)

    def _invocation(self, node: tree.Invocation) -> t.Type:
        """Return the type of the result of an invocation: a tuple type for several results."""
        self.calls[node.operation].append(node)
        fragment = self.scope.lookup(node.operation, self.fragment)
        if fragment is None:
            # The operation is reported later, when the checker reads `calls`.
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
        types: dict[str, t.Type] = {}  # maps parameters to types of arguments
        for name, position in form.positions.items():
            types[name] = self.type_of(node.arguments[position].value)
        key = (node.operation, node.generic, *types.items())
        result = self._results.get(key)
        if result is None:
            error_count = len(self.errors)
            result = self._result(fragment, node, form.positions, types)
            has_new_errors = len(self.errors) > error_count
            if not has_new_errors:
                self._results[key] = result
        return result if isinstance(result, t.Tensor) else self._metered(result)

    def _result(
        self,
        fragment: tree.Fragment,
        node: tree.Invocation,
        positions: Mapping[str, int],
        types: Mapping[str, t.Type],
    ) -> t.Type:
        """Return the type of the result of an invocation, and report arguments of wrong types.

        `positions` and `types` map parameters to the positions and the types of their arguments.
        Several results have the type of a tuple.
        """
        generic = self._generic(fragment, node, types)
        for parameter in fragment.parameters:
            actual = types.get(parameter.name)
            if actual is None:
                continue
            # If nothing says what `?` stands for, it stands for a scalar here.
            concrete = t.substitute(parameter.type, generic or "scalar")
            if self.fits(actual, concrete):
                continue
            due = parameter.type if generic is None else concrete  # the type in the message
            title = f"'{parameter.name}' of '{fragment.name}'"
            message = f"{title} must be of type {self.shown(due)}, this is {actual}"
            argument = node.arguments[positions[parameter.name]]
            self._report_error(message, argument.value, self.how_to_write(due, actual))
        results = [t.substitute(result.type, generic) for result in fragment.results]
        if any(t.holds(result, t.Tensor("string")) for result in results):
            self._report_error("a tensor cannot hold strings", node)
            results = [t.ANY] * len(results)
        return results[0] if len(results) == 1 else t.TupleOf(tuple(results))

    def how_to_write(self, formal: t.Type, actual: t.Type) -> str:
        """Return a hint how to rewrite an argument for the declared type `formal`, or "".

        `actual` is the type of the argument as it is written.
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
        self, fragment: tree.Fragment, node: tree.Invocation, types: Mapping[str, t.Type]
    ) -> str | None:
        """Return the type that `?` stands for in an invocation.

        The type is the generic argument, such as `<scalar>`. Without a generic argument, the type
        is deduced from the types of the arguments. If it cannot be deduced, it is the fragment's
        default for `?`. Return None if the fragment is not generic, or has no default.
        """
        if node.generic is not None:
            self._check_generic_argument(fragment, node)
            return node.generic
        if not fragment.generic:
            return None
        deduced = self._deduced_generic(fragment, types)
        if deduced is not None:
            return deduced
        generic_types = (t.GENERIC, t.Tensor("?"))
        has_generic_parameter = any(t.holds(p.type, *generic_types) for p in fragment.parameters)
        if fragment.generic_default is None and not has_generic_parameter:
            name = fragment.name
            hint = f"write {name}<scalar>(...), {name}<integer>(...) or {name}<logical>(...)"
            message = f"the arguments of '{name}' do not tell what its '?' stands for"
            self._report_error(message, node, hint)
        return fragment.generic_default

    def _check_generic_argument(self, fragment: tree.Fragment, node: tree.Invocation) -> None:
        """Report an invocation whose generic argument, such as `<scalar>`, is not allowed."""
        if not fragment.generic:
            self._report_error(
                f"'{fragment.name}' is not generic, it takes no <{node.generic}>", node
            )
        is_within_generic = self.fragment is not None and self.fragment.generic
        if node.generic == "?" and not is_within_generic:
            self._report_error("'?' stands for nothing here", node)

    def _deduced_generic(self, fragment: tree.Fragment, types: Mapping[str, t.Type]) -> str | None:
        """Deduce the type of `?` from the first argument whose parameter has `?` in its type.

        If there is no such argument, return None. `types` maps a parameter's name to its argument's
        type.
        """
        for parameter in fragment.parameters:
            if parameter.name not in types:
                continue
            type = types[parameter.name]
            deduced = t.deduce(type, parameter.type)
            if deduced:
                # In a provisional text, an integer may stand for a tensor of scalars.
                is_provisional_integer = self.provisional and type == t.INTEGER
                is_for_tensor = t.has_tensor(parameter.type)
                return "scalar" if is_provisional_integer and is_for_tensor else deduced
        return None


def _type_of_items(type: t.Type) -> t.Type | None:
    """Return the type of the items of an array or string, or None for other types."""
    if isinstance(type, t.ArrayOf):
        return type.item
    return type if type in (t.STRING, t.ANY) else None


def _result_of_unary(operator: str, type: t.Type) -> t.Type | None:
    """Return the type of the result of a unary operator on an operand of type `type`.

    Return None if the operator does not take an operand of this type.
    """
    if type == t.ANY:
        return type
    is_negation = operator == "!"
    tensor_item = "logical" if is_negation else "scalar"
    primitives = ("logical",) if is_negation else ("scalar", "integer")
    match type:
        case t.Tensor(item) if item is None or item == tensor_item:
            return t.Tensor(tensor_item)
        case t.Primitive(name) if name in primitives:
            return type
        case _:
            return None


def _result_of_binary(operator: str, left: t.Type, right: t.Type) -> t.Type | None:
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
