"""Small programs for passes, and checks of what passes must keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lowering.jaxprs import primitive
from lowering.passes import inlining
from lowering.pipeline import check
from lowering.program import Program
from lowering.targets.cpu import CPU


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 1.5, shape).astype(np.float32)


def program(function: Callable[..., Any], *arguments: Any, parameters: int = 0) -> Program:
    """Return the program of a function of arrays, the first of which are parameters."""
    closed = jax.make_jaxpr(lambda *x: jax.tree.leaves(function(*x)))(*arguments)
    return inlining.run(Program(closed, parameters), CPU)


def changed(run: Callable[..., Program], before: Program, *arguments: Any) -> Program:
    """Return what a pass changes a program to; check that it is well formed and equivalent."""
    after = run(before, CPU)
    check(before, after)
    for a, b in zip(before(*arguments), after(*arguments), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * float(jnp.max(jnp.abs(a))))
    return after


def names(program: Program) -> list[str]:
    """Return the primitives of equations that are not prepared, in order."""
    return [primitive(e) for e in program.equations if program.is_late(e)]
