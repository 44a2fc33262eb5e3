"""Quantised storage, and fake quantisation by graph.quant."""

from __future__ import annotations

import json
import struct
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import nnef_jax
from tests.helpers import COMPOSITIONAL, archive
from tests.quantized import (
    NETWORK,
    QINT,
    QUINT,
    W,
    X,
    dat,
    floats,
    network,
    provisional_dat,
    variable_net,
)
from tests.reference import OPERATIONS


def stored(file: bytes, shape: tuple[int, ...], entry: str, **options: Any) -> np.ndarray:
    """What the variable 'w' stored in a file holds, given its entry in graph.quant."""
    model = nnef_jax.load(
        archive(graph=variable_net(shape), w=file, quant=f'"w": {entry};'), **options
    )
    assert [operation.kind for operation in model.graph.operations] == ["add"]
    return np.asarray(model.params["w"])


# Stored codes. All expected values are worked out by hand, in the comment at their side.

STORED = {
    # q / 255 * 2 - 1: 51 / 255 = 1/5
    "linear unsigned": (
        dat(QUINT, 8, (3,), bytes([0, 51, 255])),
        "linear_quantize(min = -1.0, max = 1.0, bits = 8)",
        [-1.0, -0.6, 1.0],
    ),
    # (q + 128) / 255 * 2 - 1, as the item type is signed: (-26 + 128) / 255 = 2/5
    "linear signed by the item type": (
        dat(QINT, 8, (3,), struct.pack("<3b", -128, -26, 127)),
        "linear_quantize(min = -1.0, max = 1.0, bits = 8)",
        [-1.0, -0.2, 1.0],
    ),
    # q / 255 * 10: symmetric means nothing to unsigned codes
    "min_max unsigned": (
        dat(QUINT, 8, (3,), bytes([0, 102, 255])),
        "min_max_linear_quantize(min=0.0, max=10.0, bits=8, signed=false, symmetric=true)",
        [0.0, 4.0, 10.0],
    ),
    # (q + 128) / 255 * 5.1 - 1.1 = (q + 128) / 50 - 1.1
    "min_max signed": (
        dat(QINT, 8, (4,), struct.pack("<4b", -128, -73, 0, 127)),
        "min_max_linear_quantize(min=-1.1, max=4.0, bits=8, signed=true, symmetric=false)",
        [-1.1, 0.0, 1.46, 4.0],
    ),
    # (q + 127) / 254 * 2.54 - 1.27 = q / 100
    "min_max symmetric": (
        dat(QINT, 8, (4,), struct.pack("<4b", -127, 0, 50, 127)),
        "min_max_linear_quantize(min=-1.27, max=1.27, bits=8, signed=true, symmetric=true)",
        [-1.27, 0.0, 0.5, 1.27],
    ),
    # (q - 128) / 2
    "zero_point unsigned": (
        dat(QUINT, 8, (3,), bytes([0, 128, 255])),
        "zero_point_linear_quantize"
        "(zero_point=128, scale=0.5, bits=8, signed=false, symmetric=false)",
        [-64.0, 0.0, 63.5],
    ),
    # (q + 3) / 4
    "zero_point signed": (
        dat(QINT, 8, (3,), struct.pack("<3b", -128, -3, 127)),
        "zero_point_linear_quantize"
        "(zero_point=-3, scale=0.25, bits=8, signed=true, symmetric=false)",
        [-31.25, 0.0, 32.5],
    ),
    # a bias: q / 1024
    "zero_point of 32 bits": (
        dat(QINT, 32, (3,), struct.pack("<3i", 1024, -(2**31), 3)),
        "zero_point_linear_quantize(zero_point=0, scale=0.0009765625, bits=32, signed=true, "
        "symmetric=true)",
        [1.0, -(2.0**21), 3 / 1024],
    ),
    # q / 2^40
    "zero_point of 64 bits": (
        dat(QINT, 64, (2,), struct.pack("<2q", 2**41, -(2**62))),
        "zero_point_linear_quantize(zero_point=0, scale=2.0 ^ (-40.0), bits=64, signed=true, "
        "symmetric=false)",
        [2.0, -(2.0**22)],
    ),
    # (q + 32768) / 65535 * 65.535 - 32.768 = q / 1000
    "min_max of 16 bits": (
        dat(QINT, 16, (4,), struct.pack("<4h", -32768, 0, 250, 32767)),
        "min_max_linear_quantize(min=-32.768, max=32.767, bits=16, signed=true, symmetric=false)",
        [-32.768, 0.0, 0.25, 32.767],
    ),
    # bits 1 0 1 1, then zeros; q * 4 - 1
    "linear of 1 bit": (
        dat(QUINT, 1, (4,), bytes([0b1011_0000])),
        "linear_quantize(min = -1.0, max = 3.0, bits = 1)",
        [3.0, -1.0, 3.0, 3.0],
    ),
    # codes 0 1 2 3 0: 00011011 00; q / 3 * 6 - 1
    "linear of 2 bits": (
        dat(QUINT, 2, (5,), bytes([0b0001_1011, 0])),
        "linear_quantize(min = -1.0, max = 5.0, bits = 2)",
        [-1.0, 1.0, 3.0, 5.0, -1.0],
    ),
    # codes 1 2 7 4: 001 010 111 100; (q - 1) / 2
    "zero_point of 3 bits": (
        dat(QUINT, 3, (4,), bytes([0b0010_1011, 0b1100_0000])),
        "zero_point_linear_quantize"
        "(zero_point=1, scale=0.5, bits=3, signed=false, symmetric=false)",
        [0.0, 0.5, 3.0, 1.5],
    ),
    # codes -8 7 -1 3: 1000 0111 1111 0011; (q + 8) / 15 * 3 - 1 = q / 5 + 0.6
    "min_max of 4 signed bits": (
        dat(QINT, 4, (4,), bytes([0x87, 0xF3])),
        "min_max_linear_quantize(min=-1.0, max=2.0, bits=4, signed=true, symmetric=false)",
        [-1.0, 2.0, 0.4, 1.2],
    ),
    # codes 7 6 0: 111 110 000; t = ceil(log2(3)) = 2, 2^(2 - 7 + q)
    "logarithmic unsigned": (
        dat(QUINT, 3, (3,), bytes([0b1111_1000, 0])),
        "logarithmic_quantize(max = 3.0, bits = 3)",
        [4.0, 2.0, 1 / 32],
    ),
    # codes 7 -7 1 0 -4: 0111 1001 0001 0000 1100; t = 0, +-2^(|q| - 7)
    "logarithmic signed": (
        dat(QINT, 4, (5,), bytes([0x79, 0x10, 0xC0])),
        "logarithmic_quantize(max = 1.0, bits = 4)",
        [1.0, -1.0, 1 / 64, 0.0, -1 / 8],
    ),
    # an 8-bit file may hold codes of fewer bits: q / 15 * 3
    "codes narrower than their items": (
        dat(QUINT, 8, (3,), bytes([0, 5, 15])),
        "linear_quantize(min = 0.0, max = 3.0, bits = 4)",
        [0.0, 1.0, 3.0],
    ),
}


