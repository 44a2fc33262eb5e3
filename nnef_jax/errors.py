"""The errors of networks, in one tree.

ValueError
 └─ NnefError
     ├─ NnefSyntaxError
     ├─ SemanticError
     │   └─ ShapeError
     ├─ DataError
     ├─ ArchiveError
     ├─ UnsupportedError
     ├─ LimitError
     └─ InputError
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from lowering.errors import InvalidComputation, InvalidOperation, InvalidShape
from lowering.graph import Call
from lowering.location import Span

_SHOWN_CALLS = 8
_LONGEST = 1_000  # of a message, a hint or a line: a document may have names of megabytes
_SHOWN_ERRORS = 20


class NnefError(ValueError):
    """Something is wrong with a document, its data, or what it is given.

    `span` is the place in the text, `calls` the fragment calls that led there, `hint` what to do,
    and `others` the errors found in the same reading. `str(error)` shows all of it.
    """

    def __init__(
        self,
        message: str,
        *,
        span: Span | None = None,
        calls: Sequence[Call] = (),
        hint: str = "",
        others: Sequence[NnefError] = (),
    ) -> None:
        super().__init__(_shown(message))
        self.message = _shown(message)
        self.span = span
        self.calls = tuple(calls)
        self.hint = _shown(hint)
        self.others = tuple(others)

    @property
    def errors(self) -> tuple[NnefError, ...]:
        """Return this error and the others of the same reading, in the order of the text."""
        return (self, *self.others)

    def block(self) -> str:
        """Return this error alone: place and message, source line with caret, calls, hint."""
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return the lines of `block`; a line end within one is of a name."""
        lines = [f"{self.span}: {self.message}" if self.span else self.message]
        if self.span:
            lines += ["    " + line for line in self.span.excerpt().split("\n")]
        hidden = len(self.calls) - _SHOWN_CALLS
        for call in reversed(self.calls[-_SHOWN_CALLS:]):
            place = f", called at {call.span}" if call.span else ""
            lines.append(f"  in fragment '{call.fragment}'{place}")
        if hidden > 0:
            lines.append(f"  ... and {hidden} more calls")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return [*map(_shown, lines)]

    def __str__(self) -> str:
        blocks = [error.block() for error in self.errors[:_SHOWN_ERRORS]]
        hidden = len(self.errors) - _SHOWN_ERRORS
        if hidden > 0:
            blocks.append(f"... and {hidden} more errors")
        return "\n".join(blocks)


class NnefSyntaxError(NnefError):
    """The text does not follow the grammar (spec 3.1, 3.2)."""


class SemanticError(NnefError):
    """The text breaks a rule of the language or of an operation (spec 3.3, 4)."""


class ShapeError(SemanticError):
    """Shapes do not agree with each other, an attribute or stored data (spec 3.3.4, 4)."""


class DataError(NnefError):
    """A tensor or quantisation file is broken or does not fit the document (spec 5)."""


class ArchiveError(NnefError):
    """The container is not one, or lacks a member, or hides one behind a link (spec 5.1)."""


class UnsupportedError(NnefError):
    """The document is valid, but there is no rule for something in it."""


class LimitError(NnefError):
    """The document or its data are larger or deeper than the limits allow."""


class InputError(NnefError):
    """A call gives the wrong number, names, shapes or dtypes of inputs."""


def extra_missing(message: str, extra: str, instead: str = "") -> UnsupportedError:
    """Return the error of what needs an extra of the package, with the command that installs it."""
    return UnsupportedError(message, hint=f'pip install "nnef_jax[{extra}]"{instead}')


def family_of(error: InvalidOperation, family: type[NnefError] = SemanticError) -> type[NnefError]:
    """Return the class of the user's error for one of a rule: ShapeError for InvalidShape."""
    causes = error, error.__cause__  # an InvalidComputation has the rule's own as its cause
    return ShapeError if any(isinstance(x, InvalidShape) for x in causes) else family


def at_operation(error: InvalidComputation, family: type[NnefError] = SemanticError) -> NnefError:
    """Return the error of an operation that cannot be computed, with its place in the document."""
    where, family = error.operation, family_of(error, family)
    return family(error.message, span=where.span, calls=where.calls, hint=error.hint)


@contextmanager
def computing() -> Generator[None]:
    """Raise NnefError for operations that cannot be computed within."""
    try:
        yield
    except InvalidComputation as error:
        raise at_operation(error) from None


def _shown(text: str) -> str:
    """Make a text printable: cut in its middle where it is long, without lone surrogates."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    return text.encode("utf-8", "backslashreplace").decode()


def first_line(error: Exception) -> str:
    """Return the first line of another library's error."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def kept(error: NnefError) -> tuple[NnefError, ...]:
    """Return all the errors of one, to be raised later, without the frames that they hold."""
    for each in error.errors:
        each.__traceback__ = each.__context__ = None
    return error.errors


def raise_all(errors: Sequence[NnefError]) -> None:
    """Raise the first of some errors with the others attached; do nothing without any."""
    if errors:
        first = errors[0]
        first.others = tuple(errors[1:])
        raise first
