"""Writes a row as a document of its dialect, which takes its `inputs` and returns its results."""

from __future__ import annotations

import math
from typing import Any

from nnef_jax.formats.tract.declarations import registry_of

from .case import OpCase, bind, expected, gives_array, inputs, tensors

_TYPES = {"f": "scalar", "i": "integer", "b": "logical"}
_DATUM_TYPES = {"i": "i32", "b": "bool"}


class Name(str):
    """An identifier of the document, as opposed to a string literal."""


def document(case: OpCase, real: str = "f32") -> str:
    """Return the case as a flat document; `real` is tract's datum type of its real inputs."""
    return in_tract(case, real) if case.dialect == "tract" else _in_nnef(case)


def _in_nnef(case: OpCase) -> str:
    names = _results(case)
    left = f"[{', '.join(names)}]" if gives_array(case) else ", ".join(names)
    operands = [literal(x) for x in bind(case, [Name(name) for name in tensors(case)]).values()]
    attributes = [f"{name} = {literal(value)}" for name, value in case.attributes.items()]
    generic = f"<{case.generic}>" if case.generic else ""
    lines = [
        f"{name} = external<{_TYPES[x.dtype.kind]}>(shape = {literal(list(x.shape))});"
        for name, x in zip(tensors(case), inputs(case), strict=True)
    ]
    call = f"{left} = {case.operation}{generic}({', '.join(operands + attributes)});"
    head = f"graph G( {', '.join(tensors(case))} ) -> ( {', '.join(names)} )"
    return _text("version 1.0;", head, [*lines, call])


def in_tract(case: OpCase, real: str = "f32") -> str:
    """Return the case, of either dialect, as a document of tract's."""
    names = _results(case)
    values = bind(case, [Name(name) for name in tensors(case)]) | case.attributes
    arguments = [
        f"{name} = {literal(value)}"
        for name, value in values.items()
        if value is not False or name in case.attributes
    ]
    types = {"f": real} | _DATUM_TYPES
    lines = [
        f"{name} = tract_core_external("
        f"shape = {literal(list(x.shape))}, datum_type = '{types[x.dtype.kind]}');"
        for name, x in zip(tensors(case), inputs(case), strict=True)
    ]
    call = f"{', '.join(names)} = {case.operation}({', '.join(arguments)});"
    registry = registry_of(case.operation) or "tract_nnef"
    head = f"graph network({', '.join(tensors(case))}) -> ({', '.join(names)})"
    version = f"version 1.0;\n\nextension tract_registry {registry};"
    return _text(version, head, [*lines, call])


def _results(case: OpCase) -> list[str]:
    count = len(expected(case))
    is_one = count == 1 and (case.dialect == "tract" or not gives_array(case))
    return ["result"] if is_one else [f"result{k}" for k in range(count)]


def _text(version: str, head: str, lines: list[str]) -> str:
    body = "\n".join(f"    {line}" for line in lines)
    return f"{version}\n\n{head}\n{{\n{body}\n}}\n"


def literal(value: Any) -> str:
    """Return a value as documents write it."""
    match value:
        case Name():
            return str(value)
        case bool():
            return "true" if value else "false"
        case str():
            return f"'{value}'"
        case list():
            return "[" + ", ".join(map(literal, value)) + "]"
        case tuple():
            return "(" + ", ".join(map(literal, value)) + ")"
        case float() if not math.isfinite(value):
            return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        case _:
            return repr(value)
