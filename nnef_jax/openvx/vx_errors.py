"""What OpenVX refuses, named by its vx_status."""

from __future__ import annotations

from typing import NoReturn

from nnef_jax.errors import NnefError


class VxError(NnefError):
    """A layer, tensor or network is not what OpenVX allows; `status` is the vx_status, by name.

    One of VX_ERROR_INVALID_FORMAT (type or fixed-point position), VX_ERROR_INVALID_DIMENSION,
    VX_ERROR_INVALID_PARAMETERS, VX_ERROR_INVALID_VALUE and VX_ERROR_NOT_SUPPORTED.
    """

    def __init__(self, status: str, message: str, *, hint: str = "") -> None:
        super().__init__(f"{status}: {message}", hint=hint)
        self.status = status
        self.reason = message

    def within(self, layer: str) -> VxError:
        """Return the same error with the layer's name before what is wrong."""
        return VxError(self.status, f"{layer}: {self.reason}", hint=self.hint)


def wrong_format(message: str, hint: str = "") -> NoReturn:
    """Raise for a data type or fixed-point position."""
    raise VxError("VX_ERROR_INVALID_FORMAT", message, hint=hint)


def wrong_dimension(message: str, hint: str = "") -> NoReturn:
    """Raise for a number of dimensions or an extent."""
    raise VxError("VX_ERROR_INVALID_DIMENSION", message, hint=hint)


def wrong_parameter(message: str, hint: str = "") -> NoReturn:
    """Raise for a parameter that is no tensor."""
    raise VxError("VX_ERROR_INVALID_PARAMETERS", message, hint=hint)


def unsupported(message: str, hint: str = "") -> NoReturn:
    """Raise for what OpenVX names but has not."""
    raise VxError("VX_ERROR_NOT_SUPPORTED", message, hint=hint)
