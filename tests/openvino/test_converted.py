"""Networks of TensorFlow, TF Lite and PaddlePaddle, against what their own runtimes computed."""

from __future__ import annotations

import random
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

import jax
import numpy as np
import pytest

import nnef_jax
from nnef_jax.errors import ArchiveError
from tests.cli_support import call, ok
from tests.openvino.converted.make import FOLDER, RESULTS

pytestmark = pytest.mark.skipif(find_spec("openvino") is None, reason="needs nnef_jax[convert]")

FOUND = dict(np.load(RESULTS))
STEP = 1 / 256  # of the outputs of int8.tflite: sums of 8 bits may be rounded otherwise
NETS = {  # inputs, outputs, and the tolerance
    "saved": ("x", "y", 1e-6),
    "frozen.pb": ("x:0", "Identity:0", 1e-6),
    "float.tflite": ("serving_default_x:0", "StatefulPartitionedCall:0", 1e-6),
    "int8.tflite": ("serving_default_x:0", "StatefulPartitionedCall:0", STEP),
    "net.pdmodel": ("image", "softmax_0.tmp_0", 1e-6),
}


def given(name: str) -> np.ndarray:
    return FOUND["image" if name == "net.pdmodel" else "x"]


@pytest.mark.parametrize("name", NETS)
def test_results_are_those_of_its_own_runtime(name: str) -> None:
    x, y, tolerance = NETS[name]
    model = nnef_jax.load(FOLDER / name)
    assert ([spec.name for spec in model.inputs], [spec.name for spec in model.outputs]) == (
        [x],
        [y],
    )
    np.testing.assert_allclose(model(**{x: given(name)}), FOUND[name], 0, tolerance)
    if name not in ("frozen.pb", "float.tflite"):  # the network of `saved`
        first = jax.grad(lambda image: model.apply(model.params, image)[:, 0].sum())
        slope = np.asarray(jax.jit(first)(given(name)))
        assert np.isfinite(slope).all() and (slope.any() or name == "int8.tflite")


def test_it_is_read_as_any_network(tmp_path: Path) -> None:
    model = nnef_jax.load(
        (FOLDER / "float.tflite").read_bytes(), input_shapes={"serving_default_x:0": (1, 6, 5, 2)}
    )
    model.save(tmp_path / "net.nnef.tgz")
    saved = nnef_jax.load(tmp_path / "net.nnef.tgz")
    x = FOUND["x"][:1]
    np.testing.assert_allclose(saved(x), FOUND["float.tflite"][:1], 0, 1e-6)


def test_commands(tmp_path: Path) -> None:
    net = FOLDER / "float.tflite"
    assert "TensorFlow Lite, converted to OpenVINO IR" in ok("summary", net)
    np.save(tmp_path / "x.npy", FOUND["x"])
    ok("run", net, tmp_path / "x.npy", "--output", tmp_path / "y.npy", "--no-cache")
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), FOUND["float.tflite"], 0, 1e-6)
    nnef = tmp_path / "net.nnef.tgz"
    ok("convert", net, nnef)
    ok("run", nnef, tmp_path / "x.npy", "--output", tmp_path / "z.npy", "--no-cache")
    np.testing.assert_allclose(np.load(tmp_path / "z.npy"), FOUND["float.tflite"], 0, 1e-6)


def test_recorded_outputs_are_compared(tmp_path: Path) -> None:
    x, y, _ = NETS["float.tflite"]
    recorded = tmp_path / "recorded.npz"
    np.savez(recorded, **{x: FOUND["x"], y: FOUND["float.tflite"]})
    ok("compare", recorded, FOLDER / "float.tflite")
    np.savez(recorded, **{x: FOUND["x"], y: 1 - FOUND["float.tflite"]})
    assert call("compare", recorded, FOLDER / "float.tflite")[0] == 1


def test_damaged_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    chance = random.Random(0)
    for name in ("float.tflite", "frozen.pb", "net.pdmodel"):
        whole, path = (FOLDER / name).read_bytes(), tmp_path / name
        for data in (whole[:9], whole[: len(whole) // 2], chance.randbytes(4096)):
            path.write_bytes(data)
            with pytest.raises(ArchiveError, match=name):
                nnef_jax.load(path)
    shutil.copytree(FOLDER / "saved", tmp_path / "saved")
    shutil.rmtree(tmp_path / "saved" / "variables")
    with pytest.raises(ArchiveError, match=r"saved_model\.pb: OpenVINO cannot convert"):
        nnef_jax.load(tmp_path / "saved")
    assert [*(tmp_path / "temporary").iterdir()] == []
