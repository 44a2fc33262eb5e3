"""Functions for constants, casts and shapes, and for tensors that a few numbers define."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import has_symbols, is_symbolic, show
from lowering.graph import is_float
from nnef_jax.flattening.hostvalues import LARGEST
from nnef_jax.flattening.operators.attributes import attribute, dtype, flag, integer, word
from nnef_jax.flattening.ranges import symbolic_range
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator
from nnef_jax.formats.onnx.tensor_types import dtype_of

_NAN_CODE = 255  # the code of NaN in float8_e8m0fnu
# The constants of the mel scale: mel(f) = 2595 * log10(1 + f / 700), where f is in hertz.
_MELS = 2595
_CORNER = 700  # in hertz
_ZERO = Constant(np.zeros(1, np.float32), "float32", derived=True)
_AFTER_ALL_AXES = 2**63 - 1
_MANTISSA_BITS = 23  # the number of bits of the mantissa in float32
# For each mode of rounding, the smallest mantissa of float32 that is rounded up. The number for the
# mode "down" is larger than all mantissas.
_LEAST_ROUNDED_UP = {"up": 1, "down": 1 << _MANTISSA_BITS, "nearest": 1 << _MANTISSA_BITS - 1}
_SATURATES = flag("saturate", True)
_ROUNDING = word("round_mode", *_LEAST_ROUNDED_UP)
# Dtypes to which a real number is cast by way of int32, so that large numbers wrap around.
_WRAPPED = ("int2", "uint2", "int4", "uint4", "int8", "uint8", "int16", "uint16")


@operator("Constant")
def _constant(site: NodeSite) -> Constant:
    """Return the tensor in the single attribute of a node.

    A tensor of several real numbers becomes a weight.
    """
    attributes = site.node.attributes
    if len(attributes) != 1:
        raise InvalidOperation(f"it must have one value, it has {len(attributes)}")
    name, value = next(iter(attributes.items()))
    if name in ("value", "sparse_value"):
        tensor = site.attribute(name, Constant, default=None)
        # "f" is the kind of numpy's floats, and "V" is the kind of other floats, such as bfloat16.
        has_reals = tensor.array.dtype.kind in "fV"
        is_weight = has_reals and tensor.array.size > 1
        if not is_weight:
            return tensor
        return Constant(tensor.array, tensor.type, label=site.name)
    dtypes = {
        "value_float": "float32", "value_floats": "float32", "value_int": "int64",
        "value_ints": "int64",
    }  # fmt: skip
    if name not in dtypes:
        raise InvalidOperation("it has strings, of which there are no arrays in JAX")
    return Constant(np.array(value, dtypes[name]), dtypes[name])


@operator("ConstantOfShape")
def _constant_of_shape(
    site: NodeSite, *, value: Constant = attribute("value", "attribute", Constant, _ZERO)
) -> Tensor:
    """Return a tensor of the shape in input 0. All its items are equal to `value`, a single item.

    The default of `value` is 0.
    """
    item = site.reshaped(Constant(value.array, value.type, derived=True), ())
    shape = site.integers(0)
    if any(extent < 0 for extent in shape):
        raise InvalidOperation(f"its shape {shape} has a negative extent")
    if not shape:
        return item
    return site.last.broadcast(item, shape=shape)


@operator("Shape")
def _shape(
    site: NodeSite,
    x: Tensor,
    *,
    start: int = integer("start", 0),
    end: int = integer("end", _AFTER_ALL_AXES),
) -> Any:
    """Return the shape of a tensor, or its part from the axis `start` up to the axis `end`.

    If x is a padded list, the extent is the number of items without padding. The network computes
    this number.
    """
    shape: list[Any] = list(site.known_shape())
    return site.numbers_of(shape[start:end])


@operator("Size")
def _size(site: NodeSite, x: Tensor) -> Any:
    """Return the number of items of a tensor, without padding."""
    shape = site.known_shape()
    return site.reshaped(site.numbers_of([site.volume(shape)]), ())


@operator("Cast", since=6)
def _cast(
    site: NodeSite, x: Tensor, *, dtype: str = dtype("to"), saturates: bool = _SATURATES
) -> Any:
    """Cast the input to a dtype. If `saturates`, numbers beyond the range of float8 are clipped."""
    source_dtype = site.dtype_of(0)
    # The result of a cast on the host has a dtype of the file. The graph later converts this result
    # to a dtype in which the network computes. The host casts symbolic extents only to signed
    # integers.
    has_extents = isinstance(x, Constant) and has_symbols(x.array.tolist())
    is_signed = site.graph.array_dtype(dtype).kind == "i"
    is_folded = site.is_folded("cast", [x]) and (is_signed or not has_extents)
    result_dtype = dtype if is_folded else site.computation_dtype(dtype)
    if dtype == "float8_e8m0fnu":
        return _power_of_two(site, x, saturates=saturates)
    becomes_float8 = dtype.startswith("float8") and source_dtype != dtype
    if becomes_float8 and saturates:
        x = _clipped(site, x, largest=float(jnp.finfo(dtype).max))
    if is_float(source_dtype) and dtype in _WRAPPED:
        x = site.cast(x, "int32")
    return site.last.cast(x, dtype=result_dtype)


def _clipped(site: NodeSite, x: Tensor, largest: float) -> Any:
    """Clip x to the range from `-largest` to `largest`. Integers are cast to real numbers first."""
    dtype = site.dtype_of(x)
    has_enough_bits = is_float(dtype) and not dtype.startswith("float8")
    if not has_enough_bits:
        x = site.cast(x, site.graph.builder.real)
    return site.step.clamp(x, -largest, largest)


@operator("Cast")
def _cast_1(site: NodeSite, x: Tensor) -> Any:
    """Cast the input to a dtype, as before version 6. The attribute `to` is the dtype's name."""
    from onnx import TensorProto

    names = TensorProto.DataType
    name = site.choice("to", *names.keys())  # such as "FLOAT"
    code = names.Value(name)
    return _cast(site, x, dtype=dtype_of(code), saturates=True)


