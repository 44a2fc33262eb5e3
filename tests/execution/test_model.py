"""The Model: calls, transformations, intermediates, what is compiled, saving."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from lowering.graph import TensorType
from lowering.registry import Registry
from nnef_jax.execution.runnable import execution_of
from tests.helpers import COMPOSITIONAL, model_of

NET = """
version 1.0;
graph net( x ) -> ( y, hidden )
{
    x = external(shape = [2,3,8,8]);
    filter = variable(shape = [4,3,3,3], label = 'conv/filter');
    bias = variable(shape = [1,4], label = 'conv/bias');
    mean = variable(shape = [1,4], label = 'norm/mean');
    variance = variable(shape = [1,4], label = 'norm/variance');
    conv1 = conv(x, filter, bias);
    norm1 = batch_normalization(conv1, mean, variance, 0.0, 1.0, epsilon = 1e-3);
    hidden = relu(norm1);
    y = mean_reduce(hidden, axes = [2,3]);
}
"""


def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "conv/filter": random.uniform(-1, 1, (4, 3, 3, 3)).astype(np.float32),
        "conv/bias": random.uniform(-1, 1, (1, 4)).astype(np.float32),
        "norm/mean": random.uniform(-1, 1, (1, 4)).astype(np.float32),
        "norm/variance": random.uniform(1, 2, (1, 4)).astype(np.float32),
    }


@pytest.fixture(scope="module")
def net() -> nnef_jax.Model:
    return model_of(NET, data=arrays())


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(1).uniform(-1, 1, (2, 3, 8, 8)).astype(np.float32)


def test_specs(net: nnef_jax.Model) -> None:
    assert net.inputs == (nnef_jax.TensorSpec("x", (2, 3, 8, 8), "float32"),)
    assert net.outputs == (
        nnef_jax.TensorSpec("y", (2, 4, 1, 1), "float32"),
        nnef_jax.TensorSpec("hidden", (2, 4, 8, 8), "float32"),
    )
    assert repr(net).startswith("<nnef_jax.Model net(x: float32[2,3,8,8]) -> (y: float32[2,4,1,1]")


def test_several_outputs_are_a_named_tuple(net: nnef_jax.Model, x: np.ndarray) -> None:
    outputs = net(x)
    assert outputs._fields == ("y", "hidden")
    np.testing.assert_allclose(outputs.y, np.mean(outputs.hidden, (2, 3), keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(net(x=x).y, outputs.y)
    np.testing.assert_array_equal(net(jnp.asarray(x)).y, outputs.y)


def test_params_are_a_pytree_and_a_copy(net: nnef_jax.Model, x: np.ndarray) -> None:
    params = net.params
    assert {k: v.shape for k, v in params.items()} == {k: v.shape for k, v in arrays().items()}
    before = net(x).y
    params["conv/bias"] = params["conv/bias"] + 1
    np.testing.assert_array_equal(net(x).y, before)
    assert not np.allclose(net.apply(params, x).y, before)
    zero = jax.tree.map(jnp.zeros_like, net.params)
    np.testing.assert_allclose(net.apply(zero, x).hidden, 0)


def test_wrong_params(net: nnef_jax.Model, x: np.ndarray) -> None:
    params = net.params
    params["conv/bios"] = params.pop("conv/bias")
    with pytest.raises(nnef_jax.InputError, match="lacks conv/bias and has unknown conv/bios"):
        net.apply(params, x)


def test_gradients_in_params_and_inputs(net: nnef_jax.Model, x: np.ndarray) -> None:
    def loss(params: Any, x: Any) -> jax.Array:
        return jnp.sum(net.apply(params, x).y ** 2)

    by_params, by_x = jax.jit(jax.grad(loss, argnums=(0, 1)))(net.params, x)
    assert by_params.keys() == net.params.keys() and by_x.shape == x.shape
    step = jax.tree.map(lambda p, g: p - 0.01 * g, net.params, by_params)
    assert loss(step, x) < loss(net.params, x)
    assert all(float(jnp.abs(g).max()) > 0 for g in by_params.values())


def test_hessian_and_jacobian(net: nnef_jax.Model, x: np.ndarray) -> None:
    def scale(s: jax.Array) -> jax.Array:
        return net.apply(net.params, x * s).y

    s = jnp.float32(1)
    assert jax.jacobian(scale)(s).shape == (2, 4, 1, 1)
    assert jax.hessian(lambda s: jnp.sum(scale(s) ** 2))(s).shape == ()


def test_vmap_adds_a_batch_axis(net: nnef_jax.Model, x: np.ndarray) -> None:
    many = np.stack([x, x[::-1], 2 * x])
    together = jax.vmap(net.apply, (None, 0))(net.params, many).y
    for one, xs in zip(together, many, strict=True):
        np.testing.assert_allclose(one, net(xs).y, rtol=1e-5, atol=1e-6)


def test_intermediates(net: nnef_jax.Model, x: np.ndarray) -> None:
    found = net.intermediates(x, names=["conv1", "hidden"])
    assert found.keys() == {"conv1", "hidden"}
    np.testing.assert_allclose(found["hidden"], net(x).hidden, rtol=1e-5, atol=1e-6)
    assert {"x", "filter", "conv1", "norm1", "y"} <= net.intermediates(x).keys()
    with pytest.raises(nnef_jax.InputError, match="no tensor 'conv7'"):
        net.intermediates(x, names=["conv7"])
    with pytest.raises(nnef_jax.InputError, match="2 inputs"):
        net.intermediates(x, ["conv1"])


@pytest.mark.parametrize("optimize", (True, False))
def test_jaxpr_is_flat_and_carries_names(x: np.ndarray, optimize: bool) -> None:
    model = model_of(NET, data=arrays(), optimize=optimize)
    (call,) = jax.make_jaxpr(model.apply)(model.params, x).eqns
    equations = call.params["jaxpr"].eqns
    if optimize:  # one operation, whose kernels are chosen where it is lowered
        (network,) = equations
        equations = network.params["jaxpr"].eqns
    assert "conv_general_dilated" in {equation.primitive.name for equation in equations}
    stacks = {str(equation.source_info.name_stack) for equation in equations}
    assert {"conv1", "norm1", "hidden", "y"} <= stacks
    assert "conv1" in model.lower(x).compile().as_text()


def test_derivatives_outside_jit_are_compiled_as_a_whole() -> None:
    kinds = ("sin", "cos", "tanh", "sigmoid", "exp", "sqr", "rsqr", "neg", "sinh", "asinh", "atan")
    lines = [f"x{i + 1} = {kind}(x{i});" for i, kind in enumerate(kinds)]
    text = f"""version 1.0; graph g(x0) -> (x{len(kinds)}) {{
        x0 = external(shape = [7,5]); {" ".join(lines)}
    }}"""
    model = model_of(text)
    compiled: list[str] = []

    def count(event: str, _: float, **__: Any) -> None:
        compiled.extend([event] if event.endswith("backend_compile_duration") else [])

    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        _, pullback = jax.vjp(lambda x: model.apply({}, x), jnp.ones((7, 5)))
        pullback(jnp.ones((7, 5)))
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert 2 <= len(compiled) < len(kinds)


def test_parameters_are_arguments(x: np.ndarray) -> None:
    big = """version 1.0; graph g(x) -> (y) {
        x = external(shape = [1,1024]);
        w = variable(shape = [1024,1024], label = 'w');
        y = linear(x, w);
    }"""
    model = model_of(big, data={"w": np.ones((1024, 1024), np.float32)})
    assert len(model.lower().as_text()) < 4_000
    np.testing.assert_allclose(model(np.ones((1, 1024), np.float32)), 1024)


def test_summary_names_operations_and_counts(net: nnef_jax.Model) -> None:
    table = str(net.summary())
    assert "conv1" in table and "[2,4,8,8]" in table
    # 4*3*3*3 + 3*4 parameters; 2*4*8*8 outputs of 3*3*3 products each.
    assert "120 parameters, 13,824 multiply-adds" in table


def test_save_and_load(net: nnef_jax.Model, x: np.ndarray, tmp_path: Path) -> None:
    changed = jax.tree.map(lambda p: 2 * p, net.params)
    for name in ("folder", "archive.nnef.tgz"):
        net.save(tmp_path / name, params=changed)
        np.testing.assert_array_equal(nnef_jax.load(tmp_path / name)(x).y, net_with(changed)(x).y)
    with pytest.raises(FileExistsError):
        net.save(tmp_path / "folder")
    net.save(tmp_path / "folder", overwrite=True)
    np.testing.assert_array_equal(nnef_jax.load(tmp_path / "folder")(x).y, net(x).y)


def net_with(params: dict[str, Any]) -> nnef_jax.Model:
    return model_of(NET, data={k: np.asarray(v) for k, v in params.items()})


def test_save_refuses_what_does_not_fit(tmp_path: Path) -> None:
    text = """version 1.0; graph g(x) -> (y) {
        x = external(shape = [1]);
        w = variable(shape = [2], label = 'w');
        y = mul(x, w);
    }"""
    arrays = {"w": np.zeros(3, np.float32), "v": np.zeros(1)}
    with pytest.raises(nnef_jax.DataError, match="no variable 'v'") as caught:
        nnef_jax.write_archive(tmp_path / "n", text, arrays)
    assert len(caught.value.errors) == 2
    assert not (tmp_path / "n").exists()
    with pytest.raises(nnef_jax.NnefSyntaxError):
        nnef_jax.write_archive(tmp_path / "n", "version 1.0; graph", {})
    assert list(tmp_path.iterdir()) == []


def test_bfloat16(net: nnef_jax.Model, x: np.ndarray) -> None:
    model = model_of(NET, data=arrays(), dtype="bfloat16")
    assert all(p.dtype == jnp.bfloat16 for p in model.params.values())
    y = model(x).y
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(y, np.float32), net(x).y, rtol=0.05, atol=0.05)


def test_float64_needs_x64() -> None:
    with pytest.raises(ValueError, match="jax_enable_x64"):
        model_of(NET, data=arrays(), dtype="float64")


def test_own_rule_for_an_own_operation(tmp_path: Path) -> None:
    text = """version 1.0; extension KHR_enable_fragment_definitions;
    fragment erf( x: tensor<scalar> ) -> ( y: tensor<scalar> );
    graph g(x) -> (y) { x = external(shape = [3]); y = erf(x); }"""
    with pytest.raises(nnef_jax.UnsupportedError, match="no rule for operation 'erf', used 1 time"):
        model_of(text)
    rules = Registry()

    def infer(x: TensorType) -> TensorType:
        return x

    @rules.rule("erf", infer)
    def lower(x: Any) -> jax.Array:
        return jax.scipy.special.erf(x)

    nnef_jax.write_archive(tmp_path / "erf", text, {}, rules=rules)
    for model in (model_of(text, rules=rules), nnef_jax.load(tmp_path / "erf", rules=rules)):
        y = model(np.float32([0, 1, -1]))
        np.testing.assert_allclose(y, [0, 0.8427008, -0.8427008], rtol=1e-6)


def test_output_that_is_a_variable_or_an_input() -> None:
    text = f"""{COMPOSITIONAL}
    fragment same( x: tensor<scalar> ) -> ( y: tensor<scalar> ) {{ y = x; }}
    graph g(x) -> (z, w, y) {{
        x = external(shape = [1,2]);
        w = variable(shape = [1,2], label = 'w');
        y = mul(x, w);
        z = same(x);
    }}"""
    outputs = model_of(text, data={"w": np.float32([[3, 4]])})(np.float32([[1, 2]]))
    np.testing.assert_array_equal(outputs.z, [[1, 2]])
    np.testing.assert_array_equal(outputs.w, [[3, 4]])
    np.testing.assert_array_equal(outputs.y, [[3, 8]])


def test_inputs_are_not_aliased(net: nnef_jax.Model, x: np.ndarray) -> None:
    mine = x.copy()
    outputs = net(mine)
    mine[:] = 0
    np.testing.assert_array_equal(outputs.y, net(x).y)


ALIASING = """
import numpy as np
from lowering.host import aligned
from tests.helpers import model_of

