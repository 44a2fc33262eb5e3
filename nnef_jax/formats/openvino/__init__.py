"""OpenVINO's intermediate representation, versions 2 to 11: layers in .xml, weights in .bin."""

from __future__ import annotations

from nnef_jax.formats.base import Frontend, Options
from nnef_jax.storage.archive import Archive

GRAPHS = ("*.xml",)
ALONE = {"model.xml": rb"\s*<(\?xml|net\b)"}
HAS_WEIGHTS_BESIDE = True


def recognises(archive: Archive) -> bool:
    """Tell whether the graph is XML."""
    return archive.graph.endswith(".xml")


def read(archive: Archive, options: Options) -> Frontend:
    """Return the checked network of an archive."""
    from nnef_jax.formats.openvino.frontend import OpenvinoFrontend

    return OpenvinoFrontend(archive, options)
