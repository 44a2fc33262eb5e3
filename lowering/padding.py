"""Evaluates a program with symbolic extents on padded arrays, whose real extents a run tells.

jax traces a function for extents such as `P + 1`, where P is a symbol of `jax.export`. Here each
such axis has as many places as it can ever need. The items come first, and the places behind them
are padding of arbitrary values. The number of items is the value of the extent, computed from an
array for each symbol. Sums, maxima and products do not read padding. A concatenation writes each
part behind the items of the parts before it.

    (P,) = jax.export.symbolic_shape("P", constraints=["P <= 7"])
    types = [jax.ShapeDtypeStruct((P,), "float32"), jax.ShapeDtypeStruct((1,), "float32")]
    mean = PaddedFunction(lambda x, y: jnp.concatenate([x, y]).mean(), *types)
    mean(SymbolValues({"P": 7}, {"P": jnp.int32(3)}), jnp.zeros(8), jnp.ones(1))
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from lowering import jaxpr_evaluation, jaxprs
from lowering.extents import is_symbolic, runs_of
from lowering.facts import facts
from lowering.jaxpr_types import Atom, ClosedJaxpr, Equation, Variable
from lowering.jaxprs import CONVOLUTION, PRODUCT, SCAN, is_literal, primitive
from lowering.program import Program
from lowering.rewriting import Rules
from lowering.symbol_values import SymbolValues

Shape = Sequence[Any]  # extents; some may be symbolic


class NotPaddableError(Exception):
    """Raised if no rule evaluates an equation on padded arrays.

    Attributes:
        operation: the name of the operation that the equation comes from, or "".
        primitive: the name of the equation's primitive.
    """

    def __init__(self, equation: Equation) -> None:
        super().__init__(f"no rule evaluates '{primitive(equation)}' on padded arrays")
        self.operation = jaxprs.outer_scope(equation)
        self.primitive = primitive(equation)


def padded(
    program: Program,
    arguments: Sequence[Array],
    symbols: SymbolValues,
    finite: Collection[int] = (),
) -> list[Array]:
    """Evaluate a program with symbolic extents on padded arrays. Its results are padded too.

    An axis of a result has as many places as its extent has at most.

    Args:
        program: a program of low-level primitives.
        arguments: arrays with at least as many places along an axis as its extent has items.
        symbols: the values of the symbols.
        finite: the numbers of the arguments whose padding has no NaN and no infinity. Products
            then need not replace the padding by 0, which would copy these arguments.

    Raises NotPaddableError if an equation has no rule.
    """
    return _Padded(symbols).evaluated(program, arguments, finite)


class PaddedFunction:
    """A function that is traced for types with symbolic extents, and computes on padded arrays.

    The docstring of this module has an example.
    """

    def __init__(self, function: Callable[..., object], *types: object) -> None:
        """Trace a function for types, which are pytrees of `jax.ShapeDtypeStruct`."""
        closed, result = jaxpr_evaluation.make_jaxpr_and_types(function, *types)
        self._program: Program = Program(closed).low_level()
        self._tree: Any = jax.tree.structure(result)

    def __call__(
        self, symbols: SymbolValues, *arguments: object, finite: Collection[int] = ()
    ) -> Any:
        """Return the function's results, padded to the bounds of their extents.

        `finite` numbers arrays among the leaves of the arguments, as in `padded`.
        """
        results = padded(self._program, jax.tree.leaves(arguments), symbols, finite)
        return jax.tree.unflatten(self._tree, results)


class _Padded:
    def __init__(self, symbols: SymbolValues) -> None:
        self.symbols = symbols
        self.finite: set[Variable] = set()

    def evaluated(
        self, program: Program, arguments: Sequence[Array], finite: Collection[int]
    ) -> list[Array]:
        # Calls of one function share its variables, so a mark of an earlier call must not stay.
        self.finite.difference_update(program.arguments)
        self.finite.update(program.arguments[i] for i in finite)
        results = program.evaluated(arguments, self._compute)
        return [self.cut(v, x) for v, x in zip(program.results, results, strict=True)]

    def _compute(self, equation: Equation, operands: list[Any]) -> Sequence[Any]:
        function = jaxprs.called(equation)
        if function is not None and _is_symbolic(equation):
            inner = Program(function)
            finite = [i for i, v in enumerate(equation.invars) if self.is_finite(v)]
            return self.evaluated(inner, operands, finite)
        if not _is_symbolic(equation):
            return jaxpr_evaluation.bind(equation, operands)
        rule = _RULES.rule_for(equation)
        if rule is None:
            raise NotPaddableError(equation)
        if primitive(equation) != "concatenate":
            pairs = zip(equation.invars, operands, strict=True)
            operands = [self.cut(v, x) for v, x in pairs]
        fact = facts(equation)
        moves_items = fact.moves or fact.shapes
        self.finite.difference_update(equation.outvars)
        if moves_items and all(map(self.is_finite, equation.invars)):
            self.finite.update(equation.outvars)
        return rule(self, equation, operands)

    def is_finite(self, v: Atom) -> bool:
        """Tell whether an operand has no padding, or padding without NaN and infinity."""
        return is_literal(v) or v in self.finite or not any(map(is_symbolic, _shape(v)))

    def cut(self, v: Atom, x: Any) -> Any:
        """Return an array without the places that its extents never need."""
        for axis, extent in enumerate(_shape(v)):
            if is_symbolic(extent):
                bound = self.symbols.bound(extent)
                if x.shape[axis] > bound:
                    x = lax.slice_in_dim(x, 0, bound, axis=axis)
        return x

    def bound(self, equation: Equation, operands: Sequence[Any], **params: Any) -> list[Any]:
        """Evaluate an equation. Its parameters get the largest value of each symbolic extent."""
        params = equation.params | params
        changed = {k: self.symbols.bounds(x) for k, x in params.items() if _has_symbols(x)}
        return jaxpr_evaluation.bind(equation, operands, **(params | changed))

    def is_item(self, x: Any, axis: int, extent: Any) -> Array:
        """Tell which places of x along an axis are items, and which are padding.

        `extent` is the extent of the axis. The result broadcasts with x.
        """
        shape = [1] * x.ndim
        shape[axis] = x.shape[axis]
        places = lax.broadcasted_iota(jnp.int32, shape, axis)
        return places < self.symbols.value(extent)

    def hidden(self, v: Atom, x: Any, axes: Collection[int], padding: Any) -> Any:
        """Return x with `padding` in place of the values of its padding along `axes`.

        v is the variable whose array x is.
        """
        for axis in axes:
            extent = _shape(v)[axis]
            if is_symbolic(extent):
                x = jnp.where(self.is_item(x, axis, extent), x, jnp.asarray(padding, x.dtype))
        return x


def _shape(v: Atom) -> Shape:
    return getattr(v.aval, "shape", ())


def _has_symbols(parameter: object) -> bool:
    if isinstance(parameter, tuple):
        return any(map(_has_symbols, parameter))  # pyright: ignore[reportUnknownArgumentType]
    return is_symbolic(parameter)


def _is_symbolic(equation: Equation) -> bool:
    """Tell whether an operand, a result or a parameter of an equation has a symbolic extent."""
    variables = (*equation.invars, *equation.outvars)
    return any(any(map(is_symbolic, _shape(v))) for v in variables) or any(
        map(_has_symbols, equation.params.values())
    )


_RULES = Rules()


@_RULES("iota", "broadcast_in_dim", "transpose", "squeeze", "optimization_barrier")
@_RULES(by_item=True)
def _bound(state: _Padded, equation: Equation, operands: list[Any]) -> list[Any]:
    """Evaluate an equation in which no item of a result depends on padding."""
    return state.bound(equation, operands)


@_RULES("dim_as_value")
def _dimension(state: _Padded, equation: Equation, operands: list[Any]) -> list[Any]:
    dtype = equation.outvars[0].aval.dtype
    return [jnp.asarray(state.symbols.value(equation.params["dim"]), dtype)]


@_RULES("reshape")
def _reshape(state: _Padded, equation: Equation, operands: list[Any]) -> list[Any]:
    """Reshape a padded array, if the padding still follows the items along each axis.

    In each run of axes only the first axis may be symbolic.
    """
    old, new = _shape(equation.invars[0]), _shape(equation.outvars[0])
    runs = runs_of(old, new)
    if runs is None:
        raise NotPaddableError(equation)
    for before, after in runs:
        for shape, run in ((old, before), (new, after)):
            extents = [shape[axis] for axis in run if shape[axis] != 1]
            if any(map(is_symbolic, extents[1:])):
                raise NotPaddableError(equation)
    return [jnp.reshape(operands[0], state.symbols.bounds(tuple(new)))]


@_RULES("slice")
def _slice(state: _Padded, equation: Equation, operands: list[Any]) -> list[Any]:
    (x,) = operands
    params = equation.params
    strides = params["strides"] or (1,) * x.ndim
    for axis, (start, stride) in enumerate(zip(params["start_indices"], strides, strict=True)):
        extent = _shape(equation.outvars[0])[axis]
        count = state.symbols.bound(extent)
        size = (count - 1) * stride + 1 if count else 0
        x = _from(state, x, axis, start, size)
        x = lax.slice_in_dim(x, 0, size, stride, axis)
    return [x]


def _from(state: _Padded, x: Any, axis: int, start: Any, size: int) -> Any:
    """Return `size` places of an array along an axis, from the place `start` on.

    `start` may be symbolic.
    """
    last = state.symbols.bound(start) + size
    if last > x.shape[axis] and is_symbolic(start):
        widths = [(0, 0)] * x.ndim
        widths[axis] = (0, last - x.shape[axis])
        x = jnp.pad(x, widths)
    if is_symbolic(start):
        return lax.dynamic_slice_in_dim(x, state.symbols.value(start), size, axis)
    return lax.slice_in_dim(x, start, min(start + size, x.shape[axis]), axis=axis)


@_RULES("split")
def _split(state: _Padded, equation: Equation, operands: list[Any]) -> list[Any]:
    (x,), axis = operands, equation.params["axis"]
    start: Any = 0
    results: list[Any] = []
    for v in equation.outvars:
        extent = _shape(v)[axis]
        results.append(_from(state, x, axis, start, state.symbols.bound(extent)))
        start = start + extent
    return results


@_RULES("tile")
def _tile(state: _Padded, equation: Equation, operands: list[Any]) -> list[Any]:
    for extent, times in zip(_shape(equation.invars[0]), equation.params["reps"], strict=True):
        if is_symbolic(extent) and times != 1:
            raise NotPaddableError(equation)
    return state.bound(equation, operands)


@_RULES("rev")
def _reversed(state: _Padded, equation: Equation, operands: list[Any]) -> list[Any]:
    """Reverse axes of a padded array, and move the items to the front of the axes again."""
    shape = _shape(equation.invars[0])
    (x,) = state.bound(equation, operands)
    for axis in equation.params["dimensions"]:
        if is_symbolic(shape[axis]):
            places = x.shape[axis]
            begin = places - state.symbols.value(shape[axis])
            x = lax.dynamic_slice_in_dim(jnp.concatenate([x, x], axis), begin, places, axis)
    return [x]


@_RULES("dynamic_slice", "dynamic_update_slice")
def _dynamic(state: _Padded, equation: Equation, operands: list[Any]) -> list[Any]:
    """Take or update a slice. Its start is clamped by the number of items, not of places."""
    is_slice = primitive(equation) == "dynamic_slice"
    first = 1 if is_slice else 2
    shape = _shape(equation.invars[0])
    sizes = equation.params["slice_sizes"] if is_slice else _shape(equation.invars[1])
    starts = list(operands[first:])
    for axis, (extent, size) in enumerate(zip(shape, sizes, strict=True)):
        if is_symbolic(size) and size != extent:
            raise NotPaddableError(equation)
        last = state.symbols.value(extent - size)
        starts[axis] = jnp.clip(starts[axis], 0, jnp.asarray(last, starts[axis].dtype))
    return state.bound(equation, [*operands[:first], *starts])


@_RULES("concatenate")
def _concatenate(state: _Padded, equation: Equation, operands: list[Any]) -> list[Any]:
    """Join padded arrays so that the items of each follow the items of the array before it."""
    axis = equation.params["dimension"]
    (result,) = equation.outvars
    shape = _shape(result)
    symbolic_axes = [i for i, extent in enumerate(shape) if is_symbolic(extent)]
    # The first array may keep further places along the axis: the others are written there.
    first_cut = 0 if symbolic_axes != [axis] else 1
    for i in range(first_cut, len(operands)):
        operands[i] = state.cut(equation.invars[i], operands[i])
    extents = [_shape(v)[axis] for v in equation.invars]
    if not any(map(is_symbolic, extents[:-1])):
        operands[0] = state.cut(equation.invars[0], operands[0])
        return state.bound(equation, operands)
    x, *parts = operands
    offset = extents[0]
    places = max(state.symbols.bound(_shape(result)[axis]), x.shape[axis])
    for extent, part in zip(extents[1:], parts, strict=True):
        places = max(places, state.symbols.bound(offset) + part.shape[axis])
        offset = offset + extent
    if places > x.shape[axis]:
        widths = [(0, 0)] * x.ndim
        widths[axis] = (0, places - x.shape[axis])
        x = jnp.pad(x, widths)
    offset = extents[0]
    for extent, part in zip(extents[1:], parts, strict=True):
        x = lax.dynamic_update_slice_in_dim(x, part, state.symbols.value(offset), axis)
        offset = offset + extent
    return [x]


@_RULES("pad")
def _pad(state: _Padded, equation: Equation, operands: list[Any]) -> list[Any]:
    (result,) = equation.outvars
    y = state.bound(equation, operands)[0]
    extents = _shape(equation.invars[0])
    for axis, (low, _, between) in enumerate(equation.params["padding_config"]):
        if not is_symbolic(extents[axis]):
            continue
        if between or is_symbolic(low):
            raise NotPaddableError(equation)
        y = jnp.where(state.is_item(y, axis, low + extents[axis]), y, operands[1])
    return [state.cut(result, y)]


def _least(dtype: Any) -> Any:
    return -np.inf if jnp.issubdtype(dtype, np.floating) else jnp.iinfo(dtype).min


def _largest(dtype: Any) -> Any:
    return np.inf if jnp.issubdtype(dtype, np.floating) else jnp.iinfo(dtype).max


def _neutral(name: str, dtype: Any) -> Any:
    """Return the number that does not change a reduction's result, such as 0 for "reduce_sum".

    `name` is the name of the reduction.
    """
    is_logical = jnp.issubdtype(dtype, np.bool_)
    if name.endswith(("sum", "or", "xor")):
        return 0
    if name.endswith("prod"):
        return 1
    if name.endswith("and"):
        return is_logical or -1  # -1 has all bits
    if is_logical:
        return name.endswith("min")
    return _least(dtype) if name.endswith("max") else _largest(dtype)


@_RULES(removes=True)
def _reduced(state: _Padded, equation: Equation, operands: list[Any]) -> list[Any]:
    axes = equation.params[facts(equation).removes]
    (v,), (x,) = equation.invars, operands
    x = state.hidden(v, x, axes, _neutral(primitive(equation), x.dtype))
    return state.bound(equation, [x])


@_RULES("cumsum", "cumprod", "cummax", "cummin")
def _running(state: _Padded, equation: Equation, operands: list[Any]) -> list[Any]:
    (v,), (x,) = equation.invars, operands
    if equation.params["reverse"]:
        x = state.hidden(v, x, [equation.params["axis"]], _neutral(primitive(equation), x.dtype))
    return state.bound(equation, [x])


@_RULES(PRODUCT)
def _product(state: _Padded, equation: Equation, operands: list[Any]) -> list[Any]:
    """Multiply, with 0 in place of padding along summed axes.

    If the padding of one operand is finite, only the other operand's padding is replaced.
    """
    sums, _ = equation.params["dimension_numbers"]
    left, right = equation.invars
    x, y = operands
    if not state.is_finite(left) or state.is_finite(right):
        x = state.hidden(left, x, sums[0], 0)
    if not state.is_finite(right):
        y = state.hidden(right, y, sums[1], 0)
    return state.bound(equation, [x, y])


@_RULES(CONVOLUTION)
def _convolution(state: _Padded, equation: Equation, operands: list[Any]) -> list[Any]:
    """Convolve, with 0 in place of the input's padding along spatial axes and channels."""
    numbers = equation.params["dimension_numbers"]
    v, filter = equation.invars
    if any(map(is_symbolic, _shape(filter))):
        raise NotPaddableError(equation)
    x = state.hidden(v, operands[0], numbers.lhs_spec[1:], 0)
    return state.bound(equation, [x, operands[1]])


