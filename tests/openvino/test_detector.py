"""The detector of the examples, as version 5 and as version 11: it finds what is there."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

import nnef_jax
from tests.openvino import detector

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def pair() -> tuple[nnef_jax.Model, nnef_jax.Model]:
    old, new = (
        nnef_jax.load(detector.FOLDER / f"{name}.xml", weights=detector.FOLDER / "digits.bin")
        for name in ("v5", "v11")
    )
    return old, new


def test_it_finds_the_scans(pair: tuple[nnef_jax.Model, nnef_jax.Model]) -> None:
    """Ten test scans, which it was not trained on: each where it was put, in both versions."""
    image_of = pytest.importorskip("PIL.Image")
    image, wanted = np.zeros((1, 1, detector.SIDE, detector.SIDE), np.float32), []
    for i, path in enumerate(sorted((EXAMPLES / "digits" / "scans").glob("*.png"))):
        left, top, size = 2 + i % 4 * 15, 4 + i // 4 * 19, 12
        with image_of.open(path) as scan:
            ink = np.asarray(scan.convert("L").resize((size, size), 2))
        image[0, 0, top : top + size, left : left + size] = ink
        wanted.append((i, left, top, left + size, top + size))

    def score(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = pair[0].apply(pair[0].params, x)
        return y[..., 2].sum(), y

    (_, old), slope = jax.jit(jax.value_and_grad(score, has_aux=True))(image)
    found = [np.asarray(y)[0, 0] for y in (old, pair[1](image))]
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)
    rows = found[0][found[0][:, 0] == 0]
    near = [
        sum(int(r[1]) == digit + 1 and np.abs(64 * r[3:] - place).max() < 3 for r in rows)
        for digit, *place in wanted
    ]
    assert sum(n == 1 for n in near) >= 9
    assert np.isfinite(slope).all() and np.abs(slope).max() > 0


def test_its_files_are_what_the_tool_writes() -> None:
    """From the weights that are in them."""
    old = nnef_jax.load(detector.FOLDER / "v5.xml", weights=detector.FOLDER / "digits.bin")
    weights = {k: np.asarray(x).reshape(_shape(k)) for k, x in old.params.items() if "." in k}
    data = (detector.FOLDER / "digits.bin").read_bytes()
    for name, net in (("v5", detector.old(weights)), ("v11", detector.new(weights))):
        text = (detector.FOLDER / f"{name}.xml").read_text()
        assert text.replace("\n", "") == net.text().replace('"net"', '"digits"').replace("\n", "")
        assert data.startswith(bytes(net.data))


def _shape(label: str) -> tuple[int, ...]:
    name, _, kind = label.partition(".")
    inputs, outputs, _ = detector.LAYERS[name]
    return (outputs, inputs, 3, 3) if kind == "weights" else (outputs,)
