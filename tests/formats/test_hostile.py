"""What strangers may send ends in a network or an NnefError, at a cost that the limits bound."""

from __future__ import annotations

import gzip
import io
import random
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
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
from tests.fuzz import FOUND, failure
from tests.hostile import ATTACKS, FINAL, ODDITIES, TRACT, final, outcome, tar, tract

# A hundredth of what is allowed by default, so that an attack takes a moment.
SMALL = Limits(steps=100_000, expanded_bytes=20_000_000)


@contextmanager
def on_the_processor(seconds: float) -> Generator[None]:
    """Fail where a block takes far more of the processor's time than it should.

    That is a guard against work that grows with the square of the input: it takes a hundred times
    as long as is allowed, all else a fiftieth, however busy the machine is.
    """

    def stop(*_: Any) -> None:
        pytest.fail(f"takes more than {seconds} s of the processor")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_are_within_the_limits(name: str) -> None:
    make, size = ATTACKS[name]
    source = make(max(8, size // 20))
    with on_the_processor(20):
        outcome(name, source, SMALL)


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
_LENGTH = 50_000
_SHORT = 20_000  # a token takes the grammar 10 us; pairs of tokens would still take too long


@pytest.mark.parametrize("name", READERS)
def test_reading_is_linear(name: str) -> None:
    chance = random.Random(name)
    length = _SHORT if name == "grammar" else _LENGTH
    pairs = [(prefix, unit) for prefix in PREFIXES for unit in UNITS]
    quotes = [(prefix, '\\"') for prefix in PREFIXES]
    for prefix, unit in chance.sample(pairs, 20) + quotes:
        text = prefix + unit * (length // len(unit))
        with on_the_processor(4):
            READERS[name](text)
            READERS[name](f"{text}\n;")


# Nothing but NnefError


@pytest.mark.parametrize("name", ODDITIES)
def test_surprising_values_end_in_a_model_or_an_nnef_error(name: str) -> None:
    try:
        nnef_jax.load(ODDITIES[name]).summary()
    except NnefError as error:
        assert len(str(error).encode()) < 5_000


@pytest.mark.parametrize("path", sorted(FOUND.glob("*")), ids=lambda path: path.name)
def test_what_the_fuzzer_found(path: Path) -> None:
    assert failure(path.read_bytes()) == ""


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
            "places before an axis without items",
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
    fragment = f"fragment f( x: tensor<scalar> ) -> ( y: tensor<scalar> ) {{ {text} }}"
    source = tar({"graph.nnef": final("y = f(x);", fragment)})
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
