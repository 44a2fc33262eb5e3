"""What a network keeps from call to call: its variables, as ReadValue layers declare them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN, Shape, is_known
from lowering.location import Span
from nnef_jax.errors import SemanticError
from nnef_jax.formats.openvino.document import Net, NetLayer, extents


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable: its shape, UNKNOWN where that may change, and whether inputs tell its start."""

    shape: Shape
    follows: bool
    span: Span

    @property
    def changes(self) -> bool:
        """Tell whether it is not known before a call what it starts with, or its shape."""
        return self.follows or not is_known(self.shape)


def label_of(layer: NetLayer) -> str:
    """Return the label of the variable that a layer reads or writes."""
    return layer.attributes.get("variable_id", layer.name)


def variables_of(net: Net) -> Mapping[str, Variable]:
    """Return the variables of a network by label, without those that always are their start."""
    found: dict[str, Variable] = {}
    written = {label_of(layer) for layer in net.layers if layer.kind == "assign"}
    following = set[int]()  # layers that depend on inputs
    for layer in net.layers:
        sources = {net.feeds.get((layer.id, port.id), (-1, -1))[0] for port in layer.inputs}
        follows = not following.isdisjoint(sources)
        if follows or layer.kind == "parameter":
            following.add(layer.id)
        label = label_of(layer)
        if layer.kind == "readvalue" and layer.outputs and (label in written or not follows):
            shape = _shape(layer)
            if label not in written:  # it never grows
                shape = tuple(0 if n is UNKNOWN else n for n in shape)
            found.setdefault(label, Variable(shape, follows, layer.span))
    return found


def _shape(layer: NetLayer) -> Shape:
    """Return the declared shape; no attribute but the port of ReadValue-3 has it."""
    text = layer.attributes.get("variable_shape")
    if text is None:
        return tuple(UNKNOWN if n < 0 else n for n in layer.outputs[0].shape or ())
    try:
        return tuple(UNKNOWN if n is None else n for n in extents(text))
    except InvalidOperation as error:
        raise SemanticError(f"{layer}: {error.message}", span=layer.span, hint=error.hint) from None
