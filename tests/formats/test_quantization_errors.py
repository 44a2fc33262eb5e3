"""What graph.quant and quantised tensor files may get wrong."""

from __future__ import annotations

import re
from typing import Any

import pytest

import nnef_jax
from tests.helpers import COMPOSITIONAL, archive
from tests.quantized import QINT, QUINT, dat, network, provisional_dat, variable_net

_ENTRY = "linear_quantize(min = 0.0, max = 1.0, bits = 8)"
_ZERO_POINT = (
    "zero_point_linear_quantize(zero_point=%s, scale=%s, bits=8, signed=true, symmetric=false)"
)


def changed(old: str, new: str) -> str:
    """An entry for 'y', with a part of it replaced."""
    return f'"y": {_ENTRY.replace(old, new)}'


BAD_ENTRIES = {
    "unknown tensor": (f'"yy": {_ENTRY}', 1, "no tensor 'yy'", "did you mean 'y'?"),
    "unknown, nothing like it": (f'"nosuch": {_ENTRY}', 1, "no tensor 'nosuch'", "assigns"),
    "label": (f'"weights/w": {_ENTRY}', 1, "no tensor 'weights/w'", "identifier, 'w'"),
    "twice": (f'"y": {_ENTRY};\n"y": {_ENTRY}', (2, 1), "already has an entry on line 1", ""),
    "unknown algorithm": ('"y": linear_quantise()', 6, "not a quantisation", "'linear_quantize'"),
    "another operation": ('"y": relu()', 6, "'relu' is not a quantisation algorithm", "there are"),
    "cast": ('"y": scalar(1)', 6, "'scalar' is not a quantisation algorithm", ""),
    "missing": ('"y": linear_quantize(min=0.0)', 6, "lacks its arguments 'max', 'bits'", "write"),
    "unknown argument": ('"y": linear_quantize(mn=0.0)', 22, "no parameter 'mn'", "min"),
    "given twice": ('"y": linear_quantize(min=0.0, min=1.0)', 31, "'min' is given twice", ""),
    "positional": ('"y": linear_quantize(0.0, bits=8)', 22, "must be named", "write min ="),
    "the tensor": (changed("min", "x = y, min"), 22, "tensor must not be given", ""),
    "a tensor": (changed("0.0", "x"), 28, "'x' is not defined", "numbers"),
    "computed": (changed("0.0", "relu(0.0)"), 28, "must not call operations", ""),
    "computed inside": (changed("0.0", "[copy(0.0)]"), 29, "must not call", ""),
    "type": ('"y": linear_quantize(min=0.0, max=1.0, bits=8.0)', 45, "must be of type integer", ""),
    "integer": (changed("0.0", "0"), 28, "scalar or scalar[]", "a point"),
    "nested": (changed("0.0", "[[0.0]]"), 28, "scalar[][]", ""),
    "no bits": (changed("8", "0"), 44, "at least 1 and at most 64, it is 0", ""),
    "many bits": (changed("8", "65"), 44, "it is 65", ""),
    "symmetric of one bit": (
        '"y": min_max_linear_quantize(bits=1, min=0.0, max=1.0, signed=true, symmetric=true)',
        30, "at least 2", "",
    ),
    "empty range": (changed("0.0", "1.0"), 22, "less than 'max'", ""),
    "empty range of a channel": (
        '"y": linear_quantize(min=[0.0,2.0,0.0], max=[1.0,1.0,1.0], bits=8)', 22, "less than", "",
    ),
    "not a number": (changed("0.0", "0.0 / 0.0"), 22, "must be finite", ""),
    "too large": (changed("1.0", "1e39"), 33, "must be finite", ""),
    "empty array": (changed("0.0", "[]"), 22, "'min' is empty", ""),
    "scale": (f'"y": {_ZERO_POINT % (1, "-0.5")}', 47, "'scale' must be positive", ""),
    "zero scale": (f'"y": {_ZERO_POINT % (1, "[0.5,0.0]")}', 47, "'scale' must be positive", ""),
    "zero point": (f'"y": {_ZERO_POINT % (2**31, 0.5)}', 33, "'zero_point' must be", ""),
    "max": ('"y": logarithmic_quantize(max=-1.0, bits=2)', 27, "'max' must be positive", ""),
    "too many channels": (
        changed("0.0", "[0.0,0.0]"), 22, "2 values, the tensor has shape [2,3,4]",
        "any other tensor along axis 1",
    ),
    "constant that does not fit": (
        changed("0.0", "constant(shape = [3], value = [0.0])"), None,
        "'min' of shape [3] must broadcast", "",
    ),
    "constant of too many": (
        changed("0.0", "constant(shape = [3], value = [0.0, 0.0])"), 28,
        "cannot hold 2 values", "",
    ),
    "out of range": (changed("0.0", "[0.0][1]"), 28, "index 1 is out of range", ""),
}  # fmt: skip


