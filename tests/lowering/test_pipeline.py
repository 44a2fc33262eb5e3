"""A pass that fails is left out by name; where that is asked for it is an error with its place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lowering import pipeline
from lowering.fallback import FailedPass
from lowering.program import Program
from lowering.rewriting import Matcher, rewritten
from lowering.targets.cpu import CPU
from tests.helpers import model_of
from tests.programs import DATA, NET, X

pytestmark = pytest.mark.usefixtures("warns_again")
PASSES = [pipeline.name_of(run) for run in CPU.passes]


def use(monkeypatch: pytest.MonkeyPatch, name: str, instead: Any) -> None:
    """Put a function in the place of a pass."""
    instead.__module__ = f"passes.{name}"
    passes = [instead if pipeline.name_of(run) == name else run for run in CPU.passes]
    monkeypatch.setattr("lowering.targets.cpu.CPU", replace(CPU, passes=passes))


@pytest.mark.parametrize("name", PASSES)
def test_a_broken_pass_is_left_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(program: Program, target: Any) -> Program:
        raise ArithmeticError("on purpose")

    use(monkeypatch, name, fails)
    wanted = model_of(NET, data=DATA, optimize=False)(X)
    with pytest.warns(UserWarning, match=f"'net' is compiled without pass '{name}'") as caught:
        np.testing.assert_allclose(model_of(NET, data=DATA)(X), wanted, rtol=1e-5, atol=1e-5)
    assert len(caught) == 1
    with pytest.raises(FailedPass, match=f"pass '{name}' fails: .*on purpose"):
        model_of(NET, data=DATA, optimize="strict")(X)


def test_the_equation_and_its_line_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(matcher: Matcher, equation: Any) -> Any:
        raise ArithmeticError("on purpose")

    use(monkeypatch, "gates", lambda program, target: rewritten(program, {"le": fails}))
    with pytest.raises(FailedPass, match=r"'gates' fails: .*on purpose, at le of y .*graph.nnef:7"):
        jax.jit(model_of(NET, data=DATA, optimize="strict").apply)(DATA, X)


def test_the_equation_whose_kernel_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise ArithmeticError("on purpose")

    monkeypatch.setattr("lowering.cpu.kernel_rules.convolution", fails)
    place = r"conv_general_dilated of c .*graph.nnef:5"
    with pytest.raises(FailedPass, match=f"'layouts' fails: .*on purpose, at {place}"):
        jax.jit(model_of(NET, data=DATA, optimize="strict").apply)(DATA, X)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x: x.astype(jnp.bfloat16), "results were float32"),
        (lambda x: x[:1], "results were float32"),
    ],
)
def test_what_breaks_a_program_is_an_error(
    wrong: Callable[[Any], Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(program: Program, target: Any) -> Program:
        return program.retraced(lambda *x: list(map(wrong, program(*x))))

    use(monkeypatch, "gates", breaks)
    with pytest.raises(FailedPass, match=message):
        model_of(NET, data=DATA, optimize="strict")(X)


def test_an_error_of_a_user_is_none_of_a_pass() -> None:
    def refuses(x: Any) -> Any:
        raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        model_of(NET, data=DATA, optimize="strict")(X, edit={"y": refuses})
