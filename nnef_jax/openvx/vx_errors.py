"""The errors for layers, tensors and networks that OpenVX does not allow, each with a vx_status."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from nnef_jax.errors import NnefError


class VxError(NnefError):
    """OpenVX does not allow a layer, tensor or network.

    `status` is the name of a vx_status: VX_ERROR_INVALID_FORMAT (type or fixed-point position),
    VX_ERROR_INVALID_DIMENSION, VX_ERROR_INVALID_PARAMETERS, VX_ERROR_INVALID_VALUE or
    VX_ERROR_NOT_SUPPORTED.
    """

    def __init__(self, status: str, message: str, *, hint: str = "") -> None:
        super().__init__(f"{status}: {message}", hint=hint)
        self.status = status
        self.reason = message

    def within(self, layer: str) -> VxError:
        """Return the same error with the layer's name before its message."""
        return VxError(self.status, f"{layer}: {self.reason}", hint=self.hint)


def _refusal(status: str) -> Callable[..., NoReturn]:
    def refuse(message: str, hint: str = "") -> NoReturn:
        raise VxError(status, message, hint=hint)

    return refuse


wrong_format = _refusal("VX_ERROR_INVALID_FORMAT")  # for a type or fixed-point position
wrong_dimension = _refusal("VX_ERROR_INVALID_DIMENSION")  # for a rank or an extent
wrong_parameter = _refusal("VX_ERROR_INVALID_PARAMETERS")  # for a parameter that is no tensor
unsupported = _refusal("VX_ERROR_NOT_SUPPORTED")  # for a valid request that is not implemented