operator("CastLike", saturates=_SATURATES)(
    lambda site, x, like, *, saturates: _cast(
        site, x, dtype=site.dtype_of(like), saturates=saturates
    )
)


def _power_of_two(site: NodeSite, x: Tensor, *, saturates: bool) -> Any:
    """Convert the absolute values of x to float8_e8m0fnu, whose numbers are powers of two.

    The code of a number is the exponent of float32: the code of 2^n is n + 127. The code 255 is
    NaN. If `saturates`, numbers beyond the range become the largest number. Otherwise these
    numbers, and numbers below the range, become NaN.
    """
    step = site.step
    least_rounded_up = _LEAST_ROUNDED_UP[_ROUNDING(site)]
    magnitude = step.abs(site.cast(site.tensor(x), "float32"))
    bits = step.bitcast(magnitude, dtype="int32")  # the exponent, then the mantissa
    mantissa_mask = (1 << _MANTISSA_BITS) - 1
    mantissa = step.bitwise_and(bits, mantissa_mask)
    rounds_up = step.ge(mantissa, least_rounded_up)
    exponent = step.shift_right(bits, _MANTISSA_BITS)
    code = step.add(exponent, step.cast(rounds_up, dtype="int32"))
    if saturates:
        code = step.min(code, _NAN_CODE - 1)
        is_nan = step.is_nan(magnitude)
    else:
        code = step.min(code, _NAN_CODE)
        bits_of_least = 1 << (_MANTISSA_BITS - 1)  # the bits of 2^-127 in float32
        is_nan = step.lt(bits, bits_of_least)
    code = step.cast(step.select(is_nan, _NAN_CODE, code), dtype="uint8")
    return site.last.bitcast(code, dtype="float8_e8m0fnu")


@operator("BitCast")
def _bit_cast(site: NodeSite, x: Tensor, *, dtype: str = dtype("to")) -> Any:
    """Interpret the bits of x as items of another dtype."""
    if site.computation_dtype(dtype) != dtype:
        raise InvalidOperation(
            f"it must give {dtype}, but {dtype} is computed in {site.computation_dtype(dtype)}",
            "jax's x64 mode keeps 64 bits: jax.config.update('jax_enable_x64', True)",
        )
    return site.last.bitcast(x, dtype=dtype)


