"""A network in a traced function: one operation, whose kernels are chosen where it is lowered.

What is traced holds the network as it is written, once, whatever the platform of the host. Its
derivatives and batches are those of what is written, as one such operation each. Lowered for a CPU
it gets the layouts and kernels of `lowering.cpu`. For any other platform it stays as written, less
steps that undo each other (`direct`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from operator import not_
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.interpreters import ad, batching, mlir

from lowering import jaxprs
from lowering.cpu import folded, rewritten, split_for_cpu
from lowering.direct import direct
from lowering.extents import is_symbolic
from lowering.fallback import named, or_else
from lowering.prepare import Split, assemble

# Evaluates `jaxpr` on its operands. It is linear in the last `linear` of them, and `stores` for its
# derivative what is costly to compute again. Where it has a `recipe`, what was prepared by it
# follows the operands. Warnings call it by its `name`.
_network = jaxprs.operation("network")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Says what was prepared of the first `count` arguments of a function.

    Another function, or other shapes, may need something else: then the `digest` is another.
    """

    count: int
    digest: str


@partial(jax.tree_util.register_dataclass, data_fields=["arrays"], meta_fields=["recipe"])
@dataclass(frozen=True)
class Preparation:
    """Holds what kernels for a CPU need of parameters, beside the parameters themselves."""

    arrays: tuple[Any, ...]
    recipe: Recipe


def chosen_at_lowering(
    function: Callable[..., Any], preparation: Preparation | None = None, name: str = ""
) -> Callable[..., Any]:
    """Return the function of parameters and other pytrees of arrays as one operation of a name."""

    def run(parameters: Any, *arguments: Any) -> Any:
        jaxprs.require_names()  # now, since derivatives are asked for later
        closed, leaves, shapes = _traced(function, parameters, *arguments)
        results = _bind(closed, leaves, name, preparation=preparation)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return run


def prepared(function: Callable[..., Any], parameters: Any, *arguments: Any) -> Preparation | None:
    """Prepare parameters for the function of arguments of these types; all may be traced.

    Return None where it runs as it is written. What is prepared has no derivatives: those of the
    function are in its parameters.
    """
    closed, leaves, _ = _traced(function, parameters, *arguments)
    if not _suits_kernels(closed):
        return None
    count = len(jax.tree.leaves(parameters))
    parts, recipe = _in_parts(closed, count, alone=True)
    own = leaves[:count]
    if any(isinstance(x, Tracer) for x in own):
        return Preparation(tuple(map(jax.lax.stop_gradient, parts.compute(own))), recipe)
    compute = parts.on_host(own) or parts.lowered(own).compile()
    return Preparation(tuple(compute(own)), recipe)


def _traced(function: Callable[..., Any], parameters: Any, *arguments: Any) -> Any:
    """Return the traced function of arrays, these, and the shapes of its result."""
    leaves, tree = jax.tree.flatten((parameters, *arguments))
    count = len(jax.tree.leaves(parameters))

    def flat(*leaves: Any) -> Any:
        return function(*jax.tree.unflatten(tree, leaves))

    closed, shapes = jax.make_jaxpr(flat, return_shape=True)(*leaves)
    made = jax.make_jaxpr(lambda *x: folded(closed, x[:count], x[count:]))(*leaves)
    return made, leaves, shapes


def _in_parts(closed: Any, count: int, *, alone: bool) -> tuple[Split, Recipe]:
    """Split a traced function for a CPU, and tell what is computed of the first arguments."""
    types = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in closed.in_avals]
    parts = split_for_cpu(closed, types[:count], types[count:], in_chunks=alone)
    text = str(jax.make_jaxpr(parts.compute)(types[:count]))
    return parts, Recipe(count, hashlib.sha256(text.encode()).hexdigest())


