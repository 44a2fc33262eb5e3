"""The dialect of tract and torch_to_nnef: its text, its operations' declarations, its data."""

from __future__ import annotations

from nnef_jax.errors import UnsupportedError
from nnef_jax.formats.base import Frontend, Options
from nnef_jax.formats.tract.recognition import is_tract
from nnef_jax.storage.archive import Archive

GRAPHS = ("graph.nnef",)
ALONE: dict[str, bytes] = {}
HAS_WEIGHTS_BESIDE = False


def recognises(archive: Archive) -> bool:
    """Tell whether the text names a registry of tract, or quotes identifiers."""
    return archive.exists("graph.nnef") and is_tract(archive.read_text("graph.nnef").text)


def read(archive: Archive, options: Options) -> Frontend:
    """Return the checked document of an archive, which holds the types of its variables."""
    from nnef_jax.formats.tract.frontend import TractFrontend

    if archive.has_texts_alone:
        message = "a document of tract's dialect cannot be read without its data"
        raise UnsupportedError(message, hint="load the archive, and store it by model.save")
    return TractFrontend(archive, options)
