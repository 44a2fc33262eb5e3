"""Everything that can be wrong with a network, in one tree.

    ValueError
     └─ NnefError                something is wrong with the document, its data, or what it is given
         ├─ NnefSyntaxError      the text does not follow the grammar (spec 3.1, 3.2)
         ├─ SemanticError        the text breaks a rule of the language or an operation (3.3, 4)
         │   └─ ShapeError       shapes do not agree (spec 3.3.4, 4)
         ├─ DataError            a tensor or quantisation file is broken or does not fit (spec 5)
         ├─ ArchiveError         the container is not one, or lacks or hides a member (spec 5.1)
         ├─ UnsupportedError     valid, but nothing here can run it
         ├─ LimitError           larger or deeper than `nnef_jax.Limits` allows
         └─ InputError           a call gives the wrong number, names, shapes or dtypes of inputs

Every error carries the place in the text (`span`), the chain of fragment calls that led there
(`calls`), what to do about it (`hint`), and the other errors found in the same reading (`others`).
`str(error)` shows all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from lowering.graph import Call
from lowering.location import Span

_SHOWN_CALLS = 8
_SHOWN_ERRORS = 20


class NnefError(ValueError):
    """Something is wrong with a document, its data, or what it is given."""

    def __init__(
        self,
        message: str,
        *,
        span: Span | None = None,
        calls: Sequence[Call] = (),
        hint: str = "",
        others: Sequence[NnefError] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.span = span
        self.calls = tuple(calls)
        self.hint = hint
        self.others = tuple(others)

    @property
    def errors(self) -> tuple[NnefError, ...]:
        """This error and the others found in the same reading, in the order of the text."""
        return (self, *self.others)

    def block(self) -> str:
        """This error alone as text: place and message, source line with caret, calls, hint."""
        lines = [f"{self.span}: {self.message}" if self.span else self.message]
        if self.span:
            lines += ["    " + line for line in self.span.excerpt().split("\n")]
        hidden = len(self.calls) - _SHOWN_CALLS
        for call in reversed(self.calls[-_SHOWN_CALLS:]):
            lines.append(
                f"  in fragment '{call.fragment}'"
                + (f", called at {call.span}" if call.span else "")
            )
        if hidden > 0:
            lines.append(f"  ... and {hidden} more calls")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def __str__(self) -> str:
        blocks = [error.block() for error in self.errors[:_SHOWN_ERRORS]]
        hidden = len(self.errors) - _SHOWN_ERRORS
        if hidden > 0:
            blocks.append(f"... and {hidden} more errors")
        return "\n".join(blocks)


class NnefSyntaxError(NnefError):
    """The text does not follow the grammar."""


class SemanticError(NnefError):
    """The text breaks a rule of the language or of an operation."""


class ShapeError(SemanticError):
    """Shapes do not agree with each other, with an attribute or with stored data."""


class DataError(NnefError):
    """A tensor file or a quantisation file is broken or does not fit the document."""


class ArchiveError(NnefError):
    """The container is not one, or lacks a member, or hides one behind a link."""


class UnsupportedError(NnefError):
    """The document is valid, but there is no rule for something in it."""


class LimitError(NnefError):
    """The document or its data are larger or deeper than the limits allow."""


class InputError(NnefError):
    """A call gives the wrong number, names, shapes or dtypes of inputs."""


def raise_all(errors: Sequence[NnefError]) -> None:
    """Raise the first of some errors with the others attached; do nothing where there are none."""
    if errors:
        first = errors[0]
        first.others = tuple(errors[1:])
        raise first
