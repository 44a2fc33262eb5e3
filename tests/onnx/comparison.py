"""Compares models, many compiled together, with recorded outputs of onnxruntime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import nnef_jax
from tests.onnx.runtime_cases import Case
from tests.operation_checks import Together
from tests.rows import failures

Compare = Callable[[str, Any, Any], None]  # of a name, what is computed and what is recorded


def wrong(
    load: Callable[[str], tuple[nnef_jax.Model, Sequence[Any]]],
    recorded: Mapping[str, Any],
    names: Sequence[str],
    compare: Compare,
) -> dict[str, str]:
    """Return the errors of models by name. `load` returns a model with its inputs."""

    def prepare(name: str) -> tuple[Callable[..., Any], Sequence[Any]]:
        model, inputs = load(name)
        return model.apply, [model.params, *inputs]

    together = Together(names, prepare)

    def check(name: str) -> None:
        for i, x in enumerate(jax.tree.leaves(together(name))):
            y = recorded[f"{name}/{i}"]
            assert x.shape == y.shape
            compare(name, x, y)

    return failures(check, {name: name for name in names})


def in_two(names: Iterable[str], slow: Collection[str]) -> list[Any]:
    """Return the parameters of a test: quick names, and slow ones."""
    every = Counter(names)
    shared = [name for name, count in every.items() if count > 1]
    assert not shared, f"rows share a name, and one of them alone is compared: {shared}"
    assert {*slow} <= every.keys()
    quick = [name for name in every if name not in slow]
    return [
        pytest.param(quick, id="quick"),
        pytest.param([*slow], id="slow", marks=pytest.mark.slow),
    ]


def wrong_cases(
    cases: Sequence[Case], names: Sequence[str], recorded: Path, rtol: float
) -> dict[str, str]:
    """Return the errors of the cases with these names."""
    named = {case.name: case for case in cases}

    def load(name: str) -> tuple[nnef_jax.Model, Sequence[Any]]:
        model = nnef_jax.load(named[name].model().SerializeToString())
        arrays = {f"x{i}": x for i, x in enumerate(named[name].arrays())}
        return model, [arrays[x.name] for x in model.inputs]

    def compare(name: str, x: Any, y: Any) -> None:
        np.testing.assert_allclose(x, y, rtol=rtol, atol=named[name].atol)

    with np.load(recorded) as wanted:
        return wrong(load, wanted, names, compare)
