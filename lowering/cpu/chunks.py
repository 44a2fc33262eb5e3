"""Compute a large batch a few items at a time, so that the tensors of the items fit the caches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from lowering.batches import Axes, NotSeparableError, batch_axes, resized
from lowering.contexts import is_enabled
from lowering.jaxpr_types import Atom, Equation, Variable
from lowering.jaxprs import CONVOLUTION, PRODUCT, primitive, variables
from lowering.program import Program
from lowering.rewriting import Computed, replaced
from lowering.targets.target import Target

# One operation reads and writes at most this number of bytes, 24 MB. With a limit of 32 MB a U-Net
# with a batch of 8 takes 5 to 10 % longer than with this limit. With a limit of 16 MB ResNet-50
# with a batch of 8 takes 4 % longer than with this limit.
_MOST_BYTES = 24 << 20

# A stage of light operations takes more items at a time than the heaviest operation of the program
# allows, since products gain from more rows. Each operation of such a stage reads and writes at
# most this number of bytes. With a limit of 24 MB the tensors between stages would be allocated
# again in each call. The measured times with batches of 8: ResNet-18 takes 222 ms in one stage, and
# 196 ms in up to three stages. MobileNetV2 takes 76 ms in one stage, and 61 ms in up to three.
_MOST_BYTES_OF_LIGHT_STAGE = 5 << 20
# The end of a stage may be delayed by this number of equations, so that the stage ends where it
# hands the fewest bytes to the next stage.
_ADDITIONAL_EQUATIONS = 16

# A stage without these primitives is joined to the stage before it. As a separate stage it would
# not be worth the copies at its ends.
_PRODUCTS = (CONVOLUTION, PRODUCT)


def run(program: Program, target: Target) -> Program:
    """Make loops that compute a few items of a batch at a time.

    All inputs must have the batch, and no equation may mix the items of the batch. A program is
    divided into stages, and each stage is a loop. If even the last stage takes only a part of the
    batch at a time, its loop contains the loops of the earlier stages. The tensors between stages
    then have only the items of one iteration.
    """
    parameter_count = program.parameters
    inputs = program.arguments[parameter_count:]
    may_loop = program.role == "value" and program.is_alone
    if not may_loop or not _is_batch(inputs):
        return program
    try:
        axes = batch_axes(program, dict.fromkeys(inputs, 0))
    except NotSeparableError:
        return program
    batch = inputs[0].aval.shape[0]
    equations = [equation for equation in program.equations if _varies(program, equation)]
    stages = _stages(equations, axes, batch)
    if len(stages) > 1:
        last_size, _ = stages[-1]
        if last_size < batch:
            # One loop has all equations. `_loop` divides the body of this loop into stages.
            stages = [(last_size, equations)]
    loops: list[Computed] = []
    for size, stage in stages:
        if size < batch:
            loops.append(_loop(program, target, axes, stage, size))
    return replaced(program, loops) if loops else program


def _is_batch(inputs: Sequence[Variable]) -> bool:
    """Tell whether the first axes of all inputs have one common extent, which is above 1."""
    first_extents: set[int] = set()
    for variable in inputs:
        shape = variable.aval.shape
        if not shape:
            return False
        first_extents.add(shape[0])
    return len(first_extents) == 1 and min(first_extents) > 1


def _varies(program: Program, equation: Equation) -> bool:
    """Tell whether an equation's results depend on more than the program's parameters."""
    return any(v not in program.known for v in equation.outvars)


def _loop(
    program: Program, target: Target, axes: Axes, equations: Sequence[Equation], size: int
) -> Computed:
    """Return a loop that computes the equations for `size` items of the batch at a time.

    `axes` maps each variable to the axis of its batch.
    """
    ids_inside = {id(equation) for equation in equations}
    computed: set[Atom] = set()
    read_inside: list[Variable] = []
    read_outside: list[Variable] = []
    for equation in program.equations:
        if id(equation) in ids_inside:
            computed.update(equation.outvars)
            read_inside += variables(equation.invars)
        elif _varies(program, equation):
            read_outside += variables(equation.invars)
    read_outside += variables(program.results)
    # The body computes these variables. All other variables that the body reads are inputs.
    computed_in_body = {*program.known, *computed}
    inputs = [v for v in dict.fromkeys(read_inside) if v not in computed_in_body]
    results = [v for v in dict.fromkeys(read_outside) if v in computed]
    parameters = program.arguments[: program.parameters]
    # The loop also has equations that depend only on parameters, since broadcasts among these
    # equations may be as large as a batch.
    body = run(resized(program.part([*parameters, *inputs], results), (axes, size)), target)

    def loop(*operands: Array) -> list[Array]:
        parameter_arrays = operands[: len(parameters)]
        input_arrays = operands[len(parameters) :]

        def compute_part(part: Sequence[Array]) -> list[Array]:
            return body(*parameter_arrays, *part)

        input_pairs = zip(inputs, input_arrays, strict=True)
        parts = [_divided(array, axes[variable], size) for variable, array in input_pairs]
        stacks = jax.lax.map(compute_part, parts)
        result_pairs = zip(results, stacks, strict=True)
        return [_joined(stack, axes[variable]) for variable, stack in result_pairs]

    return Computed(loop, [*parameters, *inputs], results, at=equations[-1])


def _divided(x: Array, axis: int, size: int) -> Array:
    """Divide an axis into parts of `size` items, and stack the parts along a new axis 0."""
    before = x.shape[:axis]
    after = x.shape[axis + 1 :]
    parts = x.reshape(*before, -1, size, *after)  # (*before, parts, size, *after)
    return jnp.moveaxis(parts, axis, 0)


def _joined(x: Array, axis: int) -> Array:
    """Undo `_divided`: take the parts from axis 0 of x, and join them along `axis`."""
    x = jnp.moveaxis(x, 0, axis)  # (*before, parts, size, *after)
    before = x.shape[:axis]
    after = x.shape[axis + 2 :]
    return x.reshape(*before, -1, *after)


def _stages(
    equations: Sequence[Equation], axes: Axes, batch: int
) -> list[tuple[int, Sequence[Equation]]]:
    """Divide equations into groups, and choose how many items each group computes at a time.

    Return a pair for each group: the number of items, and the equations. A group takes as many
    items as its equations and all later equations allow.
    """
    divisors = [n for n in range(1, batch + 1) if batch % n == 0]
    traffic = [_traffic(equation, axes) for equation in equations]  # in bytes, for the full batch
    # All equations allow this number of items, since the heaviest equation does.
    allowed_by_all = _most_items(divisors, max(traffic, default=0), _MOST_BYTES)
    if not is_enabled("stages"):
        return [(allowed_by_all, equations)]
    allowed_alone: list[int] = []
    for nbytes in traffic:
        allowed_in_light_stage = _most_items(divisors, nbytes, _MOST_BYTES_OF_LIGHT_STAGE)
        allowed_alone.append(max(allowed_by_all, allowed_in_light_stage))
    # An equation takes no more items than any later equation: (8, 4, 2, 4) becomes (2, 2, 2, 4).
    allowed = list(itertools.accumulate(reversed(allowed_alone), min))
    allowed.reverse()
    groups: list[tuple[int, Sequence[Equation]]] = []
    start = 0
    while start < len(equations):
        stop = start
        while stop < len(equations) and allowed[stop] <= allowed[start]:
            stop += 1
        # The equations from `stop` on allow more items than this group has. The group may take a
        # few of these equations, so that the group hands on fewer bytes.
        stop = _cheapest_end(equations, stop)
        group = equations[start:stop]
        has_products = any(primitive(equation) in _PRODUCTS for equation in group)
        if groups and not has_products:
            # A stage without products is not worth the copies at its ends.
            size, previous = groups.pop()
            groups.append((size, [*previous, *group]))
        else:
            groups.append((allowed[start], group))
        start = stop
    return groups


def _most_items(divisors: Sequence[int], nbytes: int, limit: int) -> int:
    """Return the largest number n of items that need at most `limit` bytes.

    n is one of the divisors of the batch. The last divisor is the batch itself, which needs
    `nbytes`. If a single item needs more than the limit, the result is 1.
    """
    batch = divisors[-1]
    # n items need n * nbytes / batch bytes.
    return max((n for n in divisors if n * nbytes <= limit * batch), default=1)


def _cheapest_end(equations: Sequence[Equation], start: int) -> int:
    """Return the index before which a stage ends, so that the stage hands on the fewest bytes.

    The index is at least `start` and at most `start` + `_ADDITIONAL_EQUATIONS`.
    """
    computed_at: dict[Atom, int] = {}
    last_read_at: dict[Atom, int] = {}
    for index, equation in enumerate(equations):
        computed_at.update(dict.fromkeys(equation.outvars, index))
        last_read_at.update(dict.fromkeys(variables(equation.invars), index))

    def bytes_handed_on(stop: int) -> int:
        """Return how many bytes are computed before `stop`, and are read later or are results."""
        nbytes = 0
        for variable, index in computed_at.items():
            is_computed_before = index < stop
            last_read = last_read_at.get(variable)  # None if no equation reads this result
            is_read_later = last_read is None or last_read >= stop
            if is_computed_before and is_read_later:
                nbytes += _bytes(variable)
        return nbytes

    latest = min(start + _ADDITIONAL_EQUATIONS, len(equations))
    return min(range(start, latest + 1), key=bytes_handed_on)


def _traffic(equation: Equation, axes: Axes) -> int:
    """Return the number of bytes that an equation reads and writes.

    Only variables that have the axis of the batch are counted.
    """
    operands_and_results = variables([*equation.invars, *equation.outvars])
    return sum(_bytes(v) for v in operands_and_results if v in axes)


def _bytes(variable: Atom) -> int:
    """Return the number of bytes of a variable's items."""
    return math.prod(variable.aval.shape) * variable.aval.dtype.itemsize
