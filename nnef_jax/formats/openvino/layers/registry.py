"""The registry of OpenVINO's layers, and functions that read constant inputs.

Layers are looked up by their type, in upper or lower case. Versions are versions of the document.
Some values are attributes in old layers, but constant inputs in the layers of operation sets. A
reader in this module reads such an input, and passes the value to the function of the layer as an
attribute.
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
LEGACY = FIRST_OF_OPSETS - 1  # the last version in which layers hold their weights
# Decorators that register the function of a layer for all versions, for the versions before
# operation sets, and for the versions with operation sets.
operator: Registration = OPERATORS.operator
legacy: Registration = partial(operator, until=LEGACY)
opsets: Registration = partial(operator, since=FIRST_OF_OPSETS)
Reader = Callable[[LayerSite], Any]  # a function that reads an attribute or input of a layer

# Each of these functions takes the index of an input and returns a reader of the input. `tensor`
# reads a tensor of the graph, and `integer_tensor` a tensor in the dtype in which i64 is computed.
# `axes_at` reads a constant list of axes of input 0. `number_at` reads a constant number, and its
# second argument is the default.
tensor: Callable[[int], Any] = partial(methodcaller, "tensor")
integer_tensor: Callable[[int], Any] = partial(methodcaller, "integer_tensor")
axes_at: Callable[[int], Any] = partial(methodcaller, "axes")
number_at: Callable[..., Any] = partial(methodcaller, "scalar")


def axis_at(i: int) -> Any:
    """Return a function that reads an axis of input 0. Input `i` of the layer holds the axis."""
    return lambda site: site.axes(i)[0]


def integer_at(i: int) -> Any:
    """Return a function that reads a constant integer from input `i` of a layer."""
    return lambda site: site.integers(i)[0]


def integers_at(i: int, default: tuple[int, ...] | None = None) -> Any:
    """Return a function that reads a constant list of integers from input `i` of a layer.

    If the input is missing, the function returns `default`. If `default` is None, the input is
    required.
    """

    def read(site: LayerSite) -> Any:
        is_optional = default is not None
        if is_optional and not site.has(i):
            return default
        return site.integers(i)

    return read


# Readers of attributes


def element(name: str, default: str | None = None) -> Any:
    """Return a function that reads an element type from the attribute `name`.

    The function returns the type's name in version 11 of the format, such as "f32".
    """
    return lambda site: element_type(site.text(name, default))


def either(attribute: Attribute, name: str) -> Any:
    """Return a function that reads `attribute`. In some files the attribute's name is `name`."""
    renamed_attribute = replace(attribute, name=name)

    def read(site: LayerSite) -> Any:
        if site.has_attribute(attribute.name):
            return attribute(site)
        return renamed_attribute(site)

    return read
