"""Reads the protobuf message of a model: what is not read of it is never parsed.

A walk over the wire format leaves out fields without a reader here, and the bytes of large tensors
(`raw_data`), for which a mark stands: they are viewed in the file. It counts messages and numbers,
of which a few bytes of a file take a hundred times as many in memory, before the `onnx` package
parses the others.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from nnef_jax.errors import ArchiveError, LimitError, extra_missing
from nnef_jax.limits import Meter, raising

# https://protobuf.dev/programming-guides/encoding: kinds of fields.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_LEAST = 1024  # bytes of a tensor that are worth leaving out
_DEEPEST = 60  # graphs in graphs, three messages each; protobuf itself stops at 100 messages
_RAW_DATA = 9

# What a field holds, where it is no message. Packed numbers are data of tensors.
_TEXT, _NUMBER, _NUMBERS, _FLOATS, _WHOLES = "text", "number", "numbers", "floats", "wholes"
# The fields that are read, by their messages (onnx.proto).
_READ: Mapping[str, Mapping[int, str]] = {
    "model": {1: _NUMBER, 7: "graph", 8: "operator set", 25: "function"},
    "operator set": {1: _TEXT, 2: _NUMBER},
    "graph": {1: "node", 2: _TEXT, 5: "tensor", 11: "port", 12: "port", 15: "sparse tensor"},
    "function": {
        1: _TEXT, 4: _TEXT, 5: _TEXT, 7: "node", 9: "operator set", 10: _TEXT, 11: "attribute",
        13: _TEXT,
    },
    "node": {1: _TEXT, 2: _TEXT, 3: _TEXT, 4: _TEXT, 5: "attribute", 7: _TEXT, 8: _TEXT},
    "attribute": {
        1: _TEXT, 2: _NUMBER, 3: _NUMBER, 4: _TEXT, 5: "tensor", 6: "graph", 7: _NUMBERS,
        8: _NUMBERS, 9: _TEXT, 10: "tensor", 11: "graph", 20: _NUMBER, 21: _TEXT,
        22: "sparse tensor",
    },
    "tensor": {
        1: _NUMBERS, 2: _NUMBER, 4: _FLOATS, 5: _WHOLES, 7: _WHOLES, 8: _TEXT, _RAW_DATA: _TEXT,
        10: _FLOATS, 11: _WHOLES, 13: "place", 14: _NUMBER,
    },
    "place": {1: _TEXT, 2: _TEXT},
    "sparse tensor": {1: "tensor", 2: "tensor", 3: _NUMBERS},
    "port": {1: _TEXT, 2: "type"},
    "type": {1: "tensor type", **dict.fromkeys((4, 5, 7, 8, 9), "other type")},
    "tensor type": {1: _NUMBER, 2: "shape"},
    "other type": {},
    "shape": {1: "extent"},
    "extent": {1: _NUMBER, 2: _TEXT},
}  # fmt: skip
_SINGLE = frozenset({_NUMBER, _NUMBERS, _FLOATS, _WHOLES})  # fields of a number each

# Steps for a field or a number, for a message, and for one of which objects are made.
_FIELD, _MESSAGE = 1, 2
_STEPS = {
    "graph": 60, "function": 60, "node": 30, "tensor": 40, "sparse tensor": 60, "port": 20,
    "attribute": 20,
}  # fmt: skip
# Bytes that are held for one of a message, which is parsed and written again, of a text beside,
# and for a packed whole number: protobuf's arrays grow by doubling.
_COPIES, _TEXTS, _WHOLE = 3, 2, 40
_NUMBERS_PER_STEP = 16


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
    """Return the ModelProto of a file, of which only fields that are read, and large tensors."""
    try:
        from google.protobuf.message import DecodeError
        from onnx import ModelProto
    except ImportError:
        message = f"{name}: an ONNX file is read by the 'onnx' package, which is not installed"
        raise extra_missing(message, "onnx") from None
    walk = _Walk(name, meter)
    model = ModelProto()
    try:
        content = bytes(walk.read(data, "model"))
        meter.expand(_COPIES * len(content), name)
        model.ParseFromString(content)
    except (DecodeError, _Broken, IndexError) as error:
        message = f"{name} is no ONNX file: it is not a protobuf message of a model"
        raise ArchiveError(message, hint="it is cut off, damaged, or of another kind") from error
    return model, walk.raw


class _Broken(ValueError):
    """The bytes are no message."""


class _Walk:
    """Leaves out of messages what is not read, and counts what is."""

    def __init__(self, name: str, meter: Meter) -> None:
        self.raw = Raw()
        self._name = name
        self._meter = meter

    def read(self, data: memoryview, message: str, depth: int = 0) -> memoryview | bytearray:
        """Return a message without what is not read; as it is where all is."""
        if depth > _DEEPEST:
            raise LimitError(f"{self._name}: graphs are nested too deeply", hint=raising("nesting"))
        self._meter.spend(_STEPS.get(message, _MESSAGE), self._name)
        read, out, kept = _READ[message], bytearray(), 0  # `kept`: what is before it is in `out`
        for number, kind, begin, start, end in _fields(data):
            self._meter.spend(_FIELD, self._name)
            what, inner = read.get(number, ""), None
            if kind != _BYTES:
                if what in _SINGLE:
                    continue
            elif what in _READ:
                part = data[start:end]
                inner = self.read(part, what, depth + 1)
                if inner is part:
                    continue
            elif what == _TEXT and end - start < _LEAST:
                continue
            elif what == _TEXT and message == "tensor" and number == _RAW_DATA:
                inner = self.raw.put(data[start:end])
            elif what:
                self._count(data[start:end], what)
                continue
            if kept < begin:
                out += data[kept:begin]
            kept = end
            if inner is not None:
                out += _varint_of(number << 3 | _BYTES) + _varint_of(len(inner)) + inner
        return out + data[kept:] if kept else data

    def _count(self, part: memoryview, what: str) -> None:
        """Count a text, or packed numbers."""
        steps = size = 0
        if what == _TEXT:
            size = _TEXTS * len(part)
        elif what == _FLOATS:
            steps = len(part) // (4 * _NUMBERS_PER_STEP)
        elif what == _WHOLES:  # the last byte of a number has no sign
            items = int(np.count_nonzero(np.frombuffer(part, np.int8) >= 0))
            steps, size = items // _NUMBERS_PER_STEP, _WHOLE * items
        else:
            steps = len(part)
        self._meter.spend(steps, self._name)
        self._meter.expand(size, self._name)


def _fields(data: memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield each field's number and kind, where it begins, where its bytes begin and end.

    Raises _Broken, or IndexError where a number ends behind the message.
    """
    at, size = 0, len(data)
    while at < size:
        begin, (tag, start) = at, _varint(data, at)
        kind = tag & 7
        if kind == _BYTES:
            length, start = _varint(data, start)
            at = start + length
        elif kind == _VARINT:
            _, at = _varint(data, start)
        elif kind in _SIZES:
            at = start + _SIZES[kind]
        else:
            raise _Broken
        if at > size:
            raise _Broken
        yield tag >> 3, kind, begin, start, at


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return a number of variable length, and where it ends."""
    value = data[at]
    if value < 128:  # as nearly always
        return value, at + 1
    value &= 127
    for shift in range(7, 64, 7):
        at += 1
        byte = data[at]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at + 1
    raise _Broken


def _varint_of(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
