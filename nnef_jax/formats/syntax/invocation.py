"""Which argument of an invocation goes to which parameter (spec 3.3.1, Invocations)."""

from __future__ import annotations

from collections.abc import Collection
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
    """What all invocations of an operation have in common whose arguments have the same names.

    `names` are those of the parameters, tensors among them `operands`. `given` has the parameters
    that have an argument, and its position; `sources` for each parameter that, or the default.
    """

    names: tuple[str, ...]
    operands: tuple[str, ...]
    attributes: tuple[str, ...]
    given: tuple[tuple[str, int], ...]
    sources: tuple[int | Expression, ...]

    def expressions(self, invocation: Invocation) -> list[Expression]:
        """The expression for each parameter, in the order of the declaration."""
        arguments = invocation.arguments
        return [arguments[x].value if type(x) is int else x for x in self.sources]  # pyright: ignore


def form_of(fragment: Fragment, invocation: Invocation) -> Form:
    """The form of an invocation; InvalidInvocation where it breaks a rule."""
    names = tuple(parameter.name for parameter in fragment.parameters)
    operands = tuple(p.name for p in fragment.parameters if has_tensor(p.type))
    given = bind(fragment, invocation)
    places = {
        a.name or names[position]: position for position, a in enumerate(invocation.arguments)
    }
    defaults = {p.name: p.default for p in fragment.parameters if p.default is not None}
    return Form(
        names,
        operands,
        tuple(p.name for p in fragment.parameters if not has_tensor(p.type)),
        tuple((name, places[name]) for name in given),
        tuple(places[name] if name in given else defaults[name] for name in names),
    )


def bind(fragment: Fragment, invocation: Invocation) -> dict[str, Expression]:
    """The expressions given to the parameters, by name, in the order of the declaration.

    Parameters that keep their default are not in it.
    """
    parameters = fragment.parameters
    arguments = invocation.arguments
    names = dict.fromkeys(parameter.name for parameter in parameters)
    given: dict[str, Argument] = {}
    for position, argument in enumerate(arguments):
        if argument.name is not None:
            _bind_named(fragment, argument, given, names)
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


def _bind_named(
    fragment: Fragment, argument: Argument, given: dict[str, Argument], names: Collection[str]
) -> None:
    name = argument.name or ""
    if name not in names:
        raise InvalidInvocation(
            f"'{fragment.name}' has no parameter '{name}'",
            argument,
            hint=f"its parameters are {listed(names)}" if names else "it has none",
        )
    if name in given:
        twice = "twice" if given[name].name else "by position and by name"
        raise InvalidInvocation(f"argument '{name}' is given {twice}", argument)
    given[name] = argument
