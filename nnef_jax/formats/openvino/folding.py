"""Layers on known tensors that decide shapes, computed while a network is flattened.

Weights stay in the graph: what is folded follows from shapes, or is whole numbers and few.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.errors import InconclusiveDimensionOperation
from numpy.typing import NDArray

from lowering.errors import InvalidOperation
from lowering.extents import is_symbolic
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.element_types import computed, element_type
from nnef_jax.formats.openvino.site import Site

_MOST = 1 << 16  # items of a result
_CONVERSIONS = ("convert", "convertlike")  # of stored numbers they are left to the network
_FEW = 64  # items of whole numbers that are folded even if they are stored
Array = NDArray[Any]


def folded(site: Site) -> list[Constant] | None:
    """Return a layer's results on known tensors, None where the network computes it."""
    operands = [x for x in site.operands if x is not None]
    if not operands or not all(isinstance(x, Constant) for x in operands):
        return None
    known = [x for x in operands if isinstance(x, Constant)]
    kind = site.layer.kind
    if kind not in (_LEGACY if site.net.is_legacy else (*_FOLDS, *_CONVERSIONS)):
        return None
    if kind in _CONVERSIONS and not site.net.is_legacy:
        type = _wanted(site, known)
        if not _is_whole(type) and computed(type, site.real) == computed(known[0].type, site.real):
            return [known[0]]  # weights of 16 bits, which the graph widens where they are read
    decides = any(x.derived for x in known)
    few = all(x.array.size <= _FEW and (_is_whole(x.type) or x.array.size == 1) for x in known)
    if not (decides or few) or max(x.array.size for x in known) > _MOST:
        return None
    if kind in _CONVERSIONS:
        made = _converted(site, known) if decides else None
        return made and [made]
    results = evaluated(site, [x.array for x in known])
    if results is None or sum(x.size for x in results) > _MOST:
        return None
    type = known[1].type if kind == "select" else known[0].type
    return [Constant(x, _type_of(x, type), derived=True) for x in results]


def evaluated(site: Site, operands: list[Array]) -> list[Array] | None:
    """Return a layer's results on arrays, None if these do not go together or none are needed."""
    fold = _FOLDS.get(site.layer.kind)
    try:
        with np.errstate(all="ignore"):
            results = fold(site, *operands) if fold else None
    except (ValueError, IndexError, TypeError, OverflowError, InconclusiveDimensionOperation):
        return None  # its rule says what is wrong
    if results is None:
        return None
    return [_array(x) for x in (results if isinstance(results, list) else [results])]


def _array(x: Any) -> Array:
    return np.array(x, object) if is_symbolic(x) else np.asarray(x)


def _converted(site: Site, known: list[Constant]) -> Constant | None:
    type = _wanted(site, known)
    if known[0].array.dtype == object:  # extents that are symbolic
        return Constant(known[0].array, type, derived=True) if type[0] in "iu" else None
    return Constant(known[0].array.astype(_wide(type)), type, derived=True)


def _wanted(site: Site, known: list[Constant]) -> str:
    like = site.layer.kind == "convertlike"
    return known[1].type if like else element_type(site.text("destination_type"))


def _is_whole(type: str) -> bool:
    return type[0] in "iu" or type == "boolean"


def _wide(type: str) -> Any:
    return np.bool_ if type == "boolean" else np.int64 if type[0] in "iu" else np.float32


def _type_of(array: Array, type: str) -> str:
    if array.dtype == np.bool_:
        return "boolean"
    if array.dtype.kind in "iuO":
        return type if type[0] in "iu" else "i64"
    return type if type[0] not in "iub" else "f32"


def _pair(function: Callable[..., Any]) -> Callable[..., Array]:
    def fold(site: Site, x: Array, y: Array) -> Array:
        _require_few(np.broadcast_shapes(x.shape, y.shape))
        return np.asarray(function(x, y))

    return fold


def _require_few(shape: Sequence[int]) -> None:
    if math.prod(shape) > _MOST:
        raise ValueError


def _select(site: Site, condition: Array, x: Array, y: Array) -> Array:
    _require_few(np.broadcast_shapes(condition.shape, x.shape, y.shape))
    return np.where(condition.astype(bool), x, y)


def _divided(site: Site, x: Array, y: Array) -> Array:
    if x.dtype.kind in "iuO":
        if not np.all(y):
            raise InvalidOperation("division by 0")
        return (
            np.floor_divide(x, y)
            if site.flag("m_pythondiv", True)
            else np.asarray(np.trunc(x / y)).astype(x.dtype)
        )
    return np.asarray(x / y)


def _axes(site: Site, x: Array, axes: Array) -> tuple[int, ...]:
    return tuple(int(a) % max(x.ndim, 1) for a in axes.reshape(-1))


def _reduced(function: Callable[..., Any]) -> Callable[..., Array]:
    def fold(site: Site, x: Array, axes: Array) -> Array:
        found = function(x, axis=_axes(site, x, axes), keepdims=site.flag("keep_dims"))
        return np.asarray(found).astype(x.dtype)

    return fold


def _gather(site: Site, x: Array, indices: Array, axis: Array) -> Array:
    if site.int("batch_dims", 0):
        raise ValueError
    at = int(axis.reshape(-1)[0])
    _require_few((*np.delete(x.shape, at), indices.size))
    return np.take(x, indices.astype(np.int64), axis=at)


def _reshape(site: Site, x: Array, shape: Array) -> Array:
    wanted = [int(n) for n in shape.reshape(-1)]
    if site.flag("special_zero"):
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    return x.reshape(wanted)


