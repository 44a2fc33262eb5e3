"""Which argument of an invocation goes to which parameter (spec 3.3.1, Invocations)."""

from __future__ import annotations

from nnef_jax.text.syntax import Argument, Expression, Fragment, Invocation, Node
from nnef_jax.text.types import has_tensor


class InvalidInvocation(ValueError):
    """An invocation breaks a rule; `node` is where. The caller makes a located error of it."""

    def __init__(self, message: str, node: Node, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.node = node
        self.hint = hint


def bind(fragment: Fragment, invocation: Invocation) -> dict[str, Expression]:
    """The expressions given to the parameters, by name, in the order of the declaration.

    Parameters that keep their default are not in it.
    """
    parameters = fragment.parameters
    arguments = invocation.arguments
    given: dict[str, Argument] = {}
    for position, argument in enumerate(arguments):
        if argument.name is not None:
            _bind_named(fragment, argument, given)
            continue
        if position >= len(parameters):
            most = f"{len(parameters)} argument{'s' * (len(parameters) != 1)}"
            raise InvalidInvocation(
                f"'{fragment.name}' takes at most {most}, this is number {position + 1}", argument
            )
        if position and arguments[position - 1].name is not None:
            raise InvalidInvocation("a positional argument must not follow a named one", argument)
        parameter = parameters[position]
        if not has_tensor(parameter.type):
            raise InvalidInvocation(
                f"'{parameter.name}' of '{fragment.name}' is an attribute: it must be named",
                argument,
                hint=f"write {parameter.name} = ...",
            )
        given[parameter.name] = argument
    missing = [p.name for p in parameters if p.name not in given and p.default is None]
    if missing:
        names = ", ".join(f"'{name}'" for name in missing)
        plural = "s" * (len(missing) > 1)
        raise InvalidInvocation(
            f"'{fragment.name}' lacks its argument{plural} {names}",
            invocation,
            hint=f"write {fragment.name}(..., {', '.join(f'{name} = ...' for name in missing)})",
        )
    return {p.name: given[p.name].value for p in parameters if p.name in given}


def _bind_named(fragment: Fragment, argument: Argument, given: dict[str, Argument]) -> None:
    name = argument.name or ""
    names = [p.name for p in fragment.parameters]
    if name not in names:
        raise InvalidInvocation(
            f"'{fragment.name}' has no parameter '{name}'",
            argument,
            hint=f"its parameters are {', '.join(names)}" if names else "it has none",
        )
    if name in given:
        twice = "twice" if given[name].name else "by position and by name"
        raise InvalidInvocation(f"argument '{name}' is given {twice}", argument)
    given[name] = argument
