"""Operations without arithmetic: views of tensors, and vxTensorTransposeNode."""

from __future__ import annotations

from typing import Any

from lowering.ops import rules
from nnef_jax.openvx.mapping import maps
from nnef_jax.openvx.mapping.operation_site import (
    Computed,
    NodeInputs,
    OperationSite,
    Unfit,
    VxLayer,
    is_real,
    operand_key,
)
from nnef_jax.openvx.tensor import Tensor

VIEWS = (
    "reshape", "transpose", "squeeze", "unsqueeze", "concat", "split", "stack", "unstack", "slice",
    "copy", "copy_n",
)  # fmt: skip


@maps(*VIEWS)
def view(site: OperationSite) -> VxLayer:
    """Rearrange raw integers by the operation's own rule."""
    operation = site.operation
    if operation.kind == "slice" and any(s != 1 for s in site.attributes.get("stride", ())):
        raise Unfit("a view has no gaps")
    ((name, operand),) = operation.operands
    if not all(map(is_real, operand if isinstance(operand, tuple) else (operand,))):
        raise Unfit(f"'{name}' is not of real numbers")
    attributes = {operand_key(key): x for key, x in operation.attributes}
    rule = operation.rule or rules[operation.kind]

    def run(node: NodeInputs) -> Computed:
        x: Tensor | list[Tensor] = node[name]
        data: Any = [part.data for part in x] if isinstance(x, list) else x.data
        found = rule.lower(**{name: data}, **attributes)
        if isinstance(found, list | tuple):
            return [Tensor(part, node.position) for part in found], None
        return Tensor(found, node.position), None

    is_node = operation.kind == "transpose"
    return VxLayer("vxTensorTransposeNode" if is_node else "view", run, keeps_position=True)
