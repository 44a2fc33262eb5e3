"""Tensor files of tract's dialect against bytes that are written and decoded by hand here."""

from __future__ import annotations

import math
import random
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lowering.location import Source
from nnef_jax.errors import DataError, LimitError, NnefError, UnsupportedError
from nnef_jax.formats.syntax.quantizer import dequantize
from nnef_jax.formats.tract.quantization import read_quantization
from nnef_jax.formats.tract.tensor_file import StoredTensor, read_tensor_file
from nnef_jax.limits import Limits, Meter
from nnef_jax.storage.archive import open_archive
from tests.conftest import SHARED_CASES
from tests.tract_files import OPEN, TR, floats, tensor

FLOAT, UINT, QUINT, QINT, INT, BOOL = range(6)
Q4_0, OLD_Q4_0, Q8_1 = 0x3040, 0x2040, 0x3080


def read(file: bytes, **limits: int) -> StoredTensor:
    return read_tensor_file(memoryview(file), "a/w.dat", Meter(Limits(**limits)))


def q4_0_blocks(count: int, seed: int = 0) -> bytes:
    rng = random.Random(seed)
    return b"".join(struct.pack("<e", rng.uniform(-2, 2)) + rng.randbytes(16) for _ in range(count))


def decoded_q4_0(data: bytes, *, old: bool = False) -> list[float]:
    """One number after the other, in Python's own arithmetic."""
    numbers: list[float] = []
    for at in range(0, len(data), 18):
        (scale,) = struct.unpack_from("<e", data, at)
        pairs = data[at + 2 : at + 18]
        if old:
            codes = [code for pair in pairs for code in (pair & 15, pair >> 4)]
        else:
            codes = [pair & 15 for pair in pairs] + [pair >> 4 for pair in pairs]
        numbers += [(code - 8) * scale for code in codes]
    return numbers


# Items of the standard

NUMBERS = [
    (FLOAT, 16, "e"),
    (FLOAT, 32, "f"),
    (FLOAT, 64, "d"),
    *(
        (item, bits, code)
        for item, codes in ((UINT, "BHIQ"), (QUINT, "BHIQ"), (QINT, "bhiq"), (INT, "bhiq"))
        for bits, code in zip((8, 16, 32, 64), codes, strict=True)
    ),
]


@pytest.mark.parametrize(("item", "bits", "code"), NUMBERS)
def test_numbers(item: int, bits: int, code: str) -> None:
    values = [1, 2, 3, 100, 127, 5] if code.isupper() else [1, -2, 3, 100, -128, 127]
    stored = read(tensor((2, 3), bits, item, struct.pack(f"<6{code}", *values)))
    assert stored.array.dtype == np.dtype(code)
    assert stored.array.tolist() == [values[:3], values[3:]]
    assert not stored.array.flags.writeable
    assert (stored.codes is not None) == (item != FLOAT)
    if stored.codes is not None:
        assert stored.codes.array is stored.array
        assert (stored.codes.bits, stored.codes.signed) == (bits, code.islower())


def test_truth_values() -> None:
    stored = read(tensor((2, 3), 1, BOOL, b"\xa4"))
    assert (stored.array.dtype, stored.codes) == (np.bool_, None)
    assert stored.array.tolist() == [[True, False, True], [False, False, True]]
    assert read(tensor((4,), 8, BOOL, b"\0\x01\xff\0")).array.tolist() == [0, 1, 1, 0]


def test_rank_0() -> None:
    stored = read(tensor((), 64, FLOAT, struct.pack("<d", 1e-5)))
    assert (stored.array.shape, stored.array[()]) == ((), 1e-5)


EMPTY = [
    (32, FLOAT, 0, "float32"), (64, INT, 0, "int64"), (1, BOOL, 0, "bool"), (4, INT, 0, "int8"),
    (64, 0, TR, "complex64"), (OPEN, Q4_0, TR, "float32"),
]  # fmt: skip


