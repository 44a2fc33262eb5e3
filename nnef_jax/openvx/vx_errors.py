"""What OpenVX refuses, named by its vx_status."""

from __future__ import annotations

from collections.abc import Callable
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


def _refusal(status: str) -> Callable[..., NoReturn]:
    def refuse(message: str, hint: str = "") -> NoReturn:
        raise VxError(status, message, hint=hint)

    return refuse


wrong_format = _refusal("VX_ERROR_INVALID_FORMAT")  # a data type or fixed-point position
wrong_dimension = _refusal("VX_ERROR_INVALID_DIMENSION")  # a number of dimensions or an extent
wrong_parameter = _refusal("VX_ERROR_INVALID_PARAMETERS")  # a parameter that is no tensor
unsupported = _refusal("VX_ERROR_NOT_SUPPORTED")  # what OpenVX names but has not
