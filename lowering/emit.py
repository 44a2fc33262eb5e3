"""Defines the primitive that stands for a network in a user's trace.

The trace contains one `network` primitive. The program of this primitive is the result of
`differentiable`, and is the same for every platform. The rules for derivatives and batches return
further `network` primitives, which are made from that program. The lowering rule rewrites the
program by the passes of the platform's target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from operator import not_
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer
from jax.interpreters import ad, batching, mlir

from lowering import jaxpr_evaluation, jaxprs, primitives
from lowering.fallback import UNNAMED, About, named, or_else
from lowering.jaxpr_types import Aval, ClosedJaxpr
from lowering.machine import DEFAULT
from lowering.pipeline import differentiable, lower, rewrite, traced
from lowering.prepare import Split, assemble, prepared
from lowering.program import Program, Role
from lowering.targets import target_of
from lowering.targets.target import Target
from lowering.transposable import without_stops

T = TypeVar("T")

# The primitive evaluates its `jaxpr`. The arguments of the `jaxpr` are the arrays in `constants`,
# and after them the operands of the primitive. `parameters` is the number of leading arguments that
# are parameters of the network. `linear` is the number of trailing arguments in which the `jaxpr`
# is linear. If there is a `recipe`, the primitive has further operands at the end: the values that
# the recipe computes. These values are not arguments of the `jaxpr`.
_network = primitives.function_primitive("network")


@partial(jax.tree_util.register_dataclass, data_fields=["arrays"], meta_fields=["recipe"])
@dataclass(frozen=True)
class Preparation:
    """The values computed from a network's parameters for the kernels of a CPU.

    `arrays` has the computed values, without the parameters themselves. `recipe` is the digest
    of the recipe by which the values were computed. A function whose recipe has another digest,
    for example because its inputs have other shapes, ignores the values.
    """

    arrays: tuple[Array, ...]
    recipe: str


@dataclass(frozen=True, eq=False, repr=False)
class ConstantParameters:
    """Holds parameters whose arrays are known when a function is traced.

    jax does not see the arrays, because the object is not an operand of the primitive. If the
    parameters were operands, they would become constants of the caller's executable, in addition to
    the prepared values. A parameter in this object becomes a constant only if the executable needs
    the parameter itself.
    """

    arrays: tuple[Array, ...] = ()


_NOTHING = ConstantParameters()


def network(
    function: Callable[..., object], preparation: Preparation | None = None, about: About = UNNAMED
) -> Callable[..., Any]:
    """Return a function that computes `function` as one primitive of jax.

    The returned function takes the arguments of `function`, and can be called under any
    transformation of jax.

    Args:
        function: a function of parameters and other arguments, which are pytrees of arrays.
        preparation: the result of the function `preparation` for the parameters, so that calls
            prepare nothing. It is used only if the parameters are operands of the compiled
            function.
        about: describes the network for warnings.
    """

    def run(parameters: object, *arguments: object) -> Any:
        program, leaves, tree = traced(function, parameters, *arguments)
        program = differentiable(program)
        results = _bind(program, leaves, about, preparation=preparation, as_constants=True)
        return jax.tree.unflatten(tree, results)

    return run


def preparation(
    target: Target, function: Callable[..., object], parameters: object, *arguments: object
) -> Preparation | None:
    """Compute the prepared values of a function's parameters, for the kernels of a target.

    The values are for calls with arguments of the types of `arguments`. Parameters and arguments
    may be tracers. None is returned if the target has no kernels, or if the program has symbolic
    extents or empty arguments. The prepared values have no derivatives. To differentiate with
    respect to the parameters, prepare them in the differentiated function, or not at all.
    """
    program, leaves, _ = traced(function, parameters, *arguments)
    if not target.has_kernels or not program.has_items:
        return None
    arrays = leaves[: program.parameters]
    parts = lower(differentiable(program), target)
    are_traced = any(map(_is_tracer, arrays))
    # `prepared` shares values with other programs. It needs concrete arrays.
    values = parts.prepare(arrays) if are_traced else prepared(parts, arrays)
    computed: list[Array] = []
    for value, source in zip(values, parts.sources, strict=True):
        is_parameter = source is not None
        if not is_parameter:
            computed.append(jax.lax.stop_gradient(value))
    return Preparation(tuple(computed), parts.recipe.digest)


def _bind(
    program: Program,
    operands: Sequence[Array],
    about: About,
    *,
    linear: int = 0,
    preparation: Preparation | None = None,
    as_constants: bool = False,
) -> list[Any]:
    """Evaluate a program on operands as one primitive.

    Constants of the program that are tracers become operands of the primitive. The program is
    linear in its last `linear` operands. If `as_constants` is true, the parameters become
    `ConstantParameters`, provided that all of them are concrete arrays and there is no
    `preparation`.
    """
    # A program with effects is evaluated equation by equation instead of as one primitive, so that
    # a user's callbacks keep their order.
    if program.closed.effects:
        return program(*operands)
    # The constants that are tracers (`traced_constants`) become the first operands. In this case
    # the primitive has no parameters, since only its first operands can be parameters.
    closed, traced_constants = jaxprs.lifted(program.closed, _is_tracer)
    operands = [*traced_constants, *operands]
    parameter_count = 0 if traced_constants else program.parameters
    recipe = None
    constants = _NOTHING
    parameters = operands[:parameter_count]
    if preparation is not None and not traced_constants:
        operands = [*operands, *preparation.arrays]
        recipe = preparation.recipe
    elif as_constants and all(map(_is_concrete, parameters)):
        constants = ConstantParameters(tuple(parameters))
        operands = operands[parameter_count:]
    return _network.bind(
        *operands,
        jaxpr=closed,
        parameters=parameter_count,
        role=program.role,
        linear=linear,
        recipe=recipe,
        constants=constants,
        about=about,
    )


def _is_tracer(x: object) -> bool:
    return isinstance(x, Tracer)


def _is_concrete(x: object) -> bool:
    """Tell whether an object is an array with values, and not a tracer."""
    return isinstance(x, jax.Array) and not isinstance(x, Tracer)


@_network.def_impl
def _evaluate(
    *operands: Any, jaxpr: ClosedJaxpr, constants: ConstantParameters, **_: object
) -> list[Any]:
    """Evaluate the primitive's jaxpr without rewriting it. Prepared values are ignored."""
    count = len(jaxpr.in_avals)
    arguments = [*constants.arrays, *operands][:count]  # operands after these are prepared values
    return jaxpr_evaluation.as_function(jaxpr)(*arguments)