@pytest.mark.parametrize(("bits", "item", "vendor", "dtype"), EMPTY)
@pytest.mark.parametrize("shape", [(0,), (2, 0, 32), (0, 64)])
def test_empty_tensors(bits: int, item: int, vendor: int, dtype: str, shape: Any) -> None:
    if item == Q4_0 and len(shape) == 1:
        shape = (0, 32)
    stored = read(tensor(shape, bits, item, b"", vendor=vendor))
    assert (stored.array.dtype.name, stored.array.shape) == (dtype, shape)


@pytest.mark.parametrize(("bits", "item", "vendor", "dtype"), EMPTY)
def test_empty_tensors_that_no_array_can_have(
    bits: int, item: int, vendor: int, dtype: str
) -> None:
    shape = (0, *(2**32 - 32,) * 7)
    with pytest.raises(DataError, match=r"too big|Maximum allowed"):
        read(tensor(shape, bits, item, b"", vendor=vendor))


# Items of tract


@pytest.mark.parametrize(
    ("bits", "code", "dtype"),
    [(32, "e", "complex64"), (64, "f", "complex64"), (128, "d", "complex128")],
)
def test_complex_numbers(bits: int, code: str, dtype: str) -> None:
    data = struct.pack(f"<6{code}", 1.5, -2, 0.25, 3, 0, -0.5)
    stored = read(tensor((3, 1), bits, 0, data, vendor=TR))
    assert stored.array.dtype.name == dtype
    assert stored.array.tolist() == [[1.5 - 2j], [0.25 + 3j], [-0.5j]]


@pytest.mark.parametrize(("item", "old"), [(Q4_0, False), (OLD_Q4_0, True)])
def test_q4_0(item: int, old: bool) -> None:
    data = q4_0_blocks(12)
    stored = read(tensor((3, 2, 64), OPEN, item, data, vendor=TR))
    assert (stored.in_blocks, stored.array.dtype.name, stored.codes) == (True, "float32", None)
    assert stored.array.shape == (3, 2, 64)
    assert stored.array.ravel().tolist() == decoded_q4_0(data, old=old)
    assert not stored.array.flags.writeable


def test_the_order_of_q4_0() -> None:
    """Byte j has code 1 in its low half and code j in its high one."""
    pairs = bytes(16 * j + 1 for j in range(16))
    data = struct.pack("<e", 0.5) + pairs
    new = read(tensor((1, 32), OPEN, Q4_0, data, vendor=TR)).array[0].tolist()
    old = read(tensor((1, 32), OPEN, OLD_Q4_0, data, vendor=TR)).array[0].tolist()
    highs = [(j - 8) / 2 for j in range(16)]
    assert new == [-3.5] * 16 + highs
    assert old == [number for high in highs for number in (-3.5, high)]


@pytest.mark.parametrize("item", [0x3080, 0x3081])
def test_q8_1(item: int) -> None:
    codes = [*range(-128, 128, 4)]
    data = b"".join(
        struct.pack("<ee32b", scale, 99, *codes[at : at + 32])
        for scale, at in ((0.25, 0), (-3, 32))
    )
    stored = read(tensor((1, 64), OPEN, item, data, vendor=TR))
    assert stored.in_blocks
    expected = [0.25 * code for code in codes[:32]] + [-3 * code for code in codes[32:]]
    assert stored.array[0].tolist() == expected


def test_scales_that_are_no_numbers() -> None:
    data = struct.pack("<e", math.inf) + bytes([0x88] * 16)
    assert np.isnan(read(tensor((1, 32), OPEN, Q4_0, data, vendor=TR)).array).all()


# Shapes


