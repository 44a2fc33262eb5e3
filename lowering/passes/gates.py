"""Replaces the product with a logistic function of x by the quotient with 1 + exp(-x).

XLA computes the quotient in one loop, but the logistic function and the product in two loops.
Without this pass EfficientNet-B0 takes 1.03 times as long (with batches of 1 and 8), and an LSTM
with a batch of 8 takes 1.05 times as long.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from lowering.jaxpr_types import Equation
from lowering.program import Program
from lowering.rewriting import Computed, Matcher, in_loops, rewritten
from lowering.targets.target import Target


@in_loops
def run(program: Program, target: Target) -> Program:
    """Rewrite y * logistic(x) as y / (1 + exp(-x)) in a program and in its loops."""
    return rewritten(program, {"mul": _gated})


def _gated(matcher: Matcher, equation: Equation) -> Computed | None:
    """Compute y * logistic(x) as a quotient, or return None for other products."""
    (result,) = equation.outvars
    left, right = equation.invars
    for gate, factor in ((left, right), (right, left)):
        logistic = matcher.maker(gate, "logistic")
        if logistic is None or not matcher.is_read_once(gate) or matcher.is_known(gate):
            continue
        (x,) = logistic.invars
        # If x is a broadcast, the logistic function of the few items before the broadcast is
        # cheaper.
        is_broadcast = matcher.maker(x, "broadcast_in_dim") is not None
        has_all_items = x.aval.shape == result.aval.shape and not is_broadcast
        if x.aval.dtype == jnp.float32 and has_all_items:
            return Computed(_quotient, [factor, x])
    return None


def _quotient(y: Array, x: Array) -> Array:
    """Return y * logistic(x)."""
    return y / (1 + jnp.exp(-x))
