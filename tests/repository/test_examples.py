"""The examples: the shipped network, how it is trained, and the picture of its gradient."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

import nnef_jax
from tests.conftest import SHARED_CASES

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
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


def test_saliency_draws_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it is run, not over the picture of the repository."""
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    before = (DIGITS / "saliency.png").stat()
    saliency.main([])
    assert (DIGITS / "saliency.png").stat() == before
    assert "wrote saliency.png" in capsys.readouterr().out
    with image.open("saliency.png") as picture:
        assert picture.width > picture.height > 300
        assert picture.convert("L").getextrema() != (255, 255)


# The example that listens


vad = script(EXAMPLES / "vad" / "detect.py")
make = script(EXAMPLES / "vad" / "make.py")
TRAINED = SHARED_CASES / "tract" / "trained_silero_vad_16k.nnef.tgz"
VAD = """version 1.0;
extension tract_registry tract_core;
graph vad(audio, h0, c0) -> (prob, h, c)
{
    audio = tract_core_external(shape = [1, 576], datum_type = 'f32');
    h0 = tract_core_external(shape = [1, 128], datum_type = 'f32');
    c0 = tract_core_external(shape = [1, 128], datum_type = 'f32');
    power = mean_reduce(sqr(audio), axes = [1]);
    h = 0.5 * h0 + power;
    c = c0 + 1.0;
    prob = slice(tanh(h), axes = [1], begin = [0], end = [1]);
}
"""


def test_frames_overlap_by_their_context() -> None:
    signal = np.arange(3 * 512 + 100, dtype=np.float32)
    pieces = vad.frames(signal)
    assert pieces.shape == (3, 1, 576)
    np.testing.assert_array_equal(pieces[0, 0, :64], np.zeros(64))
    np.testing.assert_array_equal(pieces[1, 0], np.arange(512 - 64, 1024))


def test_loudness_is_found_where_it_is(tmp_path: Path) -> None:
    """A stand-in for the network: what is tested is the way through the recurrence."""
    (tmp_path / "graph.nnef").write_text(VAD)
    model = vad.load(tmp_path)
    signal = np.zeros(20 * 512, np.float32)
    signal[5 * 512 : 10 * 512] = 2.0
    found = vad.probabilities(model, signal)
    assert found.shape == (20,) and found[4] == 0 and (found[5:10] > 0.9).all()
    (begin, end), *others = vad.stretches(found)
    assert not others and begin == 5 * 512 / 16_000 and end > 10 * 512 / 16_000
    depends = vad.sensitivity(model, signal, 12)
    assert depends[9] > depends[6] > 0 and not depends[13:].any()


def test_example_signal_has_three_stretches_like_speech() -> None:
    signal, spoken = vad.example()
    assert len(signal) == 20 * 16_000 and np.abs(signal).max() <= 1
    assert spoken == [(2.0, 5.0), (7.0, 11.0), (14.0, 17.0)]
    speech = np.abs(signal[2 * 16_000 : 5 * 16_000]).mean()
    assert speech > 20 * np.abs(signal[: 2 * 16_000]).mean()


def test_trained_network_hears_speech_only_where_it_is() -> None:
    if not TRAINED.is_file():
        pytest.skip(f"{TRAINED.name} of the shared cases is not there")
    signal, spoken = vad.example()
    found = vad.stretches(vad.probabilities(vad.load(TRAINED), signal))
    heard = [any(begin < b and a < end for a, b in found) for begin, end in spoken]
    assert all(heard)
    # It stays certain for a while after the last sound, but never begins without one.
    assert all(any(begin <= a <= end for begin, end in spoken) for a, _ in found)


