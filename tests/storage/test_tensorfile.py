"""Tensor files against headers that are written here by hand, and against the Khronos package."""

from __future__ import annotations

import io
import math
import mmap
import os
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nnef_jax.errors import DataError, LimitError, NnefError, UnsupportedError
from nnef_jax.limits import Limits, Meter
from nnef_jax.storage import bitstream, files
from nnef_jax.storage.tensorfile import read_tensor, read_tensor_file, write_tensor

CASES = Path(__file__).parents[3] / "shared" / "cases"
FLOAT, UINT, QUINT, QINT, INT, BOOL = range(6)
VALUES = np.array([[1.5, -2.0, 0.25], [3.0, 1e-3, -0.0]], np.float32)


def final(shape, bits, item, data, *, length=None, version=(1, 0), reserved=(), rank=None):
    """A file of NNEF 1.0, field by field."""
    extents = [*shape, *[0] * (8 - len(shape))]
    words = [len(data) if length is None else length, len(shape) if rank is None else rank]
    words += [*extents, bits, item, *reserved, *[0] * (19 - len(reserved))]
    return b"N\xef" + bytes(version) + struct.pack("<31I", *words) + data


def provisional(shape, bits, item, data, *, text=b"", offset=None, text_length=None):
    """A file of the provisional specification, field by field."""
    start = 16 + 4 * len(shape) + len(text)
    head = struct.pack("<II", start if offset is None else offset, len(shape))
    head += struct.pack(f"<{len(shape)}I", *shape)
    head += struct.pack("<BBH", item, bits, len(text) if text_length is None else text_length)
    return b"N\xef\x01\x00" + head + text + data


def stream(values, bits):
    """Integers as one stream of bits, by way of a string of digits."""
    digits = "".join(format(int(v) & ((1 << bits) - 1), f"0{bits}b") for v in values)
    digits += "0" * (-len(digits) % 8)
    return bytes(int(digits[i : i + 8], 2) for i in range(0, len(digits), 8))


def written(array, **options):
    file = io.BytesIO()
    write_tensor(file, array, **options)
    return file.getvalue()


def storage_of(array):
    """The object whose memory an array looks into."""
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array.obj if isinstance(array, memoryview) else array


# The final format

DIRECT = [
    (FLOAT, "f2"),
    (FLOAT, "f4"),
    (FLOAT, "f8"),
    *((INT, f"i{n}") for n in (1, 2, 4, 8)),
    *((UINT, f"u{n}") for n in (1, 2, 4, 8)),
    *((QINT, f"i{n}") for n in (1, 2, 4, 8)),
    *((QUINT, f"u{n}") for n in (1, 2, 4, 8)),
]


