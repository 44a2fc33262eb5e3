"""What `load(..., cache_dir=...)` keeps: other loads find it, and nothing else, come what may."""

from __future__ import annotations

import json
import os
import pickle
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import nnef_jax
from lowering import split
from lowering.graph import Graph, Operation, TensorType, Value
from lowering.registry import Registry
from nnef_jax.execution import cache_key, definition, disk_cache
from nnef_jax.execution.checked_file import (
    digests_of,
    read_array,
    read_checked,
    write_array,
    write_checked,
)
from nnef_jax.storage import files
from nnef_jax.storage.tensorfile import encode_tensor
from tests import flip_cache
from tests.helpers import archive, model_of
from tests.programs import SUM

pytestmark = pytest.mark.optimised

NET = """version 1.0;
graph net( x ) -> ( y, hidden )
{
    x = external(shape = [0,4]);
    filter = variable(shape = [3,4], label = 'filter');
    bias = variable(shape = [1,3], label = 'bias');
    hidden = linear(x, filter, bias);
    y = relu(hidden);
}
"""
X = np.float32([[1, 2, 3, 4]])


def data(scale: float = 1) -> dict[str, np.ndarray]:
    filter = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
    return {"filter": scale * filter, "bias": np.float32([[0.5, -1, 2]])}


def expected(x: np.ndarray, scale: float = 1) -> np.ndarray:
    return x @ data(scale)["filter"].T + data()["bias"]


def net(cache: Path, text: str = NET, scale: float = 1, **options: Any) -> nnef_jax.Model:
    return model_of(text, data=data(scale), cache_dir=cache, **options)


def running_sum(cache: Path, total: list[float]) -> nnef_jax.Model:
    arrays = {"total": np.float32(total), "factor": np.float32([2, 3])}
    return model_of(SUM, data=arrays, cache_dir=cache)


class Traces:
    """Counts how often functions of networks were traced to be compiled."""

    def __init__(self) -> None:
        self.count = self.known = 0

    def grown(self) -> bool:
        """Whether there are more than when this was asked last."""
        before, self.known = self.known, self.count
        return self.count > before


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Traces:
    traces, trace = Traces(), definition.trace

    def spy(*args: Any) -> Any:
        traces.count += 1
        return trace(*args)

    monkeypatch.setattr(definition, "trace", spy)
    return traces


def test_a_second_load_neither_traces_nor_compiles(tmp_path: Path, traces: Traces) -> None:
    first = net(tmp_path)(X)
    assert traces.grown()
    model = net(tmp_path)
    second = model(X)
    assert not traces.grown()
    assert second._fields == ("y", "hidden")
    np.testing.assert_array_equal(second.hidden, first.hidden)
    np.testing.assert_allclose(second.hidden, expected(X), rtol=1e-6)
    np.testing.assert_array_equal(second.y, np.maximum(second.hidden, 0))
    np.testing.assert_array_equal(model(2 * X).hidden, first.hidden * 2 - data()["bias"])


def test_another_process_finds_it(tmp_path: Path) -> None:
    source = tmp_path / "net.tar"
    members = {label: tensor(array) for label, array in data().items()}
    source.write_bytes(archive(graph=NET, **members))
    program = f"""
import sys, numpy as np, nnef_jax
model = nnef_jax.load({str(source)!r}, cache_dir={str(tmp_path / "cache")!r})
print(model(np.float32([[1, 2, 3, 4]])).hidden.tolist())
print("lowering.jaxprs" in sys.modules, "lark" in sys.modules, "rich" in sys.modules)
"""
    runs = [
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
        for _ in range(2)
    ]
    result = str(expected(X).tolist())
    first, second = (run.stdout.splitlines() for run in runs)
    assert first == [result, "True False False"]
    assert second == [result, "False False False"]


def tensor(array: np.ndarray) -> bytes:
    header, content = encode_tensor(array)
    return header + bytes(content)


def test_data_are_not_part_of_it(tmp_path: Path, traces: Traces) -> None:
    net(tmp_path)(X)
    running_sum(tmp_path, [1, 1])(np.ones(2, np.float32))
    assert traces.grown()
    np.testing.assert_allclose(net(tmp_path, scale=3)(X).hidden, expected(X, 3), rtol=1e-6)
    result = running_sum(tmp_path, [10, 20])(np.ones(2, np.float32))
    np.testing.assert_array_equal(result, [12, 23])
    assert not traces.grown()


