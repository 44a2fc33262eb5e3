"""The reference on values computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.reference import OPERATIONS
from tests.reference.borders import automatic_padding


def reference(name: str, *operands: Any, **attributes: Any) -> Any:
    """One operation of the reference on nested lists."""
    arrays = [np.array(x, np.float64) if isinstance(x, list) else x for x in operands]
    return OPERATIONS[name](*arrays, **attributes)


HAND = [
    # floor(x + 0.5)
    ("round", [[-2.5, -1.5, -0.5, 0.5, 1.5, 2.4]], {}, [-2, -1, 0, 1, 2, 2]),
    # axes from the left: [10, 20] belongs to the rows
    ("add", [[[1, 2, 3], [4, 5, 6]], [10, 20]], {}, [[11, 12, 13], [24, 25, 26]]),
    ("add", [[[1, 2], [4, 5]], [[10, 20]]], {}, [[11, 22], [14, 25]]),
    # max(min(x, -1), 1): the lower bound wins
    ("clamp", [[0, 5], 1.0, -1.0], {}, [1, 1]),
    ("select", [np.array([True, False]), [[1, 2], [3, 4]], 0.0], {}, [[1, 2], [0, 0]]),
    # 1 / (1 + e^-ln 3) = 1 / (1 + 1/3)
    ("sigmoid", [[np.log(3), -np.log(3), 0]], {}, [0.75, 0.25, 0.5]),
    # log(e^x + 1): log(1 + 1), log(e^log 3 + 1) = log 4
    ("softplus", [[0, np.log(3)]], {}, [np.log(2), np.log(4)]),
    # e^(log 1, log 3) over the sum 4
    ("softmax", [[[0, np.log(3)]]], {}, [[0.25, 0.75]]),
    # x * sigmoid(1.702 x)
    ("gelu", [[np.log(3) / 1.702]], {}, [0.75 * np.log(3) / 1.702]),
    ("silu", [[np.log(3)]], {}, [0.75 * np.log(3)]),
    # e^-ln 2 - 1 = -1/2
    ("elu", [[-np.log(2), 3]], {"alpha": 2.0}, [-1, 3]),
    ("selu", [[-np.log(2), 3]], {"alpha": 2.0, "lambda_": 10.0}, [-10, 30]),
    ("selu", [[-np.log(2), 1]], {}, [-0.5 * 1.67326319 * 1.05070102, 1.05070102]),
    # sqrt(9 + 16)
    ("softabs", [[3]], {"epsilon": 16.0}, [5]),
    ("prelu", [[[-1, -1], [2, -3]], [[0.5, 2]]], {}, [[-0.5, -2], [2, -6]]),
    # x = ceil(4/2) = 2, t = (2-1)*2 + 3 - 4 = 1, p = 0, q = 1: 1+2*2+3*3, 3+4*2+0
    ("conv", [[[[1, 2, 3, 4]]], [[[1, 2, 3]]]], {"stride": [2]}, [[[14, 11]]]),
    # dilation 2, border replicate: positions -1, 1, 3 clamp to 0, 1, 2 and so on
    (
        "conv",
        [[[[1, 2, 4]]], [[[1, 10, 100]]]],
        {"dilation": [2], "padding": [(1, 1)], "border": "replicate"},
        [[[421]]],
    ),
    # reflect: 3 2 | 1 2 3 | 2 1, reflect-even: 2 1 | 1 2 3 | 3 2
    (
        "conv",
        [[[[1, 2, 3]]], [[[1, 10, 100]]]],
        {"padding": [(2, 2)], "border": "reflect"},
        [[[123, 212, 321, 232, 123]]],
    ),
    (
        "conv",
        [[[[1, 2, 3]]], [[[1, 10, 100]]]],
        {"padding": [(2, 2)], "border": "reflect-even"},
        [[[112, 211, 321, 332, 233]]],
    ),
    # groups: output 0 reads channel 0, output 1 channel 1
    ("conv", [[[[1, 2], [3, 4]]], [[[10]], [[100]]]], {"groups": 2}, [[[10, 20], [300, 400]]]),
    ("conv", [[[[1, 2], [3, 4]]], [[[10]], [[100]]]], {"groups": 0}, [[[10, 20], [300, 400]]]),
    # each input item spreads the filter: 1*(1,2,3) at 0 and 5*(1,2,3) at 2
    (
        "deconv",
        [[[[1, 5]]], [[[1, 2, 3]]]],
        {"stride": [2], "padding": [(0, 0)]},
        [[[1, 2, 8, 10, 15]]],
    ),
    # X = 2*2 = 4, t = (2-1)*2 + 3 - 4 = 1, p = 0: the same less its last item
    ("deconv", [[[[1, 5]]], [[[1, 2, 3]]]], {"stride": [2]}, [[[1, 2, 8, 10]]]),
    # output_shape 6: nothing reaches the last item
    (
        "deconv",
        [[[[1, 5]]], [[[1, 2, 3]]]],
        {"stride": [2], "padding": [(0, 0)], "output_shape": [1, 1, 6]},
        [[[1, 2, 8, 10, 15, 0]]],
    ),
    # the border acts on the input: 1 1 | 1 5 | 5, output[i] = sum of in[i + 1 - j] f[j]
    (
        "deconv",
        [[[[1, 5]]], [[[1, 10, 100]]]],
        {"padding": [(1, 1)], "border": "replicate"},
        [[[5 + 10 + 100, 5 + 50 + 100]]],
    ),
    ("deconv", [[[[1], [2]]], [[[10]], [[100]]]], {"groups": 0}, [[[10], [200]]]),
    ("box", [[1, 2, 3]], {"size": [3]}, [3, 6, 5]),
    ("box", [[1, 2, 3]], {"size": [3], "normalize": True}, [1, 2, 5 / 3]),
    # 'ignore' averages what is there
    ("box", [[1, 2, 3]], {"size": [3], "normalize": True, "border": "ignore"}, [1.5, 2, 2.5]),
    ("debox", [[1, 5]], {"size": [3], "stride": [2], "padding": [(0, 0)]}, [1, 1, 6, 5, 5]),
    (
        "debox",
        [[3, 6]],
        {"size": [3], "padding": [(0, 0)], "normalize": True},
        [1, 3, 3, 2],
    ),
    # windows 0 -1 -2 | -1 -2 -3 | -2 -3 0: zeros of the border win
    ("argmax_pool", [[-1, -2, -3]], {"size": [3]}, [0, 0, 2]),
    ("argmax_pool", [[-1, -2, -3]], {"size": [3], "border": "ignore"}, [1, 0, 0]),
    ("max_pool", [[-1, -2, -3]], {"size": [3]}, [0, -1, 0]),
    ("max_pool", [[-1, -2, -3]], {"size": [3], "border": "ignore"}, [-1, -1, -2]),
    # the first of equals; the second row of a window of 2x2 begins at 2
    (
        "argmax_pool",
        [[[1, 1, 0, 2], [1, 0, 2, 5]]],
        {"size": [2, 2], "stride": [1, 2], "padding": [(0, 0), (0, 0)]},
        [[0, 3]],
    ),
    # reads at i*2 + index - 1: -1 (outside, 0), 2, 5
    (
        "sample",
        [[1, 2, 3, 4, 5, 6], np.array([0, 1, 2])],
        {"size": [3], "stride": [2], "padding": [(1, 1)]},
        [0, 3, 6],
    ),
    # writes 1 to 0+1, 2 to 2+2, 3 to 4+0: the last two meet
    (
        "desample",
        [[1, 2, 3], np.array([1, 2, 0])],
        {"size": [3], "stride": [2], "padding": [(0, 0)]},
        [0, 1, 0, 0, 5, 0, 0],
    ),
    ("rms_pool", [[1, 7]], {"size": [2], "padding": [(0, 0)]}, [5]),
    ("area_downsample", [[[[[1, 2], [3, 6]]]]], {"factor": [2, 2]}, [[[[3]]]]),
    ("nearest_downsample", [[[[1, 2, 3, 4]]]], {"factor": [2]}, [[[1, 3]]]),
    ("nearest_upsample", [[[[1, 2]]]], {"factor": [3]}, [[[1, 1, 1, 2, 2, 2]]]),
    # (i - 1/2) / 2 = -1/4, 1/4, 3/4, 5/4
    ("multilinear_upsample", [[[[4, 8]]]], {"factor": [2]}, [[[4, 5, 7, 8]]]),
    (
        "multilinear_upsample",
        [[[[4, 8]]]],
        {"factor": [2], "border": "constant"},
        [[[3, 5, 7, 6]]],
    ),
    # i / 2 = 0, 1/2, 1, 3/2; beyond the edge another 8, or a 0
    (
        "multilinear_upsample",
        [[[[4, 8]]]],
        {"factor": [2], "method": "asymmetric"},
        [[[4, 6, 8, 8]]],
    ),
    (
        "multilinear_upsample",
        [[[[4, 8]]]],
        {"factor": [2], "method": "asymmetric", "border": "constant"},
        [[[4, 6, 8, 4]]],
    ),
    # i / 3
    ("multilinear_upsample", [[[[3, 6]]]], {"factor": [2], "method": "aligned"}, [[[3, 4, 5, 6]]]),
    # of [[1, 9], [9, 2]] in row-major order the first 9 is number 1
    ("argmax_reduce", [[[1, 9], [9, 2]]], {"axes": [0, 1]}, [[1]]),
    ("argmin_reduce", [[[3, 2, 2], [0, 1, 0]]], {"axes": [1]}, [[1], [0]]),
    ("sum_reduce", [[[1, 2], [3, 4]]], {"axes": [1, 0], "normalize": True}, [[2.5]]),
    ("matmul", [[[1, 2]], [[3, 4]]], {"transposeB": True}, [[11]]),
    ("matmul", [[[1, 2]], [[3, 4]]], {"transposeA": True}, [[3, 4], [6, 8]]),
    ("linear", [[[1, 2]], [[3, 4], [5, 6]], [[100, 200]]], {}, [[111, 217]]),
    # the window of 3 channels holds 0 3 4, sums of squares 25, 25 (normalised by 3)
    (
        "local_response_normalization",
        [[[3, 4]]],
        {"size": [1, 3], "alpha": 3.0, "beta": 1.0, "bias": 0.0},
        [[3 / 25, 4 / 25]],
    ),
    ("l2_normalization", [[[3, 4]]], {"axes": [1], "bias": 5.0}, [[0.3, 0.4]]),
    ("l2_normalization", [[[3, 4]]], {"axes": [1], "epsilon": 10.0}, [[0.3, 0.4]]),
    ("l1_normalization", [[[3, -4]]], {"axes": [1], "bias": 1.0}, [[3 / 8, -4 / 8]]),
    ("batch_normalization", [[[5]], 1.0, 3.0, 10.0, 7.0], {"epsilon": 1.0}, [[10 + 7 * 4 / 2]]),
    # levels -1, -1/3, 1/3, 1
    (
        "linear_quantize",
        [[-9, -0.5, 0, 0.4, 9], -1.0, 1.0],
        {"bits": 2},
        [-1, -1 / 3, 1 / 3, 1 / 3, 1],
    ),
    # symmetric: one level less, so -1, 0, 1
    (
        "min_max_linear_quantize",
        [[-9, -0.4, 0.6], -1.0, 1.0],
        {"bits": 2, "signed": True, "symmetric": True},
        [-1, 0, 1],
    ),
    # level round(x / 0.5) + 1 within [-8, 7], or [-7, 7]
    (
        "zero_point_linear_quantize",
        [[-9, 0.3, 9], 1, 0.5],
        {"bits": 4, "signed": True, "symmetric": False},
        [-4.5, 0.5, 3],
    ),
    (
        "zero_point_linear_quantize",
        [[-9, 0.3, 9], 1, 0.5],
        {"bits": 4, "signed": True, "symmetric": True},
        [-4, 0.5, 3],
    ),
    (
        "zero_point_linear_quantize",
        [[-9, 0.3, 9], 1, 0.5],
        {"bits": 4, "signed": False, "symmetric": True},
        [-0.5, 0.5, 7],
    ),
    # exponents within [ceil(log2 3) - 3, ceil(log2 3)] = [-1, 2]
    ("logarithmic_quantize", [[-5, -0.1, 0, 1.3, 1.5], 3.0], {"bits": 2}, [-4, -0.5, 0, 1, 2]),
    ("slice", [[0, 1, 2, 3, 4]], {"axes": [0], "begin": [-2], "end": [0]}, [3, 4]),
    ("slice", [[0, 1, 2, 3, 4]], {"axes": [0], "begin": [1], "end": [-1], "stride": [2]}, [1, 3]),
    (
        "slice",
        [[0, 1, 2, 3, 4]],
        {"axes": [0], "begin": [3], "end": [0], "stride": [-1]},
        [3, 2, 1],
    ),
    ("slice", [[0, 1, 2]], {"axes": [0], "begin": [-1], "end": [-4], "stride": [-1]}, [2, 1, 0]),
    ("pad", [[1, 2, 3]], {"padding": [(2, 1)], "value": 9.0}, [9, 9, 1, 2, 3, 9]),
    ("cast", [[-2.7, 0.9, 3]], {"dtype": "integer"}, [-2, 0, 3]),
    # corners (1, 0) to (2, 1) inclusive: 2 5 / 3 6, one column each
    (
        "max_roi_pool",
        [[[[[1, 2, 3], [4, 5, 6]]]], [[1, 0, 2, 1]], np.array([0])],
        {"output_size": [1, 2]},
        [[[[5, 6]]]],
    ),
    # three rows in two bins share the middle one; beyond the image there is nothing
    (
        "avg_roi_pool",
        [[[[[1], [3], [8]]]], [[0, 0, 0, 2], [4, 0, 5, 2]], np.array([0, 0])],
        {"output_size": [2, 1]},
        [[[[2], [5.5]]], [[[0], [0]]]],
    ),
    # two samples at 1 + (i + 1/2) * 2/2 - 1/2 = 1, 2; y = 0
    (
        "roi_resample",
        [[[[[0, 10, 20, 30]]]], [[1, 0, 3, 1]], np.array([0])],
        {"output_size": [1, 2]},
        [[[[10, 20]]]],
    ),
    # four samples: 1 + i/2 ('asymmetric'), 1 + i/3 ('aligned')
    (
        "roi_resample",
        [[[[[0, 10, 20, 30]]]], [[1, 0, 3, 1]], np.array([0])],
        {"output_size": [1, 4], "method": "asymmetric"},
        [[[[10, 15, 20, 25]]]],
    ),
    (
        "roi_resample",
        [[[[[0, 10, 20, 30]]]], [[1, 0, 3, 1]], np.array([0])],
        {"output_size": [1, 4], "method": "aligned"},
        [[[[10, 40 / 3, 50 / 3, 20]]]],
    ),
    (
        "avg_roi_align",
        [[[[[0, 10, 20, 30]]]], [[1, 0, 3, 1]], np.array([0])],
        {"output_size": [1, 2], "sampling_rate": [1, 2], "resize_method": "asymmetric"},
        [[[[12.5, 22.5]]]],
    ),
    (
        "max_roi_align",
        [[[[[0, 10, 20, 30]]]], [[1, 0, 3, 1]], np.array([0])],
        {"output_size": [1, 2], "sampling_rate": [1, 2], "resize_method": "asymmetric"},
        [[[[15, 25]]]],
    ),
]


@pytest.mark.parametrize(
    ("name", "operands", "attributes", "want"),
    [pytest.param(*row, id=f"{row[0]}-{k}") for k, row in enumerate(HAND)],
)
def test_hand_computed(
    name: str, operands: list[Any], attributes: dict[str, Any], want: Any
) -> None:
    got = reference(name, *operands, **attributes)
    assert got.shape == np.shape(want)
    assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("extent", "size", "stride", "dilation", "want"),
    [
        (5, 3, 1, 1, (1, 1)),
        (5, 2, 1, 1, (0, 1)),
        (5, 3, 2, 1, (1, 1)),  # x = 3, t = 4 + 3 - 5
        (6, 3, 2, 1, (0, 1)),  # x = 3, t = 4 + 3 - 6
        (5, 3, 1, 2, (2, 2)),
        (8, 2, 3, 1, (0, 0)),  # x = 3, t = 6 + 2 - 8
        (9, 2, 4, 1, (0, 1)),  # x = 3, t = 8 + 2 - 9
        (8, 2, 4, 1, (0, 0)),  # x = 2, t = 4 + 2 - 8, never below 0
    ],
)
def test_automatic_padding(
    extent: int, size: int, stride: int, dilation: int, want: tuple[int, int]
) -> None:
    assert automatic_padding(extent, size, stride, dilation) == want
