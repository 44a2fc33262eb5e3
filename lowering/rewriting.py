"""Rewrites single equations of programs, by the rules of a pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from operator import is_
from typing import Any, TypeVar

import jax
import numpy as np

from lowering import jaxpr_evaluation, jaxprs
from lowering.facts import facts
from lowering.jaxpr_types import Atom, Equation, Variable
from lowering.jaxprs import is_literal, primitive, variables
from lowering.program import Program, located_at

Rule = Callable[..., Any]
R = TypeVar("R", bound=Rule)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Computed:
    """A function to trace, whose equations replace an equation of a program.

    Args:
        function: takes an array for each operand, and returns an array or a list of arrays.
        operands: variables and literals.
        results: the variables that the function computes, which may include results of later
            equations. By default these are the results of the replaced equation.
        at: the equation whose name and place the new equations get, by default the replaced
            equation.
    """

    function: Callable[..., Any]
    operands: Sequence[Atom]
    results: Sequence[Variable] = ()
    at: Equation | None = None


Rewrite = Equation | Atom | Computed | None  # a rule's result, see `rewritten`


class Matcher:
    """The part of a program that a pass has rewritten so far.

    A rule gets the matcher, to look up how operands are computed. `notes` maps variables to notes
    that a rule leaves for the rules of later equations. `original` is the current equation of the
    program, with the operands that it had before the pass.
    """

    original: Equation

    def __init__(self, program: Program) -> None:
        jaxpr = program.closed.jaxpr
        self.program = program
        self.notes: dict[Atom, Any] = {}
        self.makers: dict[Atom, Equation] = {}
        # The variables that depend only on parameters and constants.
        self._early = {*jaxpr.constvars, *program.arguments[: program.parameters]}
        self._uses = Counter({v: program.uses[v] for v in program.arguments})
        # Maps variables to the operands that replace them.
        self._equal: dict[Atom, Atom] = {}
        self._equations: list[Equation] = []
        self._constants = dict(zip(jaxpr.constvars, program.closed.consts, strict=True))

    def maker(self, operand: Atom, *names: str) -> Equation | None:
        """Return the equation that computes an operand, or None for an argument or a literal.

        If there are `names`, None is also returned for an equation of another primitive.
        """
        if is_literal(operand):
            return None
        equation = self.makers.get(operand)
        if equation is None or not names:
            return equation
        return equation if primitive(equation) in names else None

    def number(self, operand: Atom) -> float | None:
        """Return the number to which all items of an operand are equal, or None if they may differ.

        The number is found for a literal, for a constant of one item, and for a conversion or
        broadcast of such an operand.
        """
        names = "broadcast_in_dim", "convert_element_type"
        while (maker := self.maker(operand, *names)) is not None:
            operand = maker.invars[0]
        value: Any = operand.val if is_literal(operand) else self._constants.get(operand)
        if value is None or np.size(value) != 1:
            return None
        return np.asarray(value).item()

    def note(self, operand: Atom) -> Any:
        """Return the note that a rule has left on an operand, or None if there is none."""
        return None if is_literal(operand) else self.notes.get(operand)

    def is_known(self, operand: Atom) -> bool:
        """Tell whether an operand is a literal, or depends only on parameters and constants."""
        return is_literal(operand) or operand in self._early

    def is_read_once(self, operand: Atom) -> bool:
        """Tell whether an operand is a variable that had exactly one reader before the pass."""
        return not is_literal(operand) and self._uses[operand] == 1

    def trace(
        self, function: Callable[..., object], *operands: Any, at: Equation | None = None
    ) -> Any:
        """Trace a function, and add its equations to the rewritten program.

        The new equations come before the current equation or in its place. They get the name and
        place of the equation `at`, by default of the current equation. The operands are pytrees of
        variables and literals. The result is the function's result, as a pytree of variables and
        literals.
        """
        operands = jax.tree.map(self.replacement, operands)
        equations, results, constants = jaxpr_evaluation.trace_at(
            at or self.original, function, operands
        )
        self._constants.update(constants)
        self._early.update(constants)
        uses = Counter[Variable]()
        for equation in equations:
            uses.update(variables(equation.invars))
        for equation in equations:
            self.add(equation, uses)
        return results

    def add(self, equation: Equation, reads: Mapping[Variable, int]) -> None:
        """Add an equation to the rewritten program.

        `reads` maps each result of the equation to the number of its readers.
        """
        self._equations.append(equation)
        for variable in equation.outvars:
            self.makers[variable] = equation
            self._uses[variable] = reads.get(variable, 0)
            if not equation.effects and all(map(self.is_known, equation.invars)):
                self._early.add(variable)

    def replace_variable(self, variable: Variable, operand: Atom) -> None:
        """Let all later equations, and the results, read an operand instead of a variable."""
        self._equal[variable] = operand
        if not is_literal(operand):
            # The readers of the variable now read the operand.
            self._uses[operand] += self.program.uses[variable]

    def replace_variables(self, variables: Sequence[Variable], operands: Any) -> None:
        """Let later equations and the results read operands instead of variables.

        `operands` is a pytree. Its leaves replace the `variables`, in order.
        """
        for variable, operand in zip(variables, jax.tree.leaves(operands), strict=True):
            self.replace_variable(variable, operand)

    def is_replaced(self, variable: Variable) -> bool:
        """Tell whether `replace_variable` replaced a variable."""
        return variable in self._equal

    def replacement(self, operand: Atom) -> Atom:
        """Return the operand that replaces `operand`, or `operand` itself if nothing does."""
        return operand if is_literal(operand) else self._equal.get(operand, operand)

    def result(self) -> Program:
        """Return the rewritten program."""
        results = list(map(self.replacement, self.program.results))
        closed = jaxprs.of_equations(self.program.closed, self._equations, results, self._constants)
        return self.program.with_closed(closed)


class Rules:
    """Holds the rules of a pass. A rule is for named primitives, or for a field of `Facts`.

    A primitive without a rule for its name gets the first rule for a field that is true for the
    primitive.

    >>> @rules("reshape", "squeeze")
    ... def reshaped(...): ...
    >>> @rules(by_item=True)
    ... def computed(...): ...
    """

    def __init__(
        self,
        by_primitive: Mapping[str, Rule] | None = None,
        only: Callable[[Equation], bool] | None = None,
    ) -> None:
        """Start with the rules in `by_primitive`, a map from names of primitives to rules.

        `only(equation)` tells whether an equation may have a rule.
        """
        self._by_primitive: dict[str, Rule] = {**(by_primitive or {})}
        self._only = only
        self._by_fact: dict[str, Rule] = {}

    def __call__(self, *primitives: str, **fields: bool) -> Callable[[R], R]:
        """Return a decorator that registers a rule for primitives, or for fields of `Facts`."""

        def register(rule: R) -> R:
            self._by_primitive.update(dict.fromkeys(primitives, rule))
            self._by_fact.update(dict.fromkeys(fields, rule))
            return rule

        return register

    def rule_for(self, equation: Equation) -> Rule | None:
        """Return the rule for an equation, or None if there is no such rule."""
        rule = self._by_primitive.get(equation.primitive.name) or self._rule_by_fact(equation)
        if rule is None:
            return None
        is_allowed = self._only is None or self._only(equation)
        return rule if is_allowed else None

    def _rule_by_fact(self, equation: Equation) -> Rule | None:
        """Return the first rule for a field of `Facts` that is true for the equation, or None."""
        fact = facts(equation)
        for field, rule in self._by_fact.items():
            if getattr(fact, field):
                return rule
        return None


def rewritten(program: Program, rules: Rules | Mapping[str, Rule]) -> Program:
    """Replace equations of a program by the rewrites that rules return.

    A rule takes a Matcher, and an equation whose operands have been rewritten already. The rule
    returns one of these:

    - an equation that computes the same results
    - an operand that equals the result
    - a `Computed` with a function to trace
    - None, to leave the equation unchanged

    Equations that nothing reads after the rewrites are left out.
    """
    if not isinstance(rules, Rules):
        rules = Rules(rules)
    if not any(map(rules.rule_for, program.equations)):
        return program
    matcher = Matcher(program)
    is_changed = False
    for original in program.equations:
        if original.outvars and matcher.is_replaced(original.outvars[0]):
            continue  # an earlier rewrite computes the results
        matcher.original = original
        operands = list(map(matcher.replacement, original.invars))
        has_same_operands = all(map(is_, operands, original.invars))
        equation = original if has_same_operands else original.replace(invars=operands)
        rule = rules.rule_for(equation)
        with located_at(equation):
            rewrite = None if rule is None else rule(matcher, equation)
            is_changed = is_changed or rewrite is not None
            if rewrite is None:
                matcher.add(equation, program.uses)
            elif isinstance(rewrite, Computed):
                results = matcher.trace(rewrite.function, *rewrite.operands, at=rewrite.at)
                matcher.replace_variables(rewrite.results or equation.outvars, results)
            elif hasattr(rewrite, "invars"):  # an equation
                matcher.add(rewrite, program.uses)
            else:  # an operand
                matcher.replace_variables(equation.outvars, rewrite)
    return matcher.result() if is_changed else program


def replaced(program: Program, functions: Sequence[Computed]) -> Program:
    """Replace equations of a program. Each function replaces the equation `function.at`.

    A function may also compute the results of earlier equations, if no equation before
    `function.at` reads these results. The new equations do not get the name of an operation.
    """
    function_by_id: dict[int, Computed] = {}  # maps the id of an equation to its function
    primitives: set[str] = set()
    for function in functions:
        equation = function.at
        if equation is not None:
            unnamed = replace(function, at=jaxprs.unnamed(equation))
            function_by_id[id(equation)] = unnamed
            primitives.add(primitive(equation))

    def rule(matcher: Matcher, _: Equation) -> Computed | None:
        return function_by_id.get(id(matcher.original))

    return rewritten(program, dict.fromkeys(primitives, rule))


def in_loops(run: Callable[[Program, T], Program]) -> Callable[[Program, T], Program]:
    """Return a pass that rewrites a program, and then the bodies of its loops as programs.

    `run` is the pass for one program or body.
    """

    @wraps(run)
    def run_in_loops_too(program: Program, target: T) -> Program:
        return run(program, target).with_bodies(lambda body: run_in_loops_too(body, target))

    return run_in_loops_too
