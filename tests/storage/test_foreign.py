"""Files and objects that are no network: the error says what they are, and what to do."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

import nnef_jax
from nnef_jax.errors import ArchiveError

FILES = {
    "net.pt": (b"PK\3\4 and so on", "weights of PyTorch", "torch.onnx.export"),
    "net.pkl": (b"\x80\x04\x95", "a pickled object", "torch.onnx.export"),
    "net.safetensors": (b"\x40" + b"\0" * 7 + b'{"a": 1}', "weights alone", "build the module"),
    "renamed": (b"\x40" + b"\0" * 7 + b'{"a": 1}', "weights alone", "build the module"),
    "net.h5": (b"\x89HDF\r\n\x1a\n", "a model of Keras", "format='onnx'"),
    "net.gguf": (b"GGUF\3\0\0\0", "llama.cpp", "torch.onnx"),
    "net.mlmodel": (b"\x08\x01", "Core ML", "net.onnx"),
    "net.pte": (b"\0\0\0\0ET12", "ExecuTorch", "torch.onnx.export"),
    "net.engine": (b"ftrt", "TensorRT", "built from"),
    "net.tflite": (b"\x1c\0\0\0 and so on", "no model of TensorFlow Lite", "cut off"),
    "net.pb": (b"\x0a\x10", "no graph of TensorFlow", "cut off"),
    "net.json": (b'{"base_code": {"magic": "pir"', "PaddlePaddle 3", "FLAGS_enable_pir_api=0"),
    "net.html": (b"<!DOCTYPE html><html>", "a web page", "download the file itself"),
    "page.nnef.tgz": (b"<html>", "a web page", "download the file itself"),
    "other.json": (b'{"layers": []}', "JSON", "load the network"),
    "net.nnef": (b"# a network\n\n# of mine\nversion 1.0;\n", "a document of NNEF", "graph.nnef"),
    "graph.txt": (b"version 1.0;\ngraph g(x) -> (y) {", "a document of NNEF", "graph.nnef"),
    "x.npy": (b"\x93NUMPY\1\0", "an array of numpy", "network first"),
    "scan.png": (b"\x89PNG\r\n", "a picture", "network first"),
    "scan.jpg": (b"\xff\xd8\xff\xe0", "a picture", "network first"),
    "lfs.nnef.tgz": (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs", "git lfs pull"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_other_kinds(name: str, tmp_path: Path) -> None:
    data, what, hint = FILES[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ArchiveError) as error:
        nnef_jax.load(tmp_path / name)
    assert what in error.value.message and hint in error.value.hint
    assert str(tmp_path / name) in error.value.message


@pytest.mark.parametrize(
    "name", ["net.onnx", "net.xml", "graph.nnef", "folder/graph.nnef", "w.dat"]
)
@pytest.mark.parametrize("file", ["lfs.nnef.tgz", "net.html"])
def test_a_file_that_was_not_downloaded(name: str, file: str, tmp_path: Path) -> None:
    data, what, hint = FILES[file]
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    network = path
    if name == "w.dat":
        network = tmp_path
        variable = "w = variable(shape = [2], label = 'w'); y = add(x, w);"
        text = f"version 1.0; graph g(x) -> (y) {{ x = external(shape = [2]); {variable} }}"
        (tmp_path / "graph.nnef").write_text(text)
    with pytest.raises(ArchiveError) as error:
        nnef_jax.load(network)
    assert what in error.value.message and hint in error.value.hint
    assert str(path) in error.value.message


def test_an_archive_may_have_any_name(tmp_path: Path) -> None:
    text = b"version 1.0; graph g(x) -> (y) { x = external(shape = [2]); y = relu(x); }"
    with tarfile.open(tmp_path / "net.pt", "w") as file:
        member = tarfile.TarInfo("graph.nnef")
        member.size = len(text)
        file.addfile(member, io.BytesIO(text))
    assert nnef_jax.load(tmp_path / "net.pt").graph.name == "g"


def test_a_module_of_torch() -> None:
    module = type("Module", (), {"__module__": "torch.nn.modules.module"})
    with pytest.raises(TypeError, match=r"a module of PyTorch; in torch: torch\.onnx\.export"):
        nnef_jax.load(type("Net", (module,), {})())  # type: ignore[arg-type]
