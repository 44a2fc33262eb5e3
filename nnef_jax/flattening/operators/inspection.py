"""Finds which kinds of operations, and which attributes, the function of an operator uses."""

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

# Maps methods of a site to the types of the attributes that they read.
TYPES = {
    "flag": "truth value", "number": "number", "int": "integer", "numbers": "numbers",
    "ints": "integers", "axis_of": "axis", "dtype": "element type", "text": "text", "word": "word",
    "choice": "word", "subgraph": "graph", "body": "graph",
    "spatial": "integers", "axes": "axes",
}  # fmt: skip

# Names of variables and attributes that hold a `ByKind`.
_BUILDERS = {"add", "end", "last", "step", "step_on", "step_or_last"}
# Names of Python's bytecode instructions: those that load a method, those that format a string, and
# all instructions that end the arguments of a call.
_METHODS = ("LOAD_ATTR", "LOAD_METHOD")
_FORMATS = ("FORMAT_VALUE", "FORMAT_SIMPLE", "BUILD_STRING")
_ENDS = (*_METHODS, *_FORMATS, "PRECALL", "CALL", "CALL_KW", "KW_NAMES")
_CALLED = {"step_on", "step_or_last"}  # methods that return a `ByKind`
# Methods that any operator may call to align operands, to compute on the host, to put a constant
# into the graph, or to count the items of a list. The table of operators leaves out the operations
# that these methods add.
_SHARED = {
    "_emit", "_insert", "aligned", "emit", "evaluated", "folded", "insert", "integer", "integers",
    "is_folded", "item", "known", "last", "step", "step_on", "tensor",
}  # fmt: skip
# Modules whose classes have methods that add operations. The modules of operators are left out.
_HOMES = ("nnef_jax.flattening.recurrent_cells", "nnef_jax.flattening.repetition")
_CODE = ("nnef_jax.flattening.", "nnef_jax.formats.")
_FAMILIES = re.compile(r"nnef_jax\.formats\.\w+\.\w+\.")


@dataclass(slots=True)
class Inspection:
    """The operations and attributes that the function of an operator uses.

    Args:
        kinds: the names of all operations that the operator may become. Constants that become
            operands, and operations that align operands, are left out.
        attributes: the attributes that the function may read, and those that its registration
            declares.
    """

    kinds: set[str] = field(default_factory=set[str])
    attributes: set[Attribute] = field(default_factory=set[Attribute])


def inspected(operator: Operator, site: type) -> Inspection:
    """Return the operations and attributes that the function of an operator uses.

    The code of all functions of this package that the function calls is inspected too. `site` is
    the class of the format's sites.
    """
    inspection = Inspection()
    seen: set[object] = set()
    waiting: list[Any] = [operator.meaning, *operator.attributes.values()]
    while waiting:
        x = waiting.pop()
        match x:
            case OperatorRow():
                inspection.kinds.add(x.kind.removesuffix("_"))
                waiting += [*x.inputs, *x.attributes.values()]
            case Attribute():
                inspection.attributes.add(x)
            case partial():
                waiting += [x.func, *x.args, *x.keywords.values()]
            case str():
                inspection.kinds.add(x)
            case tuple() | list():
                waiting += x
            case FunctionType() if x.__module__.startswith(_CODE) and x not in seen:
                seen.add(x)
                closure = x.__closure__ or ()
                waiting += [cell.cell_contents for cell in closure]
                waiting += _objects_used(x.__code__, x.__globals__, site)
                for code in _codes_within(x.__code__):
                    inspection.kinds |= {*_kinds(code)}
                    inspection.attributes |= {*_attributes(code)}
            case _:
                pass
    inspection.kinds &= {*rules}  # most strings of the code are not the name of an operation
    return inspection


def _codes_within(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function, and the code of all functions that are defined inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_within(constant)


def _objects_used(code: CodeType, namespace: dict[str, Any], site: type) -> Iterator[Any]:
    """Yield the objects that a function may use: globals of its module, and methods of classes.

    `namespace` has the globals of the function's module, and `site` is the class of the format's
    sites.
    """
    site_classes = site.__mro__
    classes = [*site_classes]
    classes += [x for x in namespace.values() if isinstance(x, type) and _may_add_operations(x)]
    for inner_code in _codes_within(code):
        names = {*inner_code.co_names}
        for name in names.intersection(namespace):
            used = namespace[name]
            if isinstance(used, dict):  # a table of functions or operation names, for example
                yield [*used, *used.values()]
            else:
                yield used
        for class_ in classes:
            is_site_class = class_ in site_classes
            method_names = names - _SHARED if is_site_class else names
            for name in method_names:
                method = getattr(class_, name, None)
                yield method.fget if isinstance(method, property) else method


def _may_add_operations(class_: type) -> bool:
    """Tell whether the module of a class has code that may add operations to a graph."""
    module = class_.__module__
    return module in _HOMES or _FAMILIES.match(module) is not None


def _kinds(code: CodeType) -> Iterator[str]:
    """Yield the kinds (names of operations) that may occur in a function's code.

    An attribute that the code reads from a `ByKind` is a kind. All strings of the code are yielded
    too, because the code may pass a kind as an argument.
    """
    calls_builder = not _CALLED.isdisjoint(code.co_names)
    previous: Any = ""  # the name that the previous instruction loads
    for instruction in dis.get_instructions(code):
        instruction_name = instruction.opname
        argument = instruction.argval
        if instruction_name in _METHODS and previous in _BUILDERS:
            yield argument.removesuffix("_")
        if instruction_name in ("CACHE", "PRECALL", "PUSH_NULL"):
            continue  # these instructions load no name
        if instruction_name == "CALL" and calls_builder:
            previous = "step_or_last"  # the method may be one of `_CALLED`, and return a `ByKind`
        elif argument and isinstance(argument, tuple):
            # An instruction may load two names. The second name is then on top of the stack.
            previous = argument[-1]
        else:
            previous = argument
    yield from _strings(code.co_consts)


def _attributes(code: CodeType) -> Iterator[Attribute]:
    """Yield the attributes that the code of a function reads by calling methods of a site.

    An example of such a call is `site.int("axis", 0)`, whose instructions load the method "int",
    load the constants "axis" and 0, and end the call.
    """
    method = ""  # the method that is called next
    constants: list[Any] = []  # the constants among the method's arguments
    are_constant = True  # whether all arguments of the method are constants
    for instruction in dis.get_instructions(code):
        instruction_name = instruction.opname
        if instruction_name in ("CACHE", "PUSH_NULL"):
            continue
        if instruction_name in ("LOAD_CONST", "LOAD_SMALL_INT"):
            constants.append(instruction.argval)
            continue
        if instruction_name not in _ENDS:
            are_constant = False
            continue
        if instruction_name in _FORMATS:
            method = ""
        elif instruction_name == "CALL_KW":
            # Since Python 3.13 the last constant holds the names of the keyword arguments.
            constants = constants[:-1]
        reads_attribute = method in TYPES and len(constants) > 0
        if reads_attribute and isinstance(constants[0], str):
            attribute_name, *default_or_words = constants
            arguments = tuple(default_or_words) if are_constant else ()
            yield Attribute(attribute_name, method, arguments)
        method = instruction.argval if instruction_name in _METHODS else ""
        constants = []
        are_constant = True


def _strings(constants: Iterable[object]) -> Iterator[str]:
    """Yield the strings among a code object's constants, also strings inside tuples."""
    for constant in constants:
        # "constant" is a kind too, but in these strings it is the name of a border.
        if isinstance(constant, str) and constant != "constant":
            yield constant
        elif isinstance(constant, tuple):
            yield from _strings(constant)
