"""Variables that grow from call to call, and those that start with what is computed."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from tests.openvino.documents import Writer

RNG = np.random.default_rng(0)
BATCH, WIDTH = 2, 3


def real(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def cache(starts: bool = True) -> Writer:
    """y = the sum over all times of a cache to which x is added: [batch,time,3] as decoders do.

    It starts empty, with the batch of x where it `starts` with what is computed.
    """
    net = Writer()
    x, beam = net.input("x", (-1, -1, WIDTH)), net.input("beam", (-1,), "i32")
    zero = net.constant(np.array(0), "zero")
    inputs: list[int] = []
    if starts:
        shape = net.layer("ShapeOf", [x], [(3,)], attributes={"output_type": "i64"})
        batch = net.layer("Gather", [shape, net.constant(np.array([0])), zero], [(1,)])
        rest = net.constant(np.array([0, WIDTH]))
        wanted = net.layer("Concat", [batch, rest], [(3,)], attributes={"axis": 0})
        empty = net.constant(np.float32(0))
        inputs = [net.layer("Broadcast", [empty, wanted], [(-1, 0, WIDTH)])]
    given = {"variable_id": "past", "variable_type": "f32", "variable_shape": f"?,?,{WIDTH}"}
    shape = (-1, -1, WIDTH)
    past = net.layer("ReadValue", inputs, [shape], attributes=given, opset="opset6")
    chosen = net.layer("Gather", [past, beam, zero], [shape], opset="opset8")
    present = net.layer("Concat", [chosen, x], [shape], attributes={"axis": 1}, name="present")
    net.layer("Assign", [present], [shape], attributes={"variable_id": "past"}, opset="opset6")
    axes = net.constant(np.array([1]))
    return net.result(net.layer("ReduceSum", [present, axes], [(-1, WIDTH)], name="y"))


def test_a_cache_grows(tmp_path: Path) -> None:
    model = cache().load(tmp_path)
    x, beam = real(BATCH, 4, WIDTH), np.arange(BATCH, dtype=np.int32)
    types = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (x, beam)]
    state = model.init_state(*types)
    assert state["past"].shape == (BATCH, 0, WIDTH)
    np.testing.assert_allclose(model(x, beam), x.sum(1), rtol=1e-5)
    y, state = model.step(state, x, beam)
    np.testing.assert_array_equal(state["past"], x)
    y, state = jax.jit(model.step)(state, x[:, :1], beam[::-1])  # the other one's past
    whole = np.concatenate([x[::-1], x[:, :1]], 1)
    np.testing.assert_array_equal(state["past"], whole)
    np.testing.assert_allclose(y, whole.sum(1), rtol=1e-5)
    slope = jax.grad(lambda past: model.step({"past": past}, x, beam)[0].sum())(state["past"])
    np.testing.assert_array_equal(slope, np.ones_like(whole))
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.step(state, x, beam)[0], model.step(state, x, beam)[0])
    fast = model.prepare(model.params, x, beam, state=state)
    found = model.step(state, x, beam, params=fast)[0]
    np.testing.assert_allclose(found, model.step(state, x, beam)[0], rtol=1e-6)


def test_a_window_of_it_is_one_loop(tmp_path: Path) -> None:
    """What is compiled does not depend on the length; zeros before the first item add nothing."""
    model, beam, window = cache(starts=False).load(tmp_path), jnp.arange(BATCH), 8

    @jax.jit
    def sums(xs: jax.Array) -> Any:
        def turn(past: jax.Array, x: jax.Array) -> Any:
            y, state = model.step({"past": past}, x[:, None], beam)
            return state["past"][:, -window:], y

        return jax.lax.scan(turn, jnp.zeros((BATCH, window, WIDTH)), xs)[1]

    xs = real(5, BATCH, WIDTH)
    np.testing.assert_allclose(sums(xs), np.cumsum(xs, 0), rtol=1e-5, atol=1e-6)
    assert model.init_state()["past"].shape == (0, 0, WIDTH)  # open extents without a start


def test_what_cannot_be_done_with_it(tmp_path: Path) -> None:
    path = cache().write(tmp_path)
    model, x, beam = nnef_jax.load(path), real(BATCH, 1, WIDTH), np.arange(BATCH)
    with pytest.raises(
        nnef_jax.InputError, match=r"'past' has shape \[2,0,3\] before .* must not change"
    ):
        model.scan(x[None], beam[None])
    with pytest.raises(nnef_jax.InputError, match=r"state: 'past' has shape \[2,0,4\]"):
        model.step({"past": np.zeros((BATCH, 0, 4))}, x, beam)
    with pytest.raises(nnef_jax.InputError, match="lacks past"):
        model.step({}, x, beam)
    with pytest.raises(nnef_jax.InputError, match="the shape of input 'x' is not known"):
        model.init_state()
    with pytest.raises(nnef_jax.InputError, match="the part has state 'past'"):
        model.cut(outputs=["present"])
    shapes = {"x": (BATCH, 1, WIDTH), "beam": (BATCH,)}
    closed = nnef_jax.load(path, input_shapes=shapes)
    assert closed.init_state()["past"].shape == (BATCH, 0, WIDTH)
    with pytest.raises(nnef_jax.UnsupportedError, match=r"net\.xml:1:.*variable 'past' starts"):
        closed.save(tmp_path / "saved.nnef.tgz")


def test_it_starts_with_an_input(tmp_path: Path) -> None:
    """The value of the first call, kept by a shape that stays."""
    net = Writer()
    x = net.input("x", (BATCH,))
    given = {"variable_id": "h", "variable_type": "f32", "variable_shape": f"{BATCH}"}
    double = net.layer("Add", [x, x], [(BATCH,)])
    read = net.layer("ReadValue", [double], [(BATCH,)], attributes=given, opset="opset6")
    after = net.layer("Multiply", [read, x], [(BATCH,)])
    net.layer("Assign", [after], [(BATCH,)], attributes={"variable_id": "h"}, opset="opset6")
    model, xs = net.result(after).load(tmp_path), real(3, BATCH)
    wanted = 2 * xs[0] * np.cumprod(xs, 0)
    np.testing.assert_allclose(model(xs[0]), wanted[0], rtol=1e-5)
    y, state = model.scan(xs)
    np.testing.assert_allclose(y, wanted, rtol=1e-5)
    y, state = model.step(model.init_state(xs[0]), xs[0])
    np.testing.assert_allclose(model.step(state, xs[1])[0], wanted[1], rtol=1e-5)
    with pytest.raises(nnef_jax.InputError, match="is computed from input 'x'"):
        model.init_state()


def test_what_nothing_writes_is_its_start(tmp_path: Path) -> None:
    net, given = Writer(), {"variable_id": "v", "variable_type": "f32", "variable_shape": "2,3"}
    x = net.input("x", (2, 3))
    past = net.layer("ReadValue", [x], [(2, 3)], attributes=given, opset="opset6")
    model = net.result(net.layer("Exp", [past], [(2, 3)])).load(tmp_path)
    assert not model.init_state()
    for x in (real(2, 3), real(2, 3)):
        np.testing.assert_allclose(model(x), np.exp(x), rtol=1e-6)


def test_what_is_written_before_it_is_read(tmp_path: Path) -> None:
    """A layer that writes does not depend on the one that reads: a delay by one call."""
    net = Writer()
    x = net.input("x", (2,))
    given = {"variable_id": "d"}
    net.layer("Assign", [x], [(2,)], attributes=given, opset="opset6")
    start = net.constant(np.float32([5, 6]).astype(np.float16), "s", "f16")
    wide = net.layer("Convert", [start], [(2,)], attributes={"destination_type": "f32"})
    read = net.layer("ReadValue", [wide], [(2,)], attributes=given, opset="opset3")
    model, xs = net.result(read).load(tmp_path), real(3, 2)
    np.testing.assert_array_equal(model.scan(xs)[0], [[5, 6], *xs[:-1]])


def test_a_cache_over_two_devices(tmp_path: Path) -> None:
    model, beam = cache().load(tmp_path), np.arange(BATCH, dtype=np.int32)
    sharded, x = model.shard(jax.make_mesh((2,), ("data",)), batch="data"), real(BATCH, 3, WIDTH)
    np.testing.assert_allclose(sharded(x, beam), x.sum(1), rtol=1e-5)
    y, state = sharded.step(sharded.init_state(x, beam), x, beam)
    np.testing.assert_allclose(y, x.sum(1), rtol=1e-5)
    np.testing.assert_array_equal(state["past"], x)
    assert state["past"].sharding.spec[0] == "data"


@pytest.mark.parametrize("starts", [True, False])
def test_what_nothing_writes_is_what_it_starts_with(starts: bool, tmp_path: Path) -> None:
    net = Writer()
    x = net.input("x", (-1, 2))
    given = {"variable_id": "m", "variable_type": "f32", "variable_shape": "?,2"}
    kept = net.layer("ReadValue", [x] if starts else [], [(-1, 2)], attributes=given)
    model = net.result(net.layer("ReLU", [kept], [(-1, 2)])).load(tmp_path)
    assert str(model.summary()) and not model.graph.states
    found = model(np.float32([[-1, 2]]))
    np.testing.assert_array_equal(found, [[0, 2]] if starts else np.zeros((0, 2)))


def test_memory_goes_by_what_the_runtime_of_2020_left_in_it(shared_cases: Path) -> None:
    """It set no start, see `state_layers`: what it recorded follows from a state of ones."""
    folder = shared_cases / "openvino" / "legacy"
    recorded = np.load(folder / "memory_rnn_fc.npz")
    model = nnef_jax.load(folder / "memory_rnn_fc.xml")
    assert all((x == 0).all() for x in model.init_state().values())
    state = jax.tree.map(jnp.ones_like, model.init_state())
    for cycle in ("", "step1/", "step2/"):
        found, state = model.step(state, recorded[f"{cycle}in/data"])
        np.testing.assert_allclose(found, recorded[f"{cycle}out/out"], rtol=1e-5, atol=1e-6)
