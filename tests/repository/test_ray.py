"""A network in Ray's workers: how its weights get there, and what is there after one is killed.

The second test needs `pip install -e ".[ray]"`, and takes half a minute.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnef_jax
from lowering.host import aligned
from tests.helpers import model_of

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples/digits"
LARGE = """version 1.0;
graph net(x) -> (y)
{
    x = external<scalar>(shape = [0, 512]);
    filter = variable<scalar>(shape = [512, 512], label = 'filter');
    y = linear(x, filter);
}
"""


@pytest.mark.parametrize("used", [False, True])
def test_weights_are_apart_from_what_else_is_pickled_and_are_not_copied(used: bool) -> None:
    """As Ray pickles: so workers of one machine share what is in its object store."""
    weights = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
    model = model_of(LARGE, data={"filter": weights})
    x = np.ones((2, 512), np.float32)
    if used:
        model(x)
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(model, protocol=5, buffer_callback=buffers.append)
    assert len(data) < 50_000
    stored: list[Any] = []
    for buffer in buffers:
        shared = aligned(buffer.raw().shape, np.dtype(np.uint8))
        shared[...] = buffer.raw()
        shared.flags.writeable = False
        stored.append(shared)
    assert sum(array.nbytes for array in stored) == weights.nbytes
    another = pickle.loads(data, buffers=stored)
    assert any(np.shares_memory(another.params["filter"], array) for array in stored)
    np.testing.assert_allclose(another(x), x @ weights.T, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Ray's own
def test_nothing_is_lost_with_a_worker_and_nothing_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray", reason="needs nnef_jax[ray]")
    pytest.importorskip("ray.data")
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.syspath_prepend(ROOT / "examples/ray")
    monkeypatch.setitem(sys.modules, "predict", None)
    del sys.modules["predict"]
    import predict  # pyright: ignore[reportMissingImports]

    killed = str(tmp_path / "killed")

    class Mortal(predict.Predictor):  # pyright: ignore
        def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
            if not os.path.exists(killed):
                Path(killed).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__call__(batch)

    model = nnef_jax.load(DIGITS / "model")
    folder = tmp_path / "scans"
    folder.mkdir()
    scans = sorted((DIGITS / "scans").glob("*.png"))
    path = f"{ROOT}{os.pathsep}{ROOT / 'examples/ray'}"
    environment = {"env_vars": {"PYTHONPATH": path}}
    ray.init(num_cpus=4, include_dashboard=False, runtime_env=environment)
    try:
        for count in (3, 10):  # the second time with more pictures
            for scan in scans[:count]:
                if not (folder / scan.name).exists():
                    (folder / scan.name).write_bytes(scan.read_bytes())
            options = {"workers": 2, "batch_size": 4, "predictor": Mortal}
            predict.predict(str(DIGITS / "model"), str(folder), str(tmp_path / "out"), **options)
            rows = [
                row
                for file in (tmp_path / "out/rows").glob("*.parquet")
                for row in parquet.ParquetFile(file).read().to_pylist()
            ]
            found = {Path(row["path"]).name: row["probabilities"] for row in rows}
            assert sorted(found) == [scan.name for scan in scans[:count]]
            assert len(rows) == count
    finally:
        ray.shutdown()
    assert os.path.exists(killed)
    from PIL import Image

    pixels = [np.asarray(Image.open(scan), np.float32)[None, None] for scan in scans]
    wanted = np.asarray(model(np.concatenate(pixels)))
    np.testing.assert_allclose([found[scan.name] for scan in scans], wanted, rtol=1e-4, atol=1e-6)
