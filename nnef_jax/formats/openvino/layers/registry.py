"""The layers of OpenVINO, by their type in any case. Versions are those of the document.

What operation sets have as a known input is an attribute of a meaning by one of the readers here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import methodcaller
from typing import Any

from nnef_jax.flattening.operators.attributes import Attribute
from nnef_jax.flattening.operators.registry import Operators
from nnef_jax.formats.openvino.document import FIRST_OF_OPSETS
from nnef_jax.formats.openvino.element_types import element_type
from nnef_jax.formats.openvino.layer_site import LayerSite

OPERATORS = Operators(key=str.lower)
LEGACY = FIRST_OF_OPSETS - 1
operator = OPERATORS.operator
legacy = partial(operator, until=LEGACY)
opsets = partial(operator, since=FIRST_OF_OPSETS)
Reader = Callable[[LayerSite], Any]

# Readers of an input by its number: as a tensor of the graph, as whole numbers of it, as known axes
# of input 0, as a known number, which may have a default.
tensor: Callable[[int], Any] = partial(methodcaller, "tensor")
integer_tensor: Callable[[int], Any] = partial(methodcaller, "integer_tensor")
axes_at: Callable[[int], Any] = partial(methodcaller, "axes")
number_at: Callable[..., Any] = partial(methodcaller, "scalar")


def axis_at(i: int) -> Any:
    """Return an input that is one axis of input 0."""
    return lambda site: site.axes(i)[0]


def integer_at(i: int) -> Any:
    """Return an input that is one whole number."""
    return lambda site: site.integers(i)[0]


def integers_at(i: int, default: tuple[int, ...] | None = None) -> Any:
    """Return an input that is a list of whole numbers. None as a default makes it required."""
    return lambda site: site.integers(i) if default is None or site.has(i) else default


# Readers of attributes


def element(name: str, default: str | None = None) -> Any:
    """Return an attribute that is an element type, as files name these."""
    return lambda site: element_type(site.text(name, default))


def either(attribute: Attribute, name: str) -> Any:
    """Return an attribute that some files have under another name."""
    other = replace(attribute, name=name)
    return lambda site: (attribute if site.has_attribute(attribute.name) else other)(site)
