"""Activations, arithmetic on tensors, tables of other functions of one tensor, and views."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from lowering import broadcast
from lowering.graph import python_name
from lowering.ops import rules
from nnef_jax.openvx import exact_sums
from nnef_jax.openvx.layer_checks import SHIFTS
from nnef_jax.openvx.layers.pointwise import activation_layer
from nnef_jax.openvx.mapping.operation_site import (
    Computed,
    NodeInputs,
    OperationSite,
    Unfit,
    VxLayer,
    is_real,
    is_single,
)
from nnef_jax.openvx.mapping.registry import maps
from nnef_jax.openvx.tables import look_up
from nnef_jax.openvx.tensor import Tensor
from nnef_jax.openvx.vx_errors import unsupported

_FUNCTIONS = {
    "sigmoid": "logistic",
    "tanh": "hyperbolic_tan",
    "relu": "relu",
    "softplus": "softrelu",
    "abs": "abs",
    "sqr": "square",
    "sqrt": "sqrt",
}
_NODES = {
    "add": "vxTensorAddNode",
    "sub": "vxTensorSubtractNode",
    "mul": "vxTensorMultiplyNode",
}
# Functions of one tensor, as long as all else that they read is one fixed number each.
_TABLES = (
    "neg", "rcp", "exp", "log", "sin", "cos", "tan", "sinh", "cosh", "asin", "acos", "atan",
    "asinh", "acosh", "atanh", "sign", "rsqr", "rsqrt", "log2", "floor", "ceil", "round", "pow",
    "silu", "erf", "hard_swish", "gelu", "softabs", "elu", "selu", "leaky_relu", "prelu",
    "fake_quantize", "min_max_linear_quantize", "zero_point_linear_quantize",
    "logarithmic_quantize",
)  # fmt: skip


@maps(*_FUNCTIONS)
def activation(site: OperationSite) -> VxLayer:
    """Map a function that vx_nn_activation_function_e has onto vxActivationLayer."""
    return _activation("x", _FUNCTIONS[site.operation.kind])


def _activation(name: str, function: str, a: float = 1.0, b: float = 1.0) -> VxLayer:
    def run(node: NodeInputs) -> Computed:
        return activation_layer(node[name], function=function, a=a, b=b, **node.output), None

    title = f"vxActivationLayer {function.upper()}"
    return VxLayer(title, run, saturates=True, takes_numbers=True)


@maps(*_TABLES)
def table(site: OperationSite) -> VxLayer:
    """Map any other function of one tensor onto vxTensorTableLookupNode: exact by construction."""
    name = _only_tensor(site)
    if name is None:
        raise Unfit("no node of OpenVX computes it on two tensors")
    if not site.profile.has_tables:
        raise Unfit("vxTensorTableLookupNode takes uint8 and int16, no int8")

    def run(node: NodeInputs) -> Computed:
        x = node[name]
        found = Tensor(look_up(x.data, node["table"]), node.position)
        return found, look_up(x.data, node["beyond"])

    return VxLayer("vxTensorTableLookupNode", run, takes_numbers=True, is_table=True)


@maps("clamp", "min", "max")
def bounded(site: OperationSite) -> VxLayer:
    """Map operations that cut off below 0, or below 0 and above a number, onto RELU and BRELU."""
    kind, names = site.operation.kind, ("a", "b") if site.operation.kind == "clamp" else ("y",)
    bounds = [site.number(name) for name in names]
    if site.is_fixed("x") or None in bounds:
        return table(site)
    is_positive = site.operand("x") in site.not_negative
    if kind == "max" and bounds == [0.0]:
        return _activation("x", "relu")
    high = bounds[-1] or 0.0
    if high > 0 and ((kind == "clamp" and bounds[0] == 0) or (kind == "min" and is_positive)):
        return _activation("x", "brelu", a=high)
    return table(site)


@maps(*_NODES, "div")
def arithmetic(site: OperationSite) -> VxLayer:
    """Map sums and products onto nodes on tensors; with a number onto LINEAR, or a table."""
    kind = site.operation.kind
    line = _line(site)
    if line is not None and min(line) >= 0 and math.isfinite(max(line)):
        return _activation("x" if not site.is_fixed("x") else "y", "linear", *line)
    if _only_tensor(site) is not None and (site.profile.has_tables or kind == "div"):
        return table(site)
    if kind == "div":
        raise Unfit("OpenVX has no quotient of two tensors")
    if not all(is_real(site.operand(n)) or site.number(n) is not None for n in ("x", "y")):
        raise Unfit("its tensors are not of real numbers")
    return VxLayer(_NODES[kind], lambda node: _combined(kind, node, [node["x"], node["y"]]))


@maps("add_n")
def sums(site: OperationSite) -> VxLayer:
    """Map a sum of several tensors onto one vxTensorAddNode after the other."""
    operand = site.operand("x")
    count = len(operand) if isinstance(operand, tuple) else 0
    if count < 2:
        raise Unfit(f"it adds {count} tensors")
    name = _NODES["add"] if count == 2 else f"{count - 1} x {_NODES['add']}"

    def run(node: NodeInputs) -> Computed:
        total, masks = node["x"][0], list[Any]()
        for other in node["x"][1:]:
            total, mask = _combined("add", node, [total, other])
            masks.append(mask)
        return total, jnp.any(jnp.stack(jnp.broadcast_arrays(*masks)), axis=0)

    return VxLayer(name, run)


def _only_tensor(site: OperationSite) -> str | None:
    """Return the name of the operand that is computed, if all others are single numbers."""
    computed = site.computed()
    operands = dict(site.operation.operands)
    if len({operands[name] for name in computed}) != 1 or not is_real(operands[computed[0]]):
        return None
    numbers = all(is_single(site.shape(name)) for name in operands if name not in computed)
    return computed[0] if numbers and site.type(computed[0]) == site.result else None


def _line(site: OperationSite) -> tuple[float, float] | None:
    """Return factor and term of a * x + b, where the operation is that of a number."""
    kind, x, y = site.operation.kind, site.number("x"), site.number("y")
    if y is not None and not site.is_fixed("x"):
        lines = {"add": (1.0, y), "sub": (1.0, -y), "mul": (y, 0.0)}
        return lines.get(kind) or ((1 / y, 0.0) if y else None)
    if x is not None and not site.is_fixed("y"):
        return {"add": (1.0, x), "sub": (-1.0, x), "mul": (x, 0.0)}.get(kind)
    return None


def _combined(kind: str, node: NodeInputs, tensors: Sequence[Tensor]) -> Computed:
    """Add, subtract or multiply raw integers, then round and cut off once."""
    x, y = broadcast.align(*(tensor.data.astype(np.int32) for tensor in tensors))
    before = [tensor.fixed_point_position for tensor in tensors]
    if kind == "mul":
        position, terms, largest = sum(before), [(x * y, 0)], 1 << 30
    else:
        position, largest = max(before), 1 << (16 + max(before) - min(before))
        terms = [
            (sign * each, position - p)
            for each, p, sign in zip((x, y), before, (1, -1 if kind == "sub" else 1), strict=True)
        ]
    shift = position - node.position
    base = exact_sums.base_for(largest, shift)
    if base is None or shift not in SHIFTS:
        unsupported(f"positions {before} and {node.position} are too far from each other")
    found, mask = exact_sums.narrow(
        exact_sums.total(terms, base),
        shift,
        node.choices.overflow_policy,
        node.choices.rounding_policy,
        tensors[0].dtype,
    )
    return Tensor(found, node.position), mask


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
    attributes = {python_name(key): x for key, x in operation.attributes}
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
