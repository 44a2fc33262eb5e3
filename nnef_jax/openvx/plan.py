"""A network as nodes of OpenVX: which layer computes each operation, or why none does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np

from lowering.extents import is_zero, padded
from lowering.graph import Graph, Operation, Value, is_float
from nnef_jax.errors import NnefError, UnsupportedError
from nnef_jax.openvx.mapping import KINDS
from nnef_jax.openvx.mapping.arithmetic_nodes import VIEWS
from nnef_jax.openvx.mapping.mapped_operation import MappedOperation, Unfit, VxLayer
from nnef_jax.openvx.profiles import Choices, FixedPointProfile

# Kinds whose results have no negative items, and those that keep what they read.
_POSITIVE = frozenset({"relu", "sigmoid", "sqr", "sqrt", "abs", "softmax", "softplus", "exp"})
_KEEPING = frozenset(
    {*VIEWS, "max_pool", "avg_pool", "max_reduce", "mean_reduce", "local_response_normalization"}
)
_AFFINE = frozenset({"batch_normalization", "add", "sub", "mul", "div"})


@dataclass(eq=False)
class PlanStep:
    """An operation as a layer, or the reason why it is none; with what is folded into it."""

    operation: Operation
    layer: VxLayer | None
    reason: str = ""
    folded: list[Operation] = field(default_factory=list[Operation])

    @property
    def last(self) -> Operation:
        """Return the operation whose results the layer computes."""
        return self.folded[-1] if self.folded else self.operation

    @property
    def name(self) -> str:
        """Return the name of the first result."""
        return self.last.name

    @property
    def results(self) -> list[Value]:
        """Return the results of the step."""
        return list(self.last.writes())


@dataclass(frozen=True, eq=False)
class Plan:
    """The steps of a graph in order; `fixed` are tensors that inputs do not change.

    `folded` has the step into which an operation went.
    """

    graph: Graph
    profile: FixedPointProfile
    steps: tuple[PlanStep, ...]
    fixed: frozenset[Value]
    folded: Mapping[Operation, PlanStep]

    @cached_property
    def needed(self) -> list[PlanStep]:
        """Return the steps that outputs depend on."""
        return [s for s in self.steps if not self.graph.needed.isdisjoint(s.results)]

    @property
    def unfit(self) -> list[UnsupportedError]:
        """Return an error for each operation that is no layer, and each input that is no tensor."""
        dtypes = {value.name: value.type.dtype for value in self.graph.inputs}
        inputs = [
            UnsupportedError(f"input '{name}' is of {dtype}, a tensor holds fixed-point numbers")
            for name, dtype in dtypes.items()
            if not is_float(dtype)
        ]
        steps = [unfit(step, self.profile) for step in self.needed if step.layer is None]
        return [*inputs, *steps]

    def positions(self, choices: Choices) -> dict[Value, int]:
        """Return the fixed-point position of each tensor that is computed."""
        given = dict(choices.positions)
        usual = self.profile.position
        found = {value: given.get(value.name, usual) for value in self.graph.inputs}
        for step in self.steps:
            read = next((x for x in step.operation.reads() if x in found), None)
            kept = step.layer is not None and step.layer.keeps_position and read is not None
            for value in step.results:
                default = found[read] if kept and read is not None else usual
                found[value] = given.get(value.name, default)
        return found


def unfit(step: PlanStep, profile: FixedPointProfile) -> UnsupportedError:
    """Return the error for an operation that is no layer."""
    operation = step.operation
    return UnsupportedError(
        f"'{operation.name}' ({operation.kind}) does not fit {profile.name}: {step.reason}",
        span=operation.span,
        calls=operation.calls,
        hint="on_unfit='float' computes such operations in real numbers",
    )


def plan_of(graph: Graph, profile: FixedPointProfile, semantics: str) -> Plan:
    """Return the steps of a graph whose shapes are known.

    Factors and terms for each channel that follow a product alone become part of its weights.
    """
    fixed = {parameter.value for parameter in graph.parameters}
    positive: set[Value] = set()
    readers = Counter(value for operation in graph.operations for value in operation.reads())
    readers.update(graph.outputs)
    steps: list[PlanStep] = []
    folded: dict[Operation, PlanStep] = {}
    made: dict[Value, PlanStep] = {}
    for operation in graph.operations:
        if all(value in fixed for value in operation.reads()):
            fixed.update(operation.writes())
            continue
        facts = frozenset(fixed), frozenset(positive)
        mapped = MappedOperation(operation, profile, semantics, *facts)
        if profile.dtype == "uint8" or _is_positive(mapped):
            positive.update(operation.writes())
        into = _folds_into(mapped, made, readers)
        if into is not None:
            into.folded.append(operation)
            folded[operation] = into
            made.update(dict.fromkeys(operation.writes(), into))
            continue
        steps.append(_step(mapped))
        made.update(dict.fromkeys(operation.writes(), steps[-1]))
    return Plan(graph, profile, tuple(steps), frozenset(fixed), folded)


def _step(mapped: MappedOperation) -> PlanStep:
    operation = mapped.source
    if operation.rule is not None:
        return PlanStep(operation, None, "its rule is one of rules=")
    mapping = KINDS.get(operation.kind)
    if mapping is None:
        return PlanStep(operation, None, f"OpenVX has no node for {operation.kind}")
    try:
        return PlanStep(operation, mapping.run(mapped))
    except Unfit as reason:
        return PlanStep(operation, None, str(reason))
    except NnefError as error:  # a shape rule of OpenVX refuses it
        return PlanStep(operation, None, error.message)


def _is_positive(operation: MappedOperation) -> bool:
    if operation.kind == "clamp":
        low = operation.number("a")
        return low is not None and low >= 0
    if operation.kind == "max":
        return any(number is not None and number >= 0 for number in map(operation.number, "xy"))
    computed = [value for value in operation.source.reads() if value not in operation.fixed]
    keeps = operation.kind in _KEEPING and all(x in operation.not_negative for x in computed)
    return operation.kind in _POSITIVE or keeps


def _folds_into(
    operation: MappedOperation, made: Mapping[Value, PlanStep], readers: Counter[Value]
) -> PlanStep | None:
    """Return the step of a product that an operation can be made a part of, if there is one."""
    computed = operation.computed()
    if operation.kind not in _AFFINE or operation.source.rule is not None or len(computed) != 1:
        return None
    read = operation.operand(computed[0])
    if not isinstance(read, Value) or readers[read] != 1:
        return None
    step = made.get(read)
    if step is None or step.layer is None or step.layer.scale is None:
        return None
    if (
        operation.kind == "div" and computed[0] != "x"
    ) or operation.result.shape != read.type.shape:
        return None
    layer, rank = step.layer, len(read.type.shape)
    names = (name for name in operation.arguments if name != computed[0])
    shapes = [padded(operation.shape(name), rank) for name in names]
    fits = all(
        extent == 1 or (axis == layer.axis and extent == layer.channels)
        for shape in shapes
        for axis, extent in enumerate(shape)
    )
    return step if fits else None


def weights_of(step: PlanStep, values: Mapping[Value, Any]) -> dict[str, Any]:
    """Return the real numbers of the operands that inputs do not change, as NNEF has them.

    What is folded into a product is a part of them. A term of 0 is left out.
    """

    def read(operation: Operation) -> dict[str, Any]:
        known: dict[str, Any] = {}
        for name, operand in operation.operands:
            parts = {name: operand}
            if isinstance(operand, tuple):
                parts = {part_name(name, i): part for i, part in enumerate(operand)}
            for key, part in parts.items():
                if not isinstance(part, Value):
                    known[key] = part
                elif part in values:
                    known[key] = values[part]
        return known

    found, layer, after = read(step.operation), step.layer, step.folded
    if layer is None or layer.scale is None:
        return found
    name, scale = layer.scale
    if layer.is_unit:  # what follows a product by 1 is all of it
        found = {name: np.ones((layer.channels, 1, 1, 1), np.float32)}
        after = [step.operation, *after]
    bias = found.pop("bias", 0.0)
    if after or not is_zero(bias):
        factor, term = np.ones(layer.channels, np.float32), np.zeros(layer.channels, np.float32)
        term = term + jnp.reshape(jnp.asarray(bias, term.dtype), -1)
        for operation in after:
            factor, term = _after(operation, read(operation), factor, term)
        if after:
            found[name] = scale(found[name], factor.astype(found[name].dtype))
        found["bias"] = term.reshape(*(1 for _ in range(layer.axis)), -1)
    return found


def part_name(name: str, index: int) -> str:
    """Return the name of one tensor of an operand that is an array of tensors."""
    return f"{name}[{index}]"


def _after(operation: Operation, known: Mapping[str, Any], factor: Any, term: Any) -> Any:
    """Return the factor and term of a line after one more operation on its value."""
    attributes: dict[str, Any] = dict(operation.attributes)
    known = {name: jnp.reshape(jnp.asarray(x, term.dtype), -1) for name, x in known.items()}
    match operation.kind:
        case "batch_normalization":
            one = known["scale"] / jnp.sqrt(known["variance"] + attributes["epsilon"])
            return factor * one, (term - known["mean"]) * one + known["offset"]
        case "mul":
            (by,) = known.values()
            return factor * by, term * by
        case "div":
            return factor / known["y"], term / known["y"]
        case "add":
            (by,) = known.values()
            return factor, term + by
        case _ if "y" in known:
            return factor, term - known["y"]
        case _:
            return -factor, known["x"] - term
