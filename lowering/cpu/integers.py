"""Compute products in integers if their operands are rounded to few levels.

Between layers such operands stay codes of 8 bits. A loop that reads the float32 numbers of such an
operand computes the numbers from the codes. `python -m benchmarks.quantised` measures the gain.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from lowering import jaxprs
from lowering.cpu import codes
from lowering.cpu.codes import BYTE, FLOAT, Codes, is_slim
from lowering.jaxpr_types import Atom, ClosedJaxpr, Equation
from lowering.jaxprs import CONVOLUTION, PRODUCT, primitive
from lowering.kernels.levels import NOTE
from lowering.machine import profile
from lowering.program import Program
from lowering.rewriting import Matcher, Rules, in_loops, rewritten
from lowering.targets.target import Target

# Rules of this pass note `Codes` for a variable. The fields of these `Codes` are variables too.
_RULES = Rules()


@in_loops
def run(program: Program, target: Target) -> Program:
    """Compute products of tensors with few levels in integers, and remove the notes of levels.

    A note of levels is an equation that marks a tensor as rounded to levels. Forward and backward
    passes of derivatives, and bodies of loops, stay in float32. So does the whole program if the
    machine does not multiply bytes faster than float32.
    """
    may_use_codes = program.role == "value" and not program.in_loop
    if may_use_codes and profile().multiplies_bytes:
        program = rewritten(program, _RULES)
    has_products_of_codes = len(_names_of_products(program)) > 0
    return rewritten(program, {NOTE: partial(_read, has_products_of_codes)})


def names_of_products(closed: ClosedJaxpr) -> list[str]:
    """Return the names of the operations whose products the pass can compute in integers."""
    return _names_of_products(rewritten(Program(closed), _RULES))


def _names_of_products(program: Program) -> list[str]:
    """Return the names of the operations whose products or convolutions multiply int8 codes."""
    names: list[str] = []
    for equation in program.equations:
        is_product = primitive(equation) in (PRODUCT, CONVOLUTION)
        if is_product and equation.invars[0].aval.dtype == BYTE:
            names.append(jaxprs.outer_scope(equation))
    return names


def _read(has_products_of_codes: bool, matcher: Matcher, equation: Equation) -> Any:
    """Replace a note of levels by the tensor itself, or by a computation of the tensor from codes.

    A note of levels is an equation that marks a tensor as rounded to levels.

    The tensor is computed from its codes of 8 bits if a product reads the codes. They are then in
    memory anyway. In a program with products of codes, the tensor is also computed from its codes
    if several equations read the tensor. Each equation then reads 8 bits for an item instead of 32
    bits.
    """
    x, level, step, start = equation.invars
    (result,) = equation.outvars
    uses = matcher.program.uses
    has_codes = level.aval.dtype == BYTE
    if not has_codes:
        return x
    # The note is one reader of the codes. Any other reader is a product.
    is_read_by_product = uses[level] > 1
    is_read_repeatedly = has_products_of_codes and uses[result] > 1
    if not is_read_by_product and not is_read_repeatedly:
        return x
    zero = equation.params["levels"].zero
    coded = Codes(level, step, start=start) if zero is None else Codes(level, step, zero)
    return matcher.trace(Codes.dequantised, coded)


@_RULES(NOTE)
def _coded(matcher: Matcher, equation: Equation) -> Equation | None:
    """Replace the levels in a note by int8 codes, and note these codes for the tensor."""
    x, level, step, start = equation.invars
    (result,) = equation.outvars
    levels = equation.params["levels"]
    are_slim = is_slim(step.aval.shape) and is_slim(start.aval.shape)
    if x.aval.dtype != FLOAT or not are_slim:
        return None
    of_levels = partial(codes.of_levels, levels=levels)
    coded = matcher.trace(of_levels, level, step, start)
    matcher.notes[result] = coded
    # Codes have either a start, or a code that stands for 0.
    if coded.start is None:
        new_start = start
        new_levels = replace(levels, zero=coded.zero)
    else:
        new_start = coded.start
        new_levels = replace(levels, zero=None)
    operands = [x, coded.codes, coded.step, new_start]
    return equation.replace(invars=operands, params={"levels": new_levels})


@_RULES("convert_element_type")
def _converted(matcher: Matcher, equation: Equation) -> None:
    """Note the codes of a result that is converted from 8 bits. The 8-bit operand has the codes."""
    (operand,) = equation.invars
    (result,) = equation.outvars
    if operand.aval.dtype in (BYTE, np.uint8) and result.aval.dtype == FLOAT:
        matcher.notes[result] = matcher.trace(codes.of_bytes, operand)


@_RULES(moves=True)
def _moved(matcher: Matcher, equation: Equation) -> None:
    """Note the codes of the result of an equation that only moves items."""
    if len(equation.invars) != 1 or len(equation.outvars) != 1:
        return  # for example, the operands of a concatenation may have different steps
    (operand,) = equation.invars
    (result,) = equation.outvars
    coded = matcher.note(operand)
    if coded:
        moved = partial(codes.moved, equation)
        matcher.notes[result] = matcher.trace(moved, coded)


@_RULES("add", "sub", "mul", "div")
def _changed(matcher: Matcher, equation: Equation) -> None:
    """Note the codes of a sum, difference, product or quotient of a tensor with codes.

    The other operand must have several items along at most one axis. Then only step and start
    change.
    """
    name = primitive(equation)
    left, right = equation.invars
    left_codes, right_codes = matcher.note(left), matcher.note(right)
    if left_codes and right_codes:
        return  # the result has the codes of neither tensor
    if left_codes:
        coded, other = left_codes, right
    elif right_codes and name in ("add", "mul"):  # only here the operands may be exchanged
        coded, other = right_codes, left
    else:
        return
    slim = _slim(matcher, other)
    if slim is None:
        return
    source, shape = slim

    def change(codes: Codes, items: Any) -> Codes | None:
        return codes.changed(name, jnp.reshape(items, shape))

    matcher.notes[equation.outvars[0]] = matcher.trace(change, coded, source)


@_RULES(PRODUCT, CONVOLUTION)
def _product(matcher: Matcher, equation: Equation) -> Any:
    """Compute a float32 product or convolution in integers, from the codes of both operands."""
    operand_codes = [matcher.note(operand) for operand in equation.invars]
    (result,) = equation.outvars
    if not all(operand_codes) or result.aval.dtype != FLOAT:
        return None
    kernel = codes.product if primitive(equation) == PRODUCT else codes.convolution
    return matcher.trace(partial(kernel, params=equation.params), *operand_codes)


def _slim(matcher: Matcher, operand: Atom) -> tuple[Atom, tuple[int, ...]] | None:
    """Return a slim tensor that broadcasts to `operand` after a reshape, and the reshape's shape.

    A slim tensor has several items along at most one axis. For example, if `operand` repeats a
    vector of 8 items along the other axes, the vector and the shape (1, 8, 1) are returned. None
    is returned if the operand is not slim, and does not repeat a slim tensor.
    """
    shape = operand.aval.shape
    if is_slim(shape):
        return operand, shape
    broadcast = matcher.maker(operand, "broadcast_in_dim")
    if broadcast is None or len(broadcast.invars) > 1:
        return None
    (source,) = broadcast.invars
    axes = broadcast.params["broadcast_dimensions"]
    if not axes:
        return source, ()
    extents = [1] * len(shape)
    for axis, extent in zip(axes, source.aval.shape, strict=True):
        extents[axis] = extent
    source_shape = tuple(extents)
    return (source, source_shape) if is_slim(source_shape) else None
