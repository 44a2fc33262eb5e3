"""Defines the program that passes rewrite.

A program is a ClosedJaxpr of jax, with properties that are computed from it. Passes write kernels
as functions of jax arrays. These functions are traced to equations, which jax itself
differentiates, batches and lowers.

To replace single equations, a pass uses `rewriting.rewritten`. A pass that changes most equations,
such as the pass for layouts, uses `evaluated` and `retraced`, which trace the program again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import is_
from typing import Any, Literal

import numpy as np

from lowering import jaxpr_evaluation, jaxprs
from lowering.extents import is_symbolic
from lowering.jaxpr_types import Atom, ClosedJaxpr, Equation, Jaxpr, Variable
from lowering.jaxprs import is_literal, primitive, variables
from lowering.program_printing import described, printed

Role = Literal["value", "forward", "backward"]


@dataclass(frozen=True)
class Program:
    """A function of arrays, as equations in the order in which they are evaluated.

    Args:
        closed: the traced function.
        parameters: the number of leading arguments that are parameters. If the program is the
            body of a loop, its parameters are the arguments that all iterations share.
        prepares: whether values that depend only on parameters are computed once, for many
            calls or for all iterations of a loop.
        role: "forward" or "backward" for the forward or backward pass of a derivative, and
            "value" for any other program.
        is_alone: whether the program runs on one device, so that nothing is sharded.
        is_open: whether programs for other shapes read the same parameters.
        in_loop: whether the program is the body of a loop.
    """

    closed: ClosedJaxpr
    parameters: int = 0
    prepares: bool = True
    role: Role = "value"
    is_alone: bool = True
    is_open: bool = False
    in_loop: bool = False

    @property
    def equations(self) -> Sequence[Equation]:
        """Return the equations of the program, in the order in which they are evaluated."""
        return self.closed.jaxpr.eqns

    @property
    def arguments(self) -> Sequence[Variable]:
        """Return the variables of the arguments."""
        return self.closed.jaxpr.invars

    @property
    def constants(self) -> Sequence[Variable]:
        """Return the variables of the constants."""
        return self.closed.jaxpr.constvars

    @property
    def results(self) -> Sequence[Atom]:
        """Return the variables, or literals, of the results."""
        return self.closed.jaxpr.outvars

    @property
    def has_items(self) -> bool:
        """Tell whether no argument has a symbolic extent, and whether no used argument is empty."""
        for variable in self.arguments:
            shape = getattr(variable.aval, "shape", ())
            is_variable = any(map(is_symbolic, shape))
            is_empty = 0 in shape
            if is_variable or (is_empty and self.uses[variable] > 0):
                return False
        return True

    @cached_property
    def makers(self) -> Mapping[Atom, Equation]:
        """Map each variable to the equation that computes it."""
        makers: dict[Atom, Equation] = {}
        for equation in self.equations:
            makers.update(dict.fromkeys(equation.outvars, equation))
        return makers

    @cached_property
    def uses(self) -> Mapping[Atom, int]:
        """Map each variable to the number of its uses, as an operand or as a result."""
        return uses(self.closed.jaxpr)

    @cached_property
    def known(self) -> frozenset[Atom]:
        """Return the variables that depend only on constants and on parameters of the program."""
        return frozenset(known_variables(self.closed.jaxpr, self.parameters))

    @cached_property
    def early(self) -> frozenset[Atom]:
        """Return the variables that are computed once, before all calls or before the loop.

        They depend only on constants, or only on constants and parameters if the program prepares
        values.
        """
        if self.prepares:
            return self.known
        return frozenset(known_variables(self.closed.jaxpr, parameters=0))

    def is_late(self, equation: Equation) -> bool:
        """Tell whether an equation is evaluated in each call, or in each iteration of a loop."""
        has_early_results = self.early.issuperset(equation.outvars)
        return bool(equation.effects) or not has_early_results

    def low_level(self) -> Program:
        """Return the program with low-level equations in place of jax's high-level primitives."""
        return self.with_closed(jaxpr_evaluation.low_level(self.closed))

    def pruned(self) -> Program:
        """Return the program without equations and constants on which no result depends."""
        return self.with_equations(self.equations)

    def early_first(self) -> Program:
        """Return the program with the equations that compute `early` variables at the front."""
        return self.with_equations(sorted(self.equations, key=self.is_late))

    def readers(self, variable: Variable) -> set[str]:
        """Return the names of the primitives that read a variable.

        The set also has "" if the variable is a result of the program.
        """
        names: set[str] = set()
        for equation in self.equations:
            if variable in variables(equation.invars):
                names.add(primitive(equation))
        if variable in variables(self.results):
            names.add("")
        return names

    def with_closed(self, closed: ClosedJaxpr) -> Program:
        """Return a program with another traced function, and this program's other properties."""
        return replace(self, closed=closed)

    def body(self, equation: Equation) -> Program:
        """Return the body of a scan as a program.

        The parameters of the body are the operands that all iterations share.
        """
        shared_count, _ = jaxprs.scan_counts(equation)
        closed = equation.params["jaxpr"]
        return replace(self, closed=closed, parameters=shared_count, prepares=True, in_loop=True)

    def with_equations(self, equations: Sequence[Equation]) -> Program:
        """Return the program with its equations replaced by `equations`.

        The new equations must compute the same results. Equations and constants on which no result
        depends are left out.
        """
        return self.with_closed(jaxprs.of_equations(self.closed, equations, self.results))

    def with_inner(
        self, change: Callable[[Equation, ClosedJaxpr], ClosedJaxpr], *names: str
    ) -> Program:
        """Return the program with each inner function replaced by `change(equation, function)`.

        An inner function is a traced function among the parameters of an equation, such as the body
        of a loop. If there are `names`, only equations of the primitives with these names are
        changed.
        """
        equations: list[Equation] = []
        for equation in self.equations:
            is_chosen = not names or primitive(equation) in names
            if is_chosen:
                changed = jaxprs.with_inner(equation, partial(change, equation))
                equations.append(changed)
            else:
                equations.append(equation)
        is_unchanged = all(map(is_, equations, self.equations))
        return self if is_unchanged else self.with_equations(equations)

    def with_bodies(self, change: Callable[[Program], Program]) -> Program:
        """Return the program with the body of each scan replaced by `change(body)`."""

        def change_body(equation: Equation, _: ClosedJaxpr) -> ClosedJaxpr:
            return change(self.body(equation)).closed

        return self.with_inner(change_body, jaxprs.SCAN)

    def part(self, arguments: Sequence[Variable], results: Sequence[Atom]) -> Program:
        """Return a program that computes the variables `results` from the variables `arguments`."""
        # Leave out equations that compute the new arguments.
        inputs = set(arguments)
        equations = [e for e in self.equations if inputs.isdisjoint(e.outvars)]
        return self.with_closed(
            jaxprs.of_equations(self.closed, equations, results, arguments=arguments)
        )

    def evaluated(
        self,
        arguments: Sequence[Any],
        compute: Callable[[Equation, list[Any]], Sequence[Any]] = jaxpr_evaluation.bind,
        constant: Callable[[Any], Any] = lambda x: x,
    ) -> list[Any]:
        """Evaluate the program on values of any type, and return the program's results.

        `compute(equation, operands)` returns the results of an equation. `constant(array)` turns
        a constant or a literal of the program into a value of this type.
        """
        constants = map(constant, self.closed.consts)
        values = dict(zip(self.constants, constants, strict=True))
        values.update(zip(self.arguments, arguments, strict=True))

        def read(operand: Atom) -> Any:
            if is_literal(operand):
                return constant(np.asarray(operand.val, operand.aval.dtype))
            return values[operand]

        for equation in self.equations:
            with located_at(equation), jaxpr_evaluation.scope(equation):
                results = compute(equation, list(map(read, equation.invars)))
                values.update(zip(equation.outvars, results, strict=True))
        return list(map(read, self.results))

    def retraced(self, function: Callable[..., Sequence[Any]]) -> Program:
        """Trace a function for arguments of this program's types, and return it as a program."""
        closed = jaxpr_evaluation.make_jaxpr(lambda *x: list(function(*x)), *self.closed.in_avals)
        return self.with_closed(closed)

    def __call__(self, *arguments: Any) -> list[Any]:
        """Evaluate the equations of the program as they are, and return the results."""
        return jaxpr_evaluation.as_function(self.closed)(*arguments)

    def __str__(self) -> str:
        return printed(self)


def uses(jaxpr: Jaxpr) -> Counter[Variable]:
    """Count how often each variable is an operand of an equation or a result of the function."""
    counts = Counter(variables(jaxpr.outvars))
    for equation in jaxpr.eqns:
        counts.update(variables(equation.invars))
    return counts


def known_variables(jaxpr: Jaxpr, parameters: int) -> set[Variable]:
    """Return the variables that depend only on constants and the first `parameters` arguments."""
    computable = {*jaxpr.constvars, *jaxpr.invars[:parameters]}
    for equation in jaxpr.eqns:
        if not equation.effects and computable.issuperset(variables(equation.invars)):
            computable.update(equation.outvars)
    return computable


@contextmanager
def located_at(equation: Equation) -> Generator[None]:
    """Add the attribute `equation` to errors that are raised in the block of a `with` statement.

    The attribute is a text that describes the equation. In nested blocks it describes the
    innermost equation.
    """
    try:
        yield
    except Exception as error:
        located: Any = error
        if not hasattr(located, "equation"):
            located.equation = described(equation)
        raise
