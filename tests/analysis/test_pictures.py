"""Pictures: what they show where, without looking at them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from nnef_jax import analysis
from nnef_jax.analysis import tiles as pictures
from nnef_jax.analysis.adversarial import Adversarial
from nnef_jax.analysis.attribution import Attribution
from nnef_jax.analysis.maximisation import Maximised

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")
close = partial(np.testing.assert_allclose, atol=0.02)


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def attribution(values: Any, x: Any, **fields: Any) -> Attribution:
    found = {"scores": np.ones(len(values)), "classes": None, "method": "saliency", "of": "x"}
    found |= {"output": "y"}
    return Attribution(values=np.asarray(values), x=np.asarray(x), **{**found, **fields})


def shown(ax: Any) -> list[Any]:
    """The tiles on axes, of the first rows first."""
    return [image.get_array() for image in ax.images]


def test_influence_is_red_where_an_item_helped() -> None:
    ax = analysis.Influence(values=jnp.asarray([[0.0, 2.0, -2.0]])).plot()
    (image,) = ax.images
    (red, _, blue) = image.cmap(image.norm(image.get_array()))[0][[1, 0, 2]]
    assert red[0] > red[2] and blue[2] > blue[0]


def titles(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_what_speaks_for_is_red_and_what_speaks_against_is_blue() -> None:
    values = np.zeros((1, 1, 3, 4))
    values[0, 0, 0, 1], values[0, 0, 2, 3] = 8, -8
    ax = attribution(values, np.zeros((1, 1, 3, 4))).plot()
    (tile,) = shown(ax)
    red, blue = tile[0, 1], tile[2, 3]
    assert tile.shape == (3, 4, 3) and red[0] > 0.3 > red[2] and blue[2] > 0.3 > blue[0]
    close(tile[1, 1], 1)  # nothing, on empty paper
    box = ax.images[0].get_extent()
    assert box[1] - box[0] == 1 and box[2] - box[3] == 0.75


def test_values_lie_over_what_they_are_of() -> None:
    x = np.full((1, 2, 2), 9.0)
    x[0, 0, 0] = 0
    (photograph,) = shown(attribution(np.zeros((1, 2, 2)), x).plot())
    assert photograph[0, 0, 0] < photograph[1, 1, 0]  # dark is dark
    strokes = np.zeros((1, 3, 3))
    strokes[0, 1, 1] = 9
    (ink,) = shown(attribution(np.zeros((1, 3, 3)), strokes).plot())
    assert ink[1, 1, 0] < ink[0, 0, 0]  # ink on paper, where little is not empty


def test_channels_are_added_up_wherever_they_are() -> None:
    values = np.zeros((2, 3, 5, 4))
    values[:, 0, 1, 1], values[:, 2, 1, 1] = 1, -1
    first = shown(attribution(values, np.zeros((2, 3, 5, 4))).plot())
    last = shown(attribution(values.transpose(0, 2, 3, 1), np.zeros((2, 5, 4, 3))).plot())
    for tile in (*first, *last):
        assert tile.shape == (5, 4, 3) and np.ptp(tile) == 0
    (flat,) = shown(attribution(np.ones((1, 7)), np.ones((1, 7))).plot())
    assert flat.shape == (1, 7, 3)


@pytest.mark.parametrize(
    ("count", "rows"), [(1, 1), (3, 1), (4, 2), (5, 1), (10, 2), (16, 4), (40, 4)]
)
def test_tiles_are_in_rows_that_are_full(count: int, rows: int) -> None:
    x = np.zeros((count, 2, 2))
    ax = attribution(x, x, classes=np.arange(count)).plot()
    tops = {image.get_extent()[3] for image in ax.images}
    assert len(ax.images) == min(count, 16) and len(tops) == rows
    assert titles(ax)[:1] == ["0: 1"]


def test_pictures_are_drawn_on_axes_that_are_given() -> None:
    from matplotlib import pyplot

    ax = pyplot.figure().subplots()
    x = np.zeros((1, 2, 2))
    assert attribution(x, x).plot(ax) is ax
    assert not attribution(x[:0], x[:0]).plot().images  # nothing of an empty batch
    pictures.montage(None, [[], [], []], [[], [], []])


def test_an_attack_is_shown_in_three_rows() -> None:
    original = np.zeros((2, 3, 2, 2))
    x = original.copy()
    x[0, 0], x[1, 2] = 1, 1
    found = Adversarial(
        x=x,
        original=original,
        found=np.array([True, False]),
        distance=np.array([1.0, 0.123456]),
        margin=np.array([-1.0, 1.0]),
        before=np.array([3, 4]),
        after=np.array([5, 4]),
        method="PGD",
        norm="linf",
        of="x",
        output="y",
    )
    ax = found.plot()
    assert titles(ax) == ["3", "4", "L∞ 1", "L∞ 0.123", "5", "4 (not found)"]
    close(shown(ax)[4][0, 0], [1, 0, 0])  # of three channels in their colours
    close(shown(ax)[5][0, 0], [0, 0, 1])
    rows = [line.split() for line in str(found).splitlines()]
    assert ["0", "3", "5", "yes", "1", "-1"] in rows and [
        "1",
        "4",
        "4",
        "no",
        "0.12346",
        "1",
    ] in rows
    assert titles(
        analysis.Adversarial(**{**vars(found), "before": None, "after": None}).plot()
    ) == [
        *("", "", "L∞ 1", "L∞ 0.123", "", " (not found)"),
    ]


def test_what_excites_units_is_shown() -> None:
    found = Maximised(
        x=np.stack([np.eye(3), 5 * np.eye(3)])[:, None],
        scores=np.array([2.0, 3.0]),
        history=np.zeros((4, 2)),
        classes=np.array([7, 1]),
        output="conv1",
        of="x",
    )
    ax = found.plot()
    assert titles(ax) == ["7: 2", "1: 3"]
    for tile in shown(ax):
        close(tile[..., 0], np.eye(3))
    assert str(found).startswith("x that excites conv1")
    assert ["0", "7", "0", "2"] in [line.split() for line in str(found).splitlines()]


def test_values_that_are_no_numbers_are_shown_as_nothing() -> None:
    tile = pictures.heat(np.array([[np.nan, 1.0]]), np.zeros((1, 2, 3)))
    assert np.isfinite(tile).all()


def test_matplotlib_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    x = np.zeros((1, 2, 2))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(nnef_jax.UnsupportedError, match=r'pip install "nnef_jax\[plot\]"'):
        attribution(x, x).plot()
