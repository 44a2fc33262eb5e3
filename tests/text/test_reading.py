"""The fast reader builds what the grammar builds, or leaves the text to it: one test for all texts.

Trees are compared with their offsets, and with the types of literals.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nnef_jax
from lowering.location import Source
from nnef_jax import NnefError
from nnef_jax.formats.nnef import parser
from nnef_jax.formats.syntax.parsing import STANDARD, Parser
from nnef_jax.formats.tract import parser as tract
from nnef_jax.limits import Meter
from nnef_jax.storage.archive import open_archive
from tests.op_cases import NNEF, document

FLAT = """
# a comment first
version 1.0;
extension KHR_a, KHR_b;
extension vendor_c;
graph net( x, k ) -> ( y, z )   # another
{
    x = external<scalar>(shape = [1, 2,3]);
    k = external<integer>(shape = []);
    [a, b] = split(x, axis = 1, ratios = [1,1]);
    (c, i) = max_pool_with_index(a, size = [1,1,3], border = "ignore", 
        padding = [(0,0),(0,0),(1,-1)]);
    m, v = moments(b, axes = [2]);
    d = concat([m, v, 1.5], axis = 1);
    y = leaky_relu(x = d, alpha = -1e-2);
    z = select(true, 2., -0.0);
}
"""
HEAD = "version 1.0;\nextension KHR_enable_fragment_definitions;\nextension KHR_other; # why\n"
EXPRESSIONS = [
    "-x ^ -2.0 * 3",
    "a - b - c / d / e",
    "(a + b) * ((c))",
    "a if b < c && !d || e in [1,2] else f if g else h",
    "x[1][:2][a:][:][a + 1:b]",
    "[for i in r, j in s if i != j yield (i, j)]",
    "f<integer>(x, y = [(1,2),(-3,4)], z = 'a b') + g()",
    "a < b",
    "length_of(x) + scalar(true) - 1.5e-3",
    "g(h(x, 'it\\'s'), [y], (1, z), [[0.5], []])",
    "- 1",
    "+ -1",
    "[ ]",
]
COMPOSITIONAL = (
    HEAD
    + "fragment f<? = scalar>( x: (?,tensor<>[])[] = [], y: tensor<scalar> = 0.5 )"
    + " -> ( y: logical[][] )\n{\n"
    + "".join(f"    p{i}, (q, r) = {e};\n    z = {e};\n" for i, e in enumerate(EXPRESSIONS))
    + "}\nfragment g( x: tensor<?> ) -> ( y: tensor<?> );\n"
    + FLAT[FLAT.index("graph") :]
)
PROVISIONAL = """version 1.0
fragment f( x: tensor, n: extent = 1 ) -> ( y: tensor )
{
    a, b = (x + n, [for i in shape_of(x) yield i])
    y = relu(a)
}
graph net( x ) -> ( y ) { x = external(shape = [1, 2]) y = f(x, n = 2) }
"""
QUANTIZATION = """
"a": linear_quantize(min = 0.0, max = 1.0, bits = 8);
'b': zero_point_linear_quantize(zero_point = 0, scale = [0.5, -1.0], bits = 8, signed = true)  # c
"c": linear_quantize<scalar>(min = constant(shape = [1], value = [0.0]), max = 1.0, bits = 8);
"""
TRACT = """version 1.0;
extension tract_registry tract_core;
extension tract_symbol S;
extension KHR_a, "anything" # even this ;
# graph old( x ) -> ( y ) { y = neg(x); }
fragment half<>( x: tensor<scalar>, i"a.b": string[] = "graph g(x) -> (y) {", ) -> ( y: ?, z, )
{
    graph = x ^ 0.5 ^ -b * 0.5 < c[i + 1];
    y = copy(graph, [1, 2,], (a, b,), true,);
}
graph net( x, k ) -> ( y )
{
    x = tract_core_external(shape = [1, S], datum_type = 'f32');  # one; two
    k = external<integer>(shape = [S + 1]);
    a = half(x, i'a.b' = ";}");
    i"b;c" = relu(a);
    i"d\\"e" = i"b;c"(p.0, i"b\\"", i'arg' = é2);
    [d, e] = split(i"b;c", axis = 1, ratios = [1, -1]);
    (f), g = split(d, axis = 1, ratios = [1, 1.5e0],);
    true_ = select(true, max(e, g), i'x') ;
    y = pad(f, padding = [(0, 1), (2, 3)], border = "it's");
    y = y
        # over several lines;
        + 1.0;
}
"""
ASSERTIONS = ["S >= 1", "tg: p2o.Dim.0 ==\n 0", "t: f(S) < -2 ^ 3", "(tg)", "true"]

LIBRARIES = sorted(Path(nnef_jax.__file__).parent.rglob("*.nnef"))
ARCHIVES = sorted(Path(__file__).parents[1].glob("*/*.nnef.tgz"))
PIECES = ["", " ", ";", ",", "(", ")", "[", "]", "{", "}", "=", "<", ">", "-", "'", '"', "#", "1",
          ".", "x", "\n", "i", "true", ":", "^", "if ", "for ", "in ", "<?>", "[]"]  # fmt: skip


def whole(node: Any) -> Any:
    """A tree with the offsets that its equality leaves out, and types of literals."""
    if isinstance(node, Source):
        return None
    if dataclasses.is_dataclass(node):
        names = [field.name for field in dataclasses.fields(node) if field.init]
        return (type(node), *(whole(getattr(node, name)) for name in names))
    if isinstance(node, tuple | list):
        return tuple(map(whole, node))
    if isinstance(node, dict):
        return {name: whole(item) for name, item in node.items()}
    return (type(node), repr(node))


def check(parser: Parser, text: str, start: str = "document", provisional: bool = False) -> bool:
    """Whether the fast reader took the text; if it did, the grammar reads the same in it."""

    def read(read_by: Callable[..., Any]) -> Any:
        return read_by(start, text, parser.builder(Source("t", text), 200, provisional), Meter())

    fast = read(parser.fast)
    if fast is not None:
        assert whole(fast) == whole(read(parser.by_grammar))
    return fast is not None


def check_nnef(text: str) -> bool:
    provisional = parser.is_provisional(text)
    if provisional:
        _, text = parser.end_statements(text)
    return check(STANDARD, text, provisional=provisional)


def check_tract(text: str) -> bool:
    return check(tract.PARSER, tract.without_properties(text)[0])


@pytest.mark.parametrize("text", [FLAT, COMPOSITIONAL, PROVISIONAL])
def test_all_forms_of_a_text(text: str) -> None:
    assert check_nnef(text)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions(expression: str) -> None:
    assert check_nnef(f"{HEAD}graph g(x) -> (y) {{ y = {expression}; }}")


def test_all_forms_of_the_others() -> None:
    assert check_tract(TRACT)
    assert check(STANDARD, QUANTIZATION, "quantization")
    assert all(check(tract.PARSER, text, "assertion") for text in ASSERTIONS)


@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.stem)
def test_libraries(path: Path) -> None:
    assert check(STANDARD, path.read_text(encoding="utf-8"), "library")


def test_there_are_libraries() -> None:
    assert {"stdlib.nnef", "provisional.nnef", "tract_core.nnef"} <= {p.name for p in LIBRARIES}


@pytest.mark.parametrize("case", NNEF[::7], ids=lambda case: case.name)
def test_table(case: Any) -> None:
    assert check_nnef(document(case))


@pytest.mark.parametrize("path", ARCHIVES, ids=lambda path: path.name)
def test_archives(path: Path) -> None:
    with open_archive(path) as archive:
        assert check_tract(archive.read_text("graph.nnef").text)


def test_shared_documents(shared_cases: Path) -> None:
    paths = sorted(shared_cases.glob("nnef*/**/graph.nnef"))
    taken = sum(check_nnef(path.read_text(encoding="utf-8")) for path in paths)
    assert taken > 0.95 * len(paths)


@pytest.mark.parametrize(
    "statement",
    [
        "y = relu(x) z = neg(x);",
        "y = variable(shape = [1], label = 'a\tb');",
        "y = mul(x, 99999999999999999999);",
        "y = mul(x, 1e999);",
        "graph = neg(x);",
        "y = if(x);",
        "y = relu<tensor>(x);",
        "y = relu(x,);",
        "y = reshape(x, shape = [1, 1,]);",
        "y = reshape(x, shape = [1, (1)b]);",
        "y = pad(x, padding = [(0, 0),]);",
        "y = relu(x);;",
        "(y) = relu(x);",
        "y = pad(x, padding = [(1,)]);",
        "y = mul(x, 1.0.0);",
        "y = mul(x, true = 1);",
        "y = length_of(x, x);",
        "y = a <b> c(d);",
        f"y = {'(' * 300}x{')' * 300};",
        f"y = {'[' * 300}{']' * 300};",
        f"y = neg({'[' * 199}{']' * 199});",
    ],
)
def test_anything_else_is_left_to_the_grammar(statement: str) -> None:
    assert not check_nnef(
        f"version 1.0;\ngraph g( x ) -> ( y ) {{ x = external(shape = [1]); {statement} }}"
    )


@pytest.mark.parametrize(
    ("parser", "start", "text", "rounds"),
    [
        (STANDARD, "document", FLAT, 500),
        (STANDARD, "document", COMPOSITIONAL, 300),
        (STANDARD, "quantization", QUANTIZATION, 300),
        (tract.PARSER, "document", TRACT, 300),
    ],
    ids=["flat", "compositional", "quantization", "tract"],
)
@pytest.mark.parametrize("seed", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in (1, 2, 3))])
def test_mutations_are_read_alike(
    parser: Parser, start: str, text: str, rounds: int, seed: int
) -> None:
    """Whatever becomes of a text, the fast reader takes it only where the grammar does."""
    rng = random.Random(seed)
    taken = 0
    for _ in range(rounds):
        at = rng.randrange(len(text))
        mutated = text[:at] + rng.choice(PIECES) + text[at + rng.randrange(3) :]
        try:
            taken += check(parser, mutated, start)
        except NnefError as error:
            pytest.fail(f"the grammar refuses what the fast reader takes: {error}\n{mutated}")
    assert taken > rounds // 10
