"""Exported networks: what a process without nnef_jax computes of them, and what cannot be."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import sysconfig
import threading
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import nnef_jax
from nnef_jax import InputError, Registry, UnsupportedError
from tests.helpers import model_of
from tests.pages import blocks

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "digits" / "model"
BATCHES = (64,)

CONVOLUTIONS = """version 1.0;
graph net( x ) -> ( y )
{
    x = external(shape = SHAPE);
    f = variable(shape = [4,3,3,3], label = 'f');
    g = variable(shape = [4,1,3,3], label = 'g.npy');
    h = variable(shape = [8,4,1,1], label = 'g');
    a = relu(conv(x, f, 0.0, stride = [2,2]));
    b = relu(conv(a, g, 0.0, groups = 0));
    y = conv(b, h, 0.0);
}
"""
TWO = """version 1.0;
graph two( x, z ) -> ( total, first )
{
    x = external(shape = [0,2,0]);
    z = external(shape = [0,2,0]);
    total = add(x, z);
    first = relu(x);
}
"""
SUM = """version 1.0;
graph sum( x ) -> ( y )
{
    x = external(shape = [2]);
    s = variable(shape = [2], label = 's');
    f = variable(shape = [2], label = 'f');
    y = add(s, mul(x, f));
    t = update(s, y);
}
"""


def convolutions(shape: str = "[0,3,16,16]", **options: Any) -> nnef_jax.Model:
    random = np.random.default_rng(0)
    shapes = {"f": (4, 3, 3, 3), "g.npy": (4, 1, 3, 3), "g": (8, 4, 1, 1)}
    data = {label: random.normal(size=shape).astype(np.float32) for label, shape in shapes.items()}
    return model_of(CONVOLUTIONS.replace("SHAPE", shape), data=data, **options)


def loaded(path: Path) -> tuple[jax.export.Exported, dict[str, np.ndarray]]:
    """The function and the arrays of a file, which are as they are for all but bfloat16."""
    with np.load(path) as file:
        names = [name for name in file.zip.namelist() if name != "function"]
        function = jax.export.deserialize(file["function"])
        return function, {name.removesuffix(".npy"): file[name] for name in names}


def digits(count: int) -> np.ndarray:
    return np.random.default_rng(count).uniform(0, 16, (count, 1, 8, 8)).astype(np.float32)


@pytest.fixture
def jax_alone(tmp_path: Path) -> Path:
    """A folder with all packages but ours and what finds ours where it is edited."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for path in Path(place).iterdir():
            if not re.search(r"nnef|lowering|editable|\.pth$|__pycache__", path.name):
                (folder / path.name).symlink_to(path)
    return folder


