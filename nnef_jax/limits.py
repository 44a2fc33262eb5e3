"""Bounds how much one load may take: `Limits` says it, a `Meter` counts it."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Self

from lowering.graph import Call
from lowering.location import Span
from nnef_jax.errors import LimitError

# What takes more than a step, which is about half a microsecond on a server of 2024.
OPERATION = 40  # an operation put into a graph
TOKEN = 15  # a token read by a grammar
MEMBER = 20  # a member of an archive
PIECE = 5  # of a compressed file, read at a time
EVALUATION = 2  # of an operator in a fragment, beside a step for each of its operands
CALL = 10  # of a fragment
ERROR = 60  # that is found beside others
BINDING = 4  # an argument to its parameter
RESULT = 3  # of an operation that has many
CALLS_PER_STEP = 8  # of the chain of fragment calls that each operation keeps
LETTERS_PER_STEP = 8  # of what is put into messages, or searched for what no file may be called
COMPARISONS_PER_STEP = 4  # of a letter of one name with a letter of another
ROW = 10  # of a summary
EXTENT = 4  # of the shape of a tensor
FOLDED_PER_STEP = 16  # items of constants that are computed while a network is traced


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what a stranger's document may cost; beyond one of them is a `LimitError`.

    A load counts memory in `expanded_bytes` and time in `steps`; the other fields bound the
    document's structure. The defaults are far above what real networks need, and end anything
    hostile within 10 seconds and 2 GB.

    >>> model = nnef_jax.load(path, limits=nnef_jax.Limits(expanded_bytes=16 << 30))
    """

    # Bytes held beside the files: expanded archives, converted tensors; not what is memory-mapped.
    expanded_bytes: int = 2_000_000_000
    # Characters read, expressions evaluated, items computed on the host, and more; of the converter
    # of OpenVINO a second of time for 170,000.
    steps: int = 10_000_000
    nesting: int = 200  # of expressions in the text
    call_depth: int = 2_000  # of fragment calls
    array_items: int = 10_000_000  # items of one array, characters of one string
    operations: int = 100_000  # of the flat graph
    tensor_items: int = 1 << 34  # of one tensor of the graph

    @classmethod
    def unbounded(cls) -> Self:
        """Return limits that nothing reaches, for files that are trusted like a program."""
        return cls(**{field.name: sys.maxsize for field in fields(cls)})


class Meter:
    """Counts the work of one load, and refuses work beyond `limits`."""

    __slots__ = ("expanded", "limits", "steps")

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.steps = 0  # spent so far
        self.expanded = 0  # bytes held so far

    def spend(
        self,
        steps: int,
        what: str = "the network",
        span: Span | None = None,
        calls: Sequence[Call] = (),
    ) -> None:
        """Count steps before they are done; raise LimitError where they are too many.

        `what` is being read, at a `span` that fragment `calls` led to.
        """
        self.steps += steps
        if self.steps > self.limits.steps:
            raise LimitError(
                f"{what} takes more than {self.limits.steps} steps",
                span=span,
                calls=calls,
                hint=raising("steps"),
            )

    def affords(self, steps: int) -> bool:
        """Count steps of optional work; return False, uncounted, where there are too many."""
        if self.steps + steps > self.limits.steps:
            return False
        self.steps += steps
        return True

    def fold(self, items: int) -> None:
        """Count items that are computed on the host while a network is traced."""
        self.spend(items // FOLDED_PER_STEP, "folding constants")

    def expand(self, size: int, name: str) -> None:
        """Count bytes of a file before they are held; raise LimitError for too many."""
        self.expanded += size
        if self.expanded > self.limits.expanded_bytes:
            raise LimitError(
                f"{name}: the network takes more than {self.limits.expanded_bytes} bytes of memory "
                "when it is expanded",
                hint=raising("expanded_bytes"),
            )


def raising(limit: str) -> str:
    """Return how to raise a limit."""
    return f"load(..., limits=nnef_jax.Limits({limit}=...)) allows more, if the file is trusted"


@contextmanager
def within_memory(what: str) -> Generator[None]:
    """Make a LimitError of Python's errors for want of memory or of stack."""
    try:
        yield
    except MemoryError:
        raise LimitError(f"{what} does not fit into memory") from None
    except RecursionError:
        raise LimitError(f"{what} is nested too deeply for Python's stack") from None
