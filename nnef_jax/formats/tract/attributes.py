"""Converts arguments that are constant to attributes of the declared types."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN, is_symbolic
from lowering.graph import Value
from nnef_jax.flattening.hostvalues import host, integers
from nnef_jax.formats.base import EXPORT_KNOWN, GIVE_SHAPES
from nnef_jax.formats.syntax.types import INTEGER, LITERALS, ArrayOf, Primitive, TupleOf, Type

_LARGEST_INTEGER = (1 << 63) - 1  # the largest signed integer of 64 bits


def is_attribute(value: Any, type: Type) -> bool:
    """Tell whether an argument already is an attribute of the declared type `type`."""
    match type:
        case Primitive("integer"):
            return value.__class__ is int and -_LARGEST_INTEGER <= value <= _LARGEST_INTEGER
        case Primitive():
            return LITERALS.get(value.__class__) == type
        case ArrayOf(item):
            return value.__class__ is list and all([is_attribute(part, item) for part in value])
        case TupleOf(items):
            fits = value.__class__ is tuple and len(value) == len(items)
            return fits and all([is_attribute(*part) for part in zip(value, items, strict=True)])
        case _:
            return False


def attribute(value: object, type: Type) -> Any:
    """Convert an argument to an attribute that is declared as `type`.

    Raises InvalidOperation if the argument cannot be converted.
    """
    if is_attribute(value, type):
        return value
    is_list = isinstance(value, list | tuple)
    match type:
        case Primitive("string"):
            raise InvalidOperation(f"a string is due, this is {_shown(value)}")
        case Primitive("integer"):
            return _signed(_one(integers(_number(value)), value))
        case Primitive("logical"):
            return bool(_one(_number(value).ravel().tolist(), value))
        case Primitive("scalar"):
            number = _one(_number(value).ravel().tolist(), value)
            if is_symbolic(number):
                message = "a number must be known here, this is a symbolic extent"
                raise InvalidOperation(message, EXPORT_KNOWN)
            # UNKNOWN is an integer. NaN stands for an unknown real number.
            return math.nan if number is UNKNOWN else float(number)
        case ArrayOf(Primitive("integer" | "scalar" | "logical") as item) if not is_list:
            # A single number stands for an array of one item.
            array = _number(value)
            return [attribute(np.asarray(part, array.dtype), item) for part in array.ravel()]
        case ArrayOf(item):
            return [attribute(part, item) for part in _items(value)]
        case TupleOf(parts):
            items = _items(value)
            if len(items) != len(parts):
                raise InvalidOperation(f"{len(parts)} values are due, these are {len(items)}")
            return tuple(attribute(item, part) for item, part in zip(items, parts, strict=True))
        case _:
            raise InvalidOperation(f"a value of type {type} is due, this is {_shown(value)}")


def known_integer(value: object, name: str) -> int:
    """Return the argument `value`, which must be an integer. Errors show the argument as `name`.

    Raises InvalidOperation if the integer depends on an open extent or is symbolic.
    """
    integer = attribute(value, INTEGER)
    if integer is UNKNOWN or is_symbolic(integer):
        message = f"'{name}' must be known, but it depends on an open extent or is no number"
        raise InvalidOperation(message, GIVE_SHAPES)
    return integer


def _signed(integer: int) -> int:
    """Return an integer of 64 bits as a signed integer: 2**64 - 1 becomes -1.

    tract writes some negative integers as unsigned integers.
    """
    has_size = not is_symbolic(integer) and integer is not UNKNOWN
    if not has_size or abs(integer) <= _LARGEST_INTEGER:
        return integer
    if _LARGEST_INTEGER < integer < 1 << 64:
        return integer - (1 << 64)
    raise InvalidOperation(f"an integer of 64 bits is due, this is {integer}")


def _number(value: object) -> np.ndarray[Any, Any]:
    """Return a constant value as an array.

    Raises InvalidOperation for tensors, strings and tuples.
    """
    if isinstance(value, Value):
        raise InvalidOperation(
            f"'{value.name}' must be known when the network is compiled, "
            "but it depends on the data of the inputs",
            hint="shapes and other attributes may follow from shapes of the inputs, and from "
            "values of those that load(..., values={name: ...}) fixes",
        )
    if isinstance(value, str | tuple):
        raise InvalidOperation(f"a number is due, this is {_shown(value)}")
    return host(value)


def _items(value: object) -> list[Any]:
    """Return the items of a list, a tuple or an array. Raises InvalidOperation for other values."""
    if isinstance(value, list | tuple):
        return list(cast("Sequence[Any]", value))
    if isinstance(value, np.ndarray) and value.ndim:
        return [np.asarray(item, value.dtype) for item in value]
    raise InvalidOperation(f"an array is due, this is {_shown(value)}")


def _one(items: list[Any], value: object) -> Any:
    """Return the only item of a list. For other lists, raise an error that shows `value`."""
    if len(items) != 1:
        raise InvalidOperation(f"one value is due, this is {_shown(value)}")
    return items[0]


def _shown(value: object) -> str:
    """Return a short text for a value in an error."""
    if isinstance(value, Value):
        return f"the tensor '{value.name}'"
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return reprlib.repr(value)
