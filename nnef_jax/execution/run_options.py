"""Says how a network is run, and holds parameters that are prepared for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import jax

from nnef_jax.errors import InputError


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Says how a network is run: keywords of `nnef_jax.load`, which documents them."""

    precision: jax.lax.PrecisionLike = None
    optimize: bool | Literal["strict"] = True
    autotune: bool = False
    donate_state: bool = False
    unused: bool = False
    straight_through: bool = False
    # What is compiled depends on what comes of `measure`, not on these.
    measure: bool = field(default=True, repr=False)
    max_executables: int = field(default=128, repr=False)
    cache_dir: str | None = field(default=None, repr=False)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["params", "values"],
    meta_fields=["definition"],
)
@dataclass(frozen=True)
class Prepared:
    """Takes the place of parameters in `apply`, `step` and `scan` of its model; a pytree.

    `params` are the parameters themselves, by label, in the memory they had. Other shapes, vmap,
    edits, captures, derivatives and platforms are computed from these.
    """

    params: Mapping[str, Any]
    values: Mapping[str, Any]  # what is prepared: of a function by name, on a mesh by label
    definition: Any

    def of(self, definition: Any) -> Prepared:
        """Return self if prepared for this definition; raise InputError for another network's."""
        if definition != self.definition:
            raise InputError(
                "params are prepared for another network",
                hint="give what prepare of this model returned",
            )
        return self

    def on(self, params: Mapping[str, Any]) -> Prepared:
        """Replace the parameters by checked ones. Where dtypes were converted, prepare nothing."""
        same = all(x.dtype == self.params[label].dtype for label, x in params.items())
        return Prepared(params, self.values if same else {}, self.definition)

    def __repr__(self) -> str:
        return f"<parameters prepared for {self.definition.network.graph.name}>"
