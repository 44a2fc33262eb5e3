"""Rows of the tables, and the values and results that follow from them."""

from __future__ import annotations

import functools
import inspect
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests import reference
from tests.reference import tract

# The functions that compute what the operations of a dialect mean.
REFERENCES = {"nnef": reference.OPERATIONS, "tract": tract.OPERATIONS}

_MARGIN = 0.05


@dataclass(frozen=True)
class Real:
    """Random reals in [low, high), none within 0.05 of a value to `avoid`.

    `distinct` takes them from an even grid instead, shuffled: no two are close, none is close to 0.
    """

    shape: tuple[int, ...]
    low: float = -1.0
    high: float = 1.0
    avoid: tuple[float, ...] = ()
    distinct: bool = False


@dataclass(frozen=True)
class Integers:
    """Random integers in [low, high)."""

    shape: tuple[int, ...]
    low: int
    high: int


@dataclass(frozen=True)
class Logical:
    """Random truth values."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Given:
    """Values written out as nested tuples: floats, ints or bools."""

    values: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the nested tuples."""
        return np.shape(self.values)


Tensor = Real | Integers | Logical | Given
Operand = Tensor | float | int | bool | list[Tensor | float]


@dataclass(frozen=True, eq=False)
class OpCase:
    """One use of one operation.

    `operands` are in the order of the declaration; a number is a literal, a list is an array of
    tensors. `generic` is what stands in `cast<...>`. `not_differentiable` says why numerical
    gradients do not apply. `tolerance`, relative and absolute, is what float32 needs. `means` is
    the row by kind, where this one spells it as its dialect does.
    """

    name: str
    operation: str
    operands: dict[str, Operand]
    attributes: dict[str, Any] = field(default_factory=dict[str, Any])
    generic: str = ""
    not_differentiable: str = ""
    tolerance: float = 1e-5
    dialect: str = "nnef"
    means: OpCase | None = None


def row(
    name: str,
    operation: str,
    *operands: Operand,
    generic: str = "",
    not_differentiable: str = "",
    tolerance: float = 1e-5,
    dialect: str = "nnef",
    **attributes: Any,
) -> OpCase:
    """Return a case whose operands are the first parameters of the operation."""
    parameters = inspect.signature(REFERENCES[dialect][operation]).parameters
    names = [name.rstrip("_") for name in parameters]
    by_name = dict(zip(names[: len(operands)], operands, strict=True))
    return OpCase(
        name, operation, by_name, attributes, generic, not_differentiable, tolerance, dialect
    )


def tensors(case: OpCase) -> dict[str, Tensor]:
    """Return the tensors that are inputs of a case, by their names in its document."""
    found: dict[str, Tensor] = {}
    for name, operand in case.operands.items():
        if isinstance(operand, list):
            found |= {f"{name}{k}": x for k, x in enumerate(operand) if isinstance(x, Tensor)}
        elif isinstance(operand, Tensor):
            found[name] = operand
    return found


def inputs(case: OpCase, draw: int = 0) -> list[np.ndarray]:
    """Return the values of `tensors`, the same for each `draw`: float32, int32 or bool."""
    seeds = (f"{case.name}/{name}{draw or ''}".encode() for name in tensors(case))
    return [
        _values(tensor, np.random.default_rng(zlib.crc32(seed)))
        for tensor, seed in zip(tensors(case).values(), seeds, strict=True)
    ]


def _values(tensor: Tensor, random: np.random.Generator) -> np.ndarray:
    match tensor:
        case Given(values):
            array = np.array(values)
            return array if array.dtype == bool else array.astype(f"{array.dtype.kind}4")
        case Logical(shape):
            return random.random(shape) < 0.5
        case Integers(shape, low, high):
            return random.integers(low, high, shape).astype(np.int32)
        case Real(distinct=True):
            return random.permutation(_grid(tensor)).reshape(tensor.shape).astype(np.float32)
        case Real():
            array = random.uniform(tensor.low, tensor.high, tensor.shape)
            for point in tensor.avoid:
                side = np.where(array < point, point - _MARGIN, point + _MARGIN)
                array = np.where(np.abs(array - point) < _MARGIN, side, array)
            return array.astype(np.float32)


def _grid(tensor: Real) -> np.ndarray:
    """Return even steps from low to high; if 0 is inside, it is half-way between two of them."""
    count = int(np.prod(tensor.shape))
    below = round(count * min(max(-tensor.low / (tensor.high - tensor.low), 0.0), 1.0))
    low, high = min(tensor.high, 0.0), max(tensor.low, 0.0)
    down = low + (tensor.low - low) * (np.arange(below) + 0.5) / max(below, 1)
    up = high + (tensor.high - high) * (np.arange(count - below) + 0.5) / max(count - below, 1)
    return np.concatenate([down, up])


def bind(case: OpCase, arrays: Sequence[Any]) -> dict[str, Any]:
    """Return the operands by name, with arrays instead of the tensors."""
    rest = iter(arrays)

    def fill(operand: Any) -> Any:
        return next(rest) if isinstance(operand, Tensor) else operand

    return {
        name: [fill(x) for x in operand] if isinstance(operand, list) else fill(operand)
        for name, operand in case.operands.items()
    }


def evaluate(case: OpCase, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the reference's results for values of the case's tensors, in 64 bits."""
    parts = _evaluated(case, arrays)
    return [np.asarray(x) for x in (parts if isinstance(parts, (list, tuple)) else [parts])]


def expected(case: OpCase) -> list[np.ndarray]:
    """Return the results of the case on its `inputs`, in 64 bits (float64, int64 or bool)."""
    return list(_expected(case))


def gives_array(case: OpCase) -> bool:
    """Tell whether the operation's result is an array of tensors."""
    return isinstance(_evaluated(case, inputs(case)), list)


@functools.cache
def _expected(case: OpCase) -> tuple[np.ndarray, ...]:
    return tuple(evaluate(case, inputs(case)))


def wide(x: np.ndarray) -> np.ndarray:
    """Return the array in 64 bits, as the reference takes it."""
    return x if x.dtype == bool else x.astype(f"{x.dtype.kind}8")


def _evaluated(case: OpCase, arrays: Sequence[np.ndarray]) -> Any:
    case = case.means or case
    arguments = bind(case, [wide(np.asarray(x)) for x in arrays]) | case.attributes
    if "lambda" in arguments:
        arguments["lambda_"] = arguments.pop("lambda")
    if case.generic:
        arguments["dtype"] = case.generic
    return REFERENCES[case.dialect][case.operation](**arguments)
