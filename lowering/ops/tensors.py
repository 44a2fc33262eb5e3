"""Constants (spec 4.1.2). They stay known on the host until a traced value needs them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import Shape, show, volume
from lowering.graph import Scalar, TensorType
from lowering.ops import rules
from lowering.ops.typing import require_rank


def constant_type(shape: Shape, value: tuple[Scalar, ...], dtype: str) -> TensorType:
    """The type of a constant, whose extents must be positive."""
    require_rank(shape)
    for extent in shape:
        if extent < 1:
            raise InvalidOperation(f"'shape' of a constant must be positive, it is {show(shape)}")
    if len(value) not in (1, volume(shape)):
        raise InvalidShape(
            f"a constant of shape {show(shape)} takes 1 or {volume(shape)} values, "
            f"given are {len(value)}"
        )
    return TensorType(shape, dtype)


@rules.rule("constant", constant_type)
def constant(shape: Shape, value: tuple[Scalar, ...], dtype: str) -> NDArray[np.generic]:
    """A tensor filled with the values in row-major order; a single one fills it."""
    items = np.array(value, np.dtype(dtype))
    return np.broadcast_to(items[0], shape) if items.size == 1 else items.reshape(shape)
