"""The examples: the shipped network, how it is trained, and the picture of its gradient."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import jax
import numpy as np
import pytest

import nnef_jax

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
DIGITS = EXAMPLES / "digits"
SCANS = sorted((DIGITS / "scans").glob("*.png"))
LABELS = np.array([int(path.name.split("_")[0]) for path in SCANS])


def script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


train = script(DIGITS / "train.py")
saliency = script(EXAMPLES / "saliency.py")


@pytest.fixture(scope="module")
def model() -> nnef_jax.Model:
    return nnef_jax.load(DIGITS / "model")


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    pytest.importorskip("PIL")
    return np.stack([saliency.read_scan(path) for path in SCANS])


# The shipped network


def test_network_is_the_one_that_the_script_trains(model: nnef_jax.Model) -> None:
    assert (DIGITS / "model" / "graph.nnef").read_text() == train.GRAPH
    assert {label: array.shape for label, array in model.params.items()} == train.SHAPES
    assert [spec.shape for spec in model.inputs] == [(None, 1, 8, 8)]


def test_network_is_small() -> None:
    assert sum(path.stat().st_size for path in (DIGITS / "model").iterdir()) < 300_000


def test_scans_are_one_of_each_digit() -> None:
    assert LABELS.tolist() == list(range(10))
    assert len((DIGITS / "labels.txt").read_text().split()) == 10


def test_scans_are_recognised(model: nnef_jax.Model, images: np.ndarray) -> None:
    probabilities = np.asarray(model(images))
    assert np.sum(probabilities.argmax(axis=1) == LABELS) >= 9
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)


def test_batch_is_its_single_scans(model: nnef_jax.Model, images: np.ndarray) -> None:
    single = np.concatenate([model(image[None]) for image in images])
    np.testing.assert_allclose(model(images), single, rtol=1e-4, atol=1e-7)


# Training


def test_gradient_descends(images: np.ndarray) -> None:
    model = train.untrained(seed=1)
    before, gradient = jax.value_and_grad(train.cross_entropy, argnums=1)(
        model, model.params, images, LABELS
    )
    assert all(np.abs(array).max() > 0 for array in gradient.values())
    moved = jax.tree.map(lambda p, g: p - 1e-2 * g, model.params, gradient)
    assert train.cross_entropy(model, moved, images, LABELS) < before


def test_adam_finds_a_minimum() -> None:
    target = np.array([1.0, -2.0], np.float32)
    state = train.Adam.start({"x": jax.numpy.zeros(2)})
    for _ in range(400):
        state = state.step({"x": 2 * (state.params["x"] - target)}, 0.05)
    np.testing.assert_allclose(state.params["x"], target, atol=1e-2)


def test_shifts_move_by_at_most_one_pixel(images: np.ndarray) -> None:
    shifted = np.asarray(train.shifted(jax.random.key(0), jax.numpy.asarray(images)))
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    moves = [padded[:, :, i : i + 8, j : j + 8] for i in range(3) for j in range(3)]
    fits = np.array([(shifted == move).all(axis=(1, 2, 3)) for move in moves])
    assert fits.any(axis=0).all()
    assert len(set(fits.argmax(axis=0))) > 1


def test_split_is_disjoint_and_stratified() -> None:
    pytest.importorskip("sklearn")
    digits = train.load_digits()
    parts = train.split(digits)
    assert [len(part.labels) for part in parts] == [1257, 180, 360]
    assert sorted(np.concatenate([part.index for part in parts])) == list(range(1797))
    for part in parts:
        shares = np.bincount(part.labels) / len(part.labels)
        np.testing.assert_allclose(shares, np.bincount(digits.labels) / 1797, atol=0.005)


def test_scans_come_from_the_test_split(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("PIL")
    test = train.split(train.load_digits())[2]
    train.write_scans(tmp_path, test)
    assert sorted(path.name for path in tmp_path.iterdir()) == [path.name for path in SCANS]
    for path in SCANS:
        assert np.array_equal(saliency.read_scan(tmp_path / path.name), saliency.read_scan(path))


def test_short_training_lowers_the_loss(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    training, validation, _ = train.split(train.load_digits())
    model = train.untrained(seed=0)
    steps = list(train.fit(model, training, epochs=3, seed=0))
    losses = [loss for _, loss in steps]
    assert losses[2] < losses[1] < losses[0]

    params = steps[-1][0]
    model.save(tmp_path / "digits.tgz", params=params)
    saved = nnef_jax.load(tmp_path / "digits.tgz")
    assert train.accuracy(saved, saved.params, validation) > 0.7


# Saliency


def test_input_gradient(model: nnef_jax.Model, images: np.ndarray) -> None:
    for image, digit in zip(images, LABELS, strict=True):
        plain = saliency.gradient(model, image, digit)
        assert plain.shape == image.shape
        assert np.isfinite(plain).all() and np.abs(plain).max() > 0


def test_input_gradient_predicts_the_change_of_the_score(
    model: nnef_jax.Model, images: np.ndarray
) -> None:
    image, digit = images[3], 3
    gradient = np.asarray(saliency.gradient(model, image, digit))
    step = 0.05 * gradient / np.linalg.norm(gradient)
    change = saliency.score(model, image + step, digit) - saliency.score(model, image - step, digit)
    np.testing.assert_allclose(change, 2 * np.sum(gradient * step), rtol=0.05)


def test_smooth_gradient_without_noise_is_the_gradient(
    model: nnef_jax.Model, images: np.ndarray
) -> None:
    smooth = saliency.smooth_gradient(model, images[7], 7, copies=2, noise=0.0)
    np.testing.assert_allclose(smooth, saliency.gradient(model, images[7], 7), rtol=1e-3, atol=1e-6)


def test_saliency_draws_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    out = tmp_path / "saliency.png"
    saliency.main([str(SCANS[0]), "--out", str(out)])
    assert str(out) in capsys.readouterr().out
    with image.open(out) as picture:
        assert picture.width > picture.height > 300
        assert picture.convert("L").getextrema() != (255, 255)
