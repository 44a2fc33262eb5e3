"""What the code of an operator's meaning names: kinds of operations, and attributes."""

from __future__ import annotations

import dis
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from lowering.ops import rules
from nnef_jax.flattening.operators.attributes import Attribute
from nnef_jax.flattening.operators.registry import Operator, OperatorRow

# The types of attributes, by the method of a site that reads one.
TYPES = {
    "flag": "truth value", "number": "number", "int": "integer", "numbers": "numbers",
    "ints": "integers", "axis_of": "axis", "dtype": "element type", "text": "text", "word": "word",
    "choice": "word", "subgraph": "graph", "body": "graph",
    "spatial": "integers", "axes": "axes",
}  # fmt: skip

# Names that hold a `ByKind`, besides attributes of the site.
_BUILDERS = {"add", "end", "last", "step", "step_on", "step_or_last"}
_METHODS = ("LOAD_ATTR", "LOAD_METHOD")  # instructions
_CALLED = {"step_on", "step_or_last"}  # methods that return one
# Methods that align operands, or put a constant into the graph, whatever the operator is.
_AROUND = {
    "_emit", "_insert", "aligned", "emit", "folded", "insert", "item", "last", "step", "step_on",
    "tensor",
}  # fmt: skip
# Methods of classes in these modules, and in families of a format, add operations.
_HOMES = ("nnef_jax.flattening.recurrent_cells", "nnef_jax.flattening.repetition")
_CODE = ("nnef_jax.flattening.", "nnef_jax.formats.")
_FAMILIES = re.compile(r"nnef_jax\.formats\.\w+\.\w+\.")


@dataclass(slots=True)
class Names:
    """What the meaning of an operator names.

    Args:
        kinds: of the operations that it may become; no other operation comes of it. Constants that
            operands are, and operations that align operands, are left out.
        attributes: that it may read, besides those of its registration.
    """

    kinds: set[str] = field(default_factory=set[str])
    attributes: set[Attribute] = field(default_factory=set[Attribute])


def names_of(operator: Operator, site: type) -> Names:
    """Return the kinds and attributes in a meaning, and in functions of the package that it calls.

    `site` is the class of the format's sites.
    """
    names = Names()
    seen: set[object] = set()
    waiting: list[Any] = [operator.meaning, *operator.attributes.values()]
    while waiting:
        x = waiting.pop()
        match x:
            case OperatorRow():
                names.kinds.add(x.kind.removesuffix("_"))
                waiting += [*x.inputs, *x.attributes.values()]
            case Attribute():
                names.attributes.add(x)
            case partial():
                waiting += [x.func, *x.args, *x.keywords.values()]
            case str():
                names.kinds.add(x)
            case tuple() | list():
                waiting += x
            case FunctionType() if x.__module__.startswith(_CODE) and x not in seen:
                seen.add(x)
                waiting += [cell.cell_contents for cell in x.__closure__ or ()]
                waiting += _followed(x.__code__, x.__globals__, site)
                for part in _codes(x.__code__):
                    names.kinds |= {*_kinds(part)}
                    names.attributes |= {*_attributes(part)}
            case _:
                pass
    names.kinds &= {*rules}
    return names


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _followed(code: CodeType, names: dict[str, Any], site: type) -> Iterator[Any]:
    """Yield the functions, rows and tables that a function names, and methods of its objects."""
    sites = site.__mro__
    classes = [*sites, *(x for x in names.values() if isinstance(x, type) and _adds(x))]
    for part in _codes(code):
        objects = (names[x] for x in part.co_names if x in names)
        yield from ([*x, *x.values()] if isinstance(x, dict) else x for x in objects)
        for owner in classes:
            for name in {*part.co_names} - (_AROUND if owner in sites else set()):
                method = getattr(owner, name, None)
                yield method.fget if isinstance(method, property) else method


def _adds(x: type) -> bool:
    """Tell whether methods of a class add operations, as those of the site do."""
    return x.__module__ in _HOMES or _FAMILIES.match(x.__module__) is not None


def _kinds(code: CodeType) -> Iterator[str]:
    """Yield the names that are got from builders, and texts, by which functions take kinds."""
    before = ""
    for instruction in dis.get_instructions(code):
        name, step = instruction.opname, instruction.argval
        if name in _METHODS and before in _BUILDERS:
            yield step.removesuffix("_")
        if name == "CALL" and not _CALLED.isdisjoint(code.co_names):
            before = "step_or_last"
        elif name not in ("CACHE", "PRECALL", "PUSH_NULL"):
            # An instruction may load two names.
            before = step[-1] if step and isinstance(step, tuple) else step
    yield from _texts(code.co_consts)


def _attributes(code: CodeType) -> Iterator[Attribute]:
    """Yield the attributes that calls of a site's methods name, as `site.int("axis", 0)`."""
    method, constants, is_whole = "", list[Any](), True
    for instruction in dis.get_instructions(code):
        match instruction.opname:
            case "CACHE" | "PUSH_NULL":
                continue
            case "LOAD_CONST":
                constants.append(instruction.argval)
                continue
            case "LOAD_ATTR" | "LOAD_METHOD":
                ends, following = True, instruction.argval
            case "FORMAT_VALUE" | "FORMAT_SIMPLE" | "BUILD_STRING":
                method, ends, following = "", True, ""
            case name:
                ends, following = name in ("PRECALL", "CALL", "KW_NAMES", "CALL_KW"), ""
        if ends and method in TYPES and constants and isinstance(constants[0], str):
            yield Attribute(constants[0], method, tuple(constants[1:]) if is_whole else ())
        if ends:
            method, constants, is_whole = following, [], True
        else:
            is_whole = False


def _texts(constants: Iterable[Any]) -> Iterator[str]:
    for x in constants:
        if isinstance(x, str) and x != "constant":  # of borders
            yield x
        elif isinstance(x, tuple):
            yield from _texts(x)
