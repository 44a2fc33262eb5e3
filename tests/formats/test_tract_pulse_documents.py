"""Networks that were cut into pulses give, piece by piece, what the whole ones give at once."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from tests.helpers import model_of
from tests.tract_text import error, graph, model, run

PULSED = "extension tract_registry tract_pulse;\nextension tract_symbol S;\n"
RANDOM = np.random.default_rng(11)
SIGNAL = RANDOM.uniform(-1, 1, (1, 2, 48)).astype(np.float32)


def pieces(signal: np.ndarray, pulse: int) -> np.ndarray:
    """The pieces of a stream along its last axis, stacked."""
    *rest, length = signal.shape
    return np.moveaxis(signal.reshape(*rest, length // pulse, pulse), -2, 0)


def joined(outputs: Any) -> np.ndarray:
    return np.concatenate(list(np.asarray(outputs)), axis=-1)


def streamed(found: nnef_jax.Model, signal: np.ndarray, pulse: int) -> np.ndarray:
    """What a network gives piece by piece, the same by `step` and by `scan`."""
    state, results = found.init_state(), []
    for piece in pieces(signal, pulse):
        result, state = found.step(state, piece)
        results.append(np.asarray(result))
    together, last = found.scan(pieces(signal, pulse))
    np.testing.assert_allclose(together, results, rtol=1e-6, atol=1e-6)
    for label, value in last.items():
        np.testing.assert_allclose(value, state[label], rtol=1e-6, atol=1e-6)
    return joined(results)


# A stack of causal convolutions: kernels of 3, 3 with dilation 2, 2, then something by the side.

WEIGHTS = {
    "a": RANDOM.uniform(-1, 1, (4, 2, 3)).astype(np.float32),
    "b": RANDOM.uniform(-1, 1, (4, 4, 3)).astype(np.float32),
    "c": RANDOM.uniform(-1, 1, (2, 4, 2)).astype(np.float32),
}
VARIABLES = "".join(
    f"{n} = variable<scalar>(label = '{n}', shape = {list(w.shape)}); " for n, w in WEIGHTS.items()
)
WHOLE = graph(
    VARIABLES
    + """
    h = conv(x, a, 0.25, padding = [(2, 0)]);
    h = relu(h);
    h = conv(h, b, 0.0, padding = [(4, 0)], dilation = [2]);
    h = tanh(h);
    h = conv(h, c, 0.0, padding = [(1, 0)]);
    y = h + x;
    """,
    x="[1, 2, T] f32",
)
CUT = graph(
    VARIABLES
    + """
    h = conv(tract_pulse_delay(x, axis = 2, delay = 0, overlap = 2), a, 0.25, padding = [(0, 0)]);
    h = relu(h);
    h = tract_pulse_delay(h, axis = -1, delay = 0, overlap = 4);
    h = conv(h, b, 0.0, padding = [(0, 0)], dilation = [2]);
    h = tanh(h);
    h = tract_pulse_delay(h, axis = 2, delay = 0, overlap = 1);
    h = conv(h, c, 0.0, padding = [(0, 0)]);
    y = h + x;
    """,
    head=PULSED,
    x="[1, 2, 4] f32",
)


@cache
def whole() -> Any:
    return run(WHOLE, SIGNAL, data=WEIGHTS)


@pytest.mark.parametrize("pulse", [1, 4, 24])
def test_a_stack_of_convolutions(pulse: int) -> None:
    found = model_of(CUT.replace("[1, 2, 4]", f"[1, 2, {pulse}]"), data=WEIGHTS)
    assert sorted(found.params) == ["a", "b", "c"]
    assert len(found.init_state()) == 3
    np.testing.assert_allclose(streamed(found, SIGNAL, pulse), whole(), rtol=1e-5, atol=1e-5)


def test_the_length_of_a_pulse_may_be_given_to_load() -> None:
    text = CUT.replace("[1, 2, 4]", "[1, 2, S]")
    found = model_of(text, data=WEIGHTS, input_shapes={"x": (1, 2, 6)})
    np.testing.assert_allclose(streamed(found, SIGNAL, 6), whole(), rtol=1e-5, atol=1e-5)


def test_gradients_through_a_stream() -> None:
    all_of_it, cut = model_of(WHOLE, data=WEIGHTS), model_of(CUT, data=WEIGHTS)

    def by_pieces(params: Any) -> Any:
        return jnp.sum(cut.scan(pieces(SIGNAL, 4), params=params)[0] ** 2)

    def at_once(params: Any) -> Any:
        return jnp.sum(all_of_it.apply(params, SIGNAL) ** 2)

    got, wanted = jax.jit(lambda p: (jax.grad(by_pieces)(p), jax.grad(at_once)(p)))(cut.params)
    for label in wanted:
        np.testing.assert_allclose(got[label], wanted[label], rtol=1e-4, atol=1e-4)


# Single operations


@pytest.mark.parametrize(
    ("delay", "overlap", "pulse"),
    [(0, 0, 4), (3, 0, 4), (0, 3, 4), (5, 2, 2), (1, 9, 3), (8, 0, 4)],
)
def test_delay(delay: int, overlap: int, pulse: int) -> None:
    """A piece shows the stream `delay` late, from `overlap` before its own first item on."""
    text = graph(
        f"y = tract_pulse_delay(x, axis = 2, delay = {delay}, overlap = {overlap});",
        head=PULSED,
        x=f"[1, 2, {pulse}] f32",
    )
    found = model(text)
    padded = np.concatenate([np.zeros((1, 2, delay + overlap), np.float32), SIGNAL], -1)
    results, _ = found.scan(pieces(SIGNAL, pulse))
    assert found.outputs[0].shape == (1, 2, overlap + pulse)
    for index, got in enumerate(np.asarray(results)):
        wanted = padded[..., index * pulse : index * pulse + overlap + pulse]
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    ("begin", "end"), [(0, 99), (3, 9), (5, 6), (0, 0), (12, 99), (4, "S"), (2, 10**15)]
)
def test_mask(begin: int, end: Any) -> None:
    text = graph(
        f"y = tract_pulse_mask(x, axis = 2, begin = {begin}, end = {end}, value = -7.5);",
        head=PULSED,
        x="[1, 2, 4] f32",
    )
    places = np.arange(SIGNAL.shape[-1])
    last = 10**9 if end == "S" else end
    wanted = np.where((places >= begin) & (places < last), SIGNAL, -7.5)
    np.testing.assert_array_equal(streamed(model(text), SIGNAL, 4), wanted)


def test_padding_and_a_stride() -> None:
    """A convolution with two items of padding ahead of the stream, every second result."""
    filter = RANDOM.uniform(-1, 1, (3, 2, 3)).astype(np.float32)
    whole = graph(
        "w = variable<scalar>(label = 'w', shape = [3, 2, 3]);"
        "p = pad(x, [(0, 0), (0, 0), (2, 0)], value = 0.5);"
        "y = conv(p, w, stride = [2], padding = [(0, 0)]);",
        x="[1, 2, T] f32",
    )
    cut = graph(
        "w = variable<scalar>(label = 'w', shape = [3, 2, 3]);"
        "late = tract_pulse_delay(x, axis = 2, delay = 2, overlap = 0);"
        "padded = tract_pulse_pulse_pad(late, axis = 2, before = 2, after = 0, begin_input = 2,"
        " end_input = S + 2, border = 'constant', value = 0.5, overlap = 0);"
        "kept = tract_pulse_delay(padded, axis = 2, delay = 0, overlap = 2);"
        "y = conv(kept, w, stride = [2], padding = [(0, 0)]);",
        head=PULSED,
        x="[1, 2, 4] f32",
    )
    wanted = run(whole, SIGNAL, data={"w": filter})
    found = streamed(model_of(cut, data={"w": filter}), SIGNAL, 4)
    # The first result of the cut network is for items 2 before the stream.
    np.testing.assert_allclose(found[..., 1:], wanted[..., : found.shape[-1] - 1], atol=1e-5)


def test_the_same_name_and_no_name() -> None:
    """Each operation has a state of its own, whatever its result is called."""
    text = graph(
        "x = tract_pulse_delay(x, axis = 0, delay = 1, overlap = 0);"
        "x = tract_pulse_delay(x, axis = 0, delay = 1, overlap = 0);"
        "y = late(late(x)) + tract_pulse_delay(x, axis = 0, delay = 2, overlap = 0)"
        " + tract_pulse_delay(x, axis = 0, delay = 0, overlap = 0);",
        "fragment late( v: T ) -> ( y: T )\n"
        "{ y = neg(tract_pulse_delay(v, axis = 0, delay = 1, overlap = 0)); }",
        head=PULSED,
        x="[2] f32",
    )
    found = model(text)
    assert len(found.init_state()) == 5
    stream = np.arange(1, 13, dtype=np.float32)
    padded = np.concatenate([np.zeros(4, np.float32), stream])
    wanted = 2 * padded[: len(stream)] + padded[2 : 2 + len(stream)]
    np.testing.assert_array_equal(streamed(found, stream, 2), wanted)


def test_states_of_other_types() -> None:
    for type, dtype in (("f16", np.float16), ("i64", np.int32), ("bool", np.bool_)):
        text = graph(
            "y = tract_pulse_delay(x, axis = 0, delay = 1, overlap = 0);",
            head=PULSED,
            x=f"[2] {type}",
        )
        stream = np.array([1, 0, 1, 1, 0, 1], dtype)
        found, _ = model(text).scan(stream.reshape(3, 2))
        assert found.dtype == dtype
        np.testing.assert_array_equal(np.ravel(found), np.r_[np.zeros(1, dtype), stream[:-1]])


def test_a_call_is_one_cycle_from_the_start() -> None:
    text = graph(
        "y = tract_pulse_delay(x, axis = 0, delay = 1, overlap = 1);", head=PULSED, x="[3] f32"
    )
    found = model(text)
    for _ in range(2):
        np.testing.assert_array_equal(found(np.float32([1, 2, 3])), [0, 0, 1, 2])


@pytest.mark.parametrize(
    ("body", "message", "hint"),
    [
        (
            "§tract_pulse_delay(x, axis = 3, delay = 1, overlap = 0)",
            "'axis' must lie in [-1,1)",
            "",
        ),
        ("§tract_pulse_delay(x, axis = 0, delay = -1, overlap = 0)", "must not be negative", ""),
        ("§tract_pulse_delay(x, axis = 0, delay = x, overlap = 0)", "'x' must be known", ""),
        ("§tract_pulse_delay(x, axis = 0, delay = 1)", "lacks its argument 'overlap'", ""),
        ("§tract_pulse_mask(x, axis = 1, begin = 0, end = 1, value = 0.0)", "'axis' must", ""),
        (
            "§tract_pulse_delay(x, 0, 99999999999999, 0)",
            "a state of 99999999999999 items",
            "Limits",
        ),
        (
            "§tract_pulse_pulse_pad(x, 0, 1, 1, 1, 9, 'reflect', 0.0, 0)",
            "must be 'constant' here, it is 'reflect'",
            "",
        ),
        (
            "§slice(x, axes = [0], begin = [0], end = [S])",
            "depends on more than the input shapes",
            "",
        ),
        ("x §+ S", "depends on more than the input shapes", ""),
    ],
)
def test_wrong_pulses(body: str, message: str, hint: str) -> None:
    found = error(graph(f"y = {body};", head=PULSED, x="[3] f32"))
    assert message in found.message and hint in found.hint


def test_an_open_pulse() -> None:
    body = "y = §tract_pulse_delay(x, axis = 0, delay = 1, overlap = 0);"
    found = error(graph(body, head=PULSED, x="[S] f32"))
    assert "the length of a pulse must be known" in found.message
    assert "input_shapes" in found.hint


def test_no_state_in_the_body_of_a_scan() -> None:
    fragment = (
        "fragment f( a: T ) -> ( y: T )\n"
        "{ y = §tract_pulse_delay(a, axis = 0, delay = 1, overlap = 0); }"
    )
    body = (
        "y = tract_core_scan(body = 'f', scan = [('a', x, 0, 1)], full = [], state = [],"
        " output = [('y', 'full', 0, 1)]);"
    )
    found = error(graph(body, fragment, head=PULSED))
    assert "cannot keep a state" in found.message
