"""Tensors of graph.quant as the integers that they are stored as.

Everywhere else such a tensor is the real numbers that its codes stand for: (code - zero point) *
scale. Some operations take the codes, with zero points and scales of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lowering.graph import Value
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.quantizer import Quantizer

if TYPE_CHECKING:
    from nnef_jax.formats.tract.flatten import Flattener, Frame

# Operations on codes, with the operands that are these.
_CODED = {
    "tract_core_qconv": ("input", "filter"),
    "tract_core_qmatmul": ("A", "B"),
    "tract_core_einsum_q": ("inputs",),
}


def dtype_of(entry: Quantizer) -> str:
    """The dtype of the codes of an entry, '' where they are not stored by zero point and scale."""
    given = entry.arguments
    if "zero_point" not in given or given["bits"] not in (8, 16, 32):
        return ""
    return f"{'int' if given.get('signed') else 'uint'}{given['bits']}"


def decoded(
    flattener: Flattener,
    codes: Value,
    entry: Quantizer,
    node: s.Node,
    frame: Frame,
    names: Sequence[str],
) -> Value:
    """The real numbers that codes stand for."""
    zero, scale = (
        entry.value(n, codes.type.shape, variable=False) for n in ("zero_point", "scale")
    )
    real = flattener.cast(codes, flattener.builder.real, node, frame)
    centred = flattener.apply("sub", {"x": real, "y": zero}, node, frame, ())
    return flattener.apply("mul", {"x": centred, "y": scale}, node, frame, names)


def codes_of(
    flattener: Flattener, value: Value, entry: Quantizer, node: s.Node, frame: Frame
) -> Value:
    """The codes of real numbers that an entry has rounded to what codes stand for."""
    variable = value in flattener.constants
    zero, scale = (
        entry.value(n, value.type.shape, variable=variable) for n in ("zero_point", "scale")
    )
    steps = flattener.apply("div", {"x": value, "y": scale}, node, frame, ())
    whole = flattener.apply("tract_core_round_even", {"x": steps}, node, frame, ())
    codes = flattener.apply("add", {"x": whole, "y": zero}, node, frame, ())
    return flattener.cast(codes, dtype_of(entry), node, frame)


def with_codes(
    flattener: Flattener, kind: str, arguments: Mapping[str, Any], node: s.Node, frame: Frame
) -> Mapping[str, Any]:
    """The arguments of an operation, with the codes of tensors that it takes as such."""

    def coded(value: Any) -> Any:
        if isinstance(value, list):
            return [coded(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        entry = flattener.entries.get(value) if isinstance(value, Value) else None
        return value if entry is None else codes_of(flattener, value, entry, node, frame)

    return {n: coded(v) if n in _CODED.get(kind, ()) else v for n, v in arguments.items()}
