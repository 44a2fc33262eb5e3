"""Protocols for jax's traced functions and their equations, with the attributes that passes use."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, Protocol

import numpy as np

Params = dict[str, Any]  # an equation's parameters by name; their types depend on the primitive


class Aval(Protocol):
    """The type of a variable or literal, which jax calls its abstract value."""

    shape: tuple[int, ...]  # extents may be symbolic
    dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        """Return the number of axes."""
        ...

    @property
    def size(self) -> int:
        """Return the number of items."""
        ...

    def update(self, *, shape: tuple[int, ...]) -> Aval:
        """Return a type with the shape `shape` and this type's dtype."""
        ...

    def to_tangent_aval(self) -> Any:
        """Return the type that a tangent has: tangents of integers have the dtype float0."""
        ...


class Variable(Protocol):
    """A variable of a traced function, compared by identity."""

    aval: Aval


class Literal(Protocol):
    """A number as an operand of an equation, or as a result of a traced function."""

    aval: Aval
    val: Any  # a Python number, or a scalar of numpy


Atom = Variable | Literal  # an operand of an equation, or a result of a traced function


class Primitive(Protocol):
    """The operation of an equation, such as `add`. The equation holds the parameters."""

    name: str
    multiple_results: bool

    def bind(self, *operands: object, **params: object) -> Any:
        """Apply the primitive, and return its result, or a list of its results.

        In a trace, this call adds an equation. The result is a list if `multiple_results` is
        true.
        """
        ...


class Equation(Protocol):
    """An equation of a traced function: a primitive with its parameters, operands and results."""

    primitive: Primitive
    params: Params
    invars: Sequence[Atom]
    outvars: Sequence[Variable]
    effects: Set[object]
    ctx: object  # jax's context: the kind of memory, and metadata for XLA
    source_info: Any  # jax's record of the place in the source; only `jaxprs` reads it

    def replace(self, **changes: object) -> Equation:
        """Return the equation with the attributes `changes` in place of its own."""
        ...


class Jaxpr(Protocol):
    """A traced function without the values of its constants."""

    constvars: Sequence[Variable]
    invars: Sequence[Variable]
    outvars: Sequence[Atom]
    eqns: Sequence[Equation]
    debug_info: Any
    effects: Set[object]

    def replace(self, **changes: object) -> Jaxpr:
        """Return the function with the attributes `changes` in place of its own."""
        ...


class ClosedJaxpr(Protocol):
    """A traced function with the values of its constants."""

    jaxpr: Jaxpr
    consts: Sequence[Any]
    in_avals: Sequence[Aval]
    out_avals: Sequence[Aval]
    effects: Set[object]
