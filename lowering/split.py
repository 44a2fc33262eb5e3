"""Splits a program into a preparation, which reads only parameters, and the call."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Iterable, Sequence
from functools import cache, partial
from itertools import filterfalse
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from lowering import jaxprs, primitives
from lowering.jaxpr_types import Atom, Equation, Variable
from lowering.jaxprs import is_literal, primitive, variables
from lowering.prepare import Split
from lowering.program import Program
from lowering.recipe import Recipe, Step, params_of_numpy

if TYPE_CHECKING:
    from lowering.targets.target import Target

# A prepared value has at most this number of items for each item of the largest parameter from
# which it is computed. Larger values are broadcasts. To repeat a broadcast in each call is cheaper
# than to read the result of the broadcast.
_MOST_ITEMS_PER_SOURCE_ITEM = 4
# An item of a prepared value has at most this number of bits for each bit of an item of the
# parameter. A value of more than `_LARGE_BYTES` bytes must stay below this limit. A language model
# with 4-bit weights would need eight times the memory if the weights were stored in 32 bits.
_MOST_BITS_PER_SOURCE_BIT = 4
_LARGE_BYTES = 32 << 20
# The results of these primitives may have the items of the operand in the same order, see
# `_is_free`. To prepare such a result would store one more copy of a weight.
_FREE = ("broadcast_in_dim", "optimization_barrier", "reshape", "squeeze")
# A float32 value of a bfloat16 network is stored in bfloat16 if it has at least this number of
# items. Each call widens the value again. In float32 such values would take twice the memory of
# their parameters.
_FEWEST_NARROW_ITEMS = 2 << 10


def split(program: Program, target: Target | None = None) -> Split:
    """Split a program into a preparation, which reads only parameters, and a call.

    A value that depends only on parameters is prepared if `_is_worth_storing` is true for the
    value, unless `target.is_in_call` leaves the computation to the call. Without a target, the
    split is for an unknown platform.
    """
    platform = None if target is None else target.platform
    program = program.with_closed(jaxprs.inlined(program.closed))
    prepared, later = _prepared_and_later(program, target)
    if platform != "cpu":
        # TPUs and GPUs multiply by a transposed matrix without a copy. If a call reads a parameter
        # itself, transpositions of this parameter are not prepared.
        roots_read = {*prepared} & {*_roots(program)}
        prepared, later = _prepared_and_later(program, target, roots_read)
    drops_unit_axes = target is not None and target.drops_unit_axes
    first, sources = _first(program, prepared, drops_unit_axes=drops_unit_axes)
    inputs = program.arguments[program.parameters :]
    call_jaxpr = jaxprs.of_equations(
        program.closed,
        later,
        program.results,
        constants=_numbers(program),
        arguments=[*prepared, *inputs],
    )
    evaluate = primitives.as_call(call_jaxpr)

    def call(values: Sequence[Array], inputs: Sequence[Array]) -> list[Any]:
        return evaluate(*map(_as_read, values, prepared), *inputs)

    return Split(
        sources=sources,
        first=first,
        call=call,
        platform=platform,
        make_recipe=cache(partial(recipe_of, first)),
        later=call_jaxpr,
    )


def _first(
    program: Program, prepared: Sequence[Variable], *, drops_unit_axes: bool
) -> tuple[Program, tuple[int | None, ...]]:
    """Return the program that computes prepared values from parameters, and `Split.sources`.

    The program does not compute parameters that are stored as they are. If `drops_unit_axes` is
    true, values are stored without their axes of extent 1.
    """
    parameters = program.arguments[: program.parameters]
    narrow = _narrow(program, prepared)
    stored = [narrow.get(v, v) for v in prepared]  # the variable that is stored for each value
    indices = {v: i for i, v in enumerate(parameters)}
    flat = _flat(prepared, parameters) if drops_unit_axes else frozenset[Variable]()
    computed = [v for v in stored if v not in indices or v in flat]
    early = list(filterfalse(program.is_late, program.equations))
    closed = jaxprs.of_equations(program.closed, early, computed, arguments=parameters)
    first = program.with_closed(closed)
    has_other_types = any(v in flat or v in narrow for v in computed)
    if has_other_types:
        types = [_stored_type(v, is_flat=v in flat, is_narrow=v in narrow) for v in computed]
        first = first.retraced(partial(_stored, first, types))
    sources = tuple(None if v in flat else indices.get(v) for v in stored)
    return first, sources


def _as_read(x: Array, variable: Atom) -> Any:
    """Convert a prepared value to the type of the call's variable.

    The variable may have more bits, and axes of extent 1 that the prepared value lacks.
    """
    aval = variable.aval
    x = x if x.dtype == aval.dtype else x.astype(aval.dtype)
    return x if x.shape == aval.shape else x.reshape(aval.shape)


def _flat(prepared: Iterable[Variable], parameters: Collection[Variable]) -> frozenset[Variable]:
    """Return the prepared variables that are stored without their axes of extent 1.

    Of the parameters, only vectors are stored in this way, because larger parameters would be
    copied.
    """
    flat: list[Variable] = []
    for v in prepared:
        has_unit_axes = 1 in v.aval.shape
        is_vector = max(v.aval.shape, default=1) == _size(v)
        if has_unit_axes and (is_vector or v not in parameters):
            flat.append(v)
    return frozenset(flat)


def _stored_type(variable: Atom, *, is_flat: bool, is_narrow: bool) -> jax.ShapeDtypeStruct:
    """Return the type in which a prepared variable is stored.

    If `is_flat` is true, axes of extent 1 are left out. If `is_narrow` is true, the dtype is
    bfloat16.
    """
    shape, dtype = variable.aval.shape, variable.aval.dtype
    if is_flat:
        shape = tuple(extent for extent in shape if extent != 1)
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16 if is_narrow else dtype)


def _prepared_and_later(
    program: Program, target: Target | None, roots_read: Collection[Variable] = ()
) -> tuple[list[Variable], list[Equation]]:
    """Return the variables to prepare, and the equations that a call evaluates.

    `roots_read` has parameters that calls read in any case. Their transpositions are not prepared.
    """
    sources = _sources(program)
    prepared: dict[Variable, None] = {}
    later: list[Equation] = []
    needed = set(variables(program.results))  # the variables that calls read
    is_left_by_target = None if target is None else target.is_in_call

    def is_in_call(equation: Equation) -> bool:
        """Tell whether calls evaluate an equation that reads only parameters."""
        if _is_free(equation) or _transposed_root(program, equation) in roots_read:
            return True
        return is_left_by_target is not None and is_left_by_target(program, equation)

    # From the last equation to the first: the readers of a variable come before its maker.
    for equation in reversed(program.equations):
        is_late = program.is_late(equation)
        results = [v for v in equation.outvars if v in needed]
        if not is_late and not is_in_call(equation):
            for v in results:
                source_items, source_bits = sources[v]
                if _is_worth_storing(v, source_items, source_bits):
                    prepared[v] = None
        are_all_prepared = all(v in prepared for v in results)
        if is_late or not are_all_prepared:
            later.append(equation)
            needed.update(variables(equation.invars))
    later.reverse()
    roots = [v for v in _roots(program) if v in needed]
    return [*roots, *prepared], later


def _is_free(equation: Equation) -> bool:
    """Tell whether an equation leaves all items of its operands in their order in memory."""
    name = primitive(equation)
    transposes = name == "reshape" and equation.params["dimensions"] is not None
    if name not in _FREE or transposes:
        return False
    if any(map(is_literal, equation.invars)):
        return False
    # A broadcast that repeats items has more items in its result.
    return [*map(_size, equation.invars)] == [*map(_size, equation.outvars)]


def _transposed_root(program: Program, equation: Equation) -> Atom | None:
    """Return the variable that an equation transposes, or None if it is no transposition.

    If the operand is a reshape of a variable, this variable is returned. It may be a parameter.
    """
    if primitive(equation) != "transpose":
        return None
    (operand,) = equation.invars
    maker = program.makers.get(operand)
    while maker is not None and _is_free(maker):
        operand = maker.invars[0]
        maker = program.makers.get(operand)
    return operand


def _roots(program: Program) -> list[Variable]:
    """Return the variables of a program's parameters, and of constants of several items."""
    numbers = _numbers(program)
    constants = [v for v in program.constants if v not in numbers]
    return [*program.arguments[: program.parameters], *constants]


