"""Where a network's files may be: beside each other, in archives, elsewhere."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

import nnef_jax
from tests.cli_support import fails, ok
from tests.openvino.documents import Writer
from tests.openvino.test_documents import modern

NET = modern()
TEXT, DATA = NET.text().encode(), bytes(NET.data)
X = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    return np.asarray(NET.load(tmp_path_factory.mktemp("net"))(X))


def tar(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


@pytest.mark.parametrize("pack", [tar, zipped])
@pytest.mark.parametrize("folder", ["", "net/"])
def test_archives_with_both(pack, folder: str, wanted: np.ndarray) -> None:
    data = pack({f"{folder}net.xml": TEXT, f"{folder}net.bin": DATA})
    np.testing.assert_array_equal(nnef_jax.load(data)(X), wanted)


def test_weights_elsewhere(tmp_path: Path, wanted: np.ndarray) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "net.xml").write_bytes(TEXT)
    (tmp_path / "weights.bin").write_bytes(DATA)
    folder, weights = tmp_path / "a", tmp_path / "weights.bin"
    with pytest.raises(nnef_jax.NnefError, match=r"or name it: load\(\.\.\., weights=\)"):
        nnef_jax.load(folder)
    for given in (weights, str(weights), DATA, bytearray(DATA), io.BytesIO(DATA)):
        model = nnef_jax.load(folder / "net.xml", weights=given)
        np.testing.assert_array_equal(model(X), wanted)
    (folder / "net.bin").write_bytes(bytes(len(DATA)))  # what is given wins over what is beside
    np.testing.assert_array_equal(nnef_jax.load(folder, weights=weights)(X), wanted)
    with zipfile.ZipFile(tmp_path / "net.zip", "w") as archive:
        archive.writestr("net.xml", TEXT)
    np.testing.assert_array_equal(nnef_jax.load(tmp_path / "net.zip", weights=weights)(X), wanted)
    nnef_jax.convert(folder, tmp_path / "net.tgz", weights=weights)
    np.testing.assert_allclose(nnef_jax.load(tmp_path / "net.tgz")(X), wanted, rtol=1e-6)


def test_weights_that_cannot_be(tmp_path: Path) -> None:
    path = NET.write(tmp_path)
    with pytest.raises(nnef_jax.NnefError, match=r"of 'weights', which has only 10"):
        nnef_jax.load(path, weights=DATA[:10])
    with pytest.raises(nnef_jax.ArchiveError, match="is a folder; only regular files"):
        nnef_jax.load(path, weights=tmp_path)
    with pytest.raises(FileNotFoundError):
        nnef_jax.load(path, weights=tmp_path / "other.bin")
    with pytest.raises(TypeError, match="weights must be a path, bytes or a binary file"):
        nnef_jax.load(path, weights=3)  # type: ignore[arg-type]
    with pytest.raises(nnef_jax.InputError, match="weights= does not go with this network"):
        nnef_jax.load("examples/digits/model", weights=DATA)


def test_a_network_without_weights_needs_no_file(tmp_path: Path) -> None:
    net = Writer()
    x = net.input("x", (2,))
    net.result(net.layer("ReLU", [x], [(2,)], name="y"))
    path = net.write(tmp_path)
    (tmp_path / "net.bin").unlink()
    np.testing.assert_array_equal(nnef_jax.load(path)(np.float32([-1, 1])), [0, 1])


def test_the_command_line_takes_weights(tmp_path: Path) -> None:
    path = NET.write(tmp_path)
    weights = (tmp_path / "net.bin").rename(tmp_path / "other.bin")
    assert "which does not exist" in fails("check", path)
    assert ok("check", path, "--weights", weights).startswith("ok: ")
    np.save(tmp_path / "x.npy", X)
    out = ok("run", path, tmp_path / "x.npy", "--weights", weights, "--no-cache", "--json")
    (found,) = json.loads(out)["results"][0]["outputs"]
    np.testing.assert_allclose(found["values"], nnef_jax.load(path, weights=weights)(X))
