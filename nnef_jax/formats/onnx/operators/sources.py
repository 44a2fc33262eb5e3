"""Constants, shapes as tensors, and element types."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from nnef_jax.formats.onnx.constants import Constant
from nnef_jax.formats.onnx.operators import operator
from nnef_jax.formats.onnx.site import Site, Tensor


@operator("Constant")
def _constant(site: Site) -> Constant:
    given = site.node.attributes
    if len(given) != 1:
        raise InvalidOperation(f"it must have one value, it has {len(given)}")
    ((name, value),) = given.items()
    if name in ("value", "sparse_value"):
        is_weight = value.array.size > 1 and value.array.dtype.kind in "fV"
        return Constant(value.array, value.dtype, site.name) if is_weight else value
    dtypes = {
        "value_float": "float32", "value_floats": "float32", "value_int": "int64",
        "value_ints": "int64",
    }  # fmt: skip
    if name not in dtypes:
        raise InvalidOperation("it has strings, of which there are no arrays in JAX")
    return Constant(np.array(value, dtypes[name]), dtypes[name])


@operator("ConstantOfShape")
def _constant_of_shape(site: Site) -> Tensor:
    value = site.node.attributes.get("value") or site.constant([0], "float32")
    item = site.reshaped(Constant(value.array, value.dtype, derived=True), ())
    shape = site.integers(0)
    if any(n < 0 for n in shape):
        raise InvalidOperation(f"its shape {shape} has a negative extent")
    return site.emit("broadcast", {"input": item}, shape=shape) if shape else item


@operator("Shape")
def _shape(site: Site) -> Constant:
    """Return the extents of some axes."""
    shape = site.known_shape()
    start, end = site.int("start", 0), site.int("end", len(shape))
    return site.numbers_of(shape[slice(start, end)])


@operator("Size")
def _size(site: Site) -> Constant:
    return site.reshaped(site.numbers_of([site.volume(site.known_shape())]), ())


@operator("Cast")
def _cast(site: Site) -> Any:
    return _as(site, site.operand(0), site.dtype("to"))


@operator("CastLike")
def _cast_like(site: Site) -> Any:
    like = site.operand(1)
    return _as(site, site.operand(0), site.dtype_of(like) if site.has(1) else "")


def _as(site: Site, x: Any, dtype: str) -> Any:
    if isinstance(x, Constant):
        return site.emit("cast", {"input": x}, dtype=dtype if x.derived else site.computed(dtype))
    return site.emit("cast", {"input": x}, dtype=site.computed(dtype))
