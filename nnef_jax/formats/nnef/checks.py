"""The semantic rules that need no shapes (spec 3.3): declarations, names, invocations, types.

All errors of a document are found in one reading. The type of an expression that is wrong is `ANY`,
so that one mistake is reported once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from lowering.location import Source, Span
from nnef_jax.errors import NnefError, SemanticError, raise_all
from nnef_jax.formats.nnef.expressions import ExpressionTypes
from nnef_jax.formats.nnef.scope import Scope
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.types import (
    ANY,
    TENSOR,
    Anything,
    ArrayOf,
    Tensor,
    TupleOf,
    Type,
    fits,
    has_tensor,
    substitute,
)
from nnef_jax.limits import LETTERS_PER_STEP, within_memory


def check(document: s.Document, scope: Scope) -> None:
    """Raise the errors of a document, all at once (SemanticError with `others`)."""
    checker = _Checker(document, scope)
    with within_memory("the text"):  # with a nesting far above the default one
        checker.run()
    raise_all(sorted(checker.errors, key=lambda error: error.span.offset if error.span else 0))


class _Checker:
    def __init__(self, document: s.Document, scope: Scope) -> None:
        self.document = document
        self.scope = scope
        self.errors: list[NnefError] = []
        self.unknown: defaultdict[str, list[s.Invocation]] = defaultdict(list)

    def run(self) -> None:
        self._fragment_names()
        for fragment in self.document.fragments:
            self._fragment(fragment)
        self._graph(self.document.graph)
        self._unknown_operations()

    def _report(
        self, message: str, node: s.Node, hint: str = "", source: Source | None = None
    ) -> None:
        self.scope.meter.spend(len(message) // LETTERS_PER_STEP, "the text")
        span = s.span_in(source or self.document.source, node)
        self.errors.append(SemanticError(message, span=span, hint=hint))

    # Declarations

    def _fragment_names(self) -> None:
        seen: dict[str, s.Fragment] = {}
        for fragment in self.document.fragments:
            if self.scope.is_taken(fragment.name):
                self._report(
                    f"'{fragment.name}' is an operation of the standard, "
                    "it cannot be defined again",
                    fragment,
                    hint="give the fragment another name",
                )
            elif fragment.name in seen:
                line = self.document.source.position(seen[fragment.name].offset)[0]
                self._report(
                    f"fragment '{fragment.name}' is already defined on line {line}", fragment
                )
            seen.setdefault(fragment.name, fragment)

    def _fragment(self, fragment: s.Fragment) -> None:
        names: set[str] = set()
        attribute: s.Parameter | None = None
        for declared in (*fragment.parameters, *fragment.results):
            if declared.name in names:
                self._report(f"'{declared.name}' is declared twice in '{fragment.name}'", declared)
            names.add(declared.name)
        for parameter in fragment.parameters:
            if not has_tensor(parameter.type):
                attribute = parameter
            elif attribute is not None and not self.document.provisional:
                self._report(
                    f"tensor '{parameter.name}' is declared after attribute '{attribute.name}'",
                    parameter,
                    hint="declare all tensors first: only they may be positional",
                )
            if parameter.default is not None:
                self._default(fragment, parameter, parameter.default)
        if fragment.body is not None:
            types = {p.name: p.type for p in fragment.parameters}
            results = {r.name: r for r in fragment.results}
            assigned = self._body(
                fragment.body, types, {n: r.type for n, r in results.items()}, fragment
            )
            for name, result in results.items():
                if name not in assigned:
                    self._report(f"result '{name}' of '{fragment.name}' is never assigned", result)

    def _default(self, fragment: s.Fragment, parameter: s.Parameter, default: s.Expression) -> None:
        if not _is_literal(default):
            self._report(f"the default of '{parameter.name}' is not a literal", default)
            return
        expressions = ExpressionTypes(self.scope, fragment, {}, self.document.provisional)
        actual = expressions.of(default)
        self._report_all(expressions)
        if not expressions.fits(actual, substitute(parameter.type, fragment.generic_default)):
            self._report(
                f"the default of '{parameter.name}' has type {actual}, "
                f"declared is {parameter.type}",
                default,
            )

    # Bodies

    def _body(
        self,
        body: Sequence[s.Assignment],
        types: dict[str, Type],
        results: Mapping[str, Type],
        fragment: s.Fragment | None,
    ) -> set[str]:
        """Check the assignments in order; the names that they assign."""
        parameters = types.keys() - results.keys() if fragment else set[str]()
        assigned: set[str] = set()
        expressions = ExpressionTypes(self.scope, fragment, types, self.document.provisional)
        expressions.targets = {i.name for a in body for i in s.identifiers(a.target)}
        for assignment in body:
            actual = expressions.of(assignment.value)
            for identifier, type in self._unpack(assignment.target, actual):
                name = identifier.name
                if name in parameters:
                    self._report(f"parameter '{name}' must not be assigned", identifier)
                elif name in assigned:
                    self._report(f"'{name}' is already assigned", identifier, "use another name")
                elif name in results and not expressions.fits(type, results[name]):
                    self._report(
                        f"result '{name}' is declared as {results[name]}, "
                        f"what is assigned is {type}",
                        identifier,
                    )
                assigned.add(name)
                types[name] = results.get(name, type)
        self._report_all(expressions)
        for name, uses in expressions.unknown.items():
            self.unknown[name].extend(uses)
        return assigned

    def _report_all(self, expressions: ExpressionTypes) -> None:
        for error in expressions.errors:
            self._report(error.message, error.node, error.hint)

    def _unpack(self, target: s.Target, type: Type) -> list[tuple[s.Identifier, Type]]:
        """The identifiers of a target with the types that they get."""
        match target, type:
            case s.Identifier(), _:
                return [(target, type)]
            case ((s.Array(items=targets) | s.Tuple(items=targets)), Anything()):
                types: Sequence[Type] = [ANY] * len(targets)
            case s.Array(items=targets), ArrayOf(item):
                types = [item] * len(targets)
            case s.Tuple(items=targets), TupleOf(items):
                types = items
                if len(items) != len(targets):
                    self._report(
                        f"{len(items)} results cannot be assigned to {len(targets)} names", target
                    )
                    types = [ANY] * len(targets)
            case _:
                self._report(f"a value of type {type} cannot be assigned to this target", target)
                targets = target.items
                types = [ANY] * len(targets)
        pairs: list[tuple[s.Identifier, Type]] = []
        for item, item_type in zip(targets, types, strict=True):
            if isinstance(item, s.Identifier | s.Array | s.Tuple):
                pairs += self._unpack(item, item_type)
        return pairs

    # The graph

    def _graph(self, graph: s.GraphDefinition) -> None:
        for kind, names in (("parameter", graph.parameters), ("result", graph.results)):
            seen: set[str] = set()
            for identifier in names:
                if identifier.name in seen:
                    self._report(
                        f"{kind} '{identifier.name}' of the graph is declared twice", identifier
                    )
                seen.add(identifier.name)
        parameters = {p.name for p in graph.parameters}
        for result in graph.results:
            if result.name in parameters:
                self._report(
                    f"'{result.name}' is a parameter of the graph and a result of it",
                    result,
                    hint=f"names are unique in a declaration: write y = copy({result.name}); "
                    "and return y",
                )
        types: dict[str, Type] = {}
        externals: set[str] = set()
        for assignment in graph.body:
            self._external(assignment, parameters, externals)
        assigned = self._body(graph.body, types, {}, None)
        for parameter in graph.parameters:
            if parameter.name not in assigned:
                self._report(
                    f"graph parameter '{parameter.name}' is never assigned",
                    parameter,
                    hint=f"write {parameter.name} = external(shape = [...]);",
                )
        for result in graph.results:
            if result.name not in assigned:
                self._report(f"graph result '{result.name}' is never assigned", result)
        for assignment in graph.body:
            for identifier in s.identifiers(assignment.target):
                type = types.get(identifier.name, ANY)
                if not isinstance(type, Tensor) and not fits(type, TENSOR):
                    self._report(
                        f"'{identifier.name}' has type {type}, "
                        "in the graph every name stands for one tensor",
                        identifier,
                        hint="unpack tuples as (a, b) = ... and arrays as [a, b] = ...",
                    )

    def _external(
        self, assignment: s.Assignment, parameters: set[str], externals: set[str]
    ) -> None:
        """Graph parameters, and only they, are assigned by 'external' (spec 3.3.1)."""
        value = assignment.value
        is_external = isinstance(value, s.Invocation) and value.operation == "external"
        wrong = False
        for identifier in s.identifiers(assignment.target):
            if identifier.name in parameters and not is_external:
                wrong = True
                self._report(
                    f"graph parameter '{identifier.name}' must be assigned by 'external'",
                    identifier,
                )
            elif is_external and identifier.name not in parameters:
                self._report(
                    f"'{identifier.name}' is assigned by 'external' but is not a parameter "
                    "of the graph",
                    identifier,
                    hint=f"add it: graph {self.document.graph.name}"
                    f"( ..., {identifier.name} ) -> ...",
                )
        for node in s.invocations([value]):
            if node.operation == "external" and node is not value and not wrong:
                hint = f"make it a parameter: graph {self.document.graph.name}( ..., name ) -> ..."
                self._report("'external' must be assigned to a parameter of the graph", node, hint)

    def _unknown_operations(self) -> None:
        for name, uses in self.unknown.items():
            often = f", used {len(uses)} times" if len(uses) > 1 else ""
            hint = self.scope.similar(name) or (
                "load(..., dialect='tract') reads a document of tract that does not say so"
                if name.startswith("tract_")
                else "operations beyond the standard need a fragment that defines them"
            )
            self.errors.append(
                SemanticError(
                    f"unknown operation '{name}'{often}",
                    span=Span(self.document.source, uses[0].offset, len(name)),
                    hint=hint,
                )
            )


def _is_literal(expression: s.Expression) -> bool:
    match expression:
        case s.Literal():
            return True
        case s.Array(items=items) | s.Tuple(items=items):
            return all(map(_is_literal, items))
        case _:
            return False
