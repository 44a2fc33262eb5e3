"""Operations of the tables of cases with wrong types and attributes, traced but not compiled."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

import nnef_jax
from lowering.builder import GraphBuilder
from lowering.errors import InvalidComputation, InvalidOperation
from lowering.extents import UNKNOWN, volume
from lowering.graph import Graph, Operation, TensorType, Value
from lowering.tracing import Context, trace
from lowering.work import multiply_adds
from nnef_jax.limits import Limits, Meter
from tests.fuzz import Kind, Make
from tests.fuzz.draw import INTEGERS, REALS, changed_list
from tests.op_cases import NNEF, TRACT, document
from tests.openvino import layers
from tests.openvino.layers import arithmetic, arrangement, boxes, steps, windows
from tests.openvino.rare_layers import OLD, USES
from tests.openvino.test_kinds import CASES
from tests.openvino.test_rare_layers import written
from tests.operation_checks import read_graph

_EXTENTS = (0, 1, 1, 2, 2, 3, 4, 5, 7, 8, 64, 1 << 16, 1 << 31, 1 << 40)
_DTYPES = ("float32", "float32", "float16", "bfloat16", "int32", "int64", "uint8", "bool")
_DTYPES += ("complex64",)


@dataclass(frozen=True)
class Use:
    """An operation by the types and literals that it reads."""

    kind: str
    operands: dict[str, Any]  # types, literals, or tuples of these
    attributes: dict[str, Any]


@cache
def uses() -> dict[str, list[Use]]:
    """Return the uses of every kind in the tables of operations and layers."""
    found: dict[str, list[Use]] = {}
    for operation in _operations():
        use = Use(
            operation.kind,
            {name: _type(operand) for name, operand in operation.operands},
            dict(operation.attributes),
        )
        known = found.setdefault(use.kind, [])
        if use not in known:
            known.append(use)
    for case in CASES:
        types = {n: _of_array(x) for n, x in case.operands.items()}
        found.setdefault(case.kind, []).append(Use(case.kind, types, dict(case.attributes)))
    return found


def _operations() -> Iterator[Operation]:
    for case in (*NNEF, *TRACT):
        yield from _all(read_graph(document(case)))
    with tempfile.TemporaryDirectory() as folder:
        for version in (layers.LEGACY, layers.OPSETS):
            for module in (arithmetic, arrangement, boxes, steps, windows):
                rows = [row for row in module.ROWS if version in row.versions]
                net, _ = layers.network(rows, version)
                yield from _all(net.load(Path(folder)).graph)
        for rare, version in ((USES, 11), (OLD, 7)):
            yield from _all(written(rare, version)[0].load(Path(folder)).graph)


def _all(graph: Graph) -> Iterator[Operation]:
    for operation in graph.operations:
        yield operation
        for _, attribute in operation.attributes:
            if isinstance(attribute, Graph):
                yield from _all(attribute)


def _type(operand: Any) -> Any:
    if isinstance(operand, tuple):
        return tuple(map(_type, operand))
    return operand.type if isinstance(operand, Value) else operand


def _of_array(x: Any) -> Any:
    return TensorType(x.shape, x.dtype.name) if isinstance(x, np.ndarray) else x


def mutated(use: Use, chance: random.Random) -> Use:
    """Return a use with one to three of its types, literals and attributes changed."""
    operands, attributes = dict(use.operands), dict(use.attributes)
    for _ in range(chance.randint(1, 3)):
        chosen = chance.choice([operands] * bool(operands) + [attributes] * 2 * bool(attributes))
        name = chance.choice(list(chosen))
        known: Any = (
            _DTYPES
            if name == "dtype"
            else [u.attributes[name] for u in uses()[use.kind] if name in u.attributes]
        )
        if name in ("dtype", "accumulator"):
            chosen[name] = chance.choice(_DTYPES)
        else:
            chosen[name] = _changed(chosen[name], chance, known, chosen is operands)
    return Use(use.kind, operands, attributes)


def _changed(
    x: Any, chance: random.Random, known: Sequence[Any] = (), is_operand: bool = False
) -> Any:
    """Return another value of the same type; `known` are those that the tables have."""
    match x:
        case bool() if is_operand:  # an absent one: another tensor takes its place
            return chance.choice((TensorType((), "bool"), TensorType((2,), "float32")))
        case bool():
            return not x
        case int():
            return chance.choice((*INTEGERS, x + 1, x - 1, -x))
        case float():
            return chance.choice((*REALS, -x, 2 * x))
        case str():
            return chance.choice((*known, "", "x"))
        case TensorType():
            return _changed_type(x, chance)
        case tuple():
            return _changed_items(x, chance, known)
        case _:
            return x


def _changed_items(x: tuple[Any, ...], chance: random.Random, known: Sequence[Any]) -> Any:
    if chance.random() < 0.2:
        return chance.choice((*known, ()))

    def other() -> Any:
        item = chance.choice(x)
        if isinstance(item, tuple) and item:  # readers see to its length
            pair, side = list(item), chance.randrange(len(item))
            pair[side] = _changed(pair[side], chance)
            return tuple(pair)
        return _changed(item, chance)

    return tuple(changed_list(x, other, chance)) if x else x


def _changed_type(type: TensorType, chance: random.Random) -> TensorType:
    shape = list(type.shape)
    place = chance.randrange(len(shape) + 1)
    match chance.randrange(7):
        case 0:
            return TensorType(type.shape, chance.choice(_DTYPES))
        case 1 if shape:
            del shape[place - 1]
        case 2:
            shape.insert(place, chance.choice((1, 2, 3)))
        case 3:
            shape = []
        case 4 if len(shape) > 1:
            other = chance.randrange(len(shape))
            shape[place - 1], shape[other] = shape[other], shape[place - 1]
        case _ if shape:
            shape[place - 1] = chance.choice(_EXTENTS)
        case _:
            shape = [chance.choice(_EXTENTS)]
    return TensorType(tuple(shape), type.dtype)


def graph_of(use: Use) -> Graph:
    """Return the graph of one operation on inputs; raise InvalidOperation."""
    builder = GraphBuilder()
    count = 0

    def operand(x: Any) -> Any:
        nonlocal count
        if isinstance(x, tuple):
            return tuple(map(operand, x))
        if not isinstance(x, TensorType):
            return x
        count += 1
        return builder.input(f"x{count}", x)

    operands = {name: operand(x) for name, x in use.operands.items()}
    results = builder.operation(use.kind, operands, use.attributes, ["y"])
    outputs = [v for r in results for v in (r if isinstance(r, tuple) else (r,))]
    return builder.graph("g", outputs, [v.name for v in outputs])


def attempt(use: Use) -> str:
    """Return "result", or "too large" where an input or output is beyond the limits."""
    try:
        graph = graph_of(use)
    except InvalidOperation as error:
        assert str(error)
        return "refused"
    for operation in graph.operations:
        assert multiply_adds(operation) >= 0
    sizes = [volume(v.type.shape) for v in (*graph.inputs, *graph.outputs)]
    if any(n is not UNKNOWN and n > Limits().tensor_items for n in sizes):
        return "too large"
    shapes = [[1 if n is UNKNOWN else n for n in v.type.shape] for v in graph.inputs]
    inputs = map(jax.ShapeDtypeStruct, shapes, [v.type.dtype for v in graph.inputs])
    context = Context(fold=Meter().fold)

    def run(*xs: Any) -> Any:
        values = trace(graph, context, {}, {}, xs)
        return [values[output] for output in graph.outputs]

    jax.eval_shape(run, *inputs)
    return "result"


def _mutant(kind: str, chance: random.Random) -> Use:
    return mutated(chance.choice(uses()[kind]), chance)


@cache
def _sorts() -> Mapping[str, tuple[Make, int]]:
    return {kind: (partial(_mutant, kind), 1) for kind in sorted(uses())}


KIND = Kind(_sorts, attempt, (InvalidComputation, nnef_jax.LimitError))
