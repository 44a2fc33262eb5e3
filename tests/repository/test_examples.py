"""The examples: the network of digits that is shipped, and what each example makes."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import wave
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from tests.conftest import SHARED_CASES

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DIGITS = EXAMPLES / "digits"
SCANS = sorted((DIGITS / "scans").glob("*.png"))
LABELS = np.array([int(path.name.split("_")[0]) for path in SCANS])


def script(name: str) -> ModuleType:
    """Import an example as `python examples/NAME.py` does: its folder is on the path."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))


common, train, finetune, fixed_point = map(script, ("common", "train", "finetune", "fixed_point"))
recording, silero, speech = map(script, ("recording", "silero", "speech"))
adversarial, saliency, two_hosts = map(script, ("adversarial", "saliency", "two_hosts"))
detect, photograph, scenes, certified = map(script, ("detect", "photograph", "scenes", "certified"))


@pytest.fixture(scope="module")
def model() -> nnef_jax.Model:
    return nnef_jax.load(DIGITS / "model")


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    pytest.importorskip("PIL")
    return np.stack([common.read_scan(path) for path in SCANS])


# The shipped network


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


def test_shifts_move_by_at_most_one_pixel(images: np.ndarray) -> None:
    shifted = np.asarray(train.shifted(jax.random.key(0), {}, jnp.asarray(images), LABELS))
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    moves = [padded[:, :, i : i + 8, j : j + 8] for i in range(3) for j in range(3)]
    fits = np.array([(shifted == move).all(axis=(1, 2, 3)) for move in moves])
    assert fits.any(axis=0).all()
    assert len(set(fits.argmax(axis=0))) > 1


def test_split_is_disjoint_and_stratified() -> None:
    sklearn = pytest.importorskip("sklearn.datasets")
    parts = train.load_digits()
    assert [len(part.labels) for part in parts] == [1257, 180, 360]
    assert sorted(np.concatenate([part.places for part in parts])) == list(range(1797))
    for part in parts:
        shares = np.bincount(part.labels) / len(part.labels)
        np.testing.assert_allclose(
            shares, np.bincount(sklearn.load_digits().target) / 1797, atol=0.005
        )