@pytest.mark.parametrize(("item", "dtype"), DIRECT)
def test_items_stored_as_they_are(item, dtype):
    width = int(dtype[1])
    values = [1, 2, 3, 100, 127, 5] if dtype[0] == "u" else [1, -2, 3, 100, -128, 127]
    code = {"f2": "e", "f4": "f", "f8": "d"}.get(dtype) or "bhiq"["1248".index(dtype[1])]
    code = code.upper() if dtype[0] == "u" else code
    data = struct.pack(f"<6{code}", *values)
    tensor = read_tensor_file(final((2, 3), 8 * width, item, data))
    assert tensor.array.dtype == np.dtype(dtype)
    assert tensor.array.tolist() == [values[:3], values[3:]]
    assert tensor.bits == 8 * width
    assert tensor.signed == (dtype[0] != "u")
    assert tensor.quantized == (item in (QINT, QUINT))
    assert tensor.quantization == ""
    assert written(np.array(values, dtype).reshape(2, 3), quantized=tensor.quantized) == final(
        (2, 3), 8 * width, item, data
    )


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 7, 9, 12, 15, 17, 24, 31, 33, 48, 63])
@pytest.mark.parametrize("item", [UINT, INT, QUINT, QINT])
def test_narrow_integers_are_one_stream_of_bits(item, bits):
    signed = item in (INT, QINT)
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    values = [low, high, 0, high // 2, low // 2, high, low]
    file = final((7,), bits, item, stream(values, bits))
    tensor = read_tensor_file(file)
    width = next(w for w in (8, 16, 32, 64) if w >= bits)
    assert tensor.array.dtype == np.dtype(f"{'i' if signed else 'u'}{width // 8}")
    assert tensor.array.tolist() == values
    assert (tensor.bits, tensor.signed, tensor.quantized) == (bits, signed, item in (QINT, QUINT))
    assert written(tensor.array, bits=bits, quantized=tensor.quantized) == file


def test_the_first_item_is_in_the_upper_bits():
    assert read_tensor(final((2,), 12, UINT, b"\xab\xc1\x23")).tolist() == [0xABC, 0x123]
    assert read_tensor(final((3,), 4, UINT, b"\x12\xf0")).tolist() == [1, 2, 15]


def test_streams_longer_than_a_block():
    values = np.random.default_rng(0).integers(0, 8, 3 * 65536 + 5).astype(np.uint8)
    data = stream(values, 3)
    assert np.array_equal(read_tensor(final(values.shape, 3, UINT, data)), values)
    assert bitstream.pack(values, 3) == data


def test_bool_items():
    bits = read_tensor_file(final((2, 3), 1, BOOL, b"\xa4"))
    assert bits.array.dtype == np.bool_
    assert bits.array.tolist() == [[True, False, True], [False, False, True]]
    assert (bits.bits, bits.signed, bits.quantized) == (1, False, False)
    octets = read_tensor(final((4,), 8, BOOL, b"\0\x01\xff\0"))
    assert octets.dtype == np.bool_
    assert octets.tolist() == [False, True, True, False]
    assert written(bits.array) == final((2, 3), 1, BOOL, b"\xa4")
    assert written(octets, bits=8) == final((4,), 8, BOOL, b"\0\x01\x01\0")


def test_signed_integers_of_version_1_0_0():
    tensor = read_tensor_file(final((2,), 16, UINT, b"\xff\xff\x02\x00", reserved=(1,)))
    assert tensor.array.dtype == np.int16
    assert tensor.array.tolist() == [-1, 2]
    assert tensor.signed
    assert read_tensor(final((2,), 4, UINT, b"\xf2", reserved=(1,))).tolist() == [-1, 2]


@pytest.mark.parametrize("shape", [(), (1,), (6,), (1, 2, 3), (2, 1, 1, 1, 3, 1, 1, 1)])
def test_ranks(shape):
    values = VALUES.reshape(-1)[: math.prod(shape)].reshape(shape)
    file = final(shape, 32, FLOAT, values.astype("<f4").tobytes())
    array = read_tensor(file)
    assert array.shape == shape
    assert np.array_equal(array, values)
    assert written(values) == file


@pytest.mark.parametrize("first", [0, 1], ids=["zero first", "one first"])
@pytest.mark.parametrize("surplus", range(1, 9))
@pytest.mark.parametrize("front", [True, False], ids=["front", "end"])
def test_surplus_bytes_are_never_taken_for_items(front, surplus, first):
    """A surplus is refused. The next test has the one that old tools wrote."""
    for item, bits in [(FLOAT, 32), (FLOAT, 16), (INT, 8), (QUINT, 64), (UINT, 4), (BOOL, 1)]:
        for shape in [(), (9,), (3, 2, 2), (2, 1, 1, 1, 3, 1, 1, 1)]:
            values = np.ones(math.prod(shape), np.uint64)
            values[0] = first
            if item == FLOAT:
                data = values.astype(f"<f{bits // 8}").tobytes()
            else:
                data = stream(values, bits)
            for stray in (bytes(surplus), b"\xff" * surplus):
                body = stray + data if front else data + stray
                if surplus == 4 and item == FLOAT and body.startswith(bytes(4)):
                    continue
                with pytest.raises(DataError, match=f"{surplus} bytes too many"):
                    read_tensor(final(shape, bits, item, body, length=len(data)))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u1", "i4", "u8"])
def test_headers_of_132_bytes_are_read_with_a_warning(dtype, tmp_path):
    """The Khronos tools wrote them until commit 63d494d of 2018-10-19, as here word by word."""
    values = np.arange(6).reshape(2, 3).astype(f"<{dtype}")
    words = [values.nbytes, 2, 2, 3, *[0] * 6, values.itemsize * 8, int(values.dtype.kind != "f")]
    signed = np.array([values.dtype.kind == "i", *[0] * 7], "<f4")  # "parameters" of the items
    file = b"N\xef\x01\x00" + np.array(words, "<u4").tobytes() + signed.tobytes()
    file += bytes(12 * 4) + values.tobytes()
    assert len(file) == 132 + values.nbytes
    (tmp_path / "old.dat").write_bytes(file)
    for source in (file, tmp_path / "old.dat"):
        with pytest.warns(UserWarning, match="before 2018-10-19: their bytes 128 to 131"):
            found = read_tensor(source)
        assert found.dtype == values.dtype
        np.testing.assert_array_equal(found, values)
    with pytest.raises(DataError, match="4 bytes too many"):
        read_tensor(file[:128] + b"\x01" + file[129:])
    with pytest.raises(DataError, match="truncated"):
        read_tensor(file[:-5])


# The provisional format


@pytest.mark.parametrize(
    ("item", "bits", "data", "expected"),
    [
        (0, 16, struct.pack("<2e", 1.5, -2), np.array([1.5, -2], "f2")),
        (0, 32, struct.pack("<2f", 1.5, -2), np.array([1.5, -2], "f4")),
        (0, 64, struct.pack("<2d", 1.5, -2), np.array([1.5, -2], "f8")),
        (2, 8, b"\xff\x02", np.array([-1, 2], "i1")),
        (2, 4, b"\xf2", np.array([-1, 2], "i1")),
        (3, 16, b"\xff\xff\x02\0", np.array([65535, 2], "u2")),
        (3, 6, b"\x04\x20", np.array([1, 2], "u1")),
    ],
)
def test_provisional_items(item, bits, data, expected):
    tensor = read_tensor_file(provisional((2,), bits, item, data))
    assert tensor.array.dtype == expected.dtype
    assert np.array_equal(tensor.array, expected)
    assert (tensor.bits, tensor.signed, tensor.quantized) == (bits, item != 3, False)


def test_provisional_quantisation_string():
    text = b"linear_quantize(min = -1.0, max = 1.0, bits = 3)"
    tensor = read_tensor_file(provisional((3,), 3, 1, stream([7, 0, 4], 3), text=text))
    assert tensor.array.tolist() == [7, 0, 4]
    assert (tensor.bits, tensor.signed, tensor.quantized) == (3, False, True)
    assert tensor.quantization == text.decode()


@pytest.mark.parametrize("rank", range(9))
def test_provisional_ranks(rank):
    shape = (2, 3, 1, 1, 1, 1, 1, 1)[:rank]
    values = VALUES.reshape(-1)[: math.prod(shape)].reshape(shape)
    assert np.array_equal(read_tensor(provisional(shape, 32, 0, values.tobytes())), values)


def test_provisional_file_of_the_size_of_a_final_one():
    """Header length 32 and 128 bytes of data look like a data length of 32 behind 128 bytes."""
    values = np.arange(32, dtype=np.float32).reshape(8, 4, 1, 1)
    file = provisional(values.shape, 32, 0, values.tobytes())
    assert len(file) == 128 + struct.unpack_from("<I", file, 4)[0]
    assert np.array_equal(read_tensor(file), values)


@pytest.mark.parametrize("rank", range(1, 9))
def test_final_file_whose_data_length_is_a_provisional_header_length(rank):
    shape = (4 + rank,) + (1,) * (rank - 1)
    values = np.arange(4 + rank, dtype=np.float32).reshape(shape)
    file = final(shape, 32, FLOAT, values.tobytes())
    assert struct.unpack_from("<I", file, 4)[0] == 16 + 4 * rank
    assert np.array_equal(read_tensor(file), values)


# Broken files

GOOD = VALUES.tobytes()
BROKEN = {
    "empty": (b"", "is empty, expected the magic number"),
    "magic": (b"PK" + bytes(150), "starts with 50 4b"),
    "version 9.9": (final((2, 3), 32, FLOAT, GOOD, version=(9, 9)), r"version 9\.9, expected 1\.0"),
    "version 1.1": (final((2, 3), 32, FLOAT, GOOD, version=(1, 1)), r"version 1\.1"),
    "version 0.0": (final((2, 3), 32, FLOAT, GOOD, version=(0, 0)), r"version 0\.0"),
    "rank": (final((2, 3), 32, FLOAT, GOOD, rank=9), "rank 9, expected at most 8"),
    "huge rank": (final((2, 3), 32, FLOAT, GOOD, rank=2**32 - 1), "rank 4294967295"),
    "extent 0": (final((2, 0, 3), 32, FLOAT, b""), r"extents \[2, 0, 3\]"),
    "too low rank": (final((2, 3), 32, FLOAT, GOOD, rank=1), "data length 24, but"),
    "item type": (final((2, 3), 32, 6, GOOD), "item type 6, expected one of 0 FLOAT"),
    "float 8": (final((2, 3), 8, FLOAT, bytes(6)), "8 bits for an item of type FLOAT"),
    "float 0": (final((2, 3), 0, FLOAT, b""), "0 bits for an item of type FLOAT"),
    "float 128": (final((1,), 128, FLOAT, bytes(16)), "128 bits .* expected 16, 32 or 64"),
    "int 0": (final((2, 3), 0, INT, b""), "0 bits for an item of type INT, expected 1 to 64"),
    "int 65": (final((8,), 65, INT, bytes(65)), "65 bits for an item of type INT"),
    "bits 2**32-1": (final((8,), 2**32 - 1, UINT, b""), "4294967295 bits"),
    "bool 2": (final((4,), 2, BOOL, b"\0"), "2 bits for an item of type BOOL, expected 1 or 8"),
    "data length": (final((2, 3), 32, FLOAT, GOOD, length=20), "data length 20, but .* 24 bytes"),
    "product": (final((2**32 - 1,) * 4, 32, FLOAT, GOOD), "data length 24, but extents"),
    "product of 0 mod 2**64": (final((2**31,) * 4, 32, FLOAT, b""), "data length 0, but extents"),
    "truncated": (final((2, 3), 32, FLOAT, GOOD[:-1], length=24), "truncated: 23 bytes follow"),
    "trailing": (final((2, 3), 32, FLOAT, GOOD + b"x", length=24), "1 bytes too many"),
    "trailing 5": (final((2, 3), 32, FLOAT, GOOD + bytes(5), length=24), "5 bytes too many"),
    "no data": (final((2**20, 2**10), 32, FLOAT, b"", length=2**32 - 1), "data length 4294967295"),
    "bomb": (final((2**30 - 1,), 32, FLOAT, b"", length=2**32 - 4), "truncated: 0 bytes follow"),
    "offset": (provisional((2, 3), 32, 0, GOOD, offset=1000000), "offset 1000000 of the data"),
    "text beyond": (provisional((1,), 8, 1, b"", text_length=9, offset=29), "after 20 of 29 bytes"),
    "text for float": (provisional((1,), 32, 0, bytes(4), text=b"a"), "that are not quantised"),
    "text not UTF-8": (provisional((1,), 8, 1, b"0", text=b"\xff"), "is not UTF-8"),
    "provisional type": (
        provisional((2,), 32, 4, bytes(8)),
        "item type 4, expected one of 0 float",
    ),
    "provisional float": (provisional((2,), 8, 0, bytes(2)), "8 bits for an item of type float"),
    "provisional int": (provisional((2,), 65, 2, bytes(17)), "65 bits for an item of type signed"),
    "provisional extent 0": (provisional((2, 0), 32, 0, b""), r"extents \[2, 0\]"),
    "provisional truncated": (provisional((2, 3), 32, 0, GOOD[1:]), "truncated: 23 bytes"),
    "provisional trailing": (provisional((2, 3), 32, 0, GOOD + bytes(4)), "4 bytes too many"),
    "provisional product": (provisional((2**32 - 1,) * 8, 32, 0, GOOD), "truncated: 24 bytes"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_broken_files_are_data_errors(broken):
    file, message = BROKEN[broken]
    with pytest.raises(DataError, match=message) as caught:
        read_tensor_file(file, name="a/w.dat")
    assert str(caught.value).startswith("a/w.dat: ")


@pytest.mark.parametrize(
    "file",
    [final((2, 3), 32, FLOAT, GOOD), provisional((2, 3), 8, 1, bytes(6), text=b"q(bits = 8)")],
    ids=["final", "provisional"],
)
def test_every_truncation_is_a_data_error(file):
    read_tensor(file)
    for size in range(len(file)):
        with pytest.raises(DataError):
            read_tensor(file[:size])


def test_vendor_item_types_are_unsupported():
    file = final((2, 32), 2**32 - 1, 0x5452_3040, bytes(36))
    with pytest.raises(UnsupportedError, match=r"item type 0x3040 of vendor 0x5452 \('TR'\)"):
        read_tensor(file)
    with pytest.raises(UnsupportedError, match=r"item type 0x0 of vendor 0x0001\n"):
        read_tensor(final((1,), 32, 0x0001_0000, bytes(4)))


def test_tensors_that_are_unpacked_count_and_views_do_not():
    view = Meter(Limits(expanded_bytes=0))
    assert read_tensor_file(final((2, 3), 32, FLOAT, GOOD), meter=view).array.shape == (2, 3)
    # A bool of one bit takes eight in memory, an integer of 12 bits 16.
    for file in (final((80,), 1, BOOL, bytes(10)), final((40,), 12, UINT, bytes(60))):
        read_tensor_file(file, meter=Meter(Limits(expanded_bytes=80)))
        with pytest.raises(LimitError, match="more than 79 bytes of memory") as caught:
            read_tensor(file, limits=Limits(expanded_bytes=79))
        assert "Limits(expanded_bytes=...)" in caught.value.hint


def test_limit_on_an_endless_file():
    class Endless(io.RawIOBase):
        name = "endless"
        given = 0

        def read(self, size=-1):
            self.given += size
            return bytes(size)

    file = Endless()
    with pytest.raises(LimitError, match=r"endless: .* more than 1000 bytes"):
        read_tensor_file(file, meter=Meter(Limits(expanded_bytes=1000)))
    assert file.given < 1 << 22


def test_out_of_memory_is_a_limit_error(monkeypatch):
    def exhausted(*_):
        raise MemoryError

    monkeypatch.setattr(bitstream, "unpack", exhausted)
    with pytest.raises(LimitError, match="does not fit into memory"):
        read_tensor(final((2,), 4, UINT, b"\x12"))


FILES = st.sampled_from(
    [
        final((2, 3), 32, FLOAT, GOOD),
        final((5,), 3, INT, stream([0, 1, 2, 3, -4], 3)),
        final((2, 3), 1, BOOL, b"\xa4"),
        provisional((2, 3), 32, 0, GOOD),
        provisional((8, 4, 1, 1), 32, 0, bytes(128)),
        provisional((2, 3), 8, 1, bytes(6), text=b"q(bits = 8)"),
    ]
)


@given(FILES, st.data())
def test_mutated_files_end_in_an_error_or_a_tensor(file, data):
    mutated = bytearray(file)
    for _ in range(data.draw(st.integers(1, 4))):
        mutated[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 3))
    try:
        array = read_tensor(bytes(mutated[: len(mutated) - cut]))
    except NnefError:
        return
    assert array.nbytes <= 64 * len(mutated)


@given(st.binary(max_size=300))
def test_random_bytes_end_in_an_error_or_a_tensor(data):
    for start in (b"", b"N\xef\x01\x00"):
        try:
            read_tensor(start + data)
        except NnefError as error:
            assert error.message


# Where the bytes come from


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, io.BytesIO, np.array])
def test_sources_in_memory(kind):
    file = final((2, 3), 32, FLOAT, GOOD)
    source = np.frombuffer(file, np.uint8) if kind is np.array else kind(file)
    array = read_tensor(source)
    assert np.array_equal(array, VALUES)
    assert not array.flags.writeable


