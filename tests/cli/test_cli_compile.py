"""`nnef-jax compile`, and what `run` finds of it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cli_support import call, fails, linear_scores, ok, write

SUM = """version 1.0;
graph sum(x) -> (y) {
    x = external<scalar>(shape = [2]);
    total = variable<scalar>(shape = [2], label = 'total');
    y = add(total, x);
    next = update(total, y);
}
"""


@pytest.fixture
def scores(tmp_path):
    return linear_scores(tmp_path / "scores")


def entries(folder):
    return len(list(folder.glob("*.xla")))


def test_compile_and_run(scores, tmp_path):
    cache = tmp_path / "cache"
    out = ok("compile", scores, "--cache-dir", cache, "--shape", "x=2,4")
    assert out == f"compiled scores for x: float32[2,4]\nkept in {cache}\n"
    assert entries(cache) == 1
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    found = ok("run", scores, tmp_path / "x.npy", "--cache-dir", cache)
    assert entries(cache) == 1
    assert found == ok("run", scores, tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.ones((3, 4), np.float32))
    ok("run", scores, tmp_path / "x.npy", "--cache-dir", cache)
    assert entries(cache) == 2


def test_a_recurrent_network_is_compiled_for_steps_too(tmp_path):
    network = write(tmp_path / "sum", SUM, total=np.zeros(2, np.float32))
    ok("compile", network, "--cache-dir", tmp_path / "cache")
    assert entries(tmp_path / "cache") == 2


def test_an_open_shape_is_asked_for(scores, tmp_path):
    message = fails("compile", scores, "--cache-dir", tmp_path / "cache")
    assert "the shape of input 'x' is not known, it is [?,4]" in message
    assert "--shape x=1,4" in message


def test_wrong_shapes(scores, tmp_path):
    for shape in ("2,4", "x=2,-4", "x=0,4", "x=a"):
        code, _, err = call("compile", scores, "--cache-dir", tmp_path / "c", "--shape", shape)
        assert code == 2
        assert "is not a name and extents as in x=?,3,224,224" in err
    message = fails("compile", scores, "--cache-dir", tmp_path / "c", "--shape", "z=1,4")
    assert "input_shapes names 'z', the graph's inputs are x" in message


def test_a_folder_that_is_none(scores, tmp_path):
    (tmp_path / "file").touch()
    message = fails("run", scores, "--cache-dir", tmp_path / "file")
    assert "cannot be used: it is not a folder" in message
    for command in (("run", scores), ("compile", scores, "--shape", "x=1,4")):
        assert "cache_dir '' cannot be used: it is empty" in fails(*command, "--cache-dir", "")


GATE = """version 1.0;
graph gate(x) -> (y) {
    x = external<scalar>(shape = [2]);
    s = sigmoid(x);
    y = mul(x, s);
}
"""


def test_programs_are_printed_after_passes(tmp_path):
    network = write(tmp_path / "gate", GATE)
    out = ok("compile", network, "--print-after", "folding", "--print-after", "gates")
    lines = out.splitlines()
    heads = [line for line in lines if not line.startswith((" ", "program("))]
    assert heads == [
        "after folding for all platforms: as before",
        "after folding for cpu: as before",
        "after gates for cpu:",
        "compiled gate for x: float32[2]",
    ]
    assert "logistic" not in out and any("= div " in x and "# y " in x for x in lines)


def test_a_pass_that_there_is_not(scores, tmp_path):
    code, out, err = call("compile", scores, "--print-after", "gate")
    assert (code, out) == (2, "")
    assert "'gate' is not one of inlining, folding, " in err and ", all" in err
    cache = tmp_path / "cache"
    code, _, err = call("compile", scores, "--print-after", "all", "--cache-dir", cache)
    assert code == 2 and "does not go with --cache-dir" in err and not cache.exists()
