"""A network computes where its inputs are, whatever it was compiled for before."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AxisType, NamedSharding, PartitionSpec

import nnef_jax
from lowering.targets import Target, target_of
from nnef_jax.execution.definition import Definition
from nnef_jax.execution.places import Placement, default_device, place_of, platform_of
from nnef_jax.execution.runnable import execution_of
from tests.helpers import model_of
from tests.programs import SUM

NET = """version 1.0;
graph net( x ) -> ( y )
{
    x = external(shape = [2,64]);
    filter = variable(shape = [64,64], label = 'filter');
    bias = variable(shape = [1,64], label = 'bias');
    y = linear(x, filter, bias);
}
"""
RANDOM = np.random.default_rng(0)
DATA = {
    "filter": RANDOM.standard_normal((64, 64)).astype(np.float32),
    "bias": RANDOM.standard_normal((1, 64)).astype(np.float32),
}
X = RANDOM.standard_normal((2, 64)).astype(np.float32)
Y = X @ DATA["filter"].T + DATA["bias"]
OPTIONS = [
    ({}, False),
    ({}, True),
    ({"autotune": True}, True),
    ({"donate_state": True}, True),
    ({"optimize": False}, False),
    *(
        pytest.param(*row, marks=pytest.mark.slow)
        for row in (
            ({"autotune": True}, False),
            ({"donate_state": True}, False),
            ({"optimize": False}, True),
        )
    ),
]
FIRST, SECOND = jax.devices()[:2]


def net(**options: Any) -> nnef_jax.Model:
    return model_of(NET, data=DATA, **options)


def running_sum(**options: Any) -> nnef_jax.Model:
    arrays = {"total": np.zeros(2, np.float32), "factor": np.float32([2, 3])}
    return model_of(SUM, data=arrays, **options)


def cached(options: dict[str, Any], folder: Path, keep: bool) -> dict[str, Any]:
    return {**options, "cache_dir": folder} if keep else options


@pytest.mark.parametrize(("options", "keep"), OPTIONS)
def test_a_call_follows_its_inputs(options: dict[str, Any], keep: bool, tmp_path: Path) -> None:
    for _ in range(2):  # the second time from the folder
        model = net(**cached(options, tmp_path, keep))
        for device in (SECOND, None, FIRST, SECOND, None):
            put = jnp.asarray(X) if device is None else jax.device_put(X, device)
            for x in (put, X if device is None else put):
                y = model(x)
                np.testing.assert_allclose(y, Y, rtol=1e-4, atol=1e-4)
                assert y.devices() == {device or FIRST}
                assert y.committed == (device is not None)
    assert len(list(tmp_path.glob("*.xla"))) == (3 if keep else 0)


@pytest.mark.parametrize(("options", "keep"), OPTIONS)
def test_step_and_scan_follow_their_inputs(
    options: dict[str, Any], keep: bool, tmp_path: Path
) -> None:
    x = np.ones(2, np.float32)
    for _ in range(2):
        model = running_sum(**cached(options, tmp_path, keep))
        for device in (None, SECOND, FIRST, SECOND):
            put = jnp.asarray if device is None else (lambda x, d=device: jax.device_put(x, d))
            y, state = model.step(model.init_state(), put(x))
            y, state = model.step(state, x)  # the state tells the device
            np.testing.assert_array_equal(y, [4, 6])
            ys, last = model.scan(np.stack([x, x]), state=state)
            np.testing.assert_array_equal(ys, [[6, 9], [8, 12]])
            for array in (y, ys, last["total"]):
                assert array.devices() == {device or FIRST}
                assert array.committed == (device is not None)
        np.testing.assert_array_equal(model.init_state()["total"], [0, 0])


def test_other_functions_follow_their_arguments() -> None:
    model = net()
    x = jax.device_put(X, SECOND)
    params = jax.device_put(model.params, SECOND)
    for y in (model.apply(params, X), model.apply(model.params, x), model.intermediates(x)["y"]):
        np.testing.assert_allclose(y, Y, rtol=1e-4, atol=1e-4)
        assert y.devices() == {SECOND}


def test_parameters_are_put_on_a_device_once() -> None:
    """A call would copy what is not there, each time."""
    model = net()
    mesh = jax.make_mesh((2,), ("batch",), axis_types=(AxisType.Auto,))
    for place in (None, SECOND, FIRST, NamedSharding(mesh, PartitionSpec("batch"))):
        x = jnp.asarray(X) if place is None else jax.device_put(X, place)
        model(x)
        executable = execution_of(model).executable_for((x,))
        assert executable is not None and executable.args[0]
        for array in executable.args[0]:
            assert array.devices() == x.devices()
            assert array.is_fully_replicated


@pytest.mark.parametrize("platform", ["cuda", "rocm"])
def test_gpus_have_the_platform_for_which_calls_are_lowered(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = SimpleNamespace(platform_version=f"PJRT C API\n{platform} 13000")
    gpu: Any = SimpleNamespace(
        platform="gpu", compute_capability="9.0", client=client, device_kind="H100"
    )
    assert platform_of(gpu) == platform
    capability = 9.0 if platform == "cuda" else None
    assert Placement(gpu, is_committed=True).compute_capability == capability
    kind = {"cuda": "NVIDIA H100", "rocm": "AMD Instinct MI300X"}[platform]
    assert platform_of(AbstractDevice(kind, None, platform="gpu")) == platform
    client.platform_version = "oneAPI"
    other: Any = SimpleNamespace(platform="gpu", client=client, device_kind="Arc")
    assert platform_of(other) == "gpu"
    assert Placement(other, is_committed=True).compute_capability is None
    client.platform_version = platform
    monkeypatch.setattr("nnef_jax.execution.executables.platform_of", lambda _: platform_of(gpu))
    targets: list[Any] = []
    target = Definition.target

    def spied(*arguments: Any) -> Any:
        targets.append(target(*arguments))
        return targets[-1]

    monkeypatch.setattr(Definition, "target", spied)
    np.testing.assert_allclose(net()(X), Y, rtol=1e-4, atol=1e-4)
    assert [x.platform for x in targets] == [platform]


@pytest.mark.parametrize("keep", (False, True), ids=("jitted", "kept"))
def test_the_default_device_may_change(keep: bool, tmp_path: Path) -> None:
    model, here = net(**cached({}, tmp_path, keep)), jnp.asarray(X)
    for device in (SECOND, FIRST):
        with jax.default_device(device):
            for x in (X, here):
                y = model(x)
                np.testing.assert_allclose(y, Y, rtol=1e-4, atol=1e-4)
                assert y.devices() == {device} and not y.committed


def test_inputs_may_be_sharded(tmp_path: Path) -> None:
    mesh = jax.make_mesh((2,), ("batch",), axis_types=(AxisType.Auto,))
    sharded = jax.device_put(X, NamedSharding(mesh, PartitionSpec("batch")))
    for cache in (None, tmp_path):
        model = net(cache_dir=cache)
        for x in (sharded, X, sharded):
            y = model(x)
            np.testing.assert_allclose(y, Y, rtol=1e-4, atol=1e-4)
            assert len(y.devices()) == (1 if x is X else 2)


def test_arrays_on_several_devices_are_refused(tmp_path: Path) -> None:
    state = {"total": jax.device_put(np.zeros(2, np.float32), FIRST)}
    for cache in (None, tmp_path):
        for _ in range(2):
            model = running_sum(cache_dir=cache)
            with pytest.raises(ValueError, match="devices"):
                model.step(state, jax.device_put(np.ones(2, np.float32), SECOND))


def test_kernels_are_those_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the second device were none of a CPU."""
    traced: list[bool] = []
    model = net()

    def spy(platform: str, *arguments: Any, **options: Any) -> Target:
        traced.append(default_device() == FIRST)
        return target_of(platform if traced[-1] else "other", *arguments, **options)

    monkeypatch.setattr("lowering.target_of", spy)
    for device in (FIRST, SECOND):
        np.testing.assert_allclose(model(jax.device_put(X, device)), Y, rtol=1e-4, atol=1e-4)
        assert set(traced) == {device == FIRST}
        traced.clear()


def test_where_arrays_are() -> None:
    here, there = np.ones(1), jax.device_put(np.ones(1), SECOND)
    assert place_of([]) == place_of([here, jnp.ones(1)]) == (FIRST, False)
    assert place_of([here, jnp.ones(1), there]) == (SECOND, True)
    with jax.default_device(SECOND):
        assert place_of([here, jnp.ones(1)]) == (SECOND, False)
    with jax.default_device("cpu"):
        assert default_device() == FIRST