def test_recurrence(tmp_path: Path, traces: Traces) -> None:
    for total in (0, 5):
        model = running_sum(tmp_path, [total, total])
        y, state = model.step(model.init_state(), np.ones(2, np.float32))
        np.testing.assert_array_equal(y, [total + 2, total + 3])
        y, state = model.scan(np.ones((3, 2), np.float32), state=state)
        np.testing.assert_array_equal(y[-1], [total + 8, total + 12])
        np.testing.assert_array_equal(state["total"], y[-1])
        assert traces.grown() == (total == 0)


@pytest.mark.parametrize(
    "other",
    [
        lambda cache: net(cache)(np.ones((2, 4), np.float32)),
        lambda cache: net(cache, dtype="bfloat16")(X),
        lambda cache: net(cache, precision="default")(X),
        lambda cache: net(cache, optimize=False)(X),
        lambda cache: net(cache, expand="all")(X),
        lambda cache: net(cache, NET.replace("relu(", "neg("))(X),
        lambda cache: net(cache, NET.replace("relu(hidden)", "relu(bias)"))(X),
    ],
    ids=["shape", "dtype", "precision", "optimize", "expand", "operation", "operand"],
)
def test_what_differs_is_kept_apart(
    tmp_path: Path, traces: Traces, other: Callable[[Path], Any]
) -> None:
    net(tmp_path)(X)
    assert traces.grown()
    other(tmp_path)
    assert traces.grown()
    assert len(list(tmp_path.glob("*.xla"))) == 2


def test_open_and_declared_extents_share_it(tmp_path: Path, traces: Traces) -> None:
    net(tmp_path)(X)
    assert traces.grown()
    net(tmp_path, NET.replace("[0,4]", "[1,4]"))(X)
    net(tmp_path, input_shapes={"x": (1, 4)})(X)
    assert not traces.grown()


def test_configuration_is_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = net(tmp_path).graph
    device = jax.devices()[0]
    keys: list[str] = []

    def add(key: str = "") -> None:
        keys.append(key or cache_key.key_of(graph, device))

    add()
    add(cache_key.key_of(graph, jax.devices()[1]))
    add(cache_key.key_of(graph, device, "scan"))
    with jax.default_matmul_precision("bfloat16"):
        add()
    with jax.numpy_dtype_promotion("standard"):
        add()
    with jax.enable_x64(True):
        add()
    with jax.default_prng_impl("rbg"):
        add()
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    add()
    flags = tmp_path / "flags"
    monkeypatch.setenv("XLA_FLAGS", str(flags))
    add()
    for text in ("--xla_cpu_enable_fast_math=true --a=1", "--xla_cpu_enable_fast_math=false"):
        flags.write_text(text)
        add()
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--a=1")
    add()
    assert len(set(keys)) == len(keys) == 12
    before = cache_key.key_of(graph, device)
    with jax.log_compiles(True):
        assert cache_key.key_of(graph, device) == before


def test_a_setting_of_logistic_functions_is_none_of_logs(tmp_path: Path) -> None:
    name = "jax_use_hlo_logistic_lowering"
    if name not in jax.config.values:
        pytest.skip("jax has no such setting")
    graph = net(tmp_path).graph
    device = jax.devices()[0]
    before = cache_key.key_of(graph, device)
    value = jax.config.values[name]
    jax.config.update(name, not value)
    try:
        assert cache_key.key_of(graph, device) != before
    finally:
        jax.config.update(name, value)


def test_the_dtype_of_a_literal_is_part_of_the_key() -> None:
    device = jax.devices()[0]

    def key(name: str, literal: Any) -> str:
        x, y = (Value(n, TensorType((2,), "float32")) for n in (name, "y"))
        operation = Operation("mul", (("x", x), ("y", literal)), (), (y,))
        return cache_key.key_of(Graph("net", (x,), (y,), ("y",), (operation,)), device)

    literals = (1.5, jnp.bfloat16(1.5).item(), ml_dtypes.bfloat16(1.5), np.float16(1.5), "1.5")
    names = ("x", "x%0:float32[2],'x", "x'")
    assert len({key("x", literal) for literal in literals}) == 4
    assert len({key(name, 1.5) for name in names}) == 3


def test_a_change_of_the_sources_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = cache_key._installation.__wrapped__()
    assert any(part.split(" ")[0].endswith("lowering/ops/conv.py") for part in parts)
    monkeypatch.setattr(nnef_jax, "__version__", "another")
    assert cache_key._installation.__wrapped__() != parts


