"""Plans a network as nodes of OpenVX: the layer of each operation, or why there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from lowering.extents import is_zero, padded
from lowering.graph import Graph, Operation, Value, is_float
from nnef_jax.errors import NnefError, UnsupportedError
from nnef_jax.openvx.mapping import KINDS
from nnef_jax.openvx.mapping.arithmetic_nodes import VIEWS
from nnef_jax.openvx.mapping.mapped_operation import MappedOperation, Unfit, VxLayer
from nnef_jax.openvx.profiles import Choices, FixedPointProfile

# Operations whose results have no negative items.
_NOT_NEGATIVE_KINDS = frozenset(
    {"relu", "sigmoid", "sqr", "sqrt", "abs", "softmax", "softplus", "exp"}
)
# Operations whose results have no negative items if the operands have no negative items.
_SIGN_KEEPING_KINDS = frozenset(
    {*VIEWS, "max_pool", "avg_pool", "max_reduce", "mean_reduce", "local_response_normalization"}
)
# Operations that may compute factor * x + term, with a fixed factor and term for each channel.
_AFFINE_KINDS = frozenset({"batch_normalization", "add", "sub", "mul", "div"})


@dataclass(eq=False)
class PlanStep:
    """An operation of a plan, with the layer that computes it.

    If no layer computes it, `layer` is None, and `reason` says why. `folded` are later operations
    that are folded into the weights of the layer.
    """

    operation: Operation
    layer: VxLayer | None
    reason: str = ""
    folded: list[Operation] = field(default_factory=list[Operation])

    @property
    def last(self) -> Operation:
        """Return the operation whose results the layer computes.

        This is the last folded operation, or the operation of the step if none is folded.
        """
        return self.folded[-1] if self.folded else self.operation

    @property
    def name(self) -> str:
        """Return the name of the first result of the step."""
        return self.last.name

    @property
    def results(self) -> list[Value]:
        """Return the tensors that the step computes."""
        return list(self.last.writes())


@dataclass(frozen=True, eq=False)
class Plan:
    """The steps of a graph in order.

    The tensors in `fixed` do not depend on inputs. `folded` maps each folded operation to the step
    whose weights the operation changes.
    """

    graph: Graph
    profile: FixedPointProfile
    steps: tuple[PlanStep, ...]
    fixed: frozenset[Value]
    folded: Mapping[Operation, PlanStep]

    @cached_property
    def needed(self) -> list[PlanStep]:
        """Return the steps on which outputs depend."""
        steps: list[PlanStep] = []
        for step in self.steps:
            is_needed = not self.graph.needed.isdisjoint(step.results)
            if is_needed:
                steps.append(step)
        return steps

    @property
    def unfit(self) -> list[UnsupportedError]:
        """Return an error for each operation without a layer, and for each input of integers."""
        errors: list[UnsupportedError] = []
        for value in self.graph.inputs:
            dtype = value.type.dtype
            if not is_float(dtype):
                message = f"input '{value.name}' has the type {dtype}"
                errors.append(UnsupportedError(f"{message}, a tensor holds fixed-point numbers"))
        errors += [unfit(step, self.profile) for step in self.needed if step.layer is None]
        return errors

    def positions(self, choices: Choices) -> dict[Value, int]:
        """Return the fixed-point position of each input and result."""
        chosen = dict(choices.positions)
        positions: dict[Value, int] = {}
        for value in self.graph.inputs:
            positions[value] = chosen.get(value.name, self.profile.position)
        for step in self.steps:
            default = self.profile.position
            keeps_position = step.layer is not None and step.layer.keeps_position
            if keeps_position:
                # The results have the position of the first operand that has a position.
                operand_positions = [
                    positions[value] for value in step.operation.reads() if value in positions
                ]
                if operand_positions:
                    default = operand_positions[0]
            for value in step.results:
                positions[value] = chosen.get(value.name, default)
        return positions


def unfit(step: PlanStep, profile: FixedPointProfile) -> UnsupportedError:
    """Return the error for an operation that has no layer."""
    operation = step.operation
    return UnsupportedError(
        f"'{operation.name}' ({operation.kind}) does not fit {profile.name}: {step.reason}",
        span=operation.span,
        calls=operation.calls,
        hint="on_unfit='float' computes such operations in real numbers",
    )


def plan_of(graph: Graph, profile: FixedPointProfile, semantics: str) -> Plan:
    """Return the plan of a graph of known shapes.

    Factors and offsets for each channel are folded into the weights of a product, unless another
    operation reads the result of the product.
    """
    fixed = {parameter.value for parameter in graph.parameters}
    not_negative: set[Value] = set()  # the tensors without negative items
    # The number of times that operations and outputs read each tensor.
    readers = Counter(value for operation in graph.operations for value in operation.reads())
    readers.update(graph.outputs)
    steps: list[PlanStep] = []
    folded: dict[Operation, PlanStep] = {}
    producers: dict[Value, PlanStep] = {}  # the step that computes each tensor
    for operation in graph.operations:
        if all(value in fixed for value in operation.reads()):
            # The operation is computed once, in floating point, and has no step.
            fixed.update(operation.writes())
            continue
        mapped = MappedOperation(
            operation, profile, semantics, frozenset(fixed), frozenset(not_negative)
        )
        if profile.dtype == "uint8" or _is_not_negative(mapped):
            not_negative.update(operation.writes())
        product = _product_before(mapped, producers, readers)
        if product is not None:
            step = product
            step.folded.append(operation)
            folded[operation] = step
        else:
            step = _step(mapped)
            steps.append(step)
        producers.update(dict.fromkeys(operation.writes(), step))
    return Plan(graph, profile, tuple(steps), frozenset(fixed), folded)


def _step(mapped: MappedOperation) -> PlanStep:
    """Return the step of an operation: with its layer, or with the reason why there is none."""
    operation = mapped.source
    if operation.rule is not None:
        return PlanStep(operation, layer=None, reason="it has a rule of the user's, from rules=")
    mapping = KINDS.get(operation.kind)
    if mapping is None:
        return PlanStep(operation, layer=None, reason=f"OpenVX has no node for {operation.kind}")
    try:
        return PlanStep(operation, layer=mapping.run(mapped))
    except Unfit as reason:
        return PlanStep(operation, layer=None, reason=str(reason))
    except NnefError as error:  # comes from a check of shapes
        return PlanStep(operation, layer=None, reason=error.message)


def _is_not_negative(operation: MappedOperation) -> bool:
    """Tell whether the results of an operation have no negative items, for any inputs."""
    if operation.kind in _NOT_NEGATIVE_KINDS:
        return True
    if operation.kind == "clamp":
        low = operation.number("a")
        return low is not None and low >= 0
    if operation.kind == "max":
        numbers = [operation.number("x"), operation.number("y")]
        return any(number is not None and number >= 0 for number in numbers)
    if operation.kind in _SIGN_KEEPING_KINDS:
        computed = [value for value in operation.source.reads() if value not in operation.fixed]
        return operation.not_negative.issuperset(computed)
    return False


def _product_before(
    operation: MappedOperation, producers: Mapping[Value, PlanStep], readers: Counter[Value]
) -> PlanStep | None:
    """Return the step of the product into whose weights an operation can be folded.

    An example is the product `conv(x, filter)` before `mul(product, factors)`. Return None if there
    is no such product. `producers` has the step that computes each tensor, and `readers` has the
    number of operations and outputs that read each tensor.
    """
    computed = operation.computed()
    is_affine = operation.kind in _AFFINE_KINDS and operation.source.rule is None
    if not is_affine or len(computed) != 1:
        return None
    product_name = computed[0]
    product = operation.operand(product_name)
    if not isinstance(product, Value) or readers[product] != 1:
        return None  # another operation needs the product without the factors
    step = producers.get(product)
    if step is None or step.layer is None or step.layer.scale is None:
        return None  # the layer has no weights that could be multiplied
    is_reciprocal = operation.kind == "div" and product_name != "x"  # number / product
    keeps_shape = operation.result.shape == product.type.shape
    if is_reciprocal or not keeps_shape:
        return None
    # Each fixed operand must be one number, or one number for each channel.
    rank = len(product.type.shape)
    for name in operation.arguments:
        if name == product_name:
            continue
        for axis, extent in enumerate(padded(operation.shape(name), rank)):
            is_by_channel = axis == step.layer.axis and extent == step.layer.channels
            if extent != 1 and not is_by_channel:
                return None
    return step


def weights_of(step: PlanStep, values: Mapping[Value, ArrayLike]) -> dict[str, Any]:
    """Return a dict that maps names to the fixed operands of a step, in the layouts of NNEF.

    A fixed operand does not depend on inputs. It is an array or a number.
    Operations that are folded into a product change the weights and the bias of the product. A bias
    of 0 is left out.
    """
    weights = _fixed_operands(step.operation, values)
    layer = step.layer
    folded = step.folded
    if layer is None or layer.scale is None:
        return weights  # nothing can be folded
    name, scale = layer.scale
    if layer.is_unit:
        # The weights of the product are 1, and the operation itself is folded into them.
        weights = dict[str, Any]({name: np.ones((layer.channels, 1, 1, 1), np.float32)})
        folded = [step.operation, *folded]
    bias = weights.pop("bias", 0.0)
    if not folded and is_zero(bias):
        return weights
    # Before operations are folded, the line is 1 * x + bias, where x is a channel's sum of
    # products.
    ones = np.ones(layer.channels, np.float32)
    zeros = np.zeros(layer.channels, np.float32)
    line = _Line(ones, zeros + jnp.reshape(jnp.asarray(bias, np.float32), -1))
    for operation in folded:
        line = _composed(operation, _fixed_operands(operation, values), line)
    if folded:
        factor: Any = line.factor.astype(weights[name].dtype)
        weights[name] = scale(weights[name], factor)
    axes_before_channels = (1,) * layer.axis
    weights["bias"] = line.term.reshape(*axes_before_channels, -1)
    return weights


def _fixed_operands(operation: Operation, values: Mapping[Value, ArrayLike]) -> dict[str, Any]:
    """Return the operands that do not depend on inputs: numbers, and arrays from `values`.

    If an operand is a list, each of its tensors has a name of its own, such as "x[0]".
    """
    operands: dict[str, Any] = {}
    for name, operand in operation.operands:
        parts = {name: operand}
        if isinstance(operand, tuple):
            parts = {part_name(name, i): part for i, part in enumerate(operand)}
        for key, part in parts.items():
            if not isinstance(part, Value):
                operands[key] = part
            elif part in values:
                operands[key] = values[part]
    return operands


def part_name(name: str, index: int) -> str:
    """Return the name of one tensor of an operand that is a list of tensors."""
    return f"{name}[{index}]"


class _Line(NamedTuple):
    """The function `factor * x + term`, with a factor and a term for each channel."""

    factor: Array | NDArray[np.floating[Any]]
    term: Array | NDArray[np.floating[Any]]


def _composed(operation: Operation, operands: Mapping[str, ArrayLike], line: _Line) -> _Line:
    """Return the line that an operation computes from a line: `operation(factor * x + term)`.

    All other operands of the operation are fixed. For example, `mul` by 2 of the line 3 x + 1 is
    the line 6 x + 2.
    """
    attributes: dict[str, Any] = dict(operation.attributes)
    fixed: dict[str, Array] = {}
    for name, operand in operands.items():
        fixed[name] = jnp.reshape(jnp.asarray(operand, line.term.dtype), -1)
    factor, term = line
    match operation.kind:
        case "batch_normalization":
            scale = fixed["scale"] / jnp.sqrt(fixed["variance"] + attributes["epsilon"])
            return _Line(factor * scale, (term - fixed["mean"]) * scale + fixed["offset"])
        case "mul":
            (scale,) = fixed.values()
            return _Line(factor * scale, term * scale)
        case "div":  # div(line, y)
            return _Line(factor / fixed["y"], term / fixed["y"])
        case "add":
            (offset,) = fixed.values()
            return _Line(factor, term + offset)
        case _ if "y" in fixed:  # sub(line, y)
            return _Line(factor, term - fixed["y"])
        case _:  # sub(x, line)
            return _Line(-factor, fixed["x"] - term)
