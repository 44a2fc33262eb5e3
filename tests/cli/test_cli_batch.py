"""`nnef-jax batch`: what it computes, and that it goes on where it ended; values are numpy's."""

from __future__ import annotations

import codecs
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import nnef_jax
from tests.cli_support import BIAS, FILTER, call, fails, linear_scores, ok, picture, through, write

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((11, 4)).astype(np.float32)
Y = X @ FILTER.T + BIAS


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A network `net` that takes rows of four numbers, and eleven of them in `data`."""
    monkeypatch.chdir(tmp_path)
    linear_scores(Path("net"))
    Path("data").mkdir()
    for i, x in enumerate(X):
        np.save(f"data/{i:02}.npy", x if i % 2 else x[None])


def index(out="out"):
    """What the folder tells of all items, in order."""
    parts = sorted(Path(out).glob("part-*.jsonl"))
    return [
        json.loads(line) | {"part": part.with_suffix(".npz")}
        for part in parts
        for line in part.read_text().splitlines()
    ]


def rows(output="y", out="out"):
    """The rows of an output for the items that have one, in order."""
    lines = [line for line in index(out) if "row" in line]
    return np.stack([np.load(line["part"])[output][line["row"]] for line in lines])


def names(out="out"):
    return [line["file"] for line in index(out)]


# What is computed


@pytest.mark.parametrize("size, devices", [(4, 2), (3, 1), (64, 2)])
def test_rows_in_the_order_of_files_by_one_shape_on_all_devices(monkeypatch, size, devices):
    calls, run = [], nnef_jax.Model.__call__
    monkeypatch.setattr(
        nnef_jax.Model, "__call__", lambda self, *xs: calls.append(xs) or run(self, *xs)
    )
    told = ok("batch", "net", "data", "--out=out", f"--batch-size={size}", "--part-size=5")
    spread = "1 device" if devices == 1 else "2 devices"
    assert told == f"11 files: 11 on {spread}\nsaved out\n"
    np.testing.assert_allclose(rows(), Y, rtol=1e-5, atol=1e-5)
    assert names() == [f"data/{i:02}.npy" for i in range(11)]
    assert {(x.shape, len(x.devices())) for (x,) in calls} == {((size, 4), devices)}
    assert len(calls) == -(-11 // size)
    assert [len(np.load(f"out/part-0000{i}.npz")["y"]) for i in range(3)] == [5, 5, 1]
    assert sorted(os.listdir("out"))[0] == "batch.json" and len(os.listdir("out")) == 7


def test_the_default_is_32_items_a_device_and_a_file():
    ok("batch", "net", "data", "-o", "out")
    assert np.load("out/part-00000.npz")["y"].shape == (11, 3)


def test_several_inputs_and_outputs():
    write(
        Path("pair"),
        "version 1.0; graph pair(a, b) -> (sum, difference) {"
        "a = external<scalar>(shape = [2, 3]); b = external<scalar>(shape = [2, 3]);"
        "sum = add(a, b); difference = sub(a, b); }",
    )
    a, b = RANDOM.standard_normal((2, 3, 3)).astype(np.float32)
    for i in range(3):
        np.savez(f"data/{i}.npz", a=a[i], b=b[i : i + 1])
    np.savez("data/3.npz", a=a[0])
    np.savez("data/4.npz", a=a[0], b=b[0, :2])
    code, _, err = call("batch", "pair", "data/?.npz", "data/00.npy", "-oout")
    assert code == 1
    assert "data/3.npz holds a, the graph takes a, b" in err
    assert "data/4.npz has shape [2], an item of input 'b' has [1,3] or [3]" in err
    assert "data/00.npy is one array, the graph takes a, b" in err
    np.testing.assert_allclose(rows("sum"), a + b, rtol=1e-6)
    np.testing.assert_allclose(rows("difference"), a - b, rtol=1e-6)


def test_pictures():
    through(Path("same"), "[1, 3, 2, 4]")
    pixels = RANDOM.integers(0, 256, (3, 2, 4, 3))
    for i, each in enumerate(pixels):
        picture(f"data/{i}.png", each)
    picture("data/3.png", np.zeros((5, 4, 3)))
    options = "--mean=1,2,3", "--scale=0.5"
    code, _, err = call("batch", "same", "data/*.png", "-oout", *options)
    assert (code, err.count("\nerror: ")) == (1, 1)
    assert "data/3.png is 4 pixels wide and 5 high" in err
    wanted = ((pixels - [1, 2, 3]) * 0.5).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(rows(), wanted)
    ok("batch", "same", "data/*.png", "-oother", "--resize", *options)
    np.testing.assert_allclose(rows(out="other")[:3], wanted)


def test_an_open_extent_needs_the_shape_of_an_item():
    through(Path("open"), "[0, 0]")
    err = fails("batch", "open", "data", "-oout")
    assert "the shape of an item of input 'x' has open extents: [1,?]" in err
    ok("batch", "open", "data", "-oout", "--shape=x=1,4")
    np.testing.assert_array_equal(rows(), X)


def test_what_the_document_declares_is_the_batch():
    through(Path("five"), "[5, 4]")
    text = Path("five/graph.nnef").read_text()
    Path("five/graph.nnef").write_text(text.replace("copy(x)", "reshape(x, shape = [5, 2, 2])"))
    ok("batch", "five", "data", "-oout")
    np.testing.assert_array_equal(rows(), X.reshape(-1, 2, 2))
    err = fails("batch", "five", "data", "-oother", "--batch-size=3")
    assert "[3,4] cannot be reshaped" in err
    assert "error: the network cannot compute batches of 3 items" in err
    assert "hint: the document declares batches of 5: give --batch-size 5" in err


# Which files


def test_folders_patterns_lists_and_files_in_their_order():
    Path("data/below").mkdir()
    Path("data/01.npy").rename("data/below/k=1.npy")
    Path("data/notes.txt").write_text("no input")
    Path("list.txt").write_text("data/02.npy\n\ndata/gone.npy\n")
    given = ["data/03.npy", "data/0[56].npy", "data/**/k*.npy", "data/below", "--list=list.txt"]
    code, _, err = call("batch", "net", *given, "-oout")
    assert code == 1 and "data/gone.npy: No such file" in err
    found = ["03.npy", "05.npy", "06.npy", "below/k=1.npy", "below/k=1.npy", "02.npy", "gone.npy"]
    assert names() == [f"data/{name}" for name in found]
    np.testing.assert_allclose(rows(), Y[[3, 5, 6, 1, 1, 2]], rtol=1e-5, atol=1e-5)
    ok("batch", "net", "data", "-oall")
    assert len(names("all")) == 11 and "data/notes.txt" not in names("all")


def test_results_are_no_inputs():
    for _ in range(2):
        ok("batch", "net", "data", "--out=data/out")
        assert len(names("data/out")) == 11
    for given, out in (("data/out/part-00000.npz", "data/out"), ("data", ".")):
        told = fails("batch", "net", given, f"-o{out}")
        assert f"'{given}' is in the output folder" in told


# Failures


@pytest.fixture
def broken():
    Path("data/04.npy").write_text("no array")
    np.save("data/07.npy", np.zeros(5, np.float32))
    np.save("data/09.npy", np.zeros(4, np.int32))
    return [4, 7, 9]


def test_a_failure_is_skipped_told_and_tried_again_when_the_file_has_changed(broken):
    command = "batch", "net", "data", "-oout", "--part-size=5", "--batch-size=2"
    wanted = (
        "error: data/04.npy: no .npy file",
        "error: data/07.npy has shape [5], an item of input 'x' has [1,4] or [4]",
        "error: data/09.npy has dtype int32, the graph declares float32",
        "error: 3 of 11 files failed\n  hint: out/failures.txt lists them, as --list reads them",
    )
    for computed in (11, 0):
        code, out, err = call(*command)
        assert code == 1 and out.startswith(f"11 files: {computed} on ")
        assert [words for words in wanted if words not in err] == []
    good = [i for i in range(11) if i not in broken]
    np.testing.assert_allclose(rows(), Y[good], rtol=1e-5, atol=1e-5)
    assert Path("out/failures.txt").read_text() == "data/04.npy\ndata/07.npy\ndata/09.npy\n"
    assert "'data/04.npy'" not in call("batch", "net", "--list=out/failures.txt", "-oagain")[2]
    assert names("again") == [f"data/0{i}.npy" for i in broken]

    for i in broken:
        np.save(f"data/{i:02}.npy", X[i])
    assert ok(*command).startswith("11 files: 10 on 2 devices, 1 by an earlier run\n")
    np.testing.assert_allclose(rows(), Y, rtol=1e-5, atol=1e-5)
    assert not Path("out/failures.txt").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="names of any bytes")
def test_failures_of_any_name_are_listed_and_found_again():
    odd = [b"a\xff.npy", b"b \xe2\x80\xa8.npy", b"c\x0c.npy", "\u00e9.npy".encode()]
    for name in odd:
        Path(os.fsdecode(b"data/" + name)).write_text("no array")
    assert "4 of 15 files failed" in call("batch", "net", "data", "-oout")[2]
    for start in (b"", codecs.BOM_UTF8):
        listed = start + Path("out/failures.txt").read_bytes().replace(b"\n", b"\r\n")
        Path("list.txt").write_bytes(listed)
        assert "4 of 4 files failed" in call("batch", "net", "--list=list.txt", "-oagain")[2]
        assert [os.fsencode(name) for name in names("again")] == [b"data/" + x for x in odd]


def test_a_name_that_no_file_can_have_is_a_failure():
    Path("list.txt").write_bytes(b"data/00.npy\nda\0ta.npy\n")
    told = fails("batch", "net", "--list=list.txt", "-oout", "--on-error=stop")
    assert told.startswith("error: da\\u0000ta.npy: ")
    assert "1 of 2 files failed" in call("batch", "net", "--list=list.txt", "-oother")[2]


def test_a_failure_may_stop_it(broken):
    command = "batch", "net", "data", "-oout", "--on-error=stop", "--part-size=2"
    assert fails(*command, "--batch-size=1").startswith("error: data/04.npy: no .npy file")
    np.save("data/04.npy", X[4])
    assert "data/07.npy has shape" in fails(*command, "--batch-size=1")
    done = len(names())
    assert 4 <= done <= 6
    np.testing.assert_allclose(rows(), Y[:done], rtol=1e-5, atol=1e-5)


def test_a_part_without_rows():
    for file in Path("data").iterdir():
        file.write_text("no array")
    assert "11 of 11 files failed" in call("batch", "net", "data", "-oout")[2]
    empty = np.load("out/part-00000.npz")["y"]
    assert (empty.shape, empty.dtype) == ((0, 3), np.float32)


# Going on


_ENDED = """
import os, signal, sys
number, suffix = int(sys.argv.pop(1)), sys.argv.pop(1)
signal.signal(signal.SIGINT, signal.SIG_DFL)  # which a shell's background job ignores
def happened(event, args):
    if event == "os.rename" and str(args[1]).endswith(suffix):
        os.kill(os.getpid(), number)
