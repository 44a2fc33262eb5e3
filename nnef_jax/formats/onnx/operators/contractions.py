"""Products of matrices and of more tensors, determinants."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from lowering.graph import is_float
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators import operator


@operator("MatMul")
def _matmul(site: NodeSite) -> Any:
    """Multiply matrices in the last two axes; a vector is a row on the left, a column behind."""
    return product(site, site.operand(0), site.operand(1))


def product(site: NodeSite, x: Any, y: Any) -> Any:
    """Multiply two tensors as MatMul does, as the operation that the node is."""
    gone = [axis for axis, v in ((-2, x), (-1, y)) if site.rank(v) == 1]
    x = site.unsqueezed(x, (0,)) if site.rank(x) == 1 else x
    y = site.unsqueezed(y, (1,)) if site.rank(y) == 1 else y
    rank = max(site.rank(x), site.rank(y))
    x, y = (site.unsqueezed(v, range(rank - site.rank(v))) for v in (x, y))
    add = site.insert if gone else site.emit
    found = add("matmul", {"A": x, "B": y}, transposeA=False, transposeB=False)
    axes = sorted(rank + axis for axis in gone)
    return site.emit("squeeze", {"input": found}, axes=axes) if gone else found


@operator("Gemm")
def _gemm(site: NodeSite) -> Any:
    """Return alpha * A * B + beta * C, each matrix transposed if so asked."""
    a, b = site.operand(0), site.operand(1)
    alpha, beta = site.number("alpha", 1.0), site.number("beta", 1.0)
    flips = {"transposeA": site.flag("transA"), "transposeB": site.flag("transB")}
    has_bias = site.has(2) and beta != 0
    if flips == {"transposeA": False, "transposeB": True} and alpha == beta == 1 and has_bias:
        _, bias = site.aligned(a, site.operand(2))
        return site.emit("linear", {"input": a, "filter": b, "bias": bias})
    add = site.emit if alpha == 1 and not has_bias else site.insert
    found = add("matmul", {"A": a, "B": b}, **flips)
    if alpha != 1:
        add = site.insert if has_bias else site.emit
        found = add("mul", {"x": found, "y": site.item(alpha, found)})
    if not has_bias:
        return found
    bias = site.operand(2)
    if beta != 1:
        bias = site.insert("mul", {"x": bias, "y": site.item(beta, found)})
    x, y = site.aligned(found, bias)
    return site.emit("add", {"x": x, "y": y})


@operator("Einsum")
def _einsum(site: NodeSite) -> Any:
    """Sum products; a result that is not given has the letters that are there once, in order."""
    expr = site.text("equation").replace(" ", "")
    if "->" not in expr:
        counts = Counter(re.sub(r"\.\.\.|,", "", expr))
        once = "".join(sorted(x for x, count in counts.items() if count == 1))
        expr = f"{expr}->{'...' if '...' in expr else ''}{once}"
    dtype = site.dtype_of()
    inputs = [site.tensor(i) for i in range(len(site.operands))]
    wide = "float32" if is_float(dtype) else dtype
    return site.emit("einsum", {"inputs": inputs}, expr=expr, accumulator=wide, dtype=dtype)


@operator("Det")
def _determinant(site: NodeSite) -> Any:
    return site.emit("determinant", {"input": site.operand(0)})
