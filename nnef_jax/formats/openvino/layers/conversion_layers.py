"""Between element types, and rounding to levels."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import Value, is_float
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.element_types import computed
from nnef_jax.formats.openvino.layer_site import LayerSite
from nnef_jax.formats.openvino.layers import everywhere, legacy, opsets

_LARGEST = {"f8e4m3": 448.0, "f8e5m2": 57344.0}
_WRAPPED = ("int8", "uint8", "int16", "uint16", "uint32")


@opsets("Convert")
def _convert(site: LayerSite) -> Value:
    return _converted(site, site.dtype("destination_type"))


@opsets("ConvertLike")
def _convert_like(site: LayerSite) -> Value:
    return _converted(site, site.dtype_of(1))


@legacy("Convert")
def _legacy_convert(site: LayerSite) -> Value:
    return _converted(site, site.dtype("precision", "FP32"))


def _converted(site: LayerSite, dtype: str) -> Value:
    """Return a tensor in a dtype; real numbers beyond those of 8 and 16 bits wrap around."""
    x = site.tensor(0)
    if is_float(x.type.dtype) and dtype in _WRAPPED:
        x = site.step.cast(x, dtype="int32")
    return site.last.cast(x, dtype=dtype)


@opsets("ConvertPromoteTypes")
def _promoted(site: LayerSite) -> list[Value]:
    """Return both tensors in the type that the output ports declare, which the writer chose."""
    types = [port.type for port in site.layer.outputs]
    if len(types) != 2 or "" in types:
        raise InvalidOperation("its output ports do not declare their types")
    return [
        site.last.cast(site.tensor(i), dtype=computed(type, site.real))
        for i, type in enumerate(types)
    ]


@opsets("FakeConvert")
def _fake_convert(site: LayerSite) -> Value:
    """Return what is left of real numbers, scaled and shifted, as floats of 8 bits."""
    type, step = site.choice("destination_type", *_LARGEST), site.step
    given: list[Any] = [site.operand(i) for i in range(3) if site.has(i)]
    x, scale, *shift = site.aligned(*given)
    scaled = step.mul(x, scale)
    if shift:
        scaled = step.sub(scaled, shift[0])
    scaled = step.clamp(scaled, -_LARGEST[type], _LARGEST[type])
    codes = step.cast(scaled, dtype=computed(type, site.real))
    back = step.cast(codes, dtype=scaled.type.dtype)
    if shift:
        back = step.add(back, shift[0])
    return site.last.div(back, scale)


@everywhere("FakeQuantize", "Quantize")
def _fake_quantize(site: LayerSite) -> Value:
    """Round to levels between the input's ends, spread between the output's ends.

    Where both pairs of ends are the same numbers and levels a power of 2 it is the standard's
    operation. Halves go to even ones.
    """
    levels = site.int("levels")
    if levels < 2:
        raise InvalidOperation(f"'levels' must be 2 or more, it is {levels}")
    ends = [site.operand(i) for i in range(1, 5)]
    known = [x.array for x in ends if isinstance(x, Constant)]
    bits = levels.bit_length() - 1
    if len(known) == 4 and 2**bits == levels and np.all(known[0] < known[1]):
        same = [
            np.array_equal(np.broadcast_arrays(known[i], known[i + 2])[0], known[i + 2])
            for i in (0, 1)
        ]
        if all(same) and known[0].shape == known[2].shape:
            operands = site.aligned(site.tensor(0), ends[0], ends[1])
            how = {"bits": bits, "signed": False, "symmetric": False, "ties": "even"}
            return site.last.min_max_linear_quantize(*operands, **how)
    return site.last.fake_quantize(*site.aligned(site.tensor(0), *ends), levels=levels)
