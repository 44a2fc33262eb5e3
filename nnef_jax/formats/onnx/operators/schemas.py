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

_NEWEST = 2**31 - 1  # the greatest version that `onnx.defs` takes


@cache
def _schema(domain: str, name: str, version: int) -> Any:
    """Return the standard's schema of an operator, or None if the standard has no such operator."""
    from onnx import defs

    try:
        return defs.get_schema(name, max(min(version, _NEWEST), 0), domain)
    except defs.SchemaError:
        return None


def require_declared(node: Node, version: int) -> None:
    """Raise InvalidOperation if a node does not fit the schema of its operator.

    The schema says how many inputs and outputs there may be, and which attributes there are.
    """
    schema = _schema(node.domain, node.operator, version)
    if schema is None:
        return
    for ports, names, most in (
        ("inputs", node.inputs, schema.max_input),
        ("outputs", node.outputs, schema.max_output),
    ):
        if any(names[most:]):
            raise InvalidOperation(f"it has {len(names)} {ports}, the operator has at most {most}")
    for name in (*node.attributes, *node.references):
        if name not in schema.attributes:
            hint = did_you_mean(name, schema.attributes)
            raise InvalidOperation(f"the operator has no attribute '{name}'", hint)


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
    """Return the function by which the standard defines an operator for a node.

    The function depends on the node's operands and attributes. Raises InvalidOperation if there is
    no such function.
    """
    from onnx import FunctionProto, TypeProto, helper

    def type_message(x: object) -> bytes:
        if not isinstance(x, Value | Constant):
            return TypeProto().SerializeToString()
        if isinstance(x, Constant):
            code = code_of(x.type)
            shape = x.array.shape
        else:
            code = code_of(x.type.dtype)
            shape = x.type.shape
        extents = [int(n) if is_plain([n]) else None for n in shape]
        return helper.make_tensor_type_proto(code, extents).SerializeToString()

    proto = helper.make_node(node.operator, node.inputs, node.outputs)
    proto.domain = node.domain
    for name, x in node.attributes.items():
        if isinstance(x, int | float | str | tuple):
            proto.attribute.append(helper.make_attribute(name, x))
    schema = _schema(node.domain, node.operator, version)
    types = [type_message(x) for x in operands]
    message = schema.get_context_dependent_function(proto.SerializeToString(), types)
    body = FunctionProto()
    body.ParseFromString(message)
    if not body.node:
        raise InvalidOperation("the standard does not define it for its inputs and attributes")
    return _read(body, schema)


def _read(proto: FunctionProto, schema: Any) -> Function:
    """Read a FunctionProto.

    `schema` is the operator's schema, which has the defaults of attributes.
    """
    reader = Reader(f"the definition of {proto.name}", Raw(), Meter(Limits.unbounded()), _refused)
    reader.list_nodes(proto.node)
    values = ((key, x.default_value) for key, x in schema.attributes.items())
    defaults = {key: reader.attribute(x) for key, x in values if x.name}
    return replace(reader.function(proto), defaults=defaults)


def _refused(name: str) -> memoryview:
    """Raise OSError, since a function of the standard has no files beside it."""
    raise OSError(f"there is no file '{name}'")
