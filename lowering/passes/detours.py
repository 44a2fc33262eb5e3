"""Removes redundant reshapes, transpositions and conversions, for platforms without kernels.

Rules and derivatives work on one operation at a time. For example, the document's `unsqueeze`
reshapes a vector to (1, channels), a rule reshapes this matrix to (1, channels, 1, 1) beside an
image, and another reshapes it to a vector again. This pass replaces such a sequence by one reshape
or none. Results are equal to the last bit, provided that sums are taken in the same order.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from lowering.extents import is_symbolic, volume
from lowering.facts import facts
from lowering.jaxpr_types import Atom, ClosedJaxpr, Equation
from lowering.jaxprs import CONVOLUTION, PRODUCT, is_literal, primitive
from lowering.program import Program
from lowering.rewriting import Matcher, Rewrite, Rules, rewritten
from lowering.targets.target import Target

_RULES = Rules()


def run(program: Program, target: Target) -> Program:
    """Remove redundant reshapes, transpositions and conversions from a program."""
    return program.with_closed(_direct(program.closed, done={}))


def _direct(closed: ClosedJaxpr, done: dict[int, tuple[ClosedJaxpr, ClosedJaxpr]]) -> ClosedJaxpr:
    """Remove redundant reshapes, transpositions and conversions from a function.

    `done` maps the id of each rewritten function to a pair: the original and the rewritten
    function. With this map, a function that is called twice stays one object.
    """
    if id(closed) not in done:
        program = Program(closed).pruned().with_inner(lambda _, inner: _direct(inner, done))
        done[id(closed)] = closed, rewritten(program, _RULES).closed
    _, direct = done[id(closed)]
    return direct


def _shapes(equation: Equation) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the shapes of an equation's only operand and only result.

    Return None if there are several operands or results, or if an extent is symbolic.
    """
    if len(equation.invars) != 1 or len(equation.outvars) != 1:
        return None
    operand_shape = tuple(equation.invars[0].aval.shape)
    result_shape = tuple(equation.outvars[0].aval.shape)
    if any(map(is_symbolic, (*operand_shape, *result_shape))):
        return None
    return operand_shape, result_shape


def _keeps_items(equation: Equation) -> bool:
    """Tell whether an equation's result has the items of its operand, in unchanged order."""
    shapes = _shapes(equation)
    if shapes is None:
        return False
    name = primitive(equation)
    if name == "transpose":
        return False
    # A reshape with the parameter `dimensions` permutes axes first. The parameter `dimensions` of a
    # squeeze has the axes that the squeeze removes.
    if name != "squeeze" and equation.params.get("dimensions") is not None:
        return False
    if name != "reduce_sum" and not facts(equation).shapes:
        return False
    # A sum over axes of extent 1 has the items of its operand. A broadcast that repeats items, or a
    # sum of several items, has another number of items.
    operand_shape, result_shape = shapes
    is_empty = volume(result_shape) == 0
    return volume(operand_shape) == volume(result_shape) and not is_empty


@_RULES("broadcast_in_dim", "reduce_sum", "reshape", "squeeze")
def _reshaped(matcher: Matcher, equation: Equation) -> Rewrite:
    """Merge a reshape with an earlier reshape of its operand, or remove both if they cancel out.

    A sum over axes of extent 1 becomes a reshape too. A broadcast that repeats items then reads the
    operand of the earlier reshape.
    """
    if not _keeps_items(equation):
        is_broadcast = primitive(equation) == "broadcast_in_dim"
        return _broadcast(matcher, equation) if is_broadcast else None
    (operand,) = equation.invars
    maker = matcher.maker(operand)
    follows_reshape = maker is not None and _keeps_items(maker)
    source = maker.invars[0] if maker and follows_reshape else operand
    if is_literal(source):
        return None
    shape = tuple(equation.outvars[0].aval.shape)
    is_cancelled = tuple(source.aval.shape) == shape
    if is_cancelled:
        return source
    is_sum = primitive(equation) == "reduce_sum"
    if not follows_reshape and not is_sum:
        return None  # a single reshape stays
    params = {"new_sizes": shape, "dimensions": None, "sharding": None}
    return equation.replace(primitive=lax.reshape_p, invars=[source], params=params)


def _broadcast(matcher: Matcher, equation: Equation) -> Rewrite:
    """Broadcast the operand of a reshape, instead of the result of the reshape.

    The reshape must only add or remove axes of extent 1.
    """
    maker = matcher.maker(equation.invars[0])
    if maker is None or not _keeps_items(maker) or _shapes(equation) is None:
        return None
    shapes = _shapes(maker)
    if shapes is None:
        return None
    source_shape, reshaped_shape = shapes
    long_extents = [extent for extent in source_shape if extent != 1]
    if long_extents != [extent for extent in reshaped_shape if extent != 1]:
        return None
    result_axes = equation.params["broadcast_dimensions"]
    pairs = zip(result_axes, reshaped_shape, strict=True)
    long_result_axes = [axis for axis, extent in pairs if extent != 1]
    # `new_axes` has the axis of the result for each axis of the source. An axis of extent 1 gets
    # the axis after the previous one. If the source has the extents (3, 1, 4), and the result has
    # the extents 3 and 4 along the axes 1 and 3, `new_axes` is [1, 2, 3].
    new_axes: list[int] = []
    next_axis = 0
    for extent in source_shape:
        axis = next_axis if extent == 1 else long_result_axes.pop(0)
        new_axes.append(axis)
        next_axis = axis + 1
    rank = len(equation.params["shape"])
    is_increasing = sorted(set(new_axes)) == new_axes
    is_within_rank = next_axis <= rank
    if not is_increasing or not is_within_rank:
        return None
    params = {**equation.params, "broadcast_dimensions": tuple(new_axes)}
    return equation.replace(invars=[maker.invars[0]], params=params)