@pytest.mark.parametrize(("file", "entry", "expected"), STORED.values(), ids=STORED)
def test_stored_codes(file: bytes, entry: str, expected: list[float]) -> None:
    values = stored(file, (len(expected),), entry)
    np.testing.assert_allclose(values, np.float32(expected), rtol=1e-6, atol=1e-7)


def test_stored_codes_are_values_of_their_operation() -> None:
    """Quantising again what an algorithm makes of codes changes nothing; x + w has it for x = 0."""
    functions, wanted = [], dict[str, np.ndarray]()
    for name, (file, entry, expected) in STORED.items():
        if "64" in name:
            continue
        wanted[name] = stored(file, (len(expected),), entry)
        zeros, text = np.zeros(len(expected), np.float32), variable_net((len(expected),))
        one = nnef_jax.load(archive(graph=text, w=file, quant=f'"w": {entry};'))
        other = nnef_jax.load(archive(graph=text, w=floats(wanted[name]), quant=f'"w": {entry};'))
        functions.append(partial(one.apply, one.params, zeros))
        functions.append(partial(other.apply, other.params, zeros))
    found = jax.jit(lambda: [function() for function in functions])()
    for i, (name, values) in enumerate(wanted.items()):
        np.testing.assert_array_equal(found[2 * i], values, name)
        np.testing.assert_allclose(found[2 * i + 1], values, rtol=1e-6, atol=2e-7, err_msg=name)


