"""Functions of one number by tables of all numbers of a type: exact, and the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import DTypeLike, NDArray

from nnef_jax.openvx import layer_checks as checks
from nnef_jax.openvx.tensor import POSITIONS, Tensor, checked_position
from nnef_jax.openvx.vx_errors import wrong_dimension, wrong_format
from nnef_jax.similar import listed

Floats = NDArray[np.floating[Any]]


def table(
    function: Callable[[Floats], Floats],
    dtype: DTypeLike,
    position: int | None = None,
    output_position: int | None = None,
) -> NDArray[Any]:
    """Return `function` of all numbers of a type, the least first: truncated, then saturated.

    It is computed in float64 by numpy, so that it does not depend on a platform; 0 where it is
    NaN. Positions are the type's unless given; the output's is the input's.
    """
    if str(np.dtype(dtype)) not in POSITIONS:
        wrong_format(f"tables are of {listed(POSITIONS)}, not of {np.dtype(dtype)}")
    limits = np.iinfo(dtype)
    position = POSITIONS[str(limits.dtype)] if position is None else checked_position(position)
    made = position if output_position is None else checked_position(output_position)
    numbers = np.arange(limits.min, limits.max + 1) * 2.0**-position
    with np.errstate(all="ignore"):
        values = function(numbers)
        if np.shape(values) != numbers.shape:
            wanted = f"one for each of {len(numbers)} numbers"
            wrong_dimension(
                f"the function returns items of the shape {np.shape(values)}, not {wanted}"
            )
        whole = np.nan_to_num(np.trunc(values * 2.0**made), nan=0.0)
    return np.clip(whole, limits.min, limits.max).astype(dtype)


@checks.layer
def table_layer(
    inputs: Tensor, table: Array | NDArray[Any], output_position: int | None = None
) -> Tensor:
    """Replace each number by the item of a table of all numbers of its type, the least first.

    vxTensorTableLookupNode of OpenVX 1.2. The output's position is the inputs' unless given.
    """
    x = checks.tensor("inputs", inputs)
    if not hasattr(table, "dtype") or not hasattr(table, "shape"):
        raise TypeError(f"table must be an array, not {type(table).__name__}: table(...) makes one")
    if table.dtype != x.dtype:
        wrong_format(f"the table is of {table.dtype}, inputs of {x.dtype}: they must be the same")
    limits = jnp.iinfo(x.dtype)
    if table.shape != (limits.max - limits.min + 1,):
        wrong_dimension(f"a table for {x.dtype} has 2**{limits.bits} items, not {table.shape}")
    position = x.fixed_point_position if output_position is None else output_position
    return Tensor(look_up(x.data, jnp.asarray(table)), position)


@jax.jit
def look_up(x: Array, table: Array) -> Array:
    """Return the items of a table of all numbers of a type, the least first, for raw integers."""
    places = x.astype(np.int32) - int(jnp.iinfo(x.dtype).min)
    return table.at[places].get(mode="promise_in_bounds")
