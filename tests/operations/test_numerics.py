"""Every claim of docs/numerics.md, on values that one can check by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from lowering.cpu import integers as passes
from lowering.kernels.levels import noted
from lowering.machine import using
from lowering.program import Program
from lowering.targets.cpu import CPU
from tests.helpers import model_of
from tests.machines import with_units

pytestmark = pytest.mark.optimised

NAN, INF = math.nan, math.inf


def call(
    invocation: str,
    *results: str,
    expand: Any = "auto",
    quantization: Any = "apply",
    **inputs: str,
) -> nnef_jax.Model:
    """The model of one invocation with results named z or as given; inputs as `x="scalar[2,3]"`."""
    names = results or ("z",)
    target = names[0] if len(names) == 1 else f"({', '.join(names)})"
    return written([f"{target} = {invocation};"], names, inputs, expand, quantization)


def calls(invocations: Iterable[str], quantization: Any = "apply", **inputs: str) -> nnef_jax.Model:
    """The model of several invocations, with a result for each."""
    lines = [f"z{i} = {invocation};" for i, invocation in enumerate(invocations)]
    names = [f"z{i}" for i in range(len(lines))]
    return written(lines, names, inputs, "auto", quantization)


def written(
    lines: Sequence[str],
    names: Sequence[str],
    inputs: dict[str, str],
    expand: Any,
    quantization: Any,
) -> nnef_jax.Model:
    parts = [(name, *spec.partition("[")[::2]) for name, spec in inputs.items()]
    lines = [*(f"{name} = external<{kind}>(shape = [{x});" for name, kind, x in parts), *lines]
    head = f"graph net( {', '.join(inputs)} ) -> ( {', '.join(names)} )"
    text = "\n    ".join(["version 1.0;", head, "{", *lines]) + "\n}\n"
    return model_of(text, expand=expand, quantization=quantization)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def gradient(model: nnef_jax.Model, *xs: np.ndarray, of: int = 0) -> np.ndarray:
    """The derivatives of the sum of the results."""
    loss = jax.grad(lambda *a: jnp.sum(model.apply({}, *a)), argnums=of)
    return np.asarray(jax.jit(loss)(*xs))


def gradients(model: nnef_jax.Model, x: np.ndarray) -> list[np.ndarray]:
    """The derivatives of the sum of each result."""
    slopes = [
        jax.grad(lambda x, i=i: jnp.sum(model.apply({}, x)[i])) for i in range(len(model.outputs))
    ]
    return [np.asarray(x) for x in jax.jit(lambda x: [slope(x) for slope in slopes])(x)]


def all_close(found: Iterable[Any], wanted: dict[str, Any], rtol: float = 1e-6) -> None:
    """Compare the results of several invocations."""
    for x, (invocation, y) in zip(found, wanted.items(), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, err_msg=invocation)


def same(actual: Any, *values: Any) -> None:
    np.testing.assert_array_equal(np.asarray(actual), np.array(values))


def close(actual: Any, *values: float) -> None:
    np.testing.assert_allclose(np.asarray(actual), np.array(values), rtol=1e-6)


# Derivatives at kinks


def test_relu_at_zero() -> None:
    same(gradient(call("relu(x)", x="scalar[3]"), floats(-1, 0, 1)), 0, 0, 1)


@pytest.mark.parametrize("operation", ["max", "min"])
def test_ties_of_max_and_min(operation: str) -> None:
    model = call(f"{operation}(x, y)", x="scalar[2]", y="scalar[2]")
    for of in (0, 1):
        same(gradient(model, floats(1, 2), floats(1, 2), of=of), 0.5, 0.5)


def test_clamp_at_its_bounds() -> None:
    model = call("clamp(x, 0.0, 6.0)", x="scalar[5]")
    same(gradient(model, floats(-1, 0, 3, 6, 7)), 0, 0.5, 1, 0.5, 0)
    same(call("clamp(x, 3.0, 1.0)", x="scalar[3]")(floats(0, 2, 5)), 3, 3, 3)


@pytest.mark.parametrize("operation", ["max_reduce", "min_reduce"])
def test_ties_of_max_and_min_reduce(operation: str) -> None:
    sign = 1 if operation == "max_reduce" else -1
    model = call(f"{operation}(x, axes = [0])", x="scalar[4]")
    close(gradient(model, floats(1, 3, 3, 3) * sign), 0, 1 / 3, 1 / 3, 1 / 3)


def test_exponential_units_at_zero() -> None:
    slopes = {
        "elu(x)": [1],
        "elu(x, alpha = 0.5)": [1],
        "prelu(x, 0.25)": [1],
        "leaky_relu(x, alpha = 0.25)": [1],
        "selu(x)": [1.05070102],
    }
    all_close(gradients(calls(slopes, x="scalar[1]"), floats(0)), slopes)


def test_abs_at_zero() -> None:
    same(gradient(call("abs(x)", x="scalar[3]"), floats(-2, 0, 2)), -1, 1, 1)
    same(gradient(call("softabs(x, epsilon = 0.25)", x="scalar[1]"), floats(0)), 0)


def test_steps_have_no_slope() -> None:
    steps = [
        "floor(x)",
        "ceil(x)",
        "round(x)",
        "sign(x)",
        "linear_quantize(x, -1.0, 1.0, bits = 4)",
        "min_max_linear_quantize(x, -1.0, 1.0, bits = 4, signed = true, symmetric = true)",
        "zero_point_linear_quantize(x, 0, 0.25, bits = 4, signed = true, symmetric = false)",
        "logarithmic_quantize(x, 1.0, bits = 4)",
    ]
    slopes = gradients(calls(steps, x="scalar[4]"), floats(-0.7, 0, 0.3, 2.5))
    all_close(slopes, dict.fromkeys(steps, [0] * 4), rtol=0)


# Where what quantises [-1.5, -1, 0.1, 1, 1.5] is straight-through: its levels end at -1 and 1.
STRAIGHT = {
    "linear_quantize(x, -1.0, 1.0, bits = 2)": (0, 1, 1, 1, 0),
    "min_max_linear_quantize(x, -1.0, 1.0, bits = 3, signed = true, symmetric = true)": (
        (0, 1, 1, 1, 0)
    ),
    "zero_point_linear_quantize(x, 2, 0.5, bits = 2, signed = false, symmetric = false)": (
        (0, 1, 1, 0, 0)  # levels from -1 to 0.5
    ),
    "logarithmic_quantize(x, 1.0, bits = 3)": (0, 1, 1, 1, 0),
    "round(x)": (1, 1, 1, 1, 1),
}


def test_straight_through() -> None:
    x = floats(-1.5, -1, 0.1, 1, 1.5)
    model = calls(STRAIGHT, quantization="ste", x="scalar[5]")
    all_close(gradients(model, x), STRAIGHT, rtol=0)
    values = calls(STRAIGHT, x="scalar[5]")(x)
    all_close(model(x), dict(zip(STRAIGHT, values, strict=True)), rtol=0)


def test_sqrt_at_zero() -> None:
    same(gradient(call("sqrt(x)", x="scalar[2]"), floats(0, 1)), INF, 0.5)


# Stable forms

# The value and the derivative at -1e30, 0 and 1e30.
HUGE = {
    "sigmoid(x)": ((0, 0.5, 1), (0, 0.25, 0)),
    "tanh(x)": ((-1, 0, 1), (0, 1, 0)),
    "softplus(x)": ((0, math.log(2), 1e30), (0, 0.5, 1)),
    "elu(x)": ((-1, 0, 1e30), (0, 1, 1)),
    "selu(x, alpha = 2.0, lambda = 3.0)": ((-6, 0, 3e30), (0, 3, 3)),
    "gelu(x)": ((0, 0, 1e30), (0, 0.5, 1)),
    "silu(x)": ((0, 0, 1e30), (0, 0.5, 1)),
    "softabs(x, epsilon = 0.25)": ((1e30, 0.5, 1e30), (-1, 0, 1)),
}


def test_finite_for_huge_inputs() -> None:
    model, x = calls(HUGE, x="scalar[3]"), floats(-1e30, 0, 1e30)
    all_close(model(x), {name: value for name, (value, _) in HUGE.items()})
    all_close(gradients(model, x), {name: slope for name, (_, slope) in HUGE.items()})


def test_finite_for_huge_inputs_in_softmax() -> None:
    model = call("softmax(x, axes = [0])", x="scalar[3]")
    x = floats(-1e30, 0, 1e30)
    same(model(x), 0, 0, 1)
    same(jax.jit(jax.jacobian(lambda x: model.apply({}, x)))(x), *np.zeros((3, 3)))


def test_norms_of_huge_and_tiny_inputs() -> None:
    l1 = call("l1_normalization(x, axes = [0])", x="scalar[64]")
    l2 = call("l2_normalization(x, axes = [0])", x="scalar[2]")
    same(l1(np.full(64, 8e37, np.float32)), *[1 / 64] * 64)
    for unit in (1e-30, 1, 2e37):
        close(l2(floats(3 * unit, 4 * unit)), 0.6, 0.8)


@pytest.mark.parametrize("operation", ["l1_normalization", "l2_normalization"])
def test_norms_of_zeros(operation: str) -> None:
    bare = call(f"{operation}(x, axes = [0])", x="scalar[2]")
    same(bare(floats(0, 0)), 0, 0)
    same(gradient(bare, floats(0, 0)), 1, 1)
    same(gradient(call(f"{operation}(x, axes = [0], epsilon = 0.5)", x="scalar[1]"), floats(0)), 2)


def test_local_variance_of_zeros() -> None:
    model = call("local_variance_normalization(x, size = [3])", x="scalar[3]")
    same(model(floats(0, 0, 0)), 0, 0, 0)
    assert np.isfinite(gradient(model, floats(0, 0, 0))).all()


def test_rms_pool_of_zeros() -> None:
    model = call("rms_pool(x, size = [2], padding = [(0,0)])", x="scalar[2]")
    same(model(floats(0, 0)), 0)
    same(gradient(model, floats(0, 0)), 0, 0)


# Rounding and powers


def test_round_half_up() -> None:
    x = floats(-0.5, -1.5, 2.5, 0.5, np.nextafter(np.float32(0.5), np.float32(0)), 2**23 + 1)
    same(call("round(x)", x="scalar[6]")(x), 0, -1, 3, 1, 0, 2**23 + 1)


def test_subnormals_are_zero() -> None:
    x = floats(1e-39, -1e-39, 1.5e-38, 2.0)
    half = call("mul(x, 0.5)", x="scalar[4]")
    np.testing.assert_array_equal(half(x), [0, 0, 0, 1])
    np.testing.assert_array_equal(call("mul(x, 1e30)", x="scalar[4]")(x)[:2], [0, 0])
    np.testing.assert_array_equal(call("copy(x)", x="scalar[4]")(x), x)
    text = "version 1.0; graph g(x) -> (y) { x = external(shape = [2]); y = mul(x, 0.5); }"
    small = np.float16([6e-8, 1e-6])  # 6.1e-5 is the least normal one
    found = model_of(text, dtype="float16")(small)
    np.testing.assert_array_equal(found, small * np.float16(0.5))
    assert found[1] > 0


def test_literal_exponents() -> None:
    for exponent, value, slope in ((3, -8, 12), (2, 4, -4), (-2, 0.25, 0.25), (17, -131072, None)):
        model = call(f"pow(x, {exponent}.0)", x="scalar[1]")
        same(model(floats(-2)), value)
        expected = exponent * value / -2 if slope is None else slope
        close(gradient(model, floats(-2)), expected)
    same(call("pow(x, 0.5)", x="scalar[1]")(floats(-2)), NAN)


def test_rsqr_is_no_root() -> None:
    same(call("rsqr(x)", x="scalar[2]")(floats(4, -2)), 0.0625, 0.25)
    close(call("rsqrt(x)", x="scalar[1]")(floats(4)), 0.5)


def test_gelu_is_the_approximation() -> None:
    x = np.linspace(-6, 6, 1201, dtype=np.float32)
    y = np.asarray(call("gelu(x)", x="scalar[1201]")(x), np.float64)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(y, wide / (1 + np.exp(-1.702 * wide)), rtol=1e-5, atol=1e-6)
    by_the_error_function = [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in wide]
    assert 0.02 < np.abs(y - by_the_error_function).max() < 0.021


def test_moments_are_of_the_population() -> None:
    model = call("moments(x, axes = [0])", "mean", "variance", x="scalar[2]")
    mean, variance = model(floats(1, 3))
    same(mean, 2)
    same(variance, 1)


# Types and shapes


def test_broadcasting_from_the_left() -> None:
    model = call("add(x, y)", x="scalar[2]", y="scalar[2,3]")
    same(model(floats(10, 20), np.ones((2, 3), np.float32)), [11, 11, 11], [21, 21, 21])
    with pytest.raises(nnef_jax.ShapeError, match=r"\[3\] and \[2,3\] do not broadcast"):
        call("add(x, y)", x="scalar[3]", y="scalar[2,3]")


def test_vectors_are_columns() -> None:
    model = call("matmul(x, y)", x="scalar[2,3]", y="scalar[3]")
    same(model(floats(*range(6)).reshape(2, 3), floats(1, 10, 100)), [210], [543])


def test_integers_that_do_not_fit() -> None:
    model = call("copy(x)", x="integer[2]")
    assert model.inputs[0].dtype == model.outputs[0].dtype == "int32"
    same(model(np.array([-(2**31), 2**31 - 1], np.int64)), -(2**31), 2**31 - 1)
    with pytest.raises(nnef_jax.InputError, match="do not fit int32"):
        model(np.array([0, 2**31], np.int64))
    text = (
        "version 1.0;\ngraph net( x ) -> ( y )\n{\n    x = external<integer>(shape = [2]);\n"
        "    i = variable<integer>(shape = [2], label = 'i');\n    y = gather(x, i);\n}\n"
    )
    same(model_of(text, data={"i": np.array([1, 0], np.int64)})(integers(5, 6)), 6, 5)
    with pytest.raises(nnef_jax.DataError, match="do not fit int32"):
        model_of(text, data={"i": np.array([0, 2**31], np.int64)})


def test_kinds_of_inputs() -> None:
    real = call("copy(x)", x="scalar[2]")
    assert real(np.array([0.5, 1.5])).dtype == jnp.float32
    assert real(np.array([0.5, 1.5], np.float16)).dtype == jnp.float32
    with pytest.raises(nnef_jax.InputError, match="has dtype int32, the graph declares float32"):
        real(integers(1, 2))
    with pytest.raises(nnef_jax.InputError, match="has dtype float32, the graph declares int32"):
        call("copy(x)", x="integer[2]")(floats(1, 2))


def test_cast_to_integer() -> None:
    model = call("cast<integer>(x)", x="scalar[6]")
    most = 2**31 - 1
    same(model(floats(-1.7, 1.7, 1e20, -1e20, INF, NAN)), -1, 1, most, -most - 1, most, 0)


def test_constants() -> None:
    filled = call("add(x, constant(shape = [2,2], value = [0.5]))", x="scalar[2,2]")
    same(filled(np.zeros((2, 2), np.float32)), [0.5, 0.5], [0.5, 0.5])
    several = call("add(x, constant(shape = [2,2], value = [1.0, 2.0, 3.0, 4.0]))", x="scalar[2,2]")
    same(several(np.zeros((2, 2), np.float32)), [1, 2], [3, 4])


# NaN


def test_nan_in_extrema() -> None:
    for operation in ("max", "min"):
        model = call(f"{operation}(x, y)", x="scalar[2]", y="scalar[2]")
        same(model(floats(NAN, 1), floats(1, NAN)), NAN, NAN)
        same(call(f"{operation}_reduce(x, axes = [0])", x="scalar[3]")(floats(1, NAN, 2)), NAN)
    same(call("clamp(x, 0.0, 1.0)", x="scalar[2]")(floats(NAN, 2)), NAN, 1)
    same(call("relu(x)", x="scalar[2]")(floats(NAN, -1)), NAN, 0)
    by_definition = call("max(x, y)", expand="all", x="scalar[1]", y="scalar[1]")
    same(by_definition(floats(NAN), floats(1)), 1)


def test_nan_in_pools() -> None:
    pool = "max_pool(x, size = [2], padding = [(0,0)], border = 'ignore'"
    x = floats(1, NAN, 2, 3)
    same(call(f"{pool})", x="scalar[4]")(x), NAN, NAN, 3)
    same(call(f"{pool}, dilation = [2])", x="scalar[4]")(x), 2, NAN)


@pytest.mark.parametrize("operation", ["argmax_reduce", "argmin_reduce"])
def test_nan_in_indices(operation: str) -> None:
    x = floats(1, NAN, 3, NAN)
    same(call(f"{operation}(x, axes = [0])", x="scalar[4]")(x), 1)
    same(call("argmax_pool(x, size = [4], padding = [(0,0)])", x="scalar[4]")(x), 1)


def test_nan_not_selected() -> None:
    model = call("select(c, x, y)", c="logical[2]", x="scalar[2]", y="scalar[2]")
    same(model(np.array([True, False]), floats(1, NAN), floats(NAN, 2)), 1, 2)


def test_division_by_zero() -> None:
    model = call("div(x, y)", x="scalar[3]", y="scalar[3]")
    same(model(floats(1, -1, 0), floats(0, 0, 0)), INF, -INF, NAN)
    same(call("rcp(x)", x="scalar[1]")(floats(0)), INF)


def test_infinity_beyond_its_group() -> None:
    text = """version 1.0;
