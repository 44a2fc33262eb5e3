"""Operations of the tables of cases with wrong types and attributes, traced without being compiled.

`python -m tests.mutants --seeds 5 --count 400` tries so many mutants of every kind with each seed,
and prints what ended in anything but a result or an error with a place.
`tests/operations/test_mutants.py` tries a few.
"""

from __future__ import annotations

import argparse
import math
import random
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

import lowering
import nnef_jax
from lowering.builder import GraphBuilder
from lowering.errors import InvalidComputation, InvalidOperation
from lowering.extents import UNKNOWN, volume
from lowering.graph import Graph, Operation, TensorType, Value
from lowering.multiply_adds import multiply_adds
from lowering.trace import Context, trace
from nnef_jax.limits import Limits, Meter
from tests.op_cases import NNEF, TRACT, document
from tests.openvino import layers
from tests.openvino.layers import arithmetic, arrangement, boxes, steps, windows
from tests.openvino.rare_layers import OLD, USES
from tests.openvino.test_kinds import CASES
from tests.openvino.test_rare_layers import written
from tests.operation_checks import read_graph
from tests.unix import resource

_INTEGERS = (0, -1, 1, 2, 3, 5, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40)
_INTEGERS += ((1 << 63) - 1, -(1 << 31), -(1 << 40), -(1 << 63))
_REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, 1e308, -1e308, math.inf, -math.inf, math.nan)
_EXTENTS = (0, 1, 1, 2, 2, 3, 4, 5, 7, 8, 64, 1 << 16, 1 << 31, 1 << 40)
_DTYPES = ("float32", "float32", "float16", "bfloat16", "int32", "int64", "uint8", "bool")
_DTYPES += ("complex64",)
_OWN = str(Path(lowering.__file__).parent)
_SECONDS = 5.0  # of the processor, for what takes a few hundredths
_BYTES = 3 << 30  # of memory, for what takes next to none


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
            return chance.choice((*_INTEGERS, x + 1, x - 1, -x))
        case float():
            return chance.choice((*_REALS, -x, 2 * x))
        case str():
            return chance.choice((*known, "", "x"))
        case TensorType():
            return _changed_type(x, chance)
        case tuple():
            return _changed_items(x, chance, known)
        case _:
            return x


def _changed_items(x: tuple[Any, ...], chance: random.Random, known: Sequence[Any]) -> Any:
    items, place = list(x), chance.randrange(len(x) + 1)
    match chance.randrange(5):
        case 0:
            return ()
        case 1 if items:
            del items[place - 1]
        case 2 if items:
            items.insert(place, items[place - 1])
        case 3:
            return chance.choice(known or [x])
        case _ if items and isinstance(items[place - 1], tuple):  # of a length that readers see to
            pair = list(items[place - 1])
            if pair:
                side = chance.randrange(len(pair))
                pair[side] = _changed(pair[side], chance)
            items[place - 1] = tuple(pair)
        case _ if items:
            items[place - 1] = _changed(items[place - 1], chance)
        case _:
            return x
    return tuple(items)


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


def outcome(use: Use) -> str:
    """Return what a use ends in: "result", "at load" or "traced"; anything else passes through."""
    try:
        graph = graph_of(use)
    except InvalidOperation as error:
        assert str(error)
        return "at load"
    for operation in graph.operations:
        assert multiply_adds(operation) >= 0
    sizes = [volume(v.type.shape) for v in (*graph.inputs, *graph.outputs)]
    if any(n is not UNKNOWN and n > Limits().tensor_items for n in sizes):
        return "at load"
    given = [
        jax.ShapeDtypeStruct([1 if n is UNKNOWN else n for n in v.type.shape], v.type.dtype)
        for v in graph.inputs
    ]
    context = Context(fold=Meter().fold)

    def run(*xs: Any) -> Any:
        values = trace(graph, context, {}, {}, xs)
        return [values[output] for output in graph.outputs]

    try:
        jax.eval_shape(run, *given)
    except (InvalidComputation, nnef_jax.LimitError) as error:
        assert str(error)
        return "traced"
    return "result"


@contextmanager
def bounded(seconds: float = _SECONDS, size: int = _BYTES) -> Generator[None]:
    """Raise TimeoutError and MemoryError where a block takes far more than it should."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"takes more than {seconds} s of the processor")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGPROF, stop)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size, limits[1]))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)


@dataclass(frozen=True)
class Escape:
    """A use that ended in something else than a result or an error with a place."""

    use: Use
    error: BaseException

    def __str__(self) -> str:
        frames = traceback.extract_tb(self.error.__traceback__)
        own = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames if _OWN in f.filename]
        where = own[-1] if own else ""
        message = (str(self.error).splitlines() or [""])[0][:140]
        return f"{self.use.kind}: {type(self.error).__name__}: {message} [{where}]"


def escapes(kinds: Sequence[str], count: int, seed: int) -> Iterator[tuple[Use, str | Escape]]:
    """Yield so many mutants of each kind and what they end in."""
    for kind in kinds:
        chance = random.Random(f"{kind} {seed}")
        for _ in range(count):
            use = mutated(chance.choice(uses()[kind]), chance)
            try:
                with bounded():
                    yield use, outcome(use)
            except GeneratorExit:
                raise
            except BaseException as error:  # a KeyboardInterrupt is for whoever runs this
                if isinstance(error, KeyboardInterrupt):
                    raise
                yield use, Escape(use, error)


def main() -> int:
    """Try mutants; return 1 where any escaped."""
    parser = argparse.ArgumentParser("python -m tests.mutants", description=__doc__)
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    given = parser.parse_args()
    kinds = given.kinds or sorted(uses())
    ends, shown = Counter[str](), dict[str, tuple[int, Escape]]()
    for kind in kinds:
        for seed in range(given.first, given.first + given.seeds):
            for _, end in escapes([kind], given.count, seed):
                ends[end if isinstance(end, str) else "escaped"] += 1
                if isinstance(end, Escape):
                    place = str(end)[str(end).rindex("[") :]
                    key = f"{kind} {type(end.error).__name__} {place}"
                    n, first = shown.get(key, (0, end))
                    shown[key] = n + 1, first
                    if not n:
                        print(end, end.use, sep="\n    ", flush=True)
    print(*(f"{n} x {first}" for n, first in shown.values()), dict(ends), sep="\n")
    return int(bool(shown))


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", False)
    sys.exit(main())
