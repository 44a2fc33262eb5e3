"""Helpers to inspect programs: the results of the passes for a CPU, and equations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from lowering.emit import network
from lowering.pipeline import differentiable, lower, rewrite, traced
from lowering.prepare import Split
from lowering.program import Program, Role
from lowering.targets.cpu import CPU
from lowering.targets.target import Target

# A network of three operations, its parameters, and an input.
NET = """version 1.0;
graph net(x) -> (y) {
    x = external(shape = [2,3,8,8]);
    w = variable(shape = [4,3,3,3], label = 'w');
    c = conv(x, w);
    d = mul(c, 2.0);
    y = relu(d);
}
"""
# A network with state: what was added up, which each call gives.
SUM = """version 1.0;
graph sum( x ) -> ( y )
{
    x = external(shape = [2]);
    total = variable(shape = [2], label = 'total');
    factor = variable(shape = [2], label = 'factor');
    scaled = mul(x, factor);
    y = add(total, scaled);
    next = update(total, y);
}
"""


def pooling_network(*shape: int) -> str:
    """Return a network: a convolution with filter `f` of 4 channels, ReLU, maxima of windows."""
    return f"""
version 1.0;
graph net(x) -> (y)
{{
    x = external<scalar>(shape = {list(shape)});
    f = variable<scalar>(shape = [4,{shape[1]},3,3], label = 'f');
    c = conv(x, f, padding = [(1,1),(1,1)]);
    r = relu(c);
    y = max_pool(r, size = [1,1,2,2], stride = [1,1,2,2], border = 'ignore');
}}
"""


_RNG = np.random.default_rng(0)
DATA = {"w": _RNG.standard_normal((4, 3, 3, 3)).astype(np.float32)}
X = _RNG.standard_normal((2, 3, 8, 8)).astype(np.float32)


def random(*shape: int, seed: int = 0) -> jax.Array:
    """Return normally distributed numbers of 32 bits."""
    return jax.device_put(np.float32(np.random.default_rng(seed).normal(size=shape)))


def program_of(
    function: Callable[..., Any],
    parameters: Any,
    inputs: Any,
    *,
    prepares: bool = True,
) -> tuple[Program, list[Any], Any]:
    """Return the program of a function of parameters, its leaves, and the result's tree."""
    program, leaves, tree = traced(function, parameters, inputs)
    return replace(differentiable(program), prepares=prepares), leaves, tree


def optimised(
    function: Callable[..., Any], *, alone: bool = False, prepares: bool = True
) -> Callable[..., Any]:
    """Return a function of parameters and inputs as CPUs compute it, on one device if `alone`."""

    def run(parameters: Any, inputs: Any) -> Any:
        program, leaves, tree = program_of(function, parameters, inputs, prepares=prepares)
        return jax.tree.unflatten(tree, rewrite(program, cpus(alone))(*leaves))

    return run


def rewritten(closed: Any, operands: Sequence[Any], role: Role, *, alone: bool) -> list[Any]:
    """Evaluate a traced function as on a CPU. None of its operands is known before."""
    program = Program(closed, prepares=False, role=role)
    return rewrite(program, cpus(alone))(*operands)


def cpus(alone: bool) -> Target:
    """Return the target of one CPU, or of several."""
    return replace(CPU, devices=1 if alone else 2)


def split_of(function: Callable[..., Any], parameters: Any, inputs: Any) -> Split:
    """Return the function in the two parts of a call on one CPU."""
    program, _, _ = program_of(function, parameters, inputs)
    return lower(program, CPU)


Function = Callable[[Any, list[Any]], Any]


def both_ways(function: Function, *, gradients: bool = True) -> Callable[[Any, list[Any]], Any]:
    """Compute value, and gradient in real inputs, as written and optimised, to be compiled as one.

    What is compiled for a CPU alone has no derivatives: its value alone comes last.
    """
    anywhere = network(function)

    def loss(f: Function) -> Function:
        def total(parameters: Any, inputs: list[Any]) -> Any:
            leaves = [y for y in jax.tree.leaves(f(parameters, inputs)) if y.dtype == jnp.float32]
            return sum((jnp.sum(jnp.sin(y)) for y in leaves), jnp.float32(0))

        return total

    def results(parameters: Any, inputs: list[Any]) -> Any:
        pairs: list[Any] = []
        for f in (function, anywhere):
            gradient = jax.grad(loss(f), argnums=(0, 1)) if gradients else lambda *_: None
            pairs.append((f(parameters, inputs), gradient(parameters, inputs)))
        return *pairs, optimised(function)(parameters, inputs)

    return results


def assert_both_ways(found: Any) -> None:
    """Require values and gradients of `both_ways` to be equal."""
    (value, gradient), anywhere, on_a_cpu = found
    assert_same((value, gradient), anywhere)
    assert_same(value, on_a_cpu)


def assert_same(wanted: Any, got: Any) -> None:
    """Require trees of arrays to be equal but for rounding."""
    assert jax.tree.structure(wanted) == jax.tree.structure(got)
    jax.tree.map(assert_close, wanted, got)


def assert_close(wanted: Any, got: Any) -> None:
    """Require arrays to be equal but for 1e-5 of the largest magnitude."""
    wanted, got = np.asarray(wanted), np.asarray(got)
    assert wanted.shape == got.shape and wanted.dtype == got.dtype
    scale = max(float(np.abs(wanted).max(initial=0)), 1e-6)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * scale)


def equations(jaxpr: Any) -> list[Any]:
    """Return the equations of a jaxpr in order, including those of loops."""
    found: list[Any] = []
    for equation in jaxpr.eqns:
        found.append(equation)
        for value in equation.params.values():
            if isinstance(value, core.ClosedJaxpr):
                found += equations(value.jaxpr)
    return found


def made_of(function: Function, parameters: Any, inputs: list[Any], **options: Any) -> list[Any]:
    """Return the equations of the optimised program in order, including those of loops."""
    return equations(jax.make_jaxpr(optimised(function, **options))(parameters, inputs).jaxpr)


def names_of(found: Sequence[Any]) -> list[str]:
    """Return the names of the primitives of equations."""
    return [e.primitive.name for e in found]