def test_values_and_gradients_in_a_process_without_nnef_jax(
    tmp_path: Path, jax_alone: Path
) -> None:
    model = nnef_jax.load(DIGITS)
    model.export(tmp_path / "digits.npz", vjp_order=1)
    model.export(tmp_path / "digits.jaxexport", params="beside", platforms=["cpu"])
    codes = [block.code for block in blocks("docs/export.md", "python")]
    load, beside = codes[1], codes[3].split("\n\n")[1].replace("model.params", "params")
    for count in BATCHES:
        np.save(tmp_path / f"x{count}.npy", digits(count))
    code = f"""
import sys
sys.path.insert(0, {str(jax_alone)!r})
for name in ("nnef_jax", "lowering"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"{{name}} is there")
{load}
assert probabilities.shape == (7, 10)
{beside}
assert probabilities.shape == (64, 10)
found = {{}}
def loss(params, x):
    y = digits.call(params, x)
    return jax.numpy.log(y[:, 7]).sum(), y
gradient = jax.jit(jax.grad(loss, (0, 1), has_aux=True))
for count in {BATCHES}:
    (slopes, slope), y = gradient(params, np.load(f"x{{count}}.npy"))
    for label, array in {{**slopes, "x": slope, "y": y}}.items():
        found[f"{{label}}{{count}}"] = array
np.testing.assert_array_equal(found["y64"], jax.jit(function.call)(params, np.load("x64.npy")))
np.savez("found.npz", **found)
"""
    (tmp_path / "alone.py").write_text(code)
    command = [sys.executable, "-I", "-S", "alone.py"]
    environment = {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # as nearly all tests
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    with np.load(tmp_path / "found.npz") as file:
        found = dict(file)

    literal = nnef_jax.load(DIGITS, optimize=False)

    def loss(params: Any, x: Any) -> Any:
        return jnp.log(literal.apply(params, x)[:, 7]).sum()

    gradient = jax.jit(jax.grad(loss, (0, 1)))
    for count in BATCHES:
        x = digits(count)
        np.testing.assert_allclose(found[f"y{count}"], model(x), rtol=2e-5, atol=1e-7)
        slopes, slope = gradient(model.params, x)
        for label, wanted in {**slopes, "x": slope}.items():
            close = {"rtol": 1e-3, "atol": 1e-5 * float(np.abs(wanted).max())}
            np.testing.assert_allclose(found[f"{label}{count}"], wanted, **close)


@pytest.mark.parametrize(
    "platform, shape",
    [
        *itertools.product(["cuda", "rocm", "tpu"], ["[0,3,16,16]", "[2,3,16,16]"]),
        ("cpu", "[0,3,16,16]"),  # of fixed shapes a CPU has other kernels
    ],
)
def test_convolutions_are_those_of_the_document(tmp_path: Path, platform: str, shape: str) -> None:
    convolutions(shape).export(tmp_path / "net.npz", platforms=[platform])
    function, _ = loaded(tmp_path / "net.npz")
    assert function.platforms == (platform,)
    assert function.mlir_module().count("stablehlo.convolution(") == 3
    assert function.mlir_module().count("stablehlo.transpose") == 0


def test_files_hold_no_paths_of_the_machine(tmp_path: Path) -> None:
    convolutions().export(tmp_path / "net", params="beside", vjp_order=1)
    assert not re.search(rb"\w/\w+\.py", (tmp_path / "net").read_bytes())


def test_other_threads_keep_their_settings_meanwhile(tmp_path: Path) -> None:
    before, rules = dict(jax.config.values), Registry()
    seen: list[dict[str, Any]] = []

    @rules.rule("watched", lambda x: x)
    def watched(x: Any) -> Any:
        thread = threading.Thread(target=lambda: seen.append(dict(jax.config.values)))
        thread.start()
        thread.join()
        return x

    text = "fragment watched( x: tensor<scalar> ) -> ( y: tensor<scalar> ); "
    text += "graph g(x) -> (y) { x = external(shape = [2]); y = watched(x); }"
    text = f"version 1.0; extension KHR_enable_fragment_definitions; {text}"
    model_of(text, rules=rules).export(tmp_path / "net")
    assert seen and all(values == before for values in seen)
    assert dict(jax.config.values) == before


def test_arrays_are_stored_once_by_label(tmp_path: Path) -> None:
    model = convolutions()
    model.export(tmp_path / "net.npz", vjp_order=2)
    function, arrays = loaded(tmp_path / "net.npz")
    assert arrays.keys() == {"params/f", "params/g", "params/g.npy"}
    for label, array in model.params.items():
        np.testing.assert_array_equal(arrays[f"params/{label}"], array)
    with zipfile.ZipFile(tmp_path / "net.npz") as archive:
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_STORED}
    weight = np.float32(np.random.default_rng(0).normal(size=(256, 256)))
    large = model_of(
        "version 1.0; graph g(x) -> (y) { x = external(shape = [0,256]); "
        "w = variable(shape = [256,256], label = 'w'); y = linear(x, w); }",
        data={"w": weight},
    )
    large.export(tmp_path / "large.npz", vjp_order=2)
    assert (tmp_path / "large.npz").stat().st_size < 1.2 * weight.nbytes
    # The second derivative is there too.
    x = np.ones((3, 256), np.float32)
    function, _ = loaded(tmp_path / "large.npz")
    call = jax.grad(
        lambda x: jax.grad(lambda x: (function.call({"w": weight}, x) ** 2).sum())(x).sum()
    )
    np.testing.assert_allclose(
        jax.jit(call)(x),
        np.broadcast_to(2 * (weight.T @ weight).sum(0), x.shape),
        rtol=1e-3,
        atol=1e-2,
    )


