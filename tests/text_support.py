"""Helpers of the text layer's tests: short documents, with marks where they are wrong.

A `§` in a text marks where an error is expected; it is taken out before the text is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from lowering.graph import Graph
from lowering.location import Source
from nnef_jax import Limits, NnefError
from nnef_jax.formats.base import Expand, Options
from nnef_jax.formats.nnef.parser import parse
from nnef_jax.formats.nnef.scope import Scope
from nnef_jax.formats.nnef.semantics import check
from nnef_jax.formats.syntax.tree import Document
from nnef_jax.limits import Meter
from nnef_jax.reading.network import Network
from nnef_jax.reading.read import network_of_text
from tests.helpers import COMPOSITIONAL

MARK = "§"
PROVISIONAL = "version 1.0\n"


def parsed(text: str, limits: Limits | None = None) -> Document:
    """Return the syntax tree of a text."""
    return parse(Source("graph.nnef", text), Meter(limits))


def checked(text: str) -> Document:
    """Return the syntax tree of a text after the semantic checks."""
    document = parsed(text)
    check(Scope(document, Meter()))
    return document


def network(
    text: str,
    *,
    input_shapes: Mapping[str, Sequence[int | None]] | None = None,
    expand: Expand = "auto",
    limits: Limits | None = None,
) -> Network:
    """Return the network of a text, without data for its variables."""
    options = Options(expand=expand, input_shapes=dict(input_shapes or {}), meter=Meter(limits))
    return network_of_text(text, options)


def flat(text: str, **options: Any) -> Graph:
    """Return the flat graph of a text."""
    return network(text, **options).graph


def errors(text: str, **options: Any) -> tuple[NnefError, ...]:
    """Return the errors of a text, which must be at its marks, in order."""
    pieces = text.split(MARK)
    offsets = [sum(map(len, pieces[: i + 1])) for i in range(len(pieces) - 1)]
    with pytest.raises(NnefError) as caught:
        network("".join(pieces), **options)
    found = caught.value.errors
    assert [error.span and error.span.offset for error in found] == offsets, str(caught.value)
    assert all(line in str(caught.value) for error in found for line in error.block().split("\n"))
    return found


def error(text: str, **options: Any) -> NnefError:
    """Return the only error of a text."""
    (found,) = errors(text, **options)
    return found


def graph(
    body: str, fragments: str = "", *, results: str = "y", header: str = COMPOSITIONAL
) -> str:
    """Return a document with an input x of shape [2,3]; `T` in fragments is `tensor<scalar>`."""
    fragments = re.sub(r"\bT\b", "tensor<scalar>", fragments)
    end = ";" if header is not PROVISIONAL else ""
    return (
        f"{header}{fragments}\ngraph net( x ) -> ( {results} )\n"
        f"{{\n    x = external(shape = [2,3]){end}\n    {body}\n}}\n"
    )


def in_fragment(body: str, *, header: str = COMPOSITIONAL) -> str:
    """Return a document whose graph is y = f(x), with a body of f( x: tensor ) -> ( y: tensor )."""
    if header is PROVISIONAL:
        fragment = f"fragment f( x: tensor ) -> ( y: tensor ) {{ {body} }}"
        return graph("y = f(x)", fragment, header=header)
    fragment = f"fragment f( x: T ) -> ( y: T ) {{ {body} }}"
    return graph("y = f(x);", fragment, header=header)
