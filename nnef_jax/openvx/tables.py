"""Computes functions of one number by tables, which hold the result for each number of a type.

numpy computes a table once, in float64, so that the results are the same on all platforms.
"""

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
from nnef_jax.wording.similar import listed

Floats = NDArray[np.floating[Any]]


def table(
    function: Callable[[Floats], Floats],
    dtype: DTypeLike,
    position: int | None = None,
    output_position: int | None = None,
) -> NDArray[Any]:
    """Return a function's results for all numbers of a type, starting with the least number.

    numpy computes the results in float64, with equal results on all platforms. The results are then
    truncated and saturated. A NaN becomes 0. The numbers have the fixed-point position `position`,
    by default that of the type. The results have the position `output_position`, by default
    `position`. Raises VxError for a type or position that OpenVX lacks, and if the function does
    not return an item for each number.
    """
    if str(np.dtype(dtype)) not in POSITIONS:
        wrong_format(f"a table must have the type {listed(POSITIONS)}, not {np.dtype(dtype)}")
    limits = np.iinfo(dtype)
    position = POSITIONS[str(limits.dtype)] if position is None else checked_position(position)
    result_position = position if output_position is None else checked_position(output_position)
    numbers = np.arange(limits.min, limits.max + 1) * 2.0**-position
    with np.errstate(all="ignore"):
        values = function(numbers)
        if np.shape(values) != numbers.shape:
            wrong_dimension(
                f"the function must return an item for each of {len(numbers)} numbers, it returns "
                f"the shape {np.shape(values)}"
            )
        integers = np.nan_to_num(np.trunc(values * 2.0**result_position), nan=0.0)
    return np.clip(integers, limits.min, limits.max).astype(dtype)


@checks.layer
def table_layer(
    inputs: Tensor, table: Array | NDArray[Any], output_position: int | None = None
) -> Tensor:
    """Replace each number by its item in a table (vxTensorTableLookupNode of OpenVX 1.2).

    The table has an item for each number of the inputs' type, starting with the least number, like
    the result of the function `table`. By default the output has the position of the inputs. Raises
    TypeError if an argument has a wrong type, and VxError if the table does not fit the type of the
    inputs.
    """
    x = checks.tensor("inputs", inputs)
    if not hasattr(table, "dtype") or not hasattr(table, "shape"):
        kind = type(table).__name__
        raise TypeError(f"table must be an array, not {kind}: table(...) returns one")
    if table.dtype != x.dtype:
        wrong_format(f"table has {table.dtype}, inputs {x.dtype}: they must have the same type")
    limits = jnp.iinfo(x.dtype)
    if table.shape != (limits.max - limits.min + 1,):
        wrong_dimension(
            f"a table for {x.dtype} must have 2**{limits.bits} items, not {table.shape}"
        )
    position = x.fixed_point_position if output_position is None else output_position
    return Tensor(look_up(x.data, jnp.asarray(table)), position)


@jax.jit
def look_up(x: Array, table: Array) -> Array:
    """Return the item of a table for each raw integer in `x`.

    The first item of the table is for the least integer of the dtype: -128 has the index 0 in int8.
    """
    indices = x.astype(np.int32) - int(jnp.iinfo(x.dtype).min)
    return table.at[indices].get(mode="promise_in_bounds")