def _numbers(program: Program) -> dict[Variable, Any]:
    """Map the constants of one item to their values.

    These constants stay constants of the call. If they were arguments of the call, a TPU would
    copy each of them to its vector memory in every call.
    """
    constants = zip(program.constants, program.closed.consts, strict=True)
    return {v: x for v, x in constants if _size(v) == 1 and not _is_key(x)}


def _is_key(x: Any) -> bool:
    """Tell whether an array has random keys, which cannot be constants of a program."""
    return jnp.issubdtype(x.dtype, jax.dtypes.extended)


def _sources(program: Program) -> dict[Variable, tuple[int, int]]:
    """Map each early variable to the size of the largest parameter from which it is computed.

    The size is a pair: the number of items, and the bits of an item. For a concatenation or
    stack, the number of items is the sum over the operands.
    """
    no_parameter = 0, 1  # with 0 items nothing is worth storing
    sources: dict[Variable, tuple[int, int]] = {}
    for variable in _roots(program):
        sources[variable] = _size(variable), _bits(variable)
    sources.update(dict.fromkeys(_numbers(program), no_parameter))
    for equation in filterfalse(program.is_late, program.equations):
        operand_sources = [sources[v] for v in variables(equation.invars)]
        items, bits = max(operand_sources, default=no_parameter)
        if primitive(equation) in ("concatenate", "stack"):
            items = sum([operand_items for operand_items, _ in operand_sources])
        sources.update(dict.fromkeys(equation.outvars, (items, bits)))
    return sources


