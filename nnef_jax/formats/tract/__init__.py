"""The dialect of tract and torch_to_nnef: its language, operations, data files and flattening.

Where are the operations of a registry declared? `declarations`
Where are symbols of extents solved? `symbols`
Where are implicit casts added? `application`
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nnef_jax.errors import UnsupportedError
from nnef_jax.formats.base import Frontend, Options
from nnef_jax.formats.syntax.tokens import OPEN_STRING
from nnef_jax.storage.archive import Archive

GRAPHS = ("graph.nnef",)
ALONE: dict[str, bytes] = {}
HAS_WEIGHTS_BESIDE = False
# Matches a construction that only the dialect has; the construction is group 1. The pattern also
# matches each comment or string as a whole, without a group. Therefore a search skips constructions
# inside comments and strings.
_SIGN = re.compile(
    r"\#[^\n]*+|(\bextension\s++tract_\w|\bfragment\s++tract_core_properties\b"
    rf"|\bi{OPEN_STRING})|{OPEN_STRING}"
)


def recognises(archive: Archive) -> bool:
    """Tell whether the archive has a graph.nnef that is written in the dialect."""
    return archive.exists("graph.nnef") and is_tract(archive.read_text("graph.nnef").text)


def read(archive: Archive, options: Options) -> Frontend:
    """Read the document of an archive. Raises NnefError, also if the archive has no data.

    The text cannot be read without the data files, since only these have the types of variables.
    """
    from nnef_jax.formats.tract.frontend import TractFrontend

    if archive.is_of_texts:
        message = "a document of tract's dialect cannot be read without its data"
        raise UnsupportedError(message, hint="load the archive, and store it by model.save")
    return TractFrontend(archive, options)


def is_tract(text: str) -> bool:
    """Tell whether a text is in the dialect: it names a registry, or has identifiers in quotes."""
    # This test is fast. The search for the pattern takes 20 ms for a text of 5,000 statements.
    if not any(sign in text for sign in ("tract_", "i'", 'i"')):
        return False
    return any(signs(text))


def signs(text: str) -> Iterator[re.Match[str]]:
    """Yield the places of constructions that only the dialect has, as matches in a text."""
    for match in _SIGN.finditer(text):
        is_in_comment_or_string = match[1] is None
        if not is_in_comment_or_string:
            yield match