@_network.def_abstract_eval
def _types(*_: object, jaxpr: ClosedJaxpr, **__: object) -> Sequence[Aval]:
    return jaxpr.out_avals


def _lowering_rule(
    context: Any,
    *operands: Any,
    jaxpr: ClosedJaxpr,
    parameters: int,
    role: Role,
    recipe: str | None,
    constants: ConstantParameters,
    about: About,
    platform: str,
    **_: object,
) -> Any:
    """Rewrite the primitive's program by the passes for a platform, and lower the result."""
    module = context.module_context
    if module.lowering_parameters.for_export:
        # Any machine may run an exported function, so the speeds measured on this machine (`rates`)
        # are not used.
        about = about._replace(rates=DEFAULT)
    # The number of devices is known here, but shardings are not. On several devices no pass may
    # make a loop over the batch: if the batch is sharded, such a loop gathers it.
    devices = getattr(module.axis_context, "num_devices", None)
    target = target_of(platform, devices, about.rates, is_open=about.is_open, in_function=True)
    count = len(jaxpr.in_avals)  # further operands are prepared values
    program = Program(jaxpr, parameters, prepares=False, role=role)

    def with_prepared(parts: Split, *operands: Array) -> list[Array]:
        """Call a split program with the operands of the primitive, prepared values included."""
        values = assemble(parts.sources, operands[:parameters], operands[count:])
        return parts.call(values, operands[parameters:count])

    with named(about):
        evaluate: Callable[..., list[Any]] | None = None
        if constants.arrays:
            is_one_platform = len(module.platforms) == 1
            evaluate = _with_constants(program, target, constants, about, prepares=is_one_platform)
        elif recipe is not None and target.has_kernels:
            parts = lower(program, target)
            if parts.recipe.digest == recipe:
                evaluate = partial(with_prepared, parts)
        if evaluate is not None:
            return mlir.lower_fun(evaluate, multiple_results=True)(context, *operands)
        # No prepared values are used, so the operands with prepared values are left out.
        context = context.replace(avals_in=context.avals_in[:count])
        operands = operands[:count]
        rewritten = rewrite(program, target)
        if not target.has_kernels:  # tracing leaves unused equations out of the module
            return mlir.lower_fun(rewritten, multiple_results=True)(context, *operands)
        # Lower the program as a call, which XLA inlines. To trace the program again instead would
        # take a fifth of the compile time of a training step of ConvNeXt-T.
        if context.platforms is not None:
            module = module.replace(platforms=context.platforms)
        call: Any = {"name": "network", "call_jaxpr": rewritten.closed}
        return mlir.core_call_lowering(context.replace(module_context=module), *operands, **call)


