"""The formats that networks are read from, a folder each. This list is all that names them.

`base` says what a format is. A format is imported when a network may be of it.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, cast

from nnef_jax.errors import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nnef_jax.flattening.operators.table import OperatorEntry
    from nnef_jax.formats.base import Format
    from nnef_jax.storage.archive import Archive

# Packages by the names that `dialect` takes. A later one is asked first: it tells its networks from
# those of the formats before it.
FORMATS = {
    "nnef": "nnef_jax.formats.nnef",
    "tract": "nnef_jax.formats.tract",
    "openvino": "nnef_jax.formats.openvino",
    "onnx": "nnef_jax.formats.onnx",
}
# Kinds that one format alone has, by the module of their rules: a graph names them wherever it was
# read.
KINDS = {
    "nnef_jax.formats.tract.rules": (
        "tract.exp_unit_norm",
        "tract.exp_mean_norm",
        "tract.pulse_mask",
    ),
}


def graphs() -> tuple[str, ...]:
    """Return the members that hold the graph of a network, in any format."""
    return tuple(dict.fromkeys(name for format in FORMATS for name in _format(format).GRAPHS))


def sole_member(start: bytes) -> str:
    """Return the member that a file which starts like this is of a network, '' for none."""
    found = (alone for name in FORMATS for alone in _format(name).ALONE.items())
    return next((member for member, pattern in found if re.match(pattern, start)), "")


def format_of(archive: Archive, name: str = "auto") -> Format:
    """Return the format of this name, or by "auto" the one that recognises a network.

    Raises ArchiveError where its graph is not there any more.
    """
    if name != "auto":
        return _format(name)
    for format in map(_format, reversed(FORMATS)):
        if format.recognises(archive):
            return format
    raise ArchiveError(f"{archive.location(archive.graph)} is not there any more")


def operators_of(name: str) -> Iterable[OperatorEntry]:
    """Return the operators that a format has: `entries` of its module `operator_table`."""
    return import_module(f"{FORMATS[name]}.operator_table").entries()


def _format(name: str) -> Format:
    return cast("Format", import_module(FORMATS[name]))
