"""Containers: every kind of source, every attack that a hostile one can try, and writing them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import mmap
import os
import socket
import struct
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnef_jax.errors import ArchiveError, DataError, LimitError, NnefError, NnefSyntaxError
from nnef_jax.limits import MEMBER_STEPS, Limits, Meter
from nnef_jax.storage import files
from nnef_jax.storage.archive import open_archive
from nnef_jax.storage.labels import member_of
from nnef_jax.storage.tensorfile import TensorFile, read_tensor, read_tensor_file, write_tensor
from nnef_jax.storage.writer import write_members

CASES = Path(__file__).parents[3] / "shared" / "cases"
LABELS = ("a/w", "b/v", "b/a/w", "w")
GRAPH = b"version 1.0;\ngraph G( x ) -> ( y ) {\n%b}\n" % b"".join(
    b"v = variable(label = '%b', shape = [1]);\n" % label.encode() for label in LABELS
)
GRAPH_SIZE = b"%011o\0" % len(GRAPH)
WEIGHT = b"the bytes of a weight"
MODEL = {"graph.nnef": GRAPH, "a/w.dat": WEIGHT}
COMPRESSIONS = {"plain": bytes, "gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}


def tar(members=MODEL, *, extra=(), tar_format=tarfile.PAX_FORMAT):
    """A tar archive of names and bytes; `extra` are tarfile's own descriptions of odd members."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tar_format) as archive:
        for name, data in members.items() if isinstance(members, dict) else members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for info in extra:
            archive.addfile(info)
    return file.getvalue()


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def header(name=b"graph.nnef", *, kind=b"0", size=GRAPH_SIZE, signed=False):
    """The header of a member, by hand, in the format from before POSIX."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:108] = b"0000644\0"
    block[124 : 124 + len(size)] = size
    block[148:156] = b" " * 8
    block[156:157] = kind
    total = sum(struct.unpack("512b", block)) if signed else sum(block)
    block[148:156] = b"%06o\0 " % total
    return bytes(block)


def padded(data):
    return data + bytes(-len(data) % 512)


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model"
    (path / "a").mkdir(parents=True)
    (path / "graph.nnef").write_bytes(GRAPH)
    (path / "a" / "w.dat").write_bytes(WEIGHT)
    return path


def check(archive):
    with archive:
        assert archive.names() == ["a/w.dat", "graph.nnef"]
        assert archive.read_text("graph.nnef").text == GRAPH.decode()
        assert archive.open_tensor("a/w.dat") == WEIGHT
        assert archive.open_tensor("./a//w.dat").readonly
        assert archive.exists("graph.nnef")
        assert archive.exists("a/w.dat")
        assert not archive.exists("a")
        assert not archive.exists("graph.quant")


# Sources


@pytest.mark.parametrize("kind", [str, Path, os.fsencode])
def test_folder(model, kind):
    # A path of bytes comes from PathLike only; bytes themselves are the archive.
    class Encoded:
        def __fspath__(self):
            return os.fsencode(model)

    source = Encoded() if kind is os.fsencode else kind(model)
    archive = open_archive(source, Meter())
    assert archive.name == str(model)
    assert archive.read_text("graph.nnef").name == str(model / "graph.nnef")
    check(archive)


def test_graph_file_stands_for_its_folder(model, monkeypatch):
    check(open_archive(model / "graph.nnef"))
    monkeypatch.chdir(model)
    archive = open_archive("graph.nnef")
    assert archive.read_text("graph.nnef").name == "graph.nnef"
    check(archive)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("name", ["m.tgz", "m.tar", "m.dat", "graph.nnef"])
def test_archive_file_is_told_by_its_content(tmp_path, compression, name):
    path = tmp_path / name
    path.write_bytes(COMPRESSIONS[compression](tar()))
    archive = open_archive(path)
    assert archive.name == str(path)
    assert archive.location("a/w.dat") == f"{path}/a/w.dat"
    check(archive)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, io.BytesIO])
def test_archive_in_memory(compression, kind):
    check(open_archive(kind(COMPRESSIONS[compression](tar()))))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_file_object_is_read_from_where_it_is(compression):
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source:
        with os.fdopen(writing, "wb") as sink:
            sink.write(b"skipped" + COMPRESSIONS[compression](tar()))
        assert source.read(7) == b"skipped"
        check(open_archive(source))
        assert not source.closed


def test_gzip_of_several_streams():
    data = tar()
    check(open_archive(gzip.compress(data[:700]) + gzip.compress(data[700:])))


@pytest.mark.parametrize("prefix", ["./", "model/", "./model/", "model/./", "model//"])
def test_network_in_a_folder_of_the_archive(prefix):
    check(open_archive(tar({prefix + name: data for name, data in MODEL.items()})))


def test_folder_entries_are_no_members():
    entries = [special(name, tarfile.DIRTYPE) for name in ("model", "model/a", "model/graph.nnef")]
    check(open_archive(tar({f"model/{k}": v for k, v in MODEL.items()}, extra=entries)))
    old = header(b"a/w.dat/", kind=b"\0", size=b"0\0")
    check(open_archive(old + tar()))


def test_members_beside_the_folder_of_the_network_are_left_out():
    members = {"model/" + name: data for name, data in MODEL.items()}
    check(open_archive(tar(members | {"._model": b"", "other/w.dat": b"", "model2/w.dat": b""})))


def test_graph_at_the_top_wins():
    with open_archive(tar(MODEL | {"sub/graph.nnef": b"another"})) as archive:
        assert archive.read_text("graph.nnef").text == GRAPH.decode()
        assert archive.read_text("sub/graph.nnef").text == "another"


def test_members_of_folders_may_come_before_the_network() -> None:
    members = tar({"data/w.bin": WEIGHT, "net.onnx": b"a model"})
    with open_archive(members, graphs=("*.onnx",)) as archive:
        assert archive.read_text("net.onnx").text == "a model"


def test_several_networks_are_refused():
    with pytest.raises(ArchiveError, match=r"several networks: a/graph\.nnef, b/graph\.nnef"):
        open_archive(tar({"a/graph.nnef": GRAPH, "b/graph.nnef": GRAPH}))


@pytest.mark.parametrize("tar_format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("name", ["x" * 99, "x" * 100, "long/" * 60 + "w.dat", "größe/w.dat"])
def test_long_and_foreign_names(tar_format, name):
    with open_archive(tar(MODEL | {name: b"data"}, tar_format=tar_format)) as archive:
        assert archive.names() == sorted([*MODEL, name])
        assert archive.open_tensor(name) == b"data"


def test_prefix_field_of_posix_headers():
    name = "p" * 90 + "/" + "n" * 90
    data = tar(MODEL | {name: b"data"}, tar_format=tarfile.USTAR_FORMAT)
    assert b"n" * 90 + b"/" not in data
    assert open_archive(data).open_tensor(name) == b"data"


@pytest.mark.parametrize(
    "first",
    [
        header(),
        header(kind=b"\0"),
        header(kind=b"7"),
        header(signed=True, name=b"graph.nnef\0\xff\xff"),
        header(size=b"\x80" + len(GRAPH).to_bytes(11, "big")),
        header(size=b"  %o " % len(GRAPH)),
    ],
    ids=["v7", "nul", "contiguous", "signed sum", "base 256", "spaces"],
)
def test_headers_of_other_writers(first):
    archive = open_archive(first + padded(GRAPH) + bytes(1024))
    assert archive.read_text("graph.nnef").text == GRAPH.decode()
    # The end may lack its blocks of zeros, and the last member its padding.
    archive = open_archive(first + GRAPH)
    assert archive.read_text("graph.nnef").text == GRAPH.decode()


def test_size_in_an_extended_header():
    record = b" size=%d\n" % len(GRAPH)
    record = b"%d" % (len(record) + 2) + record
    extended = header(b"pax", kind=b"x", size=b"%o\0" % len(record)) + padded(record)
    data = extended + header(size=b"0\0") + padded(GRAPH) + tar({"w.dat": WEIGHT})
    with open_archive(data) as archive:
        assert archive.read_text("graph.nnef").text == GRAPH.decode()
        assert archive.open_tensor("w.dat") == WEIGHT


def test_global_headers_are_passed_over():
    record = b"20 comment=whatever\n"
    check(open_archive(header(b"g", kind=b"g", size=b"24\0") + padded(record) + tar()))


def test_of_two_members_of_one_name_the_last_counts():
    members = [("graph.nnef", b"first"), ("w.dat", WEIGHT), ("./graph.nnef", GRAPH)]
    with open_archive(tar(members)) as archive:
        assert archive.names() == ["graph.nnef", "w.dat"]
        assert archive.read_text("graph.nnef").text == GRAPH.decode()
    link = special("graph.nnef", tarfile.SYMTYPE, "w.dat")
    with pytest.raises(ArchiveError, match="is a symbolic link"):
        open_archive(tar(extra=[link])).read_text("graph.nnef")


# What is no container


def test_no_graph():
    with pytest.raises(
        ArchiveError, match=r"has no graph\.nnef; it holds w0, w1, w2, w3, w4, \.\.\."
    ):
        open_archive(tar({f"w{i}": b"" for i in range(6)}))
    with pytest.raises(ArchiveError, match=r"has no graph.nnef; it holds x/y/graph.nnef\n"):
        open_archive(tar({"x/y/graph.nnef": GRAPH}))
    with pytest.raises(ArchiveError, match="it holds nothing"):
        open_archive(tar({}))


def test_folder_without_graph(tmp_path):
    with pytest.raises(ArchiveError, match=f"^{tmp_path} has no graph.nnef; it holds nothing"):
        open_archive(tmp_path)
    (tmp_path / "w.dat").touch()
    with pytest.raises(ArchiveError, match=r"it holds w\.dat"):
        open_archive(tmp_path)
    (tmp_path / "graph.nnef").mkdir()
    with pytest.raises(ArchiveError, match=r"has no graph\.nnef"):
        open_archive(tmp_path)


@pytest.mark.parametrize("data", [b"text", b"text" * 200, b"\x07" * 511, b"\xff" * 2000])
def test_no_archive(tmp_path, data):
    path = tmp_path / "m.tgz"
    path.write_bytes(data)
    for source in (data, path):
        with pytest.raises(ArchiveError, match="is not a tar archive, compressed or not"):
            open_archive(source)
    with pytest.raises(ArchiveError, match="is not a tar archive"):
        open_archive(gzip.compress(data))


def test_empty_archive(tmp_path):
    (tmp_path / "m.tgz").touch()
    for source in (b"", gzip.compress(b""), tmp_path / "m.tgz"):
        with pytest.raises(ArchiveError, match="is empty, not a tar archive"):
            open_archive(source)


def test_other_formats_are_named():
    with pytest.raises(ArchiveError, match="it is compressed by zstandard"):
        open_archive(b"\x28\xb5\x2f\xfd" + bytes(600))


def test_paths_that_are_not_there(tmp_path, model):
    for path in (tmp_path / "missing", model / "sub" / "graph.nnef", ""):
        with pytest.raises(FileNotFoundError):
            open_archive(path)
    with pytest.raises(ArchiveError, match="NUL"):
        open_archive("a\0b")


def test_other_sources(tmp_path):
    with pytest.raises(TypeError, match="expected a path, bytes or a binary file, not int"):
        open_archive(5)
    with pytest.raises(TypeError, match="binary mode"):
        open_archive(io.StringIO("text"))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ArchiveError, match="is a fifo; only regular files"):
        open_archive(tmp_path / "fifo")
    with pytest.raises(ArchiveError, match="is a character device"):
        open_archive("/dev/zero")


def test_a_closed_archive_is_not_read(model):
    with open_archive(model) as archive:
        data = archive.open_tensor("a/w.dat")
    assert data == WEIGHT
    with pytest.raises(ValueError, match="is closed"):
        archive.names()


# Text


@pytest.mark.parametrize("as_folder", [True, False])
@pytest.mark.parametrize(
    ("data", "place", "message"),
    [
        (b"version 1.0;\n\xc3\xa4 \xff = 1;", "2:3", "byte 0xff is not UTF-8 text"),
        (b"\x80", "1:1", "byte 0x80 is not UTF-8 text"),
        (b"ab\xe2\x82", "1:3", "byte 0xe2 is not UTF-8 text"),
        (b"\xed\xa0\x80", "1:1", "byte 0xed is not UTF-8 text"),
        ("a\nöb\0c".encode(), "2:3", "NUL character in the text"),
    ],
)
def test_text_that_is_none(tmp_path, as_folder, data, place, message):
    (tmp_path / "graph.nnef").write_bytes(data)
    archive = open_archive(tmp_path if as_folder else tar({"graph.nnef": data}))
    with pytest.raises(NnefSyntaxError, match=message) as caught:
        archive.read_text("graph.nnef")
    name = f"{tmp_path}/graph.nnef" if as_folder else "the archive/graph.nnef"
    assert str(caught.value.span) == f"{name}:{place}"


def test_a_text_pays_a_step_for_each_byte(model):
    for source in (model, tar()):
        meter = Meter()
        archive = open_archive(source, meter)
        opened = meter.steps
        assert archive.read_text("graph.nnef").text == GRAPH.decode()
        assert meter.steps == opened + len(GRAPH)
        archive = open_archive(source, Meter(Limits(steps=meter.steps - 1)))
        with pytest.raises(LimitError, match=r"graph\.nnef takes more than") as caught:
            archive.read_text("graph.nnef")
        assert "Limits(steps=...)" in caught.value.hint


# Hostile archives


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (tarfile.SYMTYPE, "is a symbolic link; only regular members are read"),
        (tarfile.LNKTYPE, "is a hard link"),
        (tarfile.CHRTYPE, "is a character device"),
        (tarfile.BLKTYPE, "is a block device"),
        (tarfile.FIFOTYPE, "is a fifo"),
        (tarfile.GNUTYPE_SPARSE, "is a sparse file"),
        (b"V", "is of type 'V'"),
    ],
)
@pytest.mark.parametrize("target", ["/etc/hostname", "graph.nnef", "w.dat"])
def test_special_members_are_never_followed(kind, message, target):
    with open_archive(tar(extra=[special("w.dat", kind, target)])) as archive:
        assert archive.exists("w.dat")
        with pytest.raises(ArchiveError, match=f"'the archive/w.dat' {message}"):
            archive.open_tensor("w.dat")
        assert archive.open_tensor("a/w.dat") == WEIGHT


def test_sparse_members_of_posix_archives():
    info = tarfile.TarInfo("GNUSparseFile.0/w.dat")
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
    with open_archive(tar(extra=[info])) as archive, pytest.raises(ArchiveError, match="sparse"):
        archive.open_tensor("GNUSparseFile.0/w.dat")


def test_linked_folders_in_archives_lead_nowhere():
    link = special("etc", tarfile.SYMTYPE, "/etc")
    with open_archive(tar(extra=[link])) as archive:
        assert not archive.exists("etc/hostname")
        with pytest.raises(ArchiveError, match="there is no member 'etc/hostname'"):
            archive.open_tensor("etc/hostname")


EVIL = ["../evil", "/tmp/evil", "a/../../evil", "a/..", "..", ".", "/", "./", "..\\evil"]


@pytest.mark.parametrize("name", EVIL)
def test_evil_names_do_no_harm(tmp_path, monkeypatch, name):
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    with open_archive(tar([*MODEL.items(), (name, b"evil")])) as archive:
        assert archive.read_text("graph.nnef").text == GRAPH.decode()
        assert archive.open_tensor("a/w.dat") == WEIGHT
        for asked in ("evil", "tmp/evil", "/tmp/evil", "../evil", "a/../graph.nnef", ".."):
            assert not archive.exists(asked)
            with pytest.raises(ArchiveError, match="there is no member"):
                archive.open_tensor(asked)
    assert list(tmp_path.rglob("*")) == [inside]


@pytest.mark.parametrize(
    "name", ["../graph.nnef", "/graph.nnef", "/m/graph.nnef", "../m/graph.nnef"]
)
def test_a_graph_outside_of_the_archive_is_none(name):
    with pytest.raises(ArchiveError, match=r"has no graph\.nnef; it holds nothing"):
        open_archive(tar({name: GRAPH}))


@pytest.mark.parametrize("compression", ["gzip", "bzip2", "xz"])
@pytest.mark.parametrize(("limit", "bound"), [("expanded_bytes", 1 << 20), ("steps", 1 << 13)])
def test_bombs_are_found_out_while_they_expand(compression, limit, bound):
    bomb = COMPRESSIONS[compression](tar({"graph.nnef": bytes(40 << 20)}))
    tracemalloc.start()
    with pytest.raises(LimitError) as caught:
        open_archive(bomb, Meter(Limits(**{limit: bound})))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 36 << 20  # of which xz takes a window of 8 MiB
    assert f"Limits({limit}=...)" in caught.value.hint


@pytest.mark.parametrize("compression", ["gzip", "bzip2", "xz"])
def test_archives_may_be_far_smaller_than_what_they_hold(compression):
    data = tar(MODEL | {"w.dat": bytes(40 << 20)})
    archive = open_archive(COMPRESSIONS[compression](data))
    assert len(archive.open_tensor("w.dat")) == 40 << 20


def test_a_compressed_file_with_a_huge_window_is_refused():
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30, "preset": 0}]
    bomb = lzma.compress(tar(), filters=filters)
    with pytest.raises(ArchiveError, match="broken or truncated compression: Memory usage limit"):
        open_archive(bomb)


def test_what_is_read_counts_and_what_is_mapped_does_not(tmp_path):
    data = tar(MODEL | {"w.dat": bytes(files.MAP_FROM)})
    path = tmp_path / "m.tar"
    path.write_bytes(data)
    small, enough = Limits(expanded_bytes=len(data) - 1), Limits(expanded_bytes=len(data))
    for source in (data, path):
        open_archive(source, Meter(small))
    open_archive(io.BytesIO(data), Meter(enough))
    with pytest.raises(LimitError, match=f"than {len(data) - 1} bytes of memory"):
        open_archive(io.BytesIO(data), Meter(small))


def test_each_member_is_paid_for(model):
    data = tar({f"w{i}": b"" for i in range(9)} | MODEL)
    for source, count in ((data, len(MODEL) + 9), (model, len(MODEL))):
        meter = Meter()
        names = open_archive(source, meter).names()
        assert meter.steps >= MEMBER_STEPS * count == MEMBER_STEPS * len(names)
        with pytest.raises(LimitError, match="steps"):
            open_archive(source, Meter(Limits(steps=MEMBER_STEPS * count - 1))).names()


# Broken archives


@pytest.mark.parametrize("compression", ["gzip", "bzip2", "xz"])
def test_every_truncation_of_a_compressed_archive(compression):
    data = COMPRESSIONS[compression](tar())
    for size in range(len(data)):
        with pytest.raises(ArchiveError):
            open_archive(data[:size])


def test_truncations_of_a_plain_archive():
    """Cut anywhere in a header or in data; where a header would start nothing shows."""
    data = tar(tar_format=tarfile.USTAR_FORMAT)
    whole = {512 + len(GRAPH), 1024, 1024 + 512 + len(WEIGHT), 2048}
    interesting = {0, 1, 100, 511, 512, 513, 1023, 1024, 1025, 1300, 1535, 1536, 1537, 2047, 2048}
    for size in interesting | whole | {size - 1 for size in whole}:
        complete = 512 + len(GRAPH) <= size <= 1024 or size >= 1536 + len(WEIGHT)
        if complete:
            assert open_archive(data[:size]).read_text("graph.nnef").text == GRAPH.decode()
        else:
            with pytest.raises(ArchiveError):
                open_archive(data[:size])


def test_broken_compression():
    for compression in ("gzip", "bzip2", "xz"):
        data = bytearray(COMPRESSIONS[compression](tar()))
        data[-12] ^= 0xFF
        with pytest.raises(ArchiveError, match="broken or truncated compression"):
            open_archive(data)
    with pytest.raises(ArchiveError, match="broken or truncated compression"):
        open_archive(gzip.compress(tar()) + b"garbage")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (tar()[:1024] + b"x" * 512, "the header at byte 1024 is broken"),
        (header() + padded(GRAPH) + header()[:300], "the header at byte 1024 is truncated"),
        (header(size=b"77777777777\0"), "truncated: 0 of 8589934591 bytes"),
        (header(size=b"\x80" + b"\xff" * 11), "truncated: 0 of"),
        (header(size=b"\xff" * 12), "is not an octal number"),
        (header(size=b"-0000000001\0"), "is not an octal number"),
        (header(size=b"9\0"), "header at byte 0"),
        (header(kind=b"L", size=b"77777777\0") + bytes(0o77777777), "an extended header of"),
        (header(kind=b"x", size=b"5\0") + padded(b"3 a=b"), "record of the extended header"),
        (header(kind=b"x", size=b"5\0") + padded(b"a b=c"), "record of the extended header"),
        (header(kind=b"x", size=b"6\0") + padded(b"99 a=\n"), "record of the extended header"),
        (header(kind=b"x", size=b"5\0") + padded(b"0 a=\n"), "record of the extended header"),
        (header(kind=b"x", size=b"12\0") + padded(b"10 size=-\n"), "'-' is not a size"),
        (header(kind=b"x", size=b"36\0") + padded(b"30 size=" + b"9" * 21 + b"\n"), "not a size"),
    ],
)
def test_broken_headers(data, message):
    with pytest.raises(ArchiveError, match=message):
        open_archive(data)


ARCHIVES = [
    compress(tar(extra=[special("w.dat", tarfile.SYMTYPE, "a/w.dat")], tar_format=tar_format))
    for compress in (bytes, gzip.compress, bz2.compress, lzma.compress)
    for tar_format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)
]
ARCHIVES += [tar(MODEL | {"long/" * 40 + "w.dat": WEIGHT}, tar_format=f) for f in (1, 2)]


@given(st.sampled_from(ARCHIVES), st.data())
def test_mutated_archives_end_in_an_error_or_a_model(data, draw):
    mutated = bytearray(data)
    end = min(len(data), 5000)
    for _ in range(draw.draw(st.integers(1, 5))):
        mutated[draw.draw(st.integers(0, end - 1))] = draw.draw(st.integers(0, 255))
    try:
        with open_archive(mutated) as archive:
            assert len(archive.read_text("graph.nnef").text) <= len(data)
            for name in archive.names():
                archive.open_tensor(name)
    except NnefError as error:
        assert str(error)


# Hostile folders


def test_links_within_the_folder_are_followed(model):
    (model / "v.dat").symlink_to("a/w.dat")
    (model / "b").symlink_to("a", target_is_directory=True)
    with open_archive(model) as archive:
        assert archive.open_tensor("v.dat") == WEIGHT
        assert archive.open_tensor("b/w.dat") == WEIGHT
        assert archive.names() == ["a/w.dat", "b", "graph.nnef", "v.dat"]


def test_a_linked_folder_is_a_container(tmp_path, model):
    (tmp_path / "link").symlink_to(model)
    check(open_archive(tmp_path / "link"))


def test_links_that_leave_the_folder_are_refused(tmp_path, model):
    (tmp_path / "model2").mkdir()
    (tmp_path / "model2" / "secret.dat").write_bytes(b"secret")
    (model / "relative.dat").symlink_to("../model2/secret.dat")
    (model / "absolute.dat").symlink_to(tmp_path / "model2" / "secret.dat")
    (model / "chain.dat").symlink_to("absolute.dat")
    (model / "linked").symlink_to(tmp_path / "model2", target_is_directory=True)
    with open_archive(model) as archive:
        for name in ("relative.dat", "absolute.dat", "chain.dat", "linked/secret.dat"):
            with pytest.raises(
                ArchiveError, match=f"{name}' is a symbolic link that leads outside"
            ):
                archive.open_tensor(name)
        assert "linked/secret.dat" not in archive.names()
    (model / "graph.nnef").unlink()
    (model / "graph.nnef").symlink_to(tmp_path / "model2" / "secret.dat")
    with pytest.raises(ArchiveError, match="leads outside"):
        open_archive(model).read_text("graph.nnef")


@pytest.mark.parametrize(
    "name", ["../secret.dat", "a/../../secret.dat", "a/../graph.nnef", "", "."]
)
def test_names_that_leave_the_folder_match_nothing(tmp_path, model, name):
    (tmp_path / "secret.dat").write_bytes(b"secret")
    with open_archive(model) as archive:
        for asked in (name, str(tmp_path / "secret.dat")):
            assert not archive.exists(asked)
            with pytest.raises(ArchiveError, match="there is no member"):
                archive.open_tensor(asked)


def test_names_that_no_file_can_have(model):
    (model / "loop.dat").symlink_to("loop.dat")
    with open_archive(model) as archive:
        for name, message in {
            "missing.dat": "there is no file '.*/model/missing.dat'",
            "graph.nnef/w.dat": "there is no file",
            "x" * 5000: "cannot be read",
            "a\0b": "cannot be read",
            "loop.dat": "cannot be read",
            "\ud800.dat": "cannot be read",
        }.items():
            assert archive.exists(name) == (name == "loop.dat")
            with pytest.raises(ArchiveError, match=message):
                archive.open_tensor(name)


def test_special_files_are_refused_without_waiting(model):
    os.mkfifo(model / "fifo.dat")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(model)  # the path of a socket must be short
        try:
            listener.bind("socket.dat")
        finally:
            os.chdir(here)
        with open_archive(model) as archive:
            for name, kind in {"fifo.dat": "fifo", "socket.dat": "socket", "a": "folder"}.items():
                with pytest.raises(ArchiveError, match=f"is a {kind}; only regular files are read"):
                    archive.open_tensor(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="making a device needs to be root")
def test_devices_are_refused(model):
    try:
        os.mknod(model / "zero.dat", 0o20666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("making a device is not allowed here")
    with pytest.raises(ArchiveError, match="is a character device"):
        open_archive(model).open_tensor("zero.dat")


# Copies


def test_large_files_of_a_folder_are_mapped(model):
    values = np.arange(files.MAP_FROM // 4, dtype=np.float32)
    write_tensor(model / "w.dat", values)
    with open_archive(model) as archive:
        data = [archive.open_tensor("w.dat") for _ in range(3)]
    assert all(isinstance(view.obj, mmap.mmap) for view in data)
    for view in data:
        assert view.readonly
        assert np.array_equal(read_tensor(view), values)


def test_a_map_outlives_its_file(model):
    values = np.arange(files.MAP_FROM // 4, dtype=np.float32)
    write_tensor(model / "w.dat", values)
    with open_archive(model) as archive:
        array = read_tensor(archive.open_tensor("w.dat"))
    write_members(model, {"graph.nnef": GRAPH, "w.dat": array + 1}, overwrite=True)
    assert np.array_equal(array, values)
    assert np.array_equal(read_tensor(model / "w.dat"), values + 1)


def test_members_of_a_plain_archive_are_views(tmp_path):
    data = tar()
    assert open_archive(data).open_tensor("a/w.dat").obj is data
    path = tmp_path / "m.tar"
    path.write_bytes(tar(MODEL | {"w.dat": bytes(files.MAP_FROM)}))
    assert isinstance(open_archive(path).open_tensor("a/w.dat").obj, mmap.mmap)


# Labels


@pytest.mark.parametrize(
    ("label", "member"),
    [
        ("w", "w.dat"),
        ("conv1/filter", "conv1/filter.dat"),
        ("/conv1/filter", "conv1/filter.dat"),
        ("a.b/c.d", "a.b/c.d.dat"),
        ("./a//b/./c", "a/b/c.dat"),
        ("w:0", "w:0.dat"),
        ("größe/w 1", "größe/w 1.dat"),
        ("...", "....dat"),
        (".hidden", ".hidden.dat"),
    ],
)
def test_member_of_a_label(label, member):
    assert member_of(label) == member


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ("", "is empty"),
        ("/", "is empty"),
        ("..", r"leads outside of the container by '\.\.'"),
        ("../w", "leads outside"),
        ("/../w", "leads outside"),
        ("a/../w", "leads outside"),
        ("a/..", "leads outside"),
        ("a\0b", "holds a NUL character"),
        ("a\nb", "holds a control character"),
        ("a\x7fb", "holds a control character"),
        ("a\x85b", "holds a control character"),
        ("a\ud800b", "holds a control character"),
        ("a\\b", "holds a backslash"),
        ("C:\\w", "holds a backslash"),
        ("C:/w", "starts with a drive letter"),
        ("/c:/w", "starts with a drive letter"),
        ("C:", "starts with a drive letter"),
        ("//etc/passwd", "is an absolute path"),
        ("a/", "names a folder"),
        ("a/.", "names a folder"),
        (".", "names a folder"),
        ("./", "names a folder"),
    ],
)
def test_labels_that_name_no_file(label, reason):
    with pytest.raises(ArchiveError, match=reason):
        member_of(label)


# Writing

ARRAYS = {"graph.nnef": GRAPH, "b/v.dat": np.float32([[1, 2]]), "b/a/w.dat": np.arange(3)}
SUFFIXES = [".tar", ".tgz", ".tar.gz", ".nnef.TGZ", ".tar.xz", ".txz", ".tar.bz2", ".tbz2"]


@pytest.mark.parametrize("suffix", ["", ".nnef", *SUFFIXES])
def test_what_is_written_is_read_again(tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    write_members(path, ARRAYS)
    assert path.is_dir() == (suffix not in SUFFIXES)
    with open_archive(path) as archive:
        assert archive.names() == ["b/a/w.dat", "b/v.dat", "graph.nnef"]
        assert archive.read_text("graph.nnef").text == GRAPH.decode()
        for name in ("b/v.dat", "b/a/w.dat"):
            array = read_tensor(archive.open_tensor(name))
            assert array.dtype == ARRAYS[name].dtype
            assert np.array_equal(array, ARRAYS[name])
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_other_tools_read_what_is_written(tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    write_members(path, ARRAYS)
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        assert [m.name for m in members] == ["b/a/w.dat", "b/v.dat", "graph.nnef"]
        assert {(m.mtime, m.uid, m.gid, m.uname, m.mode) for m in members} == {(0, 0, 0, "", 0o644)}
        assert archive.extractfile("graph.nnef").read() == GRAPH


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_equal_members_make_equal_archives(tmp_path, suffix):
    one, two = tmp_path / f"one{suffix}", tmp_path / f"two{suffix}"
    write_members(one, ARRAYS)
    os.utime(one, (0, 0))
    write_members(str(two), dict(reversed(ARRAYS.items())))
    assert one.read_bytes() == two.read_bytes()
    if "gz" in suffix.lower():
        assert one.read_bytes()[3:8] == bytes(5)  # neither a name nor a time


def test_tensor_files_keep_their_bits(tmp_path):
    codes = TensorFile(np.array([1, -8, 7], np.int8), 4, True, True)
    octets = TensorFile(np.array([True, False]), 8, False, False)
    write_members(tmp_path / "m.tar", MODEL | {"q.dat": codes, "b.dat": octets})
    with open_archive(tmp_path / "m.tar") as archive:
        again = read_tensor_file(archive.open_tensor("q.dat"))
        assert again.array.tolist() == [1, -8, 7]
        assert (again.bits, again.signed, again.quantized) == (4, True, True)
        assert read_tensor_file(archive.open_tensor("b.dat")).bits == 8


@pytest.mark.parametrize("name", ["m", "m.tgz"])
def test_existing_paths_are_kept_unless_told_otherwise(tmp_path, name):
    path = tmp_path / name
    write_members(path, ARRAYS)
    with pytest.raises(FileExistsError, match="exists already"):
        write_members(path, MODEL)
    assert open_archive(path).names() == ["b/a/w.dat", "b/v.dat", "graph.nnef"]
    write_members(path, MODEL, overwrite=True)
    check(open_archive(path))
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_overwriting_never_removes_other_things(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").touch()
    with pytest.raises(FileExistsError, match=r"folder without graph\.nnef"):
        write_members(home, MODEL, overwrite=True)
    (tmp_path / "link").symlink_to(home)
    write_members(tmp_path / "link", MODEL, overwrite=True)
    assert (home / "thesis.txt").exists()
    assert not (tmp_path / "link").is_symlink()
    (tmp_path / "empty").mkdir()
    write_members(tmp_path / "empty", MODEL, overwrite=True)
    (tmp_path / "file").touch()
    write_members(tmp_path / "file", MODEL, overwrite=True)
    for name in ("link", "empty", "file"):
        check(open_archive(tmp_path / name))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "file", "home", "link"]


@pytest.mark.parametrize("name", ["m", "m.tgz", "m.tar.xz"])
@pytest.mark.parametrize("existing", [False, True])
def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch, name, existing):
    path = tmp_path / name
    if existing:
        write_members(path, MODEL)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match="complex"):
        write_members(path, {"a.dat": GRAPH, "z.dat": np.zeros(2, complex)}, overwrite=True)
    assert sorted(tmp_path.rglob("*")) == before

    rename, calls = os.rename, []

    def failing(source, target):
        calls.append(target)
        if str(target) == str(path) and calls.count(target) == 1:
            raise OSError("no rename")
        rename(source, target)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no rename"):
        patch.setattr(os, "rename", failing)
        patch.setattr(os, "replace", failing)
        write_members(path, ARRAYS, overwrite=True)
    assert sorted(tmp_path.rglob("*")) == before
    if existing:
        check(open_archive(path))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["../w.dat"], "leads outside"),
        (["/w.dat"], "is an absolute path"),
        ([""], "is empty"),
        (["a/"], "names a folder"),
        (["a\\b"], "backslash"),
        (["a\nb"], "control character"),
        (["a", "./a"], "two members named 'a'"),
        (["a", "a/b/c"], "'a' cannot be a member: 'a/b/c' is below it"),
    ],
)
@pytest.mark.parametrize("target", ["m", "m.tar"])
def test_member_names_that_are_refused(tmp_path, names, message, target):
    with pytest.raises(ArchiveError, match=message):
        write_members(tmp_path / target, {name: b"" for name in names})
    assert list(tmp_path.iterdir()) == []


def test_writing_where_there_is_no_folder(tmp_path):
    for name in ("missing/m", "missing/m.tgz"):
        with pytest.raises(FileNotFoundError):
            write_members(tmp_path / name, MODEL)


# Files of others


@pytest.fixture
def cases():
    if not CASES.is_dir():
        pytest.skip("the shared cases are not there")
    return CASES


@pytest.mark.parametrize(
    "case",
    ["container_tar/model.tar", "container_tgz/model.tgz", "container_tgz_dotslash/model.tgz"],
)
def test_shared_containers(cases, case):
    with open_archive(cases / "nnef" / "cases" / case) as archive:
        assert archive.names() == ["blk/w.dat", "graph.nnef"]
        assert archive.read_text("graph.nnef").text.startswith("version 1.0;")
        assert read_tensor(archive.open_tensor("blk/w.dat")).size == 3


def test_shared_attacks(cases):
    invalid = cases / "invalid"
    for case, message in {"arc_symlink": "symbolic link", "arc_hardlink": "hard link"}.items():
        archive = open_archive(invalid / case / "m.tgz")
        with pytest.raises(ArchiveError, match=message):
            archive.open_tensor("w.dat")
    with pytest.raises(ArchiveError, match=r"has no graph.nnef; it holds w.dat"):
        open_archive(invalid / "arc_no_graph" / "m.tgz")
    with open_archive(invalid / "arc_member_absolute" / "m.tgz") as archive:
        assert archive.names() == ["graph.nnef", "w.dat"]


def test_shared_archives_of_other_exporters(cases):
    paths = sorted((cases / "tract").glob("op_*.tgz"))[:20]
    assert paths
    for path in paths:
        with open_archive(path) as archive, tarfile.open(path) as expected:
            regular = {m.name.removeprefix("./"): m for m in expected if m.isfile()}
            assert archive.names() == sorted(regular)
            for name, member in regular.items():
                assert archive.open_tensor(name) == expected.extractfile(member).read()
