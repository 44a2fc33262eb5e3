"""The layers that compute items separately: activations, softmax and normalisation.

They are vxActivationLayer, vxSoftmaxLayer and vxNormalizationLayer.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from nnef_jax.openvx import layer_checks as checks
from nnef_jax.openvx.tables import Floats, table, table_layer
from nnef_jax.openvx.tensor import Tensor, require_one_of
from nnef_jax.openvx.vx_errors import wrong_parameter

ACTIVATIONS = (
    "logistic",
    "hyperbolic_tan",
    "relu",
    "brelu",
    "softrelu",
    "abs",
    "square",
    "sqrt",
    "linear",
)
NORMALIZATION = ("same_map", "across_maps")
NORMALIZATION_SIZES = (3, 5, 7)


@checks.layer
def activation_layer(
    inputs: Tensor,
    *,
    function: str,
    a: float = 1.0,
    b: float = 1.0,
    strict: bool = True,
    output_position: int | None = None,
) -> Tensor:
    """Apply a function to each number, truncate and saturate (vxActivationLayer).

    The number is x = `data / 2**position`. The functions are 'logistic': 1 / (1 + exp(-x));
    'hyperbolic_tan': a tanh(b x); 'relu': max(x, 0); 'brelu': min(a, max(x, 0)); 'softrelu': log(1
    + exp(x)); 'abs'; 'square'; 'sqrt': the root of max(x, 0); and 'linear': a x + b. All functions
    except 'relu' and 'brelu' are read from tables, which have the results of exact arithmetic on
    every platform.
    """
    require_one_of("function", function, ACTIVATIONS)
    a = checks.real("a", a)
    b = checks.real("b", b)
    if strict and min(a, b) < 0:
        message = f"a and b must not be negative, they are {a} and {b}"
        wrong_parameter(message, "strict=False takes any")
    x = checks.tensor("inputs", inputs)
    checks.same_format(strict, inputs=x)
    position = checks.position_of_output(strict, output_position, x)
    if function in ("relu", "brelu") and position == x.fixed_point_position:
        # The raw integers are clipped, without a table.
        limits = jnp.iinfo(x.dtype)
        most = int(limits.max)
        if function == "brelu":
            raw_bound = np.trunc(a * 2.0**position)
            most = int(np.clip(raw_bound, limits.min, limits.max))
        return Tensor(_between_zero_and(x.data, most=most), position)
    activation = partial(_activation, function, a, b)
    return table_layer(x, table(activation, x.dtype, x.fixed_point_position, position), position)


@partial(jax.jit, static_argnames="most")
def _between_zero_and(x: Array, *, most: int) -> Array:
    """Clip raw integers to the range from 0 to `most`."""
    positive = jnp.maximum(x, np.asarray(0, x.dtype))
    return jnp.minimum(positive, np.asarray(most, x.dtype))


def _activation(function: str, a: float, b: float, x: Floats) -> Floats:
    """Compute a function of vx_nn_activation_function_e in float64. `a` and `b` are parameters."""
    match function:
        case "logistic":
            return 1 / (1 + np.exp(-x))
        case "hyperbolic_tan":
            return a * np.tanh(b * x)
        case "relu":
            return np.maximum(x, 0)
        case "brelu":
            return np.minimum(a, np.maximum(x, 0))
        case "softrelu":
            return np.logaddexp(0, x)
        case "abs":
            return np.abs(x)
        case "square":
            return x * x
        case "sqrt":
            return np.sqrt(np.maximum(x, 0))
        case _:
            return a * x + b


@checks.layer
def softmax_layer(
    inputs: Tensor, *, strict: bool = True, output_position: int | None = None
) -> Tensor:
    """Return exp(x) / (sum of exp(x) over the channels) in fixed point (vxSoftmaxLayer).

    The channels are the last axis if there are 1 or 2 axes, and the third last axis if there are 3
    or 4. The quotient is computed in float32 after the maximum is subtracted. It is therefore
    finite. The quotient is then truncated to the fixed-point format. The result differs from exact
    arithmetic by at most one unit.
    """
    x = checks.tensor("inputs", inputs, 1, 2, 3, 4)
    checks.same_format(strict, inputs=x)
    position = checks.position_of_output(strict, output_position, x)
    axis = -1 if len(x.shape) < 3 else -3
    return Tensor(_softmax(x, axis=axis, position=position), position)


@partial(jax.jit, static_argnames=("axis", "position"))
def _softmax(x: Tensor, *, axis: int, position: int) -> Array:
    """Return the softmax of a tensor over an axis, as raw integers at a fixed-point position."""
    return _truncated(jax.nn.softmax(x.to_float(), axis), position, x.data.dtype)


@checks.layer
def normalization_layer(
    inputs: Tensor,
    *,
    type: str,
    normalization_size: int,
    alpha: float,
    beta: float,
    bias: float = 1.0,
    strict: bool = True,
    output_position: int | None = None,
) -> Tensor:
    """Return x / (bias + alpha / n * sum of n squares)**beta, truncated and saturated.

    The layer is vxNormalizationLayer, with the `bias` of OpenVX 1.3. The inputs are ([batch,]
    channels, height, width). If `type` is 'across_maps', the sum is over `normalization_size` (3, 5
    or 7) channels around an item. If `type` is 'same_map', the sum is over a square window of this
    size in the item's channel. n is the number of items in the sum. The result is computed in
    float32, and differs from exact arithmetic by at most one unit.
    """
    require_one_of("type", type, NORMALIZATION)
    size = operator.index(normalization_size)
    if size not in NORMALIZATION_SIZES:
        wrong_parameter(f"normalization_size must be 3, 5 or 7, not {size}")
    alpha = checks.real("alpha", alpha, above=0.0)
    beta = checks.real("beta", beta, above=0.0)
    bias = checks.real("bias", bias, above=0.0)
    x = checks.tensor("inputs", inputs, 3, 4)
    checks.same_format(strict, inputs=x)
    position = checks.position_of_output(strict, output_position, x)
    # The windows are over (channels, height, width), or (batch, channels, height, width).
    sample_window = (size, 1, 1) if type == "across_maps" else (1, size, size)
    window = (1,) * (len(x.shape) - 3) + sample_window
    item_count = np.prod(window).item()
    coefficients = (bias, alpha / item_count, beta)
    raw = _normalized(x, window=window, coefficients=coefficients, position=position)
    return Tensor(raw, position)


@partial(jax.jit, static_argnames=("window", "coefficients", "position"))
def _normalized(
    x: Tensor, *, window: tuple[int, ...], coefficients: tuple[float, float, float], position: int
) -> Array:
    """Return x / (bias + factor * sum of squares in a window)**beta, as raw integers.

    `coefficients` are the bias, the factor and beta.
    """
    values = x.to_float()
    ones = (1,) * values.ndim
    sums = lax.reduce_window(values * values, np.float32(0), lax.add, window, ones, "SAME")
    bias, factor, beta = map(np.float32, coefficients)
    return _truncated(values / (bias + factor * sums) ** beta, position, x.data.dtype)


def _truncated(values: Array, position: int, dtype: np.dtype[Any]) -> Array:
    """Convert numbers to raw integers: they are truncated, then saturated. A NaN becomes 0."""
    limits = jnp.iinfo(dtype)
    truncated = jnp.trunc(values * np.float32(2.0**position))
    return jnp.clip(jnp.nan_to_num(truncated), limits.min, limits.max).astype(dtype)
