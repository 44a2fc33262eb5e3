"""Reads the protobuf message of a model: large tensors are viewed in the file, not copied.

The bytes of a tensor (`raw_data`) are found by a walk over the wire format and left out of what the
`onnx` package parses: a mark stands for them. So a file of any size is held in memory once at most.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from nnef_jax.errors import ArchiveError, LimitError, extra_missing
from nnef_jax.limits import Meter, raising

# https://protobuf.dev/programming-guides/encoding: kinds of fields.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LEAST = 1024  # bytes of a tensor that are worth leaving out
_DEEPEST = 60  # graphs in graphs, three messages each; protobuf itself stops at 100 messages
_FIELD = 1  # steps
_RAW_DATA = 9
# Fields, by the message that they are in, which lead to tensors, with their messages (onnx.proto).
_PATHS: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"},
}


class Raw:
    """The bytes of tensors that were left out, by the marks that stand for them."""

    def __init__(self) -> None:
        self._salt = secrets.token_bytes(16)  # so that no file holds a mark
        self._found: list[memoryview] = []

    def put(self, data: memoryview) -> bytes:
        """Return the mark of bytes."""
        self._found.append(data)
        return self._salt + len(self._found).to_bytes(4, "big")

    def get(self, data: bytes) -> memoryview:
        """Return the bytes of a tensor."""
        if data[:16] == self._salt and len(data) == 20:
            return self._found[int.from_bytes(data[16:], "big") - 1]
        return memoryview(data)


def parse(data: memoryview, name: str, meter: Meter) -> tuple[Any, Raw]:
    """Return the ModelProto of a file without its large tensors, and these."""
    try:
        from google.protobuf.message import DecodeError
        from onnx import ModelProto
    except ImportError:
        message = f"{name}: an ONNX file is read by the 'onnx' package, which is not installed"
        raise extra_missing(message, "onnx") from None
    raw = Raw()
    model = ModelProto()
    try:
        model.ParseFromString(b"".join(_without_tensors(data, "model", raw, meter, name, 0)))
    except (DecodeError, _Broken) as error:
        message = f"{name} is no ONNX file: it is not a protobuf message of a model"
        raise ArchiveError(message) from error
    return model, raw


class _Broken(ValueError):
    """The bytes are no message."""


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return a number of variable length, and where it ends."""
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise _Broken


def _fields(data: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Yield the number of each field, where it begins, where its bytes begin and end."""
    at = 0
    while at < len(data):
        begin = at
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        start = at
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind == _BYTES:
            size, start = _varint(data, at)
            at = start + size
        elif kind in (_FIXED32, _FIXED64):
            at += 8 if kind == _FIXED64 else 4
        else:
            raise _Broken
        if at > len(data):
            raise _Broken
        yield (number if kind == _BYTES else 0), begin, start, at


def _without_tensors(
    data: memoryview, message: str, raw: Raw, meter: Meter, name: str, depth: int
) -> list[bytes | memoryview]:
    """Return a message in pieces, with marks for the bytes of its large tensors."""
    if depth > _DEEPEST:
        raise LimitError(f"{name}: graphs are nested too deeply", hint=raising("nesting"))
    if len(data) < _LEAST:
        return [data]
    paths = _PATHS.get(message, {})
    pieces: list[bytes | memoryview] = []
    kept = 0  # where what is not yet in pieces begins
    for number, begin, start, end in _fields(data):
        meter.spend(_FIELD, name)
        if message == "tensor" and number == _RAW_DATA and end - start >= _LEAST:
            inner: list[bytes | memoryview] = [raw.put(data[start:end])]
        elif number in paths and end - start >= _LEAST:
            part = data[start:end]
            inner = _without_tensors(part, paths[number], raw, meter, name, depth + 1)
            if len(inner) == 1:
                continue
        else:
            continue
        size = sum(map(len, inner))
        pieces += [data[kept:begin], _tag(number), _length(size), *inner]
        kept = end
    return [*pieces, data[kept:]] if pieces else [data]


def _tag(number: int) -> bytes:
    return _length(number << 3 | _BYTES)


def _length(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