@operator("Range")
def _range(site: NodeSite, first: Tensor) -> Any:
    """Return the numbers start, start + delta, start + 2 delta, ... that are before a limit.

    Inputs 0 to 2 are the start, the limit and delta.
    """
    start, limit, delta = [site.known(i).reshape(-1)[0] for i in range(3)]
    dtype = first.type if isinstance(first, Constant) else site.dtype_of()
    has_symbols = any(map(is_symbolic, (start, limit, delta)))
    if not has_symbols:
        has_integers = np.dtype(dtype).kind in "iu"
        to_python = int if has_integers else float
        start = to_python(start)
        limit = to_python(limit)
        delta = to_python(delta)
        if delta == 0:
            raise InvalidOperation("'delta' must not be 0")
        count = max(math.ceil((limit - start) / delta), 0)
        if count <= LARGEST:  # The host computes a range that is not too long.
            return site.constant(start + delta * np.arange(count), dtype)
    result_dtype = site.computation_dtype(dtype)
    if has_symbols:
        return symbolic_range(site, start, limit, delta, result_dtype)
    return site.last.range(start=start, end=limit, step=delta, dtype=result_dtype)


@operator("EyeLike")
def _eye_like(site: NodeSite, x: Tensor, *, diagonal: int = integer("k", 0)) -> Any:
    """Return a matrix of the shape of x, with ones on one diagonal and zeros elsewhere.

    Item (row, column) is 1 if column = row + `diagonal`.
    """
    if site.rank() != 2:
        raise InvalidShape(f"its input must be a matrix, it is {show(site.shape())}")
    rows, columns = site.known_shape()
    dtype = site.dtype("dtype") if site.has_attribute("dtype") else site.dtype_of()
    row = site.positions(rows, axis=0, rank=2)
    column = site.positions(columns, axis=1, rank=2)
    if diagonal:
        row = site.step.add(row, diagonal)
    return site.last.cast(site.step.eq(row, column), dtype=site.computation_dtype(dtype))


@operator("MelWeightMatrix")
def _mel_weights(site: NodeSite, *, dtype: str = dtype("output_datatype", 1)) -> Any:
    """Return weights of shape (bins, bands): each band is a triangle over the bins of a spectrum.

    Inputs 0 and 1 are the number of bands and the number of items of a transformed frame. Input 2
    is the number of items per second. Inputs 3 and 4 are the lowest and the highest frequency of
    all bands, in hertz.
    """
    bands, length, rate = [site.integer(i) for i in range(3)]
    lowest = site.scalar(3)
    highest = site.scalar(4)
    if min(bands, length, rate) < 1:
        raise InvalidOperation(
            f"inputs 0 to 2 must be positive, they are {bands}, {length}, {rate}"
        )
    lowest_mel = _mel(lowest)
    highest_mel = _mel(highest)
    count = length // 2 + 1
    site.spend(bands * count)
    # The corners of the triangles are equidistant on the mel scale.
    distance = (highest_mel - lowest_mel) / (bands + 2)
    mels = lowest_mel + np.arange(bands + 2) * distance
    hertz = _CORNER * np.expm1(mels / _MELS * math.log(10))
    corners = np.floor((length + 1) * hertz / rate).astype(np.int64)  # indices of bins
    return site.constant(_triangles(corners, count), dtype)


def _triangles(corners: NDArray[np.int64], count: int) -> NDArray[Any]:
    """Return the weights of triangles over the bins 0 to `count` - 1, of shape (bins, triangles).

    The weight of a triangle rises from 0 at its first corner to 1 at its middle corner, and falls
    to 0 at its last corner. The corners of triangle i are corners i, i + 1 and i + 2. If the first
    corner is the middle corner, the weight there is 1.
    """
    # Triangles lie along the columns, and bins along the rows.
    first = corners[None, :-2]
    middle = corners[None, 1:-1]
    last = corners[None, 2:]
    bins = np.arange(count)[:, None]
    with np.errstate(all="ignore"):
        rising = np.where(middle > first, (bins - first) / (middle - first), bins == middle)
        falling = np.where(last > middle, (last - bins) / (last - middle), 0.0)
    is_inside = (bins >= first) & (bins < last)
    is_in_triangle = is_inside | (bins == middle)
    return np.where(bins <= middle, rising, falling) * is_in_triangle


def _mel(frequency: float) -> float:
    """Convert a frequency in hertz to the mel scale."""
    return _MELS / math.log(10) * math.log1p(frequency / _CORNER)
