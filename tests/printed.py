"""Shared helpers of the tests of printing and converting: model outputs, the Khronos parser."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from lowering.graph import Graph
from nnef_jax import Model
from nnef_jax.formats.syntax.flat_document import FlatWriter
from nnef_jax.formats.syntax.printing import print_document
from nnef_jax.limits import Limits, Meter
from tests.helpers import COMPOSITIONAL

# Values that go by several names, a variable that is declared twice, names like an operation's.
ALIASES = f"""{COMPOSITIONAL}
fragment two( x: tensor<scalar>, scope: string ) -> ( a: tensor<scalar>, b: tensor<scalar> )
{{
    w = variable(shape = [1], label = scope + '/w');
    a = x * w;
    b = a;
}}
graph relu( x, extent ) -> ( y, z, same, w, v, y_1, extent_2 )
{{
    x = external(shape = [0,3]);
    extent = external<integer>(shape = [2]);
    (y, z) = two(x, scope = 's');
    same = x if 1 < 2 else -x;
    w = variable(shape = [1], label = 's/w');
    v = 1.0 / 3.0;
    y_1 = gather(x + 1.0, extent, axis = 1);
    extent_2 = extent;
}}
"""


def inputs_of(model: Model, seed: int = 0) -> list[Any]:
    """Random inputs; unknown extents are 2, integers are 0 and 1, which are valid as indices."""
    rng = np.random.default_rng(seed)
    found: list[Any] = []
    for spec in model.inputs:
        shape = tuple(extent or 2 for extent in spec.shape)
        if spec.dtype == "float32":
            found.append(rng.normal(size=shape).astype(np.float32))
        else:
            found.append(rng.integers(0, 2, size=shape).astype(spec.dtype))
    return found


def results_of(model: Model) -> list[Any]:
    """Return the outputs for random inputs, then the next state."""
    if not model.graph.states:
        return jax.tree.leaves(model(*inputs_of(model)))
    outputs, state = model.step(model.init_state(), *inputs_of(model))
    later, state = model.step(state, *inputs_of(model, seed=1))
    return [*jax.tree.leaves(outputs), *jax.tree.leaves(later), *state.values()]


def assert_same_results(model: Model, other: Model) -> None:
    assert model.inputs == other.inputs
    assert model.outputs == other.outputs
    if model.graph.states:
        wanted, found = results_of(model), results_of(other)
    else:  # compiled together
        inputs = inputs_of(model)
        both = jax.jit(lambda p, q: (model.apply(p, *inputs), other.apply(q, *inputs)))
        wanted, found = map(jax.tree.leaves, both(model.params, other.params))
    for expected, value in zip(wanted, found, strict=True):
        assert value.dtype == expected.dtype
        assert_array_equal(value, expected)


def print_graph(graph: Graph) -> str:
    """Return a flat graph as a flat document of 1.0 final."""
    return print_document(FlatWriter(graph, Meter(Limits.unbounded())).write())


def khronos(text: str) -> Any:
    """Parse a text with the Khronos parser."""
    return pytest.importorskip("nnef").parse_string(text)