@pytest.mark.parametrize(
    ("quant", "place", "message", "hint"), BAD_ENTRIES.values(), ids=BAD_ENTRIES
)
def test_bad_entry(quant: str, place: Any, message: str, hint: str) -> None:
    with pytest.raises(nnef_jax.SemanticError) as caught:
        network(quant)
    error = caught.value
    assert message in error.message
    assert hint in error.hint
    if place is None:  # in the body of an algorithm; the entry is where it was called
        assert "graph.quant:1:6" in str(error)
    else:
        assert error.span and error.span.source.name.endswith("graph.quant")
        assert (error.span.line, error.span.column) == (
            place if isinstance(place, tuple) else (1, place)
        )


@pytest.mark.parametrize(
    ("quant", "column"),
    [(f'"y": {_ENTRY[:-1]}', 52), (f"y: {_ENTRY}", 1), ('"y": 3', 6), ('"y"', 4)],
)
def test_bad_syntax(quant: str, column: int) -> None:
    with pytest.raises(nnef_jax.NnefSyntaxError) as caught:
        network(quant)
    assert caught.value.span and caught.value.span.column == column


def test_all_bad_entries_are_reported_at_once() -> None:
    with pytest.raises(nnef_jax.SemanticError) as caught:
        network(f'"q": {_ENTRY}\n"y": {_ENTRY.replace("8", "0")}\n"s": foo()\n"a": {_ENTRY}')
    assert [error.span.line for error in caught.value.errors if error.span] == [1, 2, 3]


@pytest.mark.parametrize(
    ("parameters", "results"),
    [
        ("x: tensor<integer>, a: scalar", "y: tensor<integer>"),
        ("x: tensor<scalar>[], a: scalar", "y: tensor<scalar>[]"),
        ("x: tensor<scalar>, a: scalar", "y: tensor<scalar>, z: tensor<scalar>"),
    ],
)
def test_fragment_that_cannot_quantise(parameters: str, results: str) -> None:
    names = re.findall(r"(\w):", results)
    body = " ".join(f"{name} = x;" for name in names)
    text = COMPOSITIONAL + (
        f"fragment f( {parameters} ) -> ( {results} ) {{ {body} }}\n"
        "graph G( x ) -> ( y ) { x = external(shape = [3]); y = x + 0.0; }"
    )
    with pytest.raises(nnef_jax.SemanticError, match="'f' cannot quantise"):
        nnef_jax.load(archive(graph=text, quant='"y": f(a = 1.0)'))


def test_tensor_that_is_not_real() -> None:
    text = (
        "version 1.0;\ngraph G( x ) -> ( y ) { x = external<integer>(shape = [3]); y = copy(x); }"
    )
    with pytest.raises(nnef_jax.SemanticError, match="'x' must hold scalars"):
        nnef_jax.load(archive(graph=text, quant=f'"y": {_ENTRY}'))


def test_fragment_with_a_variable_of_its_own() -> None:
    text = COMPOSITIONAL + (
        "fragment f( x: tensor<scalar> ) -> ( y: tensor<scalar> )\n"
        "{ y = x * variable(shape = [1], label = 'hidden'); }\n"
        "graph G( x ) -> ( y ) { x = external(shape = [3]); y = x + 0.0; }"
    )
    with pytest.raises(nnef_jax.SemanticError, match="must not have variables") as caught:
        nnef_jax.load(archive(graph=text, quant='"y": f()'))
    assert caught.value.span and caught.value.span.line == 4


