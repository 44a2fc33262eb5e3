"""Draws pictures of attributions and attacks as tiles on the axes of matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from nnef_jax.results import Axes, axes, plotting

Tile = NDArray[np.float64]  # A tile is (height, width, RGB), with values from 0 to 1.

_GAP_IN_WIDTHS = 0.12  # The gap between two tiles is 0.12 times as wide as a tile.
_MAP = "RdBu_r"
_CHANNELS = (1, 3, 4)  # A picture has 1, 3 or 4 channels.


def heat_maps(ax: Axes | None, values: Array, x: Array, titles: Sequence[str]) -> Axes:
    """Draw a map of values over each item of `x`, as tiles in rows. Return the axes."""
    backgrounds = [grey(item) for item in x]
    is_mostly_black = len(backgrounds) > 0 and np.quantile(backgrounds, 0.25) < 0.02
    if is_mostly_black:
        # The colours of the map show better on a light background.
        backgrounds = [1 - tile for tile in backgrounds]
    tiles = [heat(value, tile) for value, tile in zip(values, backgrounds, strict=True)]
    ax = in_rows(ax, tiles, titles)
    _legend(ax)
    return ax


def in_rows(ax: Axes | None, tiles: Sequence[Tile], titles: Sequence[str]) -> Axes:
    """Draw tiles in rows, with a title above each tile. Return the axes.

    For n tiles, the number of columns is from sqrt(n) to 2 * sqrt(n), rounded up. In this range it
    is the number that leaves the fewest empty places in the last row.
    """
    square_root = max(1, len(tiles)) ** 0.5

    def cost(column_count: int) -> tuple[int, int]:
        """Return the number of empty places in the last row, and the number of columns."""
        row_count = ceil(len(tiles) / column_count)
        return row_count * column_count - len(tiles), column_count

    candidates = range(ceil(square_root), ceil(2 * square_root) + 1)
    column_count = min(candidates, key=cost)
    rows: list[Sequence[Tile]] = []
    row_titles: list[Sequence[str]] = []
    for start in range(0, len(tiles), column_count):
        end = start + column_count
        rows.append(tiles[start:end])
        row_titles.append(list(titles[start:end]))
    return montage(ax, rows, row_titles)


def montage(
    ax: Axes | None, rows: Sequence[Sequence[Tile]], titles: Sequence[Sequence[str]]
) -> Axes:
    """Draw rows of tiles, with a title above each tile. Return the axes.

    Lengths on the axes are in units of a tile's width, and y grows downwards.
    """
    tile_height = 1.0
    if rows and rows[0]:
        first_tile, *_ = rows[0]
        pixel_rows, pixel_columns, _channels = first_tile.shape
        tile_height = pixel_rows / pixel_columns
    row_gap = 2.2 * _GAP_IN_WIDTHS
    row_count = len(rows)
    column_count = max(map(len, rows), default=1)
    tile_width_in_inches = 1.6 + 1.4 / max(column_count, row_count)
    figure_width = column_count * tile_width_in_inches * 1.1 + 0.9
    figure_height = row_count * tile_width_in_inches * (tile_height + 0.25) + 0.1
    ax = axes(ax, size=(figure_width, figure_height))
    for row, (tiles, names) in enumerate(zip(rows, titles, strict=True)):
        top = row * (tile_height + row_gap)
        for column, (tile, name) in enumerate(zip(tiles, names, strict=True)):
            left = column * (1 + _GAP_IN_WIDTHS)
            left_right_bottom_top = (left, left + 1, top + tile_height, top)
            ax.imshow(tile, extent=left_right_bottom_top, interpolation="nearest", aspect="equal")
            frame = plotting("patches").Rectangle((left, top), width=1, height=tile_height)
            ax.add_patch(frame).set(fill=False, edgecolor="0.8", linewidth=0.5)
            ax.text(left + 0.5, top - 0.03, name, ha="center", va="bottom", size="medium")
    right = column_count * (1 + _GAP_IN_WIDTHS) - _GAP_IN_WIDTHS
    bottom = row_count * (tile_height + row_gap) - row_gap
    ax.set(xlim=(-0.02, right + 0.02), ylim=(bottom + 0.02, -0.2))
    ax.set_axis_off()
    return ax


def heat(values: ArrayLike, background: Tile) -> Tile:
    """Return a tile with a map of values over a background, red above 0 and blue below 0.

    Large values hide the background. The background shows through where values are near 0. If the
    shapes of map and background differ, a white background is used instead.
    """
    plane = _plane(np.asarray(values, np.float64))
    limit = np.abs(plane).max(initial=0) or 1.0
    shares = plane / limit  # The shares are from -1 to 1.
    # The colours of the map show better on a lighter background.
    lighter_background = 0.55 + 0.45 * background
    if background.shape[:2] != plane.shape:
        lighter_background = np.ones((*plane.shape, 3))
    opacity = np.abs(shares)[..., None] ** 0.6
    return lighter_background * (1 - opacity) + _colours(shares) * opacity


def signed(values: ArrayLike) -> Tile:
    """Return values as a tile: red for values above 0, blue below 0, and white at 0."""
    plane = _plane(np.asarray(values, np.float64))
    limit = np.abs(plane).max(initial=0) or 1.0
    return _colours(plane / limit)


def grey(x: ArrayLike) -> Tile:
    """Return a tensor in shades of grey, from black at its least value to white at its largest."""
    plane = _plane(np.asarray(x, np.float64))
    low = plane.min(initial=np.inf)
    high = plane.max(initial=-np.inf)
    shades = np.zeros(plane.shape)
    if high > low:
        shades = (plane - low) / (high - low)
    return np.repeat(shades[..., None], 3, axis=2)


def picture(x: ArrayLike, low: float, high: float) -> Tile:
    """Return a tensor as a tile; values from `low` to `high` become 0 to 1.

    The tile is coloured if the tensor has 3 channels, and otherwise grey. The axis of channels is
    the first or the last axis.
    """
    width = (high - low) or 1.0
    array = np.clip((np.asarray(x, np.float64) - low) / width, 0, 1)
    channel_count = 1
    if array.ndim == 3:
        channel_count, _, last_extent = array.shape
        if channel_count == 3:
            return array.transpose(1, 2, 0)
        # A tensor [1, height, 3] has a single channel. Its last axis is a width of 3.
        has_colours_last = last_extent == 3 and channel_count != 1
        if has_colours_last:
            return array
    # `_plane` adds up the channels. The shade is their mean.
    shades = _plane(array) / channel_count
    return np.repeat(shades[..., None], 3, axis=2)


def _colours(shares: NDArray[np.float64]) -> Tile:
    """Return the colours of numbers: blue for -1, white for 0, red for 1, with mixtures between."""
    return plotting("pyplot").get_cmap(_MAP)(0.5 + 0.5 * shares)[..., :3]


def _plane(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return an item as a matrix, by summing over its channels.

    Channels are the first axis. They are the last axis if the last axis has a usual number of
    channels, and the first axis does not. NaN is taken as 0.
    """
    plane = np.nan_to_num(x, nan=0.0)
    if plane.ndim == 3:
        first_extent, _, last_extent = plane.shape
        has_channels_last = last_extent in _CHANNELS and first_extent not in _CHANNELS
        if has_channels_last:
            return plane.sum(-1)
    while plane.ndim > 2:
        plane = plane.sum(0)
    return np.atleast_2d(plane)


def _legend(ax: Any) -> None:
    """Draw a bar that explains the colours: blue is against a score, and red is for the score."""
    scale = plotting("cm").ScalarMappable(cmap=_MAP)
    bar = ax.figure.colorbar(scale, ax=ax, ticks=[0, 0.5, 1], shrink=0.6)
    bar.ax.set_yticklabels(["against", "0", "for"])
    bar.outline.set_visible(False)