def _squeeze(site: Site, x: Array, axes: Array | None = None) -> Array:
    return np.squeeze(x) if axes is None else np.squeeze(x, _axes(site, x, axes))


def _unsqueeze(site: Site, x: Array, axes: Array) -> Array:
    return np.expand_dims(x, tuple(int(a) for a in axes.reshape(-1)))


def _split(site: Site, x: Array, axis: Array) -> list[Array]:
    if site.int("num_splits") != len(site.layer.outputs):
        raise ValueError
    return np.split(x, len(site.layer.outputs), int(axis.reshape(-1)[0]))


def _variadic_split(site: Site, x: Array, axis: Array, lengths: Array) -> list[Array]:
    a, parts = int(axis.reshape(-1)[0]), [int(n) for n in lengths.reshape(-1)]
    if -1 in parts:
        parts[parts.index(-1)] = x.shape[a] - sum(n for n in parts if n != -1)
    return np.split(x, np.cumsum(parts)[:-1], a)


def _slice(
    site: Site, x: Array, begin: Array, end: Array, step: Array, axes: Array | None = None
) -> Array:
    index = [slice(None)] * x.ndim
    where = range(begin.size) if axes is None else axes.reshape(-1).tolist()
    for a, b, e, s in zip(
        where,
        begin.reshape(-1).tolist(),
        end.reshape(-1).tolist(),
        step.reshape(-1).tolist(),
        strict=True,
    ):
        index[int(a)] = slice(b, e, s)
    return x[tuple(index)]


def _strided_slice(
    site: Site, x: Array, begin: Array, end: Array, step: Array | None = None
) -> Array:
    count = begin.size
    step = np.ones(count, np.int64) if step is None else step

    def mask(name: str) -> list[bool]:
        return [bool(v) for v in (site.ints(name, []) + [0] * count)[:count]]

    free, open_end = mask("begin_mask"), mask("end_mask")
    adds, takes, rest = mask("new_axis_mask"), mask("shrink_axis_mask"), mask("ellipsis_mask")
    index: list[Any] = []
    for i in range(count):
        if rest[i]:
            index.append(Ellipsis)
        elif adds[i]:
            index.append(None)
        elif takes[i]:
            index.append(int(begin.reshape(-1)[i]))
        else:
            b = None if free[i] else int(begin.reshape(-1)[i])
            index.append(
                slice(b, None if open_end[i] else int(end.reshape(-1)[i]), int(step.reshape(-1)[i]))
            )
    return x[tuple(index)]


def _tile(site: Site, x: Array, repeats: Array) -> Array:
    _require_few((x.size, *(int(n) for n in repeats.reshape(-1))))
    return np.tile(x, [int(n) for n in repeats.reshape(-1)])


def _broadcast(site: Site, x: Array, shape: Array, *_: Array) -> Array:
    wanted = tuple(int(n) for n in shape.reshape(-1))
    if site.text("mode", "numpy") not in ("numpy", "bidirectional"):
        raise ValueError
    extents = np.broadcast_shapes(x.shape, wanted)
    _require_few(extents)
    return np.broadcast_to(x, extents)


def _concat(site: Site, *parts: Array) -> Array:
    return np.concatenate(parts, site.int("axis"))


def _scatter(site: Site, x: Array, indices: Array, updates: Array, axis: Array) -> Array:
    if int(axis.reshape(-1)[0]) != 0:
        raise ValueError
    result = x.copy()
    result[indices.astype(np.int64)] = updates
    return result


def _round(site: Site, x: Array) -> Array:
    if site.text("mode", "half_to_even") == "half_to_even":
        return np.rint(x)
    return np.trunc(x + np.copysign(0.5, x))


def _transpose(site: Site, x: Array, axes: Array) -> Array:
    return np.transpose(x, axes.reshape(-1).tolist() or None)


_FOLDS: dict[str, Callable[..., Any]] = {
    "add": _pair(np.add), "subtract": _pair(np.subtract), "multiply": _pair(np.multiply),
    "divide": _divided, "maximum": _pair(np.maximum), "minimum": _pair(np.minimum),
    "floormod": _pair(np.mod), "mod": _pair(np.fmod), "power": _pair(np.power),
    "equal": _pair(np.equal), "notequal": _pair(np.not_equal), "less": _pair(np.less),
    "lessequal": _pair(np.less_equal), "greater": _pair(np.greater),
    "greaterequal": _pair(np.greater_equal), "logicaland": _pair(np.logical_and),
    "logicalor": _pair(np.logical_or), "logicalxor": _pair(np.logical_xor),
    "logicalnot": lambda site, x: np.logical_not(x),
    "select": _select,
    "floor": lambda site, x: np.floor(x), "ceiling": lambda site, x: np.ceil(x),
    "sqrt": lambda site, x: np.sqrt(x), "abs": lambda site, x: np.abs(x),
    "negative": lambda site, x: operator.neg(x),
    "round": _round,
    "gather": _gather, "concat": _concat, "reshape": _reshape, "squeeze": _squeeze,
    "unsqueeze": _unsqueeze, "split": _split, "variadicsplit": _variadic_split, "slice": _slice,
    "stridedslice": _strided_slice, "tile": _tile, "broadcast": _broadcast,
    "scatterupdate": _scatter, "transpose": _transpose,
    "reduceprod": _reduced(np.prod), "reducesum": _reduced(np.sum), "reducemax": _reduced(np.max),
    "reducemin": _reduced(np.min), "reducemean": _reduced(np.mean),
}  # fmt: skip
# Old files have arithmetic on shapes in these alone.
_LEGACY = frozenset({"gather", "concat", "squeeze", "unsqueeze"})
