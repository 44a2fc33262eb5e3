"""The list of formats, with the name and the package of each.

The module `base` defines the interface of a format. No other module has a list of formats. A format
is imported when it is first asked whether it recognises a network.

When a network is flattened, the format maps the document's operators to kinds of operations, by a
registry that belongs to the format. The user's `rules=` are looked up before the registry.
Conventions of a format become operations of the graph. For example, a filter in another layout is
transposed by an operation, so that the parameters keep the document's layout.

Where is an operator of a document mapped to operations? `nnef.flatten`, `tract.operators`,
    `openvino.layers`, `onnx.operators`
Where is the table of a format's operators? `nnef.operator_table`, `tract.operator_table`,
    `openvino.operator_table`, `onnx.operator_table`
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

# The packages of formats. The keys are the names of formats. The formats are tried from last to
# first, since an earlier format may recognise networks of a later format.
FORMATS = {
    "nnef": "nnef_jax.formats.nnef",
    "tract": "nnef_jax.formats.tract",
    "openvino": "nnef_jax.formats.openvino",
    "onnx": "nnef_jax.formats.onnx",
}
# Operations of a single format: maps a module to the names of the operations whose rules are in the
# module. A network that is converted to another format keeps these operations as custom operations.
# Therefore a graph of another format may have them too.
KINDS = {
    "nnef_jax.formats.tract.rules": (
        "tract.exp_unit_norm",
        "tract.exp_mean_norm",
        "tract.pulse_mask",
    ),
}


def graphs() -> tuple[str, ...]:
    """Return the patterns by which all formats recognise the file name of a graph."""
    names: list[str] = []
    for format in FORMATS:
        names += _format(format).GRAPHS
    return tuple(dict.fromkeys(names))


def sole_member(first_bytes: bytes) -> str:
    """Return the name that the single file of a network gets as an archive member.

    An example is "model.onnx". `first_bytes` has the first bytes of the file. Return "" if no
    format recognises these bytes.
    """
    for name in FORMATS:
        for member, pattern in _format(name).ALONE.items():
            if re.match(pattern, first_bytes):
                return member
    return ""


def format_of(archive: Archive, name: str = "auto") -> Format:
    """Return the format `name`. For "auto", return the format that recognises the network.

    Raises ArchiveError if the graph was removed after the archive was opened.
    """
    if name != "auto":
        return _format(name)
    for format in map(_format, reversed(FORMATS)):
        if format.recognises(archive):
            return format
    # Each graph that exists is recognised by a format.
    raise ArchiveError(f"{archive.location(archive.graph)} is not there any more")


def operators_of(name: str) -> Iterable[OperatorEntry]:
    """Return the table of the operators of the format `name`."""
    return import_module(f"{FORMATS[name]}.operator_table").entries()


def _format(name: str) -> Format:
    """Import the package of a format and return it."""
    return cast("Format", import_module(FORMATS[name]))
