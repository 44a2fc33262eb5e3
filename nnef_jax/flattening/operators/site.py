"""The site of an operator: the place where the operator occurs in a document.

A site is a node, a layer or a call of a document while it is flattened. The function of the
operator reads operands and attributes from the site, and adds operations at the site. This module
is for the sites of all formats.
"""

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
from nnef_jax.wording.similar import did_you_mean

# Elementwise operations whose operands have other names than x and y.
ON_ITEMS = ("clamp", "prelu", "select")
_Graph = TypeVar("_Graph", bound=Emission, covariant=True)


class OperatorSite(ABC, Generic[_Graph]):
    """A place in a document where an operator occurs, while the operator is flattened.

    The function of the operator reads operands and attributes from the site, and adds operations to
    the site's graph. `operands` has an item for each input. The item of an input that is left out
    is None.
    """

    __slots__ = ()
    graph: _Graph
    operands: Sequence[Any]

    @property
    @abstractmethod
    def operator(self) -> str:
        """Return the name of the operator in the registry."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the name of the operator's first result.

        The names of tensors that are inserted for the operator begin with this name.
        """

    @property
    @abstractmethod
    def title(self) -> str:
        """Return the text that describes the site in errors."""

    @property
    @abstractmethod
    def span(self) -> Span:
        """Return the site's place in the source."""

    # The methods below read an attribute by its name in the format. They raise InvalidOperation for
    # a missing attribute without a default, and for a value of another type.

    @abstractmethod
    def has_attribute(self, name: str) -> bool:
        """Tell whether the document gives the operator the attribute `name` at this site."""

    @abstractmethod
    def flag(self, name: str, default: bool = False) -> bool:
        """Return an attribute that is true or false."""

    @abstractmethod
    def number(self, name: str, default: float | None = None) -> float:
        """Return an attribute that is a real number."""

    @abstractmethod
    def int(self, name: str, default: int | None = None) -> int:
        """Return an attribute that is an integer."""

    @abstractmethod
    def numbers(self, name: str, default: Sequence[float] | None = None) -> Sequence[float]:
        """Return an attribute that is a list of real numbers."""

    @abstractmethod
    def ints(self, name: str, default: Sequence[int] | None = None) -> Sequence[int]:
        """Return an attribute that is a list of integers."""

    @abstractmethod
    def text(self, name: str, default: str | None = None) -> str:
        """Return an attribute that is a string."""

    @abstractmethod
    def dtype(self, name: str, default: Any = None) -> str:
        """Return an attribute that is an element type."""

    def wrong(self, name: str, due: str, value: object) -> InvalidOperation:
        """Return the error for an attribute with a wrong value.

        `due` describes the values that are allowed, such as "a whole number".
        """
        return InvalidOperation(f"attribute '{name}': {due} is due, this is {reprlib.repr(value)}")

    def word(self, name: str, *allowed: str) -> str:
        """Return an attribute that is one of the allowed words. The default is the first word."""
        return self.choice(name, *allowed, default=allowed[0])

    def choice(self, name: str, *allowed: str, default: str | None = None) -> str:
        """Return the attribute `name`, which must be one of the words `allowed`.

        The attribute is required if the default is None.
        """
        word = self.text(name, default)
        if word not in allowed:
            words = ", ".join(filter(None, allowed))
            raise InvalidOperation(
                f"attribute '{name}' is {word[:40]!r}, known are {words}",
                did_you_mean(word, allowed, meter=self.graph.meter),
            )
        return word

    def axis_of(self, name: str, default: int | None = None, rank: int | None = None) -> int:
        """Return the attribute `name`, an axis, as an index that is not negative.

        The axis is one of `rank` axes. If `rank` is None, it is an axis of input 0.
        """
        return self.axis(self.int(name, default), rank)

    # Operands

    def has(self, i: int) -> bool:
        """Tell whether the operator has an input `i` that is not left out."""
        return i < len(self.operands) and self.operands[i] is not None

    def operand(self, i: int) -> Any:
        """Return input `i`, which is a constant or a tensor of the graph."""
        if not self.has(i):
            raise InvalidOperation(f"input {i} is not connected")
        return self.operands[i]

    def input(self, i: int) -> Any:
        """Return input `i` in the form that the format's functions for operators take.

        For example, the functions for OpenVINO's layers take tensors of the graph.
        """
        return self.operand(i)

    def optional(self, i: int) -> Any:
        """Return input `i` as `input` does, or None if the input is left out."""
        return self.input(i) if self.has(i) else None

    @abstractmethod
    def shape(self, x: Any = 0) -> Shape:
        """Return the shape of an operand. Extents may be UNKNOWN.

        `x` is the operand itself or the index of an input.
        """

    def rank(self, x: Any = 0) -> int:
        """Return the rank of an operand. `x` is the operand itself or the index of an input."""
        return len(self.shape(x))

    def axis(self, axis: int, rank: int | None = None) -> int:
        """Return an axis as an index that is not negative. Of 3 axes, axis -1 is axis 2.

        `rank` is the number of axes, by default the rank of input 0. Raises InvalidOperation if
        there is no such axis.
        """
        if rank is None:
            rank = self.rank()
        if rank == 0 and axis == 0:
            return 0  # A scalar has no axes, but 0 is accepted as its axis.
        if not -rank <= axis < rank:
            raise InvalidOperation(f"there is no axis {axis} of {rank}")
        return axis % rank

    @abstractmethod
    def dtype_of(self, x: Any = 0) -> str:
        """Return the dtype in which the network computes an operand.

        `x` is the operand itself or the index of an input.
        """

    # Operations

    def spend(self, steps: int) -> None:
        """Count steps of work on the host before the work is done.

        Raises LimitError if there are too many steps.
        """
        self.graph.meter.spend(steps, self.title, self.span)

    def emit(self, kind: str, operands: ByName, /, **attributes: object) -> Any:
        """Add the last operation of the operator to the graph, and return its result.

        If the operation has several results, return a tuple.
        """
        return self._emit(kind, operands, attributes, inserted=False)

    def insert(self, kind: str, operands: ByName, /, **attributes: object) -> Any:
        """Add an operation that precedes the operator's last operation, and return the result.

        If the operation has several results, return a tuple.
        """
        return self._emit(kind, operands, attributes, inserted=True)

    @property
    def step(self) -> ByKind:
        """Return an object whose methods add operations that precede the operator's last one.

        For example, `site.step.mul(x, y)` adds a product; see `ByKind`.
        """
        return ByKind(self.insert)

    @property
    def last(self) -> ByKind:
        """Return an object whose methods add the operator's last operation.

        The result of this operation has the operator's name. See `ByKind`.
        """
        return ByKind(self.emit)

    def step_or_last(self, is_last: bool) -> ByKind:
        """Return `last` if the operation is the last one, else `step`."""
        return self.last if is_last else self.step

    @abstractmethod
    def _emit(self, kind: str, operands: ByName, attributes: ByName, inserted: bool) -> Any:
        """Add an operation of the kind `kind` to the graph, and return the operation's result.

        If `inserted`, the operation comes before the operator's last operation, otherwise it is the
        last operation.
        """