def test_a_step_and_a_scan_are_functions_of_the_state(tmp_path: Path) -> None:
    data = {"s": np.float32([10, 20]), "f": np.float32([2, 3])}
    model = model_of(SUM, data=data)
    xs = np.float32([[1, 2], [3, 4], [5, 6]])
    sums = np.cumsum(np.concatenate([[data["s"]], xs * data["f"]]), 0)[1:]
    for entry, inputs, wanted in (
        ("step", xs[0], sums[0]),
        ("scan", xs, sums),
        ("apply", xs[0], sums[0]),
    ):
        model.export(tmp_path / entry, entry=entry, vjp_order=1)
        function, arrays = loaded(tmp_path / entry)
        params = {"f": arrays["params/f"]}
        if entry == "apply":
            assert "state/s" not in arrays
            np.testing.assert_array_equal(function.call(params, inputs), wanted)
            continue
        y, state = function.call(params, {"s": arrays["state/s"]}, inputs)
        np.testing.assert_array_equal(y, wanted)
        np.testing.assert_array_equal(state["s"], wanted if entry == "step" else wanted[-1])
        slope = jax.grad(
            lambda s, f=function, p=params, x=inputs: f.call(p, {"s": s}, x)[1]["s"].sum()
        )
        np.testing.assert_array_equal(slope(data["s"]), [1, 1])
    function, _ = loaded(tmp_path / "scan")
    assert [str(x) for x in function.in_avals] == ["float32[2]", "float32[2]", "float32[time,2]"]


def test_parameters_are_those_of_the_model(tmp_path: Path) -> None:
    model = convolutions()
    params = {label: 2 * array for label, array in model.params.items()}
    model.with_params(params).export(tmp_path / "net", platforms=["cpu"])
    _, arrays = loaded(tmp_path / "net")
    for label, array in params.items():
        np.testing.assert_array_equal(arrays[f"params/{label}"], array)

    @jax.jit
    def within(params: Any) -> Any:
        model.with_params(params).export(tmp_path / "other")

    with pytest.raises(InputError, match=r"is traced(.|\n)*export outside of jax.jit"):
        within(params)


def test_a_sharded_model_is_exported_for_one_device(tmp_path: Path) -> None:
    model = convolutions()
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    model.shard(mesh, batch="data", params="data").export(tmp_path / "net")
    function, arrays = loaded(tmp_path / "net")
    assert function.nr_devices == 1
    params = {name.removeprefix("params/"): array for name, array in arrays.items()}
    x = np.random.default_rng(1).normal(size=(2, 3, 16, 16)).astype(np.float32)
    np.testing.assert_allclose(function.call(params, x), model(x), rtol=1e-4, atol=1e-4)


def test_bfloat16_and_quantised_networks(tmp_path: Path) -> None:
    model = convolutions(dtype="bfloat16")
    model.export(tmp_path / "net.npz")
    function, arrays = loaded(tmp_path / "net.npz")
    assert {x.dtype for x in arrays.values()} == {np.dtype("V2")}
    params = {n.removeprefix("params/"): x.view(ml_dtypes.bfloat16) for n, x in arrays.items()}
    x = jnp.ones((2, 3, 16, 16), jnp.bfloat16)
    near = np.float32(model(x))
    np.testing.assert_allclose(np.float32(function.call(params, x)), near, rtol=0.05, atol=0.05)
    quantised = nnef_jax.load(ROOT / "tests/torch_networks/int8.nnef.tgz")
    quantised.export(tmp_path / "int8.npz", vjp_order=1)
    function, arrays = loaded(tmp_path / "int8.npz")
    image = np.random.default_rng(1).normal(size=(2, 3, 16, 16)).astype(np.float32)
    params = {n.removeprefix("params/"): x for n, x in arrays.items()}
    np.testing.assert_allclose(function.call(params, image), quantised(image), rtol=1e-4, atol=1e-4)


