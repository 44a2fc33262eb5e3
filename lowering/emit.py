"""A network in a traced function: one operation, whose kernels are chosen where it is lowered.

The trace holds the network once, in its differentiable form, whatever the platform of the host. Its
derivatives and batches are taken of that form, as one such operation each. Where it is lowered, the
passes of the platform's target rewrite it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from operator import not_
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.interpreters import ad, batching, mlir

from lowering import jaxprs
from lowering.fallback import NONE, About, named, or_else
from lowering.machine import DEFAULT
from lowering.pipeline import differentiable, lower, rewrite, traced
from lowering.prepare import Split, assemble, prepared
from lowering.program import Program, Role
from lowering.targets import target_of
from lowering.targets.target import Target

# Evaluates `jaxpr` on its operands, the first of which are `parameters`. It is linear in the last
# `linear` of them. Where it has a `recipe`, the values prepared by it follow the operands. Arrays
# of `constants` come before these.
_network = jaxprs.operation("network")


@partial(jax.tree_util.register_dataclass, data_fields=["arrays"], meta_fields=["recipe"])
@dataclass(frozen=True)
class Preparation:
    """Holds arrays that kernels for a CPU read beside the parameters, computed of these.

    The `recipe` is a digest of how they are computed. Another function, or other shapes, may need
    something else: then theirs is another.
    """

    arrays: tuple[Any, ...]
    recipe: str


@dataclass(frozen=True, eq=False, repr=False)
class ConstantParameters:
    """Holds parameters whose values are known where a network is traced; it is one object to jax.

    As operands they would be constants of what the caller compiles, beside what is prepared of
    them. So they are made constants where it turns out that they are needed.
    """

    arrays: tuple[Any, ...] = ()


_NOTHING = ConstantParameters()


def network(
    function: Callable[..., Any], preparation: Preparation | None = None, about: About = NONE
) -> Callable[..., Any]:
    """Return a function of parameters and other pytrees of arrays as one operation.

    The function takes the same arguments, under any transformation of jax. A `preparation`, which
    the function of that name made of the same parameters, spares calls to prepare them: it is read
    where parameters are operands of what is compiled.
    """

    def run(parameters: Any, *arguments: Any) -> Any:
        program, leaves, tree = traced(function, parameters, *arguments)
        program = differentiable(program)
        results = _bind(program, leaves, about, preparation=preparation, as_constants=True)
        return jax.tree.unflatten(tree, results)

    return run


def preparation(
    target: Target, function: Callable[..., Any], parameters: Any, *arguments: Any
) -> Preparation | None:
    """Prepare parameters for calls of a function with such arguments, on a target.

    All may be traced. Return None where it runs as it is written. What is prepared has no
    derivatives: those of the function are in its parameters.
    """
    program, leaves, _ = traced(function, parameters, *arguments)
    if not (target.has_kernels and program.has_items):
        return None
    arrays = leaves[: program.parameters]
    parts = lower(differentiable(program), target)
    are_traced = any(isinstance(x, Tracer) for x in arrays)
    values = parts.prepare(arrays) if are_traced else prepared(parts, arrays)
    computed = [x for x, source in zip(values, parts.sources, strict=True) if source is None]
    return Preparation(tuple(map(jax.lax.stop_gradient, computed)), parts.recipe.digest)


def _bind(
    program: Program,
    operands: Sequence[Any],
    about: About,
    *,
    linear: int = 0,
    preparation: Preparation | None = None,
    as_constants: bool = False,
) -> list[Any]:
    """Evaluate a program as one operation, which has no constants of an outer trace.

    It is linear in the last operands, as many as `linear` says. With `as_constants`
    parameters that have values are its constants, unless values are prepared from them.
    """
    if program.closed.effects:  # a callback of a user's: what prints, say, keeps its place
        return program(*operands)
    closed, outer = jaxprs.lifted(program.closed, lambda x: isinstance(x, Tracer))
    operands, recipe, constants = [*outer, *operands], None, _NOTHING
    program = replace(program, closed=closed, parameters=0 if outer else program.parameters)
    arrays = operands[: program.parameters]
    if preparation is not None and not outer:
        operands, recipe = [*operands, *preparation.arrays], preparation.recipe
    elif as_constants and all(
        isinstance(x, jax.Array) and not isinstance(x, Tracer) for x in arrays
    ):
        constants, operands = ConstantParameters(tuple(arrays)), operands[program.parameters :]
    return _network.bind(
        *operands,
        jaxpr=program.closed,
        parameters=program.parameters,
        role=program.role,
        linear=linear,
        recipe=recipe,
        constants=constants,
        about=about,
    )


@_network.def_impl
def _evaluate(*operands: Any, jaxpr: Any, constants: ConstantParameters, **_: Any) -> list[Any]:
    operands = *constants.arrays, *operands
    return jaxprs.as_function(jaxpr)(*operands[: len(jaxpr.in_avals)])


@_network.def_abstract_eval
def _types(*_: Any, jaxpr: Any, **__: Any) -> list[Any]:
    return jaxpr.out_avals


def _lowering_rule(
    context: Any,
    *operands: Any,
    jaxpr: Any,
    parameters: int,
    role: Role,
    recipe: str | None,
    constants: ConstantParameters,
    about: About,
    platform: str,
    **_: Any,
) -> Any:
    """Lower a program by the passes of a platform's target."""
    if context.module_context.lowering_parameters.for_export:
        about = about._replace(rates=DEFAULT)  # any machine may run it
    # The number of devices is known here, shardings are not: a loop over a batch that is sharded
    # would gather it.
    devices = getattr(context.module_context.axis_context, "num_devices", None)
    target = target_of(platform, devices, about.rates, is_open=about.is_open)
    count = len(jaxpr.in_avals)
    program = Program(jaxpr, parameters, prepares=False, role=role)

    def with_arrays(parts: Split, *operands: Any) -> list[Any]:
        values = assemble(parts.sources, operands[:parameters], operands[count:])
        return parts.call(values, operands[parameters:count])

    def with_constants(*operands: Any) -> list[Any]:
        return _bind(program, [*constants.arrays, *operands], about)

    def with_prepared() -> Callable[..., list[Any]]:
        parts = lower(program, target)
        values = prepared(parts, constants.arrays)
        return lambda *operands: parts.call(values, operands)

    with named(about):
        if constants.arrays:
            # What is lowered for several platforms has parameters themselves, which these share.
            is_one = len(context.module_context.platforms) == 1
            prepares = is_one and target.has_kernels and program.has_items
            run = or_else(with_prepared, lambda: with_constants) if prepares else with_constants
            return mlir.lower_fun(run, multiple_results=True)(context, *operands)
        if recipe is not None and target.has_kernels:
            parts = lower(program, target)
            if parts.recipe.digest == recipe:
                run = partial(with_arrays, parts)
                return mlir.lower_fun(run, multiple_results=True)(context, *operands)
        context = context.replace(avals_in=context.avals_in[:count])
        made, operands = rewrite(program, target), operands[:count]
        if not target.has_kernels:  # what nothing reads is left out of its text
            return mlir.lower_fun(made, multiple_results=True)(context, *operands)
        # A call, which XLA inlines: to trace anew what passes made would take a fifth of the time
        # in which a training step of ConvNeXt-T is compiled.
        module, platforms = context.module_context, context.platforms
        module = module if platforms is None else module.replace(platforms=platforms)
        call: Any = {"name": "network", "call_jaxpr": made.closed}
        return mlir.core_call_lowering(context.replace(module_context=module), *operands, **call)


