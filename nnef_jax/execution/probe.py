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

_MOST_NAMED_READERS = 4  # A hint names at most this many operations that read a tensor.
Edit = Callable[[jax.Array], ArrayLike]
Edits = Mapping[str, Edit | ArrayLike]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["arrays"],
    meta_fields=["edits", "capture", "results"],
)
@dataclass(frozen=True)
class Probe:
    """The edits and captures of one run: tensors inside the network to replace and to return.

    To jax a probe is a pytree of `arrays`. The edits are static: two probes are equal only if
    they have the same function objects.

    Args:
        edits: pairs of a name or pattern, and a function of the tensor. Instead of the function
            a pair has None if `arrays` has a replacement of the tensor.
        arrays: maps names and patterns of tensors to arrays that replace the tensors.
        capture: names or patterns of tensors to return, after the edits. If `capture` is None, a
            call returns no dict of captures.
        results: whether the network's results are returned too.
    """

    edits: tuple[tuple[str, Edit | None], ...] = ()
    arrays: Mapping[str, Any] = field(default_factory=dict[str, Any])
    capture: tuple[str, ...] | None = None
    results: bool = True

    @classmethod
    def of(cls, edit: Edits | None, capture: object) -> Probe:
        """Make a probe from the arguments `edit` and `capture` of a user's call.

        Raises TypeError or InputError if an argument is wrong.
        """
        if edit is None and capture is None:
            return NOTHING
        edit_by_name: Mapping[str, Any] = {} if edit is None else edit
        require("edit", edit_by_name, Mapping, "a dict of functions or arrays by name")
        for name in edit_by_name:
            require("a name in edit", name, str, "a name of a tensor")
        edits: list[tuple[str, Any]] = []
        arrays: dict[str, Any] = {}
        for name, function_or_array in edit_by_name.items():
            if callable(function_or_array):
                edits.append((name, function_or_array))
            else:
                # The array is in `arrays`, so that jax sees it as an argument and not as a
                # constant.
                edits.append((name, None))
                arrays[name] = _array_of(name, function_or_array)
        names = None if capture is None else names_of("capture", capture, "names of tensors")
        return cls(edits=tuple(edits), arrays=arrays, capture=names)

    def captured(self, graph: Graph) -> dict[str, Value]:
        """Return the tensors to capture, as a dict by name.

        Raises InputError for an unknown name.
        """
        if not self.capture:
            return {}
        values: dict[str, Value] = {}
        for pattern in self.capture:
            for name in _matches(graph, pattern):
                values[name] = graph.values[name]
        return values

    def edited(self, graph: Graph) -> dict[Value, Edit]:
        """Map each edited tensor to its edit, which is a function of the tensor's array.

        If several names or patterns match a tensor, an exact name takes precedence over a
        pattern, and an earlier pattern over a later one. Raises InputError if a name or pattern
        matches no tensor.
        """
        if not self.edits:
            return {}
        edit_of: dict[Value, _MatchedEdit] = {}
        for pattern, edit in self.edits:
            function = edit or partial(_replacement, self.arrays[pattern])
            is_exact = pattern in graph.values
            for name in _matches(graph, pattern):
                value = graph.values[name]
                earlier = edit_of.get(value)
                has_precedence = earlier is None or (is_exact and not earlier.is_exact)
                if has_precedence:
                    edit_of[value] = _MatchedEdit(is_exact, name, function)
        return {value: _checked(edit.name, edit.function) for value, edit in edit_of.items()}


NOTHING = Probe()


def _array_of(name: str, replacement: Any) -> Any:
    """Return a replacement of a tensor as an array. `name` is the name of the tensor.

    Raises InputError if the replacement cannot be converted to an array.
    """
    if isinstance(replacement, jax.Array):
        return replacement
    message = f"edit of '{name}' must be a function or an array, it is {shown(replacement)}"
    array = numpy_of(replacement, InputError, message)
    # An array holds numbers if its dtype is boolean (b), an integer (i), an unsigned integer (u),
    # floating-point (f), complex (c), or a dtype of ml_dtypes (V).
    if array.dtype.kind not in "biufcV":
        raise InputError(message)
    return array


class _MatchedEdit(NamedTuple):
    """An edit that matches a tensor."""

    is_exact: bool  # whether the user passed the name of the tensor instead of a pattern
    name: str  # the tensor's name
    function: Edit


def _matches(graph: Graph, pattern: str) -> Sequence[str]:
    """Return the names of a graph's tensors that match a name or pattern.

    Raises InputError if there are none.
    """
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
    for variable in (*graph.parameters, *graph.states):
        if variable.label == pattern:
            return f"it is the label of '{variable.value.name}'"
    for name in graph.folded:
        if name == pattern or fnmatchcase(name, pattern):
            readers = graph.readers_of(name)[:_MOST_NAMED_READERS]
            shown_readers = ", ".join(map(repr, readers)) or "an output"
            reason = "it was computed when the network was read, from shapes and constants"
            return f"'{name}' was folded: {reason}; take what reads it: {shown_readers}"
    return did_you_mean(pattern, names) or "model.summary() lists the names"


def _replacement(array: ArrayLike, _: jax.Array) -> ArrayLike:
    """Return `array` instead of the tensor, which is the second argument."""
    return array


def _checked(name: str, edit: Edit) -> Edit:
    """Return a function that calls `edit` on an array, and checks the type of the result.

    The function raises InputError if the result has another shape or dtype than the array.
    `name` is the name of the tensor, for errors.
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
        # An edit such as `lambda x: 0.5` returns a number with a weak dtype, which is converted to
        # the dtype of the tensor.
        if after.weak_type and jnp.result_type(after, before) == before.dtype:
            after = after.astype(before.dtype)
        if after.shape != before.shape or after.dtype != before.dtype:
            type_after = f"{after.dtype}{show(after.shape)}"
            type_before = f"{before.dtype}{show(before.shape)}"
            message = f"the edit of '{name}' is {type_after}, the tensor is {type_before}"
            raise InputError(message, hint="an edit keeps shape and dtype")
        return after

    return checked
