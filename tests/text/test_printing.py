"""Syntax trees as text, which reads back as the same trees."""

from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowering.location import Source
from nnef_jax.formats.nnef.parser import parse
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.printing import print_document, print_expression
from nnef_jax.formats.syntax.types import (
    GENERIC,
    INTEGER,
    LOGICAL,
    SCALAR,
    STRING,
    ArrayOf,
    Tensor,
    TupleOf,
    Type,
)
from nnef_jax.limits import Meter
from tests.helpers import COMPOSITIONAL

NOWHERE = Source("test", "")


def tree(text: str) -> s.Document:
    return parse(Source("graph.nnef", text), Meter())


def same(a: s.Document, b: s.Document) -> bool:
    """Whether trees are equal, numbers in type and sign too, which == does not tell."""
    return a == b and repr(a) == repr(b)


def shared_documents(folder: Path) -> Iterator[Path]:
    yield from sorted((folder / "nnef" / "cases").glob("*/model/graph.nnef"))
    yield from sorted((folder / "nnef_core").glob("*/graph.nnef"))


# Documents as they are printed

FINAL = """version 1.0;
extension KHR_enable_fragment_definitions, KHR_enable_operator_expressions;

fragment primitive<?>( x: tensor<?>, any: tensor<>[], at: (integer,(string,?))[] = [] )
-> ( y: tensor<?> );

fragment shifted<? = scalar>( x: tensor<?>[], by: scalar = -1e-05, names: string[] = ['a','b'] )
-> ( y: tensor<?>[] )
{
    y = [for item in x, i in range_of(x) if i in [0,2] && !(i == 1) yield copy<?>(item)];
}

fragment long(
    input: tensor<scalar>,
    filter: tensor<scalar>,
    border: string = 'constant',
    padding: (integer,integer)[] = [(0,0),(1,1)],
    order: integer[] = [] )
-> ( output: tensor<scalar>, index: tensor<integer> )
{
    output, index = max_pool_with_index(input, size = [1,1] + [2] * length_of(padding));
}

graph G( x ) -> ( y )
{
    x = external<scalar>(shape = [2,3]);
    [a, b] = split(x, axis = 1, ratios = [1,2]);
    y = concat([a, b, -x[0][1:][:2], x], axis = 1) if true else (1.0 - 2.5e+20) ^ -2.0;
}
"""
PROVISIONAL = """version 1.0

fragment f( x: tensor, n: extent, s: scalar = 1, flag: logical = false )
-> ( y: tensor, z: extent[], and_some_more_results: tensor[] )
{
    z = [2 * i for i in shape_of(x) if i > 1]
    a, b = (extent(s), integer('7'))
    [c, (d, e)] = g([x, x], label = "it's")
    y = x if flag else variable(shape = z, label = 'a/' + string(n))
}

fragment g( x: tensor[], label: string ) -> ( y: tensor );

graph G( x ) -> ( y, z )
{
    x = external(shape = [0,3])
    y, z = f(x, n = 4)
}
"""


@pytest.mark.parametrize("text", [FINAL, PROVISIONAL], ids=["final", "provisional"])
def test_the_layout_is_kept(text: str) -> None:
    assert print_document(tree(text)) == text


def test_a_long_declaration_of_a_graph_is_broken() -> None:
    names = [f"a_rather_long_input_name_{i}" for i in range(5)]
    externals = "".join(f"{name} = external(shape = [1]);" for name in names)
    inputs = ", ".join(names)
    document = tree(
        f"version 1.0; graph G( {inputs} ) -> ( y ) {{ {externals} y = add_n([{inputs}]); }}"
    )
    text = print_document(document)
    assert f"graph G(\n    {names[0]},\n    {names[1]},\n" in text
    assert f"    {names[4]} )\n-> ( y )\n{{\n" in text
    assert same(tree(text), document)


def test_shared_documents_round_trip(shared_cases: Path) -> None:
    for path in shared_documents(shared_cases):
        document = tree(path.read_text())
        text = print_document(document)
        assert same(tree(text), document), path
        assert print_document(tree(text)) == text, path


def test_deep_nesting() -> None:
    text = f"{COMPOSITIONAL}graph G( x ) -> ( y ) {{ y = {'[' * 190}1 + 2{']' * 190}; }}"
    assert same(tree(print_document(tree(text))), tree(text))


# Parentheses: as few as the tree needs


def through(expression: str) -> str:
    """How an expression is printed."""
    printed = print_document(tree(f"{COMPOSITIONAL}graph G( x ) -> ( y ) {{ y = {expression}; }}"))
    return printed.split("    y = ")[1].removesuffix(";\n}\n")