def _bind(
    closed: Any,
    operands: Sequence[Any],
    name: str,
    *,
    linear: int = 0,
    stores: bool = False,
    preparation: Preparation | None = None,
) -> list[Any]:
    """Evaluate a traced function as one operation, which has no constants of an outer trace."""
    if closed.effects:  # a callback of a user's: what prints, say, keeps its place
        return jaxprs.as_function(closed)(*operands)
    closed, traced = jaxprs.lifted(closed, lambda x: isinstance(x, Tracer))
    operands, recipe = [*traced, *operands], None
    if preparation is not None and not traced:
        operands, recipe = [*operands, *preparation.arrays], preparation.recipe
    return _network.bind(
        *operands, jaxpr=closed, linear=linear, stores=stores, recipe=recipe, name=name
    )


@_network.def_impl
def _as_written(*operands: Any, jaxpr: Any, **_: Any) -> list[Any]:
    return jaxprs.as_function(jaxpr)(*operands[: len(jaxpr.in_avals)])


@_network.def_abstract_eval
def _types(*_: Any, jaxpr: Any, **__: Any) -> list[Any]:
    return jaxpr.out_avals


def _suits_kernels(closed: Any) -> bool:
    """Tell whether a traced function has items, and extents that are numbers."""
    extents = [n for aval in closed.in_avals for n in getattr(aval, "shape", ())]
    return not any(is_symbolic(n) or n == 0 for n in extents)


def _for_cpu(
    *operands: Any, jaxpr: Any, linear: int, stores: bool, recipe: Recipe | None, alone: bool
) -> list[Any]:
    if not _suits_kernels(jaxpr):
        return _as_written(*operands, jaxpr=jaxpr)
    plain, found = operands[: len(jaxpr.in_avals)], operands[len(jaxpr.in_avals) :]
    if recipe is not None:
        parts, own = _in_parts(jaxpr, recipe.count, alone=alone)
        if own == recipe:
            parameters, inputs = plain[: recipe.count], plain[recipe.count :]
            return parts.run(assemble(parts.sources, parameters, found), inputs)
    role = "backward" if linear else "forward" if stores else "value"
    return rewritten(jaxpr, plain, role, alone=alone)


def _lowered_for_cpu(context: Any, *operands: Any, name: str, **params: Any) -> Any:
    # The number of devices is known here, shardings are not: a loop over a batch that is sharded
    # would gather it.
    alone = getattr(context.module_context.axis_context, "num_devices", None) == 1
    lower = mlir.lower_fun(partial(_for_cpu, alone=alone), multiple_results=True)
    with named(name):
        return lower(context, *operands, **params)


def _without_detours(*operands: Any, jaxpr: Any, name: str, **_: Any) -> list[Any]:
    with named(name):
        plain = or_else(lambda: direct(jaxpr), lambda: jaxpr)
    return _as_written(*operands, jaxpr=plain)


mlir.register_lowering(_network, mlir.lower_fun(_without_detours, multiple_results=True))
mlir.register_lowering(_network, _lowered_for_cpu, platform="cpu")


