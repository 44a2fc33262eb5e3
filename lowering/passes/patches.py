"""Computes the gradient of the filter of a patch embedding as a product, on TPUs.

The filter of a patch embedding has the extents of its strides, so no two windows overlap. jax
computes the gradient of such a filter as a convolution of the image with the gradients of all
patches, which lie a stride apart. If the image has few channels, XLA's compiler for TPUs takes
minutes for this convolution, and finds a slow form. By the compiler's estimate for a v5e, the
gradient takes the following times as a convolution, and as a product of patches and gradients:

    channels, patch, images, filters, dtype             convolution    product
    3, 16 x 16, 4 of 224 x 224, 1024, float32           896 us         99 us
    3, 4 x 4, 8 of 224 x 224, 96, float32               234 us         214 us
    3, 4 x 4, 64 of 224 x 224, 96, float32              896 us         980 us
    96, 2 x 2, 8 of 56 x 56, 192, float32               63 us          97 us
    384, 2 x 2, 8 of 14 x 14, 768, bfloat16             19 us          19 us

Therefore the pass changes only filters that have more items in a window than channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from jax import Array, lax

from lowering.jaxpr_types import Equation
from lowering.jaxprs import CONVOLUTION
from lowering.program import Program
from lowering.rewriting import Computed, Matcher, in_loops, rewritten
from lowering.targets.target import Target


@in_loops
def run(program: Program, target: Target) -> Program:
    """Replace each convolution that is the gradient of a patch embedding's filter by a product.

    If derivatives are taken after the pass, replace the patch embeddings themselves, since the
    gradient of a product is a product. From 4 images on, a patch embedding takes about as long as a
    product, or less time.
    """
    if not program.has_items:
        return program
    sums_patches = not target.keeps_derivatives
    return rewritten(program, {CONVOLUTION: partial(_by_product, sums_patches=sums_patches)})


def _by_product(matcher: Matcher, equation: Equation, *, sums_patches: bool) -> Computed | None:
    """Return the product that replaces a patch embedding, or the gradient of a filter.

    Item m of an embedding is the sum over k of x[m * stride + k] * filter[k], where m counts
    patches, and k counts the items of a patch. Item k of the gradient of the filter is the sum over
    m of x[m * stride + k] * y[m], where y is the gradient of the embedding.

    Return the product for a gradient if `sums_patches`, otherwise the product for an embedding.
    Return None for any other convolution, and for an image with many channels.
    """
    params = equation.params
    numbers: lax.ConvDimensionNumbers = params["dimension_numbers"]
    image, filter = (v.aval for v in equation.invars)
    if sums_patches:
        strides, other_steps = params["rhs_dilation"], params["window_strides"]
        window, window_axes = equation.outvars[0].aval, numbers.out_spec[2:]
        channel_axis = numbers.lhs_spec[0]  # jax exchanges the batch and the channels
    else:
        strides, other_steps = params["window_strides"], params["rhs_dilation"]
        window, window_axes = filter, numbers.rhs_spec[2:]
        channel_axis = numbers.lhs_spec[1]
    sizes = [window.shape[axis] for axis in window_axes]
    has_steps = any(n != 1 for n in (*other_steps, *params["lhs_dilation"]))
    has_groups = params["feature_group_count"] > 1 or params["batch_group_count"] > 1
    # Negative padding cuts off the items after the last patch.
    has_padding = any(low != 0 or high > 0 for low, high in params["padding"])
    if sizes != list(strides) or has_steps or has_groups or has_padding:
        return None
    if math.prod(sizes) <= image.shape[channel_axis]:
        return None
    product = partial(
        _product,
        numbers=numbers,
        sizes=sizes,
        sums_patches=sums_patches,
        precision=params["precision"],
        preferred_element_type=params["preferred_element_type"],
    )
    return Computed(product, equation.invars)


def _product(
    x: Array,
    y: Array,
    *,
    numbers: lax.ConvDimensionNumbers,
    sizes: Sequence[int],
    sums_patches: bool,
    **options: Any,
) -> Array:
    """Return the convolution of x and y as a product of the patches of x with y.

    Args:
        x: the image, or its gradient.
        y: the filter, or the gradient of the embedding.
        numbers: says which axes of x, y and the result are which.
        sizes: the extents of a patch.
        sums_patches: whether products are summed over the patches. Otherwise they are summed over
            the items of each patch.
        options: the precision and the dtype of the product.
    """
    x_batch, x_feature, *x_axes = numbers.lhs_spec
    _, y_feature, *y_axes = numbers.rhs_spec
    # Each axis of the image becomes two: the number of the patch, and the item of the patch.
    shape: list[int] = []
    new_axes: list[int] = []  # the first of these, for each axis of x
    for axis in range(x.ndim):
        new_axes.append(len(shape))
        if axis in x_axes:
            size = sizes[x_axes.index(axis)]
            count = x.shape[axis] // size
            x = lax.slice_in_dim(x, 0, count * size, axis=axis)
            shape += [count, size]
        else:
            shape.append(x.shape[axis])
    patch_axes = [new_axes[axis] for axis in x_axes]
    item_axes = [axis + 1 for axis in patch_axes]
    summed_axes, free_axes = item_axes, patch_axes
    if sums_patches:
        summed_axes, free_axes = patch_axes, item_axes
    contracted = [new_axes[x_feature], *summed_axes], [y_feature, *y_axes]
    product = lax.dot_general(x.reshape(shape), y, (contracted, ((), ())), **options)
    # The product has the axes of x that are not summed, in order, and then an axis of y.
    batch_axis = new_axes[x_batch]
    axes_of_x = sorted([batch_axis, *free_axes])
    order = [0] * product.ndim
    order[numbers.out_spec[0]] = axes_of_x.index(batch_axis)
    order[numbers.out_spec[1]] = len(axes_of_x)
    for axis, free_axis in zip(numbers.out_spec[2:], free_axes, strict=True):
        order[axis] = axes_of_x.index(free_axis)
    return lax.transpose(product, order)
