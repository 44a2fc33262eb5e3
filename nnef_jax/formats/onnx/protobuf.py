"""Reads the protobuf message of a model within the limits of a load.

A walk over the wire format removes the fields that `document_reader` does not read. The bytes
of large tensors (`raw_data`) are replaced by marks, so that the arrays of these tensors are views
of the file. The walk also counts messages and numbers, because a message or a number may take a
hundred times as many bytes in memory as in the file. Then the `onnx` package parses the message.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nnef_jax.errors import ArchiveError, LimitError, extra_missing
from nnef_jax.limits import Meter, raising

if TYPE_CHECKING:
    from onnx import ModelProto

# The wire types of fields (https://protobuf.dev/programming-guides/encoding).
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_LEAST_RAW_BYTES = 1024  # `raw_data` of this size or more is taken out of the message
# The deepest nesting of messages. A graph in a graph adds three levels. Protobuf itself refuses
# more than 100 levels.
_DEEPEST = 60
_RAW_DATA = 9  # the number of the field `raw_data` of a TensorProto

# The kinds of content of a field, except for messages. A field of the kind `_NUMBERS`, `_FLOATS` or
# `_WHOLES` is packed: the field holds several numbers.
_TEXT, _NUMBER, _NUMBERS, _FLOATS, _WHOLES = "text", "number", "numbers", "floats", "wholes"
# The fields that are read (onnx.proto). Maps the kind of a message to a dict from numbers of fields
# to kinds of content.
_READ_FIELDS: Mapping[str, Mapping[int, str]] = {
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
# A field with one of these contents may also hold a single number that is not packed. A field with
# such a number is not removed.
_NUMERIC = frozenset({_NUMBER, _NUMBERS, _FLOATS, _WHOLES})

_STEPS_OF_FIELD = 1  # steps of the meter for each field
_STEPS_OF_MESSAGE = 2  # steps of the meter for a message that becomes no object
# Maps kinds of messages to steps of the meter. Messages of these kinds become objects.
_STEPS_OF_OBJECT = {
    "graph": 60, "function": 60, "node": 30, "tensor": 40, "sparse tensor": 60, "port": 20,
    "attribute": 20,
}  # fmt: skip
# The bytes of memory that the meter counts for each byte of the message. Memory holds copies of the
# message, since it is parsed and written again.
_MEMORY_OF_BYTE = 3
_MEMORY_OF_TEXT_BYTE = 2  # additional bytes of memory for each byte of a text
# Bytes of memory for each packed integer. Protobuf's arrays of integers grow by doubling.
_MEMORY_OF_WHOLE = 40
_NUMBERS_PER_STEP = 16  # packed numbers that count as one step of the meter


class Raw:
    """The bytes of large tensors. In the message of a model, short marks stand for these bytes."""

    def __init__(self) -> None:
        self._salt = secrets.token_bytes(16)  # random, so that no file can contain a mark
        self._tensors: list[memoryview] = []

    def put(self, data: memoryview) -> bytes:
        """Store the bytes of a tensor and return a mark for them."""
        number = len(self._tensors)
        self._tensors.append(data)
        return self._salt + number.to_bytes(4, "big")

    def get(self, data: bytes) -> memoryview:
        """Return the bytes of a tensor: the stored bytes if `data` is a mark, else `data`."""
        # A mark is the salt of 16 bytes, and a number of 4 bytes.
        is_mark = len(data) == 20 and data[:16] == self._salt
        if not is_mark:
            return memoryview(data)
        number = int.from_bytes(data[16:], "big")
        return self._tensors[number]

    def unsalted(self, text: bytes) -> bytes:
        """Return the bytes of a message with zeros in the place of the random salt of marks.

        Two processes that read the same file get the same bytes.
        """
        return text.replace(self._salt, bytes(len(self._salt)))


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
        meter.expand(_MEMORY_OF_BYTE * len(content), name)
        model.ParseFromString(content)
    except (DecodeError, _Broken, IndexError) as error:
        message = f"{name} is no ONNX file: it is not a protobuf message of a model"
        raise ArchiveError(message, hint="it is cut off, damaged, or of another kind") from error
    return model, walk.raw


class _Broken(ValueError):
    """The bytes of a file are not a protobuf message."""


class _Walk:
    """A walk over the bytes of a message. The walk removes the fields that nothing reads.

    The walk also counts the memory that the remaining fields will take. `raw` gets the bytes of
    large tensors.
    """

    def __init__(self, name: str, meter: Meter) -> None:
        self.raw = Raw()
        self._name = name
        self._meter = meter

    def read(self, data: memoryview, message: str, depth: int = 0) -> memoryview | bytearray:
        """Return the bytes of a message without the fields that nothing reads.

        `data` has the bytes of the message, and `message` is the kind of the message, such as
        "tensor". `depth` is the number of messages that contain the message. If no field is
        changed, return `data` itself.
        """
        if depth > _DEEPEST:
            raise LimitError(f"{self._name}: graphs are nested too deeply", hint=raising("nesting"))
        self._meter.spend(_STEPS_OF_OBJECT.get(message, _STEPS_OF_MESSAGE), self._name)
        contents = _READ_FIELDS[message]
        out = bytearray()
        changes_end = 0  # the end of the last field that was removed or replaced
        for field in _fields(data):
            self._meter.spend(_STEPS_OF_FIELD, self._name)
            content = contents.get(field.number, "")  # "" if nothing reads the field
            length = field.end - field.start
            # For an unchanged field, the loop goes on by `continue`. The bytes of the field are
            # copied later, together with all bytes before the next change.
            replacement = None  # the new content of the field; None removes the field
            if field.kind != _BYTES:
                if content in _NUMERIC:
                    continue
            elif content in _READ_FIELDS:  # The content is a message.
                inner = data[field.start : field.end]
                replacement = self.read(inner, content, depth + 1)
                if replacement is inner:
                    continue
            elif content == _TEXT and length < _LEAST_RAW_BYTES:
                continue
            elif message == "tensor" and field.number == _RAW_DATA:
                replacement = self.raw.put(data[field.start : field.end])
            elif content:  # long texts and packed numbers
                self._count(data[field.start : field.end], content)
                continue
            if changes_end < field.begin:
                out += data[changes_end : field.begin]
            changes_end = field.end
            if replacement is not None:
                tag = field.number << 3 | _BYTES
                out += _varint_of(tag) + _varint_of(len(replacement)) + replacement
        has_changes = changes_end > 0
        return out + data[changes_end:] if has_changes else data

    def _count(self, part: memoryview, content: str) -> None:
        """Count the memory and the time that the content of a field will take.

        `part` has the bytes of the content. `content` is the kind of the content, such as `_TEXT`.
        """
        steps = 0
        size = 0  # in bytes of memory
        if content == _TEXT:
            size = _MEMORY_OF_TEXT_BYTE * len(part)
        elif content == _FLOATS:
            item_count = len(part) // 4
            steps = item_count // _NUMBERS_PER_STEP
        elif content == _WHOLES:
            # The top bit is 0 in the last byte of each varint. As an int8, the byte is not
            # negative.
            is_last_byte = np.frombuffer(part, np.int8) >= 0
            item_count = int(np.count_nonzero(is_last_byte))
            steps = item_count // _NUMBERS_PER_STEP
            size = _MEMORY_OF_WHOLE * item_count
        else:  # Other packed numbers have at least a byte each.
            steps = len(part)
        self._meter.spend(steps, self._name)
        self._meter.expand(size, self._name)


class _Field(NamedTuple):
    """A field of a message: a tag and a content. The tag has the field's number and wire type."""

    number: int
    kind: int
    begin: int  # the offset of the tag
    start: int  # the offset of the content
    end: int  # the offset after the content


