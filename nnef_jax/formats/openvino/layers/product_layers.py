"""Functions for layers with matrix products: MatMul, FullyConnected, GEMM, Einsum and attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import volume
from lowering.graph import Value
from nnef_jax.flattening.operators.attributes import flag, integer, number
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.layer_site import LayerSite, derived
from nnef_jax.formats.openvino.layers.registry import either, legacy, opsets

_TRANSPOSE_ATTRIBUTES: dict[str, Any] = {
    "transpose_x": flag("transpose_a"),
    "transpose_y": flag("transpose_b"),
}


@opsets("MatMul", **_TRANSPOSE_ATTRIBUTES)
def _matmul(site: LayerSite, x: Value, y: Value, *, transpose_x: bool, transpose_y: bool) -> Value:
    """Multiply matrices as numpy does. A vector `x` is a row, and a vector `y` is a column.

    Vectors are not transposed. The axis that makes a vector a matrix is dropped from the product.
    """
    is_row = len(x.type.shape) == 1
    is_column = len(y.type.shape) == 1
    if is_row:
        x = site.unsqueezed(x, (0,))
    if is_column:
        y = site.unsqueezed(y, (1,))
    has_vector = is_row or is_column
    flags = {
        "transposeA": transpose_x and not is_row,
        "transposeB": transpose_y and not is_column,
    }
    product = site.step_or_last(not has_vector).matmul(*site.aligned(x, y), **flags)
    if not has_vector:
        return product
    rank = len(product.type.shape)
    dropped: list[int] = []
    if is_row:
        dropped.append(rank - 2)
    if is_column:
        dropped.append(rank - 1)
    return site.last.squeeze(product, axes=dropped)


@legacy("FullyConnected", "InnerProduct")
def _fully_connected(
    site: LayerSite, x: Value, *, outputs: int = either(integer("out-size", 0), "out_size")
) -> Value:
    """Multiply each item of a batch by a stored filter, and add a stored bias.

    `outputs` is the number of channels of the result.
    """
    if not outputs:
        raise InvalidOperation("attribute 'out-size' is missing")
    shape = x.type.shape
    if len(shape) == 3 and len(site.declared) == 3:
        # Inputs of three axes are multiplied along the last axis, as they are in later versions.
        filter_shape = (1, outputs, shape[-1])
        bias_shape = (1, 1, outputs)
    else:
        items = volume(shape[1:])
        filter_shape = (outputs, items)
        bias_shape = (1, outputs)
        if len(shape) != 2:
            x = site.reshaped(x, (shape[0], items))
    filter = site.required_weights("weights", filter_shape)
    bias = site.blob("biases", bias_shape) or 0.0
    return site.last.linear(x, filter, bias)


@legacy("GEMM", **_TRANSPOSE_ATTRIBUTES)
def _gemm(
    site: LayerSite,
    x: Value,
    y: Value,
    *,
    transpose_x: bool,
    transpose_y: bool,
    alpha: float = number("alpha", 1),
    beta: float = number("beta", 1),
) -> Value:
    """Compute alpha * A @ B + beta * C, where A, B and C are the inputs 0 to 2.

    Input 2 may be left out.
    """
    flags = {"transposeA": transpose_x, "transposeB": transpose_y}
    product = site.step.matmul(*site.aligned(x, y), **flags)
    if alpha != 1:
        product = site.step.mul(product, alpha)
    if not site.has(2) or beta == 0:
        return site.last.copy(product)  # nothing is added
    c = site.tensor(2)
    if beta != 1:
        c = site.step.mul(c, beta)
    return site.last.add(*site.aligned(product, c))


@opsets("Einsum")
def _einsum(site: LayerSite) -> Value:
    """Compute the sums of products in the attribute `equation`, such as "ij,jk->ik".

    An equation without "->" is completed by the letters that occur once, in alphabetical order:
    "ij,jk" becomes "ij,jk->ik".
    """
    expression = site.layer.attributes.get("equation", "").replace(" ", "")
    inputs = site.tensors()
    if "." in expression:
        raise InvalidOperation("an equation with an ellipsis is not supported")
    if "->" not in expression:
        letters = expression.replace(",", "")
        single_letters: list[str] = []
        for letter in sorted(set(letters)):
            if letters.count(letter) == 1:
                single_letters.append(letter)
        expression = f"{expression}->{''.join(single_letters)}"
    dtype = inputs[0].type.dtype
    return site.last.einsum(inputs, expr=expression, accumulator=dtype, dtype=dtype)


@opsets("ScaledDotProductAttention")
def _attention(
    site: LayerSite, query: Value, key: Value, value: Value, *, is_causal: bool = flag("causal")
) -> Value:
    """Compute attention from query, key and value, each of shape (..., length, items).

    Inputs 3 to 5 are optional: the mask, the scale and the sink. If `is_causal`, query i attends to
    the keys 0 to i, and the mask is ignored.
    """
    mask: Tensor | bool = False
    if site.has(3) and not is_causal:
        mask = site.operand(3)
    if isinstance(mask, Constant):
        # A mask of a single 0 adds nothing to the scores.
        is_zero = mask.array.size == 1 and not mask.array.any()
        if is_zero:
            mask = False
    query, factor = _scaled_query(site, query)
    if len(query.type.shape) < 3:
        raise InvalidShape(f"'query' must have 3 axes or more, it has {len(query.type.shape)}")
    if factor == 0:
        factor = 1 / math.sqrt(query.type.shape[-1])
    if site.has(5):
        key, value, mask = _with_sink(site, query, key, value, mask, is_causal=is_causal)
        is_causal = False  # the mask already leaves out the later keys
    flags = {"is_causal": is_causal, "from_first": is_causal}
    return site.last.attention(query, key, value, mask, scale=factor, **flags)


def _scaled_query(site: LayerSite, query: Value) -> tuple[Value, float]:
    """Return the query, and a factor for the products of the query with the keys.

    Input 4 is the scale. If the scale is a constant, the factor is the scale. If the network
    computes the scale, the returned query is query * scale, and the factor is 1. Without input 4,
    the factor is 0. It stands for 1 / sqrt(items), where `items` is the last extent of the query.
    """
    if not site.has(4):
        return query, 0.0
    scale = site.operand(4)
    if isinstance(scale, Constant):
        return query, site.scalar(4)
    return site.step.mul(*site.aligned(query, scale)), 1.0


def _with_sink(
    site: LayerSite, query: Value, key: Value, value: Value, mask: Tensor | bool, *, is_causal: bool
) -> tuple[Value, Value, Value]:
    """Return keys, values and a mask that have one additional key.

    The score of the additional key is input 5, the sink. The key and its value are zeros. Therefore
    the key takes a share of the softmax and adds nothing to the result.
    """
    step = site.step
    *batch, queries, _ = site.known_shape(query)
    keys = site.known_shape(key)[-2]
    keys_axis = len(batch)
    sink = site.tensor(5)
    if is_causal:
        site.spend(queries * keys // 4)
        mask = derived(np.tri(queries, keys, dtype=np.bool_))
    elif isinstance(mask, bool):  # there is no mask
        mask = derived(np.zeros((1, 1), np.float32))
    # The scores of the mask and of the sink are added to the products of queries and keys.
    mask_scores = step.broadcast(_scores_of_mask(site, mask), shape=(*batch, queries, keys))
    sink_scores = step.broadcast(sink, shape=(*batch, queries, 1))
    key = site.padded(key, {keys_axis: (0, 1)})
    value = site.padded(value, {keys_axis: (0, 1)})
    mask_scores = site.cast(mask_scores, query.type.dtype)
    sink_scores = site.cast(sink_scores, query.type.dtype)
    return key, value, step.concat([mask_scores, sink_scores], axis=keys_axis + 1)


def _scores_of_mask(site: LayerSite, mask: Tensor) -> Value:
    """Convert a mask of bool to numbers: 0 where the mask is true, and -inf where it is false.

    A mask of numbers is not changed.
    """
    mask_tensor = site.tensor(mask)
    if mask_tensor.type.dtype == "bool":
        return site.step.select(mask_tensor, 0.0, -math.inf)
    return mask_tensor
