"""Maps operations onto OpenVX: onto a layer, nodes on tensors, a table, or a view.

The mapping of a kind of operation, such as "conv", is a function that takes a `MappedOperation` and
returns a `VxLayer`. If no node computes the operation, the function raises `Unfit` with the reason.

Where is a kind mapped to a table of its values? `arithmetic_nodes`
"""

from __future__ import annotations

from nnef_jax.openvx.mapping.registry import KINDS

KINDS.families = (
    "nnef_jax.openvx.mapping.product_nodes",
    "nnef_jax.openvx.mapping.pools",
    "nnef_jax.openvx.mapping.arithmetic_nodes",
)