sys.addaudithook(happened)
from nnef_jax.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    "number, suffix",
    [
        (signal.SIGKILL, "part-00001.jsonl"),
        pytest.param(signal.SIGKILL, "part-00001.npz", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "part-00001.npz", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, "batch.json", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_only_what_is_missing_is_computed_after_an_end(number, suffix):
    """Whatever was about to get its name."""
    command = ["batch", "net", "data", "-oout", "--part-size=4", "--batch-size=2"]
    environment = os.environ | {"PYTHONPATH": str(Path(nnef_jax.__file__).parents[1])}
    ended = subprocess.run(
        [sys.executable, "-c", _ENDED, str(int(number)), suffix, *command],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (-number, "", "")
    earlier = len(index()) if Path("out").exists() else 0
    assert earlier == (0 if suffix == "batch.json" else 4)
    before = os.stat("out/part-00000.npz") if earlier else None
    told = ", 4 by an earlier run" if earlier else ""
    assert ok(*command) == f"11 files: {11 - earlier} on 2 devices{told}\nsaved out\n"
    assert before is None or before == os.stat("out/part-00000.npz")
    np.testing.assert_allclose(rows(), Y, rtol=1e-5, atol=1e-5)
    assert len(names()) == 11
    assert not [name for name in os.listdir("out") if name.startswith(".")]


def test_a_dataset_may_grow_at_its_end():
    command = "batch", "net", "data", "-oout", "--part-size=4"
    for i in (9, 10):
        os.rename(f"data/{i:02}.npy", f"{i}.npy")
    ok(*command)
    for i in (9, 10):
        os.rename(f"{i}.npy", f"data/{i:02}.npy")
    assert ok(*command).startswith("11 files: 3 on 2 devices, 8 by an earlier run")
    np.testing.assert_allclose(rows(), Y, rtol=1e-5, atol=1e-5)


def test_shards_are_all_items_each_once_and_go_on():
    for _ in range(2):
        told = [ok("batch", "net", "data", "-oout", f"--shard={i}/3") for i in range(3)]
    assert [each.split(" on ")[0] for each in told] == ["4 files: 0", "4 files: 0", "3 files: 0"]
    for i in range(3):
        own = f"out/shard-{i}-of-3"
        assert names(own) == [f"data/{j:02}.npy" for j in range(i, 11, 3)]
        np.testing.assert_allclose(rows(out=own), Y[i::3], rtol=1e-5, atol=1e-5)
    told = ok("batch", "net", "data/00.npy", "-oout", "--shard=1/2")
    assert told.startswith("0 files: 0 on ")


def test_a_part_that_is_removed_is_made_again():
    command = "batch", "net", "data", "-oout", "--part-size=4"
    ok(*command)
    for name in ("part-00001.npz", "part-00002.jsonl"):
        os.unlink(f"out/{name}")
    assert ok(*command).startswith("11 files: 7 on 2 devices, 4 by an earlier run")
    np.testing.assert_allclose(rows(), Y, rtol=1e-5, atol=1e-5)


def _cut(suffix, size):
    os.truncate(f"out/part-00001.{suffix}", size)


def _flipped(suffix, at):
    path = Path(f"out/part-00001.{suffix}")
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


_NPZ, _JSONL = Path("out/part-00001.npz"), Path("out/part-00001.jsonl")
DAMAGES = {
    "no rows": lambda: _cut("npz", 0),
    "a part of the rows": lambda: _cut("npz", 100),
    "another bit at the end of the rows": lambda: _flipped("npz", -200),
    "another bit in an item": lambda: _flipped("npz", 140),
    "rows of another part": lambda: shutil.copy("out/part-00000.npz", _NPZ),
    "other rows": lambda: np.savez(_NPZ, y=np.zeros((4, 3), np.float32)),
    "no index": lambda: _cut("jsonl", 0),
    "a part of a line": lambda: _cut("jsonl", 30),
    "no last line": lambda: _cut("jsonl", _JSONL.read_text().rindex("{")),
    "an index of another part": lambda: shutil.copy("out/part-00000.jsonl", _JSONL),
    "an error that is a number": lambda: _JSONL.write_text('{"file": "a", "error": 3}'),
    "a line that is a list": lambda: _JSONL.write_text('{"file": "a"}\n[3]\n'),
    "lists in lists": lambda: _JSONL.write_text("[" * 100_000),
    "other bytes": lambda: _JSONL.write_bytes(b"\xff\xfe"),
}


def test_a_part_that_is_not_as_it_was_written_is_made_again():
    command = "batch", "net", "data", "-oout", "--part-size=4"
    ok(*command)
    complete = {path: path.read_bytes() for path in Path("out").iterdir()}
    wrong = {}
    for name, damage in DAMAGES.items():
        damage()
        told = call(*command)
        wanted = (
            "out/part-00001.jsonl: damaged, its items were computed again\n"
            "11 files: 4 on 2 devices, 7 by an earlier run\nsaved out\n"
        )
        mended = {path: path.read_bytes() for path in Path("out").iterdir()} == complete
        if told != (0, wanted, "") or not mended:
            wrong[name] = told, mended
            for path, content in complete.items():
                path.write_bytes(content)
    assert wrong == {}
    assert ok(*command).startswith("11 files: 0 on ")
    np.testing.assert_allclose(rows(), Y, rtol=1e-5, atol=1e-5)
    assert names() == [f"data/{i:02}.npy" for i in range(11)]


def _other_bias():
    nnef_jax.write_tensor("net/bias.dat", BIAS + 1)


def _other_text():
    graph = Path("net/graph.nnef")
    graph.write_text(graph.read_text().replace("filter, bias)", "filter)"))


def _of_size(size):
    path = Path("out/batch.json")
    path.write_text(path.read_text().replace('"--part-size": 4', f'"--part-size": {size}'))


def _changed():
    np.save("data/07.npy", X[:1])
    os.utime("data/07.npy", ns=(0, 1))


OTHERS = [
    (_other_bias, [], "has results of another network"),
    (_other_text, [], "has results of another network"),
    (_changed, [], "'data/07.npy' has changed since its results in 'out' were computed"),
    (lambda: os.unlink("data/10.npy"), [], "other inputs: there were more than 10"),
    (lambda: os.unlink("data/00.npy"), [], "'data/00.npy' was where 'data/01.npy' is now"),
    (None, ["--part-size=3"], "has results with --part-size 4, now it is 3"),
    (None, ["--dialect=nnef"], "has results with --dialect auto, now it is nnef"),
    (lambda: Path("out/batch.json").write_text("{"), [], "batch.json: damaged"),
    (
        lambda: Path("out/batch.json").write_text("[]"),
        [],
        "batch.json: damaged\n  hint: give another folder",
    ),
    (lambda: _of_size("0"), [], "batch.json: damaged"),
    (lambda: _of_size("Infinity"), [], "batch.json: damaged"),
    (lambda: os.unlink("out/batch.json"), [], "'out' holds other files, such as 'part-00000"),
]


def test_results_of_something_else_are_not_mixed(tmp_path_factory, monkeypatch):
    command = "batch", "net", "data", "-oout", "--part-size=4"
    ok(*command)
    made, wrong = Path.cwd(), []
    for change, options, message in OTHERS:
        place = tmp_path_factory.mktemp("copy") / "place"
        shutil.copytree(made, place)
        monkeypatch.chdir(place)
        if change:
            change()
        files = {file: file.read_bytes() for file in Path("out").iterdir()}
        code, out, err = call(*command, *options)
        same = {file: file.read_bytes() for file in Path("out").iterdir()} == files
        if (code, out) != (1, "") or message not in err or not same:
            wrong.append((message, code, out, err, same))
    assert wrong == []
    # but for another --batch-size, which another machine may need
    monkeypatch.chdir(made)
    assert "11 by an earlier run" in ok(*command, "--batch-size=5")


# What is wrong


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("net -oout", "no inputs are given"),
        ("net none -oout", "none: No such file"),
        ("net none*.npy -oout", "no file matches 'none*.npy'"),
        ("net net/dense/.. --list none -oout", "none: No such file"),
        ("net empty -oout", "no .npy, .npz, .dat, .png, .jpg, .jpeg file is below 'empty'"),
        ("none data -oout", "none: No such file"),
        ("net data -onone/out", "none/out: No such file"),
        ("net data -onet", "'net' holds other files, such as 'bias.dat'"),
        ("net data -olist", "list: Not a directory"),
        ("net data -oout --shape y=1,4", "no input 'y', its inputs are x"),
        (
            "net data -oout --shape x=2,4",
            "[2,4] is no shape of an item of input 'x', whose shape is [?,4]",
        ),
        ("net data -oout --shape x=4", "[4] is no shape of an item of input 'x'"),
        ("net data -oout --shape x=1,5", "graph.nnef:"),
        ("single data -oout", "input 'x' is a single number, without an axis for a batch"),
        ("empty_net data -oout", "has no inputs"),
        ("total data -oout", "has no axis for a batch of 64 items"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_made(arguments, message):
    Path("empty").mkdir()
    Path("list").write_text("")
    through(Path("single"), "[]")
    through(Path("total"), "[0, 4]")
    text = Path("total/graph.nnef").read_text()
    Path("total/graph.nnef").write_text(text.replace("copy(x)", "sum_reduce(x, axes = [0])"))
    write(
        Path("empty_net"),
        "version 1.0; extension tract_registry tract_core; graph g() -> (y) { y = [[1.0]]; }",
    )
    assert message in fails("batch", *arguments.split())
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "options, message",
    [
        ("", "Missing option '--out'"),
        ("-oout --mean=1", "for pictures"),
        ("-oout --batch-size=0", "Invalid value for '--batch-size'"),
        ("-oout --on-error=ask", "'skip', 'stop'"),
        ("-oout --shape=x", "is not a name and extents"),
        ("-oout --shard=2", "'2' is not of the form I/N, such as 0/4"),
        ("-oout --shard=-1/2", "'-1/2' is not of the form I/N, such as 0/4"),
        ("-oout --shard=2/2", "2/2: the first number counts from 0, and must be less than"),
        ("-oout --shard=0/0", "0/0: the first number counts from 0, and must be less than"),
    ],
)
def test_wrong_usage(options, message):
    code, out, err = call("batch", "net", "data", *options.split())
    assert (code, out) == (2, "") and message in " ".join(err.split())


def test_it_needs_grain(monkeypatch):
    monkeypatch.setitem(sys.modules, "grain", None)
    assert 'pip install "nnef_jax[batch]"' in fails("batch", "net", "data", "-oout")


def test_a_full_disk_is_an_error(monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device", "out/part-00000.npz")

    monkeypatch.setattr("nnef_jax.cli.batch_results.save_npz", full)
    told = fails("batch", "net", "data", "-oout")
    assert told == "error: out/part-00000.npz: No space left on device\n"


def test_there_are_two_devices():
    assert len(jax.local_devices()) == 2
