"""The tensors in graph.quant: real numbers (code - zero point) * scale, or their codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowering.graph import Value
from nnef_jax.formats.syntax.emitter import Frame
from nnef_jax.formats.syntax.quantizer import Quantizer
from nnef_jax.formats.tract.application import apply, tensor
from nnef_jax.formats.tract.call_site import CallSite

# Operations on codes, with the operands that are codes.
_CODED = {
    "tract_core_qconv": ("input", "filter"),
    "tract_core_qmatmul": ("A", "B"),
    "tract_core_einsum_q": ("inputs",),
}


def quantized(site: CallSite, name: str, value: Any) -> Any:
    """Return the value of a name as graph.quant quantises it."""
    entry = site.unit.quantizers.get(name)
    if entry is None:
        return value
    graph, dtype = site.graph, _code_dtype(entry)
    if isinstance(value, Value) and value.type.dtype == dtype:
        result = _decoded(site, value, entry, graph.builder.unreserved(f"{name}_real"))
    elif not graph.options.rounds or (isinstance(value, Value) and value in graph.decoded):
        result = value
    else:
        value = tensor(site, value, graph.builder.real, name)
        inner = Frame(None, entry.source, {name: value}, f"{name}_quantized_")
        node = entry.invocation(name, value.type, variable=value in graph.constants)
        wanted = graph.builder.unreserved(f"{name}_quantized")
        result = site.evaluator.evaluate(node, inner, [wanted])
    if isinstance(result, Value):
        if entry.step is not None:
            graph.scales[result] = entry.step
        if dtype:
            graph.entries[result] = entry
    return result


def with_codes(site: CallSite, kind: str) -> Mapping[str, Any]:
    """Return the arguments of an operation, with codes for the tensors that it takes so."""

    def coded(value: Any) -> Any:
        if isinstance(value, list):
            return [coded(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        entry = site.graph.entries.get(value) if isinstance(value, Value) else None
        return value if entry is None else codes_of(site, value, entry)

    names = _CODED.get(kind, ())
    return {n: coded(v) if n in names else v for n, v in site.arguments.items()}


def codes_of(site: CallSite, value: Value, entry: Quantizer) -> Value:
    """Return the codes of real numbers that an entry has rounded to what codes stand for."""
    zero, scale = _spacing(entry, value, variable=value in site.graph.constants)
    steps = apply(site, "div", x=value, y=scale)
    whole = apply(site, "tract_core_round_even", x=steps)
    return site.cast(apply(site, "add", x=whole, y=zero), _code_dtype(entry))


def _decoded(site: CallSite, codes: Value, entry: Quantizer, name: str) -> Value:
    zero, scale = _spacing(entry, codes, variable=False)
    real = site.cast(codes, site.graph.builder.real)
    return apply(site, "mul", name, x=apply(site, "sub", x=real, y=zero), y=scale)


def _spacing(entry: Quantizer, x: Value, *, variable: bool) -> list[Any]:
    """Return the zero point and the scale for a tensor."""
    return [entry.value(n, x.type.shape, variable=variable) for n in ("zero_point", "scale")]


def _code_dtype(entry: Quantizer) -> str:
    """Return the dtype of an entry's codes, '' where it has no zero point and scale."""
    given = entry.arguments
    if "zero_point" not in given or given["bits"] not in (8, 16, 32):
        return ""
    return f"{'int' if given.get('signed') else 'uint'}{given['bits']}"
