"""Between element types."""

from __future__ import annotations

from typing import Any

from lowering.errors import InvalidOperation
from lowering.graph import Value, is_float
from nnef_jax.formats.openvino.element_types import computed, element_type
from nnef_jax.formats.openvino.layers import legacy, opsets
from nnef_jax.formats.openvino.site import Site

_LARGEST = {"f8e4m3": 448.0, "f8e5m2": 57344.0}
_WRAPPED = ("int8", "uint8", "int16", "uint16", "uint32")


@opsets("Convert")
def _convert(site: Site) -> Value:
    return _converted(site, computed(element_type(site.text("destination_type")), site.real))


@opsets("ConvertLike")
def _convert_like(site: Site) -> Value:
    return _converted(site, site.dtype_of(1))


@legacy("Convert")
def _legacy_convert(site: Site) -> Value:
    return _converted(site, computed(element_type(site.text("precision", "FP32")), site.real))


def _converted(site: Site, dtype: str) -> Value:
    """Return a tensor in a dtype; real numbers beyond those of 8 and 16 bits wrap around."""
    x = site.tensor(0)
    if is_float(x.type.dtype) and dtype in _WRAPPED:
        x = site.insert("cast", {"input": x}, dtype="int32")
    return site.emit("cast", {"input": x}, dtype=dtype)


@opsets("ConvertPromoteTypes")
def _promoted(site: Site) -> list[Value]:
    """Return both tensors in the type that the output ports declare, which the writer chose."""
    types = [port.type for port in site.layer.outputs]
    if len(types) != 2 or "" in types:
        raise InvalidOperation("its output ports do not declare their types")
    return [
        site.emit("cast", {"input": site.tensor(i)}, dtype=computed(type, site.real))
        for i, type in enumerate(types)
    ]


@opsets("FakeConvert")
def _fake_convert(site: Site) -> Value:
    """Return what is left of real numbers, scaled and shifted, as floats of 8 bits."""
    type = site.choice("destination_type", *_LARGEST)
    given: list[Any] = [site.operand(i) for i in range(3) if site.has(i)]
    x, scale, *shift = site.aligned(*given)
    scaled = site.insert("mul", {"x": x, "y": scale})
    if shift:
        scaled = site.insert("sub", {"x": scaled, "y": shift[0]})
    most = _LARGEST[type]
    scaled = site.insert("clamp", {"x": scaled, "a": -most, "b": most})
    codes = site.insert("cast", {"input": scaled}, dtype=computed(type, site.real))
    back = site.insert("cast", {"input": codes}, dtype=scaled.type.dtype)
    if shift:
        back = site.insert("add", {"x": back, "y": shift[0]})
    return site.emit("div", {"x": back, "y": scale})
