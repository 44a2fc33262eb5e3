"""The program that passes rewrite: a traced function, and what is known of it.

It is jax's ClosedJaxpr with facts beside it, no representation of its own: a kernel is then a
function of jax's arrays, which tracing makes equations of, and derivatives, batching and lowering
are jax's. Passes rewrite it in two ways. `rewritten` puts other equations in the place of a few.
`evaluated` and `retraced` trace all of it anew, where each equation changes, as layouts do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial, wraps
from operator import is_
from typing import Any, Literal, TypeVar

import jax
import numpy as np

from lowering import jaxprs
from lowering.extents import is_symbolic
from lowering.facts import facts
from lowering.jaxprs import is_literal, primitive, variables
from lowering.program_printing import described, printed

Role = Literal["value", "forward", "backward"]
Rule = Callable[..., Any]
R = TypeVar("R", bound=Rule)


@dataclass(frozen=True)
class Program:
    """A function of arrays as equations, in the order in which they are evaluated.

    Args:
        closed: the traced function.
        parameters: how many leading arguments are parameters, or the same in all steps of a loop.
        prepares: whether what depends on these alone is computed once for many calls, or steps.
        role: what it computes: values, or the forward or backward pass of a derivative.
        is_alone: whether it runs on one device, so that nothing is sharded.
        is_open: whether programs of other shapes read the same parameters.
        in_loop: whether it is the body of a loop.
    """

    closed: Any
    parameters: int = 0
    prepares: bool = True
    role: Role = "value"
    is_alone: bool = True
    is_open: bool = False
    in_loop: bool = False

    @property
    def equations(self) -> Sequence[Any]:
        """Return the equations."""
        return self.closed.jaxpr.eqns

    @property
    def arguments(self) -> Sequence[Any]:
        """Return the variables of the arguments."""
        return self.closed.jaxpr.invars

    @property
    def constants(self) -> Sequence[Any]:
        """Return the variables of the constants."""
        return self.closed.jaxpr.constvars

    @property
    def results(self) -> Sequence[Any]:
        """Return the variables, or literals, of the results."""
        return self.closed.jaxpr.outvars

    @property
    def has_items(self) -> bool:
        """Tell whether all extents of arguments are numbers, none of them 0 in what is read."""
        for v in self.arguments:
            shape = getattr(v.aval, "shape", ())
            if any(map(is_symbolic, shape)) or (0 in shape and self.uses[v]):
                return False
        return True

    @cached_property
    def makers(self) -> Mapping[Any, Any]:
        """Return the equation that computes each variable."""
        return {v: e for e in self.equations for v in e.outvars}

    @cached_property
    def uses(self) -> Mapping[Any, int]:
        """Return how often each variable is read, by equations and as a result."""
        return uses(self.closed.jaxpr)

    @cached_property
    def known(self) -> frozenset[Any]:
        """Return the variables that depend on parameters and constants alone."""
        return frozenset(known_variables(self.closed.jaxpr, self.parameters))

    @cached_property
    def early(self) -> frozenset[Any]:
        """Return the variables that are computed before a call, or before a loop."""
        count = self.parameters if self.prepares else 0
        return self.known if self.prepares else frozenset(known_variables(self.closed.jaxpr, count))

    def is_late(self, equation: Any) -> bool:
        """Tell whether an equation depends on more than parameters."""
        return bool(equation.effects) or not self.early.issuperset(equation.outvars)

    def low_level(self) -> Program:
        """Return the program without jax's high-level primitives."""
        return self.with_closed(jaxprs.low_level(self.closed))

    def pruned(self) -> Program:
        """Return the program without what nothing reads."""
        return self.with_equations(self.equations)

    def known_first(self) -> Program:
        """Return the program with early variables computed first."""
        return self.with_equations(sorted(self.equations, key=self.is_late))

    def readers(self, variable: Any) -> set[str]:
        """Return the primitives that read a variable, "" for a result of the program."""
        primitives = {primitive(e) for e in self.equations if variable in variables(e.invars)}
        return primitives | {""} if variable in variables(self.results) else primitives

    def with_closed(self, closed: Any) -> Program:
        """Return the program with another traced function in it."""
        return replace(self, closed=closed)

    def body(self, equation: Any) -> Program:
        """Return the body of a loop, to which what all steps share are parameters."""
        count, _ = jaxprs.scan_counts(equation)
        closed = equation.params["jaxpr"]
        return replace(self, closed=closed, parameters=count, prepares=True, in_loop=True)

    def with_equations(self, equations: Sequence[Any]) -> Program:
        """Return the program with other equations of its variables, less what nothing reads."""
        return self.with_closed(jaxprs.of_equations(self.closed, equations, self.results))

    def with_inner(self, change: Callable[[Any, Any], Any], *names: str) -> Program:
        """Return the program with the functions changed that equations of these primitives hold.

        Without names they are those of all.
        """
        equations: list[Any] = []
        for e in self.equations:
            is_asked = not names or primitive(e) in names
            equations.append(jaxprs.with_inner(e, partial(change, e)) if is_asked else e)
        is_same = all(map(is_, equations, self.equations))
        return self if is_same else self.with_equations(equations)

    def with_bodies(self, change: Callable[[Program], Program]) -> Program:
        """Return the program with the bodies of its loops changed."""
        return self.with_inner(lambda e, _: change(self.body(e)).closed, jaxprs.SCAN)

    def part(self, arguments: Sequence[Any], results: Sequence[Any]) -> Program:
        """Return the program that computes these variables of it, given others of it."""
        inputs = set(arguments)
        equations = [e for e in self.equations if inputs.isdisjoint(e.outvars)]
        return self.with_closed(
            jaxprs.of_equations(self.closed, equations, results, arguments=arguments)
        )

    def evaluated(
        self,
        arguments: Sequence[Any],
        compute: Callable[[Any, list[Any]], Sequence[Any]] = jaxprs.bind,
        constant: Callable[[Any], Any] = lambda x: x,
    ) -> list[Any]:
        """Evaluate the program by `compute(equation, operands)`, on values of any kind.

        `constant` makes one of an array that the program holds.
        """
        jaxpr, consts = self.closed.jaxpr, map(constant, self.closed.consts)
        values = dict(zip(jaxpr.constvars, consts, strict=True))
        values.update(zip(self.arguments, arguments, strict=True))

        def read(v: Any) -> Any:
            return constant(np.asarray(v.val, v.aval.dtype)) if is_literal(v) else values[v]

        for equation in self.equations:
            with _located(equation), jaxprs.scope(equation):
                results = compute(equation, list(map(read, equation.invars)))
                values.update(zip(equation.outvars, results, strict=True))
        return list(map(read, self.results))

    def retraced(self, function: Callable[..., Sequence[Any]]) -> Program:
        """Return the program that a function of the arguments traces to."""
        return self.with_closed(
            jax.make_jaxpr(lambda *x: list(function(*x)))(*self.closed.in_avals)
        )

    def __call__(self, *arguments: Any) -> list[Any]:
        """Evaluate the program as it stands."""
        return jaxprs.as_function(self.closed)(*arguments)

    def __str__(self) -> str:
        return printed(self)


