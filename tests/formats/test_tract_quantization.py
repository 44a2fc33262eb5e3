"""graph.quant of tract's dialect: what its entries mean, and what may be wrong with them."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowering.graph import TensorType
from lowering.location import Source
from nnef_jax.errors import NnefError, NnefSyntaxError, SemanticError
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.quantizer import Quantizer, dequantize
from nnef_jax.formats.tract.quantization import read_quantization
from nnef_jax.limits import Meter
from nnef_jax.storage.tensorfile import TensorFile

NAMES = {"x", "y", "conv_output", "/features/0.Conv", 'odd "name"', "back\\slash"}
ZERO_POINT = "zero_point_linear_quantize(zero_point=3, scale=0.5, bits=8, signed=true)"
LINEAR = "linear_quantize(min=-1.0, max=1.0, bits=8)"


def read(text: str) -> dict[str, Quantizer]:
    return read_quantization(Source("graph.quant", text), NAMES, Meter())


def values_of(quantizer: Quantizer) -> dict[str, Any]:
    """The arguments by name in the invocation that a quantiser makes."""
    type = TensorType((2, 3), "float32")
    tensor, *rest = quantizer.invocation("t", type, variable=False).arguments
    assert (tensor.name, tensor.value) == (None, s.Identifier(0, "t"))
    found = {a.name: a.value.value for a in rest if a.name and isinstance(a.value, s.Literal)}
    assert found == quantizer.arguments and len(found) == len(rest)
    return found


# What entries mean


@pytest.mark.parametrize(
    "arguments",
    [
        "zero_point = 143, scale = 0.0211, bits = 8, signed = false",
        "zero_point = 143, scale = 0.0211, bits = 8, signed = false, symmetric = false",
        "zero_point = 143, scale = 0.0211, bits = 8, signed = false, symmetric = true",
        "signed=false,bits=8,scale=2.11e-2,zero_point=+143,",
        "bits = 8 signed = false scale = .0211 zero_point = 143",
        '\n  # a comment; "x": no entry\n bits=8,\tscale=0.0211, zero_point=143,signed=false\n',
    ],
)
def test_zero_point(arguments: str) -> None:
    quantizer = read(f'"x": zero_point_linear_quantize({arguments});')["x"]
    assert quantizer.operation == "zero_point_linear_quantize"
    assert values_of(quantizer) == {
        "zero_point": 143, "scale": 0.0211, "bits": 8, "signed": False, "symmetric": False,
    }  # fmt: skip


def test_minimum_and_maximum_are_of_signed_codes() -> None:
    quantizer = read("'x': linear_quantize(max = 127, bits = 8, min = -1.28e2);")["x"]
    assert quantizer.operation == "min_max_linear_quantize"
    assert values_of(quantizer) == {
        "min": -128.0, "max": 127.0, "bits": 8, "signed": True, "symmetric": False,
    }  # fmt: skip
    assert isinstance(quantizer.arguments["max"], float)


def test_integers_stand_for_scalars() -> None:
    text = '"x": zero_point_linear_quantize(zero_point=-1, scale=2, bits=32, signed=true)'
    scale = read(text)["x"].arguments["scale"]
    assert scale == 2 and isinstance(scale, float)


def test_lists_have_a_number_for_each_channel() -> None:
    text = (
        '"x": zero_point_linear_quantize(scale=[1, 0.5], zero_point=[3, -2], bits=8, signed=true)'
    )
    arguments = read(text)["x"].arguments
    assert arguments["scale"] == [1.0, 0.5] and arguments["zero_point"] == [3, -2]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ('"x"', "x"),
        ("'x'", "x"),
        ('i"x"', "x"),
        ("i'conv_output'", "conv_output"),
        ('i"/features/0.Conv"', "/features/0.Conv"),
        ('"/features/0.Conv"', "/features/0.Conv"),
        (r'i"odd \"name\""', 'odd "name"'),
        (r'"odd \"name\""', 'odd "name"'),
        ("i'odd \"name\"'", 'odd "name"'),
        (r'i"back\\slash"', "back\\slash"),
    ],
)
def test_names(written: str, name: str) -> None:
    assert list(read(f"{written}: {LINEAR};")) == [name]


@pytest.mark.parametrize("end", [";\n", "\n", " ", ";"])
def test_several_entries(end: str) -> None:
    text = f'"x": {ZERO_POINT}{end}i"y" : {LINEAR}{end}"conv_output":{ZERO_POINT}'
    assert list(read(text)) == ["x", "y", "conv_output"]


def test_nothing() -> None:
    assert read("") == read(" \n# nothing\n") == {}


def test_the_last_entry_of_a_name_counts() -> None:
    assert read(f'"x": {ZERO_POINT};\n"x": {LINEAR};')["x"].operation == "min_max_linear_quantize"


def test_codes_of_entries() -> None:
    codes = TensorFile(np.array([-128, 0, 127], np.int8), 8, True, True)
    entries = read(f'"x": {ZERO_POINT}; "y": linear_quantize(min=-1.28, max=1.27, bits=8);')
    reals = dequantize(codes, entries["x"], "x.dat", Meter())
    assert reals.tolist() == [-65.5, -1.5, 62.0]
    reals = dequantize(codes, entries["y"], "y.dat", Meter())
    np.testing.assert_allclose(reals, [-1.28, 0, 1.27], atol=1e-12)


def test_places_of_arguments() -> None:
    text = f'"x": {ZERO_POINT};\n"y": {LINEAR};'
    entries = read(text)
    for name, argument, shown in (
        ("x", "scale", "scale"), ("x", "", "zero_point_linear_quantize"), ("y", "max", "max"),
        ("y", "signed", "linear_quantize"),
    ):  # fmt: skip
        assert text[entries[name].span(argument).offset :].startswith(shown)


# What may be wrong

# Text, place of the error (§ is not part of the text), message, hint.
BAD = {
    "no name": ("§x: " + LINEAR, "unexpected 'x', expected the name of a tensor", ""),
    "open string": ('§"x: ' + LINEAR, "unexpected '\"', expected the name", ""),
    "no colon": ('"x" §= ' + LINEAR, "unexpected '=', expected ':'", ""),
    "no algorithm": ('"x": §;', "expected a quantisation algorithm", ""),
    "unknown algorithm": ('"x": §linear_quantise()', "is no quantisation", "'linear_quantize'"),
    "another algorithm": ('"x": §relu(x)', "'relu' is no quantisation", "there are zero_point"),
    "no parenthesis": ('"x": linear_quantize§;', "unexpected ';', expected '('", ""),
    "open parenthesis": ('"x": linear_quantize(min=0.0§', "unexpected end of the text", ""),
    "positional": ('"x": linear_quantize(§0.0, 1.0, 8)', "expected ')' or the name of an", ""),
    "two commas": ('"x": linear_quantize(min=0.0,§, max=1.0)', "expected ')' or the name", ""),
    "unknown argument": ('"x": linear_quantize(§mim=0.0)', "'mim' is no argument", "'min'"),
    "other's argument": ('"x": linear_quantize(§scale=1.0)', "no argument of", "there are min,"),
    "given twice": ('"x": linear_quantize(min=0.0, §min=1.0)', "'min' is given twice", ""),
    "no equals sign": ('"x": linear_quantize(min§: 0.0)', "unexpected ':', expected '='", ""),
    "no value": ('"x": linear_quantize(min=§, max=1.0)', "expected a number for 'min'", ""),
    "a tensor": ('"x": linear_quantize(min=§y, max=1.0)', "unexpected 'y', expected a", ""),
    "a list of names": ('"x": linear_quantize(min=[0.0, §y], max=1.0)', "unexpected 'y'", ""),
    "a list without commas": ('"x": linear_quantize(min=[0 §1], max=1)', "expected ',' or ']'", ""),
    "an open list": ('"x": linear_quantize(min=[0.0§', "unexpected end of the text", ""),
    "lists of different lengths": (
        '"x": linear_quantize(§min=[0.0, 1.0], max=[2.0, 3.0, 4.0], bits=8)',
        "arrays must hold one value for each channel: 'min' has 2 and 'max' has 3",
        "",
    ),
    "an empty list": ('"x": linear_quantize(§min=[], max=1.0, bits=8)', "'min' is empty", ""),
    "a string": ("\"x\": linear_quantize(min=§'a', max=1.0)", "unexpected ''a''", ""),
    "a truth value": ('"x": linear_quantize(min=§true)', "must be a number, it is 'true'", ""),
    "broken bits": ('"x": linear_quantize(bits=§8.0)', "must be an integer, it is '8.0'", ""),
    "huge bits": (f'"x": linear_quantize(bits=§{"8" * 5000})', "must be an integer", ""),
    "signed as number": (
        f'"x": {ZERO_POINT.replace("true", "§1")}', "'signed' must be true or false", "",
    ),
    "zero point": (f'"x": {ZERO_POINT.replace("=3", "=§3.5")}', "must be an integer", ""),
    "missing": ('"x": §linear_quantize(bits=8)', "lacks 'min', 'max'", "write min = ..., max"),
    "missing signed": (
        '"x": §zero_point_linear_quantize(zero_point=3, scale=0.5, bits=8)',
        "lacks 'signed'", "write signed = ...",
    ),
    "no bits": (f'"x": {LINEAR.replace("bits=8", "§bits=0")}', "at least 1 and at most 64", ""),
    "many bits": (f'"x": {LINEAR.replace("bits=8", "§bits=65")}', "at most 64, it is 65", ""),
    "scale": (f'"x": {ZERO_POINT.replace("scale=0.5", "§scale=0")}', "must be positive", ""),
    "infinite": (f'"x": {ZERO_POINT.replace("scale=0.5", "§scale=inf")}', "be finite", ""),
    "not a number": (f'"x": {ZERO_POINT.replace("scale=0.5", "§scale=nan")}', "be finite", ""),
    "empty range": (f'"x": {LINEAR.replace("min=-1.0", "§min=1")}', "less than 'max'", ""),
    "unknown tensor": (f'§"conv_outputs": {LINEAR}', "no tensor 'conv_outputs'", "'conv_output'"),
    "unknown, nothing like it": (f'§"nosuch": {LINEAR}', "no tensor 'nosuch'", "itself assigns"),
    "escaped unknown": (rf'§i"\"q": {LINEAR}', "no tensor '\"q'", ""),
    "printed": (
        '"x": zero_point_linear_quantize(zero_point = §NamedTensor(143, nnef_name="z"), scale = 1)',
        "'zero_point' is a printed Python object, NamedTensor(...)", "torch_to_nnef 0.24.12",
    ),
    "printed scale": (
        '"x": zero_point_linear_quantize(zero_point = 0, scale = §tensor(0.02), bits = 8)',
        "'scale' is a printed Python object, tensor(...)", "export again",
    ),
    "a character": ("§\0", "unexpected", ""),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message", "hint"), BAD.values(), ids=BAD)
def test_bad_entry(text: str, message: str, hint: str) -> None:
    with pytest.raises(NnefError) as caught:
        read(text.replace("§", ""))
    (error,) = caught.value.errors
    assert isinstance(error, NnefSyntaxError | SemanticError)
    assert message in error.message and hint in error.hint
    assert error.span is not None
    assert error.span.offset == text.index("§")
    assert error.span.source.name == "graph.quant"
    assert len(error.message) < 200


def test_all_errors_at_once() -> None:
    printed = "zero_point_linear_quantize(zero_point = NamedTensor(1,\n  name='a'), scale = 1)"
    text = f"""
        "x": {printed};
        "nosuch": {LINEAR}; "x": linear_quantize(bits = 8); "y": {ZERO_POINT};
        "y": {LINEAR.replace("bits=8", "bits=0, bits=8")}
        i"conv_output": {LINEAR.replace(")", "")}
        "x": {LINEAR};
        "x": {ZERO_POINT.replace("0.5", "-0.5").replace("bits=8", "bits=0")};
    """
    with pytest.raises(NnefError) as caught:
        read(text)
    lines = [error.span.line for error in caught.value.errors if error.span]
    assert lines == [2, 4, 4, 5, 7, 8, 8]


def test_errors_are_counted_up_to_a_number() -> None:
    with pytest.raises(NnefError) as caught:
        read(f'"nosuch": {LINEAR};\n' * 1000)
    assert len(caught.value.errors) == 20


@pytest.mark.parametrize("text", ["#" * 100_000, " " * 100_000, '"' * 100_001, "i'\\" * 50_000])
def test_odd_long_texts_end(text: str) -> None:
    with contextlib.suppress(NnefError):
        read(text)


WORDS = re.findall(
    r"\w+|\W", f"i\"x\": {ZERO_POINT.replace('(', '( ')};\n'y' # : {LINEAR},NamedTensor(1)\\"
)


@settings(max_examples=40)
@given(st.lists(st.sampled_from(WORDS), max_size=40).map("".join) | st.text(max_size=40))
def test_any_text_ends_in_errors_or_entries(text: str) -> None:
    try:
        read(text)
    except NnefError as error:
        assert all(e.span is not None for e in error.errors)


@given(st.data())
def test_mutated_texts_end_in_errors_or_entries(data: Any) -> None:
    text = [*f'"x": {ZERO_POINT};\n i"y": {LINEAR};\n']
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at] = data.draw(st.sampled_from([*"\"'i;:,()=# \n0-.ae\\", ""]))
    try:
        read("".join(text))
    except NnefError as error:
        assert error.message
