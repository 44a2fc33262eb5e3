"""A network in a traced function: one operation, whose kernels are chosen where it is lowered.

What is traced holds the network as it is written, once, whatever the platform of the host. Its
derivatives and batches are those of what is written, as one such operation each. Lowered for a CPU
it gets the layouts and kernels of `lowering.cpu`, for any other platform it stays as written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.interpreters import ad, batching, mlir

from lowering import jaxprs
from lowering.cpu import folded, rewritten, split_for_cpu
from lowering.extents import is_symbolic
from lowering.prepare import Split, assemble

# Operands are the constants that are traced, the arguments, and last those `linear` ones that the
# function is linear in, or what is prepared. It `stores` for its derivative what is costly to
# compute again.
_network = jaxprs.operation("network")


@partial(jax.tree_util.register_dataclass, data_fields=["arrays"], meta_fields=["count", "key"])
@dataclass(frozen=True)
class Preparation:
    """Holds what kernels for a CPU need of the first `count` arguments of a function.

    `key` tells how it was computed: another function, or other shapes, may need something else.
    """

    arrays: tuple[Any, ...]
    count: int
    key: str


def chosen_at_lowering(
    function: Callable[..., Any], preparation: Preparation | None = None
) -> Callable[..., Any]:
    """Return the function of parameters and other pytrees of arrays as one operation."""

    def run(parameters: Any, *arguments: Any) -> Any:
        jaxprs.require_names()  # now, since derivatives are asked for later
        closed, leaves, shapes = _traced(function, parameters, *arguments)
        results = _bind(closed, leaves, preparation=preparation)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return run


def prepared(function: Callable[..., Any], parameters: Any, *arguments: Any) -> Preparation:
    """Prepare parameters for the function of arguments of these types; all may be traced."""
    closed, leaves, _ = _traced(function, parameters, *arguments)
    count = len(jax.tree.leaves(parameters))
    parts, key = _in_parts(closed, count, alone=True)
    own = leaves[:count]
    if any(isinstance(x, Tracer) for x in own):
        return Preparation(parts.compute(own), count, key)
    return Preparation(tuple(parts.lowered(own).compile()(own)), count, key)


def _traced(function: Callable[..., Any], parameters: Any, *arguments: Any) -> Any:
    """Return the traced function of arrays, these, and the shapes of its result."""
    leaves, tree = jax.tree.flatten((parameters, *arguments))
    count = len(jax.tree.leaves(parameters))

    def flat(*leaves: Any) -> Any:
        return function(*jax.tree.unflatten(tree, leaves))

    closed, shapes = jax.make_jaxpr(flat, return_shape=True)(*leaves)
    made = jax.make_jaxpr(lambda *x: folded(closed, x[:count], x[count:]))(*leaves)
    return made, leaves, shapes


def _in_parts(closed: Any, count: int, *, alone: bool) -> tuple[Split, str]:
    """Split a traced function for a CPU, and tell what is computed of the first arguments."""
    types = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in closed.in_avals]
    parts = split_for_cpu(closed, types[:count], types[count:], in_chunks=alone)
    text = str(jax.make_jaxpr(parts.compute)(types[:count]))
    return parts, hashlib.sha256(text.encode()).hexdigest()


def _bind(
    closed: Any,
    operands: Sequence[Any],
    linear: int = 0,
    *,
    stores: bool = False,
    preparation: Preparation | None = None,
) -> list[Any]:
    """Evaluate a traced function as one operation, which has no constants of an outer trace."""
    if closed.effects:  # a callback of a user's: what prints, say, keeps its place
        return jaxprs.as_function(closed)(*operands)
    closed, traced = jaxprs.lifted(closed, lambda x: isinstance(x, Tracer))
    if preparation is None or traced:
        how = _How(closed, linear, stores)
        return _network.bind(*traced, *operands, how=how)
    how = _How(closed, prepared=len(preparation.arrays), count=preparation.count)
    how = replace(how, key=preparation.key)
    return _network.bind(*operands, *preparation.arrays, how=how)


@dataclass(frozen=True, slots=True, eq=False)
class _How:
    """Says what the operation computes; `prepared` operands, the last ones, may be of use."""

    closed: Any
    linear: int = 0
    stores: bool = False
    prepared: int = 0
    count: int = 0
    key: str = ""

    def plain(self, operands: Sequence[Any]) -> Sequence[Any]:
        """Return the operands without what is prepared."""
        return operands[: len(operands) - self.prepared]


@_network.def_impl
def _as_written(*operands: Any, how: _How) -> list[Any]:
    return jaxprs.as_function(how.closed)(*how.plain(operands))


@_network.def_abstract_eval
def _types(*operands: Any, how: _How) -> list[Any]:
    return how.closed.out_avals


def _for_cpu(*operands: Any, how: _How, alone: bool) -> list[Any]:
    # Kernels for CPUs need items, and extents that are numbers.
    extents = [n for aval in how.closed.in_avals for n in getattr(aval, "shape", ())]
    if any(is_symbolic(n) or n == 0 for n in extents):
        return _as_written(*operands, how=how)
    plain = how.plain(operands)
    if how.key:
        parts, key = _in_parts(how.closed, how.count, alone=alone)
        if key == how.key:
            own = assemble(parts.sources, plain[: how.count], operands[len(plain) :])
            return parts.run(own, plain[how.count :])
    role = "backward" if how.linear else "forward" if how.stores else "value"
    return rewritten(how.closed, plain, role)


def _lowered_for_cpu(context: Any, *operands: Any, how: _How) -> Any:
    # The number of devices is known here, shardings are not: a loop over a batch that is sharded
    # would gather it.
    alone = getattr(context.module_context.axis_context, "num_devices", None) == 1
    lower = mlir.lower_fun(partial(_for_cpu, alone=alone), multiple_results=True)
    return lower(context, *operands, how=how)


mlir.register_lowering(_network, mlir.lower_fun(_as_written, multiple_results=True))
mlir.register_lowering(_network, _lowered_for_cpu, platform="cpu")


def _jvp(
    operands: Sequence[Any], tangents: Sequence[Any], *, how: _How
) -> tuple[list[Any], list[Any]]:
    """Compute results with what tangents need, then tangents by a function that is linear.

    They are those of what is written: what is prepared is left out.
    """
    closed, linear = how.closed, how.linear
    operands, tangents = how.plain(operands), how.plain(tangents)
    moved = [i for i, tangent in enumerate(tangents) if _moves(tangent)]
    changes = [tangents[i] for i in moved]
    real = [jnp.issubdtype(aval.dtype, jnp.inexact) for aval in closed.out_avals]
    first = len(operands) - linear
    types = [aval.to_tangent_aval() for aval in closed.out_avals]
    if not moved:
        return _bind(closed, operands, linear), [ad.Zero(aval) for aval in types]
    if moved[0] >= first:  # it is linear in all that changes
        zeros = [jnp.zeros(x.shape, x.dtype) for x in operands[first:]]
        return _bind(closed, operands, linear), _bind(
            closed,
            [*operands[:first], *_merged(zeros, [i - first for i in moved], changes)],
            linear,
        )
    pulled: list[Any] = []  # the tree of the linear function

    def with_residuals(*operands: Any) -> tuple[list[Any], list[Any], list[Any]]:
        def parted(*changing: Any) -> tuple[list[Any], list[Any]]:
            results = jaxprs.as_function(closed)(*_merged(operands, moved, changing))
            return _where(real, results), _where([not x for x in real], results)

        results, push, others = jax.linearize(parted, *(operands[i] for i in moved), has_aux=True)
        residuals, tree = jax.tree.flatten(push)
        pulled.append(tree)
        return results, others, residuals

    made, shapes = jax.make_jaxpr(with_residuals, return_shape=True)(*operands)
    made, sources = jaxprs.without_forwarded(made, keep=sum(map(len, shapes[:2])))
    found = _bind(made, operands, stores=True)
    counts = len(shapes[0]), len(shapes[1])
    results, others = found[: counts[0]], found[counts[0] : sum(counts)]
    rest = iter(found[sum(counts) :])
    residuals = [next(rest) if i is None else operands[i] for i in sources]

    def push(residuals: Sequence[Any], changes: Sequence[Any]) -> Any:
        return jax.tree.unflatten(pulled[0], residuals)(*changes)

    pushed = jax.make_jaxpr(push)(residuals, changes)
    out = iter(_bind(pushed, [*residuals, *changes], len(changes)))
    values, rest = iter(results), iter(others)
    return [next(values) if x else next(rest) for x in real], [
        next(out) if x else ad.Zero(aval) for x, aval in zip(real, types, strict=True)
    ]


ad.primitive_jvps[_network] = _jvp


def _moves(tangent: Any) -> bool:
    return type(tangent) is not ad.Zero and tangent.dtype != jax.dtypes.float0


def _merged(items: Sequence[Any], places: Iterable[int], others: Iterable[Any]) -> list[Any]:
    merged = list(items)
    for place, other in zip(places, others, strict=True):
        merged[place] = other
    return merged


def _where(chosen: Sequence[bool], items: Sequence[Any]) -> list[Any]:
    return [item for choice, item in zip(chosen, items, strict=True) if choice]


def _transpose(changes: Sequence[Any], *operands: Any, how: _How) -> list[Any]:
    closed, linear = how.closed, how.linear
    first = len(operands) - linear
    asked = [i for i, x in enumerate(operands) if ad.is_undefined_primal(x)]
    assert asked and asked[0] >= first, "not linear in what it is transposed in"
    types = [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in (operands[i] for i in asked)]
    fixed = operands[:first]
    given = [i for i, change in enumerate(changes) if type(change) is not ad.Zero]
    zeros = [(aval.shape, aval.dtype) for aval in closed.out_avals]

    def turned(fixed: Sequence[Any], given_changes: Sequence[Any]) -> list[Any]:
        def function(*varying: Any) -> list[Any]:
            others = [jnp.zeros(a.shape, a.dtype) for a in closed.in_avals[first:]]
            places = [i - first for i in asked]
            return jaxprs.as_function(closed)(*fixed, *_merged(others, places, varying))

        whole = _merged([jnp.zeros(*z) for z in zeros], given, given_changes)
        return list(jax.linear_transpose(function, *types)(whole))

    given_changes = [changes[i] for i in given]
    made = jax.make_jaxpr(turned)(fixed, given_changes)
    results = _bind(made, [*fixed, *given_changes], len(given_changes))
    return _merged([None] * len(operands), asked, results)


ad.primitive_transposes[_network] = _transpose


def _batched(
    operands: Sequence[Any], axes: Sequence[Any], *, how: _How
) -> tuple[list[Any], list[int | None]]:
    closed, operands, axes = how.closed, how.plain(operands), how.plain(axes)
    depends = jaxprs.depending(closed, [axis is not None for axis in axes])
    out = [0 if x else None for x in depends]
    function = jax.vmap(jaxprs.as_function(closed), tuple(axes), out)
    return _bind(jax.make_jaxpr(function)(*operands), operands, how.linear, stores=how.stores), out


batching.primitive_batchers[_network] = _batched