def _with_constants(
    program: Program,
    target: Target,
    constants: ConstantParameters,
    about: About,
    *,
    prepares: bool,
) -> Callable[..., list[Any]]:
    """Return a program as a function of the inputs, with the parameters as constants.

    If `prepares` is true, the function may contain prepared values instead of the parameters.
    `prepares` is false in a module for several platforms, so that the platforms share the
    parameters.
    """

    def with_parameters(*inputs: Array) -> list[Any]:
        return _bind(program, [*constants.arrays, *inputs], about)

    def with_prepared() -> Callable[..., list[Any]]:
        parts = lower(program, target)
        return partial(_call, parts, prepared(parts, constants.arrays))

    if prepares and target.has_kernels and program.has_items:
        return or_else(with_prepared, lambda: with_parameters)
    return with_parameters


def _call(parts: Split, values: Sequence[Array], *inputs: Array) -> list[Any]:
    """Call a split program with prepared values, and with inputs as separate arguments."""
    return parts.call(values, inputs)


mlir.register_lowering(_network, partial(_lowering_rule, platform="other"))
for _platform in ("cpu", "tpu", "cuda"):
    _rule = partial(_lowering_rule, platform=_platform)
    mlir.register_lowering(_network, _rule, platform=_platform)


def _jvp(
    operands: Sequence[Array],
    tangents: Sequence[Any],
    *,
    jaxpr: ClosedJaxpr,
    linear: int,
    constants: ConstantParameters,
    about: About,
    **params: Any,
) -> tuple[list[Any], list[Any]]:
    """Compute the results by one primitive, and their tangents by a linear primitive.

    The first primitive also computes the values that the linear primitive reads. `linear` is the
    number of trailing arguments in which `jaxpr` is linear.
    """
    count = len(jaxpr.in_avals)
    constant_avals = jaxpr.in_avals[: len(constants.arrays)]
    operands = [*constants.arrays, *operands]
    tangents = [*map(_zero_tangent, constant_avals), *tangents]
    # Operands after the arguments of the jaxpr are prepared values.
    if any(map(_is_active, tangents[count:])):
        raise TypeError(
            "prepared values have no derivatives: differentiate in parameters, and prepare these"
            " in the differentiated function, or not at all"
        )
    active = [i for i, tangent in enumerate(tangents[:count]) if _is_active(tangent)]
    first_linear = count - linear
    has_active_nonlinear = any(i < first_linear for i in active)
    if has_active_nonlinear:
        active_tangents = [tangents[i] for i in active]
        return _linearized(jaxpr, operands[:count], active, active_tangents, about)
    params |= {"linear": linear, "constants": _NOTHING, "about": about}
    results = _network.bind(*operands, jaxpr=jaxpr, **params)
    if not active:
        return results, list(map(_zero_tangent, jaxpr.out_avals))
    # The jaxpr is linear in all operands with a tangent. Therefore the same jaxpr computes the
    # tangents of the results, from the tangents of these operands.
    linear_tangents = map(ad.instantiate_zeros, tangents[first_linear:count])
    arguments = [*operands[:first_linear], *linear_tangents]
    return results, _bind(Program(jaxpr, role="backward"), arguments, about, linear=linear)