model = model_of(
    "version 1.0; graph g( x ) -> ( y ) { x = external(shape=[64,65536]); y = sqr(sin(x)); }"
)
x = aligned((64, 65536), np.dtype(np.float32))
for _ in range(6):
    x[:] = 1
    y = model(x)
    x[:] = 0
    np.testing.assert_allclose(y, np.sin(1) ** 2, rtol=1e-6)
"""


def test_large_inputs_are_not_aliased() -> None:
    """Not even one at an address that a device takes as it is, while it computes."""
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", ALIASING], check=True, cwd=root)


def test_progress_of_reading() -> None:
    seen: list[tuple[int, int]] = []
    model_of(NET, data=arrays(), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_calls_like_earlier_ones() -> None:
    """What a first call found out is used by later ones that are like it, and by no others."""
    model = model_of(
        "version 1.0; graph g( x, k ) -> ( y ) { x = external(shape=[2,3]);"
        " k = external<integer>(shape=[1]); y = sigmoid(x); }"
    )
    x, k = jnp.ones((2, 3)), jnp.ones(1, jnp.int32)
    wanted = jax.nn.sigmoid(x)
    for _ in range(2):
        np.testing.assert_allclose(model(x, k), wanted, rtol=1e-6)
        np.testing.assert_allclose(model(np.asarray(x), k), wanted, rtol=1e-6)
        np.testing.assert_allclose(model(k=k, x=x), wanted, rtol=1e-6)
        np.testing.assert_allclose(jax.jit(model)(x, k), wanted, rtol=1e-6)
        np.testing.assert_allclose(jax.jit(lambda y: y * model(x, k))(x), wanted, rtol=1e-6)
        np.testing.assert_allclose(jax.vmap(model)(x[None], k[None])[0], wanted, rtol=1e-6)
        np.testing.assert_allclose(model(x.astype(jnp.bfloat16), k), wanted, rtol=1e-6)
        there = jax.device_put((x, k), jax.devices()[1])
        assert model(*there).devices() == {jax.devices()[1]}
        for wrong in ((x.T, k), (x, k, k), (k, k), (x,), (x, x), ("x", k)):
            with pytest.raises(nnef_jax.InputError):
                model(*wrong)


def test_arrays_of_numpy_are_copied() -> None:
    params = arrays()
    model = model_of(NET, data=arrays()).with_params(params)
    x = np.ones((2, 3, 8, 8), np.float32)
    expected = model_of(NET, data=arrays())(x)
    for array in params.values():
        array *= 2
    np.testing.assert_array_equal(model(x).y, expected.y)
    np.testing.assert_allclose(model.apply(model.params, x).y, expected.y, rtol=1e-5)


def test_the_precision_may_change_between_calls() -> None:
    net = "version 1.0; graph net(x) -> (y) { x = external(shape = [64,64]); y = matmul(x, x); }"
    model = model_of(net, optimize=False)
    x = np.ones((64, 64), np.float32)
    execution = execution_of(model)

    def is_highest() -> bool:
        model(x)
        text = execution.compiled(execution.outputs, {}, [x]).as_text() or ""
        return "operand_precision={highest,highest}" in text

    with jax.default_matmul_precision("default"):
        assert not is_highest()
        with jax.default_matmul_precision("highest"):
            assert is_highest()
        assert not is_highest()
