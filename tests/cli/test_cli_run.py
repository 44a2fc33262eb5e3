"""`nnef-jax run` on arrays, and what it prints and saves; expected values are numpy's."""

from __future__ import annotations

import json
import re
import zipfile

import numpy as np
import pytest

import nnef_jax
from tests.cli_support import (
    BIAS,
    FILTER,
    call,
    fails,
    linear_scores,
    ok,
    picture,
    through,
    values,
    write,
)

PAIR = """version 1.0;
graph pair(a, b) -> (sum, difference) {
    a = external<scalar>(shape = [2, 3]);
    b = external<scalar>(shape = [2, 3]);
    sum = add(a, b);
    difference = sub(a, b);
}
"""


@pytest.fixture
def scores(tmp_path):
    return linear_scores(tmp_path / "scores")


@pytest.fixture
def pair(tmp_path):
    return write(tmp_path / "pair", PAIR)


@pytest.fixture
def x(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.array([[1, 2, 3, 4], [4, -3, 2, -1]], np.float32))
    return path


# Inputs


@pytest.fixture
def expected(x):
    return np.load(x) @ FILTER.T + BIAS


def test_run_npy(scores, x, expected):
    out = ok("run", scores, x)
    head, body = out.split("\n", 1)
    assert head == "y: float32[2,3]"
    numbers = [float(n) for n in re.findall(r"-?\d+\.?\d*", body)]
    np.testing.assert_allclose(np.reshape(numbers, (2, 3)), expected)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".dat"])
def test_run_reads_arrays(scores, x, expected, tmp_path, suffix, named):
    path = tmp_path / f"data{suffix}"
    array = np.load(x)
    match suffix:
        case ".npy":
            np.save(path, array)
        case ".npz":
            np.savez(path, x=array)
        case ".dat":
            nnef_jax.write_tensor(path, array)
    argument = f"x={path}" if named else path
    np.testing.assert_allclose(values(ok("run", scores, argument, "--json")), expected)


def test_run_takes_the_only_array_of_a_named_npz(scores, x, expected, tmp_path):
    np.savez(tmp_path / "some.npz", np.load(x))
    out = ok("run", scores, f"x={tmp_path / 'some.npz'}", "--json")
    np.testing.assert_allclose(values(out), expected)


@pytest.fixture
def operands(tmp_path):
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 2, 3)).astype(np.float32)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    np.savez(tmp_path / "both.npz", b=b, a=a)
    return a, b


@pytest.mark.parametrize(
    "arguments",
    ["{0}/a.npy {0}/b.npy", "b={0}/b.npy {0}/a.npy", "b={0}/b.npy a={0}/a.npy", "{0}/both.npz"],
)
def test_run_with_two_inputs(pair, operands, tmp_path, arguments):
    found = json.loads(ok("run", pair, *arguments.format(tmp_path).split(), "--json"))
    total, difference = found["results"][0]["outputs"]
    a, b = operands
    assert (total["name"], difference["name"]) == ("sum", "difference")
    np.testing.assert_allclose(total["values"], a + b, rtol=1e-6)
    np.testing.assert_allclose(difference["values"], a - b, rtol=1e-6)


