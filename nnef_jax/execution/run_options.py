"""Defines the options of running a network, and parameters with prepared values."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypedDict

import jax

from nnef_jax.errors import InputError
from nnef_jax.options import checked_run


class RunKeywords(TypedDict, total=False):
    """Keywords of `nnef_jax.load` and `Model.with_options`.

    The docstring of `load` explains them.
    """

    precision: jax.lax.PrecisionLike
    optimize: bool | Literal["strict"]
    autotune: bool
    donate_state: bool
    cache_dir: str | os.PathLike[str] | None
    measure: bool
    max_executables: int


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of running a network: the keywords of `RunKeywords`, and two more.

    The other two are `unused` and `straight_through`. They are set when the network is read.
    """

    precision: jax.lax.PrecisionLike = None
    optimize: bool | Literal["strict"] = True
    autotune: bool = False
    donate_state: bool = False
    unused: bool = False
    straight_through: bool = False
    # The repr of the options is part of the keys of the disk cache. Compiled code does not depend
    # on the values of the following fields, so the repr leaves these fields out. `measure` only
    # affects the rates of the host. The keys contain the choices that are made by these rates.
    measure: bool = field(default=True, repr=False)
    max_executables: int = field(default=128, repr=False)
    cache_dir: str | None = field(default=None, repr=False)


def run_options(before: RunOptions, keywords: RunKeywords, *, has_rules: bool) -> RunOptions:
    """Check a user's keywords, and return the options `before` with these keywords set.

    The folder `cache_dir` is created. `has_rules` tells whether the user passed rules.
    Raises the errors of `checked_run`, and InputError for a folder that cannot be created or
    read.
    """
    checked = checked_run(keywords, has_rules=has_rules)
    if checked.get("cache_dir") is not None:
        from nnef_jax.execution.disk_cache import DiskCache

        checked["cache_dir"] = DiskCache(checked["cache_dir"]).directory
    return replace(before, **checked)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["params", "values"],
    meta_fields=["definition"],
)
@dataclass(frozen=True)
class Prepared:
    """A pytree of parameters and prepared values, for `apply`, `step` and `scan` of one model.

    `params` maps labels to the parameters, which are not copied. The parameters are used instead of
    the prepared values in calls with other shapes, under vmap, with edits or captures, for
    derivatives, and on other platforms.

    `values` maps names of functions to the values that are prepared for these functions. On a mesh
    it instead maps labels of parameters to the values that are made from these parameters.
    """

    params: Mapping[str, Any]
    values: Mapping[str, Any]
    # This is a `Definition`. The module of this class imports this module, so the class cannot be
    # imported here.
    definition: Any

    def checked_for(self, definition: object) -> Prepared:
        """Return this object, or raise InputError if it was not prepared for `definition`."""
        if definition != self.definition:
            hint = "give params that this model's prepare returned"
            raise InputError("params are prepared for another network", hint=hint)
        return self

    def with_params(self, params: Mapping[str, Any]) -> Prepared:
        """Return a copy with other parameters, which have been checked for the network.

        If the check converted the dtype of a parameter, the copy has no prepared values.
        """
        keep_dtypes = all(x.dtype == self.params[label].dtype for label, x in params.items())
        values = self.values if keep_dtypes else {}
        return Prepared(params, values, self.definition)

    def __repr__(self) -> str:
        return f"<parameters prepared for {self.definition.network.graph.name}>"


Params = Mapping[str, Any] | Prepared
