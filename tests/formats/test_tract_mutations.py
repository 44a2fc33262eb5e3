"""Whatever is done to a document of the dialect, what comes of it is a model or an NnefError."""

from __future__ import annotations

import random
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnef_jax import Limits, NnefError
from tests.helpers import model_of

EXPORTED = """
version 1.0;

extension tract_registry tract_core;
extension tract_registry tract_transformers;
extension tract_symbol S;
extension tract_assert S >= 1;
extension tract_assert first: S == 1;

fragment tract_core_properties(
) -> (properties: (string, tensor<scalar>)[])
{
  properties = [
    ("torch_version", "2.13.0"),
    ("export_cmd", "python "quoted" export.py")
  ];
}

fragment gelu( x: tensor<scalar> ) -> ( y: tensor<scalar> )
{
    half = 0.5 * x;
    y = half * (1.0 + tract_core_erf(x / 1.4142135));
}

fragment body( step: tensor<scalar>, state: tensor<scalar>, w: tensor<scalar> )
-> ( next: tensor<scalar>, out: tensor<scalar> )
{
    next = tanh(matmul(step, w) + state);
    out = gelu(next);
}

fragment norm( input: tensor<scalar>, axes: integer[], eps: scalar = 1e-5 )
-> ( output: tensor<scalar> )
{
    mean, variance = moments(input, axes = axes);
    output = sub(input, mean) * rsqrt(variance + eps);
}

graph net( input, ids ) -> ( output, last, total )
{
    input = tract_core_external(shape = [2, S, 4], datum_type = 'f32');
    ids = tract_core_external(shape = [2, S], datum_type = 'i64');
    weight = variable<scalar>(label = 'layer.weight', shape = [4, 4]);
    bias = variable<scalar>(label = 'layer.bias', shape = []);
    w = unsqueeze(weight, axes = [0]);
    # the length of the sequence
    input_shape = tract_core_shape_of(input);
    length = squeeze(slice(input_shape, axes = [0], begin = [1], end = [2]), axes = [0]);
    flat = reshape(input, shape = [2 * length, -1]);
    hidden = linear(flat, weight, bias);
    hidden = relu(hidden);
    hidden = reshape(hidden, shape = [2, length, 4]);
    hidden = norm(hidden, axes = [2], eps = 1e-6);
    positions = tract_core_range(0, length, 1);
    mask = lt(unsqueeze(positions, axes = [0]), ids);
    masked = select(unsqueeze(mask, axes = [2]), hidden, -inf);
    scores = softmax(pad(hidden, padding = [(0, 0), (0, 0), (0, 1)]), axes = [2]);
    start = tile([[[0.0]]], repeats = [2, 1, 4]);
    (out, last) = tract_core_scan(
        body = "body",
        scan = [("step", hidden, 1, 1)],
        full = [("w", w)],
        state = [("state", start, "next")],
        output = [("out", "full", 1, 1), ("next", "last", 1, 1)],
        skip = 0,
        reset_every_turn = 0
    );
    [a, b] = unstack(last, axis = 0);
    values, places = tract_core_topk(a, k = 2, axis = 1, largest = true);
    picked = tract_core_gather(input, places, axis = 2);
    output = concat([out, conv(out, tile([[[1.0]]], repeats = [4, 1, 1]), groups = 4)], axis = 1);
    total = sum_reduce(scores, axes = [1, 2]) / tract_core_cast(length, to = 'f32') + (2.0 ^ 2);
}
"""

