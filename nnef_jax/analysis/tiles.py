"""Draws pictures of attributions and attacks as tiles on the axes of matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from nnef_jax.results import Axes, axes, plotting

Tile = NDArray[np.float64]  # (height, width, RGB), with values from 0 to 1

_GAP = 0.12  # in widths of a tile
_MAP = "RdBu_r"
_CHANNELS = (1, 3, 4)  # numbers of channels of pictures


def heat_maps(ax: Axes | None, values: Array, x: Array, titles: Sequence[str]) -> Axes:
    """Draw maps of values as tiles in rows, each over an item of `x`. Return the axes."""
    under = [grey(item) for item in x]
    is_mostly_black = len(under) > 0 and np.quantile(under, 0.25) < 0.02
    if is_mostly_black:  # Dark ink on white paper shows the map better.
        under = [1 - tile for tile in under]
    tiles = [heat(value, tile) for value, tile in zip(values, under, strict=True)]
    ax = in_rows(ax, tiles, titles)
    _legend(ax)
    return ax


def in_rows(ax: Axes | None, tiles: Sequence[Tile], titles: Sequence[str]) -> Axes:
    """Draw tiles in rows, with a title above each tile. Return the axes."""
    root = max(1, len(tiles)) ** 0.5

    def cost(columns: int) -> tuple[int, int]:
        """Return the empty places in the last row of `columns` tiles, followed by `columns`.

        The arrangement with the least cost is drawn.
        """
        places = ceil(len(tiles) / columns) * columns
        return places - len(tiles), columns

    columns = min(range(ceil(root), ceil(2 * root) + 1), key=cost)
    rows = [tiles[i : i + columns] for i in range(0, len(tiles), columns)]
    names = [list(titles[i : i + columns]) for i in range(0, len(tiles), columns)]
    return montage(ax, rows, names)


def montage(
    ax: Axes | None, rows: Sequence[Sequence[Tile]], titles: Sequence[Sequence[str]]
) -> Axes:
    """Draw rows of tiles, with a title above each tile. Return the axes."""
    # The unit of the axes is the width of a tile.
    height, width = rows[0][0].shape[:2] if rows and rows[0] else (1, 1)
    ratio = height / width
    row_gap = 2.2 * _GAP
    row_count = len(rows)
    column_count = max(map(len, rows), default=1)
    tile_width = 1.6 + 1.4 / max(column_count, row_count)  # in inches
    figure_width = column_count * tile_width * 1.1 + 0.9
    figure_height = row_count * tile_width * (ratio + 0.25) + 0.1
    ax = axes(ax, (figure_width, figure_height))
    for row, (tiles, names) in enumerate(zip(rows, titles, strict=True)):
        top = row * (ratio + row_gap)
        for column, (tile, name) in enumerate(zip(tiles, names, strict=True)):
            left = column * (1 + _GAP)
            box = (left, left + 1, top + ratio, top)
            ax.imshow(tile, extent=box, interpolation="nearest", aspect="equal")
            frame = plotting("patches").Rectangle((left, top), 1, ratio)
            ax.add_patch(frame).set(fill=False, edgecolor="0.8", linewidth=0.5)
            ax.text(left + 0.5, top - 0.03, name, ha="center", va="bottom", size="medium")
    right = column_count * (1 + _GAP) - _GAP
    bottom = row_count * (ratio + row_gap) - row_gap
    ax.set(xlim=(-0.02, right + 0.02), ylim=(bottom + 0.02, -0.2))
    ax.set_axis_off()
    return ax


def heat(values: ArrayLike, under: Tile) -> Tile:
    """Return the tile `under` with a map drawn over it, which is red above 0 and blue below 0.

    Large values hide the tile, and the tile shows through where values are near 0.
    """
    plane = _plane(np.asarray(values, np.float64))
    limit = np.abs(plane).max(initial=0) or 1.0
    background = 0.55 + 0.45 * under  # Colours stand out on a lighter tile.
    if background.shape[:2] != plane.shape:
        background = np.ones((*plane.shape, 3))
    opacity = np.abs(plane / limit)[..., None] ** 0.6
    colours = _colours(plane / limit)
    return background * (1 - opacity) + colours * opacity


def signed(values: ArrayLike) -> Tile:
    """Return values as a tile that is red above 0, blue below 0, and white at 0."""
    plane = _plane(np.asarray(values, np.float64))
    limit = np.abs(plane).max(initial=0) or 1.0
    return _colours(plane / limit)


def grey(x: ArrayLike) -> Tile:
    """Return a tensor in shades of grey, from black at its least value to white at its largest."""
    plane = _plane(np.asarray(x, np.float64))
    low = plane.min(initial=np.inf)
    high = plane.max(initial=-np.inf)
    plane = (plane - low) / (high - low) if high > low else np.zeros(plane.shape)
    return np.repeat(plane[..., None], 3, 2)


def picture(x: ArrayLike, low: float, high: float) -> Tile:
    """Return a tensor as a tile; values from `low` to `high` become 0 to 1.

    The tile is coloured if the tensor has 3 channels, and otherwise grey. The axis of channels is
    the first or the last axis.
    """
    array = np.clip((np.asarray(x, np.float64) - low) / ((high - low) or 1.0), 0, 1)
    has_channels = array.ndim == 3
    if has_channels and array.shape[0] == 3:
        return array.transpose(1, 2, 0)
    if has_channels and array.shape[-1] == 3 and array.shape[0] != 1:
        return array
    channels = array.shape[0] if has_channels else 1
    return np.repeat(_plane(array)[..., None] / channels, 3, 2)


def _colours(shares: NDArray[np.float64]) -> Tile:
    """Return the colours of numbers from -1 to 1, from blue over white at 0 to red."""
    return plotting("pyplot").get_cmap(_MAP)(0.5 + 0.5 * shares)[..., :3]


def _plane(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an item as a matrix, the sum over channels, which are the first or the last axis."""
    x = np.nan_to_num(x, nan=0.0)
    has_channels_last = x.ndim == 3 and x.shape[-1] in _CHANNELS and x.shape[0] not in _CHANNELS
    if has_channels_last:
        return x.sum(-1)
    while x.ndim > 2:
        x = x.sum(0)
    return np.atleast_2d(x)


def _legend(ax: Any) -> None:
    scale = plotting("cm").ScalarMappable(cmap=_MAP)
    bar = ax.figure.colorbar(scale, ax=ax, ticks=[0, 0.5, 1], shrink=0.6)
    bar.ax.set_yticklabels(["against", "0", "for"])
    bar.outline.set_visible(False)
