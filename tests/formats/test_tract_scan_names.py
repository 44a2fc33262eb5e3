"""Names in scans as tract writes them: in strings as they are, as identifiers escaped or quoted."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

import nnef_jax
from tests.helpers import model_of
from tests.operation_checks import Together

HEAD = "version 1.0;\n\nextension tract_registry tract_core;\n\n"
RANDOM = np.random.default_rng(0)

# What tract writes for a name where it has no identifiers in quotes.
BARE = {
    "x": "x",
    "x_1": "x_1",
    "_x": "_x",
    "onnx::X": "onnx__X",
    "a.b-c d": "a_b_c_d",
    "x.": "x_",
    "_x.1": "_x_1",
    "1": "_1",
    "0x": "_0x",
    "9.x": "_9_x",
    "/x": "__x",
    "/rnn.0/LSTM": "__rnn_0_LSTM",
    ".": "__",
    "//": "___",
    "-x/y": "__x_y",
    "é": "é",
    "/é.層": "__é_層",
    "слой/2": "слой_2",
}


def quoted(name: str) -> str:
    """The identifier for a name in tract's other syntax."""
    return f'i"{name}"'


def running_sum(identifier: Callable[[str], str], x: str, state: str, after: str, out: str) -> str:
    """A scan whose parameters and results have these names."""
    x_, state_, after_, out_ = map(identifier, (x, state, after, out))
    return f"""{HEAD}
fragment scan_body_0(
    {state_}: tensor<scalar>,
    {x_}: tensor<scalar>
) -> ({after_}: tensor<scalar>, {out_}: tensor<scalar>)
{{
  {after_} = add({state_}, {x_});
  {out_} = mul({after_}, {x_});
}}

graph network(input) -> (all, last) {{
  input = external(shape = [4, 3]);
  ( all, last ) = tract_core_scan(body = "scan_body_0", scan = [("{x}", input, 0, 1)],
    full = [], state = [("{state}", [[0.0, 0.0, 0.0]], "{after}")],
    output = [("{out}", "full", 0, 1), ("{after}", "last", 0, 1)], skip = 0,
    reset_every_turn = false, external_state = false);
}}
"""


X = RANDOM.normal(size=(4, 3)).astype(np.float32)


def named(row: tuple[str, bool]) -> tuple[Any, Any]:
    name, quotes = row
    forms = {name: BARE[name]} | {f"{name}.{end}": f"{BARE[name]}_{end}" for end in "sty"}
    model = model_of(running_sum(quoted if quotes else forms.__getitem__, *forms))
    return partial(model.apply, {}), (X,)


sums = Together(list(product(BARE, (False, True))), named)


@pytest.mark.parametrize("quotes", [False, True], ids=["bare", "quoted"])
@pytest.mark.parametrize("name", BARE)
def test_names(name: str, quotes: bool) -> None:
    """A name of each kind for a slice, a state, a next state and a result."""
    whole, last = sums((name, quotes))
    np.testing.assert_allclose(whole, X.cumsum(0) * X, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last, X.sum(0, keepdims=True), rtol=1e-5, atol=1e-6)


def test_a_name_goes_before_what_is_written_like_another() -> None:
    """`a.b` and `a_b` are two parameters, in whichever order they stand."""
    text = """
fragment f( i"a.b": tensor<scalar>, a_b: tensor<scalar>, a: tensor<scalar> )
-> ( y: tensor<scalar> )
{ y = a + i"a.b" - a_b; }
graph network(x, p, q) -> (y) {
  x = external(shape = [2, 1]); p = external(shape = [1, 1]); q = external(shape = [1, 1]);
  y = tract_core_scan(body = "f", scan = [("a", x, 0, 1)], full = [FULL], state = [],
    output = [("y", "full", 0, 1)]);
}"""
    x, p, q = (
        np.full(shape, v, np.float32) for v, shape in ((1, (2, 1)), (5, (1, 1)), (2, (1, 1)))
    )
    for full in ('("a.b", p), ("a_b", q)', '("a_b", q), ("a.b", p)'):
        np.testing.assert_array_equal(model_of(HEAD + text.replace("FULL", full))(x, p, q), x + 3)
    for full in ('("a.b", p), ("a.b", q)', '("a_b", p), ("a/b", q)'):
        with pytest.raises(nnef_jax.SemanticError, match="of the body is given twice"):
            model_of(HEAD + text.replace("FULL", full))