PER_CHANNEL = {
    # rows: q / 255 * 5.1 = q / 50, and q / 255 * 2 - 1
    "axis 0": (
        (2, 2),
        "min = [0.0, -1.0], max = [5.1, 1.0]",
        [[0, 50], [51, 255]],
        [[0, 1], [-0.6, 1]],
    ),
    "one value, one array": (
        (2, 2),
        "min = 0.0, max = [5.1, 255.0]",
        [[0, 50], [51, 255]],
        [[0, 1], [51, 255]],
    ),
    "an array of one": (
        (2, 2),
        "min = [0.0], max = [255.0]",
        [[0, 1], [2, 255]],
        [[0, 1], [2, 255]],
    ),
    # a bias, whose axis 0 is 1: columns
    "axis 1": ((1, 2), "min = [0.0, -1.0], max = [5.1, 1.0]", [[50, 51]], [[1, -0.6]]),
    "constant along axis 1": (
        (2, 2),
        "min = constant(shape = [1,2], value = [0.0, -1.0]), "
        "max = constant(shape = [1], value = [1.0])",
        [[255, 255], [51, 51]],
        [[1, 1], [0.2, -0.6]],
    ),
    # missing trailing extents are 1
    "constant along axis 0": (
        (2, 2),
        "min = constant(shape = [2], value = [0.0, -1.0]), max = 1.0",
        [[255, 51], [255, 51]],
        [[1, 0.2], [1, -0.6]],
    ),
    "expressions": (
        (2, 2),
        "min = [for i in [0.0, 1.0] yield -i], max = [0.5] * 2 + [][0:0]",
        [[0, 255], [0, 85]],
        [[0, 0.5], [-1, -0.5]],
    ),
}


@pytest.mark.parametrize(
    ("shape", "ranges", "codes", "expected"), PER_CHANNEL.values(), ids=PER_CHANNEL
)
def test_stored_codes_per_channel(
    shape: tuple[int, ...], ranges: str, codes: list[list[int]], expected: list[list[float]]
) -> None:
    file = dat(QUINT, 8, shape, bytes(np.array(codes, np.uint8).ravel().tolist()))
    values = stored(file, shape, f"linear_quantize({ranges}, bits = 8)")
    np.testing.assert_allclose(values, np.float32(expected), rtol=1e-6, atol=1e-7)


def test_stored_codes_per_channel_with_zero_points() -> None:
    # (q - [1, -1]) * [0.5, 2]
    file = dat(QINT, 8, (2, 2, 1), struct.pack("<4b", 1, 3, -1, 4))
    entry = (
        "zero_point_linear_quantize(zero_point=[1,-1], scale=[0.5,2.0], bits=8, signed=true, "
        "symmetric=false)"
    )
    np.testing.assert_array_equal(stored(file, (2, 2, 1), entry), [[[0], [1]], [[0], [10]]])


def test_stored_codes_in_bfloat16() -> None:
    file = dat(QUINT, 2, (4,), bytes([0b0001_1011]))
    model = nnef_jax.load(
        archive(
            graph=variable_net((4,)),
            w=file,
            quant="'w': linear_quantize(min=-1.0, max=2.0, bits=2);",
        ),
        dtype="bfloat16",
    )
    assert model.params["w"].dtype == "bfloat16"
    assert model.params["w"].tolist() == [-1, 0, 1, 2]  # q - 1


def test_ignoring_quantisation_still_reads_stored_codes() -> None:
    file, entry, expected = STORED["zero_point unsigned"]
    assert stored(file, (3,), entry, quantization="ignore").tolist() == expected


@pytest.mark.parametrize("version", ["version 1.0", "version 1.0;"])
def test_provisional_header_says_what_codes_are(version: str) -> None:
    # codes 0 1 2 3: -1, -1/3, 1/3, 1
    file = provisional_dat(
        2, (4,), "quantize_linear(min = -1, max = 1.0, bits = 2)", bytes([0b0001_1011])
    )
    model = nnef_jax.load(archive(graph=variable_net((4,), version), w=file))
    np.testing.assert_allclose(model.params["w"], [-1, -1 / 3, 1 / 3, 1], rtol=1e-6)


def test_entry_overrides_a_provisional_header_in_execution_only() -> None:
    file = provisional_dat(
        2, (4,), "linear_quantize(min=-1.0, max=1.0, bits=2)", bytes([0b0001_1011])
    )
    quant = '"w": linear_quantize(min = -2.0, max = 2.0, bits = 1)'
    model = nnef_jax.load(archive(graph=variable_net((4,)), w=file, quant=quant))
    np.testing.assert_allclose(model.params["w"], [-1, -1 / 3, 1 / 3, 1], rtol=1e-6)
    # of the two levels -2 and 2
    assert model(np.zeros(4, np.float32)).tolist() == [-2, -2, 2, 2]


