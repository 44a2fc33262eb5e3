"""Makes of a graph's outputs what a user gets."""

from __future__ import annotations

import operator
from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from lowering.graph import Graph
from nnef_jax.similar import did_you_mean, listed


def results_of(graph: Graph) -> Callable[..., Any]:
    """Return the function that makes of the list of a graph's outputs what a user gets."""
    names = graph.output_names
    if len(names) == 1:
        return operator.itemgetter(0)
    index = {value: i for i, value in reversed([*enumerate(graph.outputs)])}
    others = {name: index[value] for name, value in graph.aliases.items() if value in index}
    others |= {value.name: i for value, i in index.items()}
    return _type(names, tuple(sorted((x, i) for x, i in others.items() if x not in names)))._make


@cache
def _type(names: tuple[str, ...], others: tuple[tuple[str, int], ...]) -> Any:
    """Return the namedtuple of some names, the same each time, whose instances pickle.

    Items are had by any name too, also by `others` of the same tensors.
    """
    type: Any = namedtuple("Outputs", names, rename=True)  # pyright: ignore[reportUntypedNamedTuple]
    index = {**dict(others), **{name: i for i, name in enumerate(names)}}
    type.__getitem__ = lambda self, key: tuple.__getitem__(self, _position(index, names, key))
    type.__reduce__ = lambda self: (_made, (names, others, tuple(self)))
    type._asdict = lambda self: dict(zip(names, self, strict=True))
    return type


def _made(
    names: tuple[str, ...], others: tuple[tuple[str, int], ...], values: tuple[Any, ...]
) -> Any:
    return _type(names, others)._make(values)


def _position(index: Mapping[str, int], names: tuple[str, ...], key: Any) -> Any:
    if not isinstance(key, str):
        return key
    if key not in index:
        similar = did_you_mean(key, index)
        raise KeyError(f"there is no output '{key}', they are {listed(names)}. {similar}".rstrip())
    return index[key]