def test_two_names_that_are_written_alike() -> None:
    """`a.b` and `a/b` are both `a_b`: nobody can tell the two parameters apart."""
    text = running_sum(
        lambda name: "a_b" if name in ("a.b", "a/b") else name, "a.b", "a/b", "t", "y"
    )
    with pytest.raises(nnef_jax.SemanticError, match="'a_b'"):
        model_of(text)
    both = running_sum(quoted, "a.b", "a/b", "t", "y")
    assert model_of(both)
    with pytest.raises(nnef_jax.SemanticError, match="has no parameter 'a_b'"):
        model_of(both.replace('("a.b", input', '("a_b", input'))


# Layers as tract writes those of an ONNX file: `«name»` is an identifier.

RNN = """
fragment scan_body_N(
    h_source: tensor<scalar>,
    «@.Xt_WiT»: tensor<scalar>,
    «@.Ri»: tensor<scalar>
) -> («@.Ht»: tensor<scalar>)
{
  «@.x» = squeeze(«@.Xt_WiT», axes = [0]);
  «@.Ht-1*RiT» = tract_core_einsum([h_source, «@.Ri»], expr = "amk,nk->mn", acc = "f32",
    output = "");
  «@.pre» = add(«@.x», «@.Ht-1*RiT»);
  «@.tanh» = tanh(«@.pre»);
  «@.Ht» = unsqueeze(«@.tanh», axes = [0]);
}
"""
GRU = """
fragment scan_body_N(
    h_source: tensor<scalar>,
    «@.Xt_WiT»: tensor<scalar>,
    «@.Ri»: tensor<scalar>
) -> («@.Ht»: tensor<scalar>)
{
  «@.rt0» = tract_core_einsum([h_source, «@.Ri»], expr = "bmk,nk->bmn", acc = "f32", output = "");
  «@.rt» = sigmoid(«@.rt0»);
  «@.rt.Ht-1» = mul(«@.rt», h_source);
  «@.ht0» = add(«@.Xt_WiT», «@.rt.Ht-1»);
  «@.ht» = tanh(«@.ht0»);
  «@.Ht-1-sub-ht» = sub(h_source, «@.ht»);
  «@.zt-Ht-1-sub-ht» = mul(«@.rt», «@.Ht-1-sub-ht»);
  «@.Ht» = add(«@.ht», «@.zt-Ht-1-sub-ht»);
}
"""
LSTM = """
fragment scan_body_N(
    h_source: tensor<scalar>,
    c_source: tensor<scalar>,
    «@.Xt_WiT»: tensor<scalar>,
    «@.Ri»: tensor<scalar>
) -> («@.Ht»: tensor<scalar>, «@.lstm_cell_1»: tensor<scalar>)
{
  «@.x» = squeeze(«@.Xt_WiT», axes = [0]);
  «@.Ht_1_RT» = tract_core_einsum([h_source, «@.Ri»], expr = "amk,nk->mn", acc = "f32",
    output = "");
  «@.preact» = add(«@.x», «@.Ht_1_RT»);
  ( «@.lstm_cell», «@.lstm_cell_1» ) = tract_core_lstm_epilogue(«@.preact», c_source, hidden = 4);
  «@.Ht» = unsqueeze(«@.lstm_cell», axes = [0]);
}
"""
CALL = """
  «@.fix_b» = variable<scalar>(label = "@.fix_b", shape = [1, ROWS, 4]);
  «@.extracted.@.Xt_WiT» = matmul(BELOW, «@.fix_b», transposeA = false, transposeB = true);
  «@.Ri» = variable<scalar>(label = "@.Ri", shape = [ROWS, 4]);
  «@.h0» = [[[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]];
  «@.c0» = [[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]];
  ( «@», «@_1» ) = tract_core_scan(body = "scan_body_N",
    scan = [("@.Xt_WiT", «@.extracted.@.Xt_WiT», 0, CHUNK)], full = [("@.Ri", «@.Ri»)],
    state = [("h_source", «@.h0», "@.Ht")CELL],
    output = [("@.Ht", "full", 0, CHUNK), ("@.Ht", "last", 0, 1)], skip = 0,
    reset_every_turn = false, external_state = false);
"""
CELL = ', ("c_source", «@.c0», "@.lstm_cell_1")'
KINDS = {"rnn": (RNN, "", 4), "gru": (GRU, "", 4), "lstm": (LSTM, CELL, 16)}
LAYERS = {"/decoder/rnn.0/X": 1, "1.X": -1, "rnn:2/X": 1}  # with their directions


