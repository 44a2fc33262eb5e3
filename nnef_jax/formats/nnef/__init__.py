"""NNEF 1.0, final and provisional, by Khronos: its parser, checks, evaluation and flattening."""

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
