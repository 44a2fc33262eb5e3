"""Defines the errors that rules raise about arguments; callers add the place in the document."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowering.graph import Operation


class InvalidOperation(ValueError):
    """Arguments are invalid for the operation: an attribute out of range, a wrong type.

    Args:
        message: the text of the error, without a place in a document.
        hint: how to correct the arguments, or "".
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InvalidShape(InvalidOperation):
    """Shapes of the arguments do not agree with each other or with the attributes."""


class InvalidComputation(InvalidOperation):
    """A traced operation cannot be computed, or gives other types than its rule inferred.

    The message has no place in a document; `operation.span` is the place, or None. If the rule of
    the operation refuses its arguments, the rule's error is the cause.
    """

    def __init__(self, message: str, operation: Operation, hint: str = "") -> None:
        super().__init__(message, hint)
        self.operation = operation
