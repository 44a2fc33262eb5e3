"""Evaluates a program with symbolic extents on padded arrays; each run computes the real extents.

jax traces a function for extents such as `P + 1`, where P is a symbol of `jax.export`. Here an
array has the largest possible extent along such an axis: 8 for `P <= 7`. The indices along the axis
are called places. The items come first, and the places behind them are padding of arbitrary values.
The number of items is the value of the extent. A run computes this value from one array for each
symbol. Sums, maxima and products do not read padding. A concatenation writes each part behind the
items of the parts before it.

    (P,) = jax.export.symbolic_shape("P", constraints=["P <= 7"])
    types = [jax.ShapeDtypeStruct((P,), "float32"), jax.ShapeDtypeStruct((1,), "float32")]
    mean = PaddedFunction(lambda x, y: jnp.concatenate([x, y]).mean(), *types)
    mean(SymbolValues({"P": 7}, {"P": jnp.int32(3)}), jnp.zeros(8), jnp.ones(1))

`lowering.padding_rules` and `lowering.padding_bodies` have a rule for each primitive.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from lowering import jaxpr_evaluation
from lowering.padding_bodies import RULES
from lowering.padding_state import NotPaddableError as NotPaddableError
from lowering.padding_state import PaddedState, Shape, is_list, shape_of, varying_axes
from lowering.program import Program
from lowering.symbol_values import SymbolValues


@dataclass(frozen=True, slots=True, eq=False)
class PaddedArray:
    """An array with padding, and the shape that it has without padding."""

    array: Any
    shape: Shape

    @property
    def dtype(self) -> Any:
        """The dtype of the items."""
        return self.array.dtype


def on_padded(
    function: Callable[[Mapping[str, Any]], object],
    operands: Mapping[str, Any],
    symbols: SymbolValues,
) -> list[Any]:
    """Call a function with operands, some of which are padded, and return a list of its results.

    `operands` maps names to operands. The function takes such a dict, and returns a pytree of
    arrays. The leaves of this pytree are the items of the returned list.

    The function is traced with symbolic extents in place of padded axes. Numpy arrays and numbers
    are passed to the function unchanged. Symbols that the function defines are added to `symbols`.
    A result with a symbolic extent is a `PaddedArray`.

    Raises NotPaddableError if the function has a primitive without a rule.
    """
    leaves, tree = jax.tree.flatten(dict(operands), is_leaf=lambda x: isinstance(x, PaddedArray))
    traced = [i for i, x in enumerate(leaves) if isinstance(x, PaddedArray | jax.Array)]

    def on_tracers(*tracers: Array) -> list[Array]:
        all_leaves = list(leaves)
        for i, tracer in zip(traced, tracers, strict=True):
            all_leaves[i] = tracer
        results = function(jax.tree.unflatten(tree, all_leaves))
        return list(map(jnp.asarray, jax.tree.leaves(results)))

    types: list[jax.ShapeDtypeStruct] = []
    arrays: list[Any] = []
    for i in traced:
        x = leaves[i]
        types.append(jax.ShapeDtypeStruct(tuple(x.shape), x.dtype))
        arrays.append(x.array if isinstance(x, PaddedArray) else x)
    program = Program(jaxpr_evaluation.make_jaxpr(on_tracers, *types)).low_level()
    results: list[Any] = []
    for v, x in zip(program.results, padded(program, arrays, symbols), strict=True):
        results.append(PaddedArray(x, tuple(shape_of(v))) if is_list(v) else x)
    return results


def padded(
    program: Program,
    arguments: Sequence[Array],
    symbols: SymbolValues,
    finite: Collection[int] = (),
) -> list[Array]:
    """Evaluate a program with symbolic extents on padded arrays; return its results, also padded.

    For the extent P + 1 and P <= 7, a result has 8 places along the axis.

    Args:
        program: a program of low-level primitives.
        arguments: arrays with at least as many places along an axis as the axis has items.
        symbols: the values of the symbols.
        finite: the indices of the arguments whose padding has no NaN and no infinity. Products do
            not replace such padding by 0, so the arguments need not be copied.

    Raises NotPaddableError if an equation has no rule.
    """
    axes = varying_axes([*arguments, *symbols.counts.values()])
    return PaddedState(symbols, RULES, axes).evaluated(program, arguments, finite)


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

        `finite` has indices of arrays among the leaves of the arguments, as for `padded`.
        """
        results = padded(self._program, jax.tree.leaves(arguments), symbols, finite)
        return jax.tree.unflatten(self._tree, results)
