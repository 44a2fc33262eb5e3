"""What operators mean that no row of `operations` says: functions, a file a family.

A function takes the site and as many of the first inputs as it has names for, None where one with
that default is left out, and returns the tensor of the first output, or a tuple. A list is a
sequence of tensors. What the standard defines as a function, and nothing here has, is run by its
definition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from inspect import CO_VARARGS
from typing import Any

from lowering.errors import InvalidOperation
from lowering.extents import UNKNOWN, is_symbolic
from lowering.graph import Value
from nnef_jax.flattening.by_kind import Meaning
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.document import Function, Node, Reader
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.protobuf import Raw
from nnef_jax.formats.onnx.tensor_types import code_of
from nnef_jax.limits import Limits, Meter
from nnef_jax.similar import did_you_mean

FAMILIES = (
    "sources", "arithmetic", "filters", "pool_windows", "normalizations", "samplers", "spectra",
    "optimizers", "control", "cells", "quantizers", "products", "heads", "layout",
    "indices", "reducers", "lists", "estimators", "transformers", "fusions",
    "trees", "support_vectors", "lengths", "n_grams",
)  # fmt: skip
_NEWEST = 2**31 - 1  # version that the package takes
_MEANINGS: dict[tuple[str, str], list[tuple[int, Meaning]]] = {}


def operator(*names: str, domain: str = "", since: int = 1) -> Callable[[Meaning], Meaning]:
    """Register the meaning of operators of a domain from a version on."""

    def register(function: Meaning) -> Meaning:
        meaning = _of_inputs(function)
        for name in names:
            versions = _MEANINGS.setdefault((domain, name), [])
            assert since not in (version for version, _ in versions), f"'{name}' has two meanings"
            versions.append((since, meaning))
            versions.sort(key=lambda item: item[0])
        return function

    return register


def _of_inputs(function: Meaning) -> Meaning:
    """Return a function of a site alone, which hands over the inputs that one has names for."""
    code = function.__code__
    count = code.co_argcount - 1
    needed = count - len(function.__defaults__ or ())
    takes_all = bool(code.co_flags & CO_VARARGS)

    def meaning(site: NodeSite) -> Any:
        inputs = range(max(count, len(site.operands)) if takes_all else count)
        return function(
            site, *(site.operand(i) if i < needed else site.optional(i) for i in inputs)
        )

    return meaning if count or takes_all else function


@cache
def _load() -> None:
    import_module("nnef_jax.formats.onnx.operations")
    for family in FAMILIES:
        import_module(f"{__name__}.{family}")


def meaning_of(domain: str, name: str, version: int) -> Meaning | None:
    """Return the meaning of an operator in a version of its domain, None if it is not known."""
    _load()
    versions = _MEANINGS.get((domain, name), ())
    return next((meaning for since, meaning in reversed(versions) if since <= version), None)


@cache
def _schema(domain: str, name: str, version: int) -> Any:
    """Return the standard's schema of an operator, None if it has none of that name."""
    from onnx import defs

    try:
        return defs.get_schema(name, max(min(version, _NEWEST), 0), domain)
    except defs.SchemaError:
        return None


def require_declared(node: Node, version: int) -> None:
    """Raise InvalidOperation for inputs, outputs and attributes that the standard does not have."""
    schema = _schema(node.domain, node.operator, version)
    if schema is None:
        return
    sides = ("inputs", node.inputs, schema.max_input), ("outputs", node.outputs, schema.max_output)
    for what, names, most in sides:
        if any(names[most:]):
            raise InvalidOperation(f"it has {len(names)} {what}, the operator has {most} at most")
    for name in (*node.attributes, *node.references):
        if name not in schema.attributes:
            hint = did_you_mean(name, schema.attributes)
            raise InvalidOperation(f"the operator has no attribute '{name}'", hint)


def is_defined(domain: str, name: str, version: int) -> bool:
    """Tell whether the standard defines an operator by a function."""
    schema = _schema(domain, name, version)
    return schema and (schema.has_function or schema.has_context_dependent_function)


@cache
def defined(domain: str, name: str, version: int) -> Function | None:
    """Return the function that defines an operator whatever it is given, None if none does."""
    schema = _schema(domain, name, version)
    return _read(schema.function_body, schema) if schema and schema.has_function else None


def specialised(node: Node, version: int, operands: Sequence[Any]) -> Function:
    """Return the function that defines an operator for types of operands and attributes.

    Raises InvalidOperation where there is none for them.
    """
    from onnx import FunctionProto, TypeProto, helper

    def type_of(x: Any) -> bytes:
        if not isinstance(x, Value | Constant):
            return TypeProto().SerializeToString()
        is_known = isinstance(x, Constant)
        dtype, shape = (x.type, x.array.shape) if is_known else (x.type.dtype, x.type.shape)
        extents = [None if n is UNKNOWN or is_symbolic(n) else int(n) for n in shape]
        return helper.make_tensor_type_proto(code_of(dtype), extents).SerializeToString()

    proto, body = helper.make_node(node.operator, node.inputs, node.outputs), FunctionProto()
    proto.domain = node.domain
    for name, x in node.attributes.items():
        if isinstance(x, int | float | str | tuple):
            proto.attribute.append(helper.make_attribute(name, x))
    schema = _schema(node.domain, node.operator, version)
    types = [type_of(x) for x in operands]
    body.ParseFromString(schema.get_context_dependent_function(proto.SerializeToString(), types))
    if not body.node:
        raise InvalidOperation("its definition has none for its inputs and attributes")
    return _read(body, schema)


def _read(proto: Any, schema: Any) -> Function:
    """Return a function, with the defaults of the attributes of the operator that it defines."""
    reader = Reader(f"the definition of {proto.name}", Raw(), Meter(Limits.unbounded()), _refused)
    reader.list_nodes(proto.node)
    given = ((key, x.default_value) for key, x in schema.attributes.items())
    defaults = {key: reader.attribute(x) for key, x in given if x.name}
    return replace(reader.function(proto), defaults=defaults)


def _refused(name: str) -> memoryview:
    raise OSError(f"there is no file '{name}'")