ad.primitive_jvps[_network] = _jvp


def _zero_tangent(aval: Aval) -> Any:
    return ad.Zero(aval.to_tangent_aval())


def _is_active(tangent: Any) -> bool:
    """Tell whether a tangent may differ from 0."""
    return type(tangent) is not ad.Zero and tangent.dtype != jax.dtypes.float0


def _linearized(
    jaxpr: ClosedJaxpr,
    operands: Sequence[Array],
    active: Sequence[int],
    active_tangents: Sequence[Array],
    about: About,
) -> tuple[list[Any], list[Any]]:
    """Return the results of a function and the tangents of the results.

    `active` has the indices of the operands that have a tangent, and `active_tangents` has these
    tangents.
    """
    avals = jaxpr.out_avals
    are_real = [jnp.issubdtype(aval.dtype, jnp.inexact) for aval in avals]
    trees: list[Any] = []  # tracing `with_residuals` appends the tree of the linear function

    def with_residuals(*operands: Array) -> tuple[list[Any], list[Any], list[Any]]:
        """Return floating-point results, integer results, and values that the tangents read."""

        def evaluate(*active_operands: Array) -> tuple[list[Any], list[Any]]:
            """Return floating-point and integer results for new values of the active operands."""
            arguments = _merged(operands, active, active_operands)
            results = jaxpr_evaluation.as_function(jaxpr)(*arguments)
            reals = list(compress(results, are_real))
            integers = list(compress(results, map(not_, are_real)))
            return reals, integers

        active_operands = [operands[i] for i in active]
        reals, linear_function, integers = jax.linearize(evaluate, *active_operands, has_aux=True)
        residuals, tree = jax.tree.flatten(linear_function)
        trees.append(tree)
        return reals, integers, residuals

    forward, (real_types, integer_types, _) = jaxpr_evaluation.make_jaxpr_and_types(
        with_residuals, *operands
    )
    real_count = len(real_types)
    result_count = real_count + len(integer_types)
    forward, sources = jaxprs.without_forwarded(forward, keep=result_count)
    computed = _bind(Program(forward, role="forward"), operands, about)
    # The forward pass computes floating-point results, integer results and residuals, in this
    # order. A residual that is an operand itself is not computed.
    reals = computed[:real_count]
    integers = computed[real_count:result_count]
    computed_residuals = iter(computed[result_count:])
    residuals = [next(computed_residuals) if i is None else operands[i] for i in sources]

    def push(residuals: Sequence[Array], active_tangents: Sequence[Array]) -> Any:
        """Return the tangents of the floating-point results."""
        linear_function = jax.tree.unflatten(trees[0], residuals)
        return linear_function(*active_tangents)

    linear = jaxpr_evaluation.make_jaxpr(push, residuals, active_tangents)
    backward = Program(without_stops(linear), role="backward")
    arguments = [*residuals, *active_tangents]
    real_tangents = _bind(backward, arguments, about, linear=len(active_tangents))
    integer_tangents = map(_zero_tangent, compress(avals, map(not_, are_real)))
    results = _interleaved(are_real, reals, integers)
    return results, _interleaved(are_real, real_tangents, integer_tangents)


