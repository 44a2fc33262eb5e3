"""The reference on the rows of the table, against other ways to compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from numpy.testing import assert_allclose, assert_array_equal

from tests.op_cases import NNEF, OpCase, expected, inputs
from tests.reference import OPERATIONS
from tests.reference.borders import automatic_padding

BY_NAME = {case.name: case for case in NNEF}
MODES = {"replicate": "edge", "reflect": "reflect", "reflect-even": "symmetric"}


def rows(*operations: str) -> list[Any]:
    """The rows of some operations, as parameters of a test."""
    return [pytest.param(c, id=c.name) for c in NNEF if c.operation in operations]


def cut(x: np.ndarray, size: list[int], case: OpCase, outside: float) -> np.ndarray:
    """All windows over the last axes at once, by numpy's padding and striding."""
    first = x.ndim - len(size)
    window = case.attributes
    strides = [1] * first + (window.get("stride") or [1] * len(size))
    dilations = window.get("dilation") or [1] * len(size)
    pads = window.get("padding") or [
        automatic_padding(X, f, s, d)
        for X, f, s, d in zip(x.shape[first:], size, strides[first:], dilations, strict=True)
    ]
    pads = [(0, 0)] * first + pads
    border = window.get("border", "constant")
    if border in MODES:
        x = np.pad(x, pads, MODES[border])
    else:
        x = np.pad(x, pads, constant_values=outside if border == "ignore" else 0.0)
    axes = tuple(range(first, x.ndim))
    dilated = [(f - 1) * d + 1 for f, d in zip(size, dilations, strict=True)]
    windows = sliding_window_view(x, dilated, axes)
    steps = [slice(None, None, step) for step in strides + dilations]
    return windows[tuple(steps)]


