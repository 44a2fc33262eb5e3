"""`nnef-jax run` for one answer compiles the network as it is written, if nothing is compiled."""

from __future__ import annotations

import numpy as np
import pytest

import nnef_jax
from nnef_jax.execution import definition, execution
from tests.cli_support import ok, picture, write

NET = """version 1.0;
graph net(x) -> (y) {
    x = external<scalar>(shape = [1,1,6,6]);
    f = variable<scalar>(shape = [4,1,3,3], label = 'f');
    g = variable<scalar>(shape = [4,1,3,3], label = 'g');
    y = relu(conv(relu(conv(x, f, 0.0)), g, 0.0, groups = 0));
}
"""


@pytest.fixture
def net(tmp_path):
    random = np.random.default_rng(0)
    arrays = {label: random.normal(size=(4, 1, 3, 3)).astype(np.float32) for label in "fg"}
    return write(tmp_path / "net", NET, **arrays)


@pytest.fixture
def traced(monkeypatch):
    """Whether functions that were traced are optimised, in order."""
    found = []
    cycle = definition.Definition.cycle

    def spy(self, *args, **options):
        found.append(self.options.optimize)
        return cycle(self, *args, **options)

    monkeypatch.setattr(definition.Definition, "cycle", spy)
    return found


@pytest.fixture
def run(net, tmp_path):
    """Run on an array: the output."""
    x = np.random.default_rng(1).normal(size=(1, 1, 6, 6)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)

    def run(*options):
        ok("run", net, tmp_path / "x.npy", "-o", tmp_path / "y.npy", "--overwrite", *options)
        return np.load(tmp_path / "y.npy")

    run.wanted = np.asarray(nnef_jax.load(net)(x))
    return run


def entries(folder):
    return {path.name for path in folder.glob("*.xla")}


def test_one_answer_is_of_the_literal_form(run, net, tmp_path, traced):
    cache = tmp_path / "cache"
    first = run("--cache-dir", cache)
    assert True not in traced
    np.testing.assert_allclose(first, run.wanted, rtol=1e-4, atol=1e-5)
    literal = entries(cache)
    assert len(literal) == 1
    traced.clear()
    np.testing.assert_array_equal(run("--cache-dir", cache), first)
    assert traced == []  # it was found
    ok("compile", net, "--cache-dir", cache)
    assert True in traced
    assert len(entries(cache)) == 2
    traced.clear()
    np.testing.assert_array_equal(run("--cache-dir", cache), run.wanted)
    assert traced == []  # what is compiled is taken
    assert len(entries(cache)) == 2


def test_one_answer_without_a_cache(run, traced):
    np.testing.assert_allclose(run("--no-cache"), run.wanted, rtol=1e-4, atol=1e-5)
    assert True not in traced


def test_a_long_call_is_worth_more(run, monkeypatch, traced):
    monkeypatch.setattr(execution, "_MULTIPLY_ADDS_WORTH_COMPILING", 1)
    np.testing.assert_array_equal(run("--no-cache"), run.wanted)
    assert True in traced


def test_so_are_several_calls(net, tmp_path, traced):
    pictures = [picture(tmp_path / f"{i}.png", np.full((6, 6), 9 * i)) for i in range(2)]
    ok("run", net, *pictures, "--no-cache")
    assert True in traced
    traced.clear()
    ok("run", net, pictures[0], "--no-cache")
    assert True not in traced