def test_declared_shapes() -> None:
    stored = read(floats(1, 2, 3))
    assert stored.shaped((3,), "w").shape == (3,)
    assert stored.shaped((3, 1, 1), "w").shape == (3, 1, 1)
    with pytest.raises(DataError, match=r"a/w.dat has shape \[3\], variable 'w' is .* \[1,3\]"):
        stored.shaped((1, 3), "w")
    blocks = read(tensor((4, 32), OPEN, Q4_0, q4_0_blocks(4), vendor=TR))
    assert blocks.shaped((2, 2, 8, 4), "w").ravel().tolist() == decoded_q4_0(q4_0_blocks(4))
    with pytest.raises(DataError, match=r"128 items, variable 'w' is .* \[4,33\]: 132 items"):
        blocks.shaped((4, 33), "w")


# Broken files

GOOD = {
    "f32": floats(1, 2, 3),
    "i4": tensor((5,), 4, INT, b"\x12\x3f\x70"),
    "bool": tensor((2, 3), 1, BOOL, b"\xa4"),
    "empty": tensor((0, 3), 32, FLOAT, b""),
    "complex": tensor((2,), 64, 0, bytes(16), vendor=TR),
    "q4_0": tensor((2, 32), OPEN, Q4_0, q4_0_blocks(2), vendor=TR),
    "old q4_0": tensor((2, 32), OPEN, OLD_Q4_0, q4_0_blocks(2), vendor=TR),
    "q8_1": tensor((1, 32), OPEN, Q8_1, bytes(36), vendor=TR),
}
BROKEN = {
    "nothing": (b"", "is empty"),
    "magic": (b"PK" + bytes(150), "starts with 50 4b"),
    "rank": (tensor((1,), OPEN, Q4_0, b"", vendor=TR, rank=9), "rank 9, expected at most 8"),
    "size": (tensor((2,), 32, FLOAT, bytes(4)), "data length 4, but extents"),
    "not empty": (tensor((0,), 32, FLOAT, bytes(5)), "data length 5, but extents"),
    "item type": (tensor((1,), 32, 6, bytes(4)), "item type 6, expected one of"),
    "complex of 16 bits": (tensor((1,), 16, 0, bytes(2), vendor=TR), "16 bits for a complex"),
    "complex size": (tensor((2,), 64, 0, bytes(8), vendor=TR), r"extents \[2\] take 16 bytes"),
    "no blocks": (tensor((64,), OPEN, Q4_0, bytes(36), vendor=TR), "do not divide into blocks"),
    "half a block": (tensor((4, 16), OPEN, Q4_0, bytes(36), vendor=TR), "do not divide"),
    "rank 0 of blocks": (tensor((), OPEN, Q4_0, bytes(18), vendor=TR), "do not divide"),
    "block missing": (tensor((2, 32), OPEN, Q4_0, bytes(18), vendor=TR), "take 36 bytes"),
    "block too many": (tensor((2, 32), OPEN, Q4_0, bytes(54), vendor=TR), "54 bytes follow"),
    "block length": (
        tensor((2, 32), OPEN, Q4_0, bytes(36), vendor=TR, length=18),
        "data length is 18 and 36 bytes follow",
    ),
    "huge blocks": (
        tensor((2**31, 2**31), OPEN, Q4_0, b"", vendor=TR), "but the data length is 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN)
def test_broken_files_are_data_errors(broken: str) -> None:
    file, message = BROKEN[broken]
    with pytest.raises(DataError, match=message) as caught:
        read(file)
    assert str(caught.value).startswith("a/w.dat")


@pytest.mark.parametrize("name", GOOD)
def test_every_truncation_is_a_data_error(name: str) -> None:
    file = GOOD[name]
    assert read(file).array.shape
    for size in range(len(file)):
        with pytest.raises(DataError):
            read(file[:size])


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (tensor((2,), 64, 4, bytes(16), vendor=TR), "complex integers of 64 bits"),
        (tensor((1,), OPEN, 0x1000, b"\1\0\0\0a", vendor=TR), "JAX has no arrays of strings"),
        (tensor((2,), OPEN, 0x3060, b"", vendor=TR), "item type 0x3060 of vendor 'TR'"),
        (tensor((2,), 32, 0, bytes(8), vendor=0x4142), r"vendor 0x4142 \('AB'\)"),
    ],
)
def test_item_types_that_are_not_supported(file: bytes, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        read(file)


@pytest.mark.parametrize("name", GOOD)
def test_tensors_that_are_no_views_count(name: str) -> None:
    meter = Meter()
    stored = read_tensor_file(memoryview(GOOD[name]), "a/w.dat", meter)
    is_view = stored.array.base is not None and meter.expanded == 0
    if not is_view:
        assert meter.expanded >= stored.array.nbytes
        with pytest.raises(LimitError, match=r"a/w\.dat: .* bytes of memory"):
            read(GOOD[name], expanded_bytes=meter.expanded - 1)


@given(st.sampled_from([*GOOD.values()]), st.data())
def test_mutated_files_end_in_an_error_or_a_tensor(file: bytes, data: Any) -> None:
    mutated = bytearray(file)
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    try:
        array = read(bytes(mutated[: len(file) - data.draw(st.integers(0, 3))])).array
    except NnefError:
        return
    assert array.nbytes <= 64 * len(file)


@given(st.sampled_from([0, 4, 0x1000, Q4_0, OLD_Q4_0, Q8_1]), st.binary(max_size=200), st.data())
def test_random_data_end_in_an_error_or_a_tensor(item: int, content: bytes, data: Any) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=8, min_side=0, max_side=64))
    bits = data.draw(st.sampled_from([32, 64, 128, OPEN]))
    try:
        read(tensor(shape, bits, item, content, vendor=TR))
    except NnefError as error:
        assert error.message
    try:
        read(b"N\xef\x01\0" + content)
    except NnefError as error:
        assert error.message


