"""What strangers may send ends in a network or an NnefError, at a cost that the limits bound."""

from __future__ import annotations

import gzip
import io
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnef_jax
from lowering.location import Source
from nnef_jax import LimitError, Limits, NnefError
from nnef_jax.formats.nnef import flatten, parser
from nnef_jax.formats.syntax.parsing import STANDARD, Parser
from nnef_jax.formats.syntax.tokens import count_tokens
from nnef_jax.formats.tract import is_tract
from nnef_jax.formats.tract import parser as tract_parser
from nnef_jax.formats.tract.quantization import read_quantization
from nnef_jax.limits import Meter
from nnef_jax.storage import bitstream, tarball
from tests.fuzz import attacks, kind
from tests.fuzz.attack import FINAL, TRACT, final, fragment, tract
from tests.fuzz.bounds import ROOT, bounded
from tests.helpers import tar

# A hundredth of what is allowed by default: an attack takes a moment.
SMALL = Limits(steps=100_000, expanded_bytes=20_000_000)


def test_attacks_are_within_the_limits() -> None:
    failed = {}
    for name, attack in attacks.ATTACKS.items():
        n = max(8, attack.size // 40)
        source = attack.source(n)
        try:
            with bounded(5), suppress(NnefError):
                attacks.attempt((name, n, source), SMALL)
        except BaseException as error:
            failed[name] = repr(error)
    assert not failed


# Expressions on texts take time in proportion to the text


def _swallowing(read: Callable[[str], Any]) -> Callable[[str], None]:
    def call(text: str) -> None:
        with suppress(NnefError):
            read(text)

    return call


def _read(parser: Parser, how: str, text: str) -> None:
    getattr(parser, how)("document", text, parser.builder(Source("t", text), 200), Meter())


UNBOUNDED = Limits.unbounded()
READERS: dict[str, Callable[[str], None]] = {
    "is_tract": _swallowing(is_tract),
    "is_provisional": _swallowing(parser.is_provisional),
    "count_tokens": _swallowing(count_tokens),
    "ended provisional": _swallowing(parser.end_statements),
    "fast": _swallowing(lambda t: _read(STANDARD, "fast", t)),
    "fast for tract": _swallowing(lambda t: _read(tract_parser.PARSER, "fast", t)),
    "grammar": _swallowing(lambda t: _read(STANDARD, "by_grammar", t)),
    "graph.quant": _swallowing(lambda t: parser.parse_quantization(Source("t", t), Meter())),
    "tract": _swallowing(lambda t: tract_parser.parse(Source("t", t), Meter())),
    "properties of tract": _swallowing(tract_parser.without_properties),
    "graph.quant of tract": _swallowing(
        lambda t: read_quantization(Source("t", t), ["x"], Meter())
    ),
}
PREFIXES = [
    "",
    "tract_",
    "version 1.0;",
    "version 1.0",
    FINAL + "graph net( x ) -> ( y ) { x = external(shape = [1]); y = ",
    FINAL + "fragment f<",
    "version 1.0 graph net( x ) -> ( y ) { y = ",
    TRACT + "graph net( x ) -> ( y ) { x = external(shape = [1]); y = ",
    TRACT + "extension a ",
    TRACT + 'fragment tract_core_properties() -> (p: any) { p = [("a", ',
    TRACT + "graph net(",
    '"x": linear_quantize(min = ',
]
UNITS = [
    *"\"'#()[]{}<>,;:=.-+*/^!?\\ \t\n\fa0i\0\N{BOM}",
    *(
        '\\"',
        "\\'",
        '"a',
        "''",
        "i'",
        'i"',
        "# \n",
        "(1,",
        "[1,",
        "0,",
        "a,",
        "a = ",
        "(a",
        ") ] ;",
    ),
    *("graph ", "graph a(", "extension ", "extension\n", "fragment ", "version ", "] ; } ", '("'),
    *("< ", "<?", " \n", "{{", "a.", "1e", "1.", "0.e", ") -> (", "'a' ", '" )', "=\n="),
]
_LENGTH = 25_000
_SHORT = 10_000  # a token takes the grammar 10 us; pairs of tokens would still take too long


@pytest.mark.parametrize("name", READERS)
def test_reading_is_linear(name: str) -> None:
    chance = random.Random(name)
    length = _SHORT if name == "grammar" else _LENGTH
    pairs = [(prefix, unit) for prefix in PREFIXES for unit in UNITS]
    quotes = [(prefix, '\\"') for prefix in PREFIXES]
    for prefix, unit in chance.sample(pairs, 20) + quotes:
        text = prefix + unit * (length // len(unit))
        with bounded(1):
            READERS[name](text)
            READERS[name](f"{text}\n;")


# Nothing but NnefError


_EXTENTS = f"[{f'{1 << 62}, ' * 300}1]"
_RESIZE = "interpolator = 'linear', coord_transformer = 'half_pixel', nearest_mode = 'floor'"
_EXTERNAL = "tract_core_external(shape = [1], datum_type = 'f32')"
ODDITIES: dict[str, str | dict[str, bytes | str]] = {
    "an extent of thousands of digits": final(f"y = reshape(x, shape = {_EXTENTS});"),
    "a constant of such": final(f"y = constant(shape = {_EXTENTS}, value = [1.0, 2.0]);"),
    "a variable of such": final(f"y = variable(shape = {_EXTENTS}, label = 'v');"),
    "a tensor of such": final("y = copy(x);").replace("[1, 2]", _EXTENTS),
    "such a constant in graph.quant": {
        "graph.nnef": final("y = copy(x);"),
        "graph.quant": f'"y": linear_quantize(min = constant(shape = {_EXTENTS}, value = [1.0]),'
        " max = 2.0, bits = 8);",
    },
    "an operation of the name of an input that follows": f"{FINAL}graph net( relu, z ) -> ( y )"
    "{ z = external<scalar>(shape = [1]); y = neg(relu(z));"
    " relu = external<scalar>(shape = [1]); }",
    "an input of a shape that depends on an open one": "version 1.0\n"
    "fragment f( a: tensor, b: tensor ) -> ( y: tensor )"
    "{ y = a * 2.0 if shape_of(a)[0] > 2 else b }\ngraph net( a, b ) -> ( y )"
    "{ a = external(shape = [0,4])\n b = external(shape = shape_of(a))\n y = f(a, b) }",
    "an integer of hundreds of digits in JSON": {
        "graph.nnef": tract("y = leaky_relu(x, alpha = tract_resource_get('c', 'k'));"),
        "c.json": f'{{"k": {10**400}}}',
    },
    "a list with an integer of hundreds of digits in JSON": {
        "graph.nnef": tract("y = x + tract_resource_get('c', 'k');"),
        "c.json": f'{{"k": [{10**400}, 1.5]}}',
    },
    "half a character in JSON": {
        "graph.nnef": tract("y = tract_core_cast(x, to = tract_resource_get('c', 'k'));"),
        "c.json": '{"k": "\\ud800"}',
    },
    "a resize beyond all numbers": tract(
        f"y = tract_core_resize(x, scales = [1.0, 1e308], {_RESIZE});", shape="1, 4"
    ),
    "a range beyond all numbers": tract("y = tract_core_range(-1e308, 1e308, 1.0);"),
    "an item of a number": tract("a = 1 + 1; b = a[0]; y = copy(x);"),
    "an input that was assigned before": f"{TRACT}graph net( x, z ) -> ( y )"
    f"{{ z = {_EXTERNAL}; x = relu(z); x = {_EXTERNAL}; y = copy(x); }}",
}


@pytest.mark.parametrize("name", ODDITIES)
def test_surprising_values_end_in_a_model_or_an_nnef_error(name: str) -> None:
    made = ODDITIES[name]
    try:
        str(nnef_jax.load(tar({"graph.nnef": made} if isinstance(made, str) else made)).summary())
    except NnefError as error:
        assert len(str(error).encode()) < 5_000


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests/regressions").glob("*")), ids=lambda x: x.name
)
def test_what_the_fuzzer_found(path: Path) -> None:
    kind("nnef").end(path.read_bytes())


@pytest.mark.parametrize(
    ("module", "function"),
    [
        (tarball, "_pieces"),
        (bitstream, "unpack"),
        (flatten, "refuse_unsupported"),
        (Parser, "fast"),
    ],
)
def test_want_of_memory_is_a_limit_error(
    module: Any, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: Any, **__: Any) -> Any:
        raise MemoryError

    file = io.BytesIO()
    nnef_jax.write_tensor(file, np.array([1, 2]), bits=3)
    text = final("v = variable<integer>(shape = [2], label = 'v'); y = neg(x);")
    source = gzip.compress(tar({"graph.nnef": text, "v.dat": file.getvalue()}))
    assert nnef_jax.load(source)
    monkeypatch.setattr(module, function, exhausted)
    with pytest.raises(LimitError, match="does not fit into memory"):
        nnef_jax.load(source)


def test_constants_folded_while_a_network_is_traced_are_paid_for() -> None:
    text = "a = constant(shape = [200000000, 1], value = [1.0]); y = x * a;"
    model = nnef_jax.load(tar({"graph.nnef": final(text)}))
    with pytest.raises(LimitError, match="folding constants"):
        model(np.zeros((1, 2), np.float32))


@pytest.mark.parametrize("value", [1 << 31, -(1 << 31) - 1])
def test_a_literal_beyond_its_dtype(value: int) -> None:
    text = f"graph g(x) -> (y) {{ x = external<logical>(shape = [2]); y = select(x, {value}, 1); }}"
    with pytest.raises(nnef_jax.SemanticError, match="does not fit int32"):
        nnef_jax.load(tar({"graph.nnef": f"version 1.0; {text}"}))


@pytest.mark.parametrize(
    ("body", "shape", "message"),
    [
        (
            "rois = constant(shape = [1, 4], value = [0.0]);"
            "items = constant<integer>(shape = [1], value = [0]);"
            "y = avg_roi_pool(x, rois, items, output_size = [1, 2147483648]);",
            "[1, 1, 2, 2]",
            "an item of 'output_size', 2147483648 does not fit int32",
        ),
        (
            "e = slice(x, axes = [1], begin = [1], end = [1]);"
            "y = pad(e, padding = [(0, 4194304), (0, 0)]);",
            "[1, 2]",
            "items along the axes before the empty one",
        ),
        ("y = argmax_reduce(x, axes = [0, 1]);", "[2, 2147483647]", "its indices have 32 bits"),
    ],
)
def test_places_that_are_too_many(body: str, shape: str, message: str) -> None:
    text = final(body).replace("[1, 2]", shape)
    with pytest.raises(nnef_jax.SemanticError, match=message):
        nnef_jax.load(tar({"graph.nnef": text}))


def test_unbounded_limits_bound_nothing() -> None:
    text = "a = [0] * 20000000; y = x * scalar(length_of(a));"
    source = tar({"graph.nnef": final("y = f(x);", fragment(text))})
    with pytest.raises(LimitError):
        nnef_jax.load(source)
    assert nnef_jax.load(source, limits=UNBOUNDED).outputs[0].name == "y"


def test_one_budget_for_networks_within_networks() -> None:
    inner = tar({"graph.nnef": tract("y = copy(x);")})
    text = tract("y = tract_core_submodel([x], 'm');")
    outer = tar({"graph.nnef": text, "m.nnef.tgz": gzip.compress(inner)})
    assert nnef_jax.load(outer, limits=Limits(expanded_bytes=len(inner))).inputs
    with pytest.raises(LimitError, match="expanded_bytes"):
        nnef_jax.load(outer, limits=Limits(expanded_bytes=len(inner) - 1))
