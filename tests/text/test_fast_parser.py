"""The fast reader of flat documents builds what the grammar builds, or leaves the text to it."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from lowering.location import Source
from nnef_jax import NnefError
from nnef_jax.formats.nnef.parser import parse_by_grammar, parse_flat
from nnef_jax.limits import Meter
from tests.op_cases import ALL_CASES, document

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


def whole(node: Any) -> Any:
    """A tree with the offsets that its equality leaves out, and types of literals."""
    if isinstance(node, Source):
        return None
    if dataclasses.is_dataclass(node):
        names = [field.name for field in dataclasses.fields(node) if field.init]
        return (type(node), *(whole(getattr(node, name)) for name in names))
    if isinstance(node, tuple):
        return tuple(map(whole, node))
    return (type(node), repr(node))


def check(text: str) -> bool:
    """Whether the fast reader took the text; if it did, the grammar reads the same in it."""
    fast = parse_flat(Source("graph.nnef", text), 200)
    if fast is not None:
        assert whole(fast) == whole(parse_by_grammar(Source("graph.nnef", text), Meter()))
    return fast is not None


def test_all_forms_of_a_flat_text() -> None:
    assert check(FLAT)


@pytest.mark.parametrize("case", ALL_CASES[::7], ids=lambda case: case.name)
def test_table(case: Any) -> None:
    assert check(document(case))


def test_shared_documents(shared_cases: Path) -> None:
    paths = sorted(shared_cases.glob("nnef*/**/graph.nnef"))
    taken = sum(check(path.read_text(encoding="utf-8")) for path in paths)
    assert taken > 0.8 * len(paths)


@pytest.mark.parametrize(
    "statement",
    [
        "y = relu(neg(x));",
        "y = x;",
        "y = relu(x) z = neg(x);",
        "y = variable(shape = [1], label = 'a\\'b');",
        "y = mul(x, 99999999999999999999);",
        "y = mul(x, 1e999);",
        "graph = neg(x);",
        "y = relu<tensor>(x);",
        "y = relu(x,);",
        "y = reshape(x, shape = [1, 1,]);",
        "y = pad(x, padding = [(0, 0),]);",
        "y = relu(x);;",
        "(y) = relu(x);",
        "y = pad(x, padding = [(1)]);",
        "y = mul(x, 1.0.0);",
        "y = mul(x, --1.0);",
        "y = mul(x, x - 1.0);",
        "y = length_of(x);",
    ],
)
def test_anything_else_is_left_to_the_grammar(statement: str) -> None:
    text = f"version 1.0;\ngraph g( x ) -> ( y ) {{ x = external(shape = [1]); {statement} }}"
    assert not check(text)


def test_mutations_are_read_alike() -> None:
    """Whatever becomes of a text, the fast reader takes it only where the grammar does."""
    rng = random.Random(0)
    pieces = [
        "",
        " ",
        ";",
        ",",
        "(",
        ")",
        "[",
        "]",
        "=",
        "<",
        ">",
        "-",
        "'",
        '"',
        "#",
        "1",
        ".",
        "x",
        "\n",
    ]
    taken = 0
    for _ in range(1500):
        at = rng.randrange(len(FLAT))
        text = FLAT[:at] + rng.choice(pieces) + FLAT[at + rng.randrange(3) :]
        try:
            taken += check(text)
        except NnefError as error:
            pytest.fail(f"the grammar refuses what the fast reader takes: {error}\n{text}")
    assert taken > 300
