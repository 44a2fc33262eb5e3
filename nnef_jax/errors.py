"""The classes of errors that networks raise.

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

from lowering.errors import (
    InvalidComputation,
    InvalidOperation,
    InvalidShape,
    UnsupportedOperation,
)
from lowering.graph import Call
from lowering.location import Span

_SHOWN_CALLS = 8
# An error shows at most this number of characters of a message, a hint or a line. A name in a
# document may have megabytes.
_LONGEST = 1_000
_SHOWN_ERRORS = 20


class NnefError(ValueError):
    """A document, its data, or the arguments of a call are wrong.

    `str(error)` shows all of the following.

    Args:
        message: the message, without the place in the document.
        span: the place in the document.
        calls: the fragment calls that led to this place, the outermost call first.
        hint: advice.
        siblings: further errors that were noticed at the same time.
    """

    def __init__(
        self,
        message: str,
        *,
        span: Span | None = None,
        calls: Sequence[Call] = (),
        hint: str = "",
        siblings: Sequence[NnefError] = (),
    ) -> None:
        super().__init__(_shown(message))
        self.message: str = _shown(message)
        self.span = span
        self.calls: tuple[Call, ...] = tuple(calls)
        self.hint: str = _shown(hint)
        self.siblings: tuple[NnefError, ...] = tuple(siblings)

    @property
    def errors(self) -> tuple[NnefError, ...]:
        """Return this error and its siblings, in the order in which they were noticed."""
        return (self, *self.siblings)

    def block(self) -> str:
        """Return the text of this error without its siblings.

        The text contains the place, the message, the line of the document, the fragment calls, and
        the hint.
        """
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return the text of this error, as `block` returns it, in lines.

        A line may quote a name from the document, and may therefore contain a line break.
        """
        lines = [self.message]
        if self.span:
            lines = [f"{self.span}: {self.message}"]
            lines += [f"    {line}" for line in self.span.excerpt().split("\n")]
        shown_calls = self.calls[-_SHOWN_CALLS:]  # the innermost calls
        for call in reversed(shown_calls):
            place = f", called at {call.span}" if call.span else ""
            lines.append(f"  in fragment '{call.fragment}'{place}")
        hidden_count = len(self.calls) - len(shown_calls)
        if hidden_count > 0:
            lines.append(f"  ... and {hidden_count} more calls")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return [*map(_shown, lines)]

    def __str__(self) -> str:
        shown_errors = self.errors[:_SHOWN_ERRORS]
        blocks = [error.block() for error in shown_errors]
        hidden_count = len(self.errors) - len(shown_errors)
        if hidden_count > 0:
            blocks.append(f"... and {hidden_count} more errors")
        return "\n".join(blocks)


class NnefSyntaxError(NnefError):
    """The document does not follow the grammar (spec 3.1, 3.2)."""


class SemanticError(NnefError):
    """The document breaks a rule of the language or of an operation (spec 3.3, 4)."""


class ShapeError(SemanticError):
    """Shapes disagree with each other, with an attribute, or with stored data (spec 3.3.4, 4)."""


class DataError(NnefError):
    """A tensor or quantisation file is broken or does not fit the document (spec 5)."""


class ArchiveError(NnefError):
    """The file is no container of a network, lacks a member, or has a link in it (spec 5.1)."""


class UnsupportedError(NnefError):
    """The document is valid, but one of its operations or types is not supported."""


class LimitError(NnefError):
    """The document or its data are larger or deeper than the limits allow."""


class InputError(NnefError):
    """A call gives the wrong number, names, shapes or dtypes of inputs."""


def extra_missing(message: str, extra: str, instead: str = "") -> UnsupportedError:
    """Return the error for a missing extra (optional packages), with the command to install it.

    `message` is the message of the error. `instead` follows the command in the hint, and names
    another way, such as "; or give the prompt as token numbers".
    """
    return UnsupportedError(message, hint=f'pip install "nnef_jax[{extra}]"{instead}')


def family_of(error: InvalidOperation, family: type[NnefError] = SemanticError) -> type[NnefError]:
    """Return the class of the exception that users get when a rule of an operation raises `error`.

    The class is ShapeError for InvalidShape, UnsupportedError for UnsupportedOperation, and
    `family` for all other errors.
    """
    if isinstance(error, UnsupportedOperation):
        return UnsupportedError
    # The cause of an InvalidComputation is the error that a rule raised.
    is_about_shapes = isinstance(error, InvalidShape) or isinstance(error.__cause__, InvalidShape)
    return ShapeError if is_about_shapes else family


def at_operation(error: InvalidComputation, family: type[NnefError] = SemanticError) -> NnefError:
    """Return the exception that users get for an operation that cannot be computed.

    The exception names the operation's place in the document. The class of the exception is
    ShapeError for errors of shapes, and `family` for other errors.
    """
    operation = error.operation
    error_class = family_of(error, family)
    return error_class(error.message, span=operation.span, calls=operation.calls, hint=error.hint)


@contextmanager
def computing() -> Generator[None]:
    """Turn an InvalidComputation from the `with` block into an NnefError."""
    try:
        yield
    except InvalidComputation as error:
        raise at_operation(error) from None


def _shown(text: str) -> str:
    """Shorten a long text by cutting out its middle, and escape lone surrogates.

    A lone surrogate cannot be encoded, so a terminal could not show it.
    """
    if len(text) > _LONGEST:
        half = _LONGEST // 2
        text = f"{text[:half]} ... {text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()


def first_line(error: Exception) -> str:
    """Return the first line of another library's error.

    If the error has no text, return the name of its class.
    """
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def without_frames(error: NnefError) -> tuple[NnefError, ...]:
    """Remove the tracebacks from an error and its siblings, and return the error and siblings.

    The frames of a traceback would keep their local variables in memory.
    """
    for error_or_sibling in error.errors:
        error_or_sibling.__traceback__ = None
        error_or_sibling.__context__ = None
    return error.errors


def raise_all(errors: Sequence[NnefError]) -> None:
    """Raise the first of several errors, with all others as its siblings.

    If there are no errors, nothing happens.
    """
    if errors:
        first_error = errors[0]
        first_error.siblings = tuple(errors[1:])
        raise first_error