def test_fragment_that_nothing_can_run() -> None:
    text = COMPOSITIONAL + (
        "fragment mine( x: tensor<scalar> ) -> ( y: tensor<scalar> );\n"
        "graph G( x ) -> ( y ) { x = external(shape = [3]); y = x + 0.0; }"
    )
    with pytest.raises(nnef_jax.UnsupportedError, match="no rule for operation 'mine'") as caught:
        nnef_jax.load(archive(graph=text, quant='"y": mine()'))
    assert caught.value.span and caught.value.span.source.name.endswith("graph.quant")


BAD_STORED = {
    "no entry": (
        dat(QUINT, 8, (2,), b"\0\1"), f'"y": {_ENTRY}', nnef_jax.DataError, "no entry for 'w'",
    ),
    "code too large": (
        dat(QUINT, 8, (2,), b"\0\x20"), '"w": linear_quantize(min=0.0, max=1.0, bits=4)',
        nnef_jax.DataError, "codes from 0 to 32, but 'linear_quantize' with 4 unsigned bits",
    ),
    "code too small": (
        dat(QINT, 8, (2,), b"\0\xff"),
        '"w": min_max_linear_quantize(min=0.0, max=1.0, bits=8, signed=false, symmetric=false)',
        nnef_jax.DataError, "codes from -1 to 0, but 'min_max_linear_quantize' with 8",
    ),
    "channels": (
        dat(QUINT, 8, (2,), b"\0\1"), '"w": linear_quantize(min=[0.0,0.0,0.0], max=1.0, bits=8)',
        nnef_jax.ShapeError, "3 values, the tensor has shape [2]",
    ),
    "constant": (
        dat(QUINT, 8, (2,), b"\0\1"),
        '"w": linear_quantize(min=constant(shape=[1,2], value=[0.0]), max=1.0, bits=8)',
        nnef_jax.DataError, "'min' of shape [1,2] does not broadcast to shape [2]",
    ),
    "header": (
        provisional_dat(8, (2,), "linear_quantize(min=0.0, max=1.0, bits=0)", b"\0\1"), "",
        nnef_jax.SemanticError, "'bits' must be at least 1",
    ),
    "header of two": (
        provisional_dat(8, (2,), f'{_ENTRY} "w": {_ENTRY}', b"\0\1"), "",
        nnef_jax.SemanticError, "one quantisation algorithm",
    ),
    "header of none": (
        provisional_dat(8, (2,), "8 bits", b"\0\1"), "", nnef_jax.NnefSyntaxError, "unexpected",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("file", "quant", "kind", "message"), BAD_STORED.values(), ids=BAD_STORED)
def test_bad_stored_codes(file: bytes, quant: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        nnef_jax.load(archive(graph=variable_net((2,)), w=file, quant=quant))
    assert message in str(caught.value)


def test_codes_without_an_entry_say_what_to_write() -> None:
    with pytest.raises(nnef_jax.DataError) as caught:
        nnef_jax.load(archive(graph=variable_net((2,)), w=dat(QUINT, 8, (2,), b"\0\1")))
    assert caught.value.hint.startswith('write "w": linear_quantize(min')
    assert caught.value.span and caught.value.span.line == 5  # of the variable


def test_codes_for_a_variable_that_is_not_real() -> None:
    text = variable_net((2,)).replace("variable(", "variable<integer>(").replace("add", "concat")
    text = text.replace("concat(x, w)", "copy(w)")
    with pytest.raises(nnef_jax.DataError, match="holds scalars, the variable is declared"):
        nnef_jax.load(archive(graph=text, w=dat(QUINT, 8, (2,), b"\0\1"), quant=f'"w": {_ENTRY}'))


def test_codes_of_a_fragment_of_the_document() -> None:
    text = COMPOSITIONAL + (
        "fragment f( x: tensor<scalar> ) -> ( y: tensor<scalar> ) { y = round(x); }\n"
        "graph G( x ) -> ( y ) { x = external(shape = [2]);"
        " w = variable(shape = [2], label = 'w'); y = x + w; }"
    )
    with pytest.raises(nnef_jax.UnsupportedError, match="codes that fragment 'f' quantised"):
        nnef_jax.load(archive(graph=text, w=dat(QUINT, 8, (2,), b"\0\1"), quant='"w": f()'))
