"""Whatever is done to a text, what comes of it is a network or an NnefError with a place."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnef_jax import Limits, NnefError
from tests.helpers import COMPOSITIONAL
from tests.text_support import PROVISIONAL, graph, network

FINAL = (
    COMPOSITIONAL
    + """
fragment layer<? = scalar>(
    x: tensor<?>, n: integer = 2, s: string = 'ab', p: (integer,integer)[] = [(0,1)], v: ?[] = [] )
-> ( y: tensor<?>, z: tensor<?>[] )
{
    k = [for i in range_of(p), q in p if i < n && true yield q[0] + i * 2];
    t, u = (n + 1, s + 'x' * 2);
    a = copy<?>(x) if length_of(s) > 1 || n == 3 else x;
    y = a;
    z = [a] * (length_of(k) + 1);
}
fragment total( v: scalar[] ) -> ( s: scalar )
{
    s = v[0] + total(v = v[1:]) if length_of(v) > 0 else 0.0;
}
fragment rec( x: tensor<scalar>, n: integer ) -> ( y: tensor<scalar> )
{
    y = rec(-x * 2.0 + 1.0, n = n - 1) if n > 0 else x ^ -2.0;
}
graph net( x, k ) -> ( y, w )
{
    x = external(shape = [2,3,0]);
    k = external<integer>(shape = [2]);   # an index
    filter = variable(shape = [2,3,4], label = 'a/b');
    (h, [c, d]) = layer(x, n = 7 / 2, v = [1.5,2.5]);
    s = select(h < 0.5 && !(h >= 2.0), h, -c) + total(v = [1.0, 2.0, 3.0]);
    [p, q] = split(s, axis = 0, ratios = [1,1]);
    e = concat([p, q], axis = 0) / filter;
    y = rec(e, n = 3);
    g = gather(e, k, axis = 0);
    w = update(filter, e);
    m, o = moments(g, axes = [0,1]);
}
"""
)
OLD = (
    PROVISIONAL
    + """
fragment layer( x: tensor, n: extent = 2, s: string = 'ab' ) -> ( y: tensor, z: tensor )
{
    sh = shape_of(x)
    w = variable(shape = [1, sh[1]], label = s + '/w')
    k = [i * 2 for i in range_of(sh) if i > 0]
    a, b = x * w, reshape(x, shape = [sh[0], -1])
    [c, d] = split(a, axis = 1, ratios = [1,2])
    y = a + 2 if sh[0] > 1 else neg(a) z = matmul(a, b, trB = true)
}
graph net( x ) -> ( y )
{
    x = external(shape = [0,3])   # open
    (h, u) = layer(x, s = 'l1')
    y = relu(transpose(h, perm = [1,0]));
}
"""
)
_TOKEN = re.compile(
    r"\s+|#[^\n]*|'[^'\n]*'|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\w+|[=<>!]=|->|&&|\|\||.", re.DOTALL
)
_WORDS = [
    *"()[]{},;:=+-*/^<>?!#'\\",
    *("==", "&&", "||", "->", "in", "for", "if", "else", "yield", "true", "false", "0", "1", "-1"),
    *("2.5", "1e9", "9223372036854775807", "99999999999", "'a'", "''", "x", "y", "1/0", "2^63"),
    *("shape_of", "length_of", "range_of", "scalar", "integer", "extent", "string", "logical"),
    *("tensor", "tensor<?>", "<?>", "<scalar>", "<string>", "[]", "[0]", "[0:1]", "[:]", "(1,2)"),
    *("external", "variable", "constant", "update", "cast", "copy_n", "add_n", "split", "unstack"),
    *("concat", "relu", "fragment", "graph", "[[1]]", "x[0]", "[0]*100000", "\0", "é"),
]
SMALL = Limits(steps=200_000, operations=2_000, call_depth=200, array_items=100_000)


def outcome(text: str, **options: Any) -> str:
    """ "network", or the kind of the error; anything but an NnefError passes through."""
    try:
        network(text, limits=SMALL, **options)
    except NnefError as error:
        assert str(error) and all(e.message and e.span for e in error.errors)
        return type(error).__name__
    return "network"


def test_the_documents_themselves_are_right() -> None:
    assert outcome(FINAL) == outcome(OLD) == "network"


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """One of the documents with a few tokens deleted, repeated, moved or replaced."""
    tokens = _TOKEN.findall(draw(st.sampled_from([FINAL, OLD])))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(tokens) - 1))
        other = draw(st.integers(0, len(tokens) - 1))
        match draw(st.sampled_from(["delete", "repeat", "swap", "replace", "insert", "copy"])):
            case "delete":
                del tokens[at]
            case "repeat":
                tokens.insert(at, tokens[at])
            case "swap":
                tokens[at], tokens[other] = tokens[other], tokens[at]
            case "replace":
                tokens[at] = draw(st.sampled_from(_WORDS))
            case "insert":
                tokens.insert(at, draw(st.sampled_from(_WORDS)))
            case _:
                tokens[at] = tokens[other]
    return "".join(tokens)


@settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(text=mutated(), expand=st.sampled_from(["auto", "all"]))
def test_mutations(text: str, expand: str) -> None:
    outcome(text, expand=expand)


@settings(max_examples=100, deadline=None, database=None)
@given(
    text=st.lists(st.sampled_from([*_WORDS, " ", "\n", "version 1.0", "graph net(x)->(y)"])).map(
        "".join
    )
)
def test_arbitrary_words(text: str) -> None:
    assert outcome(text) != "network"


# What once raised something else, or took for ever.

FOUND = {
    "a string for a tensor's items": graph("y = cast<string>(x);"),
    "an array of strings as a constant": graph("y = constant(shape = [1], value = ['a']);"),
    "strings by a generic fragment": graph(
        "y = f<string>(x);", "fragment f<?>( x: T ) -> ( y: tensor<?> ) { y = cast<?>(x); }"
    ),
    "a type of many arrays": graph(
        "y = f(x);", f"fragment f( x: T, a: integer{'[]' * 5000} = [] ) -> ( y: T ) {{ y = x; }}"
    ),
    "an assignment without a target": graph("= neg(x)", header=PROVISIONAL),
    "two equal signs": graph("y = = neg(x)", header=PROVISIONAL),
    "an unwritten type by a chosen empty array": graph(
        "y = reshape(x, shape = [1.5] if true else []);"
    ),
    "an unwritten type by an item of nothing": graph("y = x + [][0];"),
    "many signs before nothing": f"{'#' * 60}version",
    "an open extent as a scalar": graph(
        "y = f(x)",
        "fragment f( x: tensor ) -> ( y: tensor ) { y = leaky_relu(z, alpha = shape_of(x)[0]) }",
        header=PROVISIONAL,
    ),
    "a negative index into the literal's text": graph("y = x * [1.0][-1];"),
    "a graph without results": "version 1.0; graph net( x ) -> ( ) { x = external(shape = [1]); }",
    "a null character": graph("y = neg(x);\0"),
    "a whole number beyond those of tensors": graph("y = copy(9223372036854775807);"),
    "such a number as a result": graph("y = 2147483648;"),
    "half a pair of surrogates": graph("y = variable(shape = [1], label = '\ud800');"),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found(name: str) -> None:
    assert outcome(FOUND[name]) != "network"
