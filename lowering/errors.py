"""Defines the errors that rules raise about arguments; callers add the place in the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowering.graph import Operation


class InvalidOperation(ValueError):
    """Arguments break a rule of the operation: an attribute out of range, a wrong type.

    Args:
        message: the text of the error, without a place in a document.
        hint: what to do about it, or "".
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InvalidShape(InvalidOperation):
    """Shapes of the arguments do not agree with each other or with the attributes."""


class InvalidComputation(InvalidOperation):
    """A traced operation cannot be computed, or not as it was inferred.

    Its text has no place: `operation.span` is that, if the operation has one. If its rule refuses
    the arguments, the rule's error is the cause.
    """

    def __init__(self, message: str, operation: Operation, hint: str = "") -> None:
        super().__init__(message, hint)
        self.operation = operation
