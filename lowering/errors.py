"""Defines the errors that rules raise about arguments; callers add the place in the document."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowering.graph import Operation


class InvalidOperation(ValueError):
    """Raised for arguments that are invalid for an operation, such as an attribute out of range.

    Args:
        message: the text of the error, without a place in a document.
        hint: how to correct the arguments, or "".
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InvalidShape(InvalidOperation):
    """Raised if the shapes of operands do not agree with each other or with the attributes."""


class UnsupportedOperation(InvalidOperation):
    """Raised for arguments that are valid, but for which the operation is not supported."""


class InvalidComputation(InvalidOperation):
    """Raised if an operation of a graph cannot be computed, or computes other types than inferred.

    The message does not contain the place in a document. The place is `operation.span`, or None
    if the place is unknown. If the rule of the operation refuses the arguments, the rule's error
    is the cause of this error.
    """

    def __init__(self, message: str, operation: Operation, hint: str = "") -> None:
        super().__init__(message, hint)
        self.operation = operation
