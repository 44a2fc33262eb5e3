"""The profile of the host: when it is measured, where it is kept, what is made of its file."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import nnef_jax
from lowering.machine import DEFAULT, MachineProfile, using
from lowering.targets import cpu
from nnef_jax.execution import host_profile
from tests.cli_support import ok
from tests.helpers import model_of
from tests.machines import RECORDS, profile_of, with_units

HOST = replace(profile_of(RECORDS["AMX"]), threads=host_profile.threads())

REMARK = (
    "products of bfloat16 are computed in float32, which this machine's profile says is as fast"
)
WIDENED = "weights are stored in bfloat16, and widened in each call"

# 16.8 million multiply-adds, and 4096.
LARGE, SMALL = (
    f"""version 1.0;
graph net(x) -> (y) {{
  x = external(shape = [{n}, {n}]); w = variable(shape = [{n}, {n}], label = 'w');
  y = matmul(x, w);
}}
"""
    for n in (256, 16)
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of nnef_jax below that of the user's caches."""
    (tmp_path / "caches").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "nnef-jax"


@pytest.fixture(autouse=True)
def measurements(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How often the host is measured, which takes no time here, in what is a new process."""
    found: list[int] = []

    def measured(threads: int) -> MachineProfile:
        found.append(threads)
        return HOST

    monkeypatch.setenv("NNEF_JAX_MEASURE", "1")
    monkeypatch.setattr(cpu, "CPU", replace(cpu.CPU, measure=measured))
    monkeypatch.setattr(host_profile, "_profiles", {})
    yield found


def model(text: str = LARGE, **options: Any) -> nnef_jax.Model:
    extent = 256 if text == LARGE else 16
    return model_of(text, data={"w": np.eye(extent, dtype=np.float32)}, **options)


def called(text: str = LARGE, **options: Any) -> None:
    net = model(text, **options)
    x = np.ones(net.inputs[0].shape, np.float32)
    np.testing.assert_array_equal(np.asarray(net(x), np.float32), x)


def is_chosen(**options: Any) -> bool:
    """Tell whether the profile of the host is chosen by, which multiplies bfloat16."""
    return REMARK not in str(model(dtype="bfloat16", **options).summary())


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("machine-*.json"))


def test_a_large_network_has_the_host_measured_once(home: Path, measurements: list[int]) -> None:
    called(SMALL)
    assert not measurements and not home.exists()
    called()
    called()
    assert measurements == [host_profile.threads()]
    (file,) = files(home)
    found = json.loads(file.read_text())
    assert found["bfloat16"] == HOST.bfloat16 and found["costs"]["start"] == HOST.costs.start
    assert len(file.read_text().splitlines()) > 12  # for people
    assert is_chosen()


def test_other_processes_find_it(
    home: Path, measurements: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    called()
    monkeypatch.setattr(host_profile, "_profiles", {})
    os.utime(files(home)[0], (1, 1))
    called(SMALL)
    assert is_chosen() and len(measurements) == 1
    assert files(home)[0].stat().st_mtime > 1  # it was used


def test_options_switch_it_off(
    home: Path, measurements: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    called(measure=False)
    assert not is_chosen(measure=False)
    with pytest.raises(TypeError, match="measure must be True or False"):
        model(measure="no")
    monkeypatch.setenv("NNEF_JAX_MEASURE", "0")
    called()
    called(optimize=False)
    assert not measurements and not home.exists() and not is_chosen()


def test_a_network_as_it_is_written_needs_none(home: Path, measurements: list[int]) -> None:
    called(optimize=False)
    assert not measurements and not home.exists()


def test_without_a_folder_for_caches_nothing_is_measured(
    home: Path, measurements: list[int]
) -> None:
    home.parent.rmdir()
    called()
    assert not measurements and not home.parent.exists() and not is_chosen()


@pytest.mark.skipif(sys.platform == "win32", reason="folders of POSIX")
def test_a_folder_that_others_may_write_to_keeps_none(home: Path, measurements: list[int]) -> None:
    home.mkdir()
    home.chmod(0o777)
    called()
    assert not measurements and not files(home) and not is_chosen()


def test_a_read_only_folder_serves_with_what_it_has(
    home: Path, measurements: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir(mode=0o700)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))
    called()
    assert not measurements and not files(home) and not is_chosen()
    monkeypatch.undo()


def test_a_full_disk_leaves_the_shipped_one(
    home: Path, measurements: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(host_profile.files, "replacing", full)
    called()
    called()
    assert len(measurements) == 1 and not files(home) and not is_chosen()


def test_what_cannot_be_measured_is_not_tried_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def fails(threads: int) -> MachineProfile:
        tried.append(threads)
        raise jax.errors.JaxRuntimeError("INVALID_ARGUMENT: No such compile option")

    monkeypatch.setattr(cpu, "CPU", replace(cpu.CPU, measure=fails))
    called()
    called()
    assert len(tried) == 1 and not files(home)


def damaged(content: dict[str, Any], **changed: Any) -> bytes:
    return json.dumps({**content, **changed}).encode()


DAMAGE: dict[str, Any] = {
    "empty": lambda x: b"",
    "cut": lambda x: json.dumps(x).encode()[:-30],
    "no JSON": lambda x: b"\xff\xfe rates",
    "a list": lambda x: b"[1, 2]",
    "deep": lambda x: b"[" * 60_000,
    "long": lambda x: b" " * (1 << 16) + json.dumps(x).encode(),
    "another host": lambda x: damaged(x, host=["vendor_id: another"]),
    "a rate is missing": lambda x: damaged({k: v for k, v in x.items() if k != "row"}),
    "a rate more": lambda x: damaged(x, more=1.0),
    "a text": lambda x: damaged(x, bfloat16="fast"),
    "negative": lambda x: damaged(x, int8=-1.0),
    "infinite": lambda x: json.dumps(x).replace(str(x["row"]), "Infinity").encode(),
    "NaN": lambda x: json.dumps(x).replace(str(x["row"]), "NaN").encode(),
    "costs are none": lambda x: damaged(x, costs=7),
    "a cost is none": lambda x: damaged(x, costs={**x["costs"], "start": None}),
    "no threads": lambda x: damaged(x, threads=0),
    "true": lambda x: damaged(x, threads=True),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_wrong_file_is_made_again(name: str, home: Path, measurements: list[int]) -> None:
    assert host_profile.measure(str(home)) == HOST
    (file,) = files(home)
    whole = file.read_bytes()
    file.write_bytes(DAMAGE[name](json.loads(whole)))
    host_profile._profiles.clear()
    assert host_profile.read(str(home)) is None
    assert host_profile.measure(str(home)) == HOST
    assert file.read_bytes() == whole and len(measurements) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="files of POSIX")
def test_what_is_no_file_is_left(home: Path, tmp_path: Path, measurements: list[int]) -> None:
    home.mkdir(mode=0o700)
    path = Path(host_profile.path_in(str(home)) or "")
    os.mkfifo(path)
    assert host_profile.read(str(home)) is None  # nor does it wait for somebody who writes
    path.unlink()
    path.mkdir()
    called()
    called()
    assert path.is_dir() and len(measurements) == 1 and not is_chosen()


def test_a_folder_of_compiled_networks_has_its_own(
    home: Path, tmp_path: Path, measurements: list[int]
) -> None:
    folder = tmp_path / "compiled"
    called(cache_dir=folder)
    assert len(files(folder)) == 1 and not home.exists()
    assert is_chosen(cache_dir=folder)


def test_a_key_has_the_decisions(tmp_path: Path, measurements: list[int]) -> None:
    folder = tmp_path / "compiled"

    def compiled() -> list[Path]:
        called(dtype="bfloat16", cache_dir=folder)
        return sorted(folder.glob("*.xla"))

    first = compiled()
    assert len(first) == 1
    costs = replace(HOST.costs, memory=HOST.costs.memory * 2)
    slower = replace(HOST, bfloat16=HOST.bfloat16 / 1.2, row=HOST.row * 1.1, costs=costs)
    assert slower.decisions() == HOST.decisions()
    with using(slower):
        assert compiled() == first
    with using(DEFAULT):
        assert len(compiled()) == 2
    assert len(compiled()) == 2


def test_exports_are_by_the_shipped_one(tmp_path: Path, measurements: list[int]) -> None:
    texts: list[str] = []
    for profile in (with_units(True), with_units(False), DEFAULT):
        with using(profile):
            net = model(dtype="bfloat16")
            types = jax.ShapeDtypeStruct((256, 256), "bfloat16")
            exported = jax.export.export(jax.jit(net.apply), platforms=["cpu"])(net.params, types)
            texts.append(str(exported.mlir_module()))
            lowered = jax.jit(net.apply).lower(net.params, types).as_text()
        product = "tensor<256x256xbf16>, tensor<256x256xbf16>) -> tensor<256x256xf32>"
        assert (product in lowered) == profile.multiplies_bfloat16
    assert texts[0] == texts[1] == texts[2]


def test_a_summary_says_what_gains_nothing(measurements: list[int]) -> None:
    def last(profile: MachineProfile, **options: Any) -> str:
        with using(profile):
            return str(model(**options).summary()).splitlines()[-1]

    assert last(with_units(False), dtype="bfloat16") == WIDENED
    assert last(with_units(False), precision="BF16_BF16_F32") == REMARK
    assert last(with_units(True), dtype="bfloat16") == "65,536 parameters, 16,777,216 multiply-adds"
    for options in ({}, {"dtype": "bfloat16", "optimize": False}):
        assert REMARK not in last(with_units(False), **options)


def test_a_pickled_model_measures_where_it_is(home: Path, measurements: list[int]) -> None:
    copy = pickle.loads(pickle.dumps(model(measure=False)))
    copy(np.ones((256, 256), np.float32))
    assert not measurements
    pickle.loads(pickle.dumps(model()))(np.ones((256, 256), np.float32))
    assert measurements


def test_the_command_shows_it(
    home: Path, measurements: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ok("machine").splitlines()
    (file,) = files(home)
    assert lines[0].split() == ["file", str(file)]
    shown = {line[:21].strip(): line[21:] for line in lines}
    assert shown["bfloat16"] == "461 G/s" and shown["start"] == "1 us"
    assert shown["multiplies bfloat16"] == "yes" and shown["pairs rows"] == "no"
    found = json.loads(ok("machine", "--json"))
    assert found["file"] == str(file) and found["decisions"] == HOST.decisions()
    assert found["int8"] == HOST.int8 and len(measurements) == 1
    assert "removed 1 files" in ok("cache", "--clear") and not files(home)
    monkeypatch.setenv("NNEF_JAX_MEASURE", "0")
    assert ok("machine").splitlines()[0].endswith("none: the shipped rates are used")
    assert json.loads(ok("machine", "--json"))["file"] is None


def test_runs_without_a_cache_do_not_measure(
    home: Path, tmp_path: Path, measurements: list[int]
) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "graph.nnef").write_text(LARGE)
    nnef_jax.write_tensor(tmp_path / "net" / "w.dat", np.eye(256, dtype=np.float32))
    np.save(tmp_path / "x.npy", np.ones((256, 256), np.float32))
    arguments = "run", tmp_path / "net", tmp_path / "x.npy", "--json"
    ok(*arguments, "--no-cache")
    assert not measurements and not home.exists()
    ok(*arguments)  # one call, of a network as it is written
    assert not measurements
    ok("compile", tmp_path / "net")
    assert len(measurements) == 1


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu.max": "nonsense"}, None),
        ({"cpu.max": "1 0"}, None),
        ({}, None),
    ],
)
def test_the_quota_of_a_container(tmp_path: Path, files: dict[str, str], cores: int | None) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = host_profile.quota(str(tmp_path))
    assert found == cores if cores else found > 1000
