"""Helpers of the command line's tests: running it in this process, and small networks."""

from __future__ import annotations

import contextlib
import io
import json
import sys

import numpy as np
from PIL import Image

import nnef_jax
from nnef_jax import cli

FILTER = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
BIAS = np.array([[0.5, -1.0, 2.0]], np.float32)
_SCORES = """version 1.0;
graph scores(x) -> (y) {
    x = external<scalar>(shape = [0, 4]);
    filter = variable<scalar>(shape = [3, 4], label = 'dense/filter');
    bias = variable<scalar>(shape = [1, 3], label = 'bias');
    y = linear(x, filter, bias);
}
"""


def call(*args):
    """Run the command line; return exit code, stdout, stderr."""
    out, err, hook = io.StringIO(), io.StringIO(), sys.excepthook
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main([str(arg) for arg in args])
        finally:
            sys.excepthook = hook  # which typer sets
    assert "\x1b" not in out.getvalue() + err.getvalue()
    return code, out.getvalue(), err.getvalue()


def ok(*args):
    """Run the command line, which must succeed; return stdout."""
    code, out, err = call(*args)
    assert (code, err) == (0, "")
    return out


def fails(*args):
    """Run the command line, which must report an error of the user; return stderr."""
    code, out, err = call(*args)
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    return err


def write(folder, text, **variables):
    """Write a network to a folder: its text, and arrays by label."""
    folder.mkdir(exist_ok=True)
    (folder / "graph.nnef").write_text(text)
    for label, array in variables.items():
        nnef_jax.write_tensor(folder / f"{label}.dat", array)
    return folder


def through(folder, shape):
    """Write a network that returns its input, so that outputs show how a picture was read."""
    text = f"graph g(x) -> (y) {{ x = external<scalar>(shape = {shape}); y = copy(x); }}"
    return write(folder, f"version 1.0;\n{text}\n")


def linear_scores(folder):
    """Write a network that computes x @ FILTER.T + BIAS for x of any batch."""
    (folder / "dense").mkdir(parents=True)
    nnef_jax.write_tensor(folder / "dense/filter.dat", FILTER)
    return write(folder, _SCORES, bias=BIAS)


def picture(path, pixels, **options):
    """Write a picture of 8 bits, in the format of the path's suffix."""
    Image.fromarray(np.asarray(pixels, np.uint8)).save(path, **options)
    return path


def values(text, result=0):
    """Return the only output of a result in JSON."""
    (output,) = json.loads(text)["results"][result]["outputs"]
    array = np.array(output["values"])
    assert list(array.shape) == output["shape"]
    return array
