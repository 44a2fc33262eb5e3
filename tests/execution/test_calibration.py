"""Ranges found over samples, and networks quantised by them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnef_jax
from tests.helpers import archive, model_of
from tests.quantized import X, floats, network

LENET = """version 1.0;
extension KHR_enable_operator_expressions;
graph LeNet( image ) -> ( probabilities )
{
    image = external(shape = [4,1,16,16]);
    filter1 = variable(shape = [6,1,5,5], label = 'conv1/filter');
    bias1 = variable(shape = [1,6], label = 'conv1/bias');
    filter2 = variable(shape = [8,6,3,3], label = 'conv2/filter');
    weights = variable(shape = [128,10], label = 'fc/weights');
    half = constant(shape = [1], value = [0.5]);
    conv1 = relu(conv(image, filter1, bias1));
    pool1 = max_pool(conv1, size = [1,1,2,2], stride = [1,1,2,2], border = 'ignore');
    conv2 = relu(conv(pool1, filter2) * half);
    pool2 = max_pool(conv2, size = [1,1,2,2], stride = [1,1,2,2], border = 'ignore');
    flat = reshape(pool2, shape = [0,-1]);
    logits = matmul(flat, weights);
    probabilities = softmax(logits);
}
"""


@pytest.fixture(scope="module")
def lenet() -> nnef_jax.Model:
    random = np.random.default_rng(1)
    shapes = {
        "conv1/filter": (6, 1, 5, 5), "conv1/bias": (1, 6), "conv2/filter": (8, 6, 3, 3),
        "fc/weights": (128, 10),
    }  # fmt: skip
    arrays = {
        label: (random.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        for label, shape in shapes.items()
    }
    return nnef_jax.load(archive(graph=LENET, **{n: floats(a) for n, a in arrays.items()}))


def images(count: int) -> list[np.ndarray]:
    random = np.random.default_rng(2)
    return [random.uniform(0, 1, (4, 1, 16, 16)).astype(np.float32) for _ in range(count)]


SETTINGS = {
    "min_max": {},
    "min_max signed": {"signed": True},
    "min_max symmetric": {"signed": True, "symmetric": True},
    "min_max per channel": {"per_channel": True, "signed": True, "symmetric": True},
    "zero_point": {"algorithm": "zero_point_linear_quantize"},
    "zero_point signed": {"algorithm": "zero_point_linear_quantize", "signed": True},
    "zero_point symmetric per channel": {
        "algorithm": "zero_point_linear_quantize", "signed": True, "symmetric": True,
        "per_channel": True,
    },
}  # fmt: skip


# Both algorithms per channel, as they are, signed, and symmetric say what all would.
MORE = ("min_max signed", "min_max symmetric", "zero_point")


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(settings, id=name, marks=[pytest.mark.slow] if name in MORE else [])
        for name, settings in SETTINGS.items()
    ],
)
def test_calibrated_network_stays_close(
    lenet: nnef_jax.Model, settings: dict[str, Any], tmp_path: Path
) -> None:
    text = nnef_jax.calibrate(lenet, images(2), **settings)
    nnef_jax.write_archive(tmp_path / "quantised", LENET, lenet.params, quantization=text)
    model = nnef_jax.load(tmp_path / "quantised")
    kinds = [operation.kind for operation in model.graph.operations]
    assert sum("quantize" in kind for kind in kinds) == text.count("\n") == 11
    names = ["conv1", "conv2", "logits", "probabilities"]
    for x in images(2):
        real, rounded = lenet.intermediates(x, names=names), model.intermediates(x, names=names)
        for name in names:
            a, b = np.asarray(real[name]), np.asarray(rounded[name])
            assert 0 < np.abs(a - b).max() < 0.03 * np.ptp(a)  # a step is 0.004
            assert np.ptp(b) > 0.9 * np.ptp(a)  # not all zeros, as with a scale upside down


def test_calibrated_ranges_are_those_of_the_samples(lenet: nnef_jax.Model) -> None:
    samples = images(3)
    text = nnef_jax.calibrate(lenet, samples)
    found = dict(re.findall(r'"(\w+)": min_max_linear_quantize\((.*)\);', text))
    assert list(found) == [
        "image", "conv1", "pool1", "conv2", "pool2", "flat", "logits", "probabilities",
        "filter1", "filter2", "weights",
    ]  # fmt: skip
    inside = [lenet.intermediates(x, names=[*found]) for x in samples]
    for name, arguments in found.items():
        low, high = re.fullmatch(
            r"min = (\S+), max = (\S+), bits = 8, signed = false, symmetric = false", arguments
        ).groups()  # type: ignore[union-attr]
        values = np.concatenate([np.ravel(each[name]) for each in inside])
        assert (np.float32(low), np.float32(high)) == (values.min(), values.max()), name


LINE = """version 1.0;
graph G( x ) -> ( y )
{
    x = external(shape = [1,4]);
    w = variable(shape = [2,4], label = 'w');
    b = variable(shape = [1,2], label = 'b');
    y = linear(x, w, b);
}
"""


def line(**options: Any) -> str:
    files = {"w": floats([[0, 1, -3, 2], [0, 0, 0, 5]]), "b": floats([[0, 0]])}
    model = nnef_jax.load(archive(graph=LINE, **files))
    x = np.float32([[-1, 0, 4, 1]])
    return nnef_jax.calibrate(model, [{"x": x}, (x / 2,)], **{"names": ["x", "w"]} | options)


def test_zero_point_and_scale_by_hand() -> None:
    # x lies in [-1, 4]: 5 / 255 = 1/51 for each step, and 0 is step 51. w lies in [-3, 5]: 8 / 255.
    text = line(algorithm="zero_point_linear_quantize")
    assert text == (
        f'"x": zero_point_linear_quantize(zero_point = 51, scale = {np.float32(1 / 51)!s}, '
        "bits = 8, signed = false, symmetric = false);\n"
        f'"w": zero_point_linear_quantize(zero_point = 96, scale = {np.float32(8 / 255)!s}, '
        "bits = 8, signed = false, symmetric = false);\n"
    )
    # signed, step 51 is code 51 - 128
    assert "zero_point = -77, scale = 0.019607" in line(
        algorithm="zero_point_linear_quantize", signed=True, names=["x"]
    )
    # symmetric of 4 bits: 4 / 7 for x; 3 / 7 and 5 / 7 for the rows of w
    text = line(
        algorithm="zero_point_linear_quantize",
        signed=True,
        symmetric=True,
        bits=4,
        per_channel=True,
    )
    assert f"zero_point = 0, scale = {np.float32(4 / 7)!s}, bits = 4, signed = true" in text
    scales = f"{np.float32(3 / 7)!s}, {np.float32(5 / 7)!s}"
    assert f"zero_point = [0, 0], scale = [{scales}]," in text


def test_min_and_max_by_hand() -> None:
    assert "min = -1.0, max = 4.0, bits = 5, signed = true, symmetric = false" in line(
        signed=True, bits=5
    )
    text = line(signed=True, symmetric=True, per_channel=True)
    assert '"x": min_max_linear_quantize(min = -4.0, max = 4.0,' in text
    assert '"w": min_max_linear_quantize(min = [-3.0, -5.0], max = [3.0, 5.0],' in text
    # nothing but zeros still has a range, and a bias is quantised where it is asked for
    assert "min = 0.0, max = 1.0" in line(names=["b"])
    assert [line.split(":")[0] for line in line(names=None).splitlines()] == ['"x"', '"y"', '"w"']


def test_percentile_leaves_outliers_out() -> None:
    # of -1, 0, 1, 4: the 75th percentile is a quarter of the way from 1 to 4, the 25th from 0 to -1
    # for half of the values these are half as large
    assert "min = -0.25, max = 1.75" in line(percentile=75, names=["x"])


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"bits": 1}, ValueError, "bits must be"),
        ({"symmetric": True}, ValueError, "signed=True"),
        ({"algorithm": "linear"}, ValueError, "algorithm must be"),
        ({"percentile": 10}, ValueError, "percentile must be"),
        ({"names": ["x", "q"]}, nnef_jax.InputError, "no tensor 'q'"),
    ],
)
def test_bad_settings(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        line(**options)


def test_calibration_needs_samples_and_real_numbers(lenet: nnef_jax.Model) -> None:
    with pytest.raises(nnef_jax.InputError, match="at least one sample"):
        nnef_jax.calibrate(lenet, [])
    with pytest.raises(nnef_jax.InputError, match="'image' has values that are not finite"):
        nnef_jax.calibrate(lenet, [images(1)[0] * np.float32(np.inf)])
    with pytest.raises(nnef_jax.InputError, match="quantised already"):
        nnef_jax.calibrate(network('"y": linear_quantize(min=0.0, max=1.0, bits=8)'), [X])
    integers = (
        "version 1.0;\ngraph G( x ) -> ( y ) { x = external<integer>(shape=[1]); y = copy(x); }"
    )
    with pytest.raises(nnef_jax.InputError, match="'x' does not hold real numbers"):
        nnef_jax.calibrate(nnef_jax.load(archive(graph=integers)), [np.int32([1])], names=["x"])


def test_save_with_samples(tmp_path: Path) -> None:
    text = "version 1.0; graph g( x ) -> ( y ) { x = external(shape = [4]); y = mul(x, 2.0); }"
    model = model_of(text)
    samples = [np.float32([0, 1, 2, 3])]
    model.save(tmp_path / "n", quantize=samples)
    assert '"y": min_max_linear_quantize(' in (tmp_path / "n" / "graph.quant").read_text()
    x = np.float32([0.5, 1.5, 2.5, 9])
    # y lies on the 256 levels from 0 to 6, where the sample's maximum was.
    np.testing.assert_allclose(nnef_jax.load(tmp_path / "n")(x), [1, 3, 5, 6], atol=6 / 255)
    again = tmp_path / "again"
    nnef_jax.load(tmp_path / "n").save(again)
    assert (again / "graph.quant").read_text() == (tmp_path / "n" / "graph.quant").read_text()
