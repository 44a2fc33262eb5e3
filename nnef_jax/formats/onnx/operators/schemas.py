"""Reads the standard's schemas, which check nodes and define operators by functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.flattening.hostvalues import is_plain
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.document import Function, Node
from nnef_jax.formats.onnx.document_reader import Reader
from nnef_jax.formats.onnx.protobuf import Raw
from nnef_jax.formats.onnx.tensor_types import code_of
from nnef_jax.limits import Limits, Meter
from nnef_jax.wording.similar import did_you_mean

if TYPE_CHECKING:
    from onnx import FunctionProto

_LARGEST_VERSION = 2**31 - 1  # the largest version that `onnx.defs` takes, an int32


@cache
def _schema(domain: str, name: str, version: int) -> Any:
    """Return the standard's schema of an operator, or None if the standard has no such operator."""
    from onnx import defs

    valid_version = max(min(version, _LARGEST_VERSION), 0)
    try:
        return defs.get_schema(name, valid_version, domain)
    except defs.SchemaError:
        return None


def require_declared(node: Node, version: int) -> None:
    """Raise InvalidOperation if a node does not fit the schema of its operator.

    The schema has the largest numbers of inputs and outputs, and the names of attributes.
    """
    schema = _schema(node.domain, node.operator, version)
    if schema is None:
        return
    _require_most("inputs", node.inputs, schema.max_input)
    _require_most("outputs", node.outputs, schema.max_output)
    for name in (*node.attributes, *node.references):
        if name not in schema.attributes:
            hint = did_you_mean(name, schema.attributes)
            raise InvalidOperation(f"the operator has no attribute '{name}'", hint)


def _require_most(ports: str, names: Sequence[str], most: int) -> None:
    """Raise InvalidOperation if a node has more than `most` inputs or outputs.

    `names` are the names of the inputs or outputs. `ports` is the word "inputs" or "outputs".
    """
    surplus_names = names[most:]
    # An input or output with the name "" is left out, so it does not count.
    if any(surplus_names):
        raise InvalidOperation(f"it has {len(names)} {ports}, the operator has at most {most}")


def is_defined(domain: str, name: str, version: int) -> bool:
    """Tell whether the standard defines an operator by a function."""
    schema = _schema(domain, name, version)
    if schema is None:
        return False
    return schema.has_function or schema.has_context_dependent_function


@cache
def defined(domain: str, name: str, version: int) -> Function | None:
    """Return the function by which the standard defines an operator.

    Return None if there is no such function, or if the function depends on the operands; see
    `specialised`.
    """
    schema = _schema(domain, name, version)
    if schema is None or not schema.has_function:
        return None
    return _read(schema.function_body, schema)


def specialised(node: Node, version: int, operands: Sequence[object]) -> Function:
    """Return the function by which the standard defines the operator of a node.

    The function depends on the node's operands and attributes. Raises InvalidOperation if there is
    no such function.
    """
    from onnx import FunctionProto, helper

    node_proto = helper.make_node(node.operator, node.inputs, node.outputs)
    node_proto.domain = node.domain
    for name, value in node.attributes.items():
        if isinstance(value, int | float | str | tuple):
            node_proto.attribute.append(helper.make_attribute(name, value))
    schema = _schema(node.domain, node.operator, version)
    types = [_type_message(operand) for operand in operands]
    message = schema.get_context_dependent_function(node_proto.SerializeToString(), types)
    function_proto = FunctionProto()
    function_proto.ParseFromString(message)
    if not function_proto.node:
        raise InvalidOperation("the standard does not define it for its inputs and attributes")
    return _read(function_proto, schema)


def _type_message(operand: object) -> bytes:
    """Return the bytes of a TypeProto, a message that has the type of an operand.

    If the operand is no tensor, the message is empty.
    """
    from onnx import TypeProto, helper

    if isinstance(operand, Constant):
        dtype = operand.type
        shape = operand.array.shape
    elif isinstance(operand, Value):
        dtype = operand.type.dtype
        shape = operand.type.shape
    else:
        return TypeProto().SerializeToString()
    # An extent that is not a plain number is open. In the message, None stands for an open extent.
    extents = [int(extent) if is_plain([extent]) else None for extent in shape]
    return helper.make_tensor_type_proto(code_of(dtype), extents).SerializeToString()


def _read(proto: FunctionProto, schema: Any) -> Function:
    """Read the function that defines an operator. `schema` has the defaults of attributes."""
    title = f"the definition of {proto.name}"
    reader = Reader(title, Raw(), Meter(Limits.unbounded()), _refused)
    reader.list_nodes(proto.node)
    defaults: dict[str, Any] = {}
    for name, attribute in schema.attributes.items():
        has_default = attribute.default_value.name != ""
        if has_default:
            defaults[name] = reader.attribute(attribute.default_value)
    return replace(reader.function(proto), defaults=defaults)


def _refused(name: str) -> memoryview:
    """Raise OSError, since a function of the standard has no tensors in files."""
    raise OSError(f"there is no file '{name}'")