@pytest.mark.parametrize(
    "expression",
    [
        "a + b * c - d / e",
        "(a + b) * c",
        "a - (b - c)",
        "a / (b * c) / d",
        "a ^ b ^ c",
        "(a ^ b) ^ c",
        "-a ^ 2",
        "(-a) ^ 2",
        "(-1) ^ 2",
        "2 ^ -1",
        "2.0 ^ -x ^ y",
        "-(a + b)",
        "--a",
        "!-a",
        "a * -1",
        "-(1 + 2)[0]",
        "(-1)[0]",
        "(a + b)[1:2]",
        "a < b && c == d || !e",
        "(a || b) && c",
        "(a < b) == (c < d)",
        "(a in b) in c",
        "(a < b) > c",
        "a if b else c if d else e",
        "(a if b else c) if d else e",
        "a if (b if c else d) else e",
        "(a if b else c) + d",
        "f(a if b else c, [d if e else f])",
        "[for i in (a if b else c) if i < (2 if d else 3) yield i if j else k]",
        "(a, (b, c))[1]",
        "g<integer>(a, x = [(1,2)])",
        "scalar(length_of(a)) * 2.0",
        "a[b[0]:][:c]",
    ],
)
def test_parentheses_are_as_few_as_needed(expression: str) -> None:
    assert through(expression) == expression


@pytest.mark.parametrize(
    ("expression", "printed"),
    [
        ("((a)) + (b * c)", "a + b * c"),
        ("-(1)", "-1"),
        ("1E3", "1000.0"),
        ("1e-7", "1e-07"),
        ("5.", "5.0"),
        ("-0.0", "-0.0"),
        ("1e22", "1e+22"),
        ("9223372036854775807", "9223372036854775807"),
        (r"'it\'s'", '"it\'s"'),
        (r"'\"'", "'\"'"),
        (r"'\'\"\\'", r"""'\'"\\'"""),
        ('"plain"', "'plain'"),
        ("[ 1 , [2,3], (4, 5) ]", "[1,[2,3],(4,5)]"),
    ],
)
def test_literals_and_layout(expression: str, printed: str) -> None:
    assert through(expression) == printed
    assert through(printed) == printed


# Any tree

IDENTIFIERS = st.sampled_from(["x", "y2", "_z", "conv", "lambda", "integer_", "Long_name"])
PRINTABLE = st.text(
    st.one_of(st.sampled_from("'\"\\ #;=,{}[]()"), st.sampled_from(string.ascii_letters + "é→"))
)
LITERALS = st.one_of(
    st.booleans(),
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    PRINTABLE,
).map(lambda value: s.Literal(0, value))
FINAL_TYPES = [SCALAR, INTEGER, LOGICAL, STRING, GENERIC]
FINAL_TYPES += [Tensor(item) for item in (None, "scalar", "integer", "logical", "?")]
PROVISIONAL_TYPES = [SCALAR, INTEGER, LOGICAL, STRING, Tensor(None)]


def is_number(node: s.Expression) -> bool:
    return isinstance(node, s.Literal) and type(node.value) in (int, float)


def tuples_of(items: st.SearchStrategy[Any], least: int = 0) -> st.SearchStrategy[Any]:
    return st.lists(items, min_size=least, max_size=3).map(tuple)


def expressions(provisional: bool) -> st.SearchStrategy[s.Expression]:
    def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        loops = tuples_of(st.builds(s.Loop, st.just(0), IDENTIFIERS, inner), least=1)
        functions = ["scalar", "integer", "logical", "string", "length_of", "range_of"]
        functions += ["extent", "shape_of"] if provisional else []
        optional = st.none() | inner
        kinds = [
            st.builds(s.Array, st.just(0), tuples_of(inner)),
            st.builds(s.Tuple, st.just(0), tuples_of(inner, least=2)),
            st.builds(s.Subscript, st.just(0), inner, inner),
            st.builds(s.Subrange, st.just(0), inner, optional, optional),
            st.builds(s.Unary, st.just(0), st.just("!"), inner),
            # The parser makes one number of a sign and a number.
            st.builds(
                s.Unary, st.just(0), st.sampled_from("+-"), inner.filter(lambda n: not is_number(n))
            ),
            *(
                st.builds(s.Binary, st.just(0), st.sampled_from(operators), inner, inner)
                for operators in (["+", "-", "*", "/", "^"], ["&&", "||"],
                                  ["<", "<=", ">", ">=", "==", "!=", "in"])
            ),
            st.builds(s.Select, st.just(0), inner, inner, inner),
            st.builds(
                s.Comprehension,
                st.just(0),
                loops.map(lambda found: found[:1] if provisional else found),
                optional,
                inner,
            ),
            st.builds(s.Builtin, st.just(0), st.sampled_from(functions), inner),
            invocations(inner, provisional),
        ]  # fmt: skip
        return st.one_of(kinds)

    leaves = LITERALS | IDENTIFIERS.map(lambda name: s.Identifier(0, name))
    return st.recursive(leaves, larger, max_leaves=12)


