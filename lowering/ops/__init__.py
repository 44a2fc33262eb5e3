"""The rules, one file for each family of operations. `nnef` is the registry of the standard's own."""

from lowering.ops import (  # noqa: F401  (each enters its rules into the registry)
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

__all__ = ["nnef"]
