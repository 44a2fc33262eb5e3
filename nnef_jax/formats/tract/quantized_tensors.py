"""Tensors with an entry in graph.quant, as real numbers or as codes.

The real number that a code stands for is (code - zero point) * scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from lowering.graph import Value
from nnef_jax.formats.syntax.emitter import Frame
from nnef_jax.formats.syntax.quantizer import Quantizer
from nnef_jax.formats.tract.application import apply, tensor
from nnef_jax.formats.tract.call_site import CallSite

# Maps an operation to the names of the operands that the operation reads as codes.
_CODED = {
    "tract_core_qconv": ("input", "filter"),
    "tract_core_qmatmul": ("A", "B"),
    "tract_core_einsum_q": ("inputs",),
}


def quantized(site: CallSite, name: str, value: object) -> Any:
    """Quantise the value of `name` if graph.quant has an entry for this name.

    A name without an entry keeps its value.
    """
    entry = site.unit.quantizers.get(name)
    if entry is None:
        return value
    graph = site.graph
    dtype = _code_dtype(entry)
    is_decoded = isinstance(value, Value) and value in graph.decoded
    if isinstance(value, Value) and value.type.dtype == dtype:  # the value has codes
        result = _decoded(site, value, entry, graph.builder.unreserved(f"{name}_real"))
    elif is_decoded or not graph.options.rounds:  # no rounding is left to do
        result = value
    else:
        result = _rounded(site, name, value, entry)
    if isinstance(result, Value):
        if entry.step is not None:
            graph.scales[result] = entry.step
        if dtype:
            graph.entries[result] = entry
    return result


def _rounded(site: CallSite, name: str, value: object, entry: Quantizer) -> Any:
    """Round the value of `name` by the operation in the entry of graph.quant for `name`."""
    graph = site.graph
    real = tensor(site, value, graph.builder.real, name)
    # The operation is evaluated in a frame in which only `name` has a value.
    frame = Frame(
        fragment=None, source=entry.source, values={name: real}, prefix=f"{name}_quantized_"
    )
    node = entry.invocation(name, real.type, variable=real in graph.constants)
    result_name = graph.builder.unreserved(f"{name}_quantized")
    return site.evaluator.evaluate(node, frame, [result_name])


def with_codes(site: CallSite, kind: str) -> Mapping[str, Any]:
    """Return the arguments of an operation, with codes in the place of some quantised operands.

    The table `_CODED` has the operands that the operation reads as codes. All other arguments are
    unchanged.
    """

    def coded(value: object) -> object:
        if isinstance(value, list):
            return [coded(item) for item in cast("list[object]", value)]
        if isinstance(value, Value) and value in site.graph.entries:
            return codes_of(site, value, site.graph.entries[value])
        return value

    arguments = {**site.arguments}
    coded_names = _CODED.get(kind, ())
    for name in site.arguments:
        if name in coded_names:
            arguments[name] = coded(site.arguments[name])
    return arguments


def codes_of(site: CallSite, value: Value, entry: Quantizer) -> Value:
    """Return the integer codes that stand for the real numbers of a tensor.

    A code is round(number / scale) + zero point.
    """
    is_variable = value in site.graph.constants
    zero_point, scale = _zero_point_and_scale(entry, value, variable=is_variable)
    steps = apply(site, "div", x=value, y=scale)
    rounded = apply(site, "tract_core_round_even", x=steps)
    shifted = apply(site, "add", x=rounded, y=zero_point)
    return site.cast(shifted, _code_dtype(entry))


def _decoded(site: CallSite, codes: Value, entry: Quantizer, name: str) -> Value:
    """Return the real numbers that codes stand for, as a tensor with the name `name`."""
    zero_point, scale = _zero_point_and_scale(entry, codes, variable=False)
    real = site.cast(codes, site.graph.builder.real)
    difference = apply(site, "sub", x=real, y=zero_point)
    return apply(site, "mul", name, x=difference, y=scale)


def _zero_point_and_scale(entry: Quantizer, x: Value, *, variable: bool) -> list[Any]:
    """Return the zero point and the scale of a quantiser, in shapes that broadcast to `x`.

    `variable` tells whether `x` is a variable, whose channels may be along axis 0.
    """
    arguments = ("zero_point", "scale")
    return [entry.value(name, x.type.shape, variable=variable) for name in arguments]


def _code_dtype(entry: Quantizer) -> str:
    """Return the dtype of a quantiser's codes, such as "uint8".

    Return "" if the quantiser has no zero point, or if no dtype has the quantiser's number of bits.
    """
    arguments = entry.arguments
    if "zero_point" not in arguments or arguments["bits"] not in (8, 16, 32):
        return ""
    kind = "int" if arguments.get("signed") else "uint"
    return f"{kind}{arguments['bits']}"