def uses(jaxpr: Any) -> Counter[Any]:
    """Count how often each variable is read, by equations and as a result."""
    counts = Counter(variables(jaxpr.outvars))
    for equation in jaxpr.eqns:
        counts.update(variables(equation.invars))
    return counts


def known_variables(jaxpr: Any, parameters: int) -> set[Any]:
    """Return the variables that depend on constants and the first arguments alone."""
    early = {*jaxpr.constvars, *jaxpr.invars[:parameters]}
    for equation in jaxpr.eqns:
        if not equation.effects and early.issuperset(variables(equation.invars)):
            early.update(equation.outvars)
    return early


@dataclass(frozen=True, slots=True)
class Computed:
    """Takes the place of an equation: a function of these operands, to be traced.

    It may give the `results` of later equations too. It is named as the equation `at` whose place
    it takes, by default the one that the rule was given.
    """

    function: Callable[..., Any]
    operands: Sequence[Any]
    results: Sequence[Any] = ()
    at: Any = None


class Matcher:
    """What a rule may ask of the part of a program that is rewritten before its equation.

    `notes` are what the pass's rules say of variables. `original` is the equation at hand before
    its operands were rewritten.
    """

    def __init__(self, program: Program) -> None:
        jaxpr = program.closed.jaxpr
        self.program, self.original = program, None
        self.notes: dict[Any, Any] = {}
        self.makers: dict[Any, Any] = {}
        self._early = {*jaxpr.constvars, *program.arguments[: program.parameters]}
        self._uses = Counter({v: program.uses[v] for v in program.arguments})
        self._equal: dict[Any, Any] = {}
        self._equations: list[Any] = []
        self._constants = dict(zip(jaxpr.constvars, program.closed.consts, strict=True))

    def maker(self, operand: Any, *names: str) -> Any:
        """Return the equation that computes an operand, if its primitive is one of these; or None.

        Without names it is that of any primitive.
        """
        equation = None if is_literal(operand) else self.makers.get(operand)
        return equation if equation and (not names or primitive(equation) in names) else None

    def note(self, operand: Any) -> Any:
        """Return the note that the pass's rules made of an operand, or None."""
        return None if is_literal(operand) else self.notes.get(operand)

    def is_known(self, operand: Any) -> bool:
        """Tell whether an operand is a literal or depends on parameters alone."""
        return is_literal(operand) or operand in self._early

    def is_read_once(self, operand: Any) -> bool:
        """Tell whether a variable has one reader, in the program as it was."""
        return not is_literal(operand) and self._uses[operand] == 1

    def trace(self, function: Callable[..., Any], *operands: Any, at: Any = None) -> Any:
        """Add the equations of a function of operands before the equation at hand, or in its place.

        Operands are pytrees of variables, and so is what is returned for the function's results. It
        is named as the equation `at`, by default the one at hand.
        """
        operands = jax.tree.map(self.now, operands)
        steps, results, constants = jaxprs.trace_at(at or self.original, function, operands)
        self._constants.update(constants)
        self._early.update(constants)
        uses = Counter[Any]()
        for step in steps:
            uses.update(variables(step.invars))
        for step in steps:
            self.add(step, uses)
        return results

    def add(self, equation: Any, reads: Mapping[Any, int]) -> None:
        """Add a rewritten equation; `reads` counts the readers of its results."""
        self._equations.append(equation)
        for variable in equation.outvars:
            self.makers[variable] = equation
            self._uses[variable] = reads.get(variable, 0)
            if not equation.effects and all(map(self.is_known, equation.invars)):
                self._early.add(variable)

    def put(self, variable: Any, operand: Any) -> None:
        """Read an operand instead of a variable from now on."""
        self._equal[variable] = operand
        if not is_literal(operand):
            self._uses[operand] += self.program.uses[variable]

    def is_put(self, variable: Any) -> bool:
        """Tell whether something else is read instead of a variable."""
        return variable in self._equal

    def now(self, operand: Any) -> Any:
        """Return the operand that is now read instead of one of the program as it was."""
        return operand if is_literal(operand) else self._equal.get(operand, operand)

    def result(self) -> Program:
        """Return the rewritten program."""
        closed, results = self.program.closed, list(map(self.now, self.program.results))
        return self.program.with_closed(
            jaxprs.of_equations(closed, self._equations, results, self._constants)
        )


