"""Inputs that take outputs in the next call: `load(..., state=...)`, in both dialects."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from tests.helpers import model_of

STANDARD = """version 1.0;
extension KHR_enable_operator_expressions;
graph sums(x, kept) -> (y, next)
{
    x = external(shape = [1, 3]);
    kept = external(shape = [1, 3]);
    next = 0.5 * kept + x;
    y = next * 2.0;
}
"""
TRACT = """version 1.0;
extension tract_registry tract_core;
extension tract_symbol B;
graph sums(x, kept) -> (y, next)
{
    x = tract_core_external(shape = [B, 3], datum_type = 'f32');
    kept = tract_core_external(shape = [B, 3], datum_type = 'f32');
    next = 0.5 * kept + x;
    y = next * 2.0;
}
"""
SHAPES = {"x": (1, 3), "kept": (1, 3)}
XS = np.arange(12, dtype=np.float32).reshape(4, 1, 3)


def expected(kept: np.ndarray) -> np.ndarray:
    ys = []
    for x in XS:
        kept = 0.5 * kept + x
        ys.append(2 * kept)
    return np.stack(ys)


@pytest.fixture(params=[STANDARD, TRACT], ids=["standard", "tract"])
def model(request: pytest.FixtureRequest) -> nnef_jax.Model:
    return model_of(request.param, state={"kept": "next"}, input_shapes=SHAPES)


def test_state_is_no_input_and_no_output(model: nnef_jax.Model) -> None:
    assert [spec.name for spec in model.inputs] == ["x"]
    assert [spec.name for spec in model.outputs] == ["y"]
    (label,) = model.init_state()
    assert label == "kept"
    np.testing.assert_array_equal(model.init_state()["kept"], np.zeros((1, 3)))


def test_steps_and_scan_pass_it_on(model: nnef_jax.Model) -> None:
    state = model.init_state()
    for x, y in zip(XS, expected(np.zeros((1, 3))), strict=True):
        got, state = model.step(state, x)
        np.testing.assert_allclose(got, y, rtol=1e-6)
    ys, last = model.scan(XS)
    np.testing.assert_allclose(ys, expected(np.zeros((1, 3))), rtol=1e-6)
    np.testing.assert_allclose(last["kept"], state["kept"], rtol=1e-6)


def test_scan_starts_from_a_given_state_and_has_a_gradient(model: nnef_jax.Model) -> None:
    start = np.full((1, 3), 8, np.float32)
    ys, _ = model.scan(XS, state={"kept": start})
    np.testing.assert_allclose(ys, expected(start), rtol=1e-6)
    gradient = jax.grad(lambda kept: jnp.sum(model.scan(XS, state={"kept": kept})[0]))(start)
    np.testing.assert_allclose(gradient, np.full((1, 3), 2 * (0.5 + 0.25 + 0.125 + 0.0625)))


def test_saved_network_has_the_document_s_inputs(model: nnef_jax.Model, tmp_path: Path) -> None:
    model.save(tmp_path / "sums")
    assert [path.name for path in (tmp_path / "sums").iterdir()] == ["graph.nnef"]
    again = nnef_jax.load(tmp_path / "sums", input_shapes=SHAPES)
    assert [spec.name for spec in again.inputs] == ["x", "kept"]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"kapt": "next"}, "state names 'kapt', the graph's inputs are x, kept"),
        ({"kept": "y2"}, "state names 'y2', the graph's outputs are y, next"),
    ],
)
def test_wrong_names(state: dict[str, str], message: str) -> None:
    with pytest.raises(nnef_jax.InputError, match=message):
        model_of(STANDARD, state=state)


def test_open_shape_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(
        nnef_jax.InputError, match=r"the shape of state 'kept' is not known"
    ) as info:
        model_of(TRACT, state={"kept": "next"})
    assert "input_shapes" in info.value.hint


def test_types_must_agree() -> None:
    text = STANDARD.replace("next = 0.5 * kept + x;", "next = kept > x;").replace(
        "next * 2.0", "x * 2.0"
    )
    with pytest.raises(nnef_jax.InputError, match=r"'next' is bool\[1,3\], it cannot be state"):
        model_of(text, state={"kept": "next"})


@pytest.mark.parametrize("kept", (False, True), ids=["jitted", "kept"])
def test_a_donated_state_gives_its_memory(kept: bool, tmp_path: Path) -> None:
    folder = tmp_path if kept else None
    for _ in range(2):  # compiled, and found again where it is kept
        model = model_of(STANDARD, state={"kept": "next"}, donate_state=True, cache_dir=folder)
        first = state = model.init_state()
        for x, wanted in zip(XS, expected(np.zeros((1, 3))), strict=True):
            before = state
            y, state = model.step(state, x)
            np.testing.assert_array_equal(y, wanted)
            assert before["kept"].is_deleted()
        assert first["kept"].is_deleted()
        # The model's own state is as it was, and so is what others hold.
        np.testing.assert_array_equal(model.init_state()["kept"], np.zeros((1, 3)))
        mine = np.ones((1, 3), np.float32)
        mine.flags.writeable = False
        y, _ = model.step({"kept": mine}, XS[1])
        np.testing.assert_array_equal(y, 2 * (0.5 + XS[1]))
        np.testing.assert_array_equal(mine, np.ones((1, 3)))
        np.testing.assert_array_equal(model.scan(XS)[0], expected(np.zeros((1, 3))))


def test_a_stored_state_is_not_overwritten(tmp_path: Path) -> None:
    text = """version 1.0;
