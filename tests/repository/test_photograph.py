"""The examples that train for a minute or more: scenes of digits, and certified networks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import nnef_jax
from tests.repository.test_examples import assert_is_picture, common, script

photograph, scenes, certified, train = map(script, ("photograph", "scenes", "certified", "train"))


@pytest.fixture(autouse=True)
def own_settings() -> Any:
    """Jax with its own settings, as in the scripts."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a part of the digits, which the examples load too."""
    pytest.importorskip("sklearn")
    parts = [train.Digits(*(array[:130] for array in part)) for part in train.load_digits()]
    for example in (certified, scenes):
        monkeypatch.setattr(example, "load_digits", lambda: parts)
    return parts


def test_the_network_of_scenes_is_small() -> None:
    assert sum(path.stat().st_size for path in scenes.NETWORK.iterdir()) < 500_000


def test_paint_is_in_its_box_and_not_of_the_color_behind() -> None:
    dark = np.stack([np.full((3, 50, 60), n, np.float32) for n in (60, 200)])
    found, boxes = map(
        np.asarray, scenes.paint(jax.random.key(0), dark, np.full((9, 1, 8, 8), 255.0), (40, 48))
    )
    assert found.shape == (9, 3, 40, 48)
    for scene, (top, left, bottom, right) in zip(found, boxes, strict=True):
        assert 0 <= top < bottom <= 40 and 0 <= left < right <= 48
        assert 22 <= bottom - top <= 36 and np.isclose(bottom - top, right - left)
        ground = scene[0, 0, 0] if top > 2 else scene[0, -1, -1]
        differs = np.abs(scene - ground).max(0) > 20
        rows, columns = differs.any(1).nonzero()[0], differs.any(0).nonzero()[0]
        ends = rows[0], columns[0], rows[-1] + 1, columns[-1] + 1
        np.testing.assert_allclose(ends, (top, left, bottom, right), atol=3)


@pytest.mark.slow
def test_explanations_point_at_the_digit_in_a_photograph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(photograph, "EXTENTS", (96, 96))
    photograph.main(["--scenes", "12", "--out", str(tmp_path / "photograph.png")])
    assert_is_picture(tmp_path / "photograph.png")
    first, *lines = capsys.readouterr().out.splitlines()
    read, area = (float(x) for x in re.findall(r"([\d.]+)%", first))
    assert read > 75 and area < 12
    for line in lines[:2]:
        share, peaks = (float(x) for x in re.findall(r"([\d.]+)%", line))
        assert share > 3 * area and peaks > 50


@pytest.mark.slow
def test_scenes_train_a_network(
    few: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scenes, "STAGES", ((40, 1),))
    scenes.main(["--save", str(tmp_path / "scenes.tgz")])
    start, trained = scenes.untrained(scenes.NETWORK), nnef_jax.load(tmp_path / "scenes.tgz")
    assert all(not np.array_equal(trained.params[k], v) for k, v in start.params.items())
    assert "40x40  loss " in capsys.readouterr().out


@pytest.mark.slow
def test_training_on_bounds_makes_proofs(few: Any) -> None:
    digits, _, test = few
    start = nnef_jax.load(common.DIGITS / "model")
    own: Any = {"epochs": 8, "loss": certified.certified_loss}
    *_, (params, _) = train.fit(start, digits, lambda key, params, x, y: x, **own)
    before, after = (
        certified.proven(model.cut(outputs=["logits"]), test.images, test.labels, 1, "interval")
        for model in (start, start.with_params(params))
    )
    assert after.mean() > before.mean() + 0.1


@pytest.mark.slow
def test_three_networks_are_attacked_and_proven(
    few: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, archive = tmp_path / "certified.png", tmp_path / "certified.tgz"
    # 160 steps: a quarter of the scans is proven then. After 40 none is, by the paper's bounds too.
    options = {"--out": picture, "--save": archive, "--epochs": 80, "--crown": 5}
    certified.main([str(x) for pair in options.items() for x in pair])
    assert_is_picture(picture)
    printed = capsys.readouterr().out
    rows = [[float(x) for x in re.findall(r"([\d.]+)%", line)] for line in printed.splitlines()]
    plain, attacked, bounded = (row for row in rows if len(row) == 4)
    assert plain[2] < 5 < bounded[2] and plain[1] < attacked[1] and bounded[2] <= bounded[1]
