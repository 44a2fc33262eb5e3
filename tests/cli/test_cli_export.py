"""`nnef-jax export`: what jax makes of its file, and what wrong usage is told."""

from __future__ import annotations

import jax
import jax.export
import numpy as np
import pytest

from tests.cli_support import BIAS, FILTER, call, fails, linear_scores, ok, write


@pytest.fixture
def scores(tmp_path):
    return linear_scores(tmp_path / "scores")


def test_export_and_call(scores, tmp_path):
    net = tmp_path / "net.npz"
    out = ok("export", scores, "-o", net, "--platforms", "cpu, tpu", "--vjp-order", 1)
    assert out == f"exported scores for x: float32[?,4] on cpu, tpu\nsaved {net}\n"
    with np.load(net) as file:
        function = jax.export.deserialize(file["function"])
        params = {label: file[f"params/{label}.npy"] for label in ("bias", "dense/filter")}
    x = np.float32([[1, 2, 3, 4], [0, 1, 0, 0]])
    np.testing.assert_allclose(function.call(params, x), x @ FILTER.T + BIAS)
    slope = jax.grad(lambda x: function.call(params, x).sum())(x)
    np.testing.assert_allclose(slope, np.broadcast_to(FILTER.sum(0), x.shape))


def test_options(scores, tmp_path):
    net = tmp_path / "net"
    options = ("--params", "beside", "--entry", "scan", "--batch", "n", "--shape", "x=?,4")
    ok("export", scores, "-o", net, *options, "--constraint", "n >= 2")
    function = jax.export.deserialize(net.read_bytes())
    assert function.platforms == ("cpu", "cuda", "rocm", "tpu")
    assert str(function.in_avals[-1]) == "float32[time,n,4]"
    assert ok("export", scores, "-o", net, "--overwrite", "--shape", "x=3,4").startswith(
        "exported scores for x: float32[3,4] on "
    )


def test_errors(scores, tmp_path):
    net = tmp_path / "net"
    for options, message in (
        (("--platforms", "gpu"), "platforms has 'gpu', it may have cpu, cuda, rocm, tpu"),
        (("--platforms", ""), "platforms has ''"),
        (("--batch", "1"), "batch must be a name such as 'b', it is '1'"),
        (("--constraint", "c >= 2"), "constraints name 'c', the open extents are b"),
        (("--shape", "z=1,4"), "input_shapes names 'z', the graph's inputs are x"),
        (("--shape", "x=1"), "input_shapes gives 'x' rank 1"),
    ):
        assert message in fails("export", scores, "-o", net, *options)
    for options in (("--vjp-order", "3"), ("--params", "x"), ("--entry", "call"), ("--shape", "?")):
        assert call("export", scores, "-o", net, *options)[0] == 2
    assert call("export", scores)[0] == 2
    assert not net.exists()
    net.touch()
    assert "exists already" in fails("export", scores, "-o", net)
    assert "exists already" in fails("export", scores, "-o", "")
    missing = fails("export", scores, "-o", tmp_path / "none" / "net")
    assert "none: No such file or directory" in missing
    text = "graph g(x) -> (y) { x = external(shape = [0, 2]); y = softmax(x, axes = [4]); }"
    wrong = write(tmp_path / "wrong", f"version 1.0;\n{text}\n")
    assert "graph.nnef:2:" in fails("export", wrong, "-o", tmp_path / "other")
