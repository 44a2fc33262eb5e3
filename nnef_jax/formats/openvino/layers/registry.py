"""The registry of OpenVINO's layers by type, upper or lower case, and readers of known inputs.

Versions are versions of the document. Where older versions have an attribute, operation sets have a
known input. A reader returns such an input as an attribute of the meaning.
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

# Each of these functions takes the index of an input, and returns the reader of this input: as a
# tensor of the graph, as a tensor in the dtype of i64, as known axes of input 0, and as a known
# number, whose default may be a second argument.
tensor: Callable[[int], Any] = partial(methodcaller, "tensor")
integer_tensor: Callable[[int], Any] = partial(methodcaller, "integer_tensor")
axes_at: Callable[[int], Any] = partial(methodcaller, "axes")
number_at: Callable[..., Any] = partial(methodcaller, "scalar")


def axis_at(i: int) -> Any:
    """Return the reader of an input that names one axis of input 0."""
    return lambda site: site.axes(i)[0]


def integer_at(i: int) -> Any:
    """Return the reader of an input that is one integer."""
    return lambda site: site.integers(i)[0]


def integers_at(i: int, default: tuple[int, ...] | None = None) -> Any:
    """Return the reader of an input with integers. The input is required if `default` is None."""

    def read(site: LayerSite) -> Any:
        if default is not None and not site.has(i):
            return default
        return site.integers(i)

    return read


# Readers of attributes


def element(name: str, default: str | None = None) -> Any:
    """Return the reader of an attribute that is an element type, in the spelling of version 11."""
    return lambda site: element_type(site.text(name, default))


def either(attribute: Attribute, name: str) -> Any:
    """Return the reader of an attribute that some files call `name`."""
    other = replace(attribute, name=name)

    def read(site: LayerSite) -> Any:
        return attribute(site) if site.has_attribute(attribute.name) else other(site)

    return read