@_RULES("cond")
def _chosen(matcher: Matcher, equation: Equation) -> Rewrite:
    """Replace an equation that has a branch for CPUs and a branch for all other platforms.

    The branch for the other platforms must only return one of its arguments. The operand for this
    argument then replaces the result of the equation.
    """
    platforms = equation.params.get("branches_platforms") or ()
    # A branch has a tuple of platforms, or None if it is for all other platforms.
    if len(platforms) != 2 or ("cpu",) not in platforms or None not in platforms:
        return None
    branch = Program(equation.params["branches"][platforms.index(None)])
    if branch.equations or len(branch.results) != 1:
        return None
    (result,) = branch.results
    if result not in branch.arguments:
        return None
    # The first operand is the index of the branch. The other operands are the branch's arguments.
    index_of_argument = branch.arguments.index(result)
    return equation.invars[1 + index_of_argument]


@_RULES("convert_element_type")
def _converted(matcher: Matcher, equation: Equation) -> Rewrite:
    """Remove a conversion that does not change the dtype, or that undoes an earlier conversion.

    An earlier conversion is undone only if it is from 16 bits to float32.
    """
    (operand,) = equation.invars
    (result,) = equation.outvars
    if is_literal(operand):
        return None
    if operand.aval.dtype == result.aval.dtype:
        return operand
    earlier = matcher.maker(operand, "convert_element_type")
    if earlier is None or is_literal(earlier.invars[0]):
        return None
    (source,) = earlier.invars
    is_widened = _widens(source.aval.dtype, operand.aval.dtype)
    is_undone = source.aval.dtype == result.aval.dtype
    return source if is_widened and is_undone else None


def _widens(source: np.dtype[Any], result: np.dtype[Any]) -> bool:
    """Tell whether a conversion is from 16 bits to float32."""
    return source in (jnp.bfloat16, jnp.float16) and result == np.float32


@_RULES(CONVOLUTION)
def _narrow(matcher: Matcher, equation: Equation) -> Rewrite:
    """Let a product or convolution read 16-bit operands instead of their conversions to float32.

    XLA multiplies 16-bit operands in float32 in any case. Both operands must be conversions.
    Otherwise `equation` itself is returned and not None, since `_product` may have changed the
    equation.
    """
    (result,) = equation.outvars
    sources: list[Atom] = []
    for operand in equation.invars:
        conversion = matcher.maker(operand, "convert_element_type")
        source = conversion.invars[0] if conversion else operand
        if is_literal(source) or not _widens(source.aval.dtype, result.aval.dtype):
            return equation
        sources.append(source)
    # A precision is an algorithm unless it is None, a tuple or a `lax.Precision`. An algorithm asks
    # for certain dtypes of operands.
    precision = equation.params["precision"]
    is_algorithm = precision is not None and not isinstance(precision, tuple | lax.Precision)
    dtypes = {source.aval.dtype for source in sources}
    if len(dtypes) > 1 or is_algorithm:
        return equation
    params = {**equation.params, "preferred_element_type": result.aval.dtype}
    return equation.replace(invars=sources, params=params)


@_RULES(PRODUCT)
def _product(matcher: Matcher, equation: Equation) -> Rewrite:
    """Merge transpositions of a product's operands into the dimension numbers of the product."""
    summed_axes, batch_axes = map(list, equation.params["dimension_numbers"])
    operands = list(equation.invars)
    for index, operand in enumerate(operands):
        transposition = matcher.maker(operand, "transpose")
        if transposition is None:
            continue
        # Axis i of the operand is axis `source_axes[i]` of the transposed source.
        source_axes = transposition.params["permutation"]
        numbered_axes = (*summed_axes[index], *batch_axes[index])
        free = [source for axis, source in enumerate(source_axes) if axis not in numbered_axes]
        # The result has the free axes in the operand's order, so the source must have this order.
        has_same_order = free == sorted(free)
        if has_same_order:
            operands[index] = transposition.invars[0]
            summed_axes[index] = tuple(source_axes[axis] for axis in summed_axes[index])
            batch_axes[index] = tuple(source_axes[axis] for axis in batch_axes[index])
    numbers = tuple(summed_axes), tuple(batch_axes)
    params = {**equation.params, "dimension_numbers": numbers}
    return _narrow(matcher, equation.replace(invars=operands, params=params))


@_RULES("transpose")
def _transposed(matcher: Matcher, equation: Equation) -> Rewrite:
    """Remove two transpositions that cancel out. A conversion between them stays."""
    (operand,) = equation.invars
    conversion = matcher.maker(operand, "convert_element_type")
    source = conversion.invars[0] if conversion else operand
    earlier = matcher.maker(source, "transpose")
    if earlier is None or is_literal(earlier.invars[0]):
        return None
    first = earlier.params["permutation"]
    second = equation.params["permutation"]
    combined = [first[axis] for axis in second]
    cancel_out = combined == sorted(first)
    if not cancel_out:
        return None
    if conversion is None:
        return earlier.invars[0]
    # The operand of the first transposition is converted directly.
    return conversion.replace(invars=earlier.invars, outvars=equation.outvars)