def test_bytes_are_not_copied():
    file = final((2, 3), 32, FLOAT, GOOD)
    assert storage_of(read_tensor(file)) is file
    # Behind a provisional header the items start anywhere; then a copy makes them loadable.
    odd = provisional((2,), 64, 0, struct.pack("<2d", 1, 2))
    assert read_tensor(bytearray(b"x" + odd)[1:]).flags.aligned


def test_file_object_is_read_from_where_it_is():
    pipe_in, pipe_out = os.pipe()
    with os.fdopen(pipe_in, "rb") as source:
        with os.fdopen(pipe_out, "wb") as sink:
            sink.write(b"skipped" + final((2, 3), 32, FLOAT, GOOD))
        assert source.read(7) == b"skipped"
        assert np.array_equal(read_tensor(source), VALUES)


@pytest.mark.parametrize("kind", [str, Path])
def test_small_files_are_read_and_large_ones_are_mapped(tmp_path, kind):
    small, large = tmp_path / "small.dat", tmp_path / "large.dat"
    small.write_bytes(final((2, 3), 32, FLOAT, GOOD))
    values = np.arange(files.MAP_FROM // 4, dtype="<f4")
    large.write_bytes(final(values.shape, 32, FLOAT, values.tobytes()))
    assert isinstance(storage_of(read_tensor(kind(small))), bytes)
    mapped = read_tensor(kind(large))
    assert isinstance(storage_of(mapped), mmap.mmap)
    assert np.array_equal(mapped, values)
    assert not mapped.flags.writeable


def test_names_in_errors(tmp_path):
    path = tmp_path / "w.dat"
    path.write_bytes(b"no tensor")
    with pytest.raises(DataError, match=f"^{path}: starts with"):
        read_tensor(path)
    with pytest.raises(DataError, match=f"^{path}: starts with"), path.open("rb") as file:
        read_tensor(file)


def test_other_sources(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing\.dat"):
        read_tensor(tmp_path / "missing.dat")
    with pytest.raises(DataError, match="is a folder; only regular files"):
        read_tensor(tmp_path)
    os.mkfifo(tmp_path / "fifo.dat")
    with pytest.raises(DataError, match="is a fifo; only regular files"):
        read_tensor(tmp_path / "fifo.dat")
    with pytest.raises(TypeError, match="source must be a path, bytes or a binary file"):
        read_tensor(5)
    with pytest.raises(TypeError, match="binary mode"):
        read_tensor(io.StringIO("text"))


# Writing


def test_arrays_are_converted_to_little_endian_and_row_major():
    expected = final((2, 3), 32, FLOAT, GOOD)
    assert written(VALUES.astype(">f4")) == expected
    assert written(np.asfortranarray(VALUES)) == expected
    assert written(np.repeat(VALUES, 2, axis=1)[:, ::2]) == expected
    assert written([1.5, -2]) == final((2,), 64, FLOAT, struct.pack("<2d", 1.5, -2))
    assert written(np.asfortranarray(VALUES > 0)) == final((2, 3), 1, BOOL, b"\xb8")


def test_bfloat16_is_written_as_float32():
    assert written(VALUES.astype(ml_dtypes.bfloat16)) == final(
        (2, 3), 32, FLOAT, VALUES.astype(ml_dtypes.bfloat16).astype("<f4").tobytes()
    )


def test_jax_arrays_are_written():
    jnp = pytest.importorskip("jax.numpy")
    assert written(jnp.asarray(VALUES)) == final((2, 3), 32, FLOAT, GOOD)


def test_wider_bits_than_those_of_the_array():
    values = np.array([-1, 5], np.int8)
    assert written(values, bits=32) == final((2,), 32, INT, struct.pack("<2i", -1, 5))
    assert written(values, bits=12) == final((2,), 12, INT, b"\xff\xf0\x05")


@pytest.mark.parametrize(
    ("array", "options", "message"),
    [
        (np.zeros(2, np.complex64), {}, "dtype complex64"),
        (np.array([None, "a"], object), {}, "dtype object"),
        (np.array(["a"]), {}, "dtype <U1"),
        (np.zeros(2, "M8[s]"), {}, "dtype datetime64"),
        (np.zeros(2, np.longdouble), {}, "dtype float128|dtype longdouble"),
        (np.zeros(2, ml_dtypes.float8_e5m2), {}, "dtype float8_e5m2"),
        (np.zeros(2, ml_dtypes.int4), {}, "dtype int4"),
        (np.zeros(2, np.float32), {"bits": 16}, "float32 cannot be stored in 16 bits"),
        (np.zeros(2, np.bool_), {"bits": 2}, "bool cannot be stored in 2 bits"),
        (np.zeros(2, np.int8), {"bits": 0}, "int8 cannot be stored in 0 bits"),
        (np.zeros(2, np.int8), {"bits": 65}, "int8 cannot be stored in 65 bits"),
        (np.zeros(2, np.float32), {"quantized": True}, "codes are integers"),
        (np.zeros(2, np.bool_), {"quantized": True}, "codes are integers"),
        (np.zeros((1,) * 9), {}, "rank 9, but a tensor file has at most 8"),
        (np.zeros((2, 0)), {}, r"extents \[2, 0\]"),
        (np.array([0, 16], np.uint8), {"bits": 4}, "values from 0 to 16 do not fit 4 bits"),
        (np.array([-9, 0]), {"bits": 4}, "values from -9 to 0 do not fit 4 bits.* -8 to 7"),
        (np.array([-8, 8]), {"bits": 4}, "values from -8 to 8 do not fit"),
        (np.broadcast_to(np.float32(0), (1 << 30,)), {}, "less than 4 GiB"),
    ],
)
def test_arrays_that_a_file_cannot_hold(tmp_path, array, options, message):
    with pytest.raises(DataError, match=message):
        write_tensor(tmp_path / "w.dat", array, **options)
    assert list(tmp_path.iterdir()) == []


def test_writing_replaces_a_file_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "w.dat"
    write_tensor(str(path), VALUES)
    before = path.read_bytes()
    assert before == final((2, 3), 32, FLOAT, GOOD)
    plain = tmp_path / "plain"
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode
    plain.unlink()

    def failing(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="disk full"):
        patch.setattr(os, "replace", failing)
        write_tensor(path, VALUES + 1)
    assert path.read_bytes() == before
    write_tensor(path, VALUES + 1)
    assert np.array_equal(read_tensor(path), VALUES + 1)
    assert [p.name for p in tmp_path.iterdir()] == ["w.dat"]


STORED = st.sampled_from([np.dtype(c) for c in ("?", *"efd", *"bhiqBHIQ")])


@given(
    STORED.flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=8, max_side=3))
    )
)
def test_what_is_written_is_read_again(array):
    again = read_tensor(written(array))
    assert again.dtype == array.dtype
    assert again.shape == array.shape
    assert again.tobytes() == array.tobytes()


