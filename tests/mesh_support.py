"""Helpers of tests over several devices: an LSTM, placed arrays, collectives of programs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import nnef_jax
from tests.helpers import COMPOSITIONAL, model_of

BATCH, WIDTH, HIDDEN = 8, 6, 16
# Gates by weights of their own, of which each has the hidden units first.
LSTM = (
    COMPOSITIONAL
    + f"""
fragment gate( x: tensor<scalar>, h: tensor<scalar>, name: string ) -> ( y: tensor<scalar> )
{{
    w = variable(shape = [{HIDDEN},{WIDTH}], label = name + '/w');
    u = variable(shape = [{HIDDEN},{HIDDEN}], label = name + '/u');
    b = variable(shape = [1,{HIDDEN}], label = name + '/b');
    y = linear(x, w, b) + linear(h, u);
}}
graph lstm( x ) -> ( y )
{{
    x = external(shape = [{BATCH},{WIDTH}]);
    h = variable(shape = [{BATCH},{HIDDEN}], label = 'h');
    c = variable(shape = [{BATCH},{HIDDEN}], label = 'c');
    kept = sigmoid(gate(x, h, name = 'f')) * c;
    new_c = kept + sigmoid(gate(x, h, name = 'i')) * tanh(gate(x, h, name = 'g'));
    new_h = sigmoid(gate(x, h, name = 'o')) * tanh(new_c);
    c_after = update(c, new_c);
    y = update(h, new_h);
}}
"""
)
_COLLECTIVE = re.compile(
    r" (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)


def lstm() -> nnef_jax.Model:
    """Return a network of 16 hidden units and a batch of 8, whose state is not zero."""
    random = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"h": (BATCH, HIDDEN), "c": (BATCH, HIDDEN)}
    for gate in "fiog":
        shapes |= {f"{gate}/w": (HIDDEN, WIDTH), f"{gate}/u": (HIDDEN, HIDDEN)}
        shapes |= {f"{gate}/b": (1, HIDDEN)}
    data = {label: random.uniform(-0.5, 0.5, s).astype(np.float32) for label, s in shapes.items()}
    return model_of(LSTM, data=data)


def put(x: Any, mesh: Mesh, *axes: Any) -> jax.Array:
    """Place an array on a mesh, sharded along these axes."""
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes)))


def result_and_collectives(function: Callable[..., Any], *args: Any) -> tuple[Any, dict[str, int]]:
    """Run a jitted function; count the collectives of its optimised program."""
    jitted: Any = function if hasattr(function, "lower") else jax.jit(function)
    executable = jitted.lower(*args).compile()
    return executable(*args), of_program(executable)


def of_program(executable: jax.stages.Compiled) -> dict[str, int]:
    """Count the collectives of an optimised program."""
    return dict(Counter(_COLLECTIVE.findall(executable.as_text() or "")))


def collectives(function: Callable[..., Any], *args: Any) -> dict[str, int]:
    """Count the collectives of the optimised program of a function."""
    return result_and_collectives(function, *args)[1]


def assert_close(found: Any, wanted: Any, tolerance: float = 1e-5) -> None:
    """Compare trees of arrays."""
    leaves, others = jax.tree.leaves(found), jax.tree.leaves(wanted)
    for x, y in zip(leaves, others, strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=tolerance, atol=tolerance)
