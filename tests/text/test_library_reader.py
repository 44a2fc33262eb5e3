"""The fast reader of the package's libraries builds what the grammar builds, on each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import nnef_jax
from lowering.location import Source
from nnef_jax.formats.nnef.tree_builder import grammar_reader
from nnef_jax.formats.syntax.declarations import read_library
from nnef_jax.formats.syntax.tree import Fragment
from tests.text.test_fast_parser import whole

LIBRARIES = sorted(Path(nnef_jax.__file__).parent.rglob("*.nnef"))


def parse_library(source: Source) -> dict[str, Fragment]:
    """What the grammar makes of a library, by name."""
    _, _, fragments = grammar_reader().read("library", source, source.text, nesting=200)
    return {fragment.name: fragment for fragment in fragments}


def test_there_are_libraries() -> None:
    assert {"stdlib.nnef", "provisional.nnef", "tract_core.nnef"} <= {p.name for p in LIBRARIES}


@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.stem)
def test_library(path: Path) -> None:
    source = Source(path.name, path.read_text(encoding="utf-8"))
    fast, slow = read_library(source), parse_library(source)
    assert list(fast) == list(slow)
    assert {n: whole(f) for n, f in fast.items()} == {n: whole(f) for n, f in slow.items()}


HEAD = "version 1.0;\nextension KHR_enable_fragment_definitions;\nextension KHR_other; # why\n"


@pytest.mark.parametrize(
    "expression",
    [
        "-x ^ -2.0 * 3",
        "a - b - c / d / e",
        "(a + b) * ((c))",
        "a if b < c && !d || e in [1,2] else f if g else h",
        "x[1][:2][a:][:][a + 1:b]",
        "[for i in r, j in s if i != j yield (i, j)]",
        "f<integer>(x, y = [(1,2),(-3,4)], z = 'a b') + g()",
        "a < b",
        "length_of(x) + scalar(true) - 1.5e-3",
        "-1",
        "+ -1",
        "[]",
    ],
)
def test_expressions(expression: str) -> None:
    text = f"{HEAD}fragment f<? = scalar>( x: (?,tensor<>[])[] = [] ) -> ( y: logical[][] )\n{{\n"
    source = Source("library", f"{text}    p, q = {expression};\n    z = {expression};\n}}\n")
    assert whole(read_library(source)["f"]) == whole(parse_library(source)["f"])


def test_a_text_that_is_wrong_does_not_pass() -> None:
    with pytest.raises(ValueError, match=r"library: ';' expected before"):
        read_library(
            Source("library", f"{HEAD}fragment f( x: scalar ) -> ( y: scalar ) {{ y = x }}")
        )