def _is_narrow(program: Program) -> bool:
    """Tell whether all floating-point arguments of a program are bfloat16."""
    dtypes = {v.aval.dtype for v in program.arguments}
    floating = {dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)}
    return floating == {jnp.dtype(jnp.bfloat16)}


def _narrow(program: Program, prepared: Iterable[Variable]) -> dict[Variable, Variable]:
    """Map large prepared variables of float32 to the variables that are stored in bfloat16.

    If a variable is converted from bfloat16, the operand of the conversion is stored. Otherwise
    the variable itself is rounded and stored. The map is empty unless all floating-point
    arguments are bfloat16.
    """
    if not _is_narrow(program):
        return {}
    narrow: dict[Variable, Variable] = {}
    for v in prepared:
        if v.aval.dtype == jnp.float32 and _size(v) >= _FEWEST_NARROW_ITEMS:
            narrow[v] = v
    for equation in program.equations:
        if primitive(equation) == "convert_element_type" and equation.outvars[0] in narrow:
            (source,) = equation.invars
            if source.aval.dtype == jnp.bfloat16:
                narrow[equation.outvars[0]] = source
    return narrow


def _stored(
    program: Program, types: Sequence[jax.ShapeDtypeStruct], *arguments: Array
) -> list[Array]:
    """Evaluate a program, and convert its results to the types in which they are stored."""
    results = zip(program(*arguments), types, strict=True)
    return [x.astype(type.dtype).reshape(type.shape) for x, type in results]


def _is_worth_storing(variable: Atom, source_items: int, source_bits: int) -> bool:
    """Tell whether to prepare a variable, and not to compute the variable in each call.

    The largest parameter from which the variable is computed has `source_items` items of
    `source_bits` bits. The variable must not be much larger than this parameter.
    """
    size = _size(variable)
    bits_per_source_bit = _bits(variable) / source_bits
    if size > _MOST_ITEMS_PER_SOURCE_ITEM * source_items:
        return False
    if bits_per_source_bit > _MOST_BITS_PER_SOURCE_BIT:
        return False
    # A large variable must stay below the limit. A smaller variable may reach the limit.
    is_large = size * _bits(variable) // 8 > _LARGE_BYTES
    return bits_per_source_bit < _MOST_BITS_PER_SOURCE_BIT or not is_large


