"""The format OpenVINO IR, versions 2 to 11: layers in an .xml file, weights in a .bin file.

Networks of TensorFlow, TensorFlow Lite and PaddlePaddle are read too. The module `converter`
converts them to OpenVINO IR.

Where is `auto_pad` converted to padding? `window_attributes`
Where are a network's inputs, outputs and variables declared? `network_ends`
Where are the bodies of loops connected? `ports`
"""

from __future__ import annotations

import os

from nnef_jax.formats.base import Frontend, Options
from nnef_jax.storage.archive import Archive

# Maps the ending of a file's name to the framework of the network in the file. Networks of these
# frameworks are converted.
_CONVERTED = {".tflite": "TensorFlow Lite", ".pb": "TensorFlow", ".pdmodel": "PaddlePaddle"}
GRAPHS = ("*.xml", "saved_model.pb", "*.pdmodel")
ALONE = {
    "model.xml": rb"\s*<(\?xml|net\b)",
    "model.tflite": rb"[\0-\xff]{4}TFL3",
    # A TensorFlow GraphDef begins with the first node, the node's name, and the node's operation.
    "model.pb": rb"\x0a[\x80-\xff]{0,4}[\0-\x7f]\x0a[\x80-\xff]?[\x01-\x7f][\w./>-]+"
    rb"\x12[\x02-\x7f][A-Z_]",
}
HAS_WEIGHTS_BESIDE = True


def recognises(archive: Archive) -> bool:
    """Tell whether the graph is XML, or a network that OpenVINO converts."""
    return archive.graph.endswith((".xml", *_CONVERTED))


def read(archive: Archive, options: Options) -> Frontend:
    """Read the network of an archive and check it. Raises NnefError."""
    from nnef_jax.formats.openvino.frontend import OpenvinoFrontend

    _, ending = os.path.splitext(archive.graph)
    kind = _CONVERTED.get(ending)
    if kind is None:
        return OpenvinoFrontend(archive, options)
    from nnef_jax.formats.openvino.converter import converted

    with converted(archive, kind, options.meter) as result:
        frontend = OpenvinoFrontend(result, options)
    frontend.dialect = f"{kind}, converted to {frontend.dialect}"
    return frontend
