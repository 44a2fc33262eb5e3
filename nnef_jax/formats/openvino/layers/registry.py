"""The registry of OpenVINO's layers, and functions that read known inputs.

Layers are looked up by their type, in upper or lower case. Versions are versions of the document.
Where layers of older versions have an attribute, layers of operation sets have a known input. Such
an input becomes an attribute of the meaning, by one of the readers in this module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import methodcaller
from typing import Any

from nnef_jax.flattening.operators.attributes import Attribute
from nnef_jax.flattening.operators.registry import Operators, Registration
from nnef_jax.formats.openvino.document import FIRST_OF_OPSETS
from nnef_jax.formats.openvino.element_types import element_type
from nnef_jax.formats.openvino.layer_site import LayerSite

OPERATORS = Operators(key=str.lower)
LEGACY = FIRST_OF_OPSETS - 1
operator: Registration = OPERATORS.operator
legacy: Registration = partial(operator, until=LEGACY)
opsets: Registration = partial(operator, since=FIRST_OF_OPSETS)
Reader = Callable[[LayerSite], Any]

# Each of these functions takes the index of an input and returns a reader of the input. `tensor`
# reads a tensor of the graph, and `integer_tensor` a tensor in the dtype in which i64 is computed.
# `axes_at` reads known axes of input 0. `number_at` reads a known number, and its second argument
# is the default.
tensor: Callable[[int], Any] = partial(methodcaller, "tensor")
integer_tensor: Callable[[int], Any] = partial(methodcaller, "integer_tensor")
axes_at: Callable[[int], Any] = partial(methodcaller, "axes")
number_at: Callable[..., Any] = partial(methodcaller, "scalar")


def axis_at(i: int) -> Any:
    """Return a function that reads the axis of input 0 that input `i` of a layer holds."""
    return lambda site: site.axes(i)[0]


def integer_at(i: int) -> Any:
    """Return a function that reads the known integer in input `i` of a layer."""
    return lambda site: site.integers(i)[0]


def integers_at(i: int, default: tuple[int, ...] | None = None) -> Any:
    """Return a function that reads the list of known integers in input `i` of a layer.

    If the input is missing, the function returns `default`. If `default` is None, the input is
    required.
    """

    def read(site: LayerSite) -> Any:
        if default is not None and not site.has(i):
            return default
        return site.integers(i)

    return read


# Readers of attributes


def element(name: str, default: str | None = None) -> Any:
    """Return a function that reads an element type from the attribute `name`.

    The function returns the type as version 11 spells it.
    """
    return lambda site: element_type(site.text(name, default))


def either(attribute: Attribute, name: str) -> Any:
    """Return a function that reads an attribute that has another name, `name`, in some files."""
    other = replace(attribute, name=name)

    def read(site: LayerSite) -> Any:
        return attribute(site) if site.has_attribute(attribute.name) else other(site)

    return read
