"""Recognises files that `load` cannot read, and says how to get a network from them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from nnef_jax.errors import ArchiveError

_ONNX = "torch.onnx.export(module, (example_input,), 'net.onnx', dynamo=True)"
_TORCH = f"in torch: {_ONNX}, then load('net.onnx')"
_DAMAGED = "it is cut off, damaged, or of another kind"
_START = 2048  # number of bytes that are matched


class _Kind(NamedTuple):
    """A kind of files that `load` cannot read."""

    what: str  # the text after "FILE is" in the error
    hint: str
    endings: tuple[str, ...] = ()  # endings of the files' names
    content: str = ""  # a regular expression for the first bytes of a file


# Kinds of placeholders. A placeholder has the name of a file that was not downloaded.
_STAND_INS = (
    _Kind(
        "a pointer of git-lfs, which stands for a file that was not downloaded",
        "git lfs pull",
        content=r"version https://git-lfs",
    ),
    _Kind(
        "a web page",
        "the address may be the address of a page about the file: download the file itself",
        (".html", ".htm"),
        r"\s*<(!doctype html|html)",
    ),
)
_KINDS = (
    *_STAND_INS,
    _Kind("weights of PyTorch, or a pickled module", _TORCH, (".pt", ".pth", ".ckpt", ".pt2")),
    _Kind("a pickled object", _TORCH, (".pkl", ".pickle"), r"\x80[\x02-\x05]"),
    _Kind(
        "weights alone, without the network",
        f"build the module of these weights, and {_TORCH}",
        (".safetensors",),
        r".{8}\{\"",
    ),
    _Kind(
        "a model of Keras",
        "in Keras 3: model.export('net.onnx', format='onnx'), then load('net.onnx')",
        (".h5", ".hdf5", ".keras"),
        r"\x89HDF\r\n",
    ),
    _Kind(
        "a file of llama.cpp, weights alone",
        "export the module of these weights by torch.onnx or optimum, then load its .onnx",
        (".gguf",),
        "GGUF",
    ),
    _Kind(
        "a model of Core ML, which has no converter to other formats",
        "load the network that it was converted from: torch.onnx.export writes 'net.onnx'",
        (".mlmodel", ".mlpackage"),
    ),
    _Kind("a program of ExecuTorch", _TORCH, (".pte",), r".{4}ET\d\d"),
    _Kind(
        "an engine of TensorRT, compiled for one kind of GPU",
        "load the .onnx that it was built from",
        (".engine", ".plan", ".trt"),
        "ftrt|ptrt",
    ),
    _Kind("no model of TensorFlow Lite, despite its name", _DAMAGED, (".tflite",)),
    _Kind("no graph of TensorFlow, despite its name", _DAMAGED, (".pb",)),
    _Kind(
        "a program of PaddlePaddle 3",
        "save it with FLAGS_enable_pir_api=0 in the environment, then load its .pdmodel",
        content=r"\s*\{\s*\"base_code\"",
    ),
    _Kind(
        "a document of NNEF by another name",
        "call it graph.nnef, with its .dat files beside it",
        content=r"\s*(#[^\n]*\n\s*)*version\s+\d+\.\d",
    ),
    _Kind(
        "an array of numpy, and not a network",
        "give the network first, then its inputs",
        (".npy",),
        r"\x93NUMPY",
    ),
    _Kind(
        "a picture, and not a network",
        "give the network first, then its inputs",
        (".png", ".jpg", ".jpeg"),
        r"\x89PNG|\xff\xd8\xff",
    ),
    _Kind("JSON", "load the network that it describes", (".json",), r"\s*\{\s*\""),
)


def refuse_file(path: str, start: bytes) -> None:
    """Raise ArchiveError if the content or the name of a file shows that `load` cannot read it."""
    _, ending = os.path.splitext(path.rstrip("/"))
    kind = _by_content(start, _KINDS) or _by_ending(ending.lower())
    _refuse(path, kind)


def refuse_stand_in(path: str, data: memoryview) -> None:
    """Raise ArchiveError if a file is a placeholder for a file that was not downloaded."""
    # Only these letters begin a placeholder. The test avoids a copy of the data in most cases.
    may_be_stand_in = bytes(data[:1]) in (b"v", b"<", b" ", b"\n", b"\r")
    if may_be_stand_in:
        _refuse(path, _by_content(bytes(data[:_START]), _STAND_INS))


def _by_content(start: bytes, kinds: Sequence[_Kind]) -> _Kind | None:
    """Return the kind of a file that starts with the bytes `start`, or None."""
    text = start[:_START].decode("latin-1")
    for kind in kinds:
        if kind.content and re.match(kind.content, text, re.I | re.S):
            return kind
    return None


def _by_ending(ending: str) -> _Kind | None:
    """Return the kind of files whose names have an ending such as ".pt", or None."""
    for kind in _KINDS:
        if ending in kind.endings:
            return kind
    return None


def _refuse(path: str, kind: _Kind | None) -> None:
    """Raise ArchiveError for a file of the kind `kind`. Do nothing if `kind` is None."""
    if kind is not None:
        raise ArchiveError(f"{path} is {kind.what}", hint=kind.hint)


def as_readable(source: Any) -> tuple[Any, str]:
    """Return a source for `open_archive`, and the name of its only member if that is known.

    An onnx.ModelProto becomes its bytes, with the name "model.onnx". Any other source is returned
    unchanged, with the name "". Raises TypeError for a module of PyTorch.
    """
    # The types are recognised by name, since their packages may be missing.
    source_type = type(source)
    is_of_onnx = source_type.__module__.startswith("onnx")
    if is_of_onnx and source_type.__name__ == "ModelProto":
        return source.SerializeToString(), "model.onnx"
    is_module = any(base.__module__ == "torch.nn.modules.module" for base in source_type.__mro__)
    if is_module:
        raise TypeError(f"source is a module of PyTorch; {_TORCH}")
    return source, ""