# Fake quantisation


def assert_levels(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=1e-5, atol=1e-6)


ALGORITHMS = {
    "linear_quantize": {"min": -0.7, "max": 0.8, "bits": 3},
    "min_max_linear_quantize": {
        "min": -0.7, "max": 0.7, "bits": 3, "signed": True, "symmetric": True,
    },
    "zero_point_linear_quantize": {
        "zero_point": 3, "scale": 0.11, "bits": 3, "signed": False, "symmetric": False,
    },
    "logarithmic_quantize": {"max": 0.8, "bits": 2},
}  # fmt: skip


def entry(name: str, algorithm: str, arguments: dict[str, Any]) -> str:
    shown = ", ".join(f"{key} = {json.dumps(value)}" for key, value in arguments.items())
    return f'"{name}": {algorithm}({shown});\n'


@pytest.mark.parametrize("expand", ["auto", pytest.param("all", marks=pytest.mark.slow)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_activation_is_quantised_for_all_that_reads_it(algorithm: str, expand: str) -> None:
    arguments = ALGORITHMS[algorithm]
    model = network(entry("y", algorithm, arguments), expand=expand)
    rounded = OPERATIONS[algorithm](np.tanh(np.float64(X) * W[..., None]), **arguments)
    y, s = model(X)
    assert_levels(y, rounded)
    assert_levels(s, rounded + 0.3)
    inside = model.intermediates(X, names=["a", "y", "s"])
    assert_levels(inside["a"], X * W[..., None])
    assert_levels(inside["y"], rounded)
    assert len(np.unique(np.asarray(y))) <= 9  # 2^3 levels, or 2^2 with signs and 0


def test_input_variable_constant_and_activation() -> None:
    quantise = OPERATIONS["linear_quantize"]
    model = network(
        '"x": linear_quantize(min = -1.0, max = 1.0, bits = 4);\n'
        '"w": linear_quantize(min = -2.0, max = 2.0, bits = 3);\n'
        '"c": linear_quantize(min = 0.0, max = 1.0, bits = 1);\n'
        '"s": linear_quantize(min = -1.0, max = 1.0, bits = 2);\n'
    )
    x = quantise(X, -1.0, 1.0, 4)
    w = quantise(np.float64(W), -2.0, 2.0, 3)
    # 0.3 of the levels 0 and 1 is 0
    for call in (lambda: model(X), lambda: model(x=X)):
        y, s = call()
        assert_levels(y, np.tanh(x * w[..., None]))
        assert_levels(s, quantise(np.tanh(x * w[..., None]), -1.0, 1.0, 2))
    inside = model.intermediates(X, names=["x", "w", "c"])
    assert_levels(inside["x"], x)
    assert_levels(inside["w"], w)
    assert inside["c"].tolist() == [0.0]
    np.testing.assert_array_equal(model.params["weights/w"], W)
    assert [spec.name for spec in model.inputs] == ["x"]
    assert [spec.name for spec in model.outputs] == ["y", "s"]


def test_quantisation_can_be_ignored() -> None:
    quant = entry("y", "linear_quantize", ALGORITHMS["linear_quantize"])
    plain = nnef_jax.load(archive(graph=NETWORK, **{"weights/w": floats(W)}))
    for got, want in zip(network(quant, quantization="ignore")(X), plain(X), strict=True):
        np.testing.assert_array_equal(got, want)
    assert np.abs(np.asarray(network(quant)(X).y) - np.asarray(plain(X).y)).max() > 0.05
    with pytest.raises(nnef_jax.SemanticError, match="no tensor 'q'"):
        network('"q": linear_quantize(min=0.0, max=1.0, bits=8)', quantization="ignore")
    with pytest.raises(ValueError, match="one of apply, ignore, ste"):
        network(quant, quantization="off")


@pytest.mark.parametrize(
    ("name", "low"),
    [
        ("a", "[-0.5, -1.0, -0.25]"),  # [2,3,4]: along axis 1
        ("a", "constant(shape = [1,3], value = [-0.5, -1.0, -0.25])"),
        ("x", "[-0.5, -1.0, -0.25]"),
    ],
)
def test_activation_per_channel(name: str, low: str) -> None:
    model = network(f'"{name}": linear_quantize(min = {low}, max = [1.0, 1.25, 2.0], bits = 4)')
    levels = np.array([-0.5, -1.0, -0.25])[None, :, None], np.array([1.0, 1.25, 2.0])[None, :, None]
    real = X if name == "x" else X * W[..., None]
    expected = OPERATIONS["linear_quantize"](np.float64(real), *levels, 4)
    assert_levels(model.intermediates(X, names=[name])[name], expected)


def test_per_channel_of_a_vector_is_along_its_only_axis() -> None:
    text = "version 1.0;\ngraph G( x ) -> ( y ) { x = external(shape = [3]); y = copy(x); }"
    quant = '"y": linear_quantize(min = [0.0, 0.0, 10.0], max = [1.0, 4.0, 20.0], bits = 1)'
    model = nnef_jax.load(archive(graph=text, quant=quant))
    assert model(np.float32([0.6, 1.9, 15.1])).tolist() == [1, 0, 20]


def test_constant_for_an_activation_broadcasts_from_the_left() -> None:
    low = "constant(shape = [2], value = [-1.0, 0.0])"  # along axis 0
    model = network(f'"a": linear_quantize(min = {low}, max = 1.0, bits = 4)')
    low = np.array([-1.0, 0.0])[:, None, None]
    expected = OPERATIONS["linear_quantize"](np.float64(X * W[..., None]), low, 1.0, 4)
    assert_levels(model.intermediates(X, names=["a"])["a"], expected)


def test_per_channel_with_an_open_extent() -> None:
    text = NETWORK.replace("[2,3,4]", "[0,3,0]")
    quant = '"a": linear_quantize(min = [-0.5, -1.0, -0.25], max = 1.0, bits = 4)'
    model = network(quant, text)
    low = np.array([-0.5, -1.0, -0.25])[None]
    for x in (X, X[:1, :, :3]):
        expected = OPERATIONS["linear_quantize"](np.float64(x * W[..., None]), low, 1.0, 4)
        assert_levels(model.intermediates(x, names=["a"])["a"], expected)
        assert model(x).y.shape == x.shape


def test_results_of_one_statement_are_quantised_by_their_names() -> None:
    text = (
        "version 1.0;\ngraph G( x ) -> ( a, b )\n{\n    x = external(shape = [1,4]);\n"
        "    [a, b] = split(x, axis = 1, ratios = [1,1]);\n}\n"
    )
    quant = '"b": linear_quantize(min = 0.0, max = 1.0, bits = 1)'
    a, b = nnef_jax.load(archive(graph=text, quant=quant))(np.float32([[0.3, 0.7, 0.3, 0.7]]))
    assert (a.tolist(), b.tolist()) == ([[np.float32(0.3), np.float32(0.7)]], [[0, 1]])


def test_names_that_look_like_those_of_quantised_values() -> None:
    text = (
        "version 1.0;\ngraph G( x, x_quantized ) -> ( y )\n{\n    x = external(shape = [1]);\n"
        "    x_quantized = external(shape = [1]);\n    y = add(x, x_quantized);\n}\n"
    )
    model = nnef_jax.load(
        archive(graph=text, quant='"x": linear_quantize(min = 0.0, max = 1.0, bits = 1)')
    )
    assert model(x=np.float32([0.9]), x_quantized=np.float32([0.25])).tolist() == [1.25]


def test_state_is_kept_as_it_is_and_read_quantised() -> None:
    text = (
        "version 1.0;\ngraph G( x ) -> ( y )\n{\n    x = external(shape = [1]);\n"
        "    h = variable(shape = [1], label = 'h');\n    y = add(x, h);\n"
        "    n = update(h, y);\n}\n"
    )
    # code 3 is 0.75; what is read is rounded down or up to quarters
    file = dat(QUINT, 2, (1,), bytes([0b1100_0000]))
    quant = '"h": linear_quantize(min = 0.0, max = 0.75, bits = 2)'
    model = nnef_jax.load(archive(graph=text, h=file, quant=quant))
    state = model.init_state()
    assert state["h"].tolist() == [0.75]
    y, state = model.step(state, np.float32([-0.375 - 0.0625]))
    assert y.tolist() == [0.3125]
    assert state["h"].tolist() == [0.3125]
    y, state = model.step(state, np.float32([0.0]))
    assert y.tolist() == [0.25]  # 0.3125 is 1.25 quarters


def test_one_label_under_two_identifiers() -> None:
    text = (
        "version 1.0;\ngraph G( x ) -> ( y, z )\n{\n    x = external(shape = [2]);\n"
        "    w = variable(shape = [2], label = 'w');\n    v = variable(shape = [2], label = 'w');\n"
        "    y = add(x, w);\n    z = add(x, v);\n}\n"
    )
    quant = '"v": linear_quantize(min = 0.0, max = 1.0, bits = 1)'
    zero = np.zeros(2, np.float32)
    real = nnef_jax.load(archive(graph=text, w=floats(0.25, 0.75), quant=quant))
    y, z = real(zero)
    assert (y.tolist(), z.tolist()) == ([0.25, 0.75], [0, 1])
    # stored as codes, they are what that entry says under either identifier
    codes = nnef_jax.load(archive(graph=text, w=dat(QUINT, 1, (2,), b"\x40"), quant=quant))
    y, z = codes(zero)
    assert (y.tolist(), z.tolist()) == ([0, 1], [0, 1])


def test_fragment_of_the_document_as_algorithm() -> None:
    text = COMPOSITIONAL + (
        "fragment halves( t: tensor<scalar>, most: scalar = 1.0, at: scalar[] )\n"
        "-> ( r: tensor<scalar> ) { r = min(round(t * 2.0) / 2.0 + at[1], most); }\n"
        "graph G( x ) -> ( y ) { x = external(shape = [3]); y = x + 0.0; }"
    )
    for quant, expected in (
        ('"y": halves(at = [9.0, 0.0]);', [0.5, -0.5, 1.0]),
        ('"y": halves(most = 2.0, at = [9.0, 0.0 - 0.25]);', [0.25, -0.75, 1.75]),
    ):
        model = nnef_jax.load(archive(graph=text, quant=quant))
        assert model(np.float32([0.3, -0.6, 2.1])).tolist() == expected


LINES = """
"y": linear_quantize(min = -1.0, max = 1.0, bits = 2)
'c': linear_quantize(min = -1.0, max = 1.0, bits = 2)
"""
FREE = """# all
"y":linear_quantize(max=1.0,min=-1.0,bits=2); 'c' :
  linear_quantize(
 bits = 2, # few
 min=-1.0,max=1.0)
  ;#"""


@pytest.mark.parametrize("quant", [LINES, FREE], ids=["lines", "free"])
@pytest.mark.parametrize("version", ["version 1.0;", "version 1.0"])
def test_layouts_of_the_text(quant: str, version: str) -> None:
    model = network(quant, NETWORK.replace("version 1.0;", version))
    inside = model.intermediates(X, names=["y", "c"])
    assert set(np.round(np.unique(np.asarray(inside["y"])) * 3).tolist()) == {-3, -1, 1, 3}
    assert_levels(inside["c"], [1 / 3])


def test_provisional_texts_may_write_whole_numbers() -> None:
    quant = '"y": quantize_linear(min = [-1, 0, -1], max = 1, bits = 1)'
    model = network(quant, NETWORK.replace("version 1.0;", "version 1.0"))
    assert set(np.unique(np.asarray(model(X).y)).tolist()) == {-1, 0, 1}
    with pytest.raises(nnef_jax.SemanticError, match=r"'min' of .* this is integer"):
        network(quant)


def test_empty_text() -> None:
    np.testing.assert_array_equal(network("# nothing\n")(X).y, network("")(X).y)


def test_gradients_pass_by_what_is_not_quantised() -> None:
    model = network('"w": linear_quantize(min = -2.0, max = 2.0, bits = 3)')
    gradient = jax.grad(lambda x: model.apply(model.params, x).s.sum())(X)
    w = OPERATIONS["linear_quantize"](np.float64(W), -2.0, 2.0, 3)[..., None]
    assert_levels(gradient, w / np.cosh(X * w) ** 2)


# The shared cases


def shared(shared_cases: Path) -> list[dict[str, Any]]:
    cases = json.loads((shared_cases / "nnef" / "manifest.json").read_text())["cases"]
    return [case for case in cases if "quant" in case["tags"]]


def test_shared_cases(shared_cases: Path) -> None:
    cases = shared(shared_cases)
    assert cases
    for case in cases:
        folder = shared_cases / "nnef"
        given, expected = np.load(folder / case["inputs"]), np.load(folder / case["outputs"])
        outputs = nnef_jax.load(folder / case["model"])(**given)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        for name, output in zip(case["output_order"], outputs, strict=True):
            np.testing.assert_allclose(
                output, expected[name], **case["tolerance"], err_msg=case["name"]
            )
