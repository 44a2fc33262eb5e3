"""Documents that ask for more than there is end in a LimitError that names the limit, and soon."""

from __future__ import annotations

import pytest

from nnef_jax import LimitError, Limits, NnefError
from nnef_jax.formats.syntax.types import INTEGER, ArrayOf, TupleOf, Type, nesting
from tests.text_support import error, flat, graph, in_fragment, network

CALLS = "fragment f0( x: T ) -> ( y: T ) { y = neg(x); }\n" + "\n".join(
    f"fragment f{i + 1}( x: T ) -> ( y: T ) {{ y = f{i}(f{i}(x)); }}" for i in range(30)
)
RECURSIVE = "fragment f( x: T, n: integer ) -> ( y: T ) { y = %s if n > 0 else x; }"


def doubled(first: str, again: str, times: int) -> str:
    """Statements that double a value again and again: a0, a1, ... and b0, b1, ..."""
    lines = [f"a0 = {first}; b0 = {first};"]
    lines += [
        f"a{i + 1} = {again.format(f'a{i}')}; b{i + 1} = {again.format(f'b{i}')};"
        for i in range(times)
    ]
    return "".join(lines)


# Name -> document, limits, what the message says, which limit it names.
BOMBS: dict[str, tuple[str, Limits, str, str]] = {
    "operations by calls": (
        graph("y = f30(x);", CALLS),
        Limits(operations=1000),
        "the flat graph has more than 1000 operations",
        "operations",
    ),
    "steps by recursion": (
        graph("y = f(x, n = 60);", RECURSIVE % "f(x, n = n - 1) + f(x, n = n - 1)"),
        Limits(steps=20_000),
        "the network takes more than 20000 steps",
        "steps",
    ),
    "endless recursion": (
        graph("y = f(x);", "fragment f( x: T ) -> ( y: T ) { y = f(x); }"),
        Limits(),
        "fragments call each other more than 2000 deep",
        "call_depth",
    ),
    "endless mutual recursion": (
        graph(
            "y = f(x);",
            "fragment f( x: T ) -> ( y: T ) { y = g(x); } "
            "fragment g( x: T ) -> ( y: T ) { y = f(x); }",
        ),
        Limits(call_depth=500),
        "fragments call each other more than 500 deep",
        "call_depth",
    ),
    "endless recursion that makes operations": (
        graph("y = f(x);", "fragment f( x: T ) -> ( y: T ) { y = f(neg(x)) + f(x); }"),
        Limits(),
        "fragments call each other more than 2000 deep",
        "call_depth",
    ),
    "string": (
        in_fragment(doubled("'ab'", "{0} + {0}", 40) + "y = x;"),
        Limits(array_items=10_000),
        "an array or string would be longer than 10000",
        "array_items",
    ),
    "array": (
        in_fragment(doubled("[1]", "{0} * 8", 20) + "y = x;"),
        Limits(array_items=10_000),
        "an array or string would be longer than 10000",
        "array_items",
    ),
    "arrays that hold one array twice, compared": (
        in_fragment(f"{doubled('[1]', '[{0}, {0}]', 60)} y = x if a60 == b60 else neg(x);"),
        Limits(array_items=10_000),
        "arrays of arrays have more than 10000 items here",
        "array_items",
    ),
    "arrays that hold one array twice, searched": (
        in_fragment(f"{doubled('[1]', '[{0}, {0}]', 60)} y = x if a60 in [b60] else neg(x);"),
        Limits(array_items=10_000),
        "arrays of arrays have more than 10000 items here",
        "array_items",
    ),
    "a long array copied for each of its items": (
        in_fragment(
            "a = [0] * 900000; y = add_n([for i in a yield x * scalar(length_of(a[1:]))]);"
        ),
        Limits(steps=1_000_000),
        "the network takes more than 1000000 steps",
        "steps",
    ),
    "many long arrays": (
        in_fragment("y = x * scalar(length_of([for i in [1] * 1000 yield [0] * 900000]));"),
        Limits(steps=1_000_000),
        "the network takes more than 1000000 steps",
        "steps",
    ),
    "an operation on many tensors": (
        graph("y = add_n([x] * 900000);"),
        Limits(steps=1_000_000),
        "the network takes more than 1000000 steps",
        "steps",
    ),
    "an operation with many results": (
        graph("[y, z] = copy_n(x, times = 1000000000);"),
        Limits(),
        "the network takes more than 10000000 steps",
        "steps",
    ),
    "a tensor taken apart": (
        "version 1.0; graph net( x ) -> ( y )"
        "{ x = external(shape = [1000000000]); [y, z] = unstack(x, axis = 0); }",
        Limits(),
        "the network takes more than 10000000 steps",
        "steps",
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(name: str) -> None:
    text, limits, message, limit = BOMBS[name]
    with pytest.raises(LimitError) as caught:
        network(text, limits=limits)
    assert caught.value.message == message
    assert caught.value.span is not None
    assert f"nnef_jax.Limits({limit}=...)" in caught.value.hint
    assert ("endless" in caught.value.hint) == (limit == "call_depth")


def test_tuples_of_tuples_do_not_grow_without_bound() -> None:
    body = doubled("(1, 2)", "({0}, {0})", 8) + "a = §(a8, a8); y = x;"
    assert error(in_fragment(body)).message == "tuples within tuples have over 1000 items here"
    with pytest.raises(NnefError, match="tuples within tuples"):
        network(
            in_fragment(doubled("(1, 2)", "({0}, {0})", 60) + "y = x if a60 == b60 else neg(x);")
        )


def test_long_names_do_not_multiply_in_recursion() -> None:
    name = "f" * 2_000
    fragment = (RECURSIVE % "x + f(x, n = n - 1)").replace("f(", f"{name}(")
    names = flat(graph(f"y = {name}(x, n = 1000);", fragment)).values
    assert len(names) == 1001 and max(map(len, names)) < 1000


def test_nesting_of_types() -> None:
    assert nesting(INTEGER) == 0
    assert nesting(ArrayOf(TupleOf((INTEGER, ArrayOf(INTEGER))))) == 3
    deep: Type = INTEGER
    for _ in range(5_000):
        deep = TupleOf((ArrayOf(deep), INTEGER))
    assert nesting(deep) == 10_000


def test_generous_documents_are_within_the_limits() -> None:
    many = "".join(f"a{i + 1} = neg(a{i});\n" for i in range(2000))
    assert len(flat(graph(f"a0 = neg(x);\n{many}y = neg(a2000);")).operations) == 2002
    text = f"y = constant(shape = [20000], value = [{', '.join(['1.5'] * 20_000)}]);"
    assert flat(graph(text)).outputs[0].type.shape == (20_000,)
