"""OpenVINO's intermediate representation, versions 2 to 11: layers in .xml, weights in .bin.

Networks of other kinds come by its converter (`converter`).
"""

from __future__ import annotations

import os

from nnef_jax.formats.base import Frontend, Options
from nnef_jax.storage.archive import Archive

# Kinds of networks that are converted, by how the names of their graphs end.
_CONVERTED = {".tflite": "TensorFlow Lite", ".pb": "TensorFlow", ".pdmodel": "PaddlePaddle"}
GRAPHS = ("*.xml", "saved_model.pb", "*.pdmodel")
ALONE = {
    "model.xml": rb"\s*<(\?xml|net\b)",
    "model.tflite": rb"[\0-\xff]{4}TFL3",
    # A GraphDef: its first node, the name of that, its operation.
    "model.pb": rb"\x0a[\x80-\xff]{0,4}[\0-\x7f]\x0a[\x80-\xff]?[\x01-\x7f][\w./>-]+"
    rb"\x12[\x02-\x7f][A-Z_]",
}
HAS_WEIGHTS_BESIDE = True


def recognises(archive: Archive) -> bool:
    """Tell whether the graph is XML, or of a kind that is converted to it."""
    return archive.graph.endswith((".xml", *_CONVERTED))


def read(archive: Archive, options: Options) -> Frontend:
    """Return the checked network of an archive."""
    from nnef_jax.formats.openvino.frontend import OpenvinoFrontend

    kind = _CONVERTED.get(os.path.splitext(archive.graph)[1])
    if kind is None:
        return OpenvinoFrontend(archive, options)
    from nnef_jax.formats.openvino.converter import converted

    with converted(archive, kind, options.meter) as result:
        frontend = OpenvinoFrontend(result, options)
    frontend.dialect = f"{kind}, converted to {frontend.dialect}"
    return frontend
