"""The place where a format has an operator, of any format: attributes, and what adds operations."""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from lowering.errors import InvalidOperation
from lowering.extents import Shape
from lowering.location import Span
from nnef_jax.flattening.by_kind import ByKind
from nnef_jax.flattening.emission import ByName, Emission
from nnef_jax.similar import did_you_mean

ON_ITEMS = ("clamp", "prelu", "select")  # kinds on items, besides those of x and y
_Graph = TypeVar("_Graph", bound=Emission)


class OperatorSite(ABC, Generic[_Graph]):
    """A site of an operator. It reads operands and attributes, and adds operations.

    `operands` are by input, None where one is left out.
    """

    __slots__ = ()
    graph: _Graph
    operands: Sequence[Any]

    @property
    @abstractmethod
    def operator(self) -> str:
        """Return the name of the operator, as the registry has it."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the beginning of its tensors' names."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Return its name in errors."""

    @property
    @abstractmethod
    def span(self) -> Span:
        """Return its place in the source."""

    # Attributes. They are by the name that the format has, with a default. A missing one without a
    # default, or one of another type, raises InvalidOperation.

    @abstractmethod
    def has_attribute(self, name: str) -> bool:
        """Tell whether an attribute is written."""

    @abstractmethod
    def flag(self, name: str, default: bool = False) -> bool:
        """Return an attribute that is true or false."""

    @abstractmethod
    def number(self, name: str, default: float | None = None) -> float:
        """Return an attribute that is a real number."""

    @abstractmethod
    def int(self, name: str, default: int | None = None) -> int:
        """Return an attribute that is a whole number."""

    @abstractmethod
    def numbers(self, name: str, default: Sequence[float] | None = None) -> Sequence[float]:
        """Return an attribute that is a list of real numbers."""

    @abstractmethod
    def ints(self, name: str, default: Sequence[int] | None = None) -> Sequence[int]:
        """Return an attribute that is a list of whole numbers."""

    @abstractmethod
    def text(self, name: str, default: str | None = None) -> str:
        """Return an attribute that is a text."""

    @abstractmethod
    def dtype(self, name: str, default: Any = None) -> str:
        """Return an attribute that is an element type."""

    def wrong(self, name: str, due: str, value: Any) -> InvalidOperation:
        """Return the error of an attribute that is not what is due, as "a whole number"."""
        return InvalidOperation(f"attribute '{name}': {due} is due, this is {reprlib.repr(value)}")

    def word(self, name: str, *allowed: str) -> str:
        """Return an attribute that is one of some words, the first where it is missing."""
        return self.choice(name, *allowed, default=allowed[0])

    def choice(self, name: str, *allowed: str, default: str | None = None) -> str:
        """Return an attribute that is one of some words."""
        word = self.text(name, default)
        if word not in allowed:
            words = ", ".join(filter(None, allowed))
            raise InvalidOperation(
                f"attribute '{name}' is {word[:40]!r}, known are {words}",
                did_you_mean(word, allowed, meter=self.graph.meter),
            )
        return word

    def axis_of(self, name: str, default: int | None = None, rank: int | None = None) -> int:
        """Return the axis, of input 0 by default, that an attribute names."""
        return self.axis(self.int(name, default), rank)

    # What it reads

    def has(self, i: int) -> bool:
        """Tell whether an input is given."""
        return i < len(self.operands) and self.operands[i] is not None

    def operand(self, i: int) -> Any:
        """Return an input, known or not."""
        if not self.has(i):
            raise InvalidOperation(f"input {i} is not connected")
        return self.operands[i]

    def input(self, i: int) -> Any:
        """Return an input as meanings of operators take it."""
        return self.operand(i)

    def optional(self, i: int) -> Any:
        """Return an input as meanings of operators take it, None where it is left out."""
        return self.input(i) if self.has(i) else None

    @abstractmethod
    def shape(self, x: Any = 0) -> Shape:
        """Return the shape of an input; extents may be UNKNOWN."""

    def rank(self, x: Any = 0) -> int:
        """Return how many axes an input has."""
        return len(self.shape(x))

    def axis(self, axis: int, rank: int | None = None) -> int:
        """Return an axis, counted from the end where it is negative."""
        rank = self.rank() if rank is None else rank
        if not -rank <= axis < max(rank, 1):
            raise InvalidOperation(f"there is no axis {axis} of {rank}")
        return axis % rank if rank else 0

    @abstractmethod
    def dtype_of(self, x: Any = 0) -> str:
        """Return the dtype that an input is computed in, known or not."""

    # What it adds

    def spend(self, steps: int) -> None:
        """Count steps before they are done while it is read; raise LimitError for too many."""
        self.graph.meter.spend(steps, self.title, self.span)

    def emit(self, kind: str, operands: ByName, /, **attributes: Any) -> Any:
        """Add the operation that it is; return its result, several as a tuple."""
        return self._emit(kind, operands, attributes, False)

    def insert(self, kind: str, operands: ByName, /, **attributes: Any) -> Any:
        """Add an operation before it; return its result, several as a tuple."""
        return self._emit(kind, operands, attributes, True)

    @property
    def step(self) -> ByKind:
        """Return the builder of operations on the way to the result."""
        return ByKind(self.insert)

    @property
    def last(self) -> ByKind:
        """Return the builder of the operation that it is, which has its name."""
        return ByKind(self.emit)

    def step_or_last(self, is_last: bool) -> ByKind:
        """Return `last` for the operation that it is, else `step`."""
        return self.last if is_last else self.step

    @abstractmethod
    def _emit(self, kind: str, operands: ByName, attributes: ByName, inserted: bool) -> Any:
        """Add the operator's own operation, or insert one before it."""