@pytest.mark.parametrize("case", rows("conv"))
def test_conv_is_a_product_with_all_windows(case: OpCase) -> None:
    x, weights, *bias = (array.astype(np.float64) for array in inputs(case))
    groups = case.attributes.get("groups", 1) or x.shape[1]
    windows = cut(x, list(weights.shape[2:]), case, 0.0)
    rank = x.ndim - 2
    parts = [
        np.tensordot(w, f, ([1, *range(2 + rank, 2 + 2 * rank)], list(range(1, 2 + rank))))
        for w, f in zip(np.split(windows, groups, 1), np.split(weights, groups, 0), strict=True)
    ]
    want = np.moveaxis(np.concatenate(parts, -1), -1, 1)
    offset = bias[0] if bias else np.float64(case.operands.get("bias", 0.0))
    want = want + offset.reshape(offset.shape + (1,) * (want.ndim - offset.ndim))
    assert_allclose(expected(case)[0], want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", rows("box", "avg_pool", "rms_pool"))
def test_box_sums_all_windows(case: OpCase) -> None:
    x = inputs(case)[0].astype(np.float64)
    x = x * x if case.operation == "rms_pool" else x
    size = case.attributes["size"]
    within = tuple(range(-x.ndim, 0))
    want = np.nansum(cut(x, size, case, np.nan), within)
    if case.operation != "box" or case.attributes.get("normalize"):
        want = np.nanmean(cut(x, size, case, np.nan), within)
    want = np.sqrt(want) if case.operation == "rms_pool" else want
    assert_allclose(expected(case)[0], want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", rows("max_pool", "argmax_pool", "max_pool_with_index"))
def test_max_pool_takes_the_maximum_of_all_windows(case: OpCase) -> None:
    x = inputs(case)[0].astype(np.float64)
    windows = cut(x, case.attributes["size"], case, -np.inf)
    flat = windows.reshape(*windows.shape[: x.ndim], -1)
    want = {"max": flat.max(-1), "argmax": flat.argmax(-1)}
    names = {"max_pool": ["max"], "argmax_pool": ["argmax"]}.get(case.operation, ["max", "argmax"])
    for name, got in zip(names, expected(case), strict=True):
        assert_array_equal(got, want[name])


def check_adjoint(case: OpCase, reverse: str, *more: np.ndarray) -> None:
    """<A x, y> = <x, B y> for random y: B is the transpose of A, item for item."""
    x = inputs(case)[0].astype(np.float64)
    image = OPERATIONS[case.operation](x, *more, **case.attributes)
    y = np.random.default_rng(1).uniform(-1, 1, image.shape)
    back = OPERATIONS[reverse](y, *more, **case.attributes, output_shape=list(x.shape))
    assert back.shape == x.shape
    assert_allclose(np.sum(x * back), np.sum(image * y), rtol=1e-10)


def zero_bordered(operation: str) -> list[Any]:
    return [
        parameter
        for parameter in rows(operation)
        if parameter.values[0].attributes.get("border", "constant") == "constant"
    ]


@pytest.mark.parametrize("case", zero_bordered("conv"))
def test_deconv_is_the_adjoint_of_conv(case: OpCase) -> None:
    check_adjoint(case, "deconv", inputs(case)[1].astype(np.float64))


@pytest.mark.parametrize("case", zero_bordered("box"))
def test_debox_is_the_adjoint_of_box(case: OpCase) -> None:
    check_adjoint(case, "debox")


@pytest.mark.parametrize("case", zero_bordered("sample"))
def test_desample_is_the_adjoint_of_sample(case: OpCase) -> None:
    check_adjoint(case, "desample", inputs(case)[1])


@pytest.mark.parametrize(
    "case", [p for p in rows("deconv") if "groups" not in p.values[0].attributes]
)
def test_deconv_with_ones_is_debox(case: OpCase) -> None:
    x, weights = (array.astype(np.float64) for array in inputs(case)[:2])
    ones = np.ones((x.shape[1], 1, *weights.shape[2:]))
    window = dict(case.attributes)
    if "output_shape" in window:
        window["output_shape"] = [x.shape[0], 1, *window["output_shape"][2:]]
    got = OPERATIONS["deconv"](x, ones, **window)
    for name, one in (("stride", 1), ("dilation", 1), ("padding", (0, 0))):
        if name in window:
            window[name] = [one, one, *window[name]]
    total = x.sum(1, keepdims=True)
    want = OPERATIONS["debox"](total, [1, 1, *weights.shape[2:]], **window)
    assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", rows("multilinear_upsample"))
def test_upsampling_is_interpolation_along_each_axis(case: OpCase) -> None:
    y = inputs(case)[0].astype(np.float64)
    method = case.attributes.get("method", "symmetric")
    border = case.attributes.get("border", "replicate")
    for axis, f in enumerate(case.attributes["factor"], start=2):
        x = y.shape[axis]
        i = np.arange(x * f)
        if method == "symmetric":
            i = (i + 0.5) / f - 0.5
        elif method == "asymmetric":
            i = i / f
        else:
            i = np.linspace(0, x - 1, x * f)
        mode = MODES.get(border, "constant")

        def interpolate(line: np.ndarray, i: np.ndarray = i, mode: str = mode) -> np.ndarray:
            return np.interp(i, np.arange(-1, len(line) + 1), np.pad(line, 1, mode))

        y = np.apply_along_axis(interpolate, axis, y)
    assert_allclose(expected(case)[0], y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", ["symmetric", "asymmetric", "aligned"])
def test_resampling_the_whole_image_is_upsampling_it(method: str) -> None:
    x = inputs(BY_NAME["roi_resample_default"])[0].astype(np.float64)
    roi = np.array([[0.0, 0.0, x.shape[3], x.shape[2]]] * 2)
    size = [x.shape[2] * 2, x.shape[3] * 3]
    got = OPERATIONS["roi_resample"](x, roi, np.array([0, 1]), output_size=size, method=method)
    want = OPERATIONS["multilinear_upsample"](x, factor=[2, 3], method=method)
    assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", rows("separable_conv", "separable_deconv"))
def test_separable_filters_are_outer_products(case: OpCase) -> None:
    x, plane, point, *bias = (array.astype(np.float64) for array in inputs(case))
    groups = case.attributes.get("groups", 1)
    attributes = {k: v for k, v in case.attributes.items() if k != "groups"}
    if case.operation == "separable_conv":
        multiplier = plane.shape[0] // x.shape[1]
        full = np.zeros((point.shape[0], x.shape[1], *plane.shape[2:]))
        per_group = point.shape[0] // groups
        for k in range(point.shape[0]):
            for n in range(point.shape[1]):
                channel = k // per_group * point.shape[1] + n
                full[k, channel // multiplier] += point[k, n, 0, 0] * plane[channel, 0]
        got = OPERATIONS["conv"](x, full, *bias, **attributes)
    else:
        count = x.shape[1]
        full = np.zeros((count, plane.shape[0], *plane.shape[2:]))
        for k in range(count):
            for n in range(point.shape[1]):
                channel = k // (count // groups) * point.shape[1] + n
                full[k, channel] = point[k, n, 0, 0] * plane[channel, 0]
        got = OPERATIONS["deconv"](x, full, *bias, **attributes)
    assert_allclose(got, expected(case)[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", rows("moments"))
def test_moments_are_mean_and_variance(case: OpCase) -> None:
    x = inputs(case)[0].astype(np.float64)
    axes = tuple(case.attributes["axes"])
    mean, variance = expected(case)
    assert_allclose(mean, np.mean(x, axes, keepdims=True), rtol=1e-12)
    assert_allclose(variance, np.var(x, axes, keepdims=True), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", rows("pad"))
def test_pad_is_that_of_numpy(case: OpCase) -> None:
    x = inputs(case)[0].astype(np.float64)
    mode = MODES.get(case.attributes.get("border", "constant"))
    more = {} if mode else {"constant_values": case.attributes.get("value", 0.0)}
    want = np.pad(x, case.attributes["padding"], mode or "constant", **more)
    assert_array_equal(expected(case)[0], want)


@pytest.mark.parametrize("case", rows("matmul"))
def test_matmul_is_that_of_numpy(case: OpCase) -> None:
    a, b = (x.astype(np.float64) for x in inputs(case))
    a = np.swapaxes(a, -1, -2) if case.attributes.get("transposeA") else a
    b = np.swapaxes(b, -1, -2) if case.attributes.get("transposeB") else b
    assert_allclose(expected(case)[0], a @ b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", rows("split", "unstack"))
def test_split_is_undone_by_concat(case: OpCase) -> None:
    inverse = "concat" if case.operation == "split" else "stack"
    whole = OPERATIONS[inverse](expected(case), axis=case.attributes["axis"])
    assert_array_equal(whole, inputs(case)[0])
