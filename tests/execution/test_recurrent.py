"""Networks with state: step, scan, gradients through time, state saved and loaded (spec 4.7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from tests.helpers import COMPOSITIONAL, model_of

# y is the sum of all inputs so far; `before` reads the old value in the same cycle.
SUM = """
version 1.0;
graph sum( x ) -> ( y, before )
{
    x = external(shape = [1,2]);
    s = variable(shape = [1,2], label = 's');
    t = add(s, x);
    y = update(s, t);
    before = copy(s);
}
"""

GRU = (
    COMPOSITIONAL
    + """
fragment gate( x: tensor<scalar>, h: tensor<scalar>, w: tensor<scalar>, u: tensor<scalar> )
-> ( y: tensor<scalar> )
{
    y = linear(x, w) + linear(h, u);
}
graph gru( x ) -> ( y )
{
    x = external(shape = [2,3]);
    h = variable(shape = [2,4], label = 'h');
    wz = variable(shape = [4,3], label = 'wz');
    uz = variable(shape = [4,4], label = 'uz');
    wr = variable(shape = [4,3], label = 'wr');
    ur = variable(shape = [4,4], label = 'ur');
    wn = variable(shape = [4,3], label = 'wn');
    un = variable(shape = [4,4], label = 'un');
    z = sigmoid(gate(x, h, wz, uz));
    r = sigmoid(gate(x, h, wr, ur));
    n = tanh(gate(x, r * h, wn, un));
    y = update(h, (1.0 - z) * n + z * h);
}
"""
)

SHIFT = """
version 1.0;
graph shift( x ) -> ( y )
{
    x = external<integer>(shape = [1]);
    a = variable<integer>(shape = [1], label = 'a');
    b = variable<integer>(shape = [1], label = 'b');
    u = update(a, x);
    y = update(b, a);
}
"""


def gru_arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {
        "h": (2, 4),
        "wz": (4, 3),
        "uz": (4, 4),
        "wr": (4, 3),
        "ur": (4, 4),
        "wn": (4, 3),
        "un": (4, 4),
    }
    return {k: random.uniform(-1, 1, s).astype(np.float32) for k, s in shapes.items()}


def gru_by_hand(p: dict[str, Any], xs: np.ndarray) -> np.ndarray:
    sigmoid = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
    p = {k: np.asarray(v, np.float64) for k, v in p.items()}
    h, outputs = p["h"], []
    for x in xs.astype(np.float64):
        z = sigmoid(x @ p["wz"].T + h @ p["uz"].T)
        r = sigmoid(x @ p["wr"].T + h @ p["ur"].T)
        n = np.tanh(x @ p["wn"].T + (r * h) @ p["un"].T)
        h = (1 - z) * n + z * h
        outputs.append(h)
    return np.stack(outputs)


def test_old_value_is_read_in_the_cycle_that_updates_it() -> None:
    model = model_of(SUM, data={"s": np.float32([[10, 20]])})
    state = model.init_state()
    assert state.keys() == {"s"} and model.params == {}
    for total in ([11, 22], [12, 24]):
        outputs, state = model.step(state, np.float32([[1, 2]]))
        np.testing.assert_array_equal(outputs.y, [total])
        np.testing.assert_array_equal(outputs.before, np.float32([total]) - [[1, 2]])
        np.testing.assert_array_equal(state["s"], [total])


def test_call_runs_one_cycle_from_the_initial_state() -> None:
    model = model_of(SUM, data={"s": np.float32([[1, 1]])})
    for _ in range(2):
        np.testing.assert_array_equal(model(np.float32([[1, 2]])).y, [[2, 3]])


def test_gru_scan_equals_steps_and_numpy() -> None:
    arrays = gru_arrays()
    model = model_of(GRU, data=arrays)
    xs = np.random.default_rng(1).uniform(-1, 1, (7, 2, 3)).astype(np.float32)
    wanted = gru_by_hand(arrays, xs)
    ys, last = model.scan(xs)
    np.testing.assert_allclose(ys, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last["h"], wanted[-1], rtol=1e-5, atol=1e-6)
    state = model.init_state()
    for x, want in zip(xs, wanted, strict=True):
        y, state = model.step(state, x)
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
    halves, middle = model.scan(xs[:3])
    rest, _ = model.scan(xs[3:], state=middle)
    np.testing.assert_allclose(np.concatenate([halves, rest]), wanted, rtol=1e-5, atol=1e-6)


def test_gradient_through_time() -> None:
    arrays = gru_arrays()
    model = model_of(GRU, data=arrays)
    xs = np.random.default_rng(2).uniform(-1, 1, (5, 2, 3)).astype(np.float32)

    def loss(params: dict[str, jax.Array], xs: jax.Array) -> jax.Array:
        return jnp.sum(model.scan(xs, params=params)[0][-1])

    gradient, by_input = jax.jit(jax.grad(loss, argnums=(0, 1)))(model.params, xs)
    step = 1e-6
    for label, index in (("uz", (1, 2)), ("wn", (3, 0))):
        moved = [gru_by_hand(_moved(arrays, label, index, s), xs)[-1].sum() for s in (step, -step)]
        np.testing.assert_allclose(
            gradient[label][index], (moved[0] - moved[1]) / (2 * step), rtol=1e-3
        )
    first = np.zeros(xs.shape)
    first[0, 0, 1] = step
    moved = [gru_by_hand(arrays, xs + s * first)[-1].sum() for s in (1, -1)]
    np.testing.assert_allclose(
        by_input[0, 0, 1], (moved[0] - moved[1]) / (2 * step), rtol=1e-3, atol=1e-6
    )


def _moved(
    arrays: dict[str, np.ndarray], label: str, index: tuple[int, ...], by: float
) -> dict[str, np.ndarray]:
    array = arrays[label].astype(np.float64)
    array[index] += by
    return {**arrays, label: array}


def test_scan_is_one_loop_whatever_the_length() -> None:
    model = model_of(GRU, data=gru_arrays())
    lengths = [
        len(
            str(
                jax.make_jaxpr(lambda xs: model.scan(xs, params=model.params))(jnp.zeros((n, 2, 3)))
            )
        )
        for n in (4, 4000)
    ]
    assert abs(lengths[0] - lengths[1]) < 100


def test_shift_register_of_integers() -> None:
    model = model_of(SHIFT, data={"a": np.int32([5]), "b": np.int32([7])})
    ys, state = model.scan(np.int32([[1], [2], [3], [4]]))
    # b takes the value that a had before it took x, so y lags x by one cycle.
    np.testing.assert_array_equal(ys, [[5], [1], [2], [3]])
    np.testing.assert_array_equal(state["a"], [4])
    np.testing.assert_array_equal(state["b"], [3])


def test_state_is_saved_into_the_archive(tmp_path: Path) -> None:
    model = model_of(SUM, data={"s": np.float32([[0, 0]])})
    _, state = model.scan(np.ones((5, 1, 2), np.float32))
    model.save(tmp_path / "later", state=state)
    np.testing.assert_array_equal(nnef_jax.load(tmp_path / "later").init_state()["s"], [[5, 5]])


def test_vmap_over_sequences() -> None:
    model = model_of(SUM, data={"s": np.float32([[0, 0]])})
    xs = np.random.default_rng(3).integers(0, 9, (3, 4, 1, 2)).astype(np.float32)
    ys = jax.vmap(lambda x: model.scan(x, params={})[0].y)(xs)
    np.testing.assert_array_equal(ys, xs.cumsum(1))


def test_what_does_not_fit_is_refused() -> None:
    model = model_of(SUM, data={"s": np.float32([[0, 0]])})
    x = np.ones((1, 2), np.float32)
    with pytest.raises(nnef_jax.InputError, match="state lacks s"):
        model.step({}, x)
    with pytest.raises(nnef_jax.InputError, match=r"'s' has shape \[2\]"):
        model.step({"s": np.zeros(2, np.float32)}, x)
    with pytest.raises(nnef_jax.InputError, match="after the axis of time"):
        model.scan(x)
