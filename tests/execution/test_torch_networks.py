"""Networks that torch_to_nnef exported: values and derivatives are PyTorch's."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

import nnef_jax
from tests import torch_networks
from tests.torch_networks import NAMES, Run, by_name, difference, gradients

# Relative to the largest magnitude. In 8 bits a step of the result is 0.02 of it.
TOLERANCE = {"int8": 0.02}
# Runs after the first are of other shapes: of these some say what all would.
OTHERS = {("resnet", 1), ("gpt", 2)}
# Derivatives of others are made of those of these.
DERIVED = ("resnet", "bert", "lstm", "q40")


def runs(gradients: bool) -> list[Any]:
    def is_quick(name: str, index: int) -> bool:
        if index:
            return not gradients and (name, index) in OTHERS
        return not gradients or name in DERIVED

    return [
        pytest.param(
            name,
            run,
            id=f"{name}-{index}",
            marks=[] if is_quick(name, index) else [pytest.mark.slow],
        )
        for name in NAMES
        for index, run in enumerate(torch_networks.runs(name))
        if not gradients or run.gradient or run.parameter
    ]


loaded = cache(torch_networks.load)


@pytest.fixture
def model(name: str) -> nnef_jax.Model:
    return loaded(name)


@pytest.mark.parametrize(("name", "run"), runs(gradients=False))
def test_value(name: str, run: Run, model: nnef_jax.Model) -> None:
    results = by_name(model, model(**run.input))
    assert list(results) == list(run.output)
    assert difference(results, run.output) <= TOLERANCE.get(name, 1e-4)


@pytest.mark.parametrize(("name", "run"), runs(gradients=True))
def test_gradients(name: str, run: Run, model: nnef_jax.Model) -> None:
    of_inputs, of_parameters = gradients(model, run)
    assert difference(of_inputs, run.gradient) <= 1e-4
    assert difference(of_parameters, run.parameter, floor=1e-2) <= 1e-4


@pytest.mark.parametrize("name", ["unet"])
def test_vmap_is_a_batch_of_batches(model: nnef_jax.Model) -> None:
    (run,) = torch_networks.runs("unet")
    images = np.stack([run.input["image"], run.input["image"][::-1]])
    masks = jax.vmap(model)(images)
    np.testing.assert_allclose(masks[0], run.output["mask"], atol=1e-5)
    np.testing.assert_allclose(masks[1], run.output["mask"][::-1], atol=1e-5)


def text_at_once() -> Run:
    """A run of the decoder with nothing before it."""
    (run,) = (run for run in torch_networks.runs("gpt") if not run.input["past_k"].size)
    return run


def test_text_in_pieces_is_the_text_at_once() -> None:
    model, whole = loaded("gpt"), text_at_once()
    keys, values = whole.input["past_k"], whole.input["past_v"]
    pieces = []
    for piece in np.split(whole.input["ids"], [3], axis=1):
        logits, keys, values = model(piece, keys, values)
        pieces.append(logits)
    np.testing.assert_allclose(np.concatenate(pieces, 1), whole.output["logits"], atol=1e-5)
    np.testing.assert_allclose(keys, whole.output["present_k"], atol=1e-5)


def test_scan_over_a_fixed_cache_is_the_text_at_once() -> None:
    """Both networks have the same parameters."""
    model, whole = loaded("gpt_fixed"), text_at_once()
    ids = whole.input["ids"]

    def step(
        cache: tuple[jax.Array, ...], place: jax.Array
    ) -> tuple[tuple[jax.Array, ...], jax.Array]:
        here = jax.lax.dynamic_slice_in_dim(ids, place, 1, axis=1)
        logits, *cache = model.apply(model.params, here, place[None], *cache)
        return tuple(cache), logits[0, 0]

    empty = np.zeros((2, 1, 4, 16, 8), np.float32)
    _, logits = jax.jit(lambda: jax.lax.scan(step, (empty, empty), np.arange(ids.size)))()
    np.testing.assert_allclose(logits, whole.output["logits"][0], atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_table_of_the_page_holds(name: str, model: nnef_jax.Model) -> None:
    value, of_inputs, of_parameters = torch_networks.claims()[name]
    assert max(value, of_inputs, of_parameters) <= max(1e-4, TOLERANCE.get(name, 0.0))
    run = torch_networks.runs(name)[0]
    assert difference(by_name(model, model(**run.input)), run.output) <= max(
        10 * value, TOLERANCE.get(name, 0.0)
    )


def test_every_network_is_in_the_table() -> None:
    assert sorted(NAMES) == sorted(
        path.name.removesuffix(".nnef.tgz") for path in torch_networks.FOLDER.glob("*.nnef.tgz")
    )