# Codes


def test_codes_of_quantised_weights() -> None:
    text = '"w": zero_point_linear_quantize(zero_point=-3, scale=0.5, bits=8, signed=true);'
    quantizer = read_quantization(Source("graph.quant", text), ["w"], Meter())["w"]
    for item in (INT, QINT):
        codes = read(tensor((3,), 8, item, struct.pack("<3b", -128, 0, 127))).codes
        assert codes is not None
        assert dequantize(codes, quantizer, "w.dat", Meter()).tolist() == [-62.5, 1.5, 65]
    empty = read(tensor((0,), 8, INT, b"")).codes
    assert empty is not None
    assert dequantize(empty, quantizer, "w.dat", Meter()).shape == (0,)


# Files of others


@pytest.mark.parametrize(
    "name", sorted(path.name for path in SHARED_CASES.glob("tract/*.nnef.tgz"))
)
def test_shared_archive(name: str) -> None:
    with open_archive(SHARED_CASES / "tract" / name) as archive:
        members = [member for member in archive.names() if member.endswith(".dat")]
        for member in members:
            data = archive.open_tensor(member)
            stored = read_tensor_file(data, member, Meter())
            size, rank, *extents = struct.unpack_from("<II8I", data, 4)
            bits, item, vendor = struct.unpack_from("<IHH", data, 44)
            payload = bytes(data[128:])
            assert stored.array.shape == tuple(extents[:rank]) and len(payload) == size
            if vendor == TR:
                assert (item, stored.in_blocks) == (Q4_0, True)
                expected = np.array(decoded_q4_0(payload), np.float32)
            elif bits == 1:
                expected = np.unpackbits(np.frombuffer(payload, np.uint8))[: stored.array.size]
            else:
                kind = "fuuii"[item]
                expected = np.frombuffer(payload, f"<{kind}{bits // 8}")
                assert stored.array.dtype == expected.dtype
            assert np.array_equal(stored.array.ravel(), expected, equal_nan=bits != 1)


def test_shared_archives_are_there(shared_cases: Any) -> None:
    """Skips, by name, where the test above had nothing to read."""
    assert any((shared_cases / "tract").glob("*.nnef.tgz"))