def test_file_names_may_hold_equals_signs(scores, x, expected, tmp_path, monkeypatch):
    x.rename(tmp_path / "k=1.npy")
    monkeypatch.chdir(tmp_path)
    np.testing.assert_allclose(values(ok("run", scores, "k=1.npy", "--json")), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("{0}/a.npy", "no file is given for input 'b'"),
        ("", "no file is given for input 'a', 'b'"),
        ("{0}/a.npy {0}/b.npy {0}/a.npy", "3 files are given"),
        ("c={0}/a.npy", "no input 'c', its inputs are a, b"),
        ("a={0}/a.npy a={0}/b.npy {0}/b.npy", "only pictures"),
        ("{0}/both.npz a={0}/a.npy", "by name and by a .npz"),
        ("{0}/both.npz {0}/both.npz", "two .npz"),
        ("{0}/both.npz {0}/a.npy", "of which 0 have no file yet"),
        ("{0}/other.npz", "holds 'z'"),
        ("a={0}/three.npz {0}/b.npy", "no 'a'"),
        ("{0}/a.npy {0}/none.npy", "none.npy: No such file"),
        ("{0}/a.npy {0}/text.npy", "text.npy: no .npy file"),
        ("{0}/a.npy {0}/short.npy", "short.npy: no .npy file"),
        ("{0}/a.npy {0}/pickle.npy", "pickle.npy: no .npy file"),
        ("{0}/text.npz", "text.npz: no .npz file"),
        ("{0}/a.npy {0}/text.dat", "text.dat"),
        ("{0}/a.npy {0}/quantized.dat", "quantised"),
        ("{0}/a.npy {0}/b.txt", "not read from this kind of file"),
        ("{0}/a.npy {0}/folder.npy", "is a folder"),
        ("{0}/a.npy {0}/wrong.npy", "shape [3,2], the graph declares [2,3]"),
        ("{0}/a.npy {0}/int.npy", "dtype int64"),
    ],
)
def test_wrong_inputs(pair, operands, tmp_path, arguments, message):
    a, b = operands
    np.savez(tmp_path / "other.npz", z=a)
    np.savez(tmp_path / "three.npz", x=a, y=a, z=a)
    for name in ("text.npy", "text.npz", "text.dat"):
        (tmp_path / name).write_text("text")
    (tmp_path / "short.npy").write_bytes((tmp_path / "b.npy").read_bytes()[:-4])
    np.save(tmp_path / "pickle.npy", np.array([{}, 1], object), allow_pickle=True)
    nnef_jax.write_tensor(tmp_path / "quantized.dat", b.astype(np.uint8), quantized=True)
    (tmp_path / "folder.npy").mkdir()
    np.save(tmp_path / "wrong.npy", b.T)
    np.save(tmp_path / "int.npy", b.astype(np.int64))
    assert message in fails("run", pair, *arguments.format(tmp_path).split())


# Outputs


def test_top_with_labels(scores, x, expected, tmp_path):
    labels = tmp_path / "labels.txt"
    labels.write_text("ant\nbee, honey [b]\ncat\n")
    names = labels.read_text().splitlines()
    found = json.loads(ok("run", scores, x, "--top", 2, "--labels", labels, "--json"))
    for i, row in enumerate(found["results"][0]["outputs"][0]["top"]):
        order = sorted(range(3), key=lambda k: -expected[i, k])[:2]
        assert row["row"] == [i]
        assert [entry["index"] for entry in row["entries"]] == order
        assert [entry["label"] for entry in row["entries"]] == [names[k] for k in order]
        np.testing.assert_allclose([e["value"] for e in row["entries"]], expected[i, order])
    lines = ok("run", scores, x, "--top", 2, "--labels", labels).splitlines()
    assert lines[0] == "y: float32[2,3]"
    assert [line.strip() for line in lines if "row" in line] == ["row [0]", "row [1]"]
    best = int(expected[0].argmax())
    assert lines[2].split(None, 2) == [str(best), f"{expected[0, best]:g}", names[best]]


def test_top_of_maps_and_special_values(tmp_path):
    model = through(tmp_path / "m", [1, 5, 1, 1])
    given = np.array([np.nan, 2, np.inf, 2, -np.inf], np.float32)
    np.save(tmp_path / "x.npy", given.reshape(1, 5, 1, 1))
    found = json.loads(ok("run", model, tmp_path / "x.npy", "--top", 9, "--json"))
    (row,) = found["results"][0]["outputs"][0]["top"]
    assert [entry["index"] for entry in row["entries"]] == [2, 1, 3, 4, 0]
    shown = [entry["value"] for entry in row["entries"]]
    assert shown == ["Infinity", 2.0, 2.0, "-Infinity", "NaN"]
    everything = json.loads(ok("run", model, tmp_path / "x.npy", "--json"))
    nested = everything["results"][0]["outputs"][0]["values"]
    assert nested == [[[["NaN"]], [[2.0]], [["Infinity"]], [[2.0]], [["-Infinity"]]]]


