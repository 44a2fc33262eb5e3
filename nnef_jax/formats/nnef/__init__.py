"""NNEF 1.0 by Khronos, final and provisional: its parser, checks, evaluation and flattening.

An operation of a document becomes the graph's operation of the same name. A fragment that the
document defines keeps its body, even if the fragment has the name of such an operation.

Where are rules checked without shapes? `semantics`
Where are expressions evaluated? `evaluator`, `values`
Where are fragments expanded? `flatten`
"""

from __future__ import annotations

from nnef_jax.formats.base import Frontend, Options
from nnef_jax.storage.archive import Archive

GRAPHS = ("graph.nnef",)
ALONE: dict[str, bytes] = {}
HAS_WEIGHTS_BESIDE = False


def recognises(archive: Archive) -> bool:
    """Tell whether the archive has a graph.nnef."""
    return archive.exists("graph.nnef")


def read(archive: Archive, options: Options) -> Frontend:
    """Read the document of an archive, with its graph.quant, and check it. Raises NnefError."""
    from nnef_jax.formats.nnef.frontend import StandardFrontend

    return StandardFrontend(archive, options)
