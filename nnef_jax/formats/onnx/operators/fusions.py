"""Operators of com.microsoft that are several of the standard's in one, real or quantised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import show
from nnef_jax.flattening.recurrent_cells import activation
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.products import dynamic_product, product
from nnef_jax.formats.onnx.operators.quantizers import MICROSOFT, dequantized, quantized, spread
from nnef_jax.formats.onnx.operators.registry import OPERATORS, operator
from nnef_jax.formats.onnx.operators.transformers import only
from nnef_jax.formats.onnx.tensor_types import unpacked

_VERSION = 21  # of the standard's operators that these are made of
_QUANTIZED = {
    # By name: the standard's operator, operands before, triples of them, and where the result's is.
    "QLinearAdd": ("Add", 0, (0, 3), 6), "QLinearMul": ("Mul", 0, (0, 3), 6),
    "QLinearSigmoid": ("Sigmoid", 0, (0,), 3), "QLinearLeakyRelu": ("LeakyRelu", 0, (0,), 3),
    "QLinearAveragePool": ("AveragePool", 0, (0,), 3), "QLinearSoftmax": ("Softmax", 0, (0,), 3),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", 0, (0,), 3),
    "QLinearReduceMean": ("ReduceMean", 0, (0,), 3), "QLinearWhere": ("Where", 1, (1, 4), 7),
}  # fmt: skip


def _applied(site: NodeSite, name: str, operands: Sequence[Any], **attributes: Any) -> Any:
    """Apply an operator of the standard to operands, with these attributes alone."""
    prefix = f"{site.prefix}{site.name}.{name}."
    node = replace(site.node, operator=name, domain="", attributes=attributes)
    standard = OPERATORS.get(name, _VERSION)
    assert standard is not None, name
    found = standard.run(
        replace(site, node=node, version=_VERSION, operands=operands, prefix=prefix)
    )
    return found[0] if isinstance(found, tuple) else found


def _real(site: NodeSite, i: int) -> Any:
    """Return the real numbers that an input has levels of; scale and zero point come behind it."""
    return dequantized(site, site.operand(i), site.operand(i + 1), site.optional(i + 2))


def _as_quantized(site: NodeSite, x: Any, i: int, dtype: str) -> Any:
    """Return real numbers by the scale and zero point that inputs are."""
    return quantized(site, x, site.reshaped(site.operand(i), ()), site.optional(i + 1), dtype)


@operator(*_QUANTIZED, domain=MICROSOFT)
def _quantized(site: NodeSite) -> Any:
    """Apply the standard's operator of the name to real numbers."""
    name, count, triples, end = _QUANTIZED[site.operator]
    attributes = dict(site.node.attributes)
    attributes.pop("opset", None)
    last = bool(attributes.pop("channels_last", 0))
    operands = [*map(site.operand, range(count)), *(_real(site, i) for i in triples)]
    rank = site.rank(operands[0])
    if last:
        operands[0] = site.transposed(operands[0], (0, rank - 1, *range(1, rank - 1)))
    found = _applied(site, name, operands, **attributes)
    if last:
        found = site.transposed(found, (0, *range(2, rank), 1))
    return _as_quantized(site, found, end, site.dtype_of(triples[0]))


@operator("QLinearConcat", domain=MICROSOFT)
def _qlinear_concat(site: NodeSite) -> Any:
    parts = [_real(site, i) for i in range(2, len(site.operands), 3)]
    joined = site.step.concat(parts, axis=site.axis_of("axis", None, site.rank(2)))
    return _as_quantized(site, joined, 0, site.dtype_of(2))


@operator("QGemm", domain=MICROSOFT)
def _qgemm(site: NodeSite) -> Any:
    step, flags = site.step, (site.flag("transA"), site.flag("transB"))
    zero_points = site.optional(2), site.optional(5)
    total = product(site, site.operand(0), site.operand(3), zero_points, flags=flags)
    if site.has(6):
        total = step.add(total, site.operand(6))
    scale = step.mul(step.mul(site.operand(1), site.operand(4)), site.number("alpha", 1.0))
    found = step.mul(site.cast(total, site.dtype_of(1)), scale)
    return _as_quantized(site, found, 7, site.dtype_of(8)) if site.has(7) else found


