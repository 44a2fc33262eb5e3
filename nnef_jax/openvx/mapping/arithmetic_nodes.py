"""Maps activations, arithmetic on tensors, functions of one tensor, and views."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from lowering import Context, apply_rule, broadcast
from nnef_jax.errors import computing
from nnef_jax.openvx import exact_sums
from nnef_jax.openvx.layer_checks import SHIFTS
from nnef_jax.openvx.layers.pointwise import activation_layer
from nnef_jax.openvx.mapping.mapped_operation import (
    Computed,
    MappedOperation,
    NodeInputs,
    Unfit,
    VxLayer,
    is_real,
    is_single,
)
from nnef_jax.openvx.mapping.registry import maps
from nnef_jax.openvx.tables import look_up
from nnef_jax.openvx.tensor import Tensor
from nnef_jax.openvx.vx_errors import unsupported

# Maps the name of an operation to a function of vxActivationLayer.
_FUNCTIONS = {
    "sigmoid": "logistic",
    "tanh": "hyperbolic_tan",
    "relu": "relu",
    "softplus": "softrelu",
    "abs": "abs",
    "sqr": "square",
    "sqrt": "sqrt",
}
# Maps the name of an operation on two tensors to the node that computes the operation.
_NODES = {
    "add": "vxTensorAddNode",
    "sub": "vxTensorSubtractNode",
    "mul": "vxTensorMultiplyNode",
}
# Operations that are functions of one tensor if each other operand is a single fixed number.
_TABLES = (
    "neg", "rcp", "exp", "log", "sin", "cos", "tan", "sinh", "cosh", "asin", "acos", "atan",
    "asinh", "acosh", "atanh", "sign", "rsqr", "rsqrt", "log2", "floor", "ceil", "round", "pow",
    "silu", "erf", "hard_swish", "gelu", "softabs", "elu", "selu", "leaky_relu", "prelu",
    "fake_quantize", "min_max_linear_quantize", "zero_point_linear_quantize",
    "logarithmic_quantize",
)  # fmt: skip


@maps(*_FUNCTIONS)
def activation(operation: MappedOperation) -> VxLayer:
    """Map a function of vx_nn_activation_function_e onto vxActivationLayer."""
    return _activation("x", _FUNCTIONS[operation.kind])


def _activation(name: str, function: str, a: float = 1.0, b: float = 1.0) -> VxLayer:
    """Return the layer vxActivationLayer for a function of the operand `name`.

    `a` and `b` are the parameters of the function.
    """

    def run(node: NodeInputs) -> Computed:
        """Compute the layer on raw integers."""
        return activation_layer(node[name], function=function, a=a, b=b, **node.output), None

    title = f"vxActivationLayer {function.upper()}"
    return VxLayer(title, run, saturates=True, takes_numbers=True)


@maps(*_TABLES)
def table(operation: MappedOperation) -> VxLayer:
    """Map a function of one tensor onto vxTensorTableLookupNode with an exact table.

    Functions of vx_nn_activation_function_e are mapped by `activation` instead.
    """
    name = _only_tensor(operation)
    if name is None:
        raise Unfit("no node of OpenVX computes it on two tensors")
    if not operation.profile.has_tables:
        raise Unfit("vxTensorTableLookupNode takes uint8 and int16 only, not int8")

    def run(node: NodeInputs) -> Computed:
        """Look the raw integers up in the table, and in the mask of results that overflow."""
        x = node[name]
        result = Tensor(look_up(x.data, node["table"]), node.position)
        return result, look_up(x.data, node["overflow_mask"])

    return VxLayer("vxTensorTableLookupNode", run, takes_numbers=True, is_table=True)


@maps("clamp", "min", "max")
def bounded(operation: MappedOperation) -> VxLayer:
    """Map `max`, `min` or `clamp` onto RELU, BRELU or a table.

    RELU has the lower bound 0. BRELU has the lower bound 0 and an upper bound. Other bounds need a
    table, which has the result of the operation for each number of the type.
    """
    kind = operation.kind
    if operation.is_fixed("x"):
        return table(operation)  # the tensor is not the operand `x`
    if kind == "max" and operation.number("y") == 0:
        return _activation("x", "relu")
    low: float | None = None
    high: float | None = None
    if kind == "clamp":
        low = operation.number("a")
        high = operation.number("b")
    elif kind == "min":
        # If `x` has no negative items, 0 is a lower bound.
        low = 0.0 if operation.operand("x") in operation.not_negative else None
        high = operation.number("y")
    if low == 0 and high is not None and high > 0:
        return _activation("x", "brelu", a=high)
    return table(operation)


@maps(*_NODES, "div")
def arithmetic(operation: MappedOperation) -> VxLayer:
    """Map arithmetic of a tensor and a number, or of two tensors.

    Arithmetic with a number is mapped onto LINEAR or a table, and arithmetic on two tensors onto
    nodes on tensors.
    """
    kind = operation.kind
    line = _line(operation)
    # The layer takes only finite parameters that are not negative.
    is_layer = line is not None and min(line) >= 0 and math.isfinite(max(line))
    if line is not None and is_layer:
        tensor_name = "y" if operation.is_fixed("x") else "x"
        a, b = line
        return _activation(tensor_name, "linear", a=a, b=b)
    has_one_tensor = _only_tensor(operation) is not None
    # A quotient goes to `table` even if the type has no tables: `table` then raises Unfit with the
    # reason. All operations except quotients have a node below.
    if has_one_tensor and (operation.profile.has_tables or kind == "div"):
        return table(operation)
    if kind == "div":
        raise Unfit("OpenVX has no quotient of two tensors")
    for name in ("x", "y"):
        if not is_real(operation.operand(name)) and operation.number(name) is None:
            raise Unfit("its tensors must hold real numbers")

    def run(node: NodeInputs) -> Computed:
        return _combined(kind, node, [node["x"], node["y"]])

    return VxLayer(_NODES[kind], run)


@maps("add_n")
def sums(operation: MappedOperation) -> VxLayer:
    """Map a sum of several tensors onto a chain of vxTensorAddNode."""
    operand = operation.operand("x")
    count = len(operand) if isinstance(operand, tuple) else 0
    if count < 2:
        raise Unfit(f"it adds {count} tensors")
    name = _NODES["add"] if count == 2 else f"{count - 1} x {_NODES['add']}"

    def run(node: NodeInputs) -> Computed:
        """Add the tensors one after the other. Each sum is rounded and limited."""
        total, *terms = node["x"]
        masks: list[Any] = []
        for term in terms:
            total, mask = _combined("add", node, [total, term])
            masks.append(mask)
        # An item overflows if one of its sums does.
        stacked = jnp.stack(jnp.broadcast_arrays(*masks))
        return total, jnp.any(stacked, axis=0)

    return VxLayer(name, run)


def _only_tensor(operation: MappedOperation) -> str | None:
    """Return the name of the operand t if an operation is a function of t alone, or None.

    No other operand may depend on inputs, unless it is the tensor t too, as in t * t. All other
    operands must be single numbers, and the result must have the type of t.
    """
    computed = operation.computed()
    operands = operation.operands
    tensors = {operands[name] for name in computed}
    if len(tensors) != 1:
        return None
    name = computed[0]
    if not is_real(operands[name]):
        return None
    fixed_names = [fixed_name for fixed_name in operands if fixed_name not in computed]
    fixed_are_single = all(is_single(operation.shape(fixed_name)) for fixed_name in fixed_names)
    keeps_type = operation.type(name) == operation.result
    return name if fixed_are_single and keeps_type else None


def _line(operation: MappedOperation) -> tuple[float, float] | None:
    """Return (a, b) if an operation computes a * x + b for a tensor x and numbers a and b.

    For example, the result is (1, -3) for `sub(x, 3)`. Return None if the operation computes
    anything else.
    """
    kind = operation.kind
    x = operation.number("x")
    y = operation.number("y")
    if y is not None and not operation.is_fixed("x"):
        if kind == "div":
            return (1 / y, 0.0) if y else None
        return {"add": (1.0, y), "sub": (1.0, -y), "mul": (y, 0.0)}[kind]
    if x is not None and not operation.is_fixed("y"):
        # The quotient x / tensor is not of the form a * tensor + b.
        return {"add": (1.0, x), "sub": (-1.0, x), "mul": (x, 0.0)}.get(kind)
    return None


def _combined(kind: str, node: NodeInputs, tensors: Sequence[Tensor]) -> Computed:
    """Add, subtract or multiply two tensors as raw integers, and return the result and a mask.

    The result is rounded once, and then saturated or wrapped. The mask tells which items overflow.
    `kind` is "add", "sub" or "mul".
    """
    x, y = broadcast.align(*(tensor.data.astype(np.int32) for tensor in tensors))
    positions = [tensor.fixed_point_position for tensor in tensors]
    position_x, position_y = positions
    # `terms` are pairs (integers, shift) that stand for `integers * 2**shift`. Their sum is the
    # exact result at `position`.
    if kind == "mul":
        position = position_x + position_y
        terms = [(x * y, 0)]
        largest = 1 << 30  # the magnitude of a product of two numbers of 16 bits
    else:
        position = max(positions)
        signed_y = -y if kind == "sub" else y
        terms = [(x, position - position_x), (signed_y, position - position_y)]
        # Before the shift to the same position, a sum of two numbers has a magnitude up to 2^16.
        largest = 1 << (16 + max(positions) - min(positions))
    shift = position - node.position
    base = exact_sums.base_for(largest, shift)
    if base is None or shift not in SHIFTS:
        unsupported(f"positions {positions} and {node.position} are too far from each other")
    result, mask = exact_sums.narrow(
        exact_sums.total(terms, base),
        shift,
        node.choices.overflow_policy,
        node.choices.rounding_policy,
        tensors[0].dtype,
    )
    return Tensor(result, node.position), mask


VIEWS = (
    "reshape", "transpose", "squeeze", "unsqueeze", "concat", "split", "stack", "unstack", "slice",
    "copy", "copy_n",
)  # fmt: skip


@maps(*VIEWS)
def view(operation: MappedOperation) -> VxLayer:
    """Map an operation onto a view, if the operation only moves items.

    The view applies the operation's rule to raw integers.
    """
    strides = operation.attributes.get("stride", ())
    if operation.kind == "slice" and any(stride != 1 for stride in strides):
        raise Unfit("its stride leaves gaps, and a view has none")
    ((name, operand),) = operation.operands.items()  # each of these operations has one operand
    tensors = operand if isinstance(operand, tuple) else (operand,)
    if not all(map(is_real, tensors)):
        raise Unfit(f"'{name}' must hold real numbers")

    def run(node: NodeInputs) -> Computed:
        """Apply the operation's rule to the raw integers."""
        x: Tensor | list[Tensor] = node[name]
        data: Any = [part.data for part in x] if isinstance(x, list) else x.data
        with computing():
            result = apply_rule(operation.source, Context(), {name: data})
        if isinstance(result, list | tuple):
            return [Tensor(part, node.position) for part in result], None
        return Tensor(result, node.position), None

    name_of_node = "vxTensorTransposeNode" if operation.kind == "transpose" else "view"
    return VxLayer(name_of_node, run, keeps_position=True)
