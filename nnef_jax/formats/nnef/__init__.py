"""NNEF 1.0, final and provisional, by Khronos: its parser, checks, evaluation and flattening.

An operation of a document is the kind of the same name. A fragment of the document's own keeps its
body, even if a kind has its name.

Where are the rules checked that need no shapes? `semantics`
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
    """Return the checked document of an archive, with its graph.quant. Raises NnefError."""
    from nnef_jax.formats.nnef.frontend import StandardFrontend

    return StandardFrontend(archive, options)
