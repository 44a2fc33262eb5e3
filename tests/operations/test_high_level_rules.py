"""Rules of a user's with functions of jax that trace to high-level primitives since jax 0.12."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
import pytest

from lowering import jaxpr_evaluation
from lowering.registry import Registry
from nnef_jax import Model
from tests.helpers import model_of

N = 6
X = np.float32([0.7, -1.2, 0.0, 2.5, 0.7, 1.3])
W = np.float32([1.5, 0.5, 1.0, -0.75, 1.5, 2.0])
EDGES = np.float32([-1, 0, 1, 2])
POWERS = np.arange(N, dtype=np.int32)

Function = Callable[[Any], Any]

# Functions of six real numbers that give six numbers.
FUNCTIONS: dict[str, Function] = {
    "frexp": lambda x: jnp.frexp(x)[0],
    "ldexp": lambda x: jnp.ldexp(x, POWERS),
    "mapped": lambda x: jax.lax.map(lambda y: jnp.searchsorted(EDGES, y), x),
    "nonzero": lambda x: x[jnp.nonzero(x > 1, size=N, fill_value=0)[0]],
    "searchsorted": lambda x: jnp.searchsorted(EDGES, x, method="scan_unrolled"),
    "switched": lambda x: jax.lax.cond(x[0] > 0, lambda y: jnp.frexp(y)[0], lambda y: y, x),
    "unique": lambda x: jnp.unique(x, size=N, fill_value=0),
}
# Functions that call these.
CALLERS: dict[str, Function] = {
    "argwhere": lambda x: jnp.argwhere(x > 1, size=N, fill_value=-1)[:, 0],
    "digitize": lambda x: jnp.digitize(x, EDGES),
    "expm": lambda x: jax.scipy.linalg.expm(jnp.diag(x))[0],
    "flatnonzero": lambda x: jnp.flatnonzero(x > 1, size=N, fill_value=-1),
    "histogram": lambda x: jnp.histogram(x, bins=N)[0],
    "insert": lambda x: jnp.insert(x, np.int32([1, 3]), np.float32(7))[:N],
    "interp": lambda x: jnp.interp(x, EDGES, EDGES**2),
    "intersect1d": lambda x: jnp.intersect1d(x, x[:3], size=N, fill_value=0),
    "setdiff1d": lambda x: jnp.setdiff1d(x, x[:3], size=N, fill_value=0),
    "union1d": lambda x: jnp.union1d(x, x[:3], size=N, fill_value=0),
    "where": lambda x: x[jnp.where(x > 1, size=N, fill_value=0)[0]],
}


class Network:
    """A network with one user's rule for each function, and the same in plain jax."""

    def __init__(self, functions: dict[str, Function]) -> None:
        self.functions = functions
        self.results = [f"y_{name}" for name in functions]

    def model(self, **options: Any) -> Model:
        registry = Registry()
        for name, function in self.functions.items():
            registry.rule(name, lambda x: x)(lambda x, f=function: f(x).astype(jnp.float32))
        names, tensor = [*self.functions], "tensor<scalar>"
        lines = [
            "version 1.0; extension KHR_enable_fragment_definitions;",
            *(f"fragment {name}( x: {tensor} ) -> ( y: {tensor} );" for name in names),
            f"graph net( x ) -> ( {', '.join(self.results)} ) {{",
            f"x = external(shape = [{N}]); w = variable(shape = [{N}], label = 'w');",
            "m = mul(x, w);",
            *(f"y_{name} = {name}(m);" for name in names),
            "}",
        ]
        return model_of("\n".join(lines), data={"w": W}, rules=registry, **options)

    def plain(self, params: dict[str, Any], x: Any) -> list[Any]:
        """The results, by jax alone."""
        return [f(x * params["w"]).astype(jnp.float32) for f in self.functions.values()]

    @cached_property
    def wanted(self) -> list[Any]:
        return jax.jit(self.plain)({"w": W}, X)

    def require_equal(self, results: Any, wanted: Any, rtol: float = 1e-6) -> None:
        for name, x, y in zip(self.functions, results, wanted, strict=True):
            for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True):
                np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6, err_msg=name)


@pytest.fixture(
    scope="module",
    params=[FUNCTIONS, pytest.param(CALLERS, marks=pytest.mark.slow)],
    ids=["functions", "callers"],
)
def network(request: pytest.FixtureRequest) -> Network:
    return Network(request.param)


def test_values(network: Network) -> None:
    model, wanted = network.model(optimize="strict"), network.wanted
    network.require_equal(model(X), wanted)
    network.require_equal(jax.jit(model.apply)(model.params, X), wanted)
    network.require_equal(model.apply(model.prepare(model.params), X), wanted)
    network.require_equal(model.intermediates(X, names=network.results).values(), wanted)
    network.require_equal(network.model(optimize=False)(X), wanted)


@pytest.mark.parametrize("jacobian", [jax.jacrev, pytest.param(jax.jacfwd, marks=pytest.mark.slow)])
def test_derivatives(network: Network, jacobian: Any) -> None:
    model = network.model(optimize="strict")
    wanted = jax.jit(jacobian(network.plain, argnums=(0, 1)))({"w": W}, X)
    assert any(np.any(x[1]) for x in wanted)
    slope = jax.jit(jacobian(model.apply, argnums=(0, 1)))(model.params, X)
    network.require_equal(slope, wanted, 1e-5)


def test_batches(network: Network) -> None:
    model, batch = network.model(optimize="strict"), np.stack([X, X[::-1], -X])
    wanted = jax.jit(jax.vmap(network.plain, (None, 0)))({"w": W}, batch)
    network.require_equal(jax.vmap(model)(batch), wanted)
    batched = jax.jit(jax.vmap(model.apply, (None, 0)))(model.params, batch)
    network.require_equal(batched, wanted)


def test_exported(network: Network, tmp_path: Path) -> None:
    network.model().export(tmp_path / "net.npz", platforms=["cpu", "cuda", "tpu"])
    with np.load(tmp_path / "net.npz") as file:
        function = jax.export.deserialize(file["function"])
        results = function.call({"w": file["params/w"]}, X)
    network.require_equal(results, network.wanted)


@pytest.mark.usefixtures("warns_again")
@pytest.mark.filterwarnings("always")
def test_what_cannot_be_lowered_runs_as_it_is_written(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def fail(closed: Any) -> Any:
        raise ArithmeticError("on purpose")

    monkeypatch.setattr(jaxpr_evaluation, "low_level", fail)
    network = Network({name: FUNCTIONS[name] for name in ("frexp", "switched")})
    model = network.model()
    network.require_equal(model(X), network.wanted)
    network.require_equal(jax.jit(model.apply)(model.params, X), network.wanted)
    slope = jax.jit(jax.jacrev(model.apply))(model.params, X)
    network.require_equal(slope, jax.jit(jax.jacrev(network.plain))({"w": W}, X), 1e-5)
    assert recwarn and all("ArithmeticError: on purpose" in str(w.message) for w in recwarn)
