"""The values of expressions that are known when a document is flattened (spec 3.3.3)."""

from __future__ import annotations

import pytest

from nnef_jax import LimitError, SemanticError
from tests.helpers import COMPOSITIONAL
from tests.text_support import PROVISIONAL, error, flat, graph


def document(expression: str, header: str = COMPOSITIONAL) -> str:
    """A document whose only variable has the expression, as a string, for its label."""
    tensor = "tensor" if header is PROVISIONAL else "tensor<scalar>"
    fragment = (
        f"fragment f( x: {tensor} ) -> ( y: {tensor} )\n"
        f"{{\n    v = {expression};\n"
        "    y = x * variable(shape = [1], label = '=' + string(v));\n}\n"
    )
    return graph("y = f(x);", fragment, header=header)


def value(expression: str, header: str = COMPOSITIONAL) -> str:
    """The value of an expression as the syntax writes it."""
    (parameter,) = flat(document(expression, header)).parameters
    return parameter.label.removeprefix("=")


VALUES = {
    # integers: division truncates towards zero
    "7 / 2": "3",
    "-7 / 2": "-3",
    "7 / -2": "-3",
    "-7 / -2": "3",
    "0 / 5": "0",
    "2 ^ 10": "1024",
    "(-2) ^ 3": "-8",
    "-2 ^ 2": "-4",
    "2 ^ 3 ^ 2": "512",
    "0 ^ 0": "1",
    "2 ^ 62": "4611686018427387904",
    "9223372036854775806 + 1": "9223372036854775807",
    "1 - 2 - 3": "-4",
    "2 + 3 * 4": "14",
    "(2 + 3) * 4": "20",
    # scalars
    "7.0 / 2.0": "3.5",
    "1.0 / 4.0": "0.25",
    "2.0 ^ -1.0": "0.5",
    "4.0 ^ 0.5": "2.0",
    "0.1": "0.1",
    "1e5": "100000.0",
    "1.0 / 0.0 > 1e300": "true",
    "-1.0 / 0.0 < -1e300": "true",
    "10.0 ^ 400.0 == 1.0 / 0.0": "true",
    "(-0.0) ^ -3.0 == -1.0 / 0.0": "true",
    "(-0.0) ^ -2.0 == 1.0 / 0.0": "true",
    # comparison and logic
    "1 < 2 && 2 <= 2": "true",
    "1 > 2 || 2 >= 3": "false",
    "1 == 1 == true": "true",
    "1.0 != 1.5": "true",
    "!true || true": "true",
    "!(true || true)": "false",
    "'a' == 'a'": "true",
    "true != false": "true",
    "[1, 2] == [1, 2]": "true",
    "[1] == []": "false",
    "(1, 'a') == (1, 'b')": "false",
    "2 in [1, 2]": "true",
    "'c' in ['a', 'b']": "false",
    "1 in []": "false",
    # what is not needed is not evaluated
    "false && 1 / 0 == 1": "false",
    "true || [1][5] == 1": "true",
    "1 if true else 1 / 0": "1",
    "1 / 0 if false else 2": "2",
    "[1][3] if length_of('') > 0 else 4": "4",
    "1 if false else 2 if false else 3": "3",
    "1 + 2 if false else 3 + 4": "7",
    # strings
    "'a' + 'b'": "ab",
    "'ab' * 3": "ababab",
    "'ab' * 0": "",
    "'ab' * -1": "",
    "'abc'[1]": "b",
    "'abc'[1:]": "bc",
    "'abc'[:2]": "ab",
    "'abc'[1:2]": "b",
    "'abc'[:]": "abc",
    "'abc'[2:1]": "",
    "'abc'[3:]": "",
    "length_of('abc')": "3",
    "range_of('abc')[2]": "2",
    # arrays and tuples
    "length_of([])": "0",
    "length_of([1, 2] * 3)": "6",
    "([1, 2] * 2)[3]": "2",
    "([1] + [2, 3])[2]": "3",
    "[1, 2, 3][1:][0]": "2",
    "length_of([1, 2, 3][1:1])": "0",
    "length_of([1, 2, 3][2:0])": "0",
    "range_of([5, 6])[1]": "1",
    "[[1, 2], [3]][1][0]": "3",
    "(1, 2.5, 'c')[2]": "c",
    "((1, 2), 3)[0][1]": "2",
    # comprehensions
    "[for i in [1, 2, 3] yield i * i][2]": "9",
    "[for i in [1, 2, 3], j in [4, 5, 6] yield i * j][2]": "18",
    "[for i in [1, 2, 3] if i > 1 yield i][0]": "2",
    "length_of([for i in [1, 2, 3, 4], j in [4, 3, 2, 1] if i < j yield i])": "2",
    "length_of([for i in [] yield i])": "0",
    "[for i in [1, 2] yield [for j in [3, 4] yield i * j]][1][0]": "6",
    "[for c in 'abc' yield c + c][1]": "bb",
    "[for t in [(1, 2), (3, 4)] yield t[1]][1]": "4",
    "[for i in range_of([7, 8]) yield i + 1 if i > 0 else 5][0]": "5",
    # casts
    "scalar(true)": "1.0",
    "scalar(2)": "2.0",
    "scalar('1.5e3')": "1500.0",
    "scalar('-2')": "-2.0",
    "integer(true)": "1",
    "integer('-12')": "-12",
    "integer(1.9)": "1",
    "integer(-1.1)": "-2",
    "logical(0)": "false",
    "logical(2)": "true",
    "logical(0.0)": "false",
    "logical(0.5)": "true",
    "logical('')": "false",
    "logical('false')": "true",
    "string(1)": "1",
    "string(1.0)": "1.0",
    "string(true)": "true",
    "string('a')": "a",
}


