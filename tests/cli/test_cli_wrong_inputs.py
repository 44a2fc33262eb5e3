"""Files of inputs that are broken, or meant to harm: each is its own error, the others are read."""

from __future__ import annotations

import io
import json
import struct
import threading
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from nnef_jax import DataError, NnefError
from nnef_jax.cli.inputs import read_array
from nnef_jax.storage.numpyfile import read_npy
from tests.cli_support import BIAS, FILTER, call, fails, linear_scores, picture, through
from tests.fuzz import kind

X = np.arange(4, dtype=np.float32)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    linear_scores(Path("net"))
    Path("data").mkdir()


def npy(header, items=b"", version=1):
    raw = header.encode("latin-1")
    size = struct.pack("<H" if version == 1 else "<I", len(raw))
    return b"\x93NUMPY" + bytes([version, 0]) + size + raw + items


def header(shape="(4,)", descr="'<f4'", order="False"):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


def npz(method, **options):
    file, content = io.BytesIO(), io.BytesIO()
    np.save(content, X)
    with zipfile.ZipFile(file, "w", method, **options) as archive:
        archive.writestr("x.npy", content.getvalue())
    return bytearray(file.getvalue())


def nameless():
    """The array beside a member whose name begins with NUL."""
    file = io.BytesIO(npz(zipfile.ZIP_STORED))
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("?other.npy", b"")
    return file.getvalue().replace(b"?other", b"\0other")


def damaged(method):
    """A member whose data are changed in their middle."""
    content = npz(method)
    content[60:70] = b"\xff" * 10
    return content


def bomb(declared):
    """A member that says it has so many bytes, and has a megabyte of zeros in a kilobyte."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", npy(header("(1000000,)", "'|u1'"), bytes(1_000_000)))
    content = bytearray(file.getvalue())
    entry = content.rindex(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = struct.pack("<I", declared)
    return content


WRONG = {
    "overflow.npy": npy(header(f"({1 << 70},)")),
    "large.npy": npy(header(f"({1 << 62},)")),
    "empty.npy": npy(header(f"(0, {(1 << 62)})")),
    "more.npy": npy(header("(5,)"), X.tobytes()),
    "deep.npy": npy("(" * 9000),
    "axes.npy": npy(header("(" + "1," * 65 + ")"), X.tobytes()),
    "code.npy": npy(header("__import__('os').abort()"), X.tobytes()),
    "object.npy": npy(header(descr="'|O'"), X.tobytes()),
    "pairs.npy": npy(header(descr="[('a', '<f4')]"), X.tobytes()),
    "type.npy": npy(header(descr="'<f3'"), X.tobytes()),
    "nothing.npy": npy(header(descr="'V0'"), X.tobytes()),
    "version.npy": npy(header(), X.tobytes(), 9),
    "length.npy": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
    "magic.npy": b"\x93NUMPY",
    "lzma.npz": damaged(zipfile.ZIP_LZMA),
    "bzip2.npz": damaged(zipfile.ZIP_BZIP2),
    "deflated.npz": damaged(zipfile.ZIP_DEFLATED),
    "stored.npz": damaged(zipfile.ZIP_STORED),
    "cut.npz": npz(zipfile.ZIP_STORED)[:-30],
    "bomb.npz": bomb(0xFFFF_FFF0),
    "lie.npz": bomb(10),
}


def test_each_wrong_file_is_its_own_error_and_the_others_are_computed():
    for name, content in WRONG.items():
        Path("data", name).write_bytes(content)
    np.save("data/good.npy", X)
    Path("data/two.npy").write_bytes(npy(header(), X.tobytes(), 2))
    np.save("data/rows.npy", np.asfortranarray(X[None]))
    Path("data/nameless.npz").write_bytes(nameless())
    code, _, err = call("batch", "net", "data", "--no-cache", "-oout")
    assert code == 1 and f"{len(WRONG)} of {len(WRONG) + 4} files failed" in err
    lines = map(json.loads, Path("out/part-00000.jsonl").read_text().splitlines())
    told = {Path(line["file"]).name: line.get("error") for line in lines}
    assert all(told[name].startswith(f"data/{name}") for name in WRONG)
    assert told["good.npy"] is told["two.npy"] is told["rows.npy"] is None
    assert told["nameless.npz"] is None
    found = np.load("out/part-00000.npz")["y"]
    np.testing.assert_allclose(found, np.repeat(X[None] @ FILTER.T + BIAS, 4, 0))


@pytest.mark.parametrize("name", WRONG)
def test_run_tells_of_a_wrong_file(name):
    Path(name).write_bytes(WRONG[name])
    assert fails("run", "net", f"x={name}", "--no-cache").startswith(f"error: {name}: ")
    with pytest.raises(NnefError) as caught:
        read_array(Path(name), "x")
    assert isinstance(caught.value, DataError) == (name != "bomb.npz")


def test_a_wrong_header_is_shown_without_its_padding():
    data = npy(header(descr="'|O'") + " " * 60 + "\n", X.tobytes())
    with pytest.raises(DataError, match=r"}['\"]$"):
        read_npy(memoryview(data), "x.npy")


def chunk(name, content):
    return (
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
    )


def test_pictures_that_are_larger_than_they_look(recwarn):
    through(Path("same"), "[0, 3, 0, 0]")
    for name, extents in {"bomb.png": (60_000, 60_000), "large.png": (12_000, 10_000)}.items():
        content = chunk(b"IHDR", struct.pack(">IIBBBBB", *extents, 8, 2, 0, 0, 0))
        content += chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
        Path(name).write_bytes(b"\x89PNG\r\n\x1a\n" + content)
        assert fails("run", "same", name, "--no-cache").startswith(f"error: {name}: ")
    picture(Path("good.jpg"), np.zeros((8, 8, 3)), progressive=True)
    content = Path("good.jpg").read_bytes()
    at, scan = content.index(b"\xff\xc2"), content.index(b"\xff\xda")
    content = content[: at + 5] + struct.pack(">HH", 9000, 9000) + content[at + 9 : -2]
    Path("scans.jpg").write_bytes(content + content[scan:] * 1000 + b"\xff\xd9")
    assert "may take at most" in fails("run", "same", "scans.jpg", "--no-cache")
    Path("cut.jpg").write_bytes(Path("good.jpg").read_bytes()[:300])
    assert fails("run", "same", "cut.jpg", "--no-cache").startswith("error: cut.jpg: a picture")
    assert not recwarn.list


def test_threads_read_headers_at_once(tmp_path):
    """Python's own parser, by which numpy reads them, fails in threads where one is deep."""
    np.save("good.npy", X)
    Path("deep.npy").write_bytes(WRONG["deep.npy"])
    failed = []

    def read(name):
        for _ in range(200):
            try:
                read_array(Path(name), "x")
            except DataError:
                if name == "good.npy":
                    failed.append(name)

    threads = [threading.Thread(target=read, args=(n,)) for n in ("good.npy", "deep.npy") * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.filterwarnings("default")  # Pillow's
def test_mutants_are_read_or_refused():
    ends = {end.split("/")[1] for end in kind("inputs").ends(range(150))}
    assert ends <= {"value", "DataError", "InputError", "LimitError"} and len(ends) > 2
