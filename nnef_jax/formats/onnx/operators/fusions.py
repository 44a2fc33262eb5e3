"""Functions for operators of com.microsoft that are composed of standard operators.

These operators of com.microsoft are fused or quantised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import show
from nnef_jax.flattening.operators.attributes import flag, integer, number, numbers, text
from nnef_jax.flattening.operators.registry import Meaning
from nnef_jax.flattening.recurrent_cells import activation
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.products import dynamic_product, product
from nnef_jax.formats.onnx.operators.quantizers import (
    MICROSOFT,
    broadcastable,
    dequantized,
    quantized,
)
from nnef_jax.formats.onnx.operators.registry import OPERATORS, operator
from nnef_jax.formats.onnx.operators.transformers import require_supported
from nnef_jax.formats.onnx.tensor_types import unpacked

# This module applies operators of the ONNX standard in this version.
_STANDARD_VERSION = 21


def _applied(site: NodeSite, name: str, operands: Sequence[Any], **attributes: Any) -> Any:
    """Apply an operator of the standard to operands, and return the operator's first output.

    `name` is the name of the operator, and `attributes` are the operator's attributes in ONNX.
    """
    standard_operator = OPERATORS.get(name, _STANDARD_VERSION)
    assert standard_operator is not None, name
    standard_site = replace(
        site,
        node=replace(site.node, operator=name, domain="", attributes=attributes),
        version=_STANDARD_VERSION,
        operands=operands,
        prefix=f"{site.prefix}{site.name}.{name}.",
    )
    results = standard_operator.run(standard_site)
    return results[0] if isinstance(results, tuple) else results


def _dequantized_input(site: NodeSite, i: int) -> Any:
    """Return input `i`, a tensor of levels, as real numbers.

    Input `i + 1` is the scale of the levels, and input `i + 2` is their zero point.
    """
    levels = site.operand(i)
    scale = site.operand(i + 1)
    zero_point = site.optional(i + 2)
    return dequantized(site, levels, scale, zero_point)


def _as_quantized(site: NodeSite, x: Tensor, i: int, dtype: str) -> Any:
    """Quantise `x` to levels of a dtype.

    Input `i` is the scale of the levels, and input `i + 1` is their zero point.
    """
    scale = site.reshaped(site.operand(i), ())
    zero_point = site.optional(i + 1)
    return quantized(site, x, scale, zero_point, dtype)


def _meaning_on_levels(
    name: str, real_count: int, level_inputs: Sequence[int], output: int
) -> Meaning:
    """Return the function that flattens an operator on levels, such as QLinearAdd.

    Levels are quantised items. The operator converts the levels to real numbers, applies an
    operator of the standard to these numbers, and quantises the result.

    Args:
        name: the name of the standard's operator, such as "Add".
        real_count: the number of inputs that are not levels. These inputs come first.
        level_inputs: the index of each input that has levels. The next two inputs are the scale and
            the zero point of the levels.
        output: the index of the input that is the scale of the result. The next input is the zero
            point of the result.
    """

    def meaning(site: NodeSite, *, channels_last: bool) -> Any:
        """Apply the operator. If `channels_last`, the last axis of input 0 has the channels."""
        attributes = dict(site.node.attributes)
        # The standard's operator has neither of these attributes.
        for key in ("opset", "channels_last"):
            attributes.pop(key, None)
        operands = [site.operand(i) for i in range(real_count)]
        operands += [_dequantized_input(site, i) for i in level_inputs]
        rank = site.rank(operands[0])
        if channels_last:  # (batch, ..., channels) becomes (batch, channels, ...)
            operands[0] = site.transposed(operands[0], (0, rank - 1, *range(1, rank - 1)))
        result = _applied(site, name, operands, **attributes)
        if channels_last:  # (batch, channels, ...) becomes (batch, ..., channels)
            result = site.transposed(result, (0, *range(2, rank), 1))
        level_dtype = site.dtype_of(level_inputs[0])
        return _as_quantized(site, result, output, level_dtype)

    return meaning


# The name of each operator without the prefix "QLinear", and the arguments of `_meaning_on_levels`.
for _name, _real_count, _level_inputs, _output in (
    ("Add", 0, (0, 3), 6), ("Mul", 0, (0, 3), 6), ("Sigmoid", 0, (0,), 3),
    ("LeakyRelu", 0, (0,), 3), ("AveragePool", 0, (0,), 3), ("Softmax", 0, (0,), 3),
    ("GlobalAveragePool", 0, (0,), 3), ("ReduceMean", 0, (0,), 3), ("Where", 1, (1, 4), 7),
):  # fmt: skip
    operator(f"QLinear{_name}", domain=MICROSOFT, channels_last=flag("channels_last"))(
        _meaning_on_levels(_name, _real_count, _level_inputs, _output)
    )


@operator("QLinearConcat", domain=MICROSOFT)
def _qlinear_concat(site: NodeSite, *, axis: int = integer("axis")) -> Any:
    """Join tensors of levels along an axis, and quantise the result.

    Inputs 0 and 1 are the scale and the zero point of the result. Three inputs
    follow for each tensor: the levels, the scale and the zero point.
    """
    level_inputs = range(2, len(site.operands), 3)
    parts = [_dequantized_input(site, i) for i in level_inputs]
    joined = site.step.concat(parts, axis=site.axis(axis, site.rank(2)))
    level_dtype = site.dtype_of(2)
    return _as_quantized(site, joined, 0, level_dtype)


@operator("QGemm", domain=MICROSOFT)
def _qgemm(
    site: NodeSite,
    *,
    flips_a: bool = flag("transA"),
    flips_b: bool = flag("transB"),
    alpha: float = number("alpha", 1.0),
) -> Any:
    """Multiply matrices a and b of levels, and quantise the result if input 7 is not left out.

    Inputs 0 to 2 are the levels, the scale and the zero point of a. Inputs 3 to 5 are the levels,
    the scale and the zero point of b. Input 6 is added to the product of the levels. Inputs 7 and 8
    are the scale and the zero point of the result. `flips_a` and `flips_b` tell whether a and b are
    transposed. The product is multiplied by `alpha`.
    """
    step = site.step
    zero_points = (site.optional(2), site.optional(5))
    transposes = (flips_a, flips_b)
    a = site.operand(0)
    b = site.operand(3)
    total = product(site, a, b, zero_points=zero_points, transposes=transposes)
    if site.has(6):
        total = step.add(total, site.operand(6))
    scale_a = site.operand(1)
    scale_b = site.operand(4)
    scale = step.mul(step.mul(scale_a, scale_b), alpha)
    result = step.mul(site.cast(total, site.dtype_of(1)), scale)
    if not site.has(7):
        return result
    return _as_quantized(site, result, 7, site.dtype_of(8))


@operator("MatMulIntegerToFloat", domain=MICROSOFT)
def _matmul_integer_to_float(
    site: NodeSite, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor,
    zero_a: Tensor | None = None, zero_b: Tensor | None = None, bias: Tensor | None = None,
) -> Any:  # fmt: skip
    """Multiply matrices of levels, convert the product to real numbers, and add the bias."""
    shape_of_scale = site.shape(scale_a)
    if shape_of_scale not in ((), (1,)):
        raise InvalidShape(
            f"the scale of the left matrix must be one number, its shape is {show(shape_of_scale)}"
        )
    scale = site.step.mul(scale_a, scale_b)
    total = product(site, a, b, zero_points=(zero_a, zero_b))
    result = site.step.mul(site.cast(total, site.dtype_of(scale)), scale)
    return result if bias is None else site.step.add(result, bias)


@operator("DynamicQuantizeMatMul", domain=MICROSOFT)
def _dynamic_quantize_matmul(
    site: NodeSite,
    x: Tensor,
    levels: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    bias: Tensor | None = None,
) -> Any:
    """Quantise x to levels that cover its range, multiply by a matrix of levels, and add the bias.

    `scale` and `zero` are the scale and the zero point of the matrix.
    """
    result = dynamic_product(site, site.tensor(x), levels, scale, zero)
    return result if bias is None else site.step.add(result, bias)


@operator("MatMulNBits", domain=MICROSOFT)
def _matmul_n_bits(
    site: NodeSite,
    x: Tensor,
    *,
    inputs: int = integer("K"),
    outputs: int = integer("N"),
    bits: int = integer("bits", 4),
    size: int = integer("block_size"),
) -> Any:
    """Multiply x of shape (..., inputs) by quantised weights of shape (outputs, inputs).

    Each weight has `bits` bits. The weights of an output are divided into blocks of `size` weights.
    Each block has a scale and a zero point.
    """
    if site.has(4):
        raise InvalidOperation("'g_idx' is not supported")
    require_supported(site, inputs=6, weight_prepacked=0)
    if bits not in (2, 4, 8) or size < 1:
        raise InvalidOperation(f"blocks of {size} weights of {bits} bits are not supported")
    blocks = math.ceil(inputs / size)
    padded_weights = _weights_of_blocks(site, bits, outputs, blocks, size)
    weights = site.part(padded_weights, axis=1, first=0, last=inputs)
    weights = site.cast(weights, site.dtype_of())
    if site.has(5):
        _, bias = site.aligned(x, site.operand(5))
    else:
        bias = site.item(0, like=x)
    batch_axes = range(site.rank() - 2)
    return site.last.linear(x, site.unsqueezed(weights, batch_axes), bias)


def _weights_of_blocks(site: NodeSite, bits: int, outputs: int, blocks: int, size: int) -> Any:
    """Return quantised weights as real numbers of shape (outputs, blocks * size).

    Input 1 has the levels of the weights, of `bits` bits. Inputs 2 and 3 have the scale and the
    zero point of each block. A block has `size` weights. The last block may have padding.
    """
    levels = _levels(site, 1, bits, (outputs, blocks * size))
    scale_of_blocks = site.reshaped(site.operand(2), (outputs, blocks))
    zero = _zero_of_blocks(site, bits, outputs, blocks)
    scale = broadcastable(site, levels, scale_of_blocks, axis=1, block=size)
    if site.rank(zero) > 0:
        zero = broadcastable(site, levels, zero, axis=1, block=size)
    zero_dtype = site.dtype_of(zero)
    if zero_dtype.startswith("uint"):
        return dequantized(site, levels, scale, zero)
    # The zero points are real numbers.
    difference = site.step.sub(site.cast(levels, zero_dtype), zero)
    return site.step.mul(difference, scale)


def _zero_of_blocks(site: NodeSite, bits: int, outputs: int, blocks: int) -> Any:
    """Return the zero points of blocks of weights, of shape (outputs, blocks).

    Input 3 has the zero points, as real numbers or as levels of `bits` bits. If input 3 is left
    out, the result is a single number, the level in the middle, such as 8 for 4 bits.
    """
    if not site.has(3):
        middle_level = 1 << (bits - 1)  # 8 for 4 bits
        return site.constant(middle_level, "uint8")
    if site.dtype_of(3) != "uint8":
        return site.reshaped(site.operand(3), (outputs, blocks))
    # A row of levels fills entire bytes. For example, 3 zero points of 4 bits are stored in 2
    # bytes. The 2 bytes have room for 4 zero points, and the last one is padding.
    row_bytes = math.ceil(blocks * bits / 8)
    stored_count = row_bytes * 8 // bits
    stored = _levels(site, 3, bits, (outputs, stored_count))
    return site.cast(site.part(stored, axis=1, first=0, last=blocks), "uint8")


def _levels(site: NodeSite, i: int, bits: int, shape: tuple[int, int]) -> Constant:
    """Unpack input `i`, which holds numbers of `bits` bits, as a constant of shape `shape`."""
    data = memoryview(site.known(i).tobytes())
    dtype = f"uint{bits}"
    return Constant(unpacked(data, dtype, shape), dtype, f"{site.name}.levels_{i}")


@operator("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def _fused_matmul(
    site: NodeSite,
    a: Tensor,
    b: Tensor,
    *,
    flips_a: bool = flag("transA"),
    flips_b: bool = flag("transB"),
    moves_a: bool = flag("transBatchA"),
    moves_b: bool = flag("transBatchB"),
    alpha: float = number("alpha", 1.0),
) -> Any:
    """Compute alpha * a @ b for a and b of shape (..., rows, columns).

    `flips_a` tells whether a is transposed. `moves_a` tells whether a has the shape
    (rows, ..., columns). `flips_b` and `moves_b` tell the same about b.
    """
    operands: list[Any] = []
    for matrix, flips, moves in ((a, flips_a, moves_a), (b, flips_b, moves_b)):
        rank = site.rank(matrix)
        axes = list(range(rank))
        if moves and rank > 2:  # (rows, ..., columns) becomes (..., rows, columns)
            axes = [*range(1, rank - 1), 0, rank - 1]
        if flips and rank > 1:
            *batch_axes, row_axis, column_axis = axes
            axes = [*batch_axes, column_axis, row_axis]
        operands.append(site.transposed(site.tensor(matrix), axes))
    result = _applied(site, "MatMul", operands)
    return result if alpha == 1 else site.step.mul(result, alpha)


def _fused_meaning(standard: str) -> Meaning:
    """Return the function that flattens an operator with a fused activation.

    The operator computes activation(standard(inputs 0 to 2) + input 3). `standard` is the name of
    the standard's operator, such as "Conv".
    """

    def meaning(site: NodeSite, *, name: str, parameters: Sequence[float]) -> Any:
        """Apply the operator. `name` is the activation, and `parameters` are its alpha and beta."""
        if not parameters:
            keys = ("activation_alpha", "activation_beta")
            parameters = [site.number(key) for key in keys if site.has_attribute(key)]
        standard_attributes: dict[str, Any] = {}
        for key, value in site.node.attributes.items():
            if not key.startswith("activation"):
                standard_attributes[key] = value
        operands = [site.optional(i) for i in range(3)]
        x = _applied(site, standard, operands, **standard_attributes)
        if site.has(3):
            x = site.step.add(x, site.operand(3))
        activation_name = name.lower()
        if activation_name in ("", "none"):
            return x
        if activation_name == "clip":
            low, high = parameters
            return site.step.min(site.step.max(x, low), high)
        apply_activation = activation(activation_name, *parameters[:2])
        return apply_activation(site, x)

    return meaning


for _name in ("Conv", "Gemm"):
    operator(
        f"Fused{_name}",
        domain=MICROSOFT,
        name=text("activation", ""),
        parameters=numbers("activation_params", ()),
    )(_fused_meaning(_name))


def _gelu_meaning(approximate: str) -> Meaning:
    """Return the function that flattens an operator that computes gelu(x + bias).

    `approximate` is an attribute of the standard's operator Gelu: "none" or "tanh".
    """

    def meaning(site: NodeSite, x: Tensor, bias: Tensor | None = None) -> Any:
        if bias is not None:
            x = site.step.add(x, bias)
        return _applied(site, "Gelu", [x], approximate=approximate)

    return meaning


operator("Gelu", "BiasGelu", domain=MICROSOFT)(_gelu_meaning("none"))
operator("FastGelu", domain=MICROSOFT)(_gelu_meaning("tanh"))
operator("QuickGelu", domain=MICROSOFT, alpha=number("alpha", 1.702))(
    lambda site, x, *, alpha: _applied(site, "Swish", [x], alpha=alpha)
)
operator("BiasAdd", domain=MICROSOFT)(lambda site, x, y, z: site.last.add(site.step.add(x, y), z))