mlir.register_lowering(_network, partial(_lowering_rule, platform="other"))
mlir.register_lowering(_network, partial(_lowering_rule, platform="cpu"), platform="cpu")


def _jvp(
    operands: Sequence[Any],
    tangents: Sequence[Any],
    *,
    jaxpr: Any,
    linear: int,
    constants: ConstantParameters,
    about: About,
    **params: Any,
) -> tuple[list[Any], list[Any]]:
    """Compute results with what tangents need, then tangents by a function that is linear."""
    count, avals = len(jaxpr.in_avals), jaxpr.out_avals
    fixed = [ad.Zero(aval.to_tangent_aval()) for aval in jaxpr.in_avals[: len(constants.arrays)]]
    operands, tangents = [*constants.arrays, *operands], [*fixed, *tangents]
    if any(map(_moves, tangents[count:])):
        raise TypeError(
            "what is prepared has no derivatives: differentiate in parameters, and prepare them"
            " within, or leave them as they are"
        )
    moved = [i for i, tangent in enumerate(tangents[:count]) if _moves(tangent)]
    first = count - linear
    if not moved or moved[0] >= first:  # it is linear in all that changes
        told = {"linear": linear, "constants": _NOTHING, "about": about}
        results = _network.bind(*operands, jaxpr=jaxpr, **told, **params)
        if not moved:
            return results, [ad.Zero(aval.to_tangent_aval()) for aval in avals]
        changes = [*operands[:first], *map(ad.instantiate_zeros, tangents[first:count])]
        return results, _bind(Program(jaxpr, role="backward"), changes, about, linear=linear)
    operands, changes = operands[:count], [tangents[i] for i in moved]
    real = [jnp.issubdtype(aval.dtype, jnp.inexact) for aval in avals]
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
    computed = iter(_bind(Program(made, role="forward"), operands, about))
    results, others = ([next(computed) for _ in part] for part in shapes[:2])
    residuals = [next(computed) if i is None else operands[i] for i in sources]

    def push(residuals: Sequence[Any], changes: Sequence[Any]) -> Any:
        return jax.tree.unflatten(pulled[0], residuals)(*changes)

    pushed = jax.make_jaxpr(push)(residuals, changes)
    backward = Program(pushed, role="backward")
    out = iter(_bind(backward, [*residuals, *changes], about, linear=len(changes)))
    values, whole = iter(results), iter(others)
    return [next(values) if x else next(whole) for x in real], [
        next(out) if x else ad.Zero(aval.to_tangent_aval())
        for x, aval in zip(real, avals, strict=True)
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
    changes: Sequence[Any],
    *operands: Any,
    jaxpr: Any,
    constants: ConstantParameters,
    about: About,
    **_: Any,
) -> list[Any]:
    operands, count = (*constants.arrays, *operands), len(jaxpr.in_avals)
    asked = [i for i, x in enumerate(operands) if ad.is_undefined_primal(x)]
    stay = [i for i in range(count) if i not in asked]
    nonzero = [i for i, change in enumerate(changes) if type(change) is not ad.Zero]
    types = [operands[i].aval for i in asked]

    def turned(fixed: Sequence[Any], moved: Sequence[Any]) -> list[Any]:
        def function(*varying: Any) -> list[Any]:
            whole = _merged(_merged([None] * count, stay, fixed), asked, varying)
            return jaxprs.as_function(jaxpr)(*whole)

        whole = _merged(list(map(ad.instantiate_zeros, changes)), nonzero, moved)
        return list(jax.linear_transpose(function, *types)(whole))

    fixed, moved = [operands[i] for i in stay], [changes[i] for i in nonzero]
    made = jax.make_jaxpr(turned)(fixed, moved)
    backward = Program(made, role="backward")
    results = _bind(backward, [*fixed, *moved], about, linear=len(moved))
    return _merged([None] * len(operands), asked, results)[len(constants.arrays) :]


ad.primitive_transposes[_network] = _transpose


def _batched(
    operands: Sequence[Any],
    axes: Sequence[Any],
    *,
    jaxpr: Any,
    role: Role,
    linear: int,
    constants: ConstantParameters,
    about: About,
    **_: Any,
) -> tuple[list[Any], list[int | None]]:
    count = len(jaxpr.in_avals)
    operands = [*constants.arrays, *operands][:count]
    axes = [*(None for _ in constants.arrays), *axes][:count]
    depends = jaxprs.depending(jaxpr, [axis is not None for axis in axes])
    out = [0 if x else None for x in depends]
    function = jax.vmap(jaxprs.as_function(jaxpr), tuple(axes), out)
    closed = jax.make_jaxpr(function)(*operands)
    return _bind(Program(closed, role=role), operands, about, linear=linear), out


batching.primitive_batchers[_network] = _batched
