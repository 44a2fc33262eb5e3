"""How much memory a load takes, and that what it maps is used as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import nnef_jax
from nnef_jax.execution.runnable import execution_of
from nnef_jax.storage import files
from nnef_jax.storage.tensorfile import encode_tensor
from nnef_jax.storage.writer import write_members
from tests.helpers import archive, model_of

pytestmark = pytest.mark.optimised

_MIB = 1 << 20
# Eight tensors of 4 MiB.
_LABELS = [f"w{i}" for i in range(8)]
_SHAPE = (1024, 1024)
NET = "version 1.0;\ngraph net( x ) -> ( y )\n{\n    x = external(shape = [1,1024]);\n"
for _label in _LABELS:
    NET += f"    {_label} = variable(shape = [1024,1024], label = '{_label}');\n"
NET += "    y = linear(x, w0);\n}\n"

_PROGRAM = """
import sys, numpy as np, jax
jax.block_until_ready(jax.device_put(np.zeros(3, np.float32)))
import nnef_jax.reading.read
def peak(reset=False):
    if reset:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) * 1024
before = peak(reset=True)
model = nnef_jax.load(sys.argv[1], dtype=sys.argv[2])
loaded = peak()
jax.block_until_ready(model.params)
print(loaded - before, peak() - before)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    members = {f"{label}.dat": random.normal(size=_SHAPE).astype("f4") for label in _LABELS}
    path = tmp_path_factory.mktemp("memory")
    for name in ("net", "net.tar", "net.tgz"):
        write_members(path / name, {"graph.nnef": NET.encode(), **members})
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("net", "float32"),
        pytest.param("net.tar", "float32", marks=pytest.mark.slow),  # it is mapped: see below
        ("net.tgz", "float32"),
        ("net", "bfloat16"),
    ],
)
def test_peak_of_a_load(folder: Path, name: str, dtype: str) -> None:
    command = [sys.executable, "-c", _PROGRAM, str(folder / name), dtype]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    weights = len(_LABELS) * 4 * _MIB * (0.5 if dtype == "bfloat16" else 1)
    # 12 MiB are what the modules take that a load imports.
    assert all(int(peak) <= 1.3 * weights + 12 * _MIB for peak in run.stdout.split())


@pytest.mark.parametrize("name", ["net", "net.tar"])
def test_a_mapped_file_is_the_parameter(folder: Path, name: str) -> None:
    model = nnef_jax.load(folder / name)
    stored = execution_of(model).arrays.stored("w0")
    address = stored.__array_interface__["data"][0]
    assert model.params["w0"].unsafe_buffer_pointer() == address
    np.testing.assert_array_equal(model.params["w0"], stored)


def test_files_may_be_deleted_and_renamed_over(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "net"
    nnef_jax.load(folder / "net").save(path)
    model = nnef_jax.load(path)
    x = np.ones((1, 1024), np.float32)
    before, applied = np.asarray(model(x)), np.asarray(model.apply(model.params, x))
    zeros = {label: np.zeros(_SHAPE, np.float32) for label in _LABELS}
    model.save(path, params=zeros, overwrite=True)
    np.testing.assert_array_equal(model(x), before)
    np.testing.assert_array_equal(model.apply(model.params, x), applied)
    np.testing.assert_array_equal(nnef_jax.load(path)(x), np.zeros((1, 1024)))


def test_donated_parameters_leave_the_file_alone(folder: Path) -> None:
    model = nnef_jax.load(folder / "net")
    before = (folder / "net" / "w0.dat").read_bytes()
    step = jax.jit(lambda params: jax.tree.map(lambda p: p - 1, params), donate_argnums=0)
    changed = step(model.params)
    stored = nnef_jax.read_tensor(folder / "net" / "w0.dat")
    np.testing.assert_array_equal(changed["w0"], stored - 1)
    assert (folder / "net" / "w0.dat").read_bytes() == before


def test_bytes_that_change_leave_the_model_alone() -> None:
    text = NET.split("    w1")[0] + "    y = linear(x, w0);\n}\n"
    ones = np.ones(_SHAPE, np.float32)
    content = bytearray(archive(graph=text, w0=_encoded(ones)))
    model = nnef_jax.load(memoryview(content))
    content[-2 * _MIB :] = bytes(2 * _MIB)
    np.testing.assert_array_equal(model.params["w0"], ones)


def _encoded(array: np.ndarray) -> bytes:
    return b"".join(map(bytes, encode_tensor(array)))


def test_released_pages_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "w.dat"
    values = np.arange(_MIB, dtype=np.float32)
    nnef_jax.write_tensor(path, values)
    array = nnef_jax.read_tensor(path)
    files.release(array)
    np.testing.assert_array_equal(array, values)
    own = values.copy()
    files.release(own)
    np.testing.assert_array_equal(own, values)


def test_converted_data_are_taken_without_a_copy() -> None:
    text = NET.split("    w1")[0] + "    y = linear(x, w0);\n}\n"
    half = np.ones(_SHAPE, np.float16)
    model = model_of(text, data={"w0": half})
    stored = execution_of(model).arrays.stored("w0")
    address = stored.__array_interface__["data"][0]
    assert model.params["w0"].unsafe_buffer_pointer() == address