def test_open_extents_have_names(tmp_path: Path) -> None:
    def types(model: nnef_jax.Model, **options: Any) -> list[str]:
        model.export(tmp_path / "net", overwrite=True, **options)
        return [str(x).removeprefix("float32") for x in loaded(tmp_path / "net")[0].in_avals]

    two = model_of(TWO)
    equal = ["x_2 == z_2"]
    assert types(two, constraints=equal) == ["[b,2,z_2]", "[b,2,z_2]"]
    assert types(two, constraints=equal, batch="n", entry="scan") == 2 * ["[time,n,2,z_2]"]
    # Extents that happen to have one name are not one.
    assert types(two, constraints=["x_2_ == z_2"], batch="x_2") == 2 * ["[x_2,2,z_2]"]
    assert types(two, constraints=equal, batch="time", entry="scan") == 2 * ["[time_,time,2,z_2]"]
    apart = ["x_0 == z_0", *equal]
    assert types(two, constraints=apart, batch=None) == ["[z_0,2,z_2]", "[z_0,2,z_2]"]
    function, _ = loaded(tmp_path / "net")
    x = np.float32([[[1, -2], [3, 4]]])
    total, first = function.call({}, x, -x)
    np.testing.assert_array_equal(total, 0 * x)
    np.testing.assert_array_equal(first, np.maximum(x, 0))
    fixed = model_of(TWO, input_shapes={"x": (1, 2, 3), "z": (None, 2, 3)})
    assert types(fixed) == ["[1,2,3]", "[b,2,3]"]
    tract = nnef_jax.load(ROOT / "tests/torch_networks/gpt.nnef.tgz")
    assert types(tract)[-3:] == ["int32[1,S]", "[2,1,4,P,8]", "[2,1,4,P,8]"]


def residual() -> nnef_jax.Model:
    """A residual network as for CIFAR: filters with more items than results of one picture."""
    random, lines, data = np.random.default_rng(2), list[str](), dict[str, np.ndarray]()

    def variable(name: str, array: np.ndarray) -> str:
        lines.append(f"{name} = variable(shape = {list(array.shape)}, label = '{name}');")
        data[name] = np.float32(array)
        return name

    def normal(result: str, x: str, inputs: int, outputs: int, size: int, stride: int) -> None:
        filter = random.normal(0, 1 / (size * inputs**0.5), (outputs, inputs, size, size))
        moments = (variable(result + x, random.uniform(0.5, 1.5, (1, outputs))) for x in "mvos")
        names = f"{variable(result + 'f', filter)}, stride = [{stride},{stride}]", *moments
        lines.append(f"{result}c = conv({x}, {names[0]});")
        normal = f"batch_normalization({result}c, {', '.join(names[1:])}, epsilon = 0.001)"
        lines.append(f"{result} = {normal};")

    normal("a", "x", 3, 16, 3, 1)
    for block, before, inputs, stride in (("b", "a", 16, 1), ("c", "b", 32, 2)):
        normal(f"{block}1", before, inputs, 32, 3, stride)
        lines.append(f"{block}2 = relu({block}1);")
        normal(f"{block}3", f"{block}2", 32, 32, 3, 1)
        normal(f"{block}4", before, inputs, 32, 1, stride)
        lines.append(f"{block} = relu(add({block}3, {block}4));")
    lines.append("y = mean_reduce(c, axes = [2,3]);")
    text = "graph net(x) -> (y) { x = external(shape = [0,3,8,8]);"
    return model_of(f"version 1.0; {text} {' '.join(lines)} }}", data=data)


def test_an_open_batch_leaves_a_network_optimised(tmp_path: Path) -> None:
    model = residual()
    model.export(tmp_path / "net", batch="b")
    function, arrays = loaded(tmp_path / "net")
    params = {name.removeprefix("params/"): x for name, x in arrays.items()}
    literal = model.with_options(optimize=False)
    for count in (1, 3):
        x = np.random.default_rng(count).normal(size=(count, 3, 8, 8)).astype(np.float32)
        np.testing.assert_allclose(function.call(params, x), literal(x), rtol=1e-4, atol=1e-5)


def test_what_is_prepared_within_has_open_extents(tmp_path: Path) -> None:
    model = residual()
    prepared = jax.jit(lambda params, x: model.apply(model.prepare(params, x), x))
    x = jax.ShapeDtypeStruct((*jax.export.symbolic_shape("b"), 3, 8, 8), jnp.float32)
    params = model.params
    image = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)
    found = jax.export.export(prepared)(params, x).call(params, image)
    np.testing.assert_allclose(found, model(image), rtol=1e-4, atol=1e-5)


