"""ONNX (Open Neural Network Exchange): a model is one protobuf message, tensors in it or beside.

It is read by the `onnx` package, an extra, which is imported when such a file is met.
"""

from __future__ import annotations

from nnef_jax.formats.base import Frontend, Options
from nnef_jax.storage.archive import Archive

# Fields of a ModelProto: the version of the format, of any length, then any of the next ones.
ALONE = {"model.onnx": rb"\x08[\x80-\xff]{0,9}[\x00-\x7f][\x12\x1a\x22\x28\x32\x3a\x42]"}
GRAPHS = ("*.onnx",)
HAS_WEIGHTS_BESIDE = False


def recognises(archive: Archive) -> bool:
    """Tell whether the graph is an ONNX file, by its name."""
    return archive.graph.endswith(".onnx")


def read(archive: Archive, options: Options) -> Frontend:
    """Return the checked model of an archive."""
    from nnef_jax.formats.onnx.frontend import OnnxFrontend

    return OnnxFrontend(archive, options)
