"""Runs the steps of a plan on raw integers, and in floating point for derivatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike

from lowering import Context, apply_rule, straight_through, trace
from lowering.graph import Operand, Value, is_float
from nnef_jax.errors import computing
from nnef_jax.openvx.mapping.mapped_operation import NodeInputs, VxLayer
from nnef_jax.openvx.plan import Plan, PlanStep, part_name, weights_of
from nnef_jax.openvx.profiles import Choices
from nnef_jax.openvx.tensor import StaticWeights, Tensor, static_weights

# The results of operations. A result in fixed point is a `Tensor`. A result in floating point, or
# of integers, is an array.
Values = Mapping[Value, Tensor | Array]
# Both types hold operands that do not depend on inputs: `weights["conv1"]["filter"]` is the operand
# "filter" of the step "conv1". `Weights` are in floating point. `Prepared` are in the form in which
# the layers read operands.
Weights = Mapping[str, Mapping[str, ArrayLike]]
Prepared = Mapping[str, Mapping[str, Tensor | StaticWeights | ArrayLike]]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A plan with the choices of its arithmetic, and the fixed-point position of each tensor."""

    plan: Plan
    choices: Choices
    context: Context
    positions: Mapping[Value, int]

    def real_weights(self, params: Mapping[str, ArrayLike]) -> dict[str, dict[str, Any]]:
        """Return the operands that do not depend on inputs, in floating point, as `Weights`.

        `params` maps labels to the arrays of parameters.
        """
        plan = self.plan
        operands: list[Value] = []
        for step in plan.needed:
            for operation in (step.operation, *step.folded):
                operands += [value for value in operation.reads() if value in plan.fixed]
        no_states: dict[str, Any] = {}
        no_inputs = [None for _ in plan.graph.inputs]
        with computing():
            values = trace(plan.graph, self.context, params, no_states, no_inputs, values=operands)
        fixed = {value: values[value] for value in operands}
        return {step.name: weights_of(step, fixed) for step in plan.needed}

    def quantised(self, step: PlanStep, name: str, weights: ArrayLike) -> Tensor:
        """Convert the weights `name` of a step to fixed point.

        The weights are rounded to nearest even, and then saturated.
        """
        positions = dict(self.choices.positions)
        position = positions.get(weights_name(step, name), self.plan.profile.position)
        return Tensor.quantize(weights, self.plan.profile.dtype, position)

    def prepared(self, weights: Weights, *, static: bool) -> Prepared:
        """Return weights in the form in which layers read them: rounded, and in OpenVX's layouts.

        If `static`, the weights of products become `StaticWeights`. The weights must then not be
        traced.
        """
        tensor_weights = {step.name: weights[step.name] for step, _ in self.tensor_steps}
        # One program arranges all weights, unless there are none or they are traced already.
        has_values = static and any(tensor_weights.values())
        arrange = jax.jit(self._arranged) if has_values else self._arranged
        tensors = arrange(tensor_weights)
        prepared: dict[str, Mapping[str, Tensor | StaticWeights | ArrayLike]] = {}
        for step in self.plan.needed:
            layer = step.layer
            if step.name in tensors:
                operands = dict[str, Any](tensors[step.name])
                static_names = layer.static if static and layer is not None else ()
                for name in static_names:
                    operands[name] = static_weights(operands[name])
            else:  # the operands stay floating-point numbers
                operands = dict[str, Any](weights[step.name])
                if layer is not None and layer.is_table:
                    operands |= self._table(step, operands)
            prepared[step.name] = operands
        return prepared

    @property
    def tensor_steps(self) -> list[tuple[PlanStep, VxLayer]]:
        """Return the steps whose weights are fixed-point tensors, each with its layer."""
        pairs: list[tuple[PlanStep, VxLayer]] = []
        for step in self.plan.needed:
            layer = step.layer
            if layer is not None and not layer.takes_numbers:
                pairs.append((step, layer))
        return pairs

    def _arranged(self, weights: Weights) -> dict[str, dict[str, Tensor]]:
        """Convert weights to fixed point, in the layouts that the layers read.

        The result is a dict of dicts: `result[step name][operand name]` is a tensor.
        """
        tensors: dict[str, dict[str, Tensor]] = {}
        for step, layer in self.tensor_steps:
            tensors[step.name] = {}
            for name, x in weights[step.name].items():
                tensor = self.quantised(step, name, lax.stop_gradient(jnp.asarray(x)))
                if name in layer.arrange:
                    data = layer.arrange[name](tensor.data)
                    tensor = Tensor(data, tensor.fixed_point_position)
                tensors[step.name][name] = tensor
        return tensors

    def clipped(self, weights: Weights) -> dict[str, Array]:
        """Return the number of weights outside the range of the type, for each operand.

        A key consists of the names of a step and an operand, such as "conv1.filter".
        """
        counts: dict[str, Array] = {}
        for step, _ in self.tensor_steps:
            for name, x in weights[step.name].items():
                mask = overflow_mask(x, self.quantised(step, name, x))
                counts[weights_name(step, name)] = jnp.sum(mask)
        return counts

    def _table(self, step: PlanStep, operands: Mapping[str, ArrayLike]) -> dict[str, Array]:
        """Return the table of a function of one tensor, and a mask of results that overflow.

        The table and the mask have an item for each number of the type. `operands` are the fixed
        operands of the step.
        """
        dtype = self.plan.profile.dtype
        (operand,) = {value for value in step.operation.reads() if value not in self.plan.fixed}
        limits = jnp.iinfo(dtype)
        raw = jnp.arange(limits.min, limits.max + 1, dtype=np.int32)
        x = Tensor(raw.astype(dtype), self.positions[operand]).to_float()
        constants = jax.tree.map(lax.stop_gradient, dict(operands))
        (y,) = self.computed(step, {operand: x}, constants)
        y = y.reshape(x.shape)  # an operand of one item, such as [[2]], may have raised the rank
        table = Tensor.quantize(y, dtype, self.positions[step.results[0]])
        return {"table": table.data, "overflow_mask": overflow_mask(y, table)}

    def inputs(self, arrays: Sequence[Array]) -> list[Any]:
        """Convert inputs to fixed point. Inputs of integers stay arrays."""
        pairs = zip(self.plan.graph.inputs, arrays, strict=True)
        return [self.fixed(value, x) for value, x in pairs]

    def run(
        self,
        weights: Prepared,
        inputs: Sequence[Tensor | Array],
        instead: Mapping[Value, Array] | None = None,
    ) -> tuple[Values, dict[Value, Array]]:
        """Return all results of the network, and masks of items that overflow.

        Only results that can overflow have a mask. `inputs` are tensors, or arrays of integers.
        `instead` maps values to floating-point arrays. Operations that read such a value get the
        array instead of the result.
        """
        # `computed` is returned. `values`, which the operations read, has the arrays of `instead`.
        values = dict(zip(self.plan.graph.inputs, inputs, strict=True))
        computed = dict(values)
        masks: dict[Value, Array] = {}
        for step in self.plan.needed:
            with jax.named_scope(step.name):
                results, mask = self._step(step, weights[step.name], values)
            for value, result in zip(step.results, results, strict=True):
                computed[value] = result
                values[value] = result
                if mask is not None:
                    masks[value] = mask
                if instead is not None and value in instead:
                    values[value] = self.fixed(value, instead[value])
        return computed, masks

    def _step(
        self,
        step: PlanStep,
        weights: Mapping[str, Tensor | StaticWeights | ArrayLike],
        values: Values,
    ) -> tuple[list[Any], Array | None]:
        """Return the results of a step, and a mask of items that overflow.

        The mask is None if no item can overflow. `values` has the tensors that are computed so far,
        and `weights` has the fixed operands of the step.
        """
        operation = step.operation
        layer = step.layer
        if layer is None:
            # No layer of OpenVX computes the operation, so it is computed in floating point.
            return self.computed(step, _reals(values), weights), None
        position = self.positions[step.results[0]]

        def read(name: str, operand: Operand) -> Any:
            """Return an operand in the form in which the layer reads it."""
            if isinstance(operand, tuple):
                return [read(part_name(name, i), part) for i, part in enumerate(operand)]
            x: Any = weights.get(name)
            if x is None and isinstance(operand, Value) and operand in values:
                x = self.fixed(operand, values[operand])
            if layer.keeps_position:
                assert isinstance(x, Tensor)
                return self._rescaled(x, position)
            return x

        tensors = {name: read(name, operand) for name, operand in operation.operands}
        result, mask = layer.run(NodeInputs({**tensors, **weights}, self.choices, position))
        if layer.saturates:
            # The layer returns no mask. The result in floating point tells which items overflow.
            (y,) = self.computed(step, _reals(values), weights)
            mask = overflow_mask(y, result)
        results = result if isinstance(result, list) else [result]
        pairs = zip(step.results, results, strict=True)
        return [self._rescaled(x, self.positions[value]) for value, x in pairs], mask

    def fixed(self, value: Value, x: Tensor | Array) -> Tensor | Array:
        """Convert the tensor of a value to fixed point.

        An array of floating-point numbers is rounded. A tensor, and an array of integers, is
        unchanged.
        """
        if isinstance(x, Tensor) or not is_float(value.type.dtype):
            return x
        return Tensor.quantize(x, self.plan.profile.dtype, self.positions[value])

    def _rescaled(self, x: Tensor, position: int) -> Tensor:
        """Return a tensor with another fixed-point position, rounded if it loses bits."""
        if x.fixed_point_position == position:
            return x
        return Tensor.quantize(x.to_float(), self.plan.profile.dtype, position)

    def computed(
        self,
        step: PlanStep,
        values: Mapping[Value, Array],
        weights: Mapping[str, Tensor | StaticWeights | ArrayLike],
    ) -> list[Array]:
        """Compute a step in floating point, by the operation's rule or `layer.real`."""
        operation = step.operation
        layer = step.layer

        def read(name: str, operand: Operand) -> Any:
            """Return an operand as an array or a number."""
            if isinstance(operand, tuple):
                return [read(part_name(name, i), part) for i, part in enumerate(operand)]
            if name in weights:
                return weights[name]
            if not isinstance(operand, Value) or operand not in values:
                return operand
            array = jnp.asarray(values[operand])
            dtype = operand.type.dtype
            return array.astype(dtype) if is_float(dtype) else array

        operands = {name: read(name, operand) for name, operand in operation.operands}
        if layer is not None and layer.real is not None:
            arrays: dict[str, Any] = {**operands, **weights}
            results: Any = layer.real(arrays)
        else:
            with computing():
                results = apply_rule(operation, self.context, operands)
        arrays_of_results: list[Array] = []
        for result in results if isinstance(results, tuple) else (results,):
            if isinstance(result, list | tuple):  # a list of tensors, as `split` returns
                arrays_of_results.extend(result)
            else:
                arrays_of_results.append(result)
        return arrays_of_results

    def straight_through(
        self,
        exact: Values,
        weights: Weights,
        inputs: Sequence[Array],
    ) -> dict[Value, Array]:
        """Convert the tensors `exact` to floating point, with derivatives of the original network.

        The derivative of rounding is 1 if the floating-point item is within the range of the type,
        and 0 if the item is cut off. `inputs` and `weights` are floating-point numbers. Source:
        straight-through estimation, Bengio, Leonard and Courville 2013, arXiv:1308.3432.
        """
        values: dict[Value, Array] = {}

        def add_value(value: Value, x: Array) -> None:
            """Add the exact tensor of a value, with the derivative of `x`."""
            tensor = self.fixed(value, exact[value])
            if isinstance(tensor, Tensor):
                values[value] = self._with_clipped_derivative(tensor, x)
            else:
                values[value] = tensor

        for value, x in zip(self.plan.graph.inputs, inputs, strict=True):
            add_value(value, x)
        for step in self.plan.needed:
            operands = weights[step.name]
            if step.layer is not None and not step.layer.takes_numbers:
                operands = {name: self._weight(step, name, x) for name, x in operands.items()}
            results = self.computed(step, values, operands)
            for value, x in zip(step.results, results, strict=True):
                add_value(value, x)
        return values

    def _weight(self, step: PlanStep, name: str, x: ArrayLike) -> Array:
        """Round the weights `name` of a step to fixed point, and return them in floating point.

        `x` has the weights before rounding. The result has the derivative of `x`.
        """
        tensor = self.quantised(step, name, lax.stop_gradient(jnp.asarray(x)))
        return self._with_clipped_derivative(tensor, x)

    def _with_clipped_derivative(self, tensor: Tensor, x: ArrayLike) -> Array:
        """Convert a tensor to floating point, with the derivative of `x`.

        The derivative is 0 where `x` is outside the range of the tensor's type.
        """
        low, high = bounds(tensor)
        array = jnp.asarray(x)
        result = lax.stop_gradient(tensor.to_float()).astype(array.dtype)
        return straight_through(result, jnp.clip(array, low, high))


