"""Tensors known when a model is flattened: initialisers, shapes, indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A known tensor of a dtype: `label` is that of the initialiser that it is, "" if none.

    One that is `derived` follows from shapes, or is an operation's result on known tensors. Items
    are objects where extents among them are symbolic.
    """

    array: NDArray[Any]
    dtype: str
    label: str = ""
    derived: bool = False
