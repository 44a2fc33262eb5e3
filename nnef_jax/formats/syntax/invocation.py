"""Binds arguments of invocations to parameters (spec 3.3.1), and refuses unknown operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lowering.location import Span
from nnef_jax.errors import UnsupportedError, raise_all
from nnef_jax.formats.syntax import tree
from nnef_jax.formats.syntax.types import Tensor, has_tensor
from nnef_jax.limits import Meter
from nnef_jax.wording.similar import did_you_mean, listed


class InvalidInvocation(ValueError):
    """An invocation of an operation breaks a rule at `node`.

    The caller replaces the exception by an error with a place in the text.
    """

    def __init__(self, message: str, node: tree.SyntaxNode, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.node = node
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Form:
    """The binding of arguments to parameters in an invocation of an operation.

    All invocations of the operation with the same names of arguments share a form.

    Args:
        names: the names of the parameters.
        operands: the names of the parameters that take tensors.
        attributes: the names of all other parameters.
        positions: maps names of parameters to the positions of their arguments.
        sources: for each parameter, the position of the argument, or the parameter's default if
            there is no argument.
    """

    names: Sequence[str]
    operands: Sequence[str]
    attributes: Sequence[str]
    positions: Mapping[str, int]
    sources: Sequence[int | tree.Expression | None]

    def expressions(self, invocation: tree.Invocation) -> list[tree.Expression]:
        """Return the expression for each parameter, in the order of the declaration.

        The expression is the argument of `invocation` for the parameter. If there is no such
        argument, the expression is the parameter's default.
        """
        arguments = invocation.arguments
        expressions: list[Any] = []
        for source in self.sources:
            has_argument = type(source) is int  # faster than isinstance
            expressions.append(arguments[source].value if has_argument else source)  # pyright: ignore
        return expressions


def form_of(fragment: tree.Fragment, invocation: tree.Invocation) -> Form:
    """Return the form of an invocation of `fragment`.

    Raises InvalidInvocation if the arguments do not fit the parameters.
    """
    parameters = fragment.parameters
    positions = bind(fragment, invocation)
    return Form(
        names=[p.name for p in parameters],
        operands=[p.name for p in parameters if has_tensor(p.type)],
        attributes=[p.name for p in parameters if not has_tensor(p.type)],
        positions=positions,
        sources=[positions.get(p.name, p.default) for p in parameters],
    )


def bind(
    fragment: tree.Fragment,
    invocation: tree.Invocation,
    meter: Meter | None = None,
    *,
    freely: bool = False,
    ignoring: bool = False,
) -> dict[str, int]:
    """Return the position of the argument for each parameter, in the order of the declaration.

    Parameters without an argument are left out. Raises InvalidInvocation if the arguments do not
    fit the parameters.

    Args:
        fragment: the declaration of the operation.
        invocation: the invocation.
        meter: counts steps. If an argument has an unknown name, a parameter with a similar name is
            looked for, which takes steps. Without a meter, the hint of the error lists the
            parameters.
        freely: whether attributes may be positional, and positional arguments may follow named
            arguments.
        ignoring: whether arguments that have no parameter are ignored if all parameters are
            tensors.
    """
    parameters = {parameter.name: parameter for parameter in fragment.parameters}
    arguments = invocation.arguments
    positions: dict[str, int] = {}
    for position, argument in enumerate(arguments):
        name = argument.name or _positional(fragment, arguments, position, freely=freely)
        if name not in parameters:
            if ignoring and all(isinstance(p.type, Tensor) for p in fragment.parameters):
                continue
            raise _unknown_parameter(fragment, name, argument, meter)
        # Unless `freely`, positional arguments come first. A parameter can then get a second
        # argument only by name. Parameters of the same name are refused elsewhere.
        may_be_second = argument.name or freely
        if name in positions and may_be_second:
            earlier_argument = arguments[positions[name]]
            are_both_named = argument.name and earlier_argument.name
            manner = "twice" if are_both_named else "by position and by name"
            raise InvalidInvocation(f"argument '{name}' is given {manner}", argument)
        positions[name] = position
    required = [name for name, parameter in parameters.items() if parameter.default is None]
    missing = [name for name in required if name not in positions]
    if missing:
        raise _missing_arguments(fragment, invocation, missing)
    return {name: positions[name] for name in parameters if name in positions}


def _missing_arguments(
    fragment: tree.Fragment, invocation: tree.Invocation, names: Sequence[str]
) -> InvalidInvocation:
    """Return the error for an invocation without arguments for the parameters `names`."""
    noun = "arguments" if len(names) > 1 else "argument"
    quoted_names = ", ".join(f"'{name}'" for name in names)
    assignments = ", ".join(f"{name} = ..." for name in names)
    message = f"'{fragment.name}' lacks its {noun} {quoted_names}"
    hint = f"write {fragment.name}(..., {assignments})"
    return InvalidInvocation(message, invocation, hint)


def _unknown_parameter(
    fragment: tree.Fragment, name: str, argument: tree.Argument, meter: Meter | None
) -> InvalidInvocation:
    """Return the error for an argument with a name that no parameter has; see `bind`."""
    names = dict.fromkeys(parameter.name for parameter in fragment.parameters)
    hint = did_you_mean(name, names, meter=meter, most=1) if meter else ""
    if not hint:
        hint = f"its parameters are {listed(names)}" if names else "it has none"
    message = f"'{fragment.name}' has no parameter '{name}'"
    return InvalidInvocation(message, argument, hint)


def refuse(uses: Mapping[str, Sequence[Span]], explain: Callable[[str], tuple[str, str]]) -> None:
    """Raise UnsupportedError for operations without a rule; do nothing if `uses` is empty.

    `uses` maps the names of the operations to the places of their calls. `explain` returns two
    texts for the name of an operation. The first text is the origin of the operation, and follows
    the name in the message. The second text is a hint.
    """
    errors: list[UnsupportedError] = []
    for name, spans in uses.items():
        origin, hint = explain(name)
        times = "1 time" if len(spans) == 1 else f"{len(spans)} times"
        message = f"there is no rule for operation '{name}'{origin}, used {times}"
        first_call = min(spans, key=lambda span: span.offset)
        errors.append(UnsupportedError(message, span=first_call, hint=hint))
    raise_all(sorted(errors, key=_offset))


def _offset(error: UnsupportedError) -> int:
    """Return the offset of an error in the text, or 0 if the error has no place."""
    return error.span.offset if error.span else 0


def _positional(
    fragment: tree.Fragment, arguments: Sequence[tree.Argument], position: int, *, freely: bool
) -> str:
    """Return the name of the parameter for an argument without a name.

    `position` is the position of the argument. Raises InvalidInvocation if there is no parameter at
    this position. Unless `freely`, raises InvalidInvocation also if the argument must have a name.
    """
    parameters = fragment.parameters
    argument = arguments[position]
    if position >= len(parameters):
        most = "1 argument" if len(parameters) == 1 else f"{len(parameters)} arguments"
        message = f"'{fragment.name}' takes at most {most}, this is number {position + 1}"
        raise InvalidInvocation(message, argument)
    name = parameters[position].name
    if freely:
        return name
    follows_named = position > 0 and arguments[position - 1].name is not None
    if follows_named:
        raise InvalidInvocation("a positional argument must not follow a named one", argument)
    if not has_tensor(parameters[position].type):
        message = f"'{name}' of '{fragment.name}' is an attribute: it must be named"
        raise InvalidInvocation(message, argument, hint=f"write {name} = ...")
    return name
