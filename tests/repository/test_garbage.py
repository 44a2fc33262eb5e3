"""Pauses of Python's search for garbage."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from nnef_jax.garbage import uncollected
from tests.helpers import model_of

NET = """version 1.0;
graph net(x) -> (y) { x = external(shape = [2]); y = relu(x); }
"""


@pytest.mark.parametrize("collecting", [True, False])
def test_the_state_before_is_the_state_after(collecting: bool) -> None:
    assert gc.isenabled()
    try:
        (gc.enable if collecting else gc.disable)()
        with pytest.raises(KeyError), uncollected():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() == collecting
    finally:
        gc.enable()


def test_nothing_is_collected_while_a_name_is_imported() -> None:
    code = (
        "import gc, importlib, nnef_jax.garbage; found = [];"
        "gc.callbacks.append(lambda phase, info: found.append(phase));"
        "gc.collect(); assert found; found.clear(); gc.set_threshold(50);"
        "nnef_jax.NnefError; gc.set_threshold(0); print(len(found))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) <= 4  # start and stop, before and after


def test_nothing_is_collected_while_a_network_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    from nnef_jax.execution import executables

    seen, or_else = [], executables.or_else

    def spy(*args: Any, **options: Any) -> Any:
        seen.append(gc.isenabled())
        return or_else(*args, **options)

    monkeypatch.setattr(executables, "or_else", spy)
    model_of(NET, data={})(np.float32([1, -1]))
    assert seen == [False]
    assert gc.isenabled()