graph g( x, f ) -> ( y ) {
    x = external(shape = [1,64,3,3]);
    f = external(shape = [64,8,3,3]);
    y = conv(x, f, groups = 8, border = 'constant');
}
"""
    x, f = np.ones((1, 64, 3, 3), np.float32), np.ones((64, 8, 3, 3), np.float32)
    x[0, 0, 1, 1] = INF
    written = np.asarray(model_of(text, optimize=False)(x, f))
    assert np.isinf(written[:, :8]).all()
    assert np.isfinite(written[:, 8:]).all()
    found = np.asarray(model_of(text)(x, f))
    kept = ~np.isnan(found)
    assert not kept.all()
    np.testing.assert_allclose(found[kept], written[kept], rtol=1e-6)


# Pools, indices and ranges


def test_zeros_around_max_pool() -> None:
    pool = "max_pool(x, size = [3], stride = [3], padding = [(1,1)]"
    x = floats(-1, -2, -3, -4)
    same(call(f"{pool}, border = 'constant')", x="scalar[4]")(x), 0, 0)
    same(call(f"{pool}, border = 'ignore')", x="scalar[4]")(x), -1, -3)


def test_ties_of_max_pool() -> None:
    for dilation in (1, 2):
        window = f"size = [2], dilation = [{dilation}], padding = [(0,0)]"
        model = call(f"max_pool(x, {window})", x="scalar[4]")
        same(
            gradient(model, floats(5, 5, 5, 5)), *([1, 1, 1, 0] if dilation == 1 else [1, 1, 0, 0])
        )
    padded = call("max_pool(x, size = [2], padding = [(1,0)])", x="scalar[2]")
    same(gradient(padded, floats(0, 0)), 1, 0)


def test_first_extremum_wins() -> None:
    x = floats(1, 3, 3, 1)
    same(call("argmax_reduce(x, axes = [0])", x="scalar[4]")(x), 1)
    same(call("argmin_reduce(x, axes = [0])", x="scalar[4]")(x), 0)
    same(call("argmax_pool(x, size = [4], padding = [(0,0)])", x="scalar[4]")(x), 1)


def test_gather_out_of_range() -> None:
    def gathered(kind: str, x: np.ndarray) -> Any:
        model = call("gather(x, i)", x=f"{kind}[3]", i="integer[4]")
        return model(x, integers(-1, -3, 3, -4))

    same(gathered("scalar", floats(1, 2, 3)), 3, 1, NAN, NAN)
    same(gathered("integer", integers(1, 2, 3)), 3, 1, -(2**31), -(2**31))
    same(gathered("logical", np.array([False, False, False])), False, False, True, True)


def test_slice_to_zero() -> None:
    def sliced(begin: int, end: int, stride: int) -> Any:
        ranges = f"begin = [{begin}], end = [{end}], stride = [{stride}]"
        return call(f"slice(x, axes = [0], {ranges})", x="scalar[4]")(floats(1, 2, 3, 4))

    same(sliced(1, 0, 1), 2, 3, 4)
    same(sliced(3, 0, -1), 4, 3, 2)
    same(sliced(3, -5, -1), 4, 3, 2, 1)


def test_normalisation_is_rounded_once() -> None:
    invocations = [
        "softmax(x)",
        "l1_normalization(x, axes = [1])",
        "l2_normalization(x, axes = [1])",
        "local_variance_normalization(x, size = [1,301])",
    ]
    lines = [f"y{i} = {x};" for i, x in enumerate(invocations)]
    names = ", ".join(f"y{i}" for i in range(4))
    text = f"version 1.0; graph g( x ) -> ( {names} ) {{ x = external(shape = [1,999]);"
    text += " ".join([*lines, "}"])
    in_32_bits = model_of(text)
    for dtype in ("bfloat16", "float16"):
        x = np.random.default_rng(0).normal(size=(1, 999)).astype(jnp.dtype(dtype))
        found, wanted = model_of(text, dtype=dtype)(x), in_32_bits(x.astype(np.float32))
        unit = float(jnp.finfo(dtype).eps) / 2
        for invocation, narrow, wide in zip(invocations, found, wanted, strict=True):
            assert narrow.dtype == dtype
            np.testing.assert_allclose(
                np.asarray(narrow, np.float32), wide, 1.01 * unit, 1e-7, err_msg=invocation
            )


def test_16_bits_are_computed_in_32() -> None:
    text = """