def bare(name: str) -> str:
    """The identifier for a name in ASCII, as `BARE` has it."""
    return re.sub(r"\W", "_", name if re.match("[A-Za-z_]", name) else f"_{name}")


def network(kind: str, identifier: Callable[[str], str]) -> str:
    """A document with the layers one above the other."""
    fragment, cell, rows = KINDS[kind]
    fragments, body, below = "", "", "input"
    for number, (name, chunk) in enumerate(LAYERS.items()):
        changes = {"CELL": cell, "@": name, "CHUNK": chunk, "ROWS": rows, "BELOW": below}
        parts = [fragment.replace("_N", f"_{number}"), CALL.replace("_N", f"_{number}")]
        for key, value in changes.items():
            parts = [part.replace(key, str(value)) for part in parts]
        fragments, body, below = fragments + parts[0], body + parts[1], f"«{name}»"
    text = f"""{HEAD}{fragments}
graph network(input) -> (y, h) {{
  input = external(shape = [5, 2, 4]);{body}
  y = {below};
  h = «{name}_1»;
}}"""
    return re.sub("«(.*?)»", lambda found: identifier(found[1]), text)


def turn(kind: str, x: np.ndarray, h: np.ndarray, c: np.ndarray, r: np.ndarray) -> Any:
    """One turn of a layer in numpy: the next h and c."""
    product = h @ r.T
    match kind:
        case "rnn":
            return np.tanh(x + product), c
        case "gru":
            gate = 1 / (1 + np.exp(-product))
            new = np.tanh(x + gate * h)
            return new + gate * (h - new), c
        case _:
            i, o, f, g = np.split(x + product, 4, axis=-1)
            i, o, f = (1 / (1 + np.exp(-gate)) for gate in (i, o, f))
            c = f * c + i * np.tanh(g)
            return o * np.tanh(c), c


@pytest.mark.parametrize("identifier", [bare, quoted])
@pytest.mark.parametrize("kind", KINDS)
def test_layers(kind: str, identifier: Callable[[str], str]) -> None:
    """Three layers one above the other, the second one backwards."""
    rows = KINDS[kind][2]
    shapes = {"fix_b": (1, rows, 4), "Ri": (rows, 4)}
    data = {
        f"{name.lstrip('/')}.{part}": RANDOM.normal(size=shape).astype(np.float32)
        for name in LAYERS
        for part, shape in shapes.items()
    }
    x = RANDOM.normal(size=(5, 2, 4)).astype(np.float32)
    y, h = model_of(network(kind, identifier), data=data)(x)

    below = x.astype(float)
    for name, direction in LAYERS.items():
        weights, r = (data[f"{name.lstrip('/')}.{part}"].astype(float) for part in shapes)
        last = c = np.zeros((2, 4))
        found = []
        for item in (below @ weights[0].T)[::direction]:
            last, c = turn(kind, item, last, c, r)
            found.append(last)
        below = np.stack(found[::direction])
    np.testing.assert_allclose(y, below, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(h[0], last, rtol=1e-4, atol=1e-5)


def test_bare_names_of_the_layers() -> None:
    ascii_names = {name: form for name, form in BARE.items() if name.isascii()}
    assert {name: bare(name) for name in ascii_names} == ascii_names
