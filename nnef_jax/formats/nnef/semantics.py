"""Checks the rules that need no shapes (spec 3.3): declarations, names, invocations and types.

`check` reports all errors of a document at once. An expression with an error has the type `ANY`, so
that a single mistake is reported only once. `refuse_unsupported` then refuses operations that have
no rule and cannot be expanded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from lowering.location import Source, Span
from nnef_jax.errors import NnefError, SemanticError, raise_all
from nnef_jax.formats.nnef.expressions import Calls, ExpressionTypes
from nnef_jax.formats.nnef.scope import Scope
from nnef_jax.formats.syntax import tree
from nnef_jax.formats.syntax import types as t
from nnef_jax.formats.syntax.invocation import refuse
from nnef_jax.formats.syntax.standard import INTRODUCING
from nnef_jax.limits import LETTERS_PER_STEP, within_memory


def check(scope: Scope, *, outline: bool = False) -> Calls:
    """Check a document; return a dict from operations to their invocations in the graph's body.

    Raises a SemanticError that contains all errors of the document. If `outline`, calls of
    operations that nothing declares are allowed, unless there are other errors.
    """
    checker = _Checker(scope)
    with within_memory("the text"):  # A large limit of nesting may exhaust the stack.
        calls = checker.run()
        allows_unknown = outline and not checker.errors
        if not allows_unknown:
            checker.unknown_operations()
    raise_all(sorted(checker.errors, key=_offset))
    return calls


def _offset(error: NnefError) -> int:
    """Return the offset of an error in the text, or 0 if the error has no place."""
    return error.span.offset if error.span else 0


class _Checker:
    """Checks a document, and collects its errors and the operations that nothing declares."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.document = scope.document
        self.errors: list[NnefError] = []
        # Maps operations that nothing declares to their invocations.
        self.unknown: defaultdict[str, list[tree.Invocation]] = defaultdict(list)
        source = self.document.source
        provisional = self.document.provisional
        self.types = partial(ExpressionTypes, scope, source, provisional, self.errors)

    def run(self) -> Calls:
        """Check the document; return a dict from operations to invocations in the graph's body."""
        self._fragment_names()
        for fragment in self.document.fragments:
            self._fragment(fragment)
        return self._graph(self.document.graph)

    def _report(self, message: str, node: tree.SyntaxNode, hint: str = "") -> None:
        """Append to `errors` an error at the place of `node`."""
        self.scope.meter.spend(len(message) // LETTERS_PER_STEP, "the text")
        span = tree.span_in(self.document.source, node)
        self.errors.append(SemanticError(message, span=span, hint=hint))

    # Declarations

    def _fragment_names(self) -> None:
        """Report fragments with the name of an operation of the standard or of another fragment."""
        first_by_name: dict[str, tree.Fragment] = {}
        for fragment in self.document.fragments:
            first = first_by_name.setdefault(fragment.name, fragment)
            if self.scope.is_taken(fragment.name):
                message = "is an operation of the standard, it cannot be defined again"
                hint = "give the fragment another name"
                self._report(f"'{fragment.name}' {message}", fragment, hint)
            elif first is not fragment:
                line, _ = self.document.source.position(first.offset)
                message = f"fragment '{fragment.name}' is already defined on line {line}"
                self._report(message, fragment)

    def _fragment(self, fragment: tree.Fragment) -> None:
        """Check the declaration of a fragment and its body."""
        for declared in _repeated([*fragment.parameters, *fragment.results]):
            self._report(f"'{declared.name}' is declared twice in '{fragment.name}'", declared)
        last_attribute: tree.FormalParameter | None = None
        for parameter in fragment.parameters:
            is_attribute = not t.has_tensor(parameter.type)
            if is_attribute:
                last_attribute = parameter
            elif last_attribute is not None and not self.document.provisional:
                self._report(
                    f"tensor '{parameter.name}' is declared after attribute "
                    f"'{last_attribute.name}'",
                    parameter,
                    hint="declare all tensors first: only they may be positional",
                )
            if parameter.default is not None:
                self._default(fragment, parameter, parameter.default)
        if fragment.body is None:
            return
        types = {parameter.name: parameter.type for parameter in fragment.parameters}
        results = {result.name: result.type for result in fragment.results}
        self._body(fragment.body, types, results, fragment)  # adds the assigned names to `types`
        for result in fragment.results:
            if result.name not in types:
                message = f"result '{result.name}' of '{fragment.name}' is never assigned"
                self._report(message, result)

    def _default(
        self, fragment: tree.Fragment, parameter: tree.FormalParameter, default: tree.Expression
    ) -> None:
        """Report a default that is not a literal of the type of the parameter."""
        if not tree.is_literal(default):
            self._report(f"the default of '{parameter.name}' is not a literal", default)
            return
        declared = parameter.type
        expressions = self.types(fragment=fragment, types={})
        actual = expressions.type_of(default)
        # In the declared type, the fragment's default for `?` takes the place of `?`.
        concrete = t.substitute(declared, fragment.generic_default)
        if not expressions.fits(actual, concrete):
            message = f"the default of '{parameter.name}' has type {actual}, declared is {declared}"
            self._report(message, default)

    # Bodies

    def _body(
        self,
        body: Sequence[tree.Assignment],
        types: dict[str, t.Type],
        results: Mapping[str, t.Type],
        fragment: tree.Fragment | None,
    ) -> Calls:
        """Check the assignments of a body in order; return a dict from operations to invocations.

        At first, `types` has the types of the parameters. The method adds the types of the names
        that are assigned. `results` has the declared types of the results. `fragment` is None for
        the graph's body.
        """
        parameters = types.keys() - results.keys()
        assigned: set[str] = set()
        expressions = self.types(fragment, types, body)
        for assignment in body:
            actual = expressions.type_of(assignment.value)
            for identifier, type in self._unpack(assignment.target, actual):
                name = identifier.name
                if name in parameters:
                    self._report(f"parameter '{name}' must not be assigned", identifier)
                elif name in assigned:
                    self._report(f"'{name}' is already assigned", identifier, "use another name")
                elif name in results and not expressions.fits(type, results[name]):
                    declared = f"result '{name}' is declared as {results[name]}"
                    self._report(f"{declared}, the assigned value is {type}", identifier)
                assigned.add(name)
                types[name] = results.get(name, type)
        for name, uses in expressions.calls.items():
            if self.scope.lookup(name, fragment) is None:
                self.unknown[name] += uses
        return expressions.calls

    def _unpack(
        self, target: tree.Expression, type: t.Type
    ) -> list[tuple[tree.Identifier, t.Type]]:
        """Return pairs (identifier, type of its value) for the target of an assignment.

        `type` is the type of the assigned value. If the target does not fit `type`, an error is
        reported, and the identifiers have the type `ANY`.
        """
        if isinstance(target, tree.Identifier):
            return [(target, type)]
        assert isinstance(target, tree.Array | tree.Tuple)
        count = len(target.items)
        types: Sequence[t.Type] = [t.ANY] * count
        match target, type:
            case _, t.Anything():
                pass
            case tree.Array(), t.ArrayOf(item):
                types = [item] * count
            case tree.Tuple(), t.TupleOf(items) if len(items) == count:
                types = items
            case tree.Tuple(), t.TupleOf(items):
                self._report(f"{len(items)} results cannot be assigned to {count} names", target)
            case _:
                self._report(f"a value of type {type} cannot be assigned to this target", target)
        unpacked: list[tuple[tree.Identifier, t.Type]] = []
        for item, item_type in zip(target.items, types, strict=True):
            unpacked += self._unpack(item, item_type)
        return unpacked

    # The graph

    def _graph(self, graph: tree.GraphDefinition) -> Calls:
        """Check the graph; return a dict from operations to invocations in the graph's body."""
        for kind, names in (("parameter", graph.parameters), ("result", graph.results)):
            for identifier in _repeated(names):
                message = f"{kind} '{identifier.name}' of the graph is declared twice"
                self._report(message, identifier)
        parameters = {parameter.name for parameter in graph.parameters}
        for result in graph.results:
            if result.name in parameters:
                message = f"'{result.name}' is a parameter of the graph and a result of it"
                advice = f"write y = copy({result.name}); and return y"
                self._report(message, result, f"names are unique in a declaration: {advice}")
        types: dict[str, t.Type] = {}
        calls = self._body(graph.body, types, results={}, fragment=None)
        for parameter in graph.parameters:
            if parameter.name not in types:
                hint = f"write {parameter.name} = external(shape = [...]);"
                message = f"graph parameter '{parameter.name}' is never assigned"
                self._report(message, parameter, hint)
        for result in graph.results:
            if result.name not in types:
                self._report(f"graph result '{result.name}' is never assigned", result)
        self._check_assignments(graph, types, calls)
        return calls

    def _check_assignments(
        self, graph: tree.GraphDefinition, types: Mapping[str, t.Type], calls: Calls
    ) -> None:
        """Report assignments of the graph that the specification does not allow (spec 3.3.1).

        Each name must stand for a tensor. `types` has the types of the names. Parameters and
        `external` belong together; see `_check_externals`.
        """
        for assignment in graph.body:
            for identifier in tree.identifiers(assignment.target):
                type = types[identifier.name]
                is_tensor = isinstance(type, t.Tensor) or t.fits(type, t.TENSOR)
                if not is_tensor:
                    rule = "in the graph every name stands for one tensor"
                    hint = "unpack tuples as (a, b) = ... and arrays as [a, b] = ..."
                    self._report(f"'{identifier.name}' has type {type}, {rule}", identifier, hint)
        self._check_externals(graph, calls)

    def _check_externals(self, graph: tree.GraphDefinition, calls: Calls) -> None:
        """Report parameters that `external` does not assign, and each misplaced `external`.

        An `external` is misplaced if it does not assign a parameter. `calls` maps operations to
        their invocations in the graph's body.
        """
        parameters = {parameter.name for parameter in graph.parameters}
        # The ids of `external` invocations that the last loop does not report.
        settled: set[int] = set()
        for assignment in graph.body:
            value = assignment.value
            is_external = isinstance(value, tree.Invocation) and value.operation == "external"
            if is_external:  # The `external` is valid, or the loop below reports one of the names.
                settled.add(id(value))
            for identifier in tree.identifiers(assignment.target):
                name = identifier.name
                is_parameter = name in parameters
                if is_external and not is_parameter:
                    message = "is assigned by 'external' but is not a parameter of the graph"
                    hint = f"add it: graph {graph.name}( ..., {name} ) -> ..."
                    self._report(f"'{name}' {message}", identifier, hint)
                elif is_parameter and not is_external:
                    # An `external` in the value would only repeat this error.
                    settled.update(map(id, tree.invocations([value])))
                    message = f"graph parameter '{name}' must be assigned by 'external'"
                    self._report(message, identifier)
        for node in calls.get("external", ()):
            if id(node) not in settled:
                hint = f"make it a parameter: graph {graph.name}( ..., name ) -> ..."
                self._report("'external' must be assigned to a parameter of the graph", node, hint)

    def unknown_operations(self) -> None:
        """Report the operations that nothing declares, each at its first use."""
        for name, uses in self.unknown.items():
            count = f", used {len(uses)} times" if len(uses) > 1 else ""
            hint = self.scope.similar(name)
            if not hint and name.startswith("tract_"):
                hint = "load(..., dialect='tract') reads a document of tract that does not say so"
            elif not hint:
                hint = "operations beyond the standard need a fragment that defines them"
            self._report(f"unknown operation '{name}'{count}", uses[0], hint)


_Named = tree.Identifier | tree.FormalParameter | tree.ResultDeclaration


def _repeated(declared: Sequence[_Named]) -> list[_Named]:
    """Return the nodes that have the name of an earlier node in the list."""
    names = set[str]()
    repeated: list[_Named] = []
    for node in declared:
        if node.name in names:
            repeated.append(node)
        names.add(node.name)
    return repeated


# Operations that cannot run


def calls_of(expressions: Iterable[tree.Expression]) -> Calls:
    """Return a dict from names of operations to their invocations in expressions."""
    calls: defaultdict[str, list[tree.Invocation]] = defaultdict(list)
    for node in tree.invocations(expressions):
        calls[node.operation].append(node)
    return calls


def refuse_unsupported(
    bodies: Iterable[tuple[Calls, Source]],
    scope: Scope,
    has_rule: Callable[[tree.Fragment], bool],
    is_atomic: Callable[[tree.Fragment], bool],
) -> None:
    """Raise UnsupportedError if a document needs operations that have no rule and no body.

    The arguments are as for `unsupported`.
    """
    uses = unsupported(bodies, scope, has_rule, is_atomic)

    def origin_and_hint(_: str) -> tuple[str, str]:
        return "", "give the operation a body, or a rule: rules=registry"

    refuse(uses, origin_and_hint)


def unsupported(
    bodies: Iterable[tuple[Calls, Source]],
    scope: Scope,
    has_rule: Callable[[tree.Fragment], bool],
    is_atomic: Callable[[tree.Fragment], bool],
) -> Mapping[str, Sequence[Span]]:
    """Return the operations that a document needs and that have no rule and no body.

    The result maps the name of an operation to the places of its calls.

    Args:
        bodies: pairs (invocations, source), one for each body in which the search begins. The
            search continues in the bodies of the fragments that these bodies call.
        scope: the declarations of the document.
        has_rule: tells whether a fragment has a rule.
        is_atomic: tells whether the body of a fragment is not evaluated.
    """
    uses: defaultdict[str, list[Span]] = defaultdict(list)
    visited: set[int] = set()
    pending: list[_Body] = []
    for calls, source in bodies:
        pending.append(_Body(fragment=None, calls=calls, source=source, span=None))
    sources = {body.source for body in pending}
    while pending:
        body = pending.pop()
        for operation, nodes in body.calls.items():
            fragment = scope.lookup(operation, body.fragment)
            if fragment is None or fragment.name in INTRODUCING or id(fragment) in visited:
                continue
            if fragment.body is None:
                if not has_rule(fragment):
                    spans = [body.span or tree.span_in(body.source, node) for node in nodes]
                    uses[fragment.name] += spans
            elif not is_atomic(fragment):
                visited.add(id(fragment))
                span = None
                is_from_library = fragment.source not in sources
                if is_from_library:
                    # A call in a library is reported at the call in the document that leads to it.
                    span = body.span or tree.span_in(body.source, nodes[0])
                calls = calls_of(assignment.value for assignment in fragment.body)
                pending.append(_Body(fragment, calls, fragment.source, span))
    return uses


class _Body(NamedTuple):
    """The body of a fragment, or of the graph if `fragment` is None, with the calls in it.

    If the fragment is from a library, `span` is the place of the document's call that leads to the
    fragment.
    """

    fragment: tree.Fragment | None
    calls: Calls
    source: Source
    span: Span | None
