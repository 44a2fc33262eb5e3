"""Reads the protobuf message of a model within the limits of a load.

A walk over the wire format removes the fields that the module `document` does not read. The bytes
of large tensors (`raw_data`) are replaced by marks, so that the arrays of these tensors are views
of the file. The walk also counts messages and numbers, because these may take a hundred times their
size in memory. Then the `onnx` package parses the message.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from nnef_jax.errors import ArchiveError, LimitError, extra_missing
from nnef_jax.limits import Meter, raising

if TYPE_CHECKING:
    from onnx import ModelProto

# Kinds of fields (https://protobuf.dev/programming-guides/encoding).
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_LEAST = 1024  # the size in bytes from which tensors are taken out of the message
_DEEPEST = 60  # the deepest nesting of messages: three for a nested graph; protobuf stops at 100
_RAW_DATA = 9

# Contents of fields that are not messages. `_NUMBERS`, `_FLOATS` and `_WHOLES` are packed.
_TEXT, _NUMBER, _NUMBERS, _FLOATS, _WHOLES = "text", "number", "numbers", "floats", "wholes"
# The fields that are read: the content of each field, by message and by number of the field
# (onnx.proto).
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
# A field with one of these contents may also hold a single number, which is not packed. Such a
# field is kept.
_NUMERIC = frozenset({_NUMBER, _NUMBERS, _FLOATS, _WHOLES})

# Steps of the meter: for a field, for a message, and for each message that becomes an object.
_FIELD, _MESSAGE = 1, 2
_STEPS = {
    "graph": 60, "function": 60, "node": 30, "tensor": 40, "sparse tensor": 60, "port": 20,
    "attribute": 20,
}  # fmt: skip
# Bytes of memory that are counted. Each byte of the message counts 3, since the message is parsed
# and written again. Each byte of a text counts 2 more. Each packed integer counts 40, since
# protobuf's arrays grow by doubling.
_COPIES, _TEXTS, _WHOLE = 3, 2, 40
_NUMBERS_PER_STEP = 16


class Raw:
    """The bytes of large tensors, which are replaced by short marks in the message of a model."""

    def __init__(self) -> None:
        self._salt = secrets.token_bytes(16)  # random, so that no file can contain a mark
        self._tensors: list[memoryview] = []

    def put(self, data: memoryview) -> bytes:
        """Store the bytes of a tensor and return a mark for them."""
        self._tensors.append(data)
        return self._salt + len(self._tensors).to_bytes(4, "big")

    def get(self, data: bytes) -> memoryview:
        """Return the bytes of a tensor: the stored bytes if `data` is a mark, else `data`."""
        if data[:16] == self._salt and len(data) == 20:
            return self._tensors[int.from_bytes(data[16:], "big") - 1]
        return memoryview(data)


def parse(data: memoryview, name: str, meter: Meter) -> tuple[ModelProto, Raw]:
    """Parse a ModelProto; return the message without unread fields, and the bytes of large tensors.

    `name` is the name of the file in errors.
    """
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
    """The bytes of a file are not a protobuf message."""


class _Walk:
    """A walk over the bytes of a message, which removes the fields that nothing reads.

    The walk also counts the fields that are kept against the limits of the load.
    """

    def __init__(self, name: str, meter: Meter) -> None:
        self.raw = Raw()
        self._name = name
        self._meter = meter

    def read(self, data: memoryview, message: str, depth: int = 0) -> memoryview | bytearray:
        """Return the bytes of a message without the fields that nothing reads.

        `message` is the kind of the message, such as "tensor". If there is no field to remove,
        return `data` itself.
        """
        if depth > _DEEPEST:
            raise LimitError(f"{self._name}: graphs are nested too deeply", hint=raising("nesting"))
        self._meter.spend(_STEPS.get(message, _MESSAGE), self._name)
        contents = _READ[message]
        out = bytearray()
        copied = 0  # the number of bytes of `data` that were handled: `out` has their read fields
        for number, kind, begin, start, end in _fields(data):
            self._meter.spend(_FIELD, self._name)
            content = contents.get(number, "")
            inner = None
            if kind != _BYTES:
                if content in _NUMERIC:
                    continue
            elif content in _READ:
                part = data[start:end]
                inner = self.read(part, content, depth + 1)
                if inner is part:
                    continue
            elif content == _TEXT and end - start < _LEAST:
                continue
            elif content == _TEXT and message == "tensor" and number == _RAW_DATA:
                inner = self.raw.put(data[start:end])
            elif content:
                self._count(data[start:end], content)
                continue
            if copied < begin:
                out += data[copied:begin]
            copied = end
            if inner is not None:
                out += _varint_of(number << 3 | _BYTES) + _varint_of(len(inner)) + inner
        return out + data[copied:] if copied else data

    def _count(self, part: memoryview, content: str) -> None:
        """Count the memory and the time that the content of a field will take.

        `part` has the bytes of the field, and `content` is the kind of its content, such as text or
        packed numbers.
        """
        steps = size = 0
        if content == _TEXT:
            size = _TEXTS * len(part)
        elif content == _FLOATS:
            steps = len(part) // (4 * _NUMBERS_PER_STEP)
        elif content == _WHOLES:  # the last byte of each varint has the top bit 0
            items = int(np.count_nonzero(np.frombuffer(part, np.int8) >= 0))
            steps = items // _NUMBERS_PER_STEP
            size = _WHOLE * items
        else:
            steps = len(part)
        self._meter.spend(steps, self._name)
        self._meter.expand(size, self._name)


def _fields(data: memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the fields of a message.

    A field has five items: its number, its kind, its offset, and the start and end of its content.
    Raises _Broken, or IndexError for a varint that is cut off by the end of the message.
    """
    size = len(data)
    end = 0  # the end of the previous field
    while end < size:
        begin = end
        tag, start = _varint(data, begin)
        kind = tag & 7
        if kind == _BYTES:
            length, start = _varint(data, start)
            end = start + length
        elif kind == _VARINT:
            _, end = _varint(data, start)
        elif kind in _SIZES:
            end = start + _SIZES[kind]
        else:
            raise _Broken
        if end > size:
            raise _Broken
        yield tag >> 3, kind, begin, start, end


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Decode the varint at an offset; return its value and the offset after it."""
    value = data[at]
    if value < 128:  # the common case
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
