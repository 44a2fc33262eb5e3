"""Products of matrices: MatMul, FullyConnected, GEMM, Einsum, attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import volume
from lowering.graph import Value
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.layers import legacy, opsets
from nnef_jax.formats.openvino.site import Site, Tensor


@opsets("MatMul")
def _matmul(site: Site) -> Value:
    """Multiply as numpy does: a vector is a row on the left, a column on the right."""
    transpose = [site.flag("transpose_a"), site.flag("transpose_b")]
    operands: list[Any] = [site.tensor(0), site.tensor(1)]
    vectors = [len(x.type.shape) == 1 for x in operands]
    for i, is_vector in enumerate(vectors):
        if is_vector:
            operands[i] = site.insert("unsqueeze", {"input": operands[i]}, axes=(i,))
            transpose[i] = False
    left, right = site.aligned(*operands)
    given = {"A": left, "B": right}
    flags = {"transposeA": transpose[0], "transposeB": transpose[1]}
    if not any(vectors):
        return site.emit("matmul", given, **flags)
    product = site.insert("matmul", given, **flags)
    rank = len(product.type.shape)
    axes = [rank - 2 + i for i, is_vector in enumerate(vectors) if is_vector]
    return site.emit("squeeze", {"input": product}, axes=tuple(axes))


@legacy("FullyConnected", "InnerProduct")
def _fully_connected(site: Site) -> Value:
    x = site.tensor(0)
    outputs = site.int("out-size", site.int("out_size", 0))
    if not outputs:
        raise InvalidOperation("attribute 'out-size' is missing")
    shape = x.type.shape
    declared = site.layer.outputs[0].shape or ()
    if len(declared) == len(shape) == 3:  # on the last axis, as later versions emit it
        inputs = shape[-1]
        filter = site.blob("weights", (1, outputs, inputs))
        bias = site.blob("biases", (1, 1, outputs))
    else:
        inputs = volume(shape[1:])
        x = site.reshaped(x, (shape[0], inputs)) if len(shape) != 2 else x
        filter, bias = site.blob("weights", (outputs, inputs)), site.blob("biases", (1, outputs))
    if filter is None:
        raise InvalidOperation("it has no weights")
    return site.emit("linear", {"input": x, "filter": filter, "bias": bias or 0.0})


@legacy("GEMM")
def _gemm(site: Site) -> Value:
    """Return alpha * A * B + beta * C."""
    left, right = site.aligned(site.tensor(0), site.tensor(1))
    flags = {"transposeA": site.flag("transpose_a"), "transposeB": site.flag("transpose_b")}
    alpha, beta = site.number("alpha", 1), site.number("beta", 1)
    x = site.insert("matmul", {"A": left, "B": right}, **flags)
    if alpha != 1:
        x = site.insert("mul", {"x": x, "y": alpha})
    if not site.has(2) or beta == 0:
        return site.emit("copy", {"x": x})
    y: Any = site.tensor(2)
    if beta != 1:
        y = site.insert("mul", {"x": y, "y": beta})
    x, y = site.aligned(x, y)
    return site.emit("add", {"x": x, "y": y})


@opsets("Einsum")
def _einsum(site: Site) -> Value:
    expression = site.layer.attributes.get("equation", "").replace(" ", "")
    inputs = site.tensors()
    if "." in expression:
        raise InvalidOperation("an equation with an ellipsis is not supported")
    if "->" not in expression:
        letters = expression.replace(",", "")
        expression += "->" + "".join(x for x in sorted(set(letters)) if letters.count(x) == 1)
    return site.emit(
        "einsum", {"inputs": inputs}, expr=expression, accumulator=inputs[0].type.dtype,
        dtype=inputs[0].type.dtype,
    )  # fmt: skip


@opsets("ScaledDotProductAttention")
def _attention(site: Site) -> Value:
    """Attend; inputs are query, key, value, and may be mask, scale and sink.

    A causal mask counts times from the first, and takes the place of the mask that is given.
    """
    query, key, value = (site.tensor(i) for i in range(3))
    is_causal = site.flag("causal")
    mask: Any = site.operand(3) if site.has(3) and not is_causal else False
    if isinstance(mask, Constant) and mask.array.size == 1 and not mask.array.any():
        mask = False
    scale: Tensor | None = site.operand(4) if site.has(4) else None
    factor = 0.0
    if isinstance(scale, Constant):
        factor = float(scale.array.reshape(-1)[0])
    elif scale is not None:  # computed: the query is multiplied by it
        query = site.insert("mul", dict(zip("xy", site.aligned(query, scale), strict=True)))
        factor = 1.0
    if len(query.type.shape) < 3:
        raise InvalidShape(f"'query' must have 3 axes or more, it has {len(query.type.shape)}")
    factor = factor or 1 / math.sqrt(query.type.shape[-1])
    if site.has(5):
        key, value, mask = _with_sink(site, query, key, value, mask)
        is_causal = False
    given = {"query": query, "key": key, "value": value, "mask": mask}
    return site.emit("attention", given, scale=factor, is_causal=is_causal, from_first=is_causal)


def _with_sink(
    site: Site, query: Value, key: Value, value: Value, mask: Any
) -> tuple[Value, Value, Value]:
    """Return keys, values and a mask with a key more, of zeros, whose score is that of the sink.

    What softmax gives to it adds nothing to the result.
    """
    *batch, times, _ = site.known_shape(query)
    keys, dtype = site.known_shape(key)[-2], query.type.dtype
    sink = site.tensor(5)
    if site.flag("causal"):
        site.spend(times * keys // 4)
        mask = Constant(np.tri(times, keys, dtype=np.bool_), "boolean", derived=True)
    if mask is False:
        mask = Constant(np.zeros((1, 1), np.float32), "f32", derived=True)
    mask = site.tensor(mask)
    if mask.type.dtype == "bool":
        chosen = {"condition": mask, "true_value": 0.0, "false_value": -math.inf}
        mask = site.insert("select", chosen)
    parts = [
        site.insert("broadcast", {"input": x}, shape=(*batch, times, count))
        for x, count in ((mask, keys), (sink, 1))
    ]
    around = [(0, 0)] * (len(batch) + 2)
    around[-2] = (0, 1)
    key, value = (
        site.insert("pad", {"input": x}, padding=tuple(around), border="constant", value=0.0)
        for x in (key, value)
    )
    joined = [site.cast(x, dtype) for x in parts]
    return key, value, site.insert("concat", {"values": joined}, axis=len(batch) + 1)
