"""Uses of layers that few networks have, each with its results in slow, plain numpy."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from tests.openvino.layers import line_of_caller
from tests.openvino.reference import ctc_loss, gather_tree

RNG = np.random.default_rng(7)


def real(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Known:
    """An operand that is stored in the file."""

    array: Any
    type: str = ""


@dataclass(frozen=True, eq=False)
class Use:
    """A layer of a type and operation set, on operands (None is not connected)."""

    type: str
    opset: str
    operands: Sequence[Any]
    results: Sequence[np.ndarray]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    precisions: Sequence[str] = ()
    place: str = field(default_factory=lambda: line_of_caller(3))


def index(*items: Any) -> Known:
    return Known(np.array(items, np.int64))


def whole(*items: Any) -> np.ndarray:
    return np.array(items, np.int64)


def scalar(item: int) -> Known:
    return Known(np.array(item, np.int64))


def pairs(x: np.ndarray) -> np.ndarray:
    return np.stack([x.real, x.imag], -1).astype(np.float32)


def complexes(x: np.ndarray) -> np.ndarray:
    return x[..., 0] + 1j * x[..., 1].astype(np.float64)


def frames(x: np.ndarray, window: np.ndarray, size: int, step: int) -> np.ndarray:
    before = (size - len(window)) // 2
    whole = np.zeros(size)
    whole[before : before + len(window)] = window
    starts = range(0, x.shape[-1] - size + 1, step)
    return np.stack([np.fft.rfft(x[..., s : s + size] * whole) for s in starts], -2)


def overlapped(
    x: np.ndarray, window: np.ndarray, step: int, *, center: bool, length: int, normalized: bool
) -> np.ndarray:
    size = len(window)
    total = np.zeros((len(x), size + step * (x.shape[2] - 1)))
    weight = np.zeros(total.shape[1])
    for t in range(x.shape[2]):
        frame = np.fft.irfft(complexes(x)[:, :, t], size) * (np.sqrt(size) if normalized else 1)
        total[:, t * step : t * step + size] += frame * window
        weight[t * step : t * step + size] += window**2
    signal = total / weight
    edge = size // 2 if center else 0
    return signal[:, edge : edge + length] if length else signal[:, edge : signal.shape[1] - edge]


def bags(
    table: np.ndarray, rows: Sequence[Sequence[tuple[int, float]]], default: int, means: bool
) -> np.ndarray:
    out = []
    for row in rows:
        total = sum((table[i] * w for i, w in row), np.zeros(table.shape[1:]))
        if not row and default >= 0:
            total = table[default]
        out.append(total / len(row) if means and row else total)
    return np.array(out)


def greedy(x: np.ndarray, lengths: Any, blank: int, merges: bool) -> tuple[np.ndarray, np.ndarray]:
    found = np.full(x.shape[:2], -1)
    for row, probabilities, length in zip(found, x, lengths, strict=True):
        best = probabilities[:length].argmax(-1).tolist()
        kept = [
            c for i, c in enumerate(best)
            if c != blank and not (merges and i and best[i - 1] == c)
        ]  # fmt: skip
        row[: len(kept)] = kept
    return found, (found >= 0).sum(1)


def col2im(x: np.ndarray, size: Any, kernel: Any, stride: Any, pad: Any, dilation: Any) -> Any:
    (height, width), (rows, columns) = size, kernel
    planes = x.shape[1] // (rows * columns)
    out = np.zeros((len(x), planes, height + 2 * pad[0], width + 2 * pad[1]))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    counts = [(n - s) // t + 1 for n, s, t in zip(out.shape[2:], spans, stride, strict=True)]
    for (i, patch), c in itertools.product(enumerate(np.ndindex(*counts)), range(planes)):
        for r, s in np.ndindex(rows, columns):
            y, z = patch[0] * stride[0] + r * dilation[0], patch[1] * stride[1] + s * dilation[1]
            out[:, c, y, z] += x[:, (c * rows + r) * columns + s, i]
    return out[:, :, pad[0] : pad[0] + height, pad[1] : pad[1] + width]


def picture(y: np.ndarray, u: np.ndarray, v: np.ndarray, order: str) -> np.ndarray:
    out = np.zeros((*y.shape, 3))
    for b, r, c in np.ndindex(*y.shape):
        light = 1.164 * (float(y[b, r, c]) - 16)
        du, dv = float(u[b, r // 2, c // 2]) - 128, float(v[b, r // 2, c // 2]) - 128
        colours = {
            "r": light + 1.596 * dv,
            "g": light - 0.391 * du - 0.813 * dv,
            "b": light + 2.018 * du,
        }
        out[b, r, c] = [min(max(colours[name], 0), 255) for name in order]
    return out


_X = real(2, 5, 4, 2)
_R = real(2, 5, 4)
_SIGNAL, _WINDOW = real(2, 20), np.abs(real(6)) + np.float32(0.5)
_FRAMES, _HAMMING = real(2, 5, 6, 2), np.hamming(8).astype(np.float32)
_TABLE, _WEIGHTS = real(6, 2), real(5)
_BAGS = whole(1, 4, 0, 5, 2), whole(0, 2, 2, 3)
_ROWS = [[(1, 0), (4, 1)], [], [(0, 2)], [(5, 3), (2, 4)]]
_PLAIN = [[(i, 1.0) for i, _ in row] for row in _ROWS]
_WEIGHED = [[(i, float(_WEIGHTS[k])) for i, k in row] for row in _ROWS]
_SEGMENTS = np.array([0, 0, 2, 2, 4])
_DATA = real(5, 2)
_PACKED = np.array([[1, 4], [0, 0], [5, 2]])
_MAXIMA = np.array(
    [_DATA[s == _SEGMENTS].max(0) if s in _SEGMENTS else [np.nan] * 2 for s in range(6)]
)
_LOGITS, _LABELS = real(2, 4, 3), np.array([[0, 1, 1, 2], [1, 1, 0, 0]])
_PROBABILITIES = real(3, 6, 3)
_TOKENS, _PARENTS = RNG.integers(0, 6, (5, 2, 3)), RNG.integers(0, 3, (5, 2, 3))
_SQUARE = real(2, 3, 3)
_PATCHES = real(1, 12, 6)
_EDGES, _VALUES = np.sort(real(2, 4)), real(2, 3)
_BLOCK, _PUT = real(2, 6), real(2, 2)
_SCATTERED = _BLOCK.copy()
_SCATTERED[:, 1:5:2] = _PUT
_LIGHT, _CHROMA = (RNG.integers(0, 256, (2, n, 4)).astype(np.float32) for n in (4, 2))
_TWO = _CHROMA.reshape(2, 2, 2, 2)
_VIDEO = np.concatenate([_LIGHT, _CHROMA], 1)[..., None]
_HALVES = real(6) * 300
_E4M3 = np.clip(_HALVES * 2, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) / 2
_MASK = np.float32([[0, 1, 0], [2, 0, -3]])
_REPEATED = np.float32([3, 1, 3, 2, 1, 1])
_INTEGERS = np.array([[-7, 7, 6], [-6, 5, 1]])
_PUT_TOGETHER = [1, 10, 102, 20, 203, 30, 304, 40, 400]
_RAMP = np.arange(1, 8, dtype=np.float32).reshape(1, 1, 7)
USES = [
    *(
        Use(type, "opset7", [_X, index(1, 2), index(3, 6)],
            [pairs(function(complexes(_X), (3, 6), (1, 2)))])
        for type, function in (("DFT", np.fft.fftn), ("IDFT", np.fft.ifftn))
    ),
    Use("DFT", "opset7", [_X, index(-1)], [pairs(np.fft.fft(complexes(_X), axis=2))]),
    Use("RDFT", "opset9", [_R, index(1, 2)], [pairs(np.fft.rfftn(_R, axes=(1, 2)))]),
    Use("RDFT", "opset9", [_R, index(1), index(3)], [pairs(np.fft.rfft(_R, 3, 1))]),
    Use("IRDFT", "opset9", [_X, index(1)], [np.fft.irfft(complexes(_X), axis=1)]),
    Use("IRDFT", "opset9", [_X, index(1, 2), index(4, 5)],
        [np.fft.irfftn(complexes(_X), (4, 5), (1, 2))]),
    *(
        Use("STFT", "opset15", [_SIGNAL, _WINDOW, scalar(8), scalar(3)],
            [pairs(frames(_SIGNAL, _WINDOW, 8, 3).swapaxes(1, 2 if flag else 1))],
            {"transpose_frames": str(flag).lower()})
        for flag in (False, True)
    ),
    *(
        Use("ISTFT", "opset16",
            [_FRAMES, _HAMMING, scalar(8), scalar(3), *([scalar(length)] if length else [])],
            [overlapped(_FRAMES, _HAMMING, 3, center=center, length=length, normalized=center)],
            {"center": center, "normalized": center})
        for center, length in ((True, 0), (False, 0), (True, 12))
    ),
    Use("EmbeddingBagOffsetsSum", "opset3", [_TABLE, *_BAGS], [bags(_TABLE, _PLAIN, -1, False)]),
    Use("EmbeddingBagOffsetsSum", "opset3", [_TABLE, *_BAGS, scalar(3), _WEIGHTS],
        [bags(_TABLE, _WEIGHED, 3, False)]),
    Use("EmbeddingBagOffsets", "opset15", [_TABLE, *_BAGS, scalar(-1)],
        [bags(_TABLE, _PLAIN, -1, True)], {"reduction": "mean"}),
    Use("EmbeddingBagPackedSum", "opset3", [_TABLE, _PACKED], [_TABLE[_PACKED].sum(1)]),
    Use("EmbeddingBagPacked", "opset15", [_TABLE, _PACKED], [_TABLE[_PACKED].mean(1)],
        {"reduction": "mean"}),
    Use("EmbeddingSegmentsSum", "opset3",
        [_TABLE, _BAGS[0], whole(0, 0, 2, 3, 3), scalar(5), scalar(1), _WEIGHTS],
        [bags(_TABLE, [*_WEIGHED, []], 1, False)]),
    Use("SegmentMax", "opset16", [_DATA, _SEGMENTS, scalar(6)], [np.nan_to_num(_MAXIMA)],
        {"fill_mode": "ZERO"}),
    Use("SegmentMax", "opset16", [_DATA, Known(_SEGMENTS)],
        [np.nan_to_num(_MAXIMA[:5], nan=np.finfo(np.float32).min)], {"fill_mode": "LOWEST"}),
    *(
        Use("CTCLoss", "opset4",
            [_LOGITS, whole(4, 3), _LABELS, whole(3, 2), scalar(2)],
            [ctc_loss(_LOGITS, (4, 3), _LABELS, (3, 2), 2, collapses, True, unique)],
            {"preprocess_collapse_repeated": collapses, "ctc_merge_repeated": True,
             "unique": unique})
        for collapses, unique in ((False, False), (True, False), (True, True))
    ),
    *(
        Use("CTCGreedyDecoderSeqLen", "opset6", [_PROBABILITIES, whole(6, 0, 4), *blank],
            greedy(_PROBABILITIES, (6, 0, 4), at, merges), {"merge_repeated": merges})
        for merges, blank, at in ((True, [], 2), (False, [scalar(0)], 0))
    ),
    Use("GatherTree", "opset1",
        [_TOKENS, _PARENTS, whole(5, 3), scalar(5)],
        [gather_tree(_TOKENS, _PARENTS, (5, 3), 5)]),
    Use("Eye", "opset9", [scalar(3), scalar(4), scalar(-1), index(2)],
        [np.stack([np.eye(3, 4, -1)] * 2)], {"output_type": "f32"}),
    Use("Inverse", "opset14", [_SQUARE], [np.linalg.inv(_SQUARE)]),
    Use("Inverse", "opset14", [_SQUARE], [np.linalg.inv(_SQUARE).swapaxes(1, 2)],
        {"adjoint": "true"}),
    Use("Col2Im", "opset15", [_PATCHES, index(5, 4), index(3, 2)],
        [col2im(_PATCHES, (5, 4), (3, 2), (1, 2), (0, 1), (1, 2))],
        {"strides": "1,2", "pads_begin": "0,1", "pads_end": "0,1", "dilations": "1,2"}),
    Use("SearchSorted", "opset15", [_EDGES, _VALUES],
        [np.stack([np.searchsorted(e, v) for e, v in zip(_EDGES, _VALUES, strict=True)])]),
    Use("SearchSorted", "opset15", [np.float32([0, 1, 1]), np.float32([[1, 0], [2, -1]])],
        [np.array([[3, 1], [3, 0]])], {"right_mode": "true"}),
    Use("SliceScatter", "opset15", [_BLOCK, _PUT, index(1), index(5), index(2), index(1)],
        [_SCATTERED]),
    Use("NV12toRGB", "opset8", [_VIDEO],
        [picture(_LIGHT, _TWO[..., 0], _TWO[..., 1], "rgb")]),
    Use("NV12toBGR", "opset8", [_LIGHT[..., None], _TWO],
        [picture(_LIGHT, _TWO[..., 0], _TWO[..., 1], "bgr")]),
    *(
        Use(f"I420to{order}", "opset8", [_VIDEO],
            [picture(_LIGHT, *(_CHROMA.reshape(2, 2, 2, 2).swapaxes(0, 1)), order.lower())])
        for order in ("RGB", "BGR")
    ),
    Use("FakeConvert", "opset13", [_HALVES, Known(np.float32([2]))], [_E4M3],
        {"destination_type": "f8e4m3"}),
    Use("ConvertPromoteTypes", "opset14", [_R, whole(3, -4)], [_R, np.float32([3, -4])]),
    Use("Identity", "opset16", [_R], [_R]),
    Use("NonZero", "opset3", [_MASK],
        [np.array([[0, 1, 1, -1, -1, -1], [1, 0, 2, -1, -1, -1]])], {"output_type": "i64"}),
    Use("NonZero", "opset3", [index(0, 5, 6)], [np.array([[1, 2]])]),
    Use("Unique", "opset10", [_REPEATED],
        [np.float32([3, 1, 2] + [np.nan] * 3), np.array([0, 1, 3] + [-1] * 3),
         np.array([0, 1, 0, 2, 1, 1]), np.array([2, 3, 1] + [-1] * 3)], {"sorted": "false"}),
    Use("Unique", "opset10", [Known(np.float32([[1, 0, 1], [2, 0, 2]])), scalar(1)],
        [np.float32([[0, 1, np.nan], [0, 2, np.nan]]), np.array([1, 0, -1]),
         np.array([1, 0, 1]), np.array([1, 2, -1])]),
    Use("SparseFillEmptyRows", "opset16",
        [np.float32([5, 6, 7]), index(4, 3), whole([1, 2], [1, 0], [3, 1]), Known(np.float32(9))],
        [np.array([[0, 0], [1, 2], [1, 0], [2, 0], [3, 1], [-1, -1], [-1, -1]]),
         np.float32([9, 5, 6, 9, 7, np.nan, np.nan]), np.array([True, False, True, False])]),
    Use("ReduceMean", "opset1", [_INTEGERS, index(1)], [np.array([2, 0])]),
    Use("Convert", "opset1", [np.float32([0.6, -0.6, 1.9, -1.6, 300, -300])],
        [np.uint8([0, 0, 1, 255, 44, 212])], {"destination_type": "u8"}),
    Use("FloorMod", "opset1", [_INTEGERS, Known(np.array([4, -4, 3]))],
        [np.mod(_INTEGERS, [4, -4, 3])]),
    Use("Clamp", "opset1", [_INTEGERS], [np.clip(_INTEGERS, -2, 3)], {"min": -2.5, "max": 3.7}),
    Use("Swish", "opset4", [_R, _WINDOW[:1].reshape(())], [_R / (1 + np.exp(-_R * _WINDOW[0]))]),
    Use("OneHot", "opset16", [whole(0, -1, 2), scalar(3), _WINDOW[:1].reshape(()), Known(0.0)],
        [np.eye(3, dtype=np.float32)[[0, 2, 2]] * _WINDOW[0]],
        {"axis": -1, "negative_indices_mode": "normalize"}),
    # Integers that float32 does not have.
    Use("OneHot", "opset1",
        [whole(0, 2), scalar(3), Known(np.array(2**24 + 1)), Known(np.array(-(2**24) - 3))],
        [np.where(np.eye(3, dtype=bool)[[0, 2]], 2**24 + 1, -(2**24) - 3)], {"axis": -1}),
    *(
        Use("ScatterElementsUpdate", "opset12",
            [np.float32([1, 2, 3]), whole(0, 0, 2), np.float32([4, 6, 5]), scalar(0)],
            [np.float32(wanted)], {"reduction": reduction, "use_init_val": keeps})
        for reduction, keeps, wanted in (
            ("mean", True, [11 / 3, 2, 4]), ("mean", False, [5, 2, 5]), ("prod", False, [24, 2, 5]),
            ("max", False, [6, 2, 5]), ("min", True, [1, 2, 3]),
        )
    ),
    Use("ScatterNDUpdate", "opset15",
        [np.float32([1, 2, 3]), whole([0], [0], [2]), np.float32([4, 6, 5])],
        [np.float32([-9, 2, -2])], {"reduction": "sub"}),
    # What openvino 2026.4 gives on CPUs, beside what it would be in a plain sum of the windows.
    *(
        Use("ConvolutionBackpropData", "opset1",
            [np.float32([[[1, 2, 3, 4]]]), np.float32([[[1, 10, 100]]]), index(extent)],
            [np.float32([[wanted]])], {"strides": "2", "auto_pad": mode})
        for mode, extent, wanted in (
            ("same_upper", 8, _PUT_TOGETHER[1:]), ("same_lower", 8, _PUT_TOGETHER[:8]),
            ("valid", 7, _PUT_TOGETHER[:7]), ("explicit", 10, [*_PUT_TOGETHER, 0]),
        )
    ),
    Use("ConvolutionBackpropData", "opset1",
        [np.float32([[[1, 2, 3, 4]]]), np.float32([[[1, 10, 100]]])],
        [np.float32([[[*_PUT_TOGETHER, 0]]])], {"strides": "2", "output_padding": "1"}),
    Use("AvgPool", "opset14", [_RAMP], [np.float32([[[1.5, 4.5, 3.25]]])],
        {"kernel": "4", "strides": "3", "pads_begin": "1", "pads_end": "1",
         "exclude-pad": "false", "rounding_type": "ceil_torch"}),
    Use("AvgPool", "opset16", [_RAMP], [np.float32([[[3, 4, 5]]])],
        {"kernel": "3", "strides": "1", "dilations": "2", "exclude-pad": "true"}),
    Use("Interpolate", "opset11", [_RAMP, Known(np.float32([0.6])), index(2)],
        [_RAMP[..., [0, 2, 3, 5]]],
        {"mode": "nearest", "shape_calculation_mode": "scales", "nearest_mode": "floor",
         "coordinate_transformation_mode": "half_pixel"}),
    Use("Interpolate", "opset11", [_RAMP, index(14), index(2)], [np.repeat(_RAMP, 2, 2)],
        {"mode": "nearest", "shape_calculation_mode": "sizes", "nearest_mode": "floor",
         "coordinate_transformation_mode": "tf_half_pixel_for_nn"}),
    Use("Interpolate", "opset1", [np.float32([[[[1, 2, 3], [4, 5, 6]]]]), index(4, 2)],
        [np.float32([[[[1, 3], [1, 3], [4, 6], [4, 6]]]])],
        {"axes": "2,3", "mode": "nearest", "align_corners": "false"}),
]  # fmt: skip
OLD = [
    Use("SparseSegmentSum", "", [_TABLE, np.float32([1, 4, 0, 5]), np.float32([0, 0, 2, 2])],
        [bags(_TABLE, [[(1, 1), (4, 1)], [], [(0, 1), (5, 1)]], -1, False)]),
    Use("SparseSegmentMean", "", [_TABLE, np.float32([1, 4, 0, 5]), np.float32([0, 0, 2, 2])],
        [bags(_TABLE, [[(1, 1), (4, 1)], [], [(0, 1), (5, 1)]], -1, True)]),
    Use("SparseSegmentSqrtN", "", [_TABLE, np.float32([1, 4, 0]), np.float32([0, 0, 1])],
        [np.stack([(_TABLE[1] + _TABLE[4]) / np.sqrt(2), _TABLE[0]])]),
    Use("SparseToDense", "", [np.float32([[0, 1], [2, 0]]), np.float32([3, 2]), np.float32([5, 6])],
        [np.float32([[0, 5], [0, 0], [6, 0]])]),
    Use("Unique", "", [_REPEATED],
        [np.float32([1, 2, 3, 3, 3, 3]), np.float32([2, 0, 2, 1, 0, 0]),
         np.float32([3, 1, 2, 0, 0, 0])],
        {"sorted": "true", "return_inverse": "true", "return_counts": "true"}),
    Use("GatherTree", "",
        [_TOKENS.astype(np.float32), _PARENTS.astype(np.float32), np.float32([5, 3]),
         np.float32([5])], [gather_tree(_TOKENS, _PARENTS, (5, 3), 5)]),
]  # fmt: skip
