"""Networks run, with one warning, where a later jax breaks what their optimisation uses."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lowering import jaxprs
from lowering.fallback import FailedPass, or_else
from lowering.passes import folding, spread
from nnef_jax import Model
from tests.eight_devices import MLP
from tests.helpers import model_of
from tests.programs import DATA, NET, X

pytestmark = pytest.mark.usefixtures("warns_again")


def total(model: Model) -> np.ndarray:
    gradient = jax.grad(lambda params: jnp.sum(model.apply(params, X)))(model.params)
    return np.asarray(gradient["w"])


@pytest.mark.parametrize("missing", ["Literal", "Jaxpr", "jaxpr_as_fun"])
def test_a_name_is_missing(missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    literal = model_of(NET, data=DATA, optimize=False)
    wanted, gradient = literal(X), total(literal)
    monkeypatch.delattr(jaxprs.core, missing)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = model_of(NET, data=DATA)
        np.testing.assert_allclose(model(X), wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(total(model), gradient, rtol=1e-5, atol=1e-4)
        for _ in range(2):
            kept = model_of(NET, data=DATA, cache_dir=tmp_path)
            np.testing.assert_allclose(kept(X), wanted, rtol=1e-5, atol=1e-5)
    (warning,) = caught
    assert missing in str(warning.message) and "'net' runs" in str(warning.message)


def test_the_module_is_missing() -> None:
    program = f"""
import sys, warnings
sys.modules["jax.extend.core"] = None
import numpy as np
from tests.eight_devices import MLP
from tests.helpers import model_of
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model = model_of({NET!r}, data={{"w": np.ones((4, 3, 3, 3), np.float32)}})
    print(float(model(np.ones((2, 3, 8, 8), np.float32))[0, 0, 4, 4]))
print(*(f"{{type(w.message).__name__}} {{w.message}}" for w in caught), sep="\\n")
"""
    run = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    value, *messages = run.stdout.splitlines()
    assert float(value) == 54
    assert len(messages) == 1 and "jax.extend" in messages[0]


def test_a_failure_is_that_of_one_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is rewritten next is optimised, and another network's failure is told too."""

    def is_folded(model: Model) -> bool:
        traced = str(jax.make_jaxpr(model.apply)(model.params, X))
        return ":f32[4,3,3,3] = mul" in traced  # the filter is scaled, not the result

    def fail(*_: Any) -> Any:
        raise ArithmeticError("on purpose\nand more of it")

    wanted = model_of(NET, data=DATA, optimize=False)(X)
    with monkeypatch.context() as patch:
        patch.setattr(folding, "_scaled", fail)
        for name in ("net", "other"):
            failing = model_of(NET.replace("graph net", f"graph {name}"), data=DATA)
            message = f"'{name}' .*'folding'.*: on purpose, at mul of d "
            with pytest.warns(UserWarning, match=message) as caught:
                np.testing.assert_allclose(failing(X), wanted, rtol=1e-5, atol=1e-5)
                assert not is_folded(failing)
            assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = model_of(NET, data=DATA)
        np.testing.assert_allclose(model(X), wanted, rtol=1e-5, atol=1e-5)
        assert is_folded(model)


@pytest.mark.parametrize("optimize", [True, False, "strict"])
def test_what_fails_over_a_mesh_is_left_to_xla(
    optimize: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise ArithmeticError("on purpose")

    x, v, b, w = (np.full(s, 0.1, np.float32) for s in ((8, 64), (128, 64), (1, 128), (32, 128)))
    data = {"v": v, "b": b, "w": w}
    mesh = jax.make_mesh((2,), ("model",), devices=jax.devices()[:2])
    model = model_of(MLP, data=data, optimize=optimize).shard(mesh, params="model")
    wanted = (x @ v.T + b) @ w.T
    monkeypatch.setattr(spread._Spread, "evaluated", fail)
    if optimize == "strict":
        with pytest.raises(FailedPass, match=r"'spread' fails: .*on purpose"):
            model(x)
        return
    with pytest.warns(UserWarning, match="'mlp' .*'spread'.*: on purpose") as caught:
        np.testing.assert_allclose(model(x), wanted, rtol=1e-5, atol=1e-5)
    assert len(caught) == 1


def test_a_network_at_fault_raises_its_own_error() -> None:
    def fail(name: str) -> None:
        raise ValueError(name)

    with pytest.raises(ValueError, match="by itself"):
        or_else(lambda: fail("rewritten"), lambda: fail("by itself"))
