"""What archives of tract's own writer taught: codes of quantised tensors, networks for streams."""

from __future__ import annotations

import numpy as np
import pytest

import nnef_jax
from tests.helpers import archive, model_of
from tests.tract_files import tensor

HEAD = "version 1.0;\nextension tract_registry tract_core;\n"
ENTRY = "zero_point_linear_quantize(zero_point = {}, scale = {}, bits = 8, signed = {});\n"


def quantised(body: str, inputs: str, outputs: str, **entries: str) -> nnef_jax.Model:
    quant = "".join(f'"{name}": {entry}' for name, entry in entries.items())
    text = f"{HEAD}graph net({inputs}) -> ({outputs})\n{{\n{body}\n}}\n"
    return nnef_jax.load(archive(graph=text, quant=quant))


# Integers that get the name of a quantised tensor are its codes


def test_codes_stay_codes() -> None:
    model = quantised(
        """
        u = tract_core_external(shape = [4], datum_type = 'u8');
        q = tract_core_cast(u, to = 'u8');
        r = tract_core_cast(u);
        real = tract_core_cast(q, to = 'f32');
        same = tract_core_cast(r, to = 'f32');
        codes = tract_core_cast(q, to = 'i32');
        sum = add(q, 1.0);
        """,
        "u",
        "real, same, codes, sum",
        q=ENTRY.format(10, 0.5, "false"),
        r=ENTRY.format(10, 0.5, "false"),
    )
    real, same, codes, total = model(np.array([0, 10, 11, 255], np.uint8))
    np.testing.assert_array_equal(real, [-5, 0, 0.5, 122.5])
    np.testing.assert_array_equal(same, real)
    np.testing.assert_array_equal(codes, [0, 10, 11, 255])
    np.testing.assert_array_equal(total, np.asarray(real) + 1)


def test_codes_of_rounded_numbers() -> None:
    model = quantised(
        """
        x = external(shape = [5]);
        q = copy(x);
        codes = tract_core_cast(q, to = 'i8');
        """,
        "x",
        "codes",
        q=ENTRY.format(-3, 0.1, "true"),
    )
    found = model(np.array([0, 1, -1, 0.26, 99], np.float32))
    np.testing.assert_array_equal(found, [-3, 7, -13, 0, 127])
    assert found.dtype == np.int8


@pytest.mark.parametrize("quantization", ["apply", "ignore"])
def test_products_of_codes(quantization: str) -> None:
    """A convolution takes the codes of its input and its filter, whatever their entries say."""
    random = np.random.default_rng(0)
    codes = random.integers(0, 256, (1, 2, 5), np.uint8)
    weights = random.integers(-128, 128, (3, 2, 2), np.int8)
    text = f"""{HEAD}graph net(u) -> (y)
    {{
        u = tract_core_external(shape = [1, 2, 5], datum_type = 'u8');
        x = tract_core_cast(u, to = 'u8');
        w = variable(label = 'w', shape = [3, 2, 2]);
        y = tract_core_qconv(x, w, tract_core_cast([1, 2, -3], to = 'i32'), padding = [(0, 0)],
            border = 'constant', b0 = 7, b_scale = 0.5, a0 = [0, 1, 2],
            a_scale = [0.125, 0.25, 0.5], c0 = 4, c_scale = 2.0, output_dt = 'i32');
    }}
    """
    quant = '"x": ' + ENTRY.format(7, 0.5, "false") + '"w": ' + ENTRY.format(0, 0.1, "true")
    members = {"graph": text, "quant": quant, "w": tensor((3, 2, 2), 8, 3, weights.tobytes())}
    model = nnef_jax.load(archive(**members), quantization=quantization)

    x, w = codes.astype(int) - 7, weights.astype(int) - np.array([0, 1, 2])[:, None, None]
    total = np.array([[(x[0, :, i : i + 2] * f).sum() for i in range(4)] for f in w])
    total += np.array([[1], [2], [-3]])
    wanted = np.rint(total * np.array([[0.125], [0.25], [0.5]]) * 0.5 / 2) + 4
    np.testing.assert_array_equal(model(codes)[0], wanted)


# Networks for a stream, which comes in pieces

