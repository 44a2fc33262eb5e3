"""Maxima and sums of small windows as operations on shifted tensors, dimension by dimension.

One loop that the compiler vectorises: XLA's `reduce_window` takes two to ten times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering.kernels.windows import lowest
from lowering.optimize.view import View, whole

_LARGEST = 8  # cells along an axis; wider windows are better off with XLA's running forms


def window_reduction(equation: Any, views: Sequence[View]) -> View | None:
    """The rule of `reduce_window_max` and `reduce_window_sum`; None for windows that are too large.

    The derivative of a maximum is that of XLA's own, which gives all to the first of equal items.
    """
    (view,) = views
    params = equation.params
    size, dilation = params["window_dimensions"], params["window_dilation"]
    if max(size) > _LARGEST or any(d != 1 for d in params["base_dilation"]):
        return None
    x = jnp.asarray(whole(view))
    ordered = {name: tuple(params[name][axis] for axis in view.order) for name in params}
    if equation.primitive.name == "reduce_window_sum":
        return _view(view, equation, _shifted(x, ordered, lax.add, np.array(0, x.dtype)))
    if any(d != 1 for d in dilation):  # XLA's own has no derivative then
        return None

    @jax.custom_jvp
    def maximum(x: Array) -> Array:
        return _shifted(x, ordered, lax.max, lowest(x.dtype))

    @maximum.defjvp
    def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        def own(x: Array) -> Array:
            return lax.reduce_window(
                x, lowest(x.dtype), lax.max, *(ordered[name] for name in _WINDOW)
            )

        return maximum(*primals), jax.jvp(own, primals, tangents)[1]

    return _view(view, equation, maximum(x))


_WINDOW = ("window_dimensions", "window_strides", "padding")


def _view(view: View, equation: Any, array: Array) -> View:
    return View(array, view.order, tuple(equation.outvars[0].aval.shape), view.known)


def _shifted(
    x: Array, params: dict[str, Any], combine: Callable[[Array, Array], Array], fill: Any
) -> Array:
    padding = [(p, q, 0) for p, q in params["padding"]]
    if any(p or q for p, q, _ in padding):
        x = lax.pad(x, fill, padding)
    for axis, size in enumerate(params["window_dimensions"]):
        stride, dilation = params["window_strides"][axis], params["window_dilation"][axis]
        count = (x.shape[axis] - ((size - 1) * dilation + 1)) // stride + 1
        if size == 1 and stride == 1:
            continue
        total: Any = None
        for start in range(0, size * dilation, dilation):
            stop = start + (count - 1) * stride + 1
            part = lax.slice_in_dim(x, start, stop, stride, axis)
            total = part if total is None else combine(total, part)
        x = total
    return x
