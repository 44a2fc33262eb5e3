"""Tensors lie in memory as kernels want them, over the borders of loops too."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from lowering.cpu import layouts
from lowering.cpu.pending_view import View, tensor
from lowering.jaxprs import SCAN, primitive
from lowering.program import Program
from lowering.targets.cpu import CPU
from tests.lowering.passes.programs import changed, names, program, random

X, FILTER = random(6, 8, 5, 5), random(12, 8, 1, 1, seed=1)


def conv(x: Any, filter: Any) -> Any:
    return lax.conv_general_dilated(x, filter, (1, 1), "VALID")


def test_a_stack_keeps_its_layout_through_a_loop_over_parts_of_a_batch() -> None:
    def function(filter: Any, x: Any) -> Any:
        parts = conv(x, filter).reshape(3, 2, 12, 5, 5)
        y = lax.map(lambda part: jnp.tanh(part) * 2, parts)
        return jnp.sin(y.reshape(6, 12, 5, 5)).sum((2, 3))

    after = changed(layouts.run, program(function, FILTER, X, parameters=1), FILTER, X)
    (loop,) = [e for e in after.equations if primitive(e) == SCAN]
    assert loop.invars[-1].aval.shape == loop.outvars[0].aval.shape == (3, 2, 5, 5, 12)
    assert names(after).count("transpose") == 1  # of the input


def test_a_loop_with_a_state_is_plain() -> None:
    def function(x: Any) -> Any:
        return lax.scan(lambda y, z: (y + z, y * z), jnp.zeros((5, 4)), x.transpose(0, 2, 1))[1]

    x = random(3, 4, 5)
    after = changed(layouts.run, program(function, x), x)
    (loop,) = [e for e in after.equations if primitive(e) == SCAN]
    assert {v.aval.shape for v in loop.outvars} == {(5, 4), (3, 5, 4)}
    assert "transpose" not in names(after.body(loop))


@pytest.mark.parametrize(
    ("order", "wanted"), [((0, 2, 3, 1), (0, 2, 3, 1)), ((1, 2, 0, 3), (1, 2, 0, 3))]
)
def test_axes_that_become_one_come_together(order: Any, wanted: Any) -> None:
    """(2,3,4,5,6) to (6,4,5,6): the first axis moves beside the second, the others keep places."""
    closed = jax.make_jaxpr(lambda x: x.reshape(6, 4, 5, 6))(np.zeros((2, 3, 4, 5, 6)))
    x = random(2, 3, 4, 5, 6)
    inner = (0, *(axis + 1 for axis in order))
    view = View(jnp.asarray(x.transpose(inner)), inner, x.shape)
    (found,) = layouts.evaluated(Program(closed), [view])
    assert found.order == wanted
    np.testing.assert_array_equal(tensor(found), x.reshape(6, 4, 5, 6))


@pytest.mark.parametrize(
    ("function", "stays"),
    [
        (lambda x: jnp.cumsum(jnp.tanh(x[:, ::-1] * 2 + x[:1]).max(2).reshape(-1, 6), 0), True),
        (lambda x: jnp.tanh(x).transpose(1, 0, 2), False),
        (lambda x: jnp.tanh(x).sum(2), False),
        (lambda x: jnp.tanh(x) @ x.reshape(4, 5, 3), False),
        (lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2), (1, 1, 1), "SAME"), False),
    ],
)
def test_a_program_without_transpositions_and_kernels_stays(function: Any, stays: bool) -> None:
    before = program(function, random(4, 3, 5))
    assert (layouts.run(before, CPU) is before) == stays
