"""Whatever is done to a text, what comes of it is a network or an NnefError with a place."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnef_jax import Limits, NnefError
from tests.fuzz.documents import FINAL, OLD
from tests.fuzz.draw import FINITE
from tests.fuzz.texts import WORDS, changed_words
from tests.text_support import PROVISIONAL, graph, network

SMALL = Limits(steps=200_000, operations=2_000, call_depth=200, array_items=100_000)


def outcome(text: str, **options: Any) -> str:
    """ "network", or the kind of the error; anything but an NnefError passes through."""
    try:
        network(text, limits=SMALL, **options)
    except NnefError as error:
        is_tract = "a document of tract's dialect" in str(error)  # refused as a whole
        assert str(error) and all(e.message and (e.span or is_tract) for e in error.errors)
        return type(error).__name__
    return "network"


def test_the_documents_themselves_are_right() -> None:
    assert outcome(FINAL) == outcome(OLD) == "network"


def test_mutations() -> None:
    chance = random.Random(0)
    for _ in range(150):
        text = changed_words(chance.choice((FINAL, OLD)), "final", chance)
        outcome(text, expand=chance.choice(("auto", "all")))


@settings(max_examples=100, deadline=None, database=None)
@given(
    text=st.lists(
        st.sampled_from([*WORDS, *FINITE, " ", "\n", "version 1.0", "graph net(x)->(y)"])
    ).map("".join)
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
