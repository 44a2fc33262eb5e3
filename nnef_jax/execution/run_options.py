"""How a network is run, and parameters that are prepared for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypedDict

import jax

from nnef_jax.errors import InputError
from nnef_jax.options import require, require_flags


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
    """Says how a network is run: `RunKeywords`, and what reading decides."""

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

    def with_keywords(self, keywords: RunKeywords, *, has_rules: bool) -> RunOptions:
        """Return the options with other values of some; a network may have a user's rules.

        The folder of `cache_dir` is made. Raises TypeError or ValueError for a wrong value, and
        InputError for a folder that cannot be made or read.
        """
        options = replace(self, **keywords)
        if isinstance(precision := options.precision, list):
            options = replace(options, precision=tuple(precision))  # which can be hashed
        require_flags(
            autotune=options.autotune, donate_state=options.donate_state, measure=options.measure
        )
        if not isinstance(options.optimize, str) or options.optimize != "strict":
            require_flags(optimize=options.optimize)
        _require_precision(options.precision)
        require("max_executables", options.max_executables, int, "a number of functions")
        if options.max_executables < 1:
            message = f"max_executables must be at least 1, it is {options.max_executables}"
            raise ValueError(message)
        if options.cache_dir is None:
            return options
        if has_rules:
            raise ValueError("cache_dir does not go with rules: nothing tells when they change")
        from nnef_jax.execution.disk_cache import DiskCache

        return replace(options, cache_dir=DiskCache(options.cache_dir).directory)


def _require_precision(precision: jax.lax.PrecisionLike) -> None:
    """Raise ValueError for what jax does not take, which it would say at the first product."""
    if precision is not None:
        matrix = jax.ShapeDtypeStruct((1, 1), "float32")
        try:
            jax.eval_shape(partial(jax.lax.dot, precision=precision), matrix, matrix)
        except Exception as error:
            raise ValueError(f"precision {precision!r:.60} is none of jax: {error}") from None


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
