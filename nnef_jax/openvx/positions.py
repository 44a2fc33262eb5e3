"""Searches, for each tensor, for the fixed-point position that leads to the least error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering.graph import is_float
from nnef_jax.analysis.question import bound
from nnef_jax.calls.arguments import Input
from nnef_jax.model import Model
from nnef_jax.openvx.integer_function import lower
from nnef_jax.openvx.plan import Plan, PlanStep
from nnef_jax.openvx.plan_evaluation import weights_name
from nnef_jax.openvx.profiles import Choices
from nnef_jax.openvx.tensor import Tensor

# The number of fixed-point positions to try below `fitting`, the largest position at which the
# largest number of a tensor is not cut off.
_POSITIONS_BELOW = 1
# The number of fixed-point positions to try above `fitting`. There large numbers are cut off.
_POSITIONS_ABOVE = 4
# The largest magnitude of a position that is tried. Layers can shift products to any such position.
_LARGEST_POSITION = 22


def search_positions(
    model: Model, *inputs: Input, profile: str = "openvx-16bit", dtype: str | None = None
) -> dict[str, int]:
    """Return the fixed-point positions with the highest SNR over samples, tensor by tensor.

    Each tensor that the network computes from the samples is rounded and saturated at several
    positions, and so is each weight. The position with the least error is taken. Rare large items
    are cut off if this reduces the error of all items together. Layers that only select or move
    items have the position of their operand. The result is for `lower(..., positions=...,
    strict=False)`. On devices such numbers are called dynamic fixed point. OpenVX itself has one
    position for all tensors.

    Args:
        model: the network.
        inputs: a batch of samples: inputs in order, or one dict by name.
        profile, dtype: arguments of `lower`, which determine the number of bits.

    Raises InputError for wrong inputs, and the errors of `lower`. Operations that no layer of
    OpenVX computes are computed in floating point.

    >>> positions = nnef_jax.openvx.search_positions(model, images, profile="openvx-8bit")
    >>> fixed = nnef_jax.openvx.lower(model, "openvx-8bit", positions=positions, strict=False)
    """
    lowered = lower(model, profile, dtype=dtype, on_unfit="float")
    arrays = bound(model, inputs)
    evaluation = lowered.evaluation([x.shape for x in arrays])
    fixed_point_dtype = evaluation.plan.profile.dtype
    positions: dict[str, int] = {}
    for value, x in zip(evaluation.plan.graph.inputs, arrays, strict=True):
        if is_float(value.type.dtype):
            positions[value.name] = _best(np.asarray(x), fixed_point_dtype)
    names = _names_with_positions(evaluation.plan.needed)
    tensors = model.intermediates(*arrays, names=names) if names else {}
    positions |= {name: _best(np.asarray(x), fixed_point_dtype) for name, x in tensors.items()}
    weights = lowered.real_weights(evaluation)
    for step, _ in evaluation.tensor_steps:
        for name, x in weights[step.name].items():
            positions[weights_name(step, name)] = _best(np.asarray(x), fixed_point_dtype)
    choices = replace(lowered.choices, positions=tuple(positions.items()))
    _limit_positions_of_biases(positions, evaluation.plan, weights, choices)
    return positions


def _limit_positions_of_biases(
    positions: dict[str, int],
    plan: Plan,
    weights: Mapping[str, Mapping[str, object]],
    choices: Choices,
) -> None:
    """Lower the positions of biases that have more fractional bits than the products.

    A bias is added to sums of products, and a product has the fractional bits of both factors.
    `positions` maps names of tensors to positions, and `choices` has the same positions. The dict
    `weights[step name]` maps names of operands to weights.
    """
    position_by_value = plan.positions(choices)
    for step in plan.needed:
        weights_of_products = step.layer.static if step.layer is not None else ()
        if not weights_of_products or "bias" not in weights[step.name]:
            continue
        (name,) = weights_of_products  # for example "filter"
        # Weights have no position in the plan, so this is the input of the layer.
        operand = next(value for value in step.operation.reads() if value in position_by_value)
        product_position = position_by_value[operand] + positions[weights_name(step, name)]
        bias = weights_name(step, "bias")
        positions[bias] = min(positions[bias], product_position)


def _names_with_positions(steps: Sequence[PlanStep]) -> list[str]:
    """Return the names of the results of steps whose positions are searched.

    A layer that only moves or selects items of one operand is left out, since the result has the
    position of the operand.
    """
    names: list[str] = []
    for step in steps:
        keeps_position = step.layer is not None and step.layer.keeps_position
        has_one_operand = len(list(step.operation.reads())) <= 1
        has_position_of_operand = keeps_position and has_one_operand
        if not has_position_of_operand:
            names += [value.name for value in step.results if is_float(value.type.dtype)]
    return names


def _best(x: NDArray[Any], dtype: str) -> int:
    """Return the fixed-point position at which a tensor has the least squared error.

    The tensor is rounded and saturated to the type `dtype`.
    """
    largest = float(np.max(np.abs(x[np.isfinite(x)]), initial=0))
    all_bits = np.iinfo(dtype).bits
    bits = all_bits if dtype == "uint8" else all_bits - 1  # without the sign bit
    # The largest position at which the largest number is not cut off by more than one unit. For 7
    # bits and the number 5, it is 4: 5 needs 3 bits before the point.
    fitting = bits - math.ceil(math.log2(largest)) if largest else 0
    numbers = np.nan_to_num(x.astype(np.float32))

    def error(position: int) -> float:
        """Return the squared error of the tensor at a position."""
        rounded = np.asarray(Tensor.quantize(numbers, dtype, position).to_float())
        return float(np.sum((numbers - rounded).astype(np.float64) ** 2))

    # The greatest position comes first. Among positions with equal errors, `min` takes the first
    # one, which has the most fractional bits.
    greatest = fitting + _POSITIONS_ABOVE
    least = fitting - _POSITIONS_BELOW
    positions = range(greatest, least - 1, -1)
    candidates = [position for position in positions if abs(position) <= _LARGEST_POSITION]
    if not candidates:  # the numbers are very large or very small
        return min(max(fitting, -_LARGEST_POSITION), _LARGEST_POSITION)
    return min(candidates, key=error)
