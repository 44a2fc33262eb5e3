"""Bounds of a network of some size, compiled as users do: never passed, by attacks either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

import nnef_jax
from nnef_jax import analysis

pytestmark = pytest.mark.optimised
DIGITS = Path(__file__).parents[2] / "examples" / "digits"


def test_what_is_certified_withstands_attacks() -> None:
    scans = [np.float32(Image.open(path)) for path in sorted((DIGITS / "scans").glob("*.png"))]
    x, model = np.stack(scans)[:, None], nnef_jax.load(DIGITS / "model")
    options: Any = {"epsilon": 4, "bounds": (0, 255)}
    found = analysis.bounds(model, x, **options)
    attack = analysis.pgd(model, x, key=jax.random.key(0), **options)
    assert found.output == "logits" and 0 < found.certified.sum() < len(x)
    assert not (found.certified & attack.found).any()
    assert (np.asarray(found.margin) <= attack.margin).all()
    assert str(found).startswith("crown bounds of logits for image")
    formats = [nnef_jax.load(DIGITS / name) for name in ("model", "ir")]
    one, other = (analysis.bounds(net, x[:1], method="interval", **options) for net in formats)
    np.testing.assert_allclose(one.lower, other.lower, rtol=1e-4, atol=1e-3)
    random, ends = np.random.default_rng(0), [np.asarray(found.lower), np.asarray(found.upper)]
    for change in (random.uniform(-4, 4, (5_000, *x.shape)), random.choice([-4, 4], x.shape)):
        points = np.float32(x + change).clip(0, 255).reshape(-1, 1, 8, 8)
        y = model.intermediates(points, names=["logits"])["logits"]
        y = np.asarray(y).reshape(-1, *ends[0].shape)
        assert (y >= ends[0]).all() and (y <= ends[1]).all()