def _bits(variable: Atom) -> int:
    """Return the bits of one item of a variable: 4 for int4, and 8 for bool.

    The dtype's itemsize does not tell this number, since the itemsize of dtypes of 4 bits is 1
    byte.
    """
    digits = re.search("[0-9]+", variable.aval.dtype.name)
    return max(int(digits[0]), 1) if digits else 8


def _size(variable: Atom) -> int:
    """Return the number of items of a variable."""
    return math.prod(variable.aval.shape)


def recipe_of(program: Program) -> Recipe:
    """Return a recipe of the results of a program. All results must be variables."""
    count = len(program.arguments)
    # Maps variables to the numbers of their values, as `Recipe` numbers values.
    numbers = {variable: i for i, variable in enumerate(program.arguments)}
    steps: list[Step] = []

    def add_step(step: Step) -> int:
        """Add a step, and return the number of its value."""
        steps.append(step)
        return count + len(steps) - 1

    def number_of(operand: Atom) -> int:
        """Return the number of an operand's value. A literal becomes a step."""
        if not is_literal(operand):
            return numbers[operand]
        value = np.asarray(operand.val, operand.aval.dtype)
        return add_step(Step(_text(value), constant=value))

    for variable, x in zip(program.constants, program.closed.consts, strict=True):
        constant = None if _is_key(x) else np.asarray(x)
        numbers[variable] = add_step(Step(_text(x), constant=constant))
    for equation in program.equations:
        operands = tuple(map(number_of, equation.invars))
        params = params_of_numpy(equation)
        name = "" if params is None else primitive(equation)  # "": numpy cannot compute it
        text = _text_of_equation(equation)
        for index, variable in enumerate(equation.outvars):
            step = Step(f"{text} {index}", operands, primitive=name, params=params or ())
            numbers[variable] = add_step(step)
    return Recipe(count, tuple(steps), tuple(map(numbers.__getitem__, program.results)))


def _text_of_equation(equation: Equation) -> str:
    """Return a text that, together with the operands, determines an equation's results."""
    types = list(map(attrgetter("aval"), equation.invars))
    parts = primitive(equation), types, equation.params, repr(equation.ctx)
    # An equation may leave its precision to the settings of jax.
    settings: Any = jax.config
    precision = settings.jax_default_matmul_precision if "precision" in equation.params else None
    return _text((parts, precision))


def _text(item: object) -> str:
    """Return a text for an object, such that different objects have different texts.

    If possible, the text is the same in all processes.
    """
    match item:
        case np.ndarray() | jax.Array():
            array = _on_host(item)
            content = hashlib.sha256(array.tobytes()).hexdigest()
            return f"{item.dtype}{array.shape}{content}"
        case dict():
            return _text(sorted((repr(key), _text(x)) for key, x in item.items()))
        case tuple() | list() if type(item) in (tuple, list):
            return f"({','.join(map(_text, item))})"
        case _ if jaxprs.is_traced(item):
            # `str` leaves out the values of constants, and the settings of jax.
            constants = list(getattr(item, "consts", ()))
            return _text((str(item), constants, list(map(_text_of_equation, item.eqns))))
        case _:
            text = repr(item)
            is_function = callable(item) and not isinstance(item, type)
            has_address = " at 0x" in text
            if is_function or has_address:
                # Two objects may have equal texts. The random number makes the text unique.
                return f"{text} {uuid4()}"
            return text


def _on_host(array: Array | NDArray[Any]) -> NDArray[Any]:
    """Return an array as a numpy array. Random keys become arrays of integers."""
    if not jnp.issubdtype(array.dtype, jax.dtypes.extended):
        return np.asarray(array)
    with jax.ensure_compile_time_eval():  # also while a function is traced
        return np.asarray(jax.random.key_data(array))
