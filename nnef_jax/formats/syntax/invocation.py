"""Which argument of an invocation goes to which parameter (spec 3.3.1, Invocations)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nnef_jax.formats.syntax.tree import Argument, Expression, Fragment, Invocation, Node
from nnef_jax.formats.syntax.types import has_tensor
from nnef_jax.similar import listed


class InvalidInvocation(ValueError):
    """An invocation breaks a rule; `node` is where. The caller makes a located error of it."""

    def __init__(self, message: str, node: Node, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.node = node
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Form:
    """Holds what invocations of an operation share whose arguments have the same names.

    `names` are those of the parameters, tensors among them `operands`. `given` has the parameters
    that have an argument, with its position; `sources` for each parameter that, or the default.
    """

    names: Sequence[str]
    operands: Sequence[str]
    attributes: Sequence[str]
    given: Mapping[str, int]
    sources: Sequence[int | Expression | None]

    def expressions(self, invocation: Invocation) -> list[Expression]:
        """Return the expression for each parameter, in the order of the declaration."""
        arguments = invocation.arguments
        return [arguments[x].value if type(x) is int else x for x in self.sources]  # pyright: ignore


def form_of(fragment: Fragment, invocation: Invocation) -> Form:
    """Return the form of an invocation; InvalidInvocation where it breaks a rule."""
    parameters = fragment.parameters
    given = bind(fragment, invocation)
    return Form(
        [p.name for p in parameters],
        [p.name for p in parameters if has_tensor(p.type)],
        [p.name for p in parameters if not has_tensor(p.type)],
        given,
        [given.get(p.name, p.default) for p in parameters],
    )


def bind(fragment: Fragment, invocation: Invocation) -> dict[str, int]:
    """Return the positions of the arguments given to parameters, in the order of the declaration.

    Parameters that keep their default are not in it.
    """
    parameters = {parameter.name: parameter for parameter in fragment.parameters}
    arguments = invocation.arguments
    given: dict[str, int] = {}
    for position, argument in enumerate(arguments):
        name = argument.name or _positional(fragment, arguments, position)
        if name not in parameters:
            raise InvalidInvocation(
                f"'{fragment.name}' has no parameter '{name}'",
                argument,
                hint=f"its parameters are {listed(parameters)}" if parameters else "it has none",
            )
        if argument.name and name in given:
            twice = "twice" if arguments[given[name]].name else "by position and by name"
            raise InvalidInvocation(f"argument '{name}' is given {twice}", argument)
        given[name] = position
    missing = [n for n, p in parameters.items() if n not in given and p.default is None]
    if missing:
        names = ", ".join(f"'{name}'" for name in missing)
        raise InvalidInvocation(
            f"'{fragment.name}' lacks its argument{'s' * (len(missing) > 1)} {names}",
            invocation,
            hint=f"write {fragment.name}(..., {', '.join(f'{name} = ...' for name in missing)})",
        )
    return {name: given[name] for name in parameters if name in given}


def _positional(fragment: Fragment, arguments: Sequence[Argument], position: int) -> str:
    """Return the name of the parameter that an argument without a name is for."""
    parameters, argument = fragment.parameters, arguments[position]
    if position >= len(parameters):
        most = f"{len(parameters)} argument{'s' * (len(parameters) != 1)}"
        message = f"'{fragment.name}' takes at most {most}, this is number {position + 1}"
        raise InvalidInvocation(message, argument)
    if position and arguments[position - 1].name is not None:
        raise InvalidInvocation("a positional argument must not follow a named one", argument)
    name = parameters[position].name
    if not has_tensor(parameters[position].type):
        message = f"'{name}' of '{fragment.name}' is an attribute: it must be named"
        raise InvalidInvocation(message, argument, hint=f"write {name} = ...")
    return name