@pytest.mark.parametrize("damage", ["foreign", "no entry", "run", "compute"])
def test_an_entry_that_cannot_be_loaded_is_made_again(
    tmp_path: Path, traces: Traces, damage: str
) -> None:
    """Though it is whole: jaxlib refuses what another build of it has made, say."""
    result = net(tmp_path, PREPARED)(X)
    assert traces.grown()
    (path,) = tmp_path.glob("*.xla")
    content = read_checked(str(path), mapped=False)
    assert content is not None
    *parts, compute, run = pickle.loads(content)
    nothing = b"no machine code"
    damaged = {
        "foreign": b"no pickle",
        "no entry": pickle.dumps(("not", "an", "entry")),
        "run": pickle.dumps((*parts, compute, (nothing, run[1]))),
        "compute": pickle.dumps((*parts, (nothing, compute[1]), run)),
    }
    write_checked(str(path), [damaged[damage]])
    (prepared,) = tmp_path.glob("*.bin")
    prepared.unlink()
    np.testing.assert_array_equal(net(tmp_path, PREPARED)(X), result)
    assert traces.grown()
    np.testing.assert_array_equal(net(tmp_path, PREPARED)(X), result)
    assert not traces.grown()
    assert set(tmp_path.iterdir()) == {path, prepared}


def test_damage_never_changes_a_result() -> None:
    """As in `python -m tests.flip_cache --count 2000`, which takes minutes."""
    found = flip_cache.outcomes(12, seed=0)
    assert all(outcome.endswith(": right") for outcome in found), found
    assert found.total() == 12


@pytest.mark.parametrize("strange", ["folder", "fifo"])
def test_something_else_in_place_of_an_entry(tmp_path: Path, strange: str) -> None:
    result = net(tmp_path, PREPARED)(X)
    paths = list(tmp_path.iterdir())
    for path in paths:
        path.unlink()
        if strange == "fifo":
            os.mkfifo(path)
        else:
            path.mkdir()
    model = net(tmp_path, PREPARED)
    with pytest.warns(UserWarning, match="not kept in cache_dir") as warned:  # nothing replaces it
        np.testing.assert_array_equal(model(X), result)
    assert len(warned) == 1


PREPARED = """version 1.0;
graph net( x ) -> ( y )
{
    x = external(shape = [1,4]);
    filter = variable(shape = [3,4], label = 'filter');
    bias = variable(shape = [1,3], label = 'bias');
    powers = exp(filter);
    y = linear(x, powers, bias);
}
"""


def test_what_is_prepared_is_kept_by_the_data(tmp_path: Path, traces: Traces) -> None:
    for times, count in ((0.1, 1), (0.1, 1), (0.2, 2)):
        y = net(tmp_path, PREPARED, times)(X)
        powers = np.exp(data(times)["filter"])
        np.testing.assert_allclose(y, X @ powers.T + data()["bias"], rtol=1e-5)
        assert len(list(tmp_path.glob("*.bin"))) == count
    assert len(list(tmp_path.glob("*.xla"))) == 1


def test_what_is_prepared_is_read_as_it_is(tmp_path: Path) -> None:
    before = net(tmp_path, PREPARED, 0.1)(X)
    (path,) = tmp_path.glob("*.bin")
    stored = read_array(str(path))
    assert stored is not None
    write_array(str(path), 2 * stored)
    after = net(tmp_path, PREPARED, 0.1)(X)
    np.testing.assert_allclose(after - data()["bias"], 2 * (before - data()["bias"]), rtol=1e-6)


