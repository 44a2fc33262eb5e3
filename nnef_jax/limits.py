"""How much of a document, an archive or a tensor is read before giving up."""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 1 << 20
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what `load` reads; whatever is beyond one of them is a `LimitError`.

    The defaults are far above what real networks need and keep a hostile file from taking the
    machine.
    """

    text_bytes: int = 256 * _MIB  # a text member: graph.nnef, graph.quant
    archive_bytes: int = 64 * _GIB  # all members of an archive together, expanded
    archive_ratio: int = 1000  # expanded bytes for each compressed byte
    archive_members: int = 1_000_000
    tensor_bytes: int = 16 * _GIB  # one tensor file
    tensor_items: int = 1 << 34  # one tensor of the graph
    nesting: int = 200  # of expressions in the text
    call_depth: int = 2_000  # of fragment calls
    steps: int = 2_000_000  # expressions evaluated while flattening
    array_items: int = 10_000_000  # items of one array, characters of one string
    operations: int = 100_000  # of the flat graph
