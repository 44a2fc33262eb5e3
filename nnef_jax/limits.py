"""Keeps the cost of one load within bounds. `Limits` has the bounds, a `Meter` counts the cost."""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Self

from lowering.graph import Call
from lowering.location import Span
from nnef_jax.errors import LimitError

# Costs in steps. A step is about half a microsecond on a server of 2024.
OPERATION_STEPS = 40  # steps to put an operation into a graph
TOKEN_STEPS = 15  # steps to read a token by a grammar
MEMBER_STEPS = 20  # steps to list a member of an archive
PIECE_STEPS = 5  # steps to read a piece of a compressed file
EVALUATION_STEPS = 2  # steps to evaluate an operator in a fragment; each operand adds 1 step
CALL_STEPS = 10  # steps to call a fragment
ERROR_STEPS = 60  # steps to record one of several errors
BINDING_STEPS = 4  # steps to bind an argument to its parameter
RESULT_STEPS = 3  # steps to add a result to an operation with several results
ROW_STEPS = 10  # steps to make a row of a summary
EXTENT_STEPS = 4  # steps to compute an extent of a tensor
# Amounts of work that take one step.
CALLS_PER_STEP = 8  # fragment calls in the chain of calls that each operation stores
LETTERS_PER_STEP = 8  # characters of a message, or of a name that is checked
COMPARISONS_PER_STEP = 4  # comparisons between letters of two names
FOLDED_PER_STEP = 16  # items of constants that are computed on the host while a network is traced


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on the cost of an untrusted document. Exceeding a bound raises `LimitError`.

    `expanded_bytes` bounds the memory of a load, and `steps` bounds its time. The other fields
    bound the document's structure. The defaults are far above the needs of real networks, and stop
    a hostile document within 10 seconds and 2 GB.

    >>> model = nnef_jax.load(path, limits=nnef_jax.Limits(expanded_bytes=16 << 30))
    """

    # Bytes for expanded archives and converted tensors. Memory-mapped files do not count.
    expanded_bytes: int = 2_000_000_000
    # Counted work: characters read, expressions evaluated, items computed on the host, and more.
    # The work of OpenVINO's converter cannot be counted. Instead, the converter is stopped after
    # one second for each 170,000 steps.
    steps: int = 10_000_000
    nesting: int = 200  # depth of nested expressions in the text
    call_depth: int = 2_000  # depth of nested fragment calls
    array_items: int = 10_000_000  # items of one array, characters of one string
    operations: int = 100_000  # operations of the flat graph
    tensor_items: int = 1 << 34  # items of one tensor of the graph

    @classmethod
    def unbounded(cls) -> Self:
        """Return limits that are never reached, for files that are trusted like a program."""
        return cls(**{field.name: sys.maxsize for field in fields(cls)})


class Meter:
    """A counter of the work of one load. It raises LimitError when the work exceeds `limits`."""

    __slots__ = ("expanded", "limits", "steps")

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits: Limits = limits or Limits()
        self.steps: int = 0  # spent so far
        self.expanded: int = 0  # bytes held so far

    def spend(
        self,
        steps: int,
        what: str = "the network",
        span: Span | None = None,
        calls: Sequence[Call] = (),
    ) -> None:
        """Count steps before the work is done. Raise LimitError if there are too many.

        Args:
            steps: the number of steps.
            what: the name of the work, for the error.
            span: the place in the document, for the error.
            calls: the fragment calls that led to this place, for the error.
        """
        self.steps += steps
        if self.steps > self.limits.steps:
            raise LimitError(
                f"{what} takes more than {self.limits.steps} steps",
                span=span,
                calls=calls,
                hint=raising("steps"),
            )

    def try_spend(self, steps: int) -> bool:
        """Count the steps of optional work, and return whether the work may be done.

        If the limit does not allow all of the steps, none of them is counted.
        """
        if self.steps + steps > self.limits.steps:
            return False
        self.steps += steps
        return True

    def fold(self, items: int) -> None:
        """Count elements of constants that the host computes while a network is traced.

        `items` is the number of elements.
        """
        self.spend(items // FOLDED_PER_STEP, "folding constants")

    def expand(self, size: int, name: str) -> None:
        """Count bytes before they are allocated. Raise LimitError if there are too many.

        `name` is the name of the file with the bytes, for the error.
        """
        self.expanded += size
        if self.expanded > self.limits.expanded_bytes:
            bound = f"{self.limits.expanded_bytes} bytes of memory when it is expanded"
            message = f"{name}: the network takes more than {bound}"
            raise LimitError(message, hint=raising("expanded_bytes"))


def raising(limit: str) -> str:
    """Return the hint of a LimitError, which tells how a user can raise a limit in `load`.

    `limit` is the name of the limit, such as "steps".
    """
    return f"load(..., limits=nnef_jax.Limits({limit}=...)) allows more, if the file is trusted"


@contextmanager
def within_memory(what: str) -> Generator[None]:
    """Turn a MemoryError or a RecursionError from the `with` block into a LimitError.

    `what` names the object that is too large, such as "the network".
    """
    try:
        yield
    except MemoryError:
        raise LimitError(f"{what} does not fit into memory") from None
    except RecursionError:
        raise LimitError(f"{what} is nested too deeply for Python's stack") from None
