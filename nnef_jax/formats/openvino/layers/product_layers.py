"""Products of matrices: MatMul, FullyConnected, GEMM, Einsum, attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import volume
from lowering.graph import Value
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.layer_site import LayerSite, derived
from nnef_jax.formats.openvino.layers.registry import legacy, opsets


@opsets("MatMul")
def _matmul(site: LayerSite) -> Value:
    """Multiply as numpy does: a vector is a row on the left, a column on the right."""
    transpose = [site.flag("transpose_a"), site.flag("transpose_b")]
    operands = site.first(2)
    vectors = [len(x.type.shape) == 1 for x in operands]
    for i, is_vector in enumerate(vectors):
        if is_vector:
            operands[i] = site.unsqueezed(operands[i], (i,))
            transpose[i] = False
    flags = {"transposeA": transpose[0], "transposeB": transpose[1]}
    product = site.step_or_last(not any(vectors)).matmul(*site.aligned(*operands), **flags)
    if not any(vectors):
        return product
    rank = len(product.type.shape)
    axes = [rank - 2 + i for i, is_vector in enumerate(vectors) if is_vector]
    return site.last.squeeze(product, axes=axes)


@legacy("FullyConnected", "InnerProduct")
def _fully_connected(site: LayerSite, x: Value) -> Value:
    outputs = site.int(site.attribute("out-size", "out_size"), 0)
    if not outputs:
        raise InvalidOperation("attribute 'out-size' is missing")
    shape = x.type.shape
    if len(site.declared) == len(shape) == 3:  # on the last axis, as later versions emit it
        filter, bias = (1, outputs, shape[-1]), (1, 1, outputs)
    else:
        filter, bias = (outputs, volume(shape[1:])), (1, outputs)
        x = site.reshaped(x, (shape[0], filter[1])) if len(shape) != 2 else x
    stored = site.needed("weights", filter)
    return site.last.linear(x, stored, site.blob("biases", bias) or 0.0)


@legacy("GEMM")
def _gemm(site: LayerSite, left: Value, right: Value) -> Value:
    """Return alpha * A * B + beta * C."""
    operands = site.aligned(left, right)
    flags = {"transposeA": site.flag("transpose_a"), "transposeB": site.flag("transpose_b")}
    alpha, beta = site.number("alpha", 1), site.number("beta", 1)
    x = site.step.matmul(*operands, **flags)
    if alpha != 1:
        x = site.step.mul(x, alpha)
    if not site.has(2) or beta == 0:
        return site.last.copy(x)
    y = site.tensor(2)
    if beta != 1:
        y = site.step.mul(y, beta)
    return site.last.add(*site.aligned(x, y))


@opsets("Einsum")
def _einsum(site: LayerSite) -> Value:
    expression = site.layer.attributes.get("equation", "").replace(" ", "")
    inputs = site.tensors()
    if "." in expression:
        raise InvalidOperation("an equation with an ellipsis is not supported")
    if "->" not in expression:
        letters = expression.replace(",", "")
        expression += "->" + "".join(x for x in sorted(set(letters)) if letters.count(x) == 1)
    dtype = inputs[0].type.dtype
    return site.last.einsum(inputs, expr=expression, accumulator=dtype, dtype=dtype)


@opsets("ScaledDotProductAttention")
def _attention(site: LayerSite, query: Value, key: Value, value: Value) -> Value:
    """Attend; inputs are query, key, value, and may be mask, scale and sink.

    A causal mask counts times from the first, and takes the place of the mask that is given.
    """
    is_causal = site.flag("causal")
    mask: Any = site.operand(3) if site.has(3) and not is_causal else False
    if isinstance(mask, Constant) and mask.array.size == 1 and not mask.array.any():
        mask = False
    scale, factor = site.operand(4) if site.has(4) else None, 0.0
    if isinstance(scale, Constant):
        factor = site.scalar(4)
    elif scale is not None:  # computed: the query is multiplied by it
        query, factor = site.step.mul(*site.aligned(query, scale)), 1.0
    if len(query.type.shape) < 3:
        raise InvalidShape(f"'query' must have 3 axes or more, it has {len(query.type.shape)}")
    factor = factor or 1 / math.sqrt(query.type.shape[-1])
    if site.has(5):
        key, value, mask = _with_sink(site, query, key, value, mask)
        is_causal = False
    flags = {"is_causal": is_causal, "from_first": is_causal}
    return site.last.attention(query, key, value, mask, scale=factor, **flags)


def _with_sink(
    site: LayerSite, query: Value, key: Value, value: Value, mask: Any
) -> tuple[Value, Value, Value]:
    """Return keys, values and a mask with a key more, of zeros, whose score is that of the sink.

    What softmax gives to it adds nothing to the result.
    """
    *batch, times, _ = site.known_shape(query)
    keys, step = site.known_shape(key)[-2], site.step
    sink = site.tensor(5)
    if site.flag("causal"):
        site.spend(times * keys // 4)
        mask = derived(np.tri(times, keys, dtype=np.bool_))
    if mask is False:
        mask = derived(np.zeros((1, 1), np.float32))
    mask = site.tensor(mask)
    if mask.type.dtype == "bool":
        mask = step.select(mask, 0.0, -math.inf)
    parts = [
        step.broadcast(x, shape=(*batch, times, count)) for x, count in ((mask, keys), (sink, 1))
    ]
    key, value = (site.padded(x, {len(batch): (0, 1)}) for x in (key, value))
    joined = [site.cast(x, query.type.dtype) for x in parts]
    return key, value, step.concat(joined, axis=len(batch) + 1)