version 1.0;
graph g( x ) -> ( y ) { x = external(shape = [2]); z = add(x, 512.0); y = sub(z, 512.0); }
"""
    # bfloat16 has no numbers between 512 and 516.
    same(model_of(text, dtype="bfloat16")(jnp.asarray(floats(1, 3), jnp.bfloat16)), 1, 3)


@pytest.mark.parametrize("optimize", [True, False])
def test_a_cast_rounds(optimize: bool) -> None:
    text = """
version 1.0;
extension tract_core;
graph g( x ) -> ( y ) {
    x = tract_core_external(shape = [3], datum_type = 'f16');
    a = tract_core_cast(x, to = 'f32'); b = mul(a, 100.0);
    c = tract_core_cast(b, to = 'f16'); y = tract_core_cast(c, to = 'f32');
}
"""
    x = np.float16([700, 0.001, 20.5])
    with np.errstate(over="ignore"):
        wanted = (x.astype(np.float32) * np.float32(100)).astype(np.float16)
    same(model_of(text, optimize=optimize)(x), *wanted.astype(np.float32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_finite_numbers_stay_finite(dtype: str) -> None:
    text = """
version 1.0;
graph g( x ) -> ( y ) {
    x = external(shape = [2]); z = mul(x, 0.0); w = add(z, -3.4e38); y = mul(w, 0.0);
}
"""
    model = model_of(text, dtype=dtype)
    same(model(floats(-3.4e38, 1)), 0, 0)
    assert np.isnan(model(floats(-np.inf, 1))[0])


def test_products_of_bfloat16() -> None:
    text = """
