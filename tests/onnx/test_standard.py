"""Operators of the standard compute what onnxruntime does, and refuse what they cannot."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from onnx import helper

import nnef_jax
from nnef_jax.errors import NnefError
from tests.onnx.comparison import in_two, wrong_cases
from tests.onnx.models import INT, model, node, tensor
from tests.onnx.standard_cases import CASES, RESULTS

# Of trees, those left have both ways of voting for two classes; padding is that of others.
SLOW = (
    "ConvTranspose.1", "TreeEnsembleClassifier.LOGISTIC_first_0",
    "TreeEnsembleClassifier.LOGISTIC_second_0", "TreeEnsembleClassifier.NONE_first_1",
    "TreeEnsembleClassifier.NONE_all_1",
)  # fmt: skip


@pytest.mark.parametrize("names", in_two((x.name for x in CASES), SLOW))
def test_results_are_those_of_onnxruntime(names: list[str]) -> None:
    assert wrong_cases(CASES, names, RESULTS, rtol=1e-4) == {}


_PLANES = [tensor("x", (1, 4, 6, 6))]
_ROW = [tensor("x", (2, 3))]


@pytest.mark.parametrize(
    ("made", "inputs", "why"),
    [
        (node("Conv", "x w", kernel_shape=[2, 2]), _PLANES, r"'kernel_shape' is \[2, 2\]"),
        (node("Conv", "x w", pads=[1, 1]), _PLANES, "'pads' must have 4 items"),
        (node("Conv", "x w", pads=[-1, 0, 0, 0]), _PLANES, "items below 0"),
        (node("Conv", "x w", auto_pad="SAME"), _PLANES, "known are NOTSET"),
        (node("MaxPool", "x"), _PLANES, "'kernel_shape' is missing"),
        (node("MaxPool", "x", kernel_shape=[2, 2], storage_order=2), _PLANES, "must be 0 or 1"),
        (node("LpNormalization", "x", p=3), _ROW, "'p' must be 1 or 2, it is 3"),
        (node("GroupNormalization", "x s s", num_groups=3), _PLANES, "does not divide 4 channels"),
        (node("SpaceToDepth", "x", blocksize=0), _PLANES, "'blocksize' must be at least 1"),
        (node("Resize", "x"), _PLANES, "either 'scales' or 'sizes'"),
        (node("DFT", "x", onesided=1, inverse=1), [tensor("x", (2, 5, 1))], "must be complex"),
        (node("DFT", "x", onesided=1), [tensor("x", (2, 5, 3))], "must hold"),
        (
            node("LinearRegressor", "x", domain="ai.onnx.ml", coefficients=[1.0, 2.0]), _ROW,
            "2 coefficients for 1 x 3",
        ),
        (
            node("ZipMap", "x", domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]), _ROW,
            r"options=\{'zipmap': False\}",
        ),
        (
            node(
                "TreeEnsembleRegressor", "x", domain="ai.onnx.ml", n_targets=1, target_ids=[0],
                target_treeids=[0], target_nodeids=[1], target_weights=[1.0], nodes_values=[0.0],
                nodes_treeids=[0], nodes_nodeids=[0], nodes_modes=["LEAF"], nodes_featureids=[0],
                nodes_truenodeids=[0], nodes_falsenodeids=[0],
            ),
            _ROW, r"do not go together: \(0, 1\)",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused(made: Any, inputs: list[Any], why: str) -> None:
    weights = {"w": np.ones((2, 4, 3, 3), np.float32), "s": np.ones(4, np.float32)}
    used = {name: x for name, x in weights.items() if name in made.input}
    with pytest.raises(NnefError, match=why) as error:
        nnef_jax.load(model([made], inputs, weights=used).SerializeToString())
    assert error.value.span is not None


def test_scales_may_be_cast() -> None:
    nodes = [node("Cast", "s", "scales", to=1), node("Resize", "x _ scales")]
    network = nnef_jax.load(model(nodes, weights={"s": np.float16([2, 1])}))
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    np.testing.assert_array_equal(network(x), np.repeat(x, 2, axis=0))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_is_summed_in_32_bits_goes_with_fewer(dtype: str) -> None:
    """The epsilon of a plane of zeros is no zero, as it is in float16; graphs have their dtype."""
    scored = helper.make_graph([node("Mul", "s two", "t")], "scored", [tensor("s", None)],
                               [tensor("t", None)])  # fmt: skip
    attention = node("FlexAttention", "x x x", "z", domain="ai.onnx.preview", score_mod=scored)
    nodes = [node("InstanceNormalization", "x w b", epsilon=1e-9), attention]
    weights = {"w": np.ones(1, np.float32), "b": np.ones(1, np.float32), "two": np.float32(2)}
    outputs = [tensor("y", None), tensor("z", None)]
    made = model(nodes, [tensor("x", (2, 1, 2, 1))], outputs, weights)
    loaded = nnef_jax.load(made.SerializeToString(), dtype=dtype)
    y, z = loaded(np.float32([0, 0, -1, 1]).reshape(2, 1, 2, 1))
    np.testing.assert_allclose(np.float32(y).ravel(), [1, 1, 0, 2], atol=0.01)
    wanted = np.tanh(2) * np.float32([-1, 1])  # scores are 2 and -2
    np.testing.assert_allclose(np.float32(z).ravel(), [0, 0, *wanted], atol=0.01)


def test_the_root_of_nothing_has_a_derivative() -> None:
    """It is 0, as in PyTorch; where items are divided by it that of the items is left."""
    nodes = [
        node("ReduceL2", "x", "l2"), node("ReduceL2", "x", "flat", keepdims=0),
        node("LpPool", "x", "pool", kernel_shape=[2, 2]),
        node("LpPool", "x", "cubes", kernel_shape=[2, 2], p=3),
        node("GlobalLpPool", "x", "global"), node("MeanVarianceNormalization", "x", "normal"),
    ]  # fmt: skip
    outputs = [tensor(made.output[0], None) for made in nodes]
    loaded = nnef_jax.load(model(nodes, [tensor("x", (1, 1, 2, 4))], outputs))
    x = np.zeros((1, 1, 2, 4), np.float32)

    def first(x: Any) -> dict[str, Any]:
        return {name: jnp.ravel(y)[0] for name, y in loaded(x)._asdict().items()}

    values, slopes = jax.jit(lambda x: (first(x), jax.jacrev(first)(x)))(x)
    assert values == dict.fromkeys(values, 0)
    wanted = dict.fromkeys(values, 0 * x)
    wanted["normal"] = 1e9 * ((np.arange(8) == 0) - 1 / 8).reshape(x.shape)
    for name, slope in slopes.items():
        np.testing.assert_allclose(slope, wanted[name], rtol=1e-6, err_msg=name)


def test_a_category_that_may_not_be_is_not_a_number() -> None:
    encoder = node("OneHotEncoder", "x", domain="ai.onnx.ml", cats_int64s=[1, 3], zeros=0)
    found = nnef_jax.load(model([encoder], [tensor("x", (3,), INT)]))(np.int32([3, 2, 1]))
    np.testing.assert_array_equal(found, [[0, 1], [np.nan, np.nan], [1, 0]])


def test_steps_of_training_do_what_the_standard_says() -> None:
    """Adam at step 0 corrects nothing; later by how little is summed yet."""
    made = node("Adam", "r t x g v h", "y v1 h1", domain="ai.onnx.preview.training", alpha=0.9,
                beta=0.8, epsilon=1e-3, norm_coefficient=0.1)  # fmt: skip
    inputs = [tensor("r", ()), tensor("t", (), INT), *(tensor(n, (3,)) for n in "xgvh")]
    outputs = [tensor(name, None) for name in ("y", "v1", "h1")]
    loaded = nnef_jax.load(model([made], inputs, outputs).SerializeToString())
    rng = np.random.default_rng(0)
    x, g, v, h = np.abs(rng.standard_normal((4, 3))).astype(np.float32)
    for step in (0, 3):
        found = loaded(np.float32(0.5), np.int32(step), x, g, v, h)
        gradient = 0.1 * x + g
        mean, square = 0.9 * v + 0.1 * gradient, 0.8 * h + 0.2 * gradient**2
        rate = 0.5 * np.sqrt(1 - 0.8**step) / (1 - 0.9**step) if step else 0.5
        wanted = (x - rate * mean / (np.sqrt(square) + 1e-3), mean, square)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_frequencies_of_real_numbers_are_those_of_complex_ones() -> None:
    made = [node("DFT", "x _ _", "y"), node("Concat", "x z", "c", axis=-1), node("DFT", "c", "d")]
    outputs = [tensor("y", None), tensor("d", None)]
    weights = {"z": np.zeros((2, 7, 1), np.float32)}
    loaded = nnef_jax.load(
        model(made, [tensor("x", (2, 7, 1))], outputs, weights).SerializeToString()
    )
    x = np.random.default_rng(0).standard_normal((2, 7, 1)).astype(np.float32)
    y, d = loaded(x)
    np.testing.assert_allclose(y, d, atol=1e-5)
    wanted = np.fft.fft(x[..., 0])
    np.testing.assert_allclose(y, np.stack([wanted.real, wanted.imag], -1), atol=1e-5)


def test_a_deformable_convolution_without_offsets_is_a_convolution() -> None:
    """The biases of channels count in both; of one channel they would broadcast along any axis."""
    rng = np.random.default_rng(0)
    w, b = rng.standard_normal((4, 3, 3, 2)), rng.standard_normal(4)
    weights = {"w": np.float32(w), "b": np.float32(b), "o": np.zeros((1, 12, 3, 4), np.float32)}
    nodes = [node("DeformConv", "x w o b", "y"), node("Conv", "x w b", "z")]
    outputs = [tensor("y", None), tensor("z", None)]
    made = model(nodes, [tensor("x", (1, 3, 5, 5))], outputs, weights)
    y, z = nnef_jax.load(made)(np.float32(rng.standard_normal((1, 3, 5, 5))))
    np.testing.assert_allclose(y, z, rtol=1e-5, atol=1e-5)


def test_a_plane_of_one_whole_number_keeps_it() -> None:
    """Weights of float32 sum to a little less than 1, and what is computed is cut off."""
    image = np.full((1, 1, 4, 4), 255, np.int32)
    extents = {"up": (9, 10), "odd": (7, 5), "down": (3, 3)}
    nodes = [
        node("Resize", f"x _ _ {name}", f"{mode}.{name}", mode=mode)
        for mode in ("linear", "cubic")
        for name in extents
    ]
    outputs = [tensor(made.output[0], None, 6) for made in nodes]
    sizes = {name: np.int64([1, 1, *extent]) for name, extent in extents.items()}
    loaded = nnef_jax.load(model(nodes, [tensor("x", image.shape, 6)], outputs, sizes))
    for y, extent in zip(loaded(image), [*extents.values()] * 2, strict=True):
        np.testing.assert_array_equal(y, np.full((1, 1, *extent), 255))