def _fields(data: memoryview) -> Iterator[_Field]:
    """Yield the fields of a message.

    Raises _Broken, or IndexError for a varint that is cut off by the end of the message.
    """
    size = len(data)
    end = 0  # the end of the previous field
    while end < size:
        begin = end
        tag, start = _varint(data, begin)
        kind = tag & 7  # The other bits of the tag are the field's number.
        if kind == _BYTES:  # The length comes before the content.
            length, start = _varint(data, start)
            end = start + length
        elif kind == _VARINT:
            _, end = _varint(data, start)
        elif kind in _FIXED_SIZES:
            end = start + _FIXED_SIZES[kind]
        else:
            raise _Broken
        if end > size:
            raise _Broken
        yield _Field(tag >> 3, kind, begin, start, end)


def _varint(data: memoryview, offset: int) -> tuple[int, int]:
    """Decode the varint at an offset; return the value and the offset after the varint.

    A byte of a varint has 7 bits of the value, the lowest bits first. The top bit of a byte is 1
    unless the byte is the last one. For example, the bytes 0x81 0x01 stand for 1 + 1 * 128 = 129.
    """
    value = data[offset]
    if value < 128:  # Most varints have a single byte.
        return value, offset + 1
    value &= 127
    for shift in range(7, 64, 7):
        offset += 1
        byte = data[offset]
        value |= (byte & 127) << shift
        is_last = byte < 128
        if is_last:
            return value, offset + 1
    raise _Broken


def _varint_of(value: int) -> bytes:
    """Encode a number as a varint; see `_varint`."""
    encoded = bytearray()
    while value > 127:
        low_bits = value & 127
        encoded.append(low_bits | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
