"""Products of matrices: MatMul, FullyConnected, GEMM, Einsum, attention."""

from __future__ import annotations

import math
from typing import Any

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
    """Attend; inputs are query, key, value, and may be mask and scale."""
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
        query = site.insert("mul", {"x": query, "y": site.aligned(query, scale)[1]})
        factor = 1.0
    rank = len(query.type.shape)
    if rank < 3:
        raise InvalidShape(f"'query' must have 3 axes or more, it has {rank}")
    if rank == 3:  # no heads
        query, key, value = (
            site.insert("unsqueeze", {"input": x}, axes=(1,)) for x in (query, key, value)
        )
    elif rank > 4:
        raise InvalidShape("more than one axis of batches is not supported")
    factor = factor or 1 / math.sqrt(query.type.shape[-1])
    given = {"query": query, "key": key, "value": value, "mask": mask}
    if rank != 3:
        return site.emit("attention", given, scale=factor, is_causal=is_causal)
    return site.emit(
        "squeeze",
        {"input": site.insert("attention", given, scale=factor, is_causal=is_causal)},
        axes=(1,),
    )
