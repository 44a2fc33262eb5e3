"""The dtypes of operands: those of tract's datum types, and the common dtype of several operands.

If jax's x64 mode is off, 64-bit integers become int32, and 64-bit real numbers become float32.
`real` is the dtype that replaces float32. An integer beyond the range of its dtype is an error. It
never wraps.

A constant is a literal, a parameter, or a value that is computed while the document is flattened.
As in tract, it takes the dtype of the tensors that are operands of the same operation, unless this
would change its value. For example, a tensor of integers times 0.5 is computed in real numbers, as
torch computes it. Tensors of different dtypes are promoted as jax.numpy promotes them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.flattening.emission import ByName, computation_dtype
from nnef_jax.flattening.hostvalues import Host

# Maps the names of tract's datum types to dtypes.
DATUM_TYPES = {
    "bool": "bool",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "tdim": "int64",
    "f16": "float16", "f32": "float32", "f64": "float64",
    "complexf32": "complex64", "complexf64": "complex128", "complexf16": "complex64",
}  # fmt: skip
# The names of parameters that take the name of a datum type as their argument.
DATUM_PARAMETERS = frozenset(
    {
        "to", "datum_type", "acc", "acc_datum_type", "output", "output_type", "output_dt",
        "out_dt", "scale_dt",
    }
)  # fmt: skip
# Matches the beginning of the name of a quantised datum type, such as "QU8(Z:0 S:0.1)".
_QUANTISED = re.compile(r"q(u8|i8|i32)\s*\(")
# The kinds of dtypes, in the order of conversion: an integer may become a real number, but not the
# reverse.
_BOOL, _INTEGER, _REAL, _COMPLEX = range(4)


def dtype_of(name: str, real: str) -> str:
    """Return the dtype in which tensors of tract's datum type `name` are computed.

    The name may be in upper or lower case. `real` is the dtype for "f32". Raises InvalidOperation
    if there is no dtype for the datum type.
    """
    key = name.lower()
    if _QUANTISED.match(key):
        return real
    if key not in DATUM_TYPES:
        names = ", ".join(DATUM_TYPES)
        is_of_tract = key in ("string", "blob") or "complexi" in key
        reason = "cannot be computed with" if is_of_tract else "is not one of tract's"
        raise InvalidOperation(f"datum type '{name}' {reason}", hint=f"there are {names}")
    return computation_dtype(DATUM_TYPES[key], real)


@dataclass(frozen=True, slots=True)
class Defaults:
    """The default dtypes of literals, and the parameters of the graph.

    A literal has its default dtype if no operand of the operation is a tensor.
    """

    real: str
    integer: str
    parameters: Collection[Value]


def common_dtypes(
    kind: str, item_types: Mapping[str, str | None], operands: ByName, defaults: Defaults
) -> dict[str, str]:
    """Return a dtype for each item type: the common dtype of all operands with this item type.

    `item_types` maps the name of each operand to the declared item type, such as "scalar". `kind`
    is the name of the operation.
    """
    dtypes = {"logical": "bool"}
    for item_type in ("?", "scalar"):
        group: list[Any] = []
        for name, operand in operands.items():
            is_left_out = operand is False
            if item_types[name] == item_type and not is_left_out:
                group += operand if isinstance(operand, list) else [operand]
        if group:
            # A literal 2.0 may stand for the integer 2, except as a divisor.
            dtypes[item_type] = _common_dtype(group, item_type, defaults, exact=kind == "div")
    if kind == "sub" and dtypes["?"] == "bool":
        # The difference of two logical values is an integer.
        dtypes["?"] = defaults.integer
    return dtypes


def _common_dtype(
    operands: Sequence[Value | Host], item_type: str, defaults: Defaults, *, exact: bool
) -> str:
    """Return the dtype in which operands of the same item type are computed together.

    Computed tensors decide the dtype. Without computed tensors, the parameters of the graph decide
    it. Without parameters, the constants decide it. If the deciding dtype is an integer dtype, a
    real constant without fractions, such as 2.0, is read as an integer, unless `exact` is true.
    """
    parameters = defaults.parameters
    # `deciding` are the dtypes of the computed tensors. `constants` are all other operands.
    deciding = [x.type.dtype for x in operands if isinstance(x, Value) and x not in parameters]
    constants = [x for x in operands if not isinstance(x, Value) or x in parameters]
    if not deciding:
        deciding = [x.type.dtype for x in constants if isinstance(x, Value)]
        constants = [x for x in constants if not isinstance(x, Value)]
    dtype = _promoted(deciding) if deciding else ""
    for constant in constants:
        constant_dtype = default_dtype(constant, defaults)
        if not dtype:
            dtype = constant_dtype
            continue
        counts_as_integer = not exact and _is_integral(constant, dtype)
        has_later_kind = _kind(constant_dtype) > _kind(dtype)
        if has_later_kind and not counts_as_integer:
            # The constant cannot take the dtype without a change of its value.
            replaces_dtype = isinstance(constant, Value) or _kind(dtype) < _REAL
            dtype = constant_dtype if replaces_dtype else _promoted([dtype, constant_dtype])
    if item_type == "scalar" and _kind(dtype) < _REAL:
        return defaults.real
    return dtype


def converted(stored: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Convert stored numbers to the kind of a dtype: bool, integer, real or complex.

    The result need not have the dtype. The items are those of a cast to the dtype, but are not
    rounded to the dtype's precision or range.
    """
    before = _kind(stored.dtype.name)
    after = _kind(dtype)
    if after == _BOOL:
        return stored != 0
    if after == _INTEGER and before == _REAL:
        return np.trunc(np.nan_to_num(stored.astype(np.float64)))
    becomes_real = after == _REAL and before < _REAL
    return stored.astype(np.float64) if becomes_real else stored


def default_dtype(value: Value | Host, defaults: Defaults, item: str | None = None) -> str:
    """Return the dtype of a tensor, or the default dtype of a literal.

    `item` is the item type that is declared for the operand.
    """
    if isinstance(value, Value):
        return value.type.dtype
    if item not in ("integer", "logical", "scalar"):
        item = {"O": "integer", "b": "logical"}.get(value.dtype.kind, "scalar")
    if item == "integer":
        return defaults.integer
    return "bool" if item == "logical" else defaults.real


def _promoted(dtypes: list[str]) -> str:
    """Return the common dtype of several dtypes, as jax.numpy promotes them."""
    if len(set(dtypes)) == 1:
        return dtypes[0]
    result = jnp.dtype(dtypes[0])
    with jax.numpy_dtype_promotion("standard"):  # whatever the user's setting is
        for dtype in dtypes[1:]:
            result = jnp.promote_types(result, dtype)
    return result.name


@cache
def _kind(dtype: str) -> int:
    """Return the kind of a dtype: `_BOOL`, `_INTEGER`, `_REAL` or `_COMPLEX`."""
    families = {_BOOL: jnp.bool_, _INTEGER: jnp.integer, _REAL: jnp.floating}
    for kind, family in families.items():
        if jnp.issubdtype(jnp.dtype(dtype), family):
            return kind
    return _COMPLEX


def _is_integral(constant: Value | Host, dtype: str) -> bool:
    """Tell whether a constant of real numbers can be read as integers of the dtype `dtype`.

    `dtype` must be a dtype of integers, and the numbers must be finite and without fractions.
    """
    if isinstance(constant, Value) or _kind(dtype) != _INTEGER:
        return False
    if constant.dtype.kind != "f":
        return False
    are_whole = np.all(constant == np.trunc(constant))  # infinity is its own integral part
    return bool(are_whole and np.all(np.isfinite(constant)))