@_RULES("sort")
def _sorted(state: _Padded, equation: Equation, operands: list[Any]) -> list[Any]:
    """Sort items, and move padding behind them, by a first key that is true for padding."""
    params = equation.params
    axis = params["dimension"]
    extent = _shape(equation.invars[0])[axis]
    if not is_symbolic(extent):
        return state.bound(equation, operands)
    x = operands[0]
    is_padding = jnp.broadcast_to(~state.is_item(x, axis, extent), x.shape)
    keys = params["num_keys"] + 1
    stable = params["is_stable"]
    arrays = [is_padding, *operands]
    _, *results = lax.sort(arrays, dimension=axis, is_stable=stable, num_keys=keys)
    return results


@_RULES("top_k")
def _best(state: _Padded, equation: Equation, operands: list[Any]) -> list[Any]:
    (v,), (x,) = equation.invars, operands
    axis = equation.params.get("axis", -1) % x.ndim
    return state.bound(equation, [state.hidden(v, x, [axis], _least(x.dtype))])


@_RULES("gather")
def _gather(state: _Padded, equation: Equation, operands: list[Any]) -> list[Any]:
    """Look items up. An index beyond the items is treated as beyond the axis, even at padding."""
    x, indices = operands
    numbers = equation.params["dimension_numbers"]
    shape = _shape(equation.invars[0])
    sizes = equation.params["slice_sizes"]
    mode = equation.params["mode"]
    for i, axis in enumerate(numbers.start_index_map):
        if not is_symbolic(shape[axis]):
            continue
        last = state.symbols.value(shape[axis] - sizes[axis])
        coordinate = indices[..., i]
        limit = jnp.asarray(last, indices.dtype)
        if mode == lax.GatherScatterMode.CLIP:
            coordinate = jnp.clip(coordinate, 0, limit)
        elif mode == lax.GatherScatterMode.FILL_OR_DROP:
            beyond = jnp.asarray(x.shape[axis], indices.dtype)
            coordinate = jnp.where(coordinate > limit, beyond, coordinate)
        indices = indices.at[..., i].set(coordinate)
    return state.bound(equation, [x, indices])


@_RULES("cond")
def _branches(state: _Padded, equation: Equation, operands: list[Any]) -> list[Any]:
    index, *arguments = operands
    finite = [i for i, v in enumerate(equation.invars[1:]) if state.is_finite(v)]

    def evaluating(branch: ClosedJaxpr) -> Callable[..., list[Any]]:
        return lambda *arguments: state.evaluated(Program(branch), arguments, finite)

    return lax.switch(index, list(map(evaluating, equation.params["branches"])), *arguments)


@_RULES(SCAN)
def _scan(state: _Padded, equation: Equation, operands: list[Any]) -> list[Any]:
    """Evaluate a loop whose number of iterations is known, but whose body has symbolic extents."""
    if is_symbolic(equation.params["length"]):
        raise NotPaddableError(equation)
    body = Program(equation.params["jaxpr"])
    constants, start, stacks = jaxprs.scan_parts(equation, operands)

    def step(*arguments: Any) -> Sequence[Any]:
        return state.evaluated(body, arguments, ())

    return jaxpr_evaluation.scanned(equation, step, constants, start, stacks)