@pytest.mark.parametrize("expression", VALUES)
def test_values(expression: str) -> None:
    assert value(expression) == VALUES[expression]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("[i * 2 for i in [1, 2, 3] if i != 2][1]", "6"),
        ("[i for i in range_of('abc')][2]", "2"),
        ("length_of([i if i > 1 else 0 for i in [1, 2]])", "2"),
        ("extent(2.7) + extent(true) + extent('4')", "7"),
        ("1 + 2.5", "3.5"),
        ("7 / 2.0", "3.5"),
        ("7 / 2", "3"),
        ("shape_of(1.0) == [1,1]", "true"),
        ("shape_of(x) == [2,3]", "true"),
        ("shape_of(sum_reduce(x, axes = [0]))[0]", "1"),
        ("length_of(shape_of(constant(shape = [4], value = [0.0])))", "2"),
    ],
)
def test_values_in_the_provisional_dialect(expression: str, expected: str) -> None:
    assert value(expression, PROVISIONAL) == expected


WITHOUT_A_VALUE = {
    "1 §/ 0": "division of an integer by zero",
    "2 §^ -1": "an integer has no negative power",
    "2 §^ 63": "the integer does not fit 64 bits",
    "2 §^ 9223372036854775807": "the integer does not fit 64 bits",
    "9223372036854775807 §+ 1": "the integer does not fit 64 bits",
    "9223372036854775807 §* 9223372036854775807": "the integer does not fit 64 bits",
    "(-2.0) §^ 0.5": "-2.0 to the power 0.5 is not a real number",
    "§[1, 2][2]": "index 2 is out of range, the length is 2",
    "§[1, 2][-1]": "index -1 is out of range, the length is 2",
    "§'abc'[3]": "index 3 is out of range, the length is 3",
    "length_of(§[1, 2][0:3])": "bound 3 is out of range, the length is 2",
    "length_of(§'abc'[-1:])": "bound -1 is out of range, the length is 3",
    "§[for i in [1, 2], j in [1] yield i][0]": "the arrays iterated together have lengths 2 and 1",
    "§scalar('abc')": "'abc' is not a number",
    "§scalar('.5')": "'.5' is not a number",
    "§scalar('1 ')": "'1 ' is not a number",
    "§scalar('nan')": "'nan' is not a number",
    "§scalar('1e400')": "'1e400' is not a number",
    "§integer('1.0')": "'1.0' is not an integer",
    "§integer('')": "'' is not an integer",
    "§integer('9223372036854775808')": "the integer does not fit 64 bits",
    "§integer(1e300)": "the integer does not fit 64 bits",
    "§integer(1.0 / 0.0)": "inf has no integer value",
}


@pytest.mark.parametrize("expression", WITHOUT_A_VALUE)
def test_expressions_without_a_value(expression: str) -> None:
    found = error(document(expression))
    assert isinstance(found, SemanticError)
    assert found.message == WITHOUT_A_VALUE[expression]
    assert [call.fragment for call in found.calls] == ["f"]


@pytest.mark.parametrize(
    "expression",
    [
        "length_of('a' §* 10000001)",
        "length_of([0] §* 10000001)",
        "length_of([0] §* 4000000000)",
        "length_of('a' * 9000000 §+ 'b' * 9000000)",
        "length_of([0] * 9000000 §+ [1] * 9000000)",
    ],
)
def test_long_arrays_and_strings_are_limited(expression: str) -> None:
    found = error(document(expression))
    assert isinstance(found, LimitError)
    assert found.message == "an array or string would be longer than 10000000"
    assert "Limits(array_items=...)" in found.hint
