"""The rules, one file for each family of operations. `nnef` is the registry of the standard."""

from lowering.ops import (
    activation,
    conv,
    elementwise,
    linear,
    normalize,
    quantize,
    reduce,
    resample,
    roi,
    shape,
    tensors,
    window,
)
from lowering.ops.registries import nnef

# Each enters its rules into the registry when it is imported.
FAMILIES = (
    activation,
    conv,
    elementwise,
    linear,
    normalize,
    quantize,
    reduce,
    resample,
    roi,
    shape,
    tensors,
    window,
)

__all__ = ["FAMILIES", "nnef"]