extension KHR_enable_operator_expressions;
graph g( x ) -> ( y )
{
    x = external(shape = [64,1024]);
    s = variable(shape = [64,1024], label = 's');
    y = s + x;
    z = update(s, y);
}
"""
    stored = np.ones((64, 1024), np.float32)
    model_of(text, data={"s": stored}).save(tmp_path / "net")
    model = nnef_jax.load(tmp_path / "net", donate_state=True)  # from the mapped file
    state = model.init_state()
    for _ in range(3):
        _, state = model.step(state, stored)
    np.testing.assert_array_equal(state["s"], 4 * stored)
    np.testing.assert_array_equal(nnef_jax.load(tmp_path / "net").init_state()["s"], stored)


def test_each_donated_state_becomes_its_own_next_one() -> None:
    """Labels that are not in order, of one shape: the wrong one's memory would need a copy."""
    labels = ["b10", "b9", "a"]
    lines = [f"{x} = variable<scalar>(label = '{x}', shape = [4, 4]);" for x in labels]
    for i, label in enumerate(labels):
        lines += [f"m{label} = mul(x, {i + 1}.0); n{label} = add({label}, m{label});"]
        lines += [f"u{label} = update({label}, n{label});"]
    body = "x = external<scalar>(shape = [4, 4]); " + " ".join(lines)
    text = f"version 1.0; graph net(x) -> (y) {{ {body} y = sum_reduce(na, axes = [1]); }}"
    data = {x: np.full((4, 4), i, np.float32) for i, x in enumerate(labels)}
    model = model_of(text, data=data, donate_state=True)
    x, state = jnp.ones((4, 4)), model.init_state()
    for turn in range(1, 4):
        _, state = model.step(state, x)
        for i, label in enumerate(labels):
            np.testing.assert_array_equal(state[label], i + (i + 1) * turn)
    places = {label: x.unsafe_buffer_pointer() for label, x in state.items()}
    _, state = model.step(state, x)
    assert {label: x.unsafe_buffer_pointer() for label, x in state.items()} == places


def test_the_initial_state_may_be_donated(model: nnef_jax.Model) -> None:
    step = jax.jit(model.step, donate_argnums=0)
    expected, _ = model.step(model.init_state(), XS[0])
    for _ in range(2):
        y, _ = step(model.init_state(), XS[0])
        np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(model(XS[0]), expected)
