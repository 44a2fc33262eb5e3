"""Programs as tests look at them: what the passes for a CPU make of a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lowering.emit import in_parts, traced
from lowering.pipeline import compiled
from lowering.prepare import Split
from lowering.program import Program, Role
from lowering.targets.cpu import CPU

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
_RNG = np.random.default_rng(0)
DATA = {"w": _RNG.standard_normal((4, 3, 3, 3)).astype(np.float32)}
X = _RNG.standard_normal((2, 3, 8, 8)).astype(np.float32)


def random(*shape: int, seed: int = 0) -> jax.Array:
    """Normally distributed numbers of 32 bits."""
    return jnp.asarray(np.float32(np.random.default_rng(seed).normal(size=shape)))


def program_of(
    function: Callable[..., Any],
    parameters: Any,
    inputs: Any,
    *,
    is_alone: bool = False,
    prepares: bool = True,
) -> tuple[Program, list[Any], Any]:
    """The program of a function of parameters; its leaves and result's tree."""
    program, leaves, tree = traced(function, parameters, inputs)
    return replace(program, prepares=prepares, is_alone=is_alone), leaves, tree


def optimised(
    function: Callable[..., Any], *, alone: bool = False, prepares: bool = True
) -> Callable[..., Any]:
    """The function of parameters and inputs as it is computed on CPUs, on one device if alone."""

    def run(parameters: Any, inputs: Any) -> Any:
        options: Any = {"is_alone": alone, "prepares": prepares}
        program, leaves, tree = program_of(function, parameters, inputs, **options)
        return jax.tree.unflatten(tree, compiled(program, CPU)(*leaves))

    return run


def rewritten(closed: Any, operands: Sequence[Any], role: Role, *, alone: bool) -> list[Any]:
    """Evaluate a traced function, none of whose operands is known before, as on a CPU."""
    program = Program(closed, prepares=False, role=role, is_alone=alone)
    return compiled(program, CPU)(*operands)


def split_of(function: Callable[..., Any], parameters: Any, inputs: Any) -> Split:
    """The function in the two parts that a call has on one CPU."""
    program, _, _ = program_of(function, parameters, inputs, is_alone=True)
    return in_parts(program, CPU)