def _interleaved(are_real: Iterable[bool], reals: Iterable[T], integers: Iterable[T]) -> list[T]:
    """Return the items of `reals` where `are_real` is true, and of `integers` elsewhere."""
    next_reals = iter(reals)
    next_integers = iter(integers)
    return [next(next_reals) if is_real else next(next_integers) for is_real in are_real]


def _merged(items: Sequence[T], indices: Iterable[int], new_items: Iterable[T]) -> list[T]:
    """Return a copy of `items` with `new_items` at the indices `indices`."""
    merged = list(items)
    for index, item in zip(indices, new_items, strict=True):
        merged[index] = item
    return merged


def _transpose(
    cotangents: Sequence[Any],
    *operands: Any,
    jaxpr: ClosedJaxpr,
    constants: ConstantParameters,
    about: About,
    **_: object,
) -> list[Any]:
    """Compute the cotangents of the operands in which the primitive is linear.

    They are computed by one primitive, which is linear in `cotangents`. All other operands get
    the cotangent None.
    """
    operands = (*constants.arrays, *operands)
    count = len(jaxpr.in_avals)
    linear_indices = [i for i, x in enumerate(operands) if ad.is_undefined_primal(x)]
    fixed_indices = [i for i in range(count) if i not in linear_indices]
    nonzero_indices = [i for i, ct in enumerate(cotangents) if type(ct) is not ad.Zero]
    linear_types = [operands[i].aval for i in linear_indices]

    def transposed(
        fixed_operands: Sequence[Array], nonzero_cotangents: Sequence[Array]
    ) -> list[Array]:
        """Return the cotangents of the linear operands."""
        fixed_arguments = _merged([None] * count, fixed_indices, fixed_operands)

        def evaluate(*linear_operands: Array) -> list[Array]:
            arguments = _merged(fixed_arguments, linear_indices, linear_operands)
            return jaxpr_evaluation.as_function(jaxpr)(*arguments)

        all_cotangents = list(map(ad.instantiate_zeros, cotangents))
        all_cotangents = _merged(all_cotangents, nonzero_indices, nonzero_cotangents)
        return list(jax.linear_transpose(evaluate, *linear_types)(all_cotangents))

    fixed_operands = [operands[i] for i in fixed_indices]
    nonzero_cotangents = [cotangents[i] for i in nonzero_indices]
    closed = jaxpr_evaluation.make_jaxpr(transposed, fixed_operands, nonzero_cotangents)
    backward = Program(closed, role="backward")
    arguments = [*fixed_operands, *nonzero_cotangents]
    results = _bind(backward, arguments, about, linear=len(nonzero_cotangents))
    cotangents_of_operands = _merged([None] * len(operands), linear_indices, results)
    return cotangents_of_operands[len(constants.arrays) :]


ad.primitive_transposes[_network] = _transpose


def _batched(
    operands: Sequence[Array],
    axes: Sequence[int | None],
    *,
    jaxpr: ClosedJaxpr,
    role: Role,
    linear: int,
    constants: ConstantParameters,
    about: About,
    **_: object,
) -> tuple[list[Any], list[int | None]]:
    """Evaluate the primitive for each item of a batch, by one primitive for the whole batch.

    `axes` has the batch axis of each operand, or None. The results are returned, and a list with
    the batch axis of each result, or None.
    """
    count = len(jaxpr.in_avals)
    arguments = [*constants.arrays, *operands][:count]  # operands after these are prepared values
    constant_axes = [None] * len(constants.arrays)
    argument_axes = [*constant_axes, *axes][:count]
    are_batched = jaxprs.depending(jaxpr, [axis is not None for axis in argument_axes])
    result_axes = [0 if is_batched else None for is_batched in are_batched]
    function = jax.vmap(jaxpr_evaluation.as_function(jaxpr), tuple(argument_axes), result_axes)
    closed = jaxpr_evaluation.make_jaxpr(function, *arguments)
    results = _bind(Program(closed, role=role), arguments, about, linear=linear)
    return results, result_axes


batching.primitive_batchers[_network] = _batched