def test_the_archive_that_is_made_is_the_one_that_pytorch_exports(tmp_path: Path) -> None:
    if not TRAINED.is_file():
        pytest.skip(f"{TRAINED.name} of the shared cases is not there")
    exported = vad.load(TRAINED)
    weights = {label: np.asarray(array) for label, array in exported.params.items()}
    names = {"stft": "stft_conv.weight", "f.weight": "final_conv.weight"}
    names |= {
        f"c.{i}.{kind}": f"conv{i + 1}.{kind}" for i in range(4) for kind in ("weight", "bias")
    }
    names |= {f"l.{name}": f"lstm_cell.{name}" for name in ("weight_ih", "weight_hh")}
    published = {new: weights[old] for old, new in names.items()}
    # The exporter adds the biases of the cell, and writes the last one into the text.
    published["lstm_cell.bias_ih"] = weights["h_bias_bias"][0]
    published["lstm_cell.bias_hh"] = np.zeros(512, np.float32)
    published["final_conv.bias"] = np.array([-0.5740388631820679], np.float32)
    make.make(published, tmp_path / "made.tgz")
    signal = np.random.default_rng(0).normal(0, 0.1, 30 * 512).astype(np.float32)
    np.testing.assert_allclose(
        vad.probabilities(vad.load(tmp_path / "made.tgz"), signal),
        vad.probabilities(exported, signal),
        atol=1e-5,
    )


def test_published_weights_make_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the package: small random numbers by its names, in its shapes."""
    numpy = pytest.importorskip("safetensors.numpy")
    random = np.random.default_rng(0)
    channels = [(128, 129), (64, 128), (64, 64), (128, 64)]
    shapes: dict[str, tuple[int, ...]] = {"stft_conv.weight": (258, 1, 256)}
    for i, (count, depth) in enumerate(channels, start=1):
        shapes |= {f"conv{i}.weight": (count, depth, 3), f"conv{i}.bias": (count,)}
    for kind in ("ih", "hh"):
        shapes |= {f"lstm_cell.weight_{kind}": (512, 128), f"lstm_cell.bias_{kind}": (512,)}
    shapes |= {"final_conv.weight": (1, 128, 1), "final_conv.bias": (1,)}
    weights = {k: random.normal(0, 0.1, s).astype(np.float32) for k, s in shapes.items()}
    (tmp_path / "silero_vad" / "data").mkdir(parents=True)
    (tmp_path / "silero_vad" / "__init__.py").write_text("raise ImportError('needs torch')")
    numpy.save_file(weights, tmp_path / "silero_vad" / "data" / make.WEIGHTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    make.main([])
    found = vad.load("silero_vad.nnef.tgz")
    assert [spec.shape for spec in found.inputs] == [(1, 576)]
    assert set(found.params) == set(weights)


# What is missing is said before anything is computed


@pytest.mark.parametrize(
    ("main", "arguments", "package"),
    [
        (saliency.main, [], "matplotlib"),
        (saliency.main, [], "PIL"),
        (train.main, [], "sklearn"),
        (train.main, [], "PIL"),
        (vad.main, ["network.tgz"], "matplotlib"),
    ],
)
def test_a_missing_package(
    main: Any, arguments: list[str], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for needed in ("matplotlib", "PIL", "sklearn"):
        # Whether they are installed or not.
        monkeypatch.setitem(sys.modules, needed, None if needed == package else ModuleType(needed))
    monkeypatch.setattr(nnef_jax, "load", None)
    with pytest.raises(SystemExit, match=rf'{package} is missing: pip install -e "\.\[examples\]"'):
        main(arguments)


def test_the_package_of_the_weights_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pip install --no-deps silero-vad"):
        make.main([])


@pytest.mark.parametrize("network", ["nowhere.nnef.tgz", str(DIGITS / "model")])
def test_where_the_network_that_listens_comes_from(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vad, "needs", lambda *packages: None)
    monkeypatch.setattr(vad, "example", lambda: (np.zeros(1024, np.float32), []))
    with pytest.raises(SystemExit, match=r"which `python examples/vad/make\.py` writes"):
        vad.main([network])
