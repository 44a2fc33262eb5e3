"""Layers on known tensors that decide shapes, computed while a network is flattened.

Weights stay in the graph: what is folded follows from shapes, or is whole numbers and few.
`hostvalues` computes what layers mean, by kind.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering.extents import is_symbolic
from nnef_jax.flattening.hostvalues import (
    LARGEST,
    NotFolded,
    attempt,
    binary,
    evaluate,
    integers,
    truncated,
)
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.openvino.element_types import computed, element_type
from nnef_jax.formats.openvino.layer_site import LayerSite

_CONVERSIONS = ("convert", "convertlike")  # of stored numbers they are left to the network
_FEW = 64  # items of whole numbers that are folded even if they are stored
Array = NDArray[Any]


def folded(site: LayerSite) -> list[Constant] | None:
    """Return a layer's results on known tensors, None where the network computes it."""
    known = [x for x in site.operands if isinstance(x, Constant)]
    if not known or any(x is not None and not isinstance(x, Constant) for x in site.operands):
        return None
    kind = site.layer.kind
    if kind not in (_LEGACY if site.net.is_legacy else (*_FOLDS, *_CONVERSIONS)):
        return None
    if kind in _CONVERSIONS and not site.net.is_legacy:
        type = _wanted(site, known)
        if not _is_whole(type) and computed(type, site.real) == computed(known[0].type, site.real):
            return [known[0]]  # weights of 16 bits, which the graph widens where they are read
    decides = any(x.derived for x in known)
    few = all(x.array.size <= _FEW and (_is_whole(x.type) or x.array.size == 1) for x in known)
    if not (decides or few) or max(x.array.size for x in known) > LARGEST:
        return None
    if kind in _CONVERSIONS:
        made = _converted(site, known) if decides else None
        return made and [made]
    exact = [x.array.astype(object) if x.array.dtype.kind in "iu" else x.array for x in known]
    results = evaluated(site, exact)
    if results is None or sum(x.size for x in results) > LARGEST:
        return None
    type = known[1].type if kind == "select" else known[0].type
    return [Constant(_stored(x), _type_of(x, type), derived=True) for x in results]


def evaluated(site: LayerSite, operands: list[Array]) -> list[Array] | None:
    """Return a layer's results on arrays, None if these do not go together or none are needed."""
    fold = _FOLDS.get(site.layer.kind)
    try:
        results = attempt(fold, site, *operands) if fold else None
    except NotFolded:
        return None
    return [results] if isinstance(results, np.ndarray) else results


def _stored(x: Array) -> Array:
    """Return integers as numpy has them, unless some are symbolic."""
    return x if x.dtype != object or any(map(is_symbolic, x.ravel())) else x.astype(np.int64)


def _converted(site: LayerSite, known: list[Constant]) -> Constant | None:
    type = _wanted(site, known)
    if known[0].array.dtype == object:  # extents that are symbolic
        return Constant(known[0].array, type, derived=True) if type[0] in "iu" else None
    return Constant(known[0].array.astype(_wide(type)), type, derived=True)


def _wanted(site: LayerSite, known: list[Constant]) -> str:
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


# Layers, each a function of its site and its operands


def _same(kind: str, **attributes: Any) -> Callable[..., Any]:
    return lambda site, *operands: evaluate(kind, operands, attributes)


def _ranked(*operands: Array) -> list[Array]:
    """Return operands of one rank, axes put before their own."""
    rank = max(x.ndim for x in operands)
    return [x.reshape((1,) * (rank - x.ndim) + x.shape) for x in operands]


def _broadcasting(kind: str) -> Callable[..., Array]:
    return lambda site, *operands: evaluate(kind, _ranked(*operands), {})


def _divided(site: LayerSite, x: Array, y: Array) -> Array:
    down = site.flag("m_pythondiv", True)
    return binary(operator.floordiv if down else truncated, np.divide)(*_ranked(x, y))


def _modulo(quotient: Callable[..., int], real: Callable[..., Any]) -> Callable[..., Array]:
    whole = binary(lambda a, b: a - b * quotient(a, b), real)
    return lambda site, x, y: whole(*_ranked(x, y))


def _reduced(kind: str) -> Callable[..., Array]:
    def fold(site: LayerSite, x: Array, axes: Array) -> Array:
        places = [a % max(x.ndim, 1) for a in integers(axes)]
        found = evaluate(kind, [x], {"axes": places})
        return found if site.flag("keep_dims") else np.squeeze(found, tuple(places))

    return fold


def _gather(site: LayerSite, x: Array, indices: Array, axis: Array) -> Array:
    if site.int("batch_dims", 0):
        raise NotFolded
    return evaluate("gather", [x, indices], {"axis": integers(axis)[0]})


def _reshape(site: LayerSite, x: Array, shape: Array) -> Array:
    wanted = integers(shape)
    if site.flag("special_zero"):
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    return x.reshape(wanted)


