"""What the fast reader takes of a document of the dialect is what the grammar makes of it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from lowering.location import Source
from nnef_jax import NnefError
from nnef_jax.formats.tract import parser
from nnef_jax.formats.tract.document import Document
from nnef_jax.formats.tract.parser import flat_statements
from nnef_jax.limits import Meter
from nnef_jax.storage.archive import open_archive
from tests.text.test_fast_parser import whole

TEXT = """version 1.0;
extension tract_registry tract_core;
extension tract_symbol S;
# graph old( x ) -> ( y ) { y = neg(x); }
fragment half( x: tensor<scalar>, note: string = "graph g(x) -> (y) {" ) -> ( y: tensor<scalar> )
{
    graph = x * 0.5;
    y = copy(graph);
}
graph net( x, k ) -> ( y )
{
    x = tract_core_external(shape = [1, S], datum_type = 'f32');  # one; two
    k = external<integer>(shape = [S + 1]);
    a = half(x, note = ";}");
    i"b;c" = relu(a);
    [d, e] = split(i"b;c", axis = 1, ratios = [1, -1]);
    f, g = split(d, axis = 1, ratios = [1, 1.5e0],);
    true_ = select(true, max(e, g), i'x') ;
    y = pad(f, padding = [(0, 1), (2, 3)], border = "it's");
    y = y
        # over several lines;
        + 1.0;
}
"""
ARCHIVES = sorted(Path(__file__).parents[1].glob("*/*.nnef.tgz"))


def read(text: str) -> Document:
    return parser.parse(Source("graph.nnef", text), Meter())


@pytest.fixture
def by_grammar(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Reads a text by the grammar alone."""

    def read_by_grammar(text: str) -> Document:
        with monkeypatch.context() as patched:
            patched.setattr(parser, "flat_statements", lambda text, nesting: (text, []))
            return read(text)

    return read_by_grammar


def test_statements_that_are_flat(by_grammar: Any) -> None:
    left, taken = flat_statements(TEXT, 200)
    assert [getattr(statement.target, "name", "") for statement in taken] == ["x", "a", "y"]
    assert len(left) == len(TEXT)
    assert whole(read(TEXT)) == whole(by_grammar(TEXT))


@pytest.mark.parametrize("path", ARCHIVES, ids=lambda path: path.name)
def test_archives(path: Path, by_grammar: Any) -> None:
    with open_archive(path) as archive:
        text = archive.read_text("graph.nnef").text
    _, taken = flat_statements(parser.without_properties(text)[0], 200)
    document = read(text)
    if path.parent.name == "torch_networks":  # tract itself puts names into quotes
        assert len(taken) > 0.9 * len(document.graph.body)
    assert whole(document) == whole(by_grammar(text))


@pytest.mark.parametrize(
    "statement",
    [
        "y = neg(x;",
        "y = neg(x) z = neg(x);",
        "y = ;",
        "y = neg(x,,x);",
        "}",
        "y = neg(x);;",
        "y = 'a;",
    ],
)
def test_errors_are_those_of_the_grammar(statement: str, by_grammar: Any) -> None:
    text = TEXT.replace("    a = half", f"    {statement}\n    a = half")
    with pytest.raises(NnefError) as expected:
        by_grammar(text)
    with pytest.raises(NnefError) as found:
        read(text)
    assert str(found.value) == str(expected.value)


def test_mutations_are_read_alike(by_grammar: Any) -> None:
    rng = random.Random(0)
    pieces = ["", " ", ";", ",", "(", ")", "[", "]", "{", "}", "=", "<", ">", "-", "'", '"', "#",
              "1", ".", "x", "\n", "i", "true"]  # fmt: skip
    right = 0
    for _ in range(400):
        at = rng.randrange(len(TEXT))
        text = TEXT[:at] + rng.choice(pieces) + TEXT[at + rng.randrange(3) :]
        try:
            expected = whole(by_grammar(text))
        except NnefError as error:
            with pytest.raises(NnefError) as found:
                read(text)
            assert str(found.value) == str(error)
        else:
            right += 1
            assert whole(read(text)) == expected
    assert right > 100
