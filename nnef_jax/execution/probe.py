"""Changes tensors inside a network while it runs, and shows them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from lowering.extents import show
from lowering.graph import Graph, Value
from nnef_jax.errors import InputError
from nnef_jax.options import names_of, numpy_of, require, shown
from nnef_jax.similar import did_you_mean

_READERS = 4  # that are named instead of a tensor
Edit = Callable[[jax.Array], ArrayLike]
Edits = Mapping[str, Edit | ArrayLike]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["arrays"],
    meta_fields=["edits", "capture", "results"],
)
@dataclass(frozen=True)
class Probe:
    """Edits and captures of tensors inside the network, in one run.

    To jax it is a tree of its arrays, so that functions compare by identity.

    Args:
        edits: a function of the tensor for each name, None for one of the arrays.
        arrays: what takes the place of tensors, by name.
        capture: names of tensors that are returned, as they are after edits; None for no dict.
        results: whether the network's results are returned too.
    """

    edits: tuple[tuple[str, Edit | None], ...] = ()
    arrays: Mapping[str, Any] = field(default_factory=dict[str, Any])
    capture: tuple[str, ...] | None = None
    results: bool = True

    @classmethod
    def of(cls, edit: Any, capture: Any) -> Probe:
        """Return the probe of these arguments; raise TypeError or InputError for wrong ones."""
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
        edits: Any = tuple((name, x if callable(x) else None) for name, x in by_name.items())
        names = None if capture is None else names_of("capture", capture, "names of tensors")
        return cls(edits, arrays, names)

    def captured(self, graph: Graph) -> dict[str, Value]:
        """Return the tensors to show by name. Raises InputError for names that nothing has."""
        if not self.capture:
            return {}
        names = [name for wanted in self.capture for name in _matches(graph, wanted)]
        return {name: graph.values[name] for name in names}

    def edited(self, graph: Graph) -> dict[Value, Edit]:
        """Return the edits of tensors. Raises InputError for names that nothing has.

        A tensor's own name counts more than a pattern, an earlier pattern more than a later one.
        """
        if not self.edits:
            return {}
        chosen: dict[Value, tuple[bool, str, Edit]] = {}
        for wanted, edit in self.edits:
            function = edit or partial(_replaced, self.arrays[wanted])
            exact = wanted in graph.values
            for name in _matches(graph, wanted):
                value = graph.values[name]
                if value not in chosen or (exact and not chosen[value][0]):
                    chosen[value] = exact, name, function
        return {value: _checked(name, edit) for value, (_, name, edit) in chosen.items()}


NOTHING = Probe()


def _matches(graph: Graph, wanted: str) -> Sequence[str]:
    if wanted in graph.values:
        return [wanted]
    names = [name for name in graph.values if fnmatchcase(name, wanted)]
    if not names:
        message = f"the graph has no tensor '{wanted}'"
        raise InputError(message, hint=hint_for(wanted, graph, graph.values))
    return names


def hint_for(wanted: str, graph: Graph, names: Collection[str]) -> str:
    """Return a hint for a name that no tensor of a graph has."""
    labels = {v.label: v.value.name for v in (*graph.parameters, *graph.states)}
    if wanted in labels:
        return f"it is the label of '{labels[wanted]}'"
    folded = [name for name in graph.folded if name == wanted or fnmatchcase(name, wanted)]
    if folded:
        readers = ", ".join(map(repr, graph.readers_of(folded[0])[:_READERS]))
        return (
            f"'{folded[0]}' was folded: it was computed when the network was read, from shapes and "
            f"constants; take what reads it: {readers or 'an output'}"
        )
    return did_you_mean(wanted, names) or "model.summary() lists the names"


def _replaced(array: Any, _: Any) -> Any:
    return array


def _checked(name: str, edit: Edit) -> Edit:
    """Return the edit with its result required to be of the tensor's shape and dtype."""

    def checked(array: Any) -> Any:
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
            made, wanted = (f"{x.dtype}{show(x.shape)}" for x in (after, before))
            raise InputError(
                f"the edit of '{name}' is {made}, the tensor is {wanted}",
                hint="an edit keeps shape and dtype",
            )
        return after

    return checked