class Rules:
    """Holds the rules of a pass: by primitive, and for others by the first fact that holds.

    >>> @rules("reshape", "squeeze")
    ... def reshaped(...): ...
    >>> @rules(by_item=True)
    ... def computed(...): ...
    """

    def __init__(
        self,
        by_primitive: Mapping[str, Rule] | None = None,
        only: Callable[[Any], bool] | None = None,
    ) -> None:
        """Hold rules by primitive, for some equations only."""
        self._by_primitive: dict[str, Rule] = {**(by_primitive or {})}
        self._only = only
        self._by_fact: dict[str, Rule] = {}

    def __call__(self, *primitives: str, **holds: bool) -> Callable[[R], R]:
        """Register a rule of primitives, or of all for which a field of `Facts` holds."""

        def register(rule: R) -> R:
            self._by_primitive.update(dict.fromkeys(primitives, rule))
            self._by_fact.update(dict.fromkeys(holds, rule))
            return rule

        return register

    def of(self, equation: Any) -> Rule | None:
        """Return the rule of an equation, if it has one."""
        rule, fact = self._by_primitive.get(equation.primitive.name), facts(equation)
        for name, general in self._by_fact.items():
            if rule is None and getattr(fact, name):
                rule = general
        return rule if rule and (self._only is None or self._only(equation)) else None


def rewritten(program: Program, rules: Rules | Mapping[str, Rule]) -> Program:
    """Replace equations by the results of rules, and leave out equations that nothing reads then.

    A rule takes a Matcher and an equation, whose operands are rewritten already. It returns another
    equation of the same results, the operand that its result is equal to, a function to trace, or
    None: leave it.
    """
    rules = rules if isinstance(rules, Rules) else Rules(rules)
    if not any(map(rules.of, program.equations)):
        return program
    matcher, changed = Matcher(program), False
    for original in program.equations:
        if original.outvars and matcher.is_put(original.outvars[0]):  # given by an earlier one
            continue
        operands = list(map(matcher.now, original.invars))
        matcher.original = equation = original
        if not all(map(is_, operands, original.invars)):
            equation = original.replace(invars=operands)
        rule = rules.of(equation)
        with _located(equation):
            made = None if rule is None else rule(matcher, equation)
            changed |= made is not None
            if made is None or hasattr(made, "invars"):
                matcher.add(equation if made is None else made, program.uses)
                continue
            results = equation.outvars
            if isinstance(made, Computed):
                results = made.results or results
                made = matcher.trace(made.function, *made.operands, at=made.at)
            for variable, operand in zip(results, jax.tree.leaves(made), strict=True):
                matcher.put(variable, operand)
    return matcher.result() if changed else program


def replaced(program: Program, made: Sequence[Computed]) -> Program:
    """Put each in the place of the equation that it is `at`, but not named as that.

    It may give the results of earlier equations too, which nothing in between reads.
    """
    places = {id(x.at): replace(x, at=jaxprs.unnamed(x.at)) for x in made}

    def rule(matcher: Matcher, _: Any) -> Computed | None:
        return places.get(id(matcher.original))

    return rewritten(program, dict.fromkeys({primitive(x.at) for x in made}, rule))


@contextmanager
def _located(equation: Any) -> Generator[None]:
    """Note on an error at which equation it came up."""
    try:
        yield
    except Exception as error:
        noted: Any = error
        if not hasattr(noted, "equation"):
            noted.equation = described(equation)
        raise


def in_loops(run: Callable[..., Program]) -> Callable[..., Program]:
    """Make a pass run on the bodies of loops too, as programs of their own."""

    @wraps(run)
    def everywhere(program: Program, target: Any) -> Program:
        return run(program, target).with_bodies(lambda body: everywhere(body, target))

    return everywhere