def test_wrong_labels(scores, x, tmp_path):
    (tmp_path / "two.txt").write_text("one\ntwo\n")
    (tmp_path / "latin.txt").write_bytes(b"fa\xe7ade\n")
    options = ("run", scores, x, "--top", 1, "--labels")
    assert "2 labels, but rows of 'y' have 3 entries" in fails(*options, tmp_path / "two.txt")
    assert "latin.txt: no UTF-8" in fails(*options, tmp_path / "latin.txt")
    assert "none.txt" in fails(*options, tmp_path / "none.txt")
    code, _, err = call("run", scores, x, "--labels", tmp_path / "two.txt")
    assert code == 2 and "--top" in err


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".dat", ""])
def test_save_one_output(scores, x, expected, tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    file = path / "y.dat" if suffix == "" else path
    command = "run", scores, x, "--output", path
    assert ok(*command) == f"y: float32[2,3]\nsaved {file}\n"
    assert "exists already" in fails(*command)
    match suffix:
        case ".npy":
            saved = np.load(path)
        case ".npz":
            with np.load(path) as archive:
                assert archive.files == ["y"]
                saved = archive["y"]
        case _:
            saved = nnef_jax.read_tensor(file)
    np.testing.assert_allclose(saved, expected)
    assert saved.dtype == np.float32
    found = json.loads(ok(*command, "--overwrite", "--json"))
    assert found["files"] == [str(file)]
    assert found["results"][0]["outputs"] == [{"name": "y", "shape": [2, 3], "dtype": "float32"}]


def test_save_two_outputs(pair, operands, tmp_path):
    a, b = operands
    ok("run", pair, tmp_path / "both.npz", "-o", tmp_path / "out")
    np.testing.assert_allclose(nnef_jax.read_tensor(tmp_path / "out/sum.dat"), a + b, rtol=1e-6)
    np.testing.assert_allclose(
        nnef_jax.read_tensor(tmp_path / "out/difference.dat"), a - b, rtol=1e-6
    )
    err = fails("run", pair, tmp_path / "both.npz", "-o", tmp_path / "out.npy")
    assert "2 outputs: sum, difference" in err


def test_save_an_output_called_file(tmp_path):
    text = "graph g(self) -> (file) { self = external<scalar>(shape = [2]); file = copy(self); }"
    model = write(tmp_path / "m", f"version 1.0; {text}")
    np.save(tmp_path / "x.npy", np.array([1, 2], np.float32))
    ok("run", model, f"self={tmp_path / 'x.npy'}", "-o", tmp_path / "out.npz")
    assert zipfile.ZipFile(tmp_path / "out.npz").namelist() == ["file.npy"]


def test_output_into_a_missing_folder(scores, x, tmp_path):
    assert "none: No such" in fails("run", scores, x, "-o", tmp_path / "none/out.npz")


def test_outputs_of_different_shapes_are_not_saved_as_one(tmp_path):
    model = through(tmp_path / "m", [0, 1, 0, 0])
    paths = [picture(tmp_path / f"{i}.png", np.full((2 + i, 3), i)) for i in range(2)]
    err = fails("run", model, *paths, "-o", tmp_path / "out.npz")
    assert "[1,1,2,3], [1,1,3,3]" in err
    assert not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize(
    "options", ["--mean a", "--mean 1,,2", "--scale nan", "--layout wide", "--resize"]
)
def test_wrong_picture_options(scores, x, options):
    code, out, err = call("run", scores, x, *options.split())
    assert (code, out) == (2, "")
    assert options.split()[0] in err