def _jvp(
    operands: Sequence[Any],
    tangents: Sequence[Any],
    *,
    jaxpr: Any,
    linear: int,
    name: str,
    **params: Any,
) -> tuple[list[Any], list[Any]]:
    """Compute results with what tangents need, then tangents by a function that is linear."""
    count = len(jaxpr.in_avals)
    if any(map(_moves, tangents[count:])):
        raise TypeError(
            "what is prepared has no derivatives: differentiate in parameters, and prepare them"
            " within, or leave them as they are"
        )
    moved = [i for i, tangent in enumerate(tangents[:count]) if _moves(tangent)]
    first = count - linear
    if not moved or moved[0] >= first:  # it is linear in all that changes
        results = _network.bind(*operands, jaxpr=jaxpr, linear=linear, name=name, **params)
        if not moved:
            return results, [ad.Zero(aval.to_tangent_aval()) for aval in jaxpr.out_avals]
        changes = [*operands[:first], *map(ad.instantiate_zeros, tangents[first:count])]
        return results, _bind(jaxpr, changes, name, linear=linear)
    operands, changes = operands[:count], [tangents[i] for i in moved]
    real = [jnp.issubdtype(aval.dtype, jnp.inexact) for aval in jaxpr.out_avals]
    pulled: list[Any] = []  # the tree of the linear function

    def with_residuals(*operands: Any) -> tuple[list[Any], list[Any], list[Any]]:
        def parted(*changing: Any) -> tuple[list[Any], list[Any]]:
            results = jaxprs.as_function(jaxpr)(*_merged(operands, moved, changing))
            return list(compress(results, real)), list(compress(results, map(not_, real)))

        results, push, others = jax.linearize(parted, *(operands[i] for i in moved), has_aux=True)
        residuals, tree = jax.tree.flatten(push)
        pulled.append(tree)
        return results, others, residuals

    made, shapes = jax.make_jaxpr(with_residuals, return_shape=True)(*operands)
    made, sources = jaxprs.without_forwarded(made, keep=sum(map(len, shapes[:2])))
    found = iter(_bind(made, operands, name, stores=True))
    results, others = ([next(found) for _ in part] for part in shapes[:2])
    residuals = [next(found) if i is None else operands[i] for i in sources]

    def push(residuals: Sequence[Any], changes: Sequence[Any]) -> Any:
        return jax.tree.unflatten(pulled[0], residuals)(*changes)

    pushed = jax.make_jaxpr(push)(residuals, changes)
    out = iter(_bind(pushed, [*residuals, *changes], name, linear=len(changes)))
    values, rest = iter(results), iter(others)
    return [next(values) if x else next(rest) for x in real], [
        next(out) if x else ad.Zero(aval.to_tangent_aval())
        for x, aval in zip(real, jaxpr.out_avals, strict=True)
    ]


ad.primitive_jvps[_network] = _jvp


def _moves(tangent: Any) -> bool:
    return type(tangent) is not ad.Zero and tangent.dtype != jax.dtypes.float0


def _merged(items: Sequence[Any], places: Iterable[int], others: Iterable[Any]) -> list[Any]:
    merged = list(items)
    for place, other in zip(places, others, strict=True):
        merged[place] = other
    return merged


def _transpose(
    changes: Sequence[Any], *operands: Any, jaxpr: Any, name: str, **_: Any
) -> list[Any]:
    count = len(jaxpr.in_avals)
    asked = [i for i, x in enumerate(operands) if ad.is_undefined_primal(x)]
    known = [i for i in range(count) if i not in asked]
    given = [i for i, change in enumerate(changes) if type(change) is not ad.Zero]
    types = [operands[i].aval for i in asked]

    def turned(fixed: Sequence[Any], given_changes: Sequence[Any]) -> list[Any]:
        def function(*varying: Any) -> list[Any]:
            whole = _merged(_merged([None] * count, known, fixed), asked, varying)
            return jaxprs.as_function(jaxpr)(*whole)

        whole = _merged(list(map(ad.instantiate_zeros, changes)), given, given_changes)
        return list(jax.linear_transpose(function, *types)(whole))

    fixed, given_changes = [operands[i] for i in known], [changes[i] for i in given]
    made = jax.make_jaxpr(turned)(fixed, given_changes)
    results = _bind(made, [*fixed, *given_changes], name, linear=len(given_changes))
    return _merged([None] * len(operands), asked, results)


ad.primitive_transposes[_network] = _transpose


def _batched(
    operands: Sequence[Any],
    axes: Sequence[Any],
    *,
    jaxpr: Any,
    linear: int,
    stores: bool,
    name: str,
    **_: Any,
) -> tuple[list[Any], list[int | None]]:
    count = len(jaxpr.in_avals)
    operands, axes = operands[:count], axes[:count]
    depends = jaxprs.depending(jaxpr, [axis is not None for axis in axes])
    out = [0 if x else None for x in depends]
    function = jax.vmap(jaxprs.as_function(jaxpr), tuple(axes), out)
    closed = jax.make_jaxpr(function)(*operands)
    return _bind(closed, operands, name, linear=linear, stores=stores), out


batching.primitive_batchers[_network] = _batched
