"""How a document is to be flattened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from lowering.extents import UNKNOWN
from lowering.graph import TensorType
from lowering.location import Source
from lowering.registry import Registry
from nnef_jax.limits import Meter
from nnef_jax.text import syntax as s

Expand = Literal["auto", "all"]


class Quantizer(Protocol):
    """An operation that quantises one tensor, named by `node` in a text of its own (spec 5.3)."""

    @property
    def source(self) -> Source:
        """That text."""
        ...

    @property
    def node(self) -> s.Invocation:
        """The invocation as written, without the tensor."""
        ...

    def invocation(self, name: str, type: TensorType, *, variable: bool) -> s.Invocation:
        """The invocation for a tensor, which it calls by its name."""
        ...


@dataclass(frozen=True, slots=True)
class Options:
    """How to flatten: which operations stay atomic, what the tensors of the document become."""

    registry: Registry
    expand: Expand = "auto"
    real: str = "float32"
    input_shapes: Mapping[str, Sequence[int | None]] = field(
        default_factory=dict[str, Sequence[int | None]]
    )
    meter: Meter = field(default_factory=Meter)  # of the load
    quantizers: Mapping[str, Quantizer] = field(default_factory=dict[str, Quantizer])
    # Shapes of inputs in which jax.export keeps extents symbolic; these are open in `input_shapes`.
    symbolic_shapes: Mapping[str, Sequence[Any]] = field(default_factory=dict[str, Sequence[Any]])
    open_extent: int = UNKNOWN  # what an extent that the document leaves open is taken for
