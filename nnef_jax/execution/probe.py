"""Edits and captures tensors inside a network during one run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from lowering.extents import show
from lowering.graph import Graph, Value
from nnef_jax.errors import InputError
from nnef_jax.options import names_of, numpy_of, require, shown
from nnef_jax.wording.similar import did_you_mean

_READERS = 4  # the largest number of reading operations that a hint names
Edit = Callable[[jax.Array], ArrayLike]
Edits = Mapping[str, Edit | ArrayLike]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["arrays"],
    meta_fields=["edits", "capture", "results"],
)
@dataclass(frozen=True)
class Probe:
    """Which tensors inside the network are edited, and which are returned, in one run.

    To jax a probe is a pytree of `arrays`. The edits are static: two probes are equal only if
    they have the same function objects.

    Args:
        edits: a pair for each name or pattern. Its second member is a function of the tensor,
            or None if `arrays` has a replacement of the tensor.
        arrays: replacements of tensors, by name or pattern.
        capture: names or patterns of tensors to return, after the edits. With None a call
            returns no dict of captures.
        results: whether the network's results are returned too.
    """

    edits: tuple[tuple[str, Edit | None], ...] = ()
    arrays: Mapping[str, Any] = field(default_factory=dict[str, Any])
    capture: tuple[str, ...] | None = None
    results: bool = True

    @classmethod
    def of(cls, edit: Edits | None, capture: object) -> Probe:
        """Make a probe of the arguments `edit` and `capture` of a user's call.

        Raises TypeError or InputError if an argument is wrong.
        """
        if edit is None and capture is None:
            return NOTHING
        by_name: Mapping[str, Any] = {} if edit is None else edit
        require("edit", by_name, Mapping, "a dict of functions or arrays by name")
        for name in by_name:
            require("a name in edit", name, str, "a name of a tensor")
        arrays = {name: x for name, x in by_name.items() if not callable(x)}
        for name, x in arrays.items():
            message = f"edit of '{name}' must be a function or an array, it is {shown(x)}"
            if not isinstance(x, jax.Array):
                arrays[name] = numpy_of(x, InputError, message)
                if arrays[name].dtype.kind not in "biufcV":
                    raise InputError(message)
        edits: list[tuple[str, Any]] = []
        for name, x in by_name.items():
            edits.append((name, x if callable(x) else None))
        names = None if capture is None else names_of("capture", capture, "names of tensors")
        return cls(tuple(edits), arrays, names)

    def captured(self, graph: Graph) -> dict[str, Value]:
        """Return the tensors to capture, by name. Raises InputError for an unknown name."""
        if not self.capture:
            return {}
        names = [name for pattern in self.capture for name in _matches(graph, pattern)]
        return {name: graph.values[name] for name in names}

    def edited(self, graph: Graph) -> dict[Value, Edit]:
        """Map each tensor that is edited to its edit, a function of the array.

        Raises InputError if a name or pattern matches no tensor. If several match a tensor, an
        exact name takes precedence over a pattern, and an earlier pattern over a later one.
        """
        if not self.edits:
            return {}
        chosen: dict[Value, _MatchedEdit] = {}
        for pattern, edit in self.edits:
            function = edit or partial(_replacement, self.arrays[pattern])
            is_exact = pattern in graph.values
            for name in _matches(graph, pattern):
                value = graph.values[name]
                earlier = chosen.get(value)
                has_precedence = earlier is None or (is_exact and not earlier.is_exact)
                if has_precedence:
                    chosen[value] = _MatchedEdit(is_exact, name, function)
        return {value: _checked(edit.name, edit.function) for value, edit in chosen.items()}


NOTHING = Probe()


class _MatchedEdit(NamedTuple):
    """An edit that matches a tensor.

    `is_exact` tells whether the user gave the name of the tensor, and not a pattern.
    """

    is_exact: bool
    name: str
    function: Edit


def _matches(graph: Graph, pattern: str) -> Sequence[str]:
    if pattern in graph.values:
        return [pattern]
    names = [name for name in graph.values if fnmatchcase(name, pattern)]
    if not names:
        message = f"the graph has no tensor '{pattern}'"
        raise InputError(message, hint=hint_for(pattern, graph, graph.values))
    return names


def hint_for(pattern: str, graph: Graph, names: Collection[str]) -> str:
    """Return a hint for an error about a name or pattern that matches no tensor of a graph.

    `names` are the names of the graph's tensors.
    """
    labels = {
        variable.label: variable.value.name for variable in (*graph.parameters, *graph.states)
    }
    if pattern in labels:
        return f"it is the label of '{labels[pattern]}'"
    folded = [name for name in graph.folded if name == pattern or fnmatchcase(name, pattern)]
    if folded:
        readers = ", ".join(map(repr, graph.readers_of(folded[0])[:_READERS]))
        reason = "it was computed when the network was read, from shapes and constants"
        return f"'{folded[0]}' was folded: {reason}; take what reads it: {readers or 'an output'}"
    return did_you_mean(pattern, names) or "model.summary() lists the names"


def _replacement(array: ArrayLike, _: jax.Array) -> ArrayLike:
    return array


def _checked(name: str, edit: Edit) -> Edit:
    """Return a function that calls `edit` on an array, and checks the type of the result.

    It raises InputError if the result does not have the shape and dtype of the array. `name` is
    the name of the tensor, for errors.
    """

    def checked(array: ArrayLike) -> jax.Array:
        before = jnp.asarray(array)
        try:
            returned = edit(before)
        except Exception as error:
            error.add_note(f"in the edit of '{name}'")
            raise
        try:
            after = jnp.asarray(returned)
        except (TypeError, ValueError):
            message = f"the edit of '{name}' returns no array but {shown(returned)}"
            raise InputError(message) from None
        if after.weak_type and jnp.result_type(after, before) == before.dtype:
            after = after.astype(before.dtype)
        if after.shape != before.shape or after.dtype != before.dtype:
            type_after = f"{after.dtype}{show(after.shape)}"
            type_before = f"{before.dtype}{show(before.shape)}"
            message = f"the edit of '{name}' is {type_after}, the tensor is {type_before}"
            raise InputError(message, hint="an edit keeps shape and dtype")
        return after

    return checked
