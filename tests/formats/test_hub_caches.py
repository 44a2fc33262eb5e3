"""Networks in a hub's cache: links to blobs, in which weights are files beside the graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import nnef_jax
from tests.openvino.documents import Writer

W = np.arange(6, dtype=np.float32).reshape(1, 6)


def write_nnef(folder: Path) -> str:
    text = (
        "x = external<scalar>(shape = [1, 6]); w = variable<scalar>(label = 'w', shape = [1, 6]);"
    )
    text = f"version 1.0; graph net(x) -> (y) {{ {text} y = mul(w, x); }}"
    (folder / "graph.nnef").write_text(text)
    nnef_jax.write_tensor(folder / "w.dat", W)
    return "graph.nnef"


def write_onnx(folder: Path) -> str:
    onnx = pytest.importorskip("onnx")
    from tests.onnx.models import model, node, tensor

    made = model([node("Mul", "x w")], [tensor("x", (1, 6))], weights={"w": W})
    more = {"save_as_external_data": True, "location": "net.onnx_data", "size_threshold": 0}
    onnx.save(made, folder / "net.onnx", **more)
    return "net.onnx"


def write_openvino(folder: Path) -> str:
    net = Writer()
    product = net.layer("Multiply", [net.input("x", (1, 6)), net.constant(W)], [(1, 6)])
    return net.result(product).write(folder).name


@pytest.mark.parametrize("write", [write_nnef, write_onnx, write_openvino])
@pytest.mark.parametrize("inner", ["", "inner"])
def test_links_to_blobs_are_read(tmp_path: Path, write: Callable[[Path], str], inner: str) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1" / inner
    written = tmp_path / "written"
    for folder in (blobs, snapshot, written):
        folder.mkdir(parents=True)
    graph = write(written)
    for i, file in enumerate(sorted(written.iterdir())):
        file.rename(blobs / str(i))
        (snapshot / file.name).symlink_to(f"../../{'../' * bool(inner)}blobs/{i}")
    x = np.ones((1, 6), np.float32)
    for named in (snapshot / graph, snapshot):
        np.testing.assert_array_equal(nnef_jax.load(named)(x), W)


@pytest.mark.parametrize("write", [write_onnx, write_openvino])
def test_a_users_own_link_may_lead_to_another_one(
    tmp_path: Path, write: Callable[[Path], str]
) -> None:
    for name in ("blobs", "snapshot", "mine"):
        (tmp_path / name).mkdir()
    graph = write(tmp_path / "blobs")
    for file in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(file)
        (tmp_path / "mine" / file.name).symlink_to(file)
    mine = tmp_path / "mine" / graph
    mine.unlink()
    mine.symlink_to(tmp_path / "snapshot" / graph)
    np.testing.assert_array_equal(nnef_jax.load(mine)(np.ones((1, 6), np.float32)), W)
