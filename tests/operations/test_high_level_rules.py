"""Rules of a user's with functions of jax that trace to high-level primitives since jax 0.12."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
import pytest

from lowering import jaxprs
from lowering.registry import Registry
from nnef_jax import Model
from tests.helpers import model_of

N = 6
X = np.float32([0.7, -1.2, 0.0, 2.5, 0.7, 1.3])
W = np.float32([1.5, 0.5, 1.0, -0.75, 1.5, 2.0])
EDGES = np.float32([-1, 0, 1, 2])
POWERS = np.arange(N, dtype=np.int32)

# Functions of six real numbers that give six numbers.
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "argwhere": lambda x: jnp.argwhere(x > 1, size=N, fill_value=-1)[:, 0],
    "digitize": lambda x: jnp.digitize(x, EDGES),
    "expm": lambda x: jax.scipy.linalg.expm(jnp.diag(x))[0],
    "flatnonzero": lambda x: jnp.flatnonzero(x > 1, size=N, fill_value=-1),
    "frexp": lambda x: jnp.frexp(x)[0],
    "frexp_exponent": lambda x: jnp.frexp(x)[1],
    "histogram": lambda x: jnp.histogram(x, bins=N)[0],
    "insert": lambda x: jnp.insert(x, np.int32([1, 3]), np.float32(7))[:N],
    "interp": lambda x: jnp.interp(x, EDGES, EDGES**2),
    "intersect1d": lambda x: jnp.intersect1d(x, x[:3], size=N, fill_value=0),
    "ldexp": lambda x: jnp.ldexp(x, POWERS),
    "nonzero": lambda x: x[jnp.nonzero(x > 1, size=N, fill_value=0)[0]],
    "searchsorted": lambda x: jnp.searchsorted(EDGES, x, method="scan_unrolled"),
    "setdiff1d": lambda x: jnp.setdiff1d(x, x[:3], size=N, fill_value=0),
    "sorted": lambda x: jax.lax.map(lambda y: jnp.searchsorted(EDGES, y), x),
    "switched": lambda x: jax.lax.cond(x[0] > 0, lambda y: jnp.frexp(y)[0], lambda y: y, x),
    "union1d": lambda x: jnp.union1d(x, x[:3], size=N, fill_value=0),
    "unique": lambda x: jnp.unique(x, size=N, fill_value=0),
    "where": lambda x: x[jnp.where(x > 1, size=N, fill_value=0)[0]],
}

RESULTS = [f"y_{name}" for name in FUNCTIONS]
FRAGMENTS = [f"fragment {f}( x: tensor<scalar> ) -> ( y: tensor<scalar> );" for f in FUNCTIONS]
TEXT = f"""version 1.0; extension KHR_enable_fragment_definitions;
{" ".join(FRAGMENTS)}
graph net( x ) -> ( {", ".join(RESULTS)} )
{{
    x = external(shape = [{N}]);
    w = variable(shape = [{N}], label = 'w');
    m = mul(x, w);
    {" ".join(f"y_{name} = {name}(m);" for name in FUNCTIONS)}
}}
"""


def plain(params: dict[str, Any], x: Any) -> list[Any]:
    return [f(x * params["w"]).astype(jnp.float32) for f in FUNCTIONS.values()]


def network(**options: Any) -> Model:
    registry = Registry()
    for name, function in FUNCTIONS.items():
        registry.rule(name, lambda x: x)(lambda x, f=function: f(x).astype(jnp.float32))
    return model_of(TEXT, data={"w": W}, rules=registry, **options)


def require_equal(results: Any, wanted: Any, rtol: float = 1e-6) -> None:
    for name, x, y in zip(FUNCTIONS, results, wanted, strict=True):
        for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True):
            np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6, err_msg=name)


@pytest.fixture(scope="module")
def model() -> Model:
    return network(optimize="strict")


def test_values(model: Model) -> None:
    wanted = plain({"w": W}, X)
    require_equal(model(X), wanted)
    require_equal(jax.jit(model.apply)(model.params, X), wanted)
    require_equal(model.apply(model.prepare(model.params), X), wanted)
    require_equal(model.intermediates(X, names=RESULTS).values(), wanted)
    require_equal(network(optimize=False)(X), wanted)


@pytest.mark.parametrize("jacobian", [jax.jacrev, jax.jacfwd])
def test_derivatives(model: Model, jacobian: Any) -> None:
    wanted = jacobian(plain, argnums=(0, 1))({"w": W}, X)
    assert any(np.any(x[1]) for x in wanted)
    require_equal(jax.jit(jacobian(model.apply, argnums=(0, 1)))(model.params, X), wanted, 1e-5)
    require_equal(jacobian(model.apply, argnums=(0, 1))(model.params, X), wanted, 1e-5)


def test_batches(model: Model) -> None:
    batch = np.stack([X, X[::-1], -X])
    wanted = jax.vmap(plain, (None, 0))({"w": W}, batch)
    require_equal(jax.vmap(model)(batch), wanted)
    require_equal(jax.jit(jax.vmap(model.apply, (None, 0)))(model.params, batch), wanted)


def test_exported(model: Model, tmp_path: Path) -> None:
    model.export(tmp_path / "net.npz", platforms=["cpu", "cuda", "tpu"])
    with np.load(tmp_path / "net.npz") as file:
        function = jax.export.deserialize(file["function"])
        results = function.call({"w": file["params/w"]}, X)
    require_equal(results, plain({"w": W}, X))


@pytest.mark.usefixtures("warns_again")
@pytest.mark.filterwarnings("always")
def test_what_cannot_be_lowered_runs_as_it_is_written(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def fail(closed: Any) -> Any:
        raise ArithmeticError("on purpose")

    monkeypatch.setattr(jaxprs, "low_level", fail)
    model, wanted = network(), plain({"w": W}, X)
    require_equal(model(X), wanted)
    require_equal(jax.jit(model.apply)(model.params, X), wanted)
    slope = jax.jit(jax.jacrev(model.apply))(model.params, X)
    require_equal(slope, jax.jacrev(plain)({"w": W}, X), 1e-5)
    assert recwarn and all("ArithmeticError: on purpose" in str(w.message) for w in recwarn)