def test_values_of_functions_without_a_text_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other trace gives their name, which the entry holds."""
    text_of_equation = split._text_of_equation
    monkeypatch.setattr(
        split, "_text_of_equation", lambda e: text_of_equation(e) + split._text(lambda: e)
    )
    before = net(tmp_path, PREPARED, 0.1)(X)
    (path,) = tmp_path.glob("*.bin")
    stored = read_array(str(path))
    assert stored is not None and np.any(before != data()["bias"])
    write_array(str(path), 0 * stored)
    np.testing.assert_array_equal(net(tmp_path, PREPARED, 0.1)(X), data()["bias"])
    assert [*tmp_path.glob("*.bin")] == [path]


def test_what_prepares_is_loaded_where_nothing_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = net(tmp_path, PREPARED, 0.1)(X)
    loads, loaded = [], disk_cache._loaded
    monkeypatch.setattr(disk_cache, "_loaded", lambda *x: loads.append(x) or loaded(*x))
    np.testing.assert_array_equal(net(tmp_path, PREPARED, 0.1)(X), before)
    assert len(loads) == 1
    (path,) = tmp_path.glob("*.bin")
    path.unlink()
    np.testing.assert_array_equal(net(tmp_path, PREPARED, 0.1)(X), before)
    assert len(loads) == 3
    assert path.exists()


def test_files_of_arrays(tmp_path: Path) -> None:
    path = str(tmp_path / "array")
    arrays = [
        np.arange(5, dtype=np.int8),
        np.asarray(jnp.full((2, 3), 1.5, jnp.bfloat16)),
        np.zeros((0, 3), np.float32),
        np.array(True),
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
    ]
    for written in arrays:
        write_array(path, written)
        read = read_array(path)
        assert read is not None and (read.dtype, read.shape) == (written.dtype, written.shape)
        np.testing.assert_array_equal(read, written)
    assert read_array(path + "?") is None
    length = (2).to_bytes(8, "little")
    for content in (b"", b"abc", length, length + b"[3", length + b"17", b"\xff" * 64):
        write_checked(path, [content])
        assert read_array(path) is None
    for head in (["float99", [1]], ["int8", [2**70]], ["int8", [2**40]], [3, 4], ["int8"], 3):
        text = json.dumps(head).encode()
        write_checked(path, [len(text).to_bytes(8, "little") + text + bytes(64)])
        assert read_array(path) is None
    first, *_, last = digests_of([*arrays, arrays[0] + np.int8(1)])
    assert first != last and digests_of(arrays[:1]) == [first]


@pytest.mark.parametrize("error", [PermissionError(13, "denied"), OSError(28, "No space left")])
def test_a_folder_that_cannot_be_written_to_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, traces: Traces, error: OSError
) -> None:
    result = net(tmp_path, PREPARED)(X)
    assert traces.grown()
    before = sorted(tmp_path.iterdir())

    def refuse(path: str, **_: Any) -> Any:
        raise error

    monkeypatch.setattr(files, "replacing", refuse)
    model = net(tmp_path, PREPARED)
    np.testing.assert_array_equal(model(X), result)
    assert not traces.grown()
    with pytest.warns(UserWarning, match=f"not kept in cache_dir .*: {error.strerror}$") as warned:
        for count in (2, 3):  # of each an entry, and what is prepared for it
            x = np.repeat(X, count, axis=0)
            y = net(tmp_path, PREPARED, input_shapes={"x": x.shape}, scale=0.5)(x)
            np.testing.assert_allclose(y, x @ np.exp(data(0.5)["filter"]).T + data()["bias"], 1e-5)
    assert len(warned) == 2
    assert sorted(tmp_path.iterdir()) == before


def test_the_folder_is_the_owners(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "cache"
    net(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_folders_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)
    cases: dict[Any, str] = {
        "": "it is empty",
        b"": "it is empty",
        "file": "it is not a folder",
        "file/below": "Not a directory",
        "link": "File exists",
        "a\0b": "null",
        "n" * 300: "name too long",
        "\ud800": "surrogates",
        3: "not int",
        True: "not bool",
        "/proc/folder": "No such file",
    }
    before = sorted(os.listdir(tmp_path))
    for folder, reason in cases.items():
        with pytest.raises(nnef_jax.InputError, match=r"cache_dir '.*' cannot be used: ") as caught:
            net(folder)
        assert reason in str(caught.value)
        assert "hint: give a folder of your own" in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == before
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(nnef_jax.InputError, match="cannot be used: no permission to read it"):
        net(tmp_path)


def test_own_rules_are_not_kept(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cache_dir does not go with rules"):
        net(tmp_path, rules=Registry())


def test_gradients_and_other_devices_take_the_jitted_function(tmp_path: Path) -> None:
    model = net(tmp_path)
    model(X)
    gradient = jax.grad(lambda x: model(x).hidden.sum())(jnp.asarray(X))
    np.testing.assert_allclose(gradient, data()["filter"].sum(0, keepdims=True))
    there = jax.device_put(X, jax.devices()[1])
    result = model(there).hidden
    assert result.devices() == there.devices()
    np.testing.assert_allclose(result, expected(X), rtol=1e-6)
    np.testing.assert_allclose(model(X).hidden, expected(X), rtol=1e-6)


@pytest.mark.parametrize("autotune", (False, True))
def test_a_first_call_inside_a_traced_function(tmp_path: Path, autotune: bool) -> None:
    for _ in range(2):
        model = net(tmp_path, autotune=autotune)
        inside = jax.jit(lambda factor, m=model: m(jnp.asarray(X)).hidden * factor)(2.0)
        np.testing.assert_allclose(inside, 2 * expected(X))
        x = jnp.asarray(X)
        model = net(tmp_path, autotune=autotune)
        inside = jax.jit(lambda factor, m=model, x=x: m(x).hidden * factor)(2.0)
        np.testing.assert_allclose(inside, 2 * expected(X))
        np.testing.assert_allclose(model(x).hidden, expected(X))