def test_scans_come_from_the_test_split(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("PIL")
    train.write_scans(tmp_path, train.load_digits()[2])
    assert sorted(path.name for path in tmp_path.iterdir()) == [path.name for path in SCANS]
    for path in SCANS:
        assert np.array_equal(common.read_scan(tmp_path / path.name), common.read_scan(path))


@pytest.fixture
def standard_promotion() -> Iterator[None]:
    """What optax's schedules need."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.usefixtures("standard_promotion")
def test_short_training_lowers_the_loss(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    training, validation, _ = train.load_digits()
    model = train.untrained()
    steps = list(train.fit(model, training, train.shifted, epochs=3))
    losses = [loss for _, loss in steps]
    assert losses[2] < losses[1] < losses[0]

    model.save(tmp_path / "digits.tgz", params=steps[-1][0])
    saved = nnef_jax.load(tmp_path / "digits.tgz")
    assert train.accuracy(saved, validation.images, validation.labels) > 0.7


# Rotated digits


def test_quarter_turns_are_those_of_numpy(images: np.ndarray) -> None:
    """Counterclockwise, as the rows go down."""
    for quarters in (0, 1, -1, 2):
        turned = finetune.rotated(images, np.full(len(images), -90.0 * quarters, np.float32))
        np.testing.assert_allclose(turned, np.rot90(images, quarters, axes=(2, 3)), atol=0.02)


@pytest.mark.slow
@pytest.mark.usefixtures("standard_promotion")
def test_fine_tuning_draws_and_writes_what_was_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: nnef_jax.Model
) -> None:
    pytest.importorskip("sklearn")
    picture, archive = tmp_path / "new" / "finetune.png", tmp_path / "rotated.nnef.tgz"
    finetune.main(["--out", str(picture), "--save", str(archive), "--epochs", "1"])
    before, after, _ = capsys.readouterr().out.splitlines()
    assert float(after.split()[-1][:-1]) > 2 + float(before.split()[-1][:-1])
    assert_is_picture(picture)
    tuned = nnef_jax.load(archive).params
    assert all(not np.array_equal(tuned[k], v) for k, v in model.params.items())


@pytest.mark.slow
@pytest.mark.usefixtures("standard_promotion")
def test_training_for_fixed_point_wins_back_what_it_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    picture, archive = tmp_path / "q78.png", tmp_path / "q78.nnef.tgz"
    fixed_point.main(["--out", str(picture), "--save", str(archive), "--epochs", "3"])
    before, after = re.findall(r"khronos (\d+\.\d)%", capsys.readouterr().out)
    assert float(after) > float(before) + 0.5
    assert_is_picture(picture)


def assert_is_picture(path: Path, upright: bool = False) -> None:
    image = pytest.importorskip("PIL.Image")
    with image.open(path) as picture:
        assert min(picture.size) > 300
        assert (picture.width > picture.height) is not upright
        assert picture.convert("L").getextrema() != (255, 255)
    assert path.stat().st_size < 150_000


# Attacks


@pytest.mark.slow
@pytest.mark.usefixtures("standard_promotion")
def test_training_on_attacks_is_drawn_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    few = [train.Digits(*(array[:130] for array in part)) for part in train.load_digits()]
    monkeypatch.setattr(adversarial, "load_digits", lambda: few)
    monkeypatch.setattr(adversarial, "EPSILONS", np.array([0.0, adversarial.TRAINED_ON]))
    picture, archive = tmp_path / "adversarial.png", tmp_path / "robust.nnef.tgz"
    adversarial.main(["--out", str(picture), "--save", str(archive), "--epochs", "3"])
    assert_is_picture(picture)
    assert nnef_jax.load(archive).params.keys() == nnef_jax.load(DIGITS / "model").params.keys()
    before, after = (
        [float(x) for x in re.findall(r"([\d.]+)%", line)]
        for line in capsys.readouterr().out.splitlines()[:2]
    )
    assert before[0] > 95 and before[1] < 30 < 60 < after[0] and after[1] > before[1]


# What speaks for a digit


@pytest.mark.slow
def test_saliency_is_drawn_for_the_scans_that_are_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "saliency.png"
    saliency.main([*map(str, SCANS[3:5]), "--out", str(picture)])
    assert_is_picture(picture, upright=True)
    printed = capsys.readouterr().out
    assert "it sees 3, 4\n" in printed
    gap = re.search(r"but for (\S+)\n", printed)
    assert gap and float(gap[1]) < 0.1


# The detector of two versions


@pytest.mark.slow
def test_digits_are_found_in_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "detect.png"
    detect.main(["--out", str(picture)])
    assert_is_picture(picture)
    printed = capsys.readouterr().out
    found = re.findall(r"^(\d) at ", printed, re.M)
    assert len(found) == len(set(found)) >= 9
    gap = re.search(r"differ by (\S+)\n", printed)
    assert gap and float(gap[1]) < 1e-4


# The example that listens


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


def heard(model: nnef_jax.Model, signal: np.ndarray) -> np.ndarray:
    return np.concatenate(list(speech.listen(model, signal)))


def test_frames_overlap_by_their_context() -> None:
    pieces = speech.frames(np.arange(3 * 512 + 100, dtype=np.float32))
    assert pieces.shape == (speech.BLOCK, 1, 576)
    np.testing.assert_array_equal(pieces[0, 0, :64], np.zeros(64))
    np.testing.assert_array_equal(pieces[1, 0], np.arange(512 - 64, 1024))
    assert pieces[3, 0].max() == 3 * 512 + 99 and not pieces[4:].any()


def test_loudness_is_found_where_it_is(tmp_path: Path) -> None:
    """A stand-in for the network: what is tested is the way through the recurrence."""
    (tmp_path / "graph.nnef").write_text(VAD)
    model = speech.load(tmp_path)
    begin, end = speech.BLOCK - 5, speech.BLOCK + 5  # over the end of a block
    signal = np.zeros((speech.BLOCK + 20) * 512, np.float32)
    signal[begin * 512 : end * 512] = 2.0
    found = heard(model, signal)
    assert found.shape == (2 * speech.BLOCK,) and found[begin - 1] == 0
    assert (found[begin:end] > 0.9).all()
    (first, last), *others = speech.stretches(found)
    assert not others and first == begin * 512 / 16_000 and last > end * 512 / 16_000


@pytest.mark.parametrize("installed", [False, True], ids=["buzz", "espeak-ng"])
def test_recording_has_what_its_sections_say(
    installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not installed:
        monkeypatch.setattr(recording.shutil, "which", lambda name: None)
    elif recording.shutil.which("espeak-ng") is None:
        pytest.skip("espeak-ng is not installed")
    signal, sections = recording.recording()
    assert np.abs(signal).max() <= 1 and len(signal) > 60 * 16_000
    ends = [0.0, *(end for _, _, end in sections)]
    assert [begin for _, begin, _ in sections] == ends[:-1]
    assert round(ends[-1] * 16_000) == len(signal)
    loudness = {
        name: signal[round(begin * 16_000) : round(end * 16_000)].std()
        for name, begin, end in sections
    }
    assert all(loudness[name] > 20 * loudness["silence"] for name in loudness if name != "silence")


def test_waves_are_read_at_any_rate_and_width(tmp_path: Path) -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(44_100) / 44_100)
    with wave.open(str(tmp_path / "tone.wav"), "wb") as file:
        file.setparams((2, 2, 44_100, 0, "NONE", ""))
        file.writeframes(np.repeat(0.5 * 2**15 * tone, 2).astype("<i2").tobytes())
    found = speech.read_wave(tmp_path / "tone.wav")
    wanted = 0.5 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    np.testing.assert_allclose(found[100:-100], wanted[100:-100], atol=2e-3)


@pytest.mark.parametrize(
    ("width", "samples", "message"),
    [(1, 100, "100 bytes of 8 bits"), (2, 0, "0 bytes of 16 bits"), (None, 9, "is no wave file")],
)
def test_other_waves_are_refused(
    width: int | None, samples: int, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "other.wav"
    if width is None:
        path.write_bytes(bytes(samples))
    else:
        with wave.open(str(path), "wb") as file:
            file.setparams((1, width, 16_000, 0, "NONE", ""))
            file.writeframes(bytes(samples * width))
    with pytest.raises(SystemExit, match=message):
        speech.read_wave(path)


def test_other_pictures_are_refused(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "text.png").write_text("text")
    image.new("L", (28, 20)).save(tmp_path / "large.png")
    for name, message in (
        ("nowhere", "No such file"),
        ("text", "cannot identify"),
        ("large", "28x20 pixels: the network reads 8x8"),
    ):
        with pytest.raises(SystemExit, match=message):
            common.read_scan(tmp_path / f"{name}.png")


def test_trained_network_hears_speech_only_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not TRAINED.is_file():
        pytest.skip(f"{TRAINED.name} of the shared cases is not there")
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(recording.shutil, "which", lambda name: None)
    speech.main(["--network", str(TRAINED), "--out", str(tmp_path / "speech.png")])
    assert_is_picture(tmp_path / "speech.png")
    printed = capsys.readouterr().out
    shares = re.findall(r"^([\w+]+) +speech in +(\d+)%", printed, re.M)
    assert len(shares) == 7
    # It stays certain for a while after the last sound.
    assert all(int(share) > 80 if "speech" in kind else int(share) < 20 for kind, share in shares)


def test_the_archive_that_is_made_is_the_one_that_pytorch_exports(tmp_path: Path) -> None:
    if not TRAINED.is_file():
        pytest.skip(f"{TRAINED.name} of the shared cases is not there")
    exported = speech.load(TRAINED)
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
    silero.make(published, tmp_path / "made.tgz")
    signal = np.random.default_rng(0).normal(0, 0.1, 30 * 512).astype(np.float32)
    np.testing.assert_allclose(
        heard(speech.load(tmp_path / "made.tgz"), signal),
        heard(exported, signal),
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
    numpy.save_file(weights, tmp_path / "silero_vad" / "data" / silero.WEIGHTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    silero.main(["--save", "silero_vad.nnef.tgz"])
    found = speech.load("silero_vad.nnef.tgz")
    assert [spec.shape for spec in found.inputs] == [(1, 576)]
    assert set(found.params) == set(weights)


# What is missing, or in the way, is said before anything is computed


@pytest.mark.parametrize(
    ("example", "package", "imported"),
    [
        (adversarial, "optax", "optax"),
        (certified, "optax", "optax"),
        (finetune, "matplotlib", "matplotlib"),
        (photograph, "pillow", "PIL"),
        (scenes, "scikit-learn", "sklearn"),
        (saliency, "pillow", "PIL"),
        (detect, "matplotlib", "matplotlib"),
        (finetune, "scikit-learn", "sklearn"),
        (train, "optax", "optax"),
        (train, "scikit-learn", "sklearn"),
        (train, "pillow", "PIL"),
        (speech, "matplotlib", "matplotlib"),
        (silero, "safetensors", "safetensors"),
        (two_hosts, "matplotlib", "matplotlib"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_missing_package(
    example: Any, package: str, imported: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    installed = importlib.util.find_spec
    monkeypatch.setattr(
        common, "find_spec", lambda name: None if name == imported else installed("json")
    )
    with pytest.raises(SystemExit, match=rf'needs {package}: pip install -e "\.\[examples\]"'):
        example.main([])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "example",
    [
        *(adversarial, certified, detect, finetune, fixed_point, photograph),
        *(saliency, scenes, silero, speech, train, two_hosts),
    ],
)
def test_nothing_is_overwritten(
    example: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nnef_jax, "load", None)
    option = "--save" if example in (scenes, train, silero) else "--out"
    mine = tmp_path / "mine"
    mine.write_text("mine")
    with pytest.raises(SystemExit) as ended:
        example.main([option, str(mine)])
    assert ended.value.code == 2 and mine.read_text() == "mine"
    assert f"mine exists: give --overwrite, or another {option}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "new.pdf"], "new.pdf: --out is a picture, a .png"),
        (["--save", "folder", "--overwrite"], "folder is a folder: give another --save"),
        (["--save", "file/net.tgz"], "--save: file: File exists"),
        (["--epochs", "0"], "'0' is no number of 1 or more"),
    ],
)
def test_what_cannot_be_written_is_told_before_the_work(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(finetune, "load_digits", None)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        finetune.main(arguments)
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_a_folder_of_scans_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    with pytest.raises(SystemExit):
        train.main(["--save", str(tmp_path / "digits.tgz"), "--scans", str(tmp_path)])
    assert "exists: give --overwrite, or another --scans" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_package_of_the_weights_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for main in (silero.main, speech.main):
        with pytest.raises(SystemExit, match=r"^needs .*: pip install --no-deps silero-vad"):
            main([])


@pytest.mark.parametrize("network", ["nowhere.nnef.tgz", str(DIGITS / "model")])
def test_where_the_network_that_listens_comes_from(network: str) -> None:
    with pytest.raises(SystemExit, match=r"The network to give is that of examples/silero\.py"):
        speech.load(network)


# All of them


def python_m_examples(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples", *arguments],
        cwd=EXAMPLES.parent,
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )


def test_an_unknown_example_is_refused() -> None:
    done = python_m_examples("salience")
    assert done.returncode == 2
    assert "no example is named salience; there are saliency, " in done.stderr


def test_a_clone_may_lie_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = importlib.import_module("examples.__main__")
    here, commands = tmp_path / "my {own} clone", []

    def ran(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(everything, "HERE", here)
    monkeypatch.setattr(subprocess, "run", ran)
    assert everything.run("ray/predict", tmp_path, False) == ("[green]done", "")
    model, scans = str(here / "digits/model"), str(here / "digits/scans")
    assert commands[0][2:] == [model, scans, "--out", str(tmp_path / "ray")]


@pytest.mark.slow
def test_examples_are_run_and_what_they_said_is_told(tmp_path: Path) -> None:
    """The test of docs/examples.md runs all of them."""
    names = ["saliency", "two_hosts"]
    done = python_m_examples(*names, "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout
    for name in names:
        assert re.search(rf"^ {name} +done +\d+ +drew .*{name}\.png", done.stdout, re.M)
        assert_is_picture(tmp_path / f"{name}.png")
    again = python_m_examples("two_hosts", "--out", str(tmp_path))
    assert again.returncode == 1
    assert re.search(r"^ two_hosts +failed .* exists: give --overwrite", again.stdout, re.M)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="ray is installed")
def test_an_example_whose_packages_are_missing_is_left_out(tmp_path: Path) -> None:
    done = python_m_examples("ray/predict", "--out", str(tmp_path))
    assert done.returncode == 0
    assert re.search(
        r"^ ray/predict +skipped +\d+ +needs ray: pip install -e \"\.\[ray\]\"", done.stdout, re.M
    )