def real(x: Tensor | Array) -> Array:
    """Convert a tensor to floating point. An array is returned unchanged."""
    return x.to_float() if isinstance(x, Tensor) else x


def _reals(values: Values) -> dict[Value, Array]:
    """Convert tensors to floating point. Arrays are unchanged."""
    return {value: real(x) for value, x in values.items()}


def bounds(tensor: Tensor) -> tuple[float, float]:
    """Return the least and the greatest number that the type of a tensor holds."""
    limits = jnp.iinfo(tensor.data.dtype)
    step = 2.0**-tensor.fixed_point_position
    return limits.min * step, limits.max * step


def overflow_mask(x: ArrayLike, tensor: Tensor) -> Array:
    """Return a mask of the numbers in `x` that, after rounding, do not fit the type of `tensor`.

    For int8 at position 0, these are the numbers below -128.5 and those from 127.5 on. Both numbers
    are rounded to the nearest even integer: -128.5 becomes -128, which is in the range of int8, and
    127.5 becomes 128.
    """
    low, high = bounds(tensor)
    half_step = 2.0 ** -(tensor.fixed_point_position + 1)
    return _outside(x, low - half_step, high + half_step)


@partial(jax.jit, static_argnames=("low", "high"), inline=True)
def _outside(x: Array, low: float, high: float) -> Array:
    """Return a mask of the numbers that are less than `low`, or at least `high`."""
    return (x < low) | (x >= high)


def weights_name(step: PlanStep, name: str) -> str:
    """Return the name of the weights of a step, such as "conv1.filter"."""
    return f"{step.name}.{name}"
