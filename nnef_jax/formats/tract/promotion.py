"""The common dtype of an operation's operands.

Constants (literals, known values, parameters) take the dtype of the tensors beside them, as in
tract, unless that loses their meaning: a tensor of integers times 0.5 is computed in real numbers,
as in torch. Tensors of different dtypes are promoted as by jax.numpy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from lowering.graph import Value
from nnef_jax.formats.tract.host import Host, is_integer

_KINDS = ("bool", "int", "float", "complex")


@dataclass(frozen=True, slots=True)
class Defaults:
    """The dtypes of literals that stand alone, and whether a value is a parameter of the graph."""

    real: str
    integer: str
    parameters: Collection[Value]


def common_dtype(
    operands: Iterable[Value | Host], item: str, defaults: Defaults, *, exact: bool = False
) -> str:
    """Return the dtype for operands that a declaration gives one item type: `?` or scalar.

    A whole real constant, such as 2.0, stands for an integer beside integers, unless `exact`.
    """
    found = list(operands)
    strong = [x.type.dtype for x in found if isinstance(x, Value) and x not in defaults.parameters]
    weak = [x for x in found if not isinstance(x, Value) or x in defaults.parameters]
    if not strong:
        strong = [x.type.dtype for x in weak if isinstance(x, Value)]
        weak = [x for x in weak if not isinstance(x, Value)]
    dtype = _promoted(strong) if strong else ""
    for constant in weak:
        own = _own_dtype(constant, defaults)
        if not dtype:
            dtype = own
        elif _kind(own) > _kind(dtype) and (exact or not _whole(constant, dtype)):
            dtype = own if isinstance(constant, Value) else _lifted(dtype, own)
    if item == "scalar" and _kind(dtype) < 2:
        return defaults.real
    return dtype


def typed(value: Host, dtype: str) -> Any:
    """Return a known value of one item as a literal of a dtype."""
    item: Any = value.ravel()[0]
    with np.errstate(all="ignore"):  # small real types get infinity for numbers out of range
        return jnp.dtype(dtype).type(item)


def converted(stored: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Cast stored numbers as the network will: only the kind of a dtype matters here."""
    before, after = _kind(stored.dtype.name), _kind(dtype)
    if after == 0:
        return stored != 0
    if after == 1 and before == 2:
        return np.trunc(np.nan_to_num(stored.astype(np.float64)))
    return stored.astype(np.float64) if after == 2 and before < 2 else stored


def own_dtype(value: Host, item: str | None, defaults: Defaults) -> str:
    """Return the dtype of a known value that stands alone where an item type is declared."""
    named = {"integer": defaults.integer, "logical": "bool", "scalar": defaults.real}
    return named.get(item or "") or _own_dtype(value, defaults)


def is_real(dtype: str) -> bool:
    """Return whether a dtype is one of real numbers."""
    return _KINDS[_kind(dtype)] == "float"


def _own_dtype(value: Value | Host, defaults: Defaults) -> str:
    if isinstance(value, Value):
        return value.type.dtype
    if is_integer(value):
        return defaults.integer
    return "bool" if value.dtype == np.bool_ else defaults.real


def _promoted(dtypes: list[str]) -> str:
    if len(set(dtypes)) == 1:
        return dtypes[0]
    result = jnp.dtype(dtypes[0])
    with jax.numpy_dtype_promotion("standard"):  # whatever the user has set
        for dtype in dtypes[1:]:
            result = jnp.promote_types(result, dtype)
    return result.name


@cache
def _kind(dtype: str) -> int:
    kind = jnp.dtype(dtype)
    for rank, family in enumerate((jnp.bool_, jnp.integer, jnp.floating)):
        if jnp.issubdtype(kind, family):
            return rank
    return len(_KINDS) - 1


def _whole(constant: Value | Host, dtype: str) -> bool:
    """Return whether a real constant stands for an integer of the dtype beside it."""
    if isinstance(constant, Value) or _kind(dtype) != 1 or constant.dtype.kind != "f":
        return False
    return bool(np.all(constant == np.trunc(constant)) and np.all(np.isfinite(constant)))


def _lifted(dtype: str, own: str) -> str:
    """Return the dtype of a constant that the tensors beside it are promoted to."""
    return own if _kind(dtype) < 2 else _promoted([dtype, own])
