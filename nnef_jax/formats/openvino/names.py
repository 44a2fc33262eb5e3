"""What tensors are called beside the names that stand for them: a port may have several."""

from __future__ import annotations

from nnef_jax.formats.openvino.document import Net
from nnef_jax.formats.openvino.flatten import Ends


def synonyms(net: Net, ends: Ends) -> dict[str, str]:
    """Return the other names of inputs and outputs, each with the one that they go by."""
    names = {(layer.id, port.id): port.names for layer in net.layers for port in layer.outputs}
    found: dict[str, str] = {}
    for name, (layer, port) in ends.inputs.items():
        found |= dict.fromkeys((layer.name, *port.names), name)
    for name, end in ends.outputs.items():
        found |= {other: name for other in names[end] if other not in found}
    return {x: y for x, y in found.items() if x not in ends.inputs and x not in ends.outputs}
