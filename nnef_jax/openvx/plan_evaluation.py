"""Runs the steps of a plan on raw integers, and beside them in real numbers for derivatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering import Context, apply_rule, straight_through, trace
from lowering.graph import Operand, Value, is_float
from nnef_jax.errors import computing
from nnef_jax.openvx.mapping.mapped_operation import NodeInputs, VxLayer
from nnef_jax.openvx.plan import Plan, PlanStep, part_name, weights_of
from nnef_jax.openvx.profiles import Choices
from nnef_jax.openvx.tensor import Tensor, static_weights

# Tensors of fixed-point numbers; arrays where an operation is computed in real numbers, and of
# integers.
Values = dict[Value, Any]
Weights = Mapping[str, Mapping[str, Any]]  # by step and operand


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A plan with the choices that say how it is computed."""

    plan: Plan
    choices: Choices
    context: Context
    positions: Mapping[Value, int]

    def real_weights(self, params: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the operands of steps that no input changes, in real numbers, folded ones too.

        `params` are arrays by label.
        """
        plan = self.plan
        operations = [o for step in plan.needed for o in (step.operation, *step.folded)]
        read = [v for operation in operations for v in operation.reads() if v in plan.fixed]
        nothing = [None for _ in plan.graph.inputs]
        with computing():
            values = trace(plan.graph, self.context, params, {}, nothing, values=read)
        known = {value: values[value] for value in read}
        return {step.name: weights_of(step, known) for step in plan.needed}

    def quantised(self, step: PlanStep, name: str, weights: Any) -> Tensor:
        """Return an operand in fixed point: rounded to nearest even, saturated."""
        given = dict(self.choices.positions)
        position = given.get(weights_name(step, name), self.plan.profile.position)
        return Tensor.quantize(weights, self.plan.profile.dtype, position)

    def prepared(self, weights: Weights, *, static: bool) -> dict[str, dict[str, Any]]:
        """Return weights as the layers read them: rounded once, in OpenVX's layouts.

        `static` ones have known values, of which layers need fewer products.
        """
        rounded = {step.name: weights[step.name] for step, _ in self.tensor_steps}
        is_eager = static and any(rounded.values())
        tensors = (jax.jit(self._arranged) if is_eager else self._arranged)(rounded)
        found: dict[str, dict[str, Any]] = {}
        for step in self.plan.needed:
            layer, operands = step.layer, weights[step.name]
            if step.name not in tensors:
                is_table = layer is not None and layer.is_table
                tables = self._table(step, operands) if is_table else {}
                found[step.name] = {**operands, **tables}
                continue
            found[step.name] = made = tensors[step.name]
            if static and layer is not None:
                made |= {name: static_weights(made[name]) for name in layer.static}
        return found

    @property
    def tensor_steps(self) -> list[tuple[PlanStep, VxLayer]]:
        """Return the steps whose fixed operands are tensors of the profile, with their layers."""
        pairs = [(step, step.layer) for step in self.plan.needed]
        return [(step, layer) for step, layer in pairs if layer and not layer.takes_numbers]

    def _arranged(self, weights: Weights) -> dict[str, dict[str, Tensor]]:
        tensors: dict[str, dict[str, Tensor]] = {}
        for step, layer in self.tensor_steps:
            tensors[step.name] = {}
            for name, x in weights[step.name].items():
                tensor = self.quantised(step, name, lax.stop_gradient(jnp.asarray(x)))
                data = layer.arrange.get(name, lambda data: data)(tensor.data)
                tensors[step.name][name] = Tensor(data, tensor.fixed_point_position)
        return tensors

    def clipped(self, weights: Weights) -> dict[str, Array]:
        """Count the items of weights that are beyond the type, by step and operand."""
        return {
            weights_name(step, name): jnp.sum(beyond(x, self.quantised(step, name, x)))
            for step, _ in self.tensor_steps
            for name, x in weights[step.name].items()
        }

    def _table(self, step: PlanStep, operands: Mapping[str, Any]) -> dict[str, Any]:
        """Return the table of all values of the type, and where it is beyond the type."""
        (read,) = {v for v in step.operation.reads() if v not in self.plan.fixed}
        limits = jnp.iinfo(self.plan.profile.dtype)
        raw = jnp.arange(limits.min, limits.max + 1, dtype=np.int32)
        x = Tensor(raw.astype(self.plan.profile.dtype), self.positions[read]).to_float()
        (y,) = self.computed(step, {read: x}, jax.tree.map(lax.stop_gradient, dict(operands)))
        position = self.positions[step.results[0]]
        y = y.reshape(x.shape)  # of other operands with one item it may have the rank
        table = Tensor.quantize(y, self.plan.profile.dtype, position)
        return {"table": table.data, "beyond": beyond(y, table)}

    def inputs(self, arrays: Sequence[Any]) -> list[Any]:
        """Return inputs in fixed point; integers stay arrays."""
        pairs = zip(self.plan.graph.inputs, arrays, strict=True)
        return [self.fixed(value, x) for value, x in pairs]

    def run(
        self,
        weights: Weights,
        inputs: Sequence[Any],
        instead: Mapping[Value, Any] | None = None,
    ) -> tuple[Values, dict[Value, Array]]:
        """Return all tensors, and where those that can leave the range of the type do.

        `inputs` are tensors, or arrays of integers. `instead` are real numbers that readers of a
        tensor get instead of what is computed.
        """
        values: Values = dict(zip(self.plan.graph.inputs, inputs, strict=True))
        found: Values = dict(values)
        masks: dict[Value, Array] = {}
        for step in self.plan.needed:
            with jax.named_scope(step.name):
                results, mask = self._step(step, weights[step.name], values)
            for value, result in zip(step.results, results, strict=True):
                found[value] = values[value] = result
                if mask is not None:
                    masks[value] = mask
                if instead is not None and value in instead:
                    values[value] = self.fixed(value, instead[value])
        return found, masks

    def _step(
        self, step: PlanStep, weights: Mapping[str, Any], values: Mapping[Value, Any]
    ) -> tuple[list[Any], Array | None]:
        operation, layer = step.operation, step.layer
        if layer is None:
            return self.computed(step, {v: real(x) for v, x in values.items()}, weights), None
        position = self.positions[step.results[0]]

        def read(name: str, operand: Operand) -> Any:
            if isinstance(operand, tuple):
                return [read(part_name(name, i), part) for i, part in enumerate(operand)]
            x = weights.get(name)
            if x is None and isinstance(operand, Value) and operand in values:
                x = self.fixed(operand, values[operand])
            return self._rescaled(x, position) if layer.keeps_position else x

        tensors = {name: read(name, operand) for name, operand in operation.operands}
        result, mask = layer.run(NodeInputs({**tensors, **weights}, self.choices, position))
        if layer.saturates:
            (y,) = self.computed(step, {v: real(x) for v, x in values.items()}, weights)
            mask = beyond(y, result)
        results = result if isinstance(result, list) else [result]
        pairs = zip(step.results, results, strict=True)
        found = [self._rescaled(x, self.positions[value]) for value, x in pairs]
        return found, mask

    def fixed(self, value: Value, x: Any) -> Any:
        """Return a tensor in fixed point: as it is, or rounded from real numbers.

        Integers stay arrays.
        """
        if isinstance(x, Tensor) or not is_float(value.type.dtype):
            return x
        return Tensor.quantize(x, self.plan.profile.dtype, self.positions[value])

    def _rescaled(self, x: Any, position: int) -> Any:
        if x.fixed_point_position == position:
            return x
        return Tensor.quantize(x.to_float(), self.plan.profile.dtype, position)

    def computed(
        self, step: PlanStep, values: Mapping[Value, Any], weights: Mapping[str, Any]
    ) -> list[Any]:
        """Return the results of a step in real numbers, by the operation's own rule."""
        operation, layer = step.operation, step.layer

        def read(name: str, operand: Operand) -> Any:
            if isinstance(operand, tuple):
                return [read(part_name(name, i), part) for i, part in enumerate(operand)]
            if name in weights:
                return weights[name]
            if not isinstance(operand, Value) or operand not in values:
                return operand
            x = jnp.asarray(values[operand])
            return x.astype(operand.type.dtype) if is_float(operand.type.dtype) else x

        operands = {name: read(name, operand) for name, operand in operation.operands}
        if layer is not None and layer.real is not None:
            results: Any = layer.real({**operands, **weights})
        else:
            with computing():
                results = apply_rule(operation, self.context, operands)
        flat = results if isinstance(results, tuple) else (results,)
        return [x for item in flat for x in (item if isinstance(item, list | tuple) else [item])]

    def straight_through(
        self,
        exact: Mapping[Value, Any],
        weights: Weights,
        inputs: Sequence[Any],
    ) -> Values:
        """Return the tensors as real numbers, with derivatives of those of the real network.

        What an item is computed from has a derivative where the real item is within the range of
        the type, and none where it is cut off. `inputs` and `weights` are real numbers.
        Source: straight-through estimation, Bengio, Leonard and Courville 2013, arXiv:1308.3432.
        """
        values: Values = {}

        def keep(value: Value, x: Any) -> None:
            found = self.fixed(value, exact[value])
            values[value] = self._as_cut(found, x) if isinstance(found, Tensor) else found

        for value, x in zip(self.plan.graph.inputs, inputs, strict=True):
            keep(value, x)
        for step in self.plan.needed:
            own = weights[step.name]
            if step.layer is not None and not step.layer.takes_numbers:
                own = {name: self._weight(step, name, x) for name, x in own.items()}
            for value, x in zip(step.results, self.computed(step, values, own), strict=True):
                keep(value, x)
        return values

    def _weight(self, step: PlanStep, name: str, x: Any) -> Array:
        return self._as_cut(self.quantised(step, name, lax.stop_gradient(jnp.asarray(x))), x)

    def _as_cut(self, tensor: Tensor, x: Any) -> Array:
        low, high = bounds(tensor)
        x = jnp.asarray(x)
        result = lax.stop_gradient(tensor.to_float()).astype(x.dtype)
        return straight_through(result, jnp.clip(x, low, high))


def real(x: Any) -> Any:
    """Return a tensor as real numbers; arrays as they are."""
    return x.to_float() if isinstance(x, Tensor) else x


def bounds(tensor: Tensor) -> tuple[float, float]:
    """Return the least and the largest number of a tensor's type."""
    limits, step = jnp.iinfo(tensor.data.dtype), 2.0**-tensor.fixed_point_position
    return limits.min * step, limits.max * step


def beyond(x: Any, tensor: Tensor) -> Array:
    """Tell where real numbers are beyond the type of the tensor that they are rounded to."""
    low, high = bounds(tensor)
    half = 2.0 ** -(tensor.fixed_point_position + 1)
    return _outside(x, low - half, high + half)


@partial(jax.jit, static_argnames=("low", "high"), inline=True)
def _outside(x: Array, low: float, high: float) -> Array:
    return (x < low) | (x >= high)


def weights_name(step: PlanStep, name: str) -> str:
    """Return the name of an operand of a step that no input changes: conv1.filter, say."""
    return f"{step.name}.{name}"
