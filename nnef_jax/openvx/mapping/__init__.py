"""The mappings of operations onto OpenVX: a layer, nodes on tensors, a table, or a view.

The function of a kind takes a `MappedOperation` and returns a `VxLayer`. It raises `Unfit` with the
reason if no node computes the operation.

Where is a kind mapped to a table of its values? `arithmetic_nodes`
"""

from __future__ import annotations

from nnef_jax.openvx.mapping.registry import KINDS

KINDS.families = (
    "nnef_jax.openvx.mapping.product_nodes",
    "nnef_jax.openvx.mapping.pools",
    "nnef_jax.openvx.mapping.arithmetic_nodes",
)