def test_extents_that_jax_must_know(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"inputs \[b,2,x_2\], \[b,2,z_2\]") as error:
        model_of(TWO).export(tmp_path / "net")
    assert "constraints=['x_2 >= 8', 'x_2 == z_2']" in error.value.hint
    assert "input_shapes" in error.value.hint
    assert not list(tmp_path.iterdir())


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"platforms": ["gpu"]}, InputError, "'gpu'.*\n.*a GPU is 'cuda' or 'rocm'"),
    ({"platforms": ["cudda"]}, InputError, "did you mean 'cuda'"),
    ({"platforms": []}, InputError, "platforms is empty"),
    ({"platforms": "cpu"}, TypeError, "platforms must be a list of names"),
    ({"platforms": [1]}, TypeError, "1 is in it"),
    ({"batch": "a b"}, InputError, "batch must be a name such as 'b'"),
    ({"batch": "max"}, InputError, "batch must be a name"),
    ({"batch": ""}, InputError, "batch must be a name"),
    ({"batch": 3}, TypeError, "batch must be a name or None"),
    ({"constraints": "b >= 2"}, TypeError, "constraints must be a list"),
    ({"constraints": ["b ! 2"]}, InputError, "constraints 'b ! 2' are wrong"),
    ({"constraints": ["bb >= 2"]}, InputError, "name 'bb', the open extents are b\n.*'b'"),
    ({"vjp_order": 3}, InputError, "vjp_order must be 0, 1 or 2, it is 3"),
    ({"vjp_order": True}, TypeError, "vjp_order must be 0, 1 or 2"),
    ({"vjp_order": "1"}, TypeError, "vjp_order must be 0, 1 or 2"),
    ({"params": "outside"}, ValueError, "params must be 'inside' or 'beside'"),
    ({"entry": "call"}, ValueError, "entry must be one of apply, step, scan"),
    ({"overwrite": 1}, TypeError, "overwrite must be True or False"),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG, ids=lambda x: str(x)[:30])
def test_wrong_arguments(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        convolutions().export(tmp_path / "net", **options)
    assert not list(tmp_path.iterdir())


def test_paths(tmp_path: Path) -> None:
    model = model_of(SUM, data={"s": np.float32([1, 2]), "f": np.float32([1, 2])})
    for path, error in ((3, TypeError), ("", ValueError), (tmp_path, FileExistsError)):
        with pytest.raises(error):
            model.export(path)
    with pytest.raises(IsADirectoryError):
        model.export(tmp_path, overwrite=True)
    model.export(tmp_path / "net")
    first = (tmp_path / "net").read_bytes()
    with pytest.raises(FileExistsError):
        model.export(tmp_path / "net", entry="step")
    assert (tmp_path / "net").read_bytes() == first
    model.export(tmp_path / "net", overwrite=True, entry="step")
    assert (tmp_path / "net").read_bytes() != first
    assert [path.name for path in tmp_path.iterdir()] == ["net"]


def test_what_cannot_be_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = Registry()

    @rules.rule("host", lambda x: x)
    def host(x: Any) -> Any:
        return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    @rules.rule("loop", lambda x: x)
    def loop(x: Any) -> Any:
        return jax.lax.while_loop(lambda x: x.sum() < 10, lambda x: 2 * x, x)

    def model(name: str) -> nnef_jax.Model:
        fragment = f"fragment {name}( x: tensor<scalar> ) -> ( y: tensor<scalar> );"
        text = f"{fragment} graph g(x) -> (y) {{ x = external(shape = [2]); y = {name}(x); }}"
        extension = "extension KHR_enable_fragment_definitions;"
        return model_of(f"version 1.0; {extension} {text}", rules=rules)

    for platforms in (["cpu"], ["cpu", "tpu"]):
        with pytest.raises(UnsupportedError, match=r"hint: .*callback in a rule of your own"):
            model("host").export(tmp_path / "net", platforms=platforms)
    model("loop").export(tmp_path / "net")
    with pytest.raises(UnsupportedError, match="hint: export with vjp_order=0"):
        model("loop").export(tmp_path / "net", vjp_order=1, overwrite=True)
    text = "graph g(x) -> (y, z) { x = external(shape = [1]); y = relu(x); z = copy(x); }"
    alone = model_of(f"version 1.0; {text}", state={"x": "y"})
    alone.export(tmp_path / "alone")
    np.testing.assert_array_equal(loaded(tmp_path / "alone")[0].call({}), [0])
    with pytest.raises(InputError, match="has no time axis"):
        alone.export(tmp_path / "scan", entry="scan")
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    with pytest.raises(UnsupportedError, match=r'hint: pip install "nnef_jax\[export\]"'):
        alone.export(tmp_path / "other")