WRITTEN = """
version 1.0;

extension tract_registry tract_core;

graph network(i"input.1", i"mask/b") -> (i"4", y)
{
  i"input.1" = external(shape = [1, 3, 8, 8]);
  i"mask/b" = tract_core_external(shape = [1], datum_type = "bool");
  i"/conv.weight" = variable<scalar>(label = "/conv.weight", shape = [2, 3, 3, 3]);
  i"/conv" = conv(i"input.1", i"/conv.weight", [[0.5], [-0.5]], dilation = [1, 1], stride = [2, 2],
      border = "constant", groups = 1, padding = [(1, 1), (1, 1)]);
  i"/relu" = max(i"/conv", [[[[0.0]]]]);
  i"/pool" = max_pool(i"/relu", size = [1, 1, 2, 2], stride = [1, 1, 2, 2],
      padding = [(0, 0), (0, 0), (0, 1), (1, 0)], border = "ignore");
  i"/up" = tract_core_resize(i"/pool", [1.0, 1.0, 2.0, 2.0], interpolator = "linear");
  i"/mean" = sum_reduce(i"/up", axes = [2, 3], normalize = true);
  i"/sum" = tract_core_einsum([i"/mean", i"/mean"], expr = "abcd,aecd->be", acc = "f32");
  i"/top", i"/index" = tract_core_topk(i"/sum", 1, axis = 0, largest = true);
  i"4" = i"/top";
  y = select(i"mask/b", tract_core_cast(i"/index", to = "i64"), 7);
}
"""

PULSED = """
version 1.0;
extension tract_registry tract_core;
extension tract_registry tract_pulse;

graph net(x) -> (y)
{
  x = external(shape = [1, 2, 4]);
  w = variable<scalar>(label = "w", shape = [2, 2, 3]);
  x_delay = tract_pulse_delay(x, axis = 2, delay = 0, overlap = 2);
  c = conv(x_delay, w, padding = [(0, 0)]);
  y = tract_pulse_mask(c, axis = 2, begin = 2, end = 9, value = 0.0);
}
"""
DATA: dict[str, Any] = {
    "layer.weight": np.ones((4, 4), np.float32),
    "layer.bias": np.ones((), np.float32),
    "conv.weight": np.ones((2, 3, 3, 3), np.float32),
    "w": np.ones((2, 2, 3), np.float32),
}
OWN = (EXPORTED, WRITTEN, PULSED)
SHARED = Path(__file__).resolve().parents[3] / "shared" / "cases" / "tract"
NAMES = (
    "op_lstm_bidi_2l",
    "dyn_cumsum_topk",
    "opl_resize",
    "op_stft_nocenter_smallwin",
    "op_scatter",
)

_TOKEN = re.compile(
    r"\s+|#[^\n]*|i?\"[^\"\n]*\"|'[^'\n]*'|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\w+|[=<>!]=|->|.",
    re.DOTALL,
)
# What a token is replaced by: mostly one of its own kind, or the grammar would stop most of it.
_NUMBERS = [
    *("0", "1", "-1", "2", "3", "5", "65537", "1000000000000", "9223372036854775807", "1e30"),
    *("99999999999999999999", "1.5", "0.0", "inf", "-inf", "nan", "1e-9", "S", "length", "-0.0"),
]
_STRINGS = [
    *("'f16'", "'i64'", "'u8'", "'string'", "'bool'", "'complexf32'", "''", "'body'", "'none'"),
    *("'QU8(Z:128 S:0.5)'", "'tdim'", "'full'", "'last'", "'next'", "'state'", "'ab,bc->ac'"),
]
_NAMES = [
    *("length", "input", "ids", "hidden", "input_shape", "S", "weight", "w", "positions", "a", "b"),
    *("mask", "values", "places", "x", "y", "out", "last", "flat", "bias", "true", "false", "inf"),
    *("i'/conv'", "i'4'", "i'mask/b'", "i'/index'", "input.1", "eps", "axes", "step", "state"),
]
_OPERATIONS = [
    *("relu", "neg", "concat", "stack", "unstack", "tile", "reshape", "variable", "external"),
    *("tract_core_external", "tract_core_scan", "tract_core_cast", "tract_core_range", "gelu"),
    *("tract_core_gather", "tract_core_broadcast", "tract_core_one_hot", "tract_core_shape_of"),
    *("update", "tract_core_submodel", "norm", "body", "tract_resource_get", "tract_core_foo"),
    *("add", "div", "pow", "select", "softmax", "sum_reduce", "transpose", "squeeze", "unsqueeze"),
    *(
        "matmul",
        "conv",
        "deconv",
        "max_pool",
        "box",
        "pad",
        "slice",
        "max",
        "copy",
        "argmax_reduce",
    ),
    *(
        "tract_core_stft",
        "tract_core_fft",
        "tract_core_resize",
        "tract_core_einsum",
        "nearest_upsample",
    ),
    *("tract_core_scatter_nd", "tract_core_gather_nd", "tract_core_trilu", "tract_core_cumsum"),
    *(
        "tract_transformers_sdpa",
        "tract_onnx_non_zero",
        "tract_core_downsample",
        "tract_core_dyn_slice",
    ),
    *(
        "tract_pulse_delay",
        "tract_pulse_mask",
        "batch_normalization",
        "local_response_normalization",
    ),
]
_MARKS = [
    *"()[]{},;:=+-*/^<>?!#'\"\\",
    *("[]", "[[]]", "[0]", "[-1]", "[1,2,3]", "(1,2)", "()", "x[0]", "[length]", "[hidden]", "\0"),
    *("input_shape[1]", "tensor<scalar>", "<scalar>", "é", "{{", "fragment", "graph", "extension"),
    *("[[1,2],[3]]", "[1.0, S]", "(-1)", "* 1000000000", "^ 63", "[[[[[[[[[[1]]]]]]]]]]"),
]
SMALL = Limits(steps=200_000, operations=2_000, array_items=100_000, tensor_items=1 << 24)


