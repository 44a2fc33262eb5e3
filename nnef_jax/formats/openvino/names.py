"""What tensors are called beside the names that stand for them: a port may have several."""

from __future__ import annotations

from nnef_jax.formats.openvino.document import Net
from nnef_jax.formats.openvino.flatten import Ends


def synonyms(net: Net, ends: Ends) -> dict[str, str]:
    """Return the other names of inputs and outputs, each with the one that they go by."""
    by_id = {layer.id: layer for layer in net.layers}
    found: dict[str, str] = {}
    for name, (layer, port) in ends.inputs.items():
        found |= dict.fromkeys((layer.name, *port.names), name)
    for name, (id, port) in ends.outputs.items():
        of_port = (p.names for p in by_id[id].outputs if p.id == port)
        found |= {other: name for names in of_port for other in names if other not in found}
    return {x: y for x, y in found.items() if x not in ends.inputs and x not in ends.outputs}
