"""Layers that select, repeat, and arrange items, and interpolate between them."""

from __future__ import annotations

import numpy as np

from tests.openvino.layers import Known, both, new, old, real

X = real(2, 3, 4)
IMAGE = real(1, 8, 2, 3)
I32 = np.int32


def K(*items: float) -> Known:
    """Return stored whole numbers."""
    return Known(np.array(items))


def S(item: float) -> Known:
    """Return a stored whole number."""
    return Known(np.array(item))


def _depth(x: np.ndarray, *, depth_first: bool) -> np.ndarray:
    n, c, h, w = x.shape
    if depth_first:
        return (
            x.reshape(n, c // 4, 2, 2, h, w)
            .transpose(0, 1, 4, 2, 5, 3)
            .reshape(n, -1, 2 * h, 2 * w)
        )
    return x.reshape(n, 2, 2, c // 4, h, w).transpose(0, 3, 4, 1, 5, 2).reshape(n, -1, 2 * h, 2 * w)


def _reorganised(x: np.ndarray, stride: int) -> np.ndarray:
    """Reorganise as darknet does: read the input as fewer channels of a larger plane."""
    n, c, h, w = x.shape
    few = c // stride**2
    source = x.reshape(n, few, h * stride, w * stride)
    out = np.empty((n, c, h, w), x.dtype)
    for k, j, i in np.ndindex(c, h, w):
        offset = k // few
        out[:, k, j, i] = source[
            :, k % few, j * stride + offset // stride, i * stride + offset % stride
        ]
    return out.reshape(n, c * stride**2, h // stride, w // stride)


def _reversed(x: np.ndarray) -> np.ndarray:
    out = x.copy()
    out[0, :2], out[1, :3] = x[0, :2][::-1], x[1, :3][::-1]
    return out


def _scattered() -> np.ndarray:
    out = X.copy()
    out[1, [0, 2]] = _UPDATES
    return out


def _elements() -> np.ndarray:
    out = X.copy()
    for i, j, k in np.ndindex(*_WHERE.shape):
        out[i, _WHERE[i, j, k], k] = _NEW[i, j, k]
    return out


def _line(x: np.ndarray, places: np.ndarray, axis: int) -> np.ndarray:
    """Interpolate between items along an axis."""
    places = np.clip(places, 0, x.shape[axis] - 1)
    low = np.floor(places).astype(int)
    shape = [-1 if a == axis else 1 for a in range(x.ndim)]
    rest = (places - low).reshape(shape)
    high = np.minimum(low + 1, x.shape[axis] - 1)
    return np.take(x, low, axis) * (1 - rest) + np.take(x, high, axis) * rest


def _patches(x: np.ndarray) -> np.ndarray:
    cells = [x[:, :, r : r + 3 : 2, s : s + 3 : 2] for r in range(2) for s in range(2)]
    return np.concatenate(cells, 1)


_UPDATES, _WHERE, _NEW = real(2, 4), np.array([[[0, 2, 1, 1]], [[2, 0, 0, 1]]]), real(2, 1, 4)
_PLANE, _CELLS, _SQUARE = real(1, 2, 4, 4), real(1, 4, 4, 6), real(4, 5)
_WIDE = _line(_line(_PLANE, np.arange(8) * 3 / 7, 2), np.arange(8) * 3 / 7, 3)
_HALF = _line(_line(_PLANE, (np.arange(8) + 0.5) / 2 - 0.5, 2), (np.arange(8) + 0.5) / 2 - 0.5, 3)
_GRID = np.stack(np.meshgrid([-0.5, 0.2, 1], [-1, 0.1], indexing="xy"), -1)[None].astype(np.float32)
_ON_GRID = _line(
    _line(_PLANE, (np.array([-1, 0.1]) + 1) * 1.5, 2), (np.array([-0.5, 0.2, 1]) + 1) * 1.5, 3
)
SHAPED = [
    new("ShapeOf", [X], np.array([2, 3, 4]), opset="opset3", output_type="i64"),
    both("Shape", [X], np.array([2, 3, 4], I32), output_type="i32"),
    old("Reshape", [X], X.reshape(6, 4), dim="6,4"),
    new("Reshape", [X, K(0, -1)], X.reshape(2, 12), special_zero=True),
    old("Flatten", [X], X.reshape(2, 12), axis=1, end_axis=-1),
    new("Squeeze", [X[:, :1], K(1)], X[:, 0]),
    new("Unsqueeze", [X, K(0, 2)], X[None, :, None]),
    old("Permute", [X], X.transpose(2, 0, 1), order="2,0,1"),
    new("Transpose", [X, K(2, 0, 1)], X.transpose(2, 0, 1)),
    both("Concat", [X, X[:, :1]], np.concatenate([X, X[:, :1]], 1), axis=1),
    old("Split", [X], (X[:, :, :2], X[:, :, 2:]), axis=2, num_split=2),
    old("Slice", [X], (X[:, :1], X[:, 1:]), axis=1),
    new("Split", [X, S(2)], (X[:, :, :2], X[:, :, 2:]), num_splits=2),
    new("VariadicSplit", [X, S(1), K(1, -1)], (X[:, :1], X[:, 1:])),
    old("Tile", [X], np.tile(X, (1, 3, 1)), axis=1, tiles=3),
    new("Tile", [X, K(1, 3, 2)], np.tile(X, (1, 3, 2))),
    new("Broadcast", [X[:, :1], K(2, 5, 4)], np.broadcast_to(X[:, :1], (2, 5, 4))),
    old("Fill", [K(2, 3), Known(np.float32([1.5]))], np.full((2, 3), 1.5, np.float32)),
    both("Range", [S(2), S(11), S(3)], np.array([2, 5, 8]), opset="opset4", output_type="i64"),
    both("DepthToSpace", [IMAGE], _depth(IMAGE, depth_first=False), block_size=2,
         mode="blocks_first"),
    new("DepthToSpace", [IMAGE], _depth(IMAGE, depth_first=True), block_size=2, mode="depth_first"),
    new("SpaceToDepth", [_depth(IMAGE, depth_first=False)], IMAGE, block_size=2,
         mode="blocks_first"),
    new("SpaceToBatch", [_PLANE, K(1, 1, 2, 1), K(0, 0, 0, 0), K(0, 0, 0, 0)],
        np.concatenate([_PLANE[:, :, ::2], _PLANE[:, :, 1::2]]), opset="opset2"),
    new("BatchToSpace",
        [np.concatenate([_PLANE[:, :, ::2], _PLANE[:, :, 1::2]]), K(1, 1, 2, 1), K(0, 0, 0, 0),
         K(0, 0, 0, 0)], _PLANE, opset="opset2"),
    both("ShuffleChannels", [IMAGE], IMAGE[:, [0, 4, 1, 5, 2, 6, 3, 7]], axis=1, group=2),
    new("Reverse", [X, K(1)], X[:, ::-1], mode="index"),
    new("Roll", [X, K(1, -2), K(1, 2)], np.roll(X, (1, -2), (1, 2)), opset="opset7"),
    both("ReorgYolo", [_CELLS], _reorganised(_CELLS, 2), stride=2),
    new("ExtractImagePatches", [_PLANE], _patches(_PLANE), opset="opset3", sizes="2,2",
        strides="2,2", rates="1,1", auto_pad="valid"),
]  # fmt: skip
SELECTED = [
    old("StridedSlice", [X, K(0, 1, 0), K(0, 3, 2), K(1, 1, 1)], X[:, 1:3, :2],
        begin_mask="0,1,1", end_mask="0,1,1"),
    new("StridedSlice", [X, K(0, 1, 0), K(1, 3, 2), K(1, 1, 1)], X[0, 1:3],
        begin_mask="0,0,1", end_mask="0,0,1", shrink_axis_mask="1,0,0"),
    new("Slice", [X, K(3, 0), K(-5, 2), K(-2, 1), K(2, 1)], X[:, :2, 3::-2], opset="opset8"),
    old("Crop", [X], X[:, 1:3, 1:3], axis="1,2", offset="1,1", dim="2,2"),
    old("Pad", [X], np.pad(X, ((0, 0), (1, 0), (0, 2)), constant_values=0.5),
        pads_begin="0,1,0", pads_end="0,0,2", pad_mode="constant", pad_value=0.5),
    new("Pad", [X, K(0, 1, 0), K(0, 0, 2)], np.pad(X, ((0, 0), (1, 0), (0, 2)), mode="reflect"),
        pad_mode="reflect"),
    old("Gather", [X, np.array([2, 0], I32)], X[:, [2, 0]], axis=1),
    new("Gather", [X, np.array([-1, 0], I32), S(1)], X[:, [-1, 0]], opset="opset8"),
    new("GatherElements", [X, _WHERE.astype(I32)], np.take_along_axis(X, _WHERE, 1),
        opset="opset6", axis=1),
    new("GatherND", [X, np.array([[1, 2], [0, 0]], I32)], X[[1, 0], [2, 0]], opset="opset8"),
    new("ScatterElementsUpdate", [X, _WHERE.astype(I32), _NEW, S(1)], _elements(), opset="opset3"),
    new("ScatterNDUpdate", [X, np.array([[1, 0], [1, 2]], I32), _UPDATES], _scattered(),
        opset="opset3"),
    new("ScatterUpdate", [X[1], np.array([0, 2], I32), _UPDATES, S(0)], _scattered()[1],
         opset="opset3"),
    old("OneHot", [np.array([2, 0], I32)], np.where(np.eye(4)[[2, 0]], 5, -1).astype(np.float32),
        depth=4, on_value=5, off_value=-1),
    new("OneHot", [np.array([2, 0], I32), S(4), S(5), S(-1)], np.where(np.eye(4)[[2, 0]], 5, -1),
        axis=-1),
    both("ReverseSequence", [X, np.array([2, 3], I32)], _reversed(X), batch_axis=0, seq_axis=1),
    new("Bucketize", [X, Known(np.float32([-0.5, 0, 0.5]))],
         np.searchsorted([-0.5, 0, 0.5], X).astype(I32), opset="opset3", with_right_bound=True,
         output_type="i32"),
    new("Einsum", [X, _SQUARE], X @ _SQUARE, opset="opset7", equation="abc,cd->abd"),
]  # fmt: skip
RESIZED = [
    old("Interp", [_PLANE], _WIDE, height=8, width=8, align_corners=1, pad_beg=0, pad_end=0),
    old("Resample", [_PLANE], _HALF, type_="caffe.ResampleParameter.LINEAR", factor=2, antialias=0),
    old("Resample", [_PLANE], _PLANE.repeat(2, 2).repeat(2, 3),
        type_="caffe.ResampleParameter.NEAREST", factor=2, antialias=0),
    new("Interpolate", [_PLANE, K(8, 8), Known(np.float32([2, 2])), K(2, 3)], _HALF,
        opset="opset4", mode="linear_onnx", shape_calculation_mode="sizes",
        coordinate_transformation_mode="half_pixel"),
    new("GridSample", [_PLANE, _GRID], _ON_GRID, opset="opset9", align_corners=True,
        mode="bilinear", padding_mode="zeros"),
]  # fmt: skip
ROWS = [*SHAPED, *SELECTED, *RESIZED]
