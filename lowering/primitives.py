"""Makes JAX primitives, such as one that calls a traced function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jax import Array
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from lowering import jaxpr_evaluation
from lowering.fallback import or_else
from lowering.jaxpr_types import ClosedJaxpr
from lowering.jaxprs import PROGRAM

T = TypeVar("T")


def function_primitive(name: str) -> Any:
    """Return a new primitive with several results and a traced function as parameter `jaxpr`."""
    primitive = core.Primitive(name)
    primitive.multiple_results = True

    def bind_low_level(*operands: Array, jaxpr: ClosedJaxpr, **params: object) -> list[Array]:
        """Bind the primitive with a low-level `jaxpr`. If this fails, evaluate `jaxpr` itself."""
        return or_else(
            lambda: primitive.bind(*operands, jaxpr=jaxpr_evaluation.low_level(jaxpr), **params),
            lambda: primitive.impl(*operands, jaxpr=jaxpr, **params),
        )

    # jax calls this function if `jaxpr` has high-level primitives.
    primitive.to_lojax = bind_low_level
    return primitive


def call_primitive(name: str) -> Any:
    """Return a new primitive that evaluates the traced function in its parameter `jaxpr`."""

    def evaluate(*operands: Array, jaxpr: ClosedJaxpr) -> list[Array]:
        return jaxpr_evaluation.as_function(jaxpr)(*operands)

    primitive = function_primitive(name)
    primitive.def_impl(evaluate)
    primitive.def_abstract_eval(lambda *_, jaxpr: jaxpr.out_avals)
    mlir.register_lowering(primitive, mlir.lower_fun(evaluate, multiple_results=True))
    return primitive


def identity(name: str, transpose: Callable[..., Any]) -> Any:
    """Return a new linear primitive that returns its operand.

    `transpose` is the transposition rule of the primitive.
    """
    primitive = core.Primitive(name)

    def return_operand(x: T, **_: object) -> T:
        return x

    primitive.def_impl(return_operand)
    primitive.def_abstract_eval(return_operand)
    ad.deflinear2(primitive, transpose)
    batching.defvectorized(primitive)
    mlir.register_lowering(primitive, lambda _, x, **__: [x])
    return primitive


def shape_primitive(name: str, shape: Callable[..., Sequence[Any]]) -> Any:
    """Return a new primitive whose result has the first operand's dtype, and another shape.

    `shape` is a function. It takes the types of the operands, and the parameters of the equation as
    keyword arguments. It returns the shape of the result. The primitive occurs only in programs
    with symbolic extents, which `lowering.padding` evaluates. The primitive itself is never
    evaluated, differentiated or lowered.
    """
    primitive = core.Primitive(name)

    def result_type(*operand_types: Any, **params: object) -> Any:
        return operand_types[0].update(shape=tuple(shape(*operand_types, **params)))

    primitive.def_abstract_eval(result_type)
    return primitive


_program = call_primitive(PROGRAM)


def _lowering_rule(context: Any, *operands: Any, jaxpr: Any) -> Any:
    return mlir.core_call_lowering(context, *operands, name="program", call_jaxpr=jaxpr)


mlir.register_lowering(_program, _lowering_rule)


def as_call(closed: ClosedJaxpr) -> Callable[..., list[Any]]:
    """Return a Python function that adds one call of a traced function to the current trace.

    XLA inlines the call. To trace the equations again instead would take 0.09 s for ResNet-50.
    """
    if closed.effects:
        # The surrounding trace must see the effects, so it gets the equations themselves.
        return jaxpr_evaluation.as_function(closed)
    return lambda *operands: _program.bind(*operands, jaxpr=closed)
