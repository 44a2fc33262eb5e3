"""Models compute what they do as they are written, by options that are chosen by trial too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from lowering.cpu import xla_options as options
from nnef_jax.execution import executables
from tests import torch_networks
from tests.helpers import model_of
from tests.programs import assert_close, assert_same, pooling_network, random


# test_torch_networks.py compares these with PyTorch: values of all, some gradients.
def slow(*names: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", ["resnet", "lstm", *slow("vit", "unet")])
def test_networks_equal_themselves_as_written(name: str) -> None:
    (run, *_), path = torch_networks.runs(name), torch_networks.FOLDER / f"{name}.nnef.tgz"
    models = (nnef_jax.load(path, optimize=o) for o in (False, True))
    assert_same(*(torch_networks.by_name(m, m(**run.input)) for m in models))


@pytest.mark.parametrize("name", slow("resnet", "vit", "unet", "lstm"))
def test_gradients_of_networks_are_those_of_networks_as_written(name: str) -> None:
    run, path = torch_networks.runs(name)[0], torch_networks.FOLDER / f"{name}.nnef.tgz"
    models = (nnef_jax.load(path, optimize=o) for o in (False, True))
    for wanted, got in zip(*(torch_networks.gradients(m, run) for m in models), strict=True):
        assert torch_networks.difference(got, wanted, floor=1e-2) < 1e-5


NETWORK = pooling_network(2, 3, 8, 8)


def test_nan_stays() -> None:
    model = model_of(NETWORK, data={"f": np.ones((4, 3, 3, 3), np.float32)})
    x = np.zeros((2, 3, 8, 8), np.float32)
    x[1, 0, 0, 0] = np.nan
    y = np.asarray(model(x))
    assert np.isnan(y[1, :, 0, 0]).all() and np.isnan(y).sum() == 4


def test_inside_other_transformations() -> None:
    model = model_of(NETWORK, data={"f": np.asarray(random(4, 3, 3, 3))})
    x = random(2, 3, 8, 8, seed=1)
    wanted = model(x)
    assert_close(wanted, jax.jit(lambda x: model(x))(x))
    assert_close(wanted, jax.vmap(lambda x: model(x))(x[None])[0])
    assert_close(
        jnp.ones(()), jax.jit(jax.grad(lambda s: jnp.sum(model(x) * s) / wanted.sum()))(1.0)
    )


def test_a_call_inside_a_traced_function_keeps_nothing_of_it() -> None:
    model = model_of(NETWORK, data={"f": np.asarray(random(4, 3, 3, 3))})
    x = random(2, 3, 8, 8)
    inside = jax.jit(lambda s: model(x) * s)(1.0)
    assert_close(model(x), inside)


def test_names_of_the_document_are_those_of_the_profile() -> None:
    model = model_of(NETWORK, data={"f": np.asarray(random(4, 3, 3, 3))})
    text = model.lower().as_text(debug_info=True)
    assert all(f'"{name}' in text or f"/{name}" in text for name in ("c", "r", "y"))


# Choice by trial


def test_the_fastest_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def work(*seconds: float) -> Callable[[], None]:
        """Take so long at each call, the last time at all that follow."""
        left = [*seconds]

        def call() -> None:
            nonlocal now
            now += left.pop(0) if len(left) > 1 else left[0]

        return call

    clock = SimpleNamespace(perf_counter=lambda: now)
    monkeypatch.setattr(executables, "time", clock)
    # The first call does not count; one that was disturbed does not decide.
    assert executables.fastest([work(0.02), work(5.0, 0.5, 0.001), work(0.01)]) == 1
    assert executables.fastest([work(0.02, 0.02, 0.001), work(0.01)]) == 0


@pytest.mark.parametrize("choice", (0, -1))
def test_options_are_chosen_by_trial(
    choice: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Any] = []

    def fixed(runs: Any) -> int:
        tried.append([np.asarray(run()) for run in runs])
        return range(len(runs))[choice]

    monkeypatch.setattr(executables, "fastest", fixed)
    text = "version 1.0; graph g( x ) -> ( y ) { x = external(shape=[2,3]); y = softmax(x); }"
    x = random(2, 3)
    for folder in (None, tmp_path, tmp_path):  # the last finds what was chosen
        model = model_of(text, autotune=True, cache_dir=folder)
        assert_close(jax.nn.softmax(x, axis=1), model(x))
        assert_close(jax.nn.softmax(x, axis=1), model(x))
    assert len(tried) == 2
    for results in tried:
        assert len(results) == len(options.candidates())
        for result in results:
            assert_close(jax.nn.softmax(x, axis=1), result)


def test_options_for_functions_around_a_network() -> None:
    text = "version 1.0; graph g( x ) -> ( y ) { x = external(shape=[2,3]); y = softmax(x); }"
    model = model_of(text)
    function = jax.jit(lambda x: model.apply({}, x) * 2, compiler_options=model.compiler_options)
    assert_close(2 * jax.nn.softmax(random(2, 3), axis=1), function(random(2, 3)))
    assert model_of(text, optimize=False).compiler_options == {}
