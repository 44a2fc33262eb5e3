"""Defines the options of running a network, and the parameters prepared for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypedDict

import jax

from nnef_jax.errors import InputError


class RunKeywords(TypedDict, total=False):
    """Keywords of `nnef_jax.load` and `Model.with_options`, which `load` documents."""

    precision: jax.lax.PrecisionLike
    optimize: bool | Literal["strict"]
    autotune: bool
    donate_state: bool
    cache_dir: str | os.PathLike[str] | None
    measure: bool
    max_executables: int


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of running a network: `RunKeywords`, and three that reading decides."""

    precision: jax.lax.PrecisionLike = None
    optimize: bool | Literal["strict"] = True
    autotune: bool = False
    donate_state: bool = False
    unused: bool = False
    straight_through: bool = False
    # These fields are not in the repr, which is a part of keys of the disk cache: compiled code
    # depends on the rates that `measure` leads to, not on these values.
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
    """Parameters with prepared values, for `apply`, `step` and `scan` of one model; a pytree.

    `params` are the parameters by label, not copied. Calls of other shapes, vmap, edits, captures,
    derivatives and other platforms are computed from them.

    `values` are the prepared values, by name of the function that they are for; on a mesh, by label
    of the parameter.
    """

    params: Mapping[str, Any]
    values: Mapping[str, Any]
    definition: Any  # a Definition, whose module imports this one

    def checked_for(self, definition: object) -> Prepared:
        """Return self if prepared for this definition; raise InputError for another network's."""
        if definition != self.definition:
            hint = "give params that this model's prepare returned"
            raise InputError("params are prepared for another network", hint=hint)
        return self

    def with_params(self, params: Mapping[str, Any]) -> Prepared:
        """Replace the parameters by checked ones. If a dtype was converted, drop the values."""
        keep_dtypes = all(x.dtype == self.params[label].dtype for label, x in params.items())
        values = self.values if keep_dtypes else {}
        return Prepared(params, values, self.definition)

    def __repr__(self) -> str:
        return f"<parameters prepared for {self.definition.network.graph.name}>"


Params = Mapping[str, Any] | Prepared
