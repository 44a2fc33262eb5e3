"""Types of expressions: what operators and built-in functions take and refuse (spec 3.3.2, 3.3.3).

The places are those of the `§` in the expressions, see `text_support`.
"""

from __future__ import annotations

import pytest

from nnef_jax import SemanticError
from tests.text_support import PROVISIONAL, checked, error, graph, in_fragment

EXPRESSIONS = {
    "neg(1 §+ 2.0)": ("operator '+' does not take types integer and scalar", "do not mix"),
    "x §+ 1": ("operator '+' does not take types tensor<scalar> and integer", "with a point"),
    "x §&& x": ("operator '&&' does not take types tensor<scalar> and tensor<scalar>", ""),
    "x §+ true": ("operator '+' does not take types tensor<scalar> and logical", ""),
    "x §+ 'a'": ("operator '+' does not take types tensor<scalar> and string", ""),
    "x §+ [x]": ("operator '+' does not take types tensor<scalar> and tensor<scalar>[]", ""),
    "x §in [x]": ("operator 'in' does not take types tensor<scalar> and tensor<scalar>[]", ""),
    "(x < x) §* x": ("operator '*' does not take types tensor<logical> and tensor<scalar>", ""),
    "§!x": ("operator '!' does not take a value of type tensor<scalar>", ""),
    "§-(x < x)": ("operator '-' does not take a value of type tensor<logical>", ""),
    "neg(§-true)": ("operator '-' does not take a value of type logical", ""),
    "neg(§-'a')": ("operator '-' does not take a value of type string", ""),
    "neg('a' §* 1.0)": ("operator '*' does not take types string and scalar", ""),
    "neg('a' §- 'b')": ("operator '-' does not take types string and string", ""),
    "neg([1] §* [1])": ("operator '*' does not take types integer[] and integer[]", ""),
    "neg([1] §+ ['a'])": ("operator '+' does not take types integer[] and string[]", ""),
    "neg([1] §- [1])": ("operator '-' does not take types integer[] and integer[]", ""),
    "neg(true §+ true)": ("operator '+' does not take types logical and logical", ""),
    "x if 'a' §< 'b' else x": ("operator '<' does not take types string and string", ""),
    "x if true §< false else x": ("operator '<' does not take types logical and logical", ""),
    "x if true §&& 1 else x": ("operator '&&' does not take types logical and integer", ""),
    "x if 1 §== 1.0 else x": ("operator '==' does not take types integer and scalar", "do not mix"),
    "x if 'a' §== 1 else x": ("operator '==' does not take types string and integer", ""),
    "x if 1 §in ['a'] else x": ("operator 'in' does not take types integer and string[]", ""),
    "x if 1 §in 1 else x": ("operator 'in' does not take types integer and integer", ""),
    "x if 1 < 2 §< 3 else x": ("operator '<' does not take types logical and integer", ""),
    "x if §x else x": ("the condition of 'if' must be of type logical, this is tensor<scalar>", ""),
    "x if §1 else x": ("the condition of 'if' must be of type logical, this is integer", ""),
    "§x if true else 'a'": ("the two sides of 'if' have types tensor<scalar> and string", ""),
    "neg(§1.0 if true else 1)": ("the two sides of 'if' have types scalar and integer", ""),
    "[x, §1][0]": ("item 1 has type integer, the items before it tensor<scalar>", ""),
    "[x, x §< x][0]": ("item 1 has type tensor<logical>, the items before it tensor<scalar>", ""),
    "§x[0]": ("a value of type tensor<scalar> has no items", ""),
    "[x][§1.0]": ("an index must be of type integer, this is scalar", ""),
    "add_n([x][0:§1.0])": ("a bound of a range must be of type integer, this is scalar", ""),
    "§(x, x)[2]": ("the index into a tuple must be a literal from 0 to 1", ""),
    "§(x, x)[0 + 1]": ("the index into a tuple must be a literal from 0 to 1", ""),
    "add_n(§(x, x)[0:1])": ("a value of type (tensor<scalar>,tensor<scalar>) has no ranges", ""),
    "add_n([for i in §1 yield x])": ("a value of type integer cannot be iterated", ""),
    "add_n([for i in §x yield i])": ("a value of type tensor<scalar> cannot be iterated", ""),
    "add_n([for §x in [x] yield x])": ("'x' is already defined", "give the loop another name"),
    "add_n([for i in [x], §i in [x] yield i])": ("'i' is already defined", "another name"),
    "add_n([for i in [x] yield [for §i in [x] yield i][0]])": ("'i' is already defined", "another"),
    "add_n([for i in [x] if §1 yield i])": (
        "the condition of a comprehension must be of type logical, this is integer",
        "",
    ),
    "add_n([for i in [x] yield §j])": ("'j' is not defined here", ""),
    "add_n([for i in [x] yield i]) + §i": ("'i' is not defined here", ""),
    "x * scalar(§length_of(x))": (
        "'length_of' takes an array or a string, this is tensor<scalar>",
        "",
    ),
    "x * scalar(§range_of(1)[0])": ("'range_of' takes an array or a string, this is integer", ""),
    "x * §scalar(x)": ("'scalar' takes a primitive value, this is tensor<scalar>", ""),
    "x * §scalar([1.0])": ("'scalar' takes a primitive value, this is scalar[]", ""),
    "x if §logical((1, 2)) else x": (
        "'logical' takes a primitive value, this is (integer,integer)",
        "",
    ),
}


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_types_of_expressions(text: str) -> None:
    message, hint = EXPRESSIONS[text]
    found = error(in_fragment(f"y = {text};"))
    assert isinstance(found, SemanticError)
    assert found.message == message
    assert hint in found.hint


# What is allowed


@pytest.mark.parametrize(
    "body",
    [
        "y = x + 1.0;",
        "y = 2.0 ^ x;",
        "y = x if true else 1.0;",
        "y = [x, 1.0][0];",
        "y = select(true, x, 0.0);",
        "y = select(x < 1.0 && true, x, 0.0);",
        "y = add_n([]);",
        "y = x if [] == [1] || 1 in [] else [x][0];",
        "y = x if (1, 'a') == (1, 'b') else x;",
        "y = reshape(x, shape = [-1] + [] * 2 + ([] if true else [1]));",
        "a, (b, [c, d]) = (x, (x, [x, x])); y = a + b + c + d;",
        "y = [for i in [(x, 1.0)], s in 'a' yield i[0] * i[1]][0];",
        "i = neg(x); y = add_n([for j in [i] yield j]); j = y;",
    ],
)
def test_valid_expressions(body: str) -> None:
    checked(in_fragment(body))


def test_numbers_without_a_point_stand_for_scalars_in_the_provisional_dialect() -> None:
    fragments = (
        "fragment g( x: tensor, a: scalar = 2, b: scalar[] = [1, "
        "2.5] ) -> ( y: tensor ) { y = x * a + b[0] }"
    )
    checked(graph("y = g(x, a = 1, b = [1, 2])", fragments, header=PROVISIONAL))
    checked(in_fragment("y = x * 2 + 1 if 1.5 > 1 else select(x < 0, 0, x)", header=PROVISIONAL))
    error(in_fragment("y = sum_reduce(x, axes = §[1.0])", header=PROVISIONAL))
    error(in_fragment("y = x §+ 'a'", header=PROVISIONAL))
