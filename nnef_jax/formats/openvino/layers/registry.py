"""The layers of OpenVINO, by their type in any case. Versions are those of the document."""

from __future__ import annotations

from functools import partial

from nnef_jax.flattening.operators import Operators
from nnef_jax.formats.openvino.document import FIRST_OF_OPSETS

OPERATORS = Operators(key=str.lower)
LEGACY = FIRST_OF_OPSETS - 1
operator = OPERATORS.operator
legacy = partial(operator, until=LEGACY)
opsets = partial(operator, since=FIRST_OF_OPSETS)