def outcome(text: str, data: dict[str, Any]) -> str:
    """ "model", or the kind of the error; anything but an NnefError passes through."""
    try:
        model_of(text, data=data, limits=SMALL)
    except NnefError as error:
        assert str(error) and all(e.message for e in error.errors)
        return type(error).__name__
    return "model"


def mutated(text: str, chance: random.Random) -> str:
    """A text with a few tokens deleted, repeated, swapped or replaced, or with its end cut off."""
    tokens = _TOKEN.findall(text)
    for _ in range(chance.randint(1, 3)):
        places = [i for i, token in enumerate(tokens) if not token.isspace()]
        at, other = chance.choice(places), chance.choice(places)
        match chance.randrange(20):
            case 0:
                del tokens[at]
            case 1:
                tokens.insert(at, tokens[other])
            case 2:
                tokens[at], tokens[other] = tokens[other], tokens[at]
            case 3:
                tokens[at] = chance.choice(_MARKS)
            case _:
                replaceable = [i for i in places if tokens[i][0].isalnum() or tokens[i][0] in "'_"]
                at = chance.choice(replaceable or places)
                tokens[at] = chance.choice(_like(tokens[at], "".join(tokens[at + 1 : at + 2])))
    return "".join(tokens)


def _like(token: str, following: str) -> list[str]:
    """What may stand in the place of a token."""
    if token[0].isdigit():
        return _NUMBERS
    if token[0] in "'\"":
        return _STRINGS
    return _OPERATIONS if following == "(" else _NAMES


@pytest.mark.parametrize("text", OWN, ids=["exported", "written", "pulsed"])
def test_the_documents_themselves_are_right(text: str) -> None:
    assert outcome(text, DATA) == "model"


@pytest.mark.parametrize("seed", range(6))
def test_mutations(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(50):
        outcome(mutated(chance.choice(OWN), chance), DATA)


@pytest.mark.parametrize("name", NAMES)
def test_mutations_of_exported_networks(name: str, shared_cases: Path) -> None:
    with tarfile.open(shared_cases / "tract" / f"{name}.nnef.tgz") as archive:
        member = archive.extractfile("graph.nnef")
        assert member is not None
        text = member.read().decode()
    chance = random.Random(name)
    for _ in range(15):
        outcome(mutated(text, chance), {})


def test_truncations() -> None:
    for text in OWN:
        for end in range(0, len(text), 97):
            outcome(text[:end], DATA)
