"""What is known when a network is flattened: weights in the .bin, shapes, indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray


@dataclass(slots=True, eq=False)
class Constant:
    """A known tensor of an element type: `label` is that of the weights that it is, "" if none.

    One that is `derived` follows from shapes, or is an operation's result on known tensors.
    """

    array: NDArray[Any]
    type: str
    label: str = ""
    derived: bool = False
