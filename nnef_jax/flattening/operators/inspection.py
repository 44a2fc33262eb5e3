"""The kinds of operations that the meaning of an operator names in its code."""

from __future__ import annotations

import dis
import re
from collections.abc import Iterable, Iterator
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from lowering.ops import rules
from nnef_jax.flattening.operators.registry import Operator, OperatorRow

# Names that hold a `ByKind`, besides attributes of the site.
_BUILDERS = {"add", "end", "last", "step", "step_on", "step_or_last"}
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


def kinds_of(operator: Operator, site: type) -> list[str]:
    """Return the kinds that a meaning names, and the functions of the package that it calls.

    It may become operations of some of these kinds, and of no other. Constants that operands are,
    and operations that align operands, are left out. `site` is the class of the format's sites.
    """
    kinds: set[str] = set()
    seen: set[object] = set()
    waiting: list[Any] = [operator.meaning, *operator.attributes.values()]
    while waiting:
        x = waiting.pop()
        match x:
            case OperatorRow():
                kinds.add(x.kind.removesuffix("_"))
                waiting += [*x.inputs, *x.attributes.values()]
            case partial():
                waiting += [x.func, *x.args, *x.keywords.values()]
            case str():
                kinds.add(x)
            case tuple() | list():
                waiting += x
            case FunctionType() if x.__module__.startswith(_CODE) and x not in seen:
                seen.add(x)
                waiting += [cell.cell_contents for cell in x.__closure__ or ()]
                waiting += _followed(x.__code__, x.__globals__, site)
                kinds |= {*_named(x.__code__)}
            case _:
                pass
    return sorted(kinds & {*rules})


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


def _named(code: CodeType) -> Iterator[str]:
    """Yield the names that are got from builders, and texts, by which functions take kinds."""
    for part in _codes(code):
        before = ""
        for instruction in dis.get_instructions(part):
            name, step = instruction.opname, instruction.argval
            if name in ("LOAD_ATTR", "LOAD_METHOD") and before in _BUILDERS:
                yield step.removesuffix("_")
            if name == "CALL" and not _CALLED.isdisjoint(part.co_names):
                before = "step_or_last"
            elif name not in ("CACHE", "PRECALL", "PUSH_NULL"):
                # An instruction may load two names.
                before = step[-1] if step and isinstance(step, tuple) else step
        yield from _texts(part.co_consts)


def _texts(constants: Iterable[Any]) -> Iterator[str]:
    for x in constants:
        if isinstance(x, str) and x != "constant":  # of borders
            yield x
        elif isinstance(x, tuple):
            yield from _texts(x)