PULSED = HEAD + "extension tract_registry tract_pulse;\nextension tract_symbol S;\n"
TURN = """
fragment turn( x: tensor<scalar>, s: tensor<scalar> ) -> ( next: tensor<scalar> )
{ next = add(mul(s, 0.5), x); }
"""


def in_pieces(model: nnef_jax.Model, stream: np.ndarray, pulse: int) -> np.ndarray:
    """The results of a network for pieces of a stream along axis 0, by steps and all at once."""
    pieces = stream.reshape(-1, pulse, *stream.shape[1:])
    state, stepped = model.init_state(), []
    for piece in pieces:
        result, state = model.step(state, piece)
        stepped.append(np.asarray(result))
    scanned, _ = model.scan(pieces)
    np.testing.assert_allclose(scanned, stepped, rtol=1e-6)
    return np.concatenate(stepped)


def smoothed(stream: np.ndarray, state: float) -> np.ndarray:
    found = []
    for item in stream:
        state = state * 0.5 + item
        found.append(state)
    return np.stack(found)


def scan(header: str, more: str) -> nnef_jax.Model:
    return model_of(
        f"""{header}{TURN}graph net(x) -> (y)
        {{
            x = external(shape = [3, 2]);
            start = [[2.0, 2.0]];
            y = tract_core_scan(body = 'turn', scan = [('x', x, 0, 1)], full = [],
                state = [('s', start, 'next')], output = [('next', 'full', 0, 1)], {more});
        }}
        """
    )


STREAM = np.random.default_rng(2).normal(size=(12, 2)).astype(np.float32)


def test_the_states_of_a_scan_go_on_in_the_next_piece() -> None:
    found = in_pieces(scan(PULSED, "skip = 0"), STREAM, 3)
    np.testing.assert_allclose(found, smoothed(STREAM, 2.0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("skip", [1, 4])
def test_a_scan_lets_the_start_of_a_stream_pass(skip: int) -> None:
    found = in_pieces(scan(PULSED, f"skip = {skip}"), STREAM, 3)
    np.testing.assert_allclose(found[skip:], smoothed(STREAM[skip:], 2.0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("header", "more"), [(HEAD, "skip = 0"), (PULSED, "reset_every_turn = true")]
)
def test_other_scans_start_anew(header: str, more: str) -> None:
    found = in_pieces(scan(header, more), STREAM, 3)
    wanted = [smoothed(piece, 2.0) for piece in STREAM.reshape(4, 3, 2)]
    np.testing.assert_allclose(found, np.concatenate(wanted), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("exclusive", "skip"), [("false", 0), ("true", 0), ("false", 4)])
def test_running_sum(exclusive: str, skip: int) -> None:
    model = model_of(
        f"""{PULSED}graph net(x) -> (y)
        {{
            x = external(shape = [3, 2]);
            y = tract_pulse_cumsum(x, axis = 0, exclusive = {exclusive}, skip = {skip});
        }}
        """
    )
    items = STREAM.copy()
    items[:skip] = 0
    wanted = np.cumsum(items, 0) - (items if exclusive == "true" else 0)
    np.testing.assert_allclose(in_pieces(model, STREAM, 3), wanted, rtol=1e-5, atol=1e-5)


def test_padding_around_a_stream() -> None:
    """Two items ahead of the stream, and behind it, have a value; its length may be open."""
    text = """graph net(x) -> (y)
    {
        x = external(shape = [3, 2]);
        late = tract_pulse_delay(x, axis = 0, delay = 2, overlap = 0);
        y = tract_pulse_pulse_pad(late, axis = 0, before = 2, begin_input = 2, overlap = 0,
            after = 2, end_input = END, border = 'constant', value = 1.5);
    }
    """
    padded = np.concatenate([np.full((2, 2), 1.5), STREAM[:10]])
    found = in_pieces(model_of(PULSED + text.replace("END", "(S + 2)")), STREAM, 3)
    np.testing.assert_allclose(found, padded, rtol=1e-6)
    padded[10:] = 1.5
    found = in_pieces(model_of(PULSED + text.replace("END", "10")), STREAM, 3)
    np.testing.assert_allclose(found, padded, rtol=1e-6)


def test_scan_of_a_network_that_does_nothing() -> None:
    model = model_of(PULSED + "graph net(x) -> (y) { x = external(shape = [3, 2]); y = x; }")
    np.testing.assert_array_equal(in_pieces(model, STREAM, 3), STREAM)
