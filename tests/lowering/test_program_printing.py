"""The text of a program."""

from __future__ import annotations

import jax
import numpy as np

from lowering import Program, differentiable


def test_functions_among_parameters_are_left_out() -> None:
    """An equation with a derivative of its own has the function of the derivative."""

    def call(x: jax.Array) -> jax.Array:
        return jax.nn.relu(x) * 2

    program = Program(jax.make_jaxpr(call)(np.ones(3, np.float32)), 0)
    text = str(differentiable(program))
    assert text.startswith("program(x0: float32[3])")
    assert "custom_jvp_call x0 [num_consts=0]" in text
    assert "mul v1 2.0" in text