# Other implementations


@pytest.mark.parametrize(
    ("dtype", "quantized"),
    [
        *((dtype, False) for dtype in ("f2", "f4", "f8")),
        *((f"{k}{n}", quantized) for k in "iu" for n in "1248" for quantized in (False, True)),
    ],
)
def test_against_the_khronos_package(tmp_path, dtype, quantized):
    nnef = pytest.importorskip("nnef")
    values = np.array([[0, 1, 2], [3, 100, 127]], dtype)
    ours, theirs = tmp_path / "ours.dat", tmp_path / "theirs.dat"
    write_tensor(ours, values, quantized=quantized)
    with theirs.open("wb") as file:
        nnef.write_tensor(file, values, quantized=quantized)
    assert ours.read_bytes() == theirs.read_bytes()
    tensor = read_tensor_file(theirs)
    with ours.open("rb") as file:
        array, flag = nnef.read_tensor(file, return_quantization=True)
    assert flag == tensor.quantized == quantized
    assert array.dtype == tensor.array.dtype
    assert np.array_equal(array, tensor.array)


def test_bool_against_the_khronos_package(tmp_path):
    nnef = pytest.importorskip("nnef")
    values = np.array([[True, False, True], [True, True, False], [False, False, True]])
    path = tmp_path / "w.dat"
    with path.open("wb") as file:
        nnef.write_tensor(file, values)
    assert np.array_equal(read_tensor(path), values)
    assert path.read_bytes() == written(values)


def test_shared_cases():
    """Files of other writers: the packed values are those that the manifest's notes spell out."""
    if not CASES.is_dir():
        pytest.skip("the shared cases are not there")
    model = CASES / "nnef" / "cases"
    expected = {
        "dat_uint4": [1, 2, 3, 15, 0, 7],
        "dat_bool1": [1, 0, 1, 0, 0, 1],
        "dat_int16": [1, -2, 3, 100, -128, 127],
        "dat_uint_reserved_signed": [1, -2, 3, 100, -128, 127],
        "dat_shape_empty": [2.5],
    }
    for case, values in expected.items():
        assert read_tensor(model / case / "model" / "w.dat").reshape(-1).tolist() == values
    tensors = list(CASES.glob("nnef*/**/*.dat"))
    assert tensors
    for path in tensors:
        assert np.isfinite(read_tensor(path)).all()
