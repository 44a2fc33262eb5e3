"""Mutants of files from strangers, by kind: each must end in a result or a right error.

`KINDS` names the kinds. Each is a module of this package with a `KIND`, which says how a mutant is
made from a random generator, what is tried with it, and which errors are right.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from nnef_jax import NnefError
from tests.fuzz.bounds import TooLargeError, bounded

KINDS = ("attacks", "dtypes", "inputs", "nnef", "onnx", "openvino", "operations", "values")
Make = Callable[[random.Random], Any]


@dataclass(frozen=True)
class Kind:
    """How mutants are made, what is tried with them, and which errors are right.

    `sorts` returns the functions that make a mutant, by name, each with a weight. `attempt` returns
    what a mutant ends in, or raises.
    """

    sorts: Callable[[], Mapping[str, tuple[Make, int]]]
    attempt: Callable[[Any], str]
    errors: tuple[type[Exception], ...] = (NnefError,)

    def mutant(self, seed: int, number: int) -> tuple[str, Any]:
        """Return a mutant and its sort. Both depend on seed and number alone."""
        sorts = self.sorts()
        turns = [name for name, (_, weight) in sorts.items() for _ in range(weight)]
        name = turns[number % len(turns)]
        return name, sorts[name][0](random.Random(f"{name} {seed} {number}"))

    def end(self, mutant: Any) -> str:
        """Return the outcome of a mutant, or the name of a right error; other errors are raised."""
        try:
            with bounded():
                return self.attempt(mutant)
        except self.errors as error:
            assert str(error) and all(e.message for e in getattr(error, "errors", ()))
            if "does not fit into memory" in str(error):
                raise TooLargeError from error
            return type(error).__name__

    def ends(self, numbers: Iterable[int], seed: int = 0) -> Counter[str]:
        """Count the outcomes of mutants by sort. An error names its mutant."""
        counts = Counter[str]()
        for number in numbers:
            sort, mutant = self.mutant(seed, number)
            try:
                counts[f"{sort}/{self.end(mutant)}"] += 1
            except BaseException as error:
                error.add_note(f"{sort}: mutant {seed}:{number}")
                raise
        return counts


@cache
def kind(name: str) -> Kind:
    """Return a kind by its name."""
    return import_module(f"tests.fuzz.{name}").KIND
