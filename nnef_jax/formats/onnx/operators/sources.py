"""Constants, shapes as tensors, and element types."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import Value, is_float
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators import operator
from nnef_jax.formats.onnx.tensor_types import dtype_of

_NAN = 255  # the code of float8e8m0 that is none
_WRAPPED = ("int2", "uint2", "int4", "uint4", "int8", "uint8", "int16", "uint16")


@operator("Constant")
def _constant(site: NodeSite) -> Constant:
    given = site.node.attributes
    if len(given) != 1:
        raise InvalidOperation(f"it must have one value, it has {len(given)}")
    ((name, value),) = given.items()
    if name in ("value", "sparse_value"):
        value = site.attribute(name, Constant, None)
        is_weight = value.array.size > 1 and value.array.dtype.kind in "fV"
        return Constant(value.array, value.type, site.name) if is_weight else value
    dtypes = {
        "value_float": "float32", "value_floats": "float32", "value_int": "int64",
        "value_ints": "int64",
    }  # fmt: skip
    if name not in dtypes:
        raise InvalidOperation("it has strings, of which there are no arrays in JAX")
    return Constant(np.array(value, dtypes[name]), dtypes[name])


@operator("ConstantOfShape")
def _constant_of_shape(site: NodeSite) -> Tensor:
    value = site.attribute("value", Constant, site.constant([0], "float32"))
    item = site.reshaped(Constant(value.array, value.type, derived=True), ())
    shape = site.integers(0)
    if any(n < 0 for n in shape):
        raise InvalidOperation(f"its shape {shape} has a negative extent")
    return site.emit("broadcast", {"input": item}, shape=shape) if shape else item


@operator("Shape")
def _shape(site: NodeSite) -> Any:
    """Return the extents of some axes: the network computes how many items values say."""
    shape: list[Any] = list(site.known_shape())
    x = site.operand(0)
    if x in site.graph.counts:
        shape = site.graph.items_of(x)
    start, end = site.int("start", 0), site.int("end", len(shape))
    shape = shape[slice(start, end)]
    if not any(isinstance(n, Value) for n in shape):
        return site.numbers_of(shape)
    parts = [n if isinstance(n, Value) else site.numbers_of([n]) for n in shape]
    return site.emit("concat", {"values": parts}, axis=0)


@operator("Size")
def _size(site: NodeSite) -> Any:
    shape, x = site.known_shape(), site.operand(0)
    if x not in site.graph.counts:
        return site.reshaped(site.numbers_of([site.volume(shape)]), ())
    count = site.graph.counts[x]
    others = site.volume([n for i, n in enumerate(shape) if i != count.axis])
    return site.reshaped(site.insert("mul", {"x": count.items, "y": others}), ())


@operator("Cast")
def _cast(site: NodeSite) -> Any:
    if site.version >= 6:
        return _as(site, site.dtype("to"))
    from onnx import TensorProto  # which had names instead of numbers then

    names = TensorProto.DataType
    return _as(site, dtype_of(names.Value(site.choice("to", *names.keys()))))


@operator("CastLike")
def _cast_like(site: NodeSite) -> Any:
    return _as(site, site.dtype_of(1))


def _as(site: NodeSite, dtype: str) -> Any:
    """Return the input in a dtype: numbers beyond one of 8 bits are its ends, with `saturate`."""
    x, source = site.operand(0), site.dtype_of(0)
    kept = dtype if isinstance(x, Constant) and x.derived else site.computed(dtype)
    if dtype == "float8_e8m0fnu":
        return _power_of_two(site, x)
    if dtype.startswith("float8") and source != dtype and site.flag("saturate", True):
        if not is_float(source) or source.startswith("float8"):
            x = site.cast(x, site.graph.builder.real)
        most = float(jnp.finfo(dtype).max)
        ends = {"a": site.item(-most, x), "b": site.item(most, x)}
        x = site.insert("clamp", {"x": x, **ends})
    if is_float(source) and dtype in _WRAPPED:
        x = site.cast(x, "int32")
    return site.emit("cast", {"input": x}, dtype=kept)


def _power_of_two(site: NodeSite, x: Any) -> Any:
    """Return positive numbers as powers of two, which have the exponents of float32."""
    least = {"up": 1, "down": 1 << 23, "nearest": 1 << 22}  # fractions that round up
    mode = site.choice("round_mode", *least, default="up")

    def add(kind: str, x: Any, y: int) -> Any:
        return site.insert(kind, {"x": x, "y": site.item(y, x)})

    x = site.insert("abs", {"x": site.cast(site.tensor(x), "float32")})
    bits = site.insert("bitcast", {"input": x}, dtype="int32")
    rounds = add("ge", add("bitwise_and", bits, (1 << 23) - 1), least[mode])
    more = site.insert("cast", {"input": rounds}, dtype="int32")
    code = site.insert("add", {"x": add("shift_right", bits, 23), "y": more})
    if site.flag("saturate", True):
        code, is_none = add("min", code, _NAN - 1), site.insert("is_nan", {"x": x})
    else:
        code, is_none = add("min", code, _NAN), add("lt", bits, 1 << 22)  # 2^-127 is the least
    none = site.item(_NAN, code)
    code = site.insert("select", {"condition": is_none, "true_value": none, "false_value": code})
    code = site.insert("cast", {"input": code}, dtype="uint8")
    return site.emit("bitcast", {"input": code}, dtype="float8_e8m0fnu")


@operator("BitCast")
def _bit_cast(site: NodeSite) -> Any:
    dtype = site.dtype("to")
    if site.computed(dtype) != dtype:
        raise InvalidOperation(
            f"it gives {dtype}, which is computed in {site.computed(dtype)}",
            "jax's x64 mode keeps 64 bits: jax.config.update('jax_enable_x64', True)",
        )
    return site.emit("bitcast", {"input": site.operand(0)}, dtype=dtype)