version 1.0;
graph g( x, m ) -> ( y ) {
    x = external(shape = [3,64]); m = external(shape = [64,5]); y = matmul(x, m);
}
"""
    random = np.random.default_rng(0)
    x, m = (random.normal(size=s).astype(np.float32) for s in ((3, 64), (64, 5)))
    found = model_of(text, precision="BF16_BF16_F32")(x, m)
    assert found.dtype == jnp.float32
    # Two factors, each off by 1/256 of its size at most.
    assert np.all(np.abs(found - x @ m) <= (np.abs(x) @ np.abs(m)) * 1.01 / 128)
    exact = [model_of(text, precision=p)(*map(np.round, (x, m))) for p in (None, "BF16_BF16_F32")]
    np.testing.assert_array_equal(*exact)


@pytest.mark.parametrize(
    "invocation", ["matmul(x, m)", "tract_core_einsum([x, m], 'ij,jk->ik', 'i32')"]
)
def test_precision_is_of_real_numbers(invocation: str) -> None:
    text = f"""
version 1.0;
extension tract_core;
graph g( x, m ) -> ( y ) {{
    x = tract_core_external(shape = [1,32], datum_type = 'i32');
    m = tract_core_external(shape = [32,1], datum_type = 'i32');
    y = {invocation};
}}
"""
    model = model_of(text, precision="BF16_BF16_F32")
    same(model(np.full((1, 32), 1001), np.full((32, 1), 1003)), [32 * 1001 * 1003])


def test_products_of_levels() -> None:
    def rounded(x: jax.Array) -> jax.Array:
        level = jnp.round(x)
        return noted(level * 0.1, level, 0.1, 0.0, -128, 127)

    codes = np.random.default_rng(0).integers(-128, 128, (2, 64, 64))
    x, w = codes.astype(np.float32)
    closed = jax.make_jaxpr(lambda x, w: rounded(x) @ rounded(w))(x, w)
    with using(with_units(True)):
        (found,) = passes.run(Program(closed), CPU)(x, w)
    wanted = (codes[0] @ codes[1]) * 0.01
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    assert passes.names_of_products(closed)