def invocations(inner: st.SearchStrategy[Any], provisional: bool) -> st.SearchStrategy[Any]:
    argument = st.builds(s.Argument, st.just(0), st.none() | IDENTIFIERS, inner)
    generics = [None] if provisional else [None, "scalar", "integer", "logical", "string", "?"]
    return st.builds(
        s.Invocation, st.just(0), IDENTIFIERS, st.sampled_from(generics), tuples_of(argument)
    )


def documents(provisional: bool) -> st.SearchStrategy[s.Document]:
    expression = expressions(provisional)
    names = IDENTIFIERS.map(lambda name: s.Identifier(0, name))
    targets = st.recursive(
        names,
        lambda inner: st.one_of(
            st.builds(s.Array, st.just(0), tuples_of(inner)),
            st.builds(s.Tuple, st.just(0), tuples_of(inner, least=2)),
        ),
        max_leaves=4,
    )
    types: st.SearchStrategy[Type] = st.recursive(
        st.sampled_from(PROVISIONAL_TYPES if provisional else FINAL_TYPES),
        lambda inner: st.one_of(
            inner.map(ArrayOf), tuples_of(inner, least=2).map(lambda items: TupleOf(items))
        ),
        max_leaves=3,
    )

    def bodies(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return tuples_of(st.builds(s.Assignment, st.just(0), targets, values), least=1)

    generic = st.sampled_from(
        [(False, None)] if provisional else [(False, None), (True, None), (True, "integer")]
    )
    fragment = st.builds(
        lambda name, kind, *rest: s.Fragment(0, name, *kind, *rest, NOWHERE),
        IDENTIFIERS,
        generic,
        tuples_of(
            st.builds(s.FormalParameter, st.just(0), IDENTIFIERS, types, st.none() | expression)
        ),
        tuples_of(st.builds(s.ResultDeclaration, st.just(0), IDENTIFIERS, types), least=1),
        st.none() | bodies(expression),
    )
    # The graph of a provisional document has no operators: its arguments are literals and names.
    flat = invocations(st.recursive(LITERALS | names, lambda inner: st.builds(
        s.Array, st.just(0), tuples_of(inner)), max_leaves=4), provisional)  # fmt: skip
    graph = st.builds(
        s.GraphDefinition,
        st.just(0),
        IDENTIFIERS,
        tuples_of(names, least=1),
        tuples_of(names, least=1),
        bodies(flat if provisional else expression),
    )
    extensions = ("KHR_enable_fragment_definitions", "KHR_enable_operator_expressions")
    return st.builds(
        s.Document,
        st.just(NOWHERE),
        st.just("1.0"),
        st.just(provisional),
        st.just(()) if provisional else st.sampled_from([extensions, (*extensions, "my own")]),
        tuples_of(fragment),
        graph,
    )


def operations() -> st.SearchStrategy[s.Expression]:
    """Expressions of operators alone, in which most trees need parentheses somewhere."""
    at = st.just(0)

    def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        binary = [st.builds(s.Binary, at, st.just(o), inner, inner) for o in "+-*/^<"]
        binary += [st.builds(s.Binary, at, st.just(o), inner, inner) for o in ("&&", "||", "in")]
        operand = inner.filter(lambda node: not is_number(node))
        unary = st.builds(s.Unary, at, st.sampled_from("+-!"), operand)
        select = st.builds(s.Select, at, inner, inner, inner)
        return st.one_of(*binary, unary, select, st.builds(s.Subscript, at, inner, inner))

    leaves = [s.Identifier(0, "x"), s.Literal(0, 1), s.Literal(0, -1.5), s.Literal(0, True)]
    return st.recursive(st.sampled_from(leaves), larger, max_leaves=6)


@settings(max_examples=100, deadline=None)
@given(operations())
def test_any_expression_round_trips(expression: s.Expression) -> None:
    text = f"{COMPOSITIONAL}graph G( x ) -> ( y ) {{ y = {print_expression(expression)}; }}"
    found = tree(text).graph.body[0].value
    assert found == expression and repr(found) == repr(expression), text


@settings(max_examples=40, deadline=None)
@given(st.one_of(documents(provisional=False), documents(provisional=True)))
def test_any_tree_round_trips(document: s.Document) -> None:
    text = print_document(document)
    assert same(tree(text), document), text