@operator("MatMulIntegerToFloat", domain=MICROSOFT)
def _matmul_integer_to_float(site: NodeSite, a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    if site.shape(2) not in ((), (1,)):
        raise InvalidShape(f"the scale of the left matrix has the shape {show(site.shape(2))}")
    scale = site.step.mul(scale_a, scale_b)
    total = product(site, a, b, (site.optional(4), site.optional(5)))
    found = site.step.mul(site.cast(total, site.dtype_of(scale)), scale)
    return site.step.add(found, site.operand(6)) if site.has(6) else found


@operator("DynamicQuantizeMatMul", domain=MICROSOFT)
def _dynamic_quantize_matmul(
    site: NodeSite, x: Any, levels: Any, scale: Any, zero: Any = None, bias: Any = None
) -> Any:
    found = dynamic_product(site, site.tensor(x), levels, scale, zero)
    return found if bias is None else site.step.add(found, bias)


@operator("MatMulNBits", domain=MICROSOFT)
def _matmul_n_bits(site: NodeSite, x: Any) -> Any:
    """Multiply by weights [outputs,inputs] of a few bits, with a scale for each block of inputs."""
    if site.has(4):
        raise InvalidOperation("'g_idx' is not supported")
    only(site, 6, weight_prepacked=0)
    inputs, outputs = site.int("K"), site.int("N")
    bits, size = site.int("bits", 4), site.int("block_size")
    if bits not in (2, 4, 8) or size < 1:
        raise InvalidOperation(f"there are no blocks of {size} weights of {bits} bits")
    blocks = -(-inputs // size)
    levels = _levels(site, 1, bits, (outputs, blocks * size))
    scale = site.reshaped(site.operand(2), (outputs, blocks))
    zero: Any = site.constant(1 << bits - 1, "uint8")
    if site.has(3) and site.dtype_of(3) == "uint8":
        stored = -(-blocks * bits // 8) * 8 // bits  # each row begins a byte
        zero = site.part(_levels(site, 3, bits, (outputs, stored)), 1, 0, blocks)
        zero = site.cast(zero, "uint8")
    elif site.has(3):
        zero = site.reshaped(site.operand(3), (outputs, blocks))
    scale, zero = (
        y if site.rank(y) == 0 else spread(site, levels, y, 1, size) for y in (scale, zero)
    )
    if site.dtype_of(zero).startswith("uint"):
        weights = dequantized(site, levels, scale, zero)
    else:
        weights = site.step.sub(site.cast(levels, site.dtype_of(zero)), zero)
        weights = site.step.mul(weights, scale)
    weights = site.cast(site.part(weights, 1, 0, inputs), site.dtype_of())
    bias = site.aligned(x, site.operand(5))[1] if site.has(5) else site.item(0, x)
    return site.last.linear(x, site.unsqueezed(weights, range(site.rank() - 2)), bias)


def _levels(site: NodeSite, i: int, bits: int, shape: tuple[int, int]) -> Constant:
    """Return numbers of a few bits, of which an initialiser has several in a byte."""
    data, dtype = memoryview(site.known(i).tobytes()), f"uint{bits}"
    return Constant(unpacked(data, dtype, shape), dtype, f"{site.name}.levels_{i}")


@operator("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def _fused_matmul(site: NodeSite) -> Any:
    """Multiply matrices; where `transBatch` is set that axis comes before those of the batch."""
    operands: list[Any] = []
    for i, name in enumerate("AB"):
        x, rank = site.tensor(i), site.rank(i)
        axes = list(range(rank))
        if site.flag(f"transBatch{name}") and rank > 2:
            axes = [*range(1, rank - 1), 0, rank - 1]
        if site.flag(f"trans{name}") and rank > 1:
            axes[-2:] = axes[:-3:-1]
        operands.append(site.transposed(x, axes))
    found = _applied(site, "MatMul", operands)
    alpha = site.number("alpha", 1.0)
    return found if alpha == 1 else site.step.mul(found, alpha)


@operator("FusedConv", "FusedGemm", domain=MICROSOFT)
def _fused(site: NodeSite) -> Any:
    """Apply the standard's operator, add a further input, apply an activation."""
    own = {k: x for k, x in site.node.attributes.items() if not k.startswith("activation")}
    operands = [site.optional(i) for i in range(3)]
    x = _applied(site, site.operator.removeprefix("Fused"), operands, **own)
    x = site.step.add(x, site.operand(3)) if site.has(3) else x
    names = [f"activation_{n}" for n in ("alpha", "beta")]
    given = [site.number(n) for n in names if n in site.node.attributes]
    name, given = site.text("activation", "").lower(), site.numbers("activation_params", given)
    if name in ("", "none"):
        return x
    if name == "clip":
        low, high = given
        return site.step.min(site.step.max(x, low), high)
    return activation(name, *given[:2])(site, x)


@operator("Gelu", "FastGelu", "BiasGelu", domain=MICROSOFT)
def _gelu(site: NodeSite, x: Any, bias: Any = None) -> Any:
    mode = "tanh" if site.operator == "FastGelu" else "none"
    x = x if bias is None else site.step.add(x, bias)
    return _applied(site, "Gelu", [x], approximate=mode)


operator("QuickGelu", domain=MICROSOFT)(
    lambda site, x: _applied(site, "Swish", [x], alpha=site.number("alpha", 1.702))
)
operator("BiasAdd", domain=MICROSOFT)(lambda site, x, y, z: site.last.add(site.step.add(x, y), z))
