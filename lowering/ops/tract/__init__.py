"""Rules of tract's dialect: its own operations, and those of NNEF that it reads in another way."""

from lowering.ops.registries import tract
from lowering.ops.tract import (
    activation,
    attention,
    conv,
    detection,
    elementwise,
    experts,
    indexing,
    linear,
    onnx,
    pulse,
    quantize,
    quantized,
    recurrent,
    reduce,
    resize,
    scan,
    shape,
    signal,
    tensors,
    window,
)

# Each enters its rules into the registry when it is imported.
FAMILIES = (
    activation,
    attention,
    conv,
    detection,
    elementwise,
    experts,
    indexing,
    linear,
    onnx,
    pulse,
    quantize,
    quantized,
    recurrent,
    reduce,
    resize,
    scan,
    shape,
    signal,
    tensors,
    window,
)

__all__ = ["FAMILIES", "tract"]
