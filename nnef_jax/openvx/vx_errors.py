"""The errors for what OpenVX does not allow, each with a vx_status."""

from __future__ import annotations

from typing import NoReturn, Protocol

from nnef_jax.errors import NnefError


class VxError(NnefError):
    """Raised for a layer, tensor or network that OpenVX does not allow.

    `status` is the name of a vx_status: VX_ERROR_INVALID_FORMAT (type or fixed-point position),
    VX_ERROR_INVALID_DIMENSION, VX_ERROR_INVALID_PARAMETERS, VX_ERROR_INVALID_VALUE or
    VX_ERROR_NOT_SUPPORTED.
    """

    def __init__(self, status: str, message: str, *, hint: str = "") -> None:
        super().__init__(f"{status}: {message}", hint=hint)
        self.status = status
        self.reason = message

    def within(self, layer: str) -> VxError:
        """Return a copy of the error whose message begins with the name of a layer."""
        return VxError(self.status, f"{layer}: {self.reason}", hint=self.hint)


class Refuse(Protocol):
    """A function that raises a `VxError` with a certain status."""

    def __call__(self, message: str, hint: str = "") -> NoReturn:
        """Raise a `VxError` with a message and a hint."""
        ...


def _refusal(status: str) -> Refuse:
    """Make a function that raises errors with the vx_status `status`."""

    def refuse(message: str, hint: str = "") -> NoReturn:
        """Raise a `VxError` with the status."""
        raise VxError(status, message, hint=hint)

    return refuse


# Raises the error for a wrong type or a wrong fixed-point position.
wrong_format: Refuse = _refusal("VX_ERROR_INVALID_FORMAT")
# Raises the error for a wrong rank or a wrong extent.
wrong_dimension: Refuse = _refusal("VX_ERROR_INVALID_DIMENSION")
# Raises the error for a wrong value of a parameter that is no tensor, such as a stride or a policy.
wrong_parameter: Refuse = _refusal("VX_ERROR_INVALID_PARAMETERS")
# Raises the error for a valid request that is not implemented.
unsupported: Refuse = _refusal("VX_ERROR_NOT_SUPPORTED")
