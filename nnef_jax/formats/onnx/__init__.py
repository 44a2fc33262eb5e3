"""ONNX (Open Neural Network Exchange): models that are protobuf messages.

The tensors of a model are in the message or in files beside it. The message is read by the `onnx`
package, which is an optional dependency. The package is imported when an ONNX file is read.

Where is a node flattened? `flatten`, `node_site`
Where are open extents and their names read? `frontend`
"""

from __future__ import annotations

from nnef_jax.formats.base import Frontend, Options
from nnef_jax.storage.archive import Archive

# The pattern matches the first bytes of a ModelProto. A ModelProto begins with field 1, the version
# of the format as a varint. The tag of one of the fields 2 to 8 follows.
ALONE = {"model.onnx": rb"\x08[\x80-\xff]{0,9}[\x00-\x7f][\x12\x1a\x22\x28\x32\x3a\x42]"}
GRAPHS = ("*.onnx",)
HAS_WEIGHTS_BESIDE = False


def recognises(archive: Archive) -> bool:
    """Tell whether the name of the graph's file ends with ".onnx"."""
    return archive.graph.endswith(".onnx")


def read(archive: Archive, options: Options) -> Frontend:
    """Read the model of an archive and check it."""
    from nnef_jax.formats.onnx.frontend import OnnxFrontend

    return OnnxFrontend(archive, options)
