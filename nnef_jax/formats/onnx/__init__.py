"""ONNX (Open Neural Network Exchange): models that are protobuf messages.

Tensors are in the message, or in files beside it. The `onnx` package, an extra, reads the message.
It is imported when an ONNX file is read.

Where is a node flattened? `flatten`, `node_site`
Where are open extents and their names read? `frontend`
"""

from __future__ import annotations

from nnef_jax.formats.base import Frontend, Options
from nnef_jax.storage.archive import Archive

# The pattern recognises a ModelProto by its first bytes: field 1, a varint with the version of the
# format, and the tag of the next field, one of the fields 2 to 8.
ALONE = {"model.onnx": rb"\x08[\x80-\xff]{0,9}[\x00-\x7f][\x12\x1a\x22\x28\x32\x3a\x42]"}
GRAPHS = ("*.onnx",)
HAS_WEIGHTS_BESIDE = False


def recognises(archive: Archive) -> bool:
    """Tell whether the graph has the name of an ONNX file."""
    return archive.graph.endswith(".onnx")


def read(archive: Archive, options: Options) -> Frontend:
    """Return the checked model of an archive."""
    from nnef_jax.formats.onnx.frontend import OnnxFrontend

    return OnnxFrontend(archive, options)