def _squeeze(site: LayerSite, x: Array, axes: Array | None = None) -> Array:
    return np.squeeze(x) if axes is None else np.squeeze(x, tuple(integers(axes)))


def _split(site: LayerSite, x: Array, axis: Array, lengths: Array | None = None) -> list[Array]:
    place, count = integers(axis)[0], len(site.layer.outputs)
    if lengths is None:
        if site.int("num_splits") != count:
            raise NotFolded
        return np.split(x, count, place)
    parts = integers(lengths)
    if -1 in parts:
        parts[parts.index(-1)] = x.shape[place] - sum(n for n in parts if n != -1)
    return np.split(x, np.cumsum(parts)[:-1], place)


def _slice(
    site: LayerSite, x: Array, begin: Array, end: Array, step: Array, axes: Array | None = None
) -> Array:
    index = [slice(None)] * x.ndim
    where = range(begin.size) if axes is None else integers(axes)
    bounds = map(slice, integers(begin), integers(end), integers(step))
    for axis, part in zip(where, bounds, strict=True):
        index[axis] = part
    return x[tuple(index)]


def _strided_slice(
    site: LayerSite, x: Array, begin: Array, end: Array, step: Array | None = None
) -> Array:
    count = begin.size
    steps = [1] * count if step is None else integers(step)

    def mask(name: str) -> list[bool]:
        return [bool(v) for v in (site.ints(name, []) + [0] * count)[:count]]

    free, open_end = mask("begin_mask"), mask("end_mask")
    adds, takes, rest = mask("new_axis_mask"), mask("shrink_axis_mask"), mask("ellipsis_mask")
    index: list[Any] = []
    for i, (first, last) in enumerate(zip(integers(begin), integers(end), strict=True)):
        if rest[i]:
            index.append(Ellipsis)
        elif adds[i]:
            index.append(None)
        elif takes[i]:
            index.append(first)
        else:
            part = slice(None if free[i] else first, None if open_end[i] else last, steps[i])
            index.append(part)
    return np.asarray(x[tuple(index)])


def _broadcast(site: LayerSite, x: Array, shape: Array, *_: Array) -> Array:
    if site.text("mode", "numpy") not in ("numpy", "bidirectional"):
        raise NotFolded
    return evaluate("broadcast", [x], {"shape": integers(shape)})


def _scatter(site: LayerSite, x: Array, indices: Array, updates: Array, axis: Array) -> Array:
    if integers(axis)[0] != 0:
        raise NotFolded
    result = x.copy()
    result[indices.astype(np.int64)] = updates
    return result


def _round(site: LayerSite, x: Array) -> Array:
    even = site.text("mode", "half_to_even") == "half_to_even"
    return evaluate("round", [x], {"ties": "even" if even else "away"})


_BROADCASTING = {
    "add": "add", "subtract": "sub", "multiply": "mul", "maximum": "max", "minimum": "min",
    "power": "pow", "equal": "eq", "notequal": "ne", "less": "lt", "lessequal": "le",
    "greater": "gt", "greaterequal": "ge", "logicaland": "and", "logicalor": "or",
    "logicalxor": "ne", "select": "select",
}  # fmt: skip
_FOLDS: dict[str, Callable[..., Any]] = {
    **{type: _broadcasting(kind) for type, kind in _BROADCASTING.items()},
    "divide": _divided, "floormod": _modulo(operator.floordiv, np.mod),
    "mod": _modulo(truncated, np.fmod),
    "logicalnot": _same("not"), "floor": _same("floor"), "ceiling": _same("ceil"),
    "sqrt": _same("sqrt"), "abs": _same("abs"), "negative": _same("neg"), "round": _round,
    "gather": _gather, "reshape": _reshape, "squeeze": _squeeze,
    "concat": lambda site, *parts: evaluate("concat", [parts], {"axis": site.int("axis")}),
    "unsqueeze": lambda site, x, axes: evaluate("unsqueeze", [x], {"axes": integers(axes)}),
    "transpose": lambda site, x, axes: np.transpose(x, integers(axes) or None),
    "tile": lambda site, x, repeats: evaluate("tile", [x], {"repeats": integers(repeats)}),
    "split": _split, "variadicsplit": _split, "slice": _slice, "stridedslice": _strided_slice,
    "broadcast": _broadcast, "scatterupdate": _scatter,
    "reduceprod": _reduced("product_reduce"), "reducesum": _reduced("sum_reduce"),
    "reducemax": _reduced("max_reduce"), "reducemin": _reduced("min_reduce"),
    "reducemean": _reduced("mean_reduce"),
}  # fmt: skip
# Old files have arithmetic on shapes in these alone.
_LEGACY = frozenset({"gather", "concat", "squeeze", "unsqueeze"})
